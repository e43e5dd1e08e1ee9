"""The command line: one verb per stage of the pipeline, each in a module of its own beside this file.

A verb's module has `HELP` (one line), `add_arguments(parser)` and `run(args)`. It imports slow modules inside `run`, so
that `autoseg --help` is fast.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Collection, Sequence

from autoseg import __version__
from autoseg.cli.outputs import check_out
from autoseg.errors import InputError, Preempted, shown
from autoseg.plugins import VARIABLE, load_plugin

# In the order of the data flow.
VERBS: tuple[str, ...] = (
    *("prepare", "split", "ask", "trials", "rescore", "select", "search", "tune"),
    *("weights", "train", "evaluate", "table", "figure", "report", "loss"),
    *("plan", "doctor", "resume", "init", "auto", "fetch"),
)

PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: the same command can be tried again


def build_parser(words: Collection[str] = VERBS) -> argparse.ArgumentParser:
    """Return the parser of the command line; only verbs among `words` get their arguments, which cost imports."""
    parser = argparse.ArgumentParser(prog="autoseg", description="Search a loss function for a segmentation metric.")
    parser.add_argument("--version", action="version", version=f"autoseg {__version__}")
    parser.add_argument(
        "--plugin",
        action="append",
        default=os.environ.get(VARIABLE, "").split(),
        metavar="MODULE",
        help="import this module first, which registers your own metrics; may be repeated (also: $AUTOSEG_PLUGINS)",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in VERBS:
        module = importlib.import_module(f"autoseg.cli.{name}")
        verb = verbs.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name in words:
            module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; bad input ends in one sentence on stderr and exit code 2, a preemption in exit code 75."""
    argv = sys.argv[1:] if argv is None else argv
    args = build_parser(argv).parse_args(argv)
    _log_to_stderr(args.verb)
    try:
        check_out(args)
        for module in args.plugin:
            load_plugin(module)
        return args.run(args) or 0
    except InputError as error:
        return _refused(args.verb, error)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as a shell reports a program that was ended by SIGPIPE
    except OSError as error:  # a disk, folder or file that the system refuses, wherever a verb came by it
        from autoseg.files import in_words  # not at the top: `autoseg --help` does without pydantic

        return _refused(args.verb, in_words(error))
    except ModuleNotFoundError as error:
        if (error.name or "autoseg").partition(".")[0] == "autoseg":
            raise  # an error of this package, not of the installation
        print(
            f"autoseg {args.verb}: needs the package {error.name}; `pip install 'autoseg[all]'` brings it.",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print(f"autoseg {args.verb}: stopped; the same command goes on.", file=sys.stderr)
        return 130  # as a shell reports a program that was ended by Ctrl-C
    except Preempted as stop:
        print(f"autoseg {args.verb}: {stop}; the same command goes on.", file=sys.stderr)
        return PREEMPTED


def _refused(verb: str, error: InputError) -> int:
    print(shown(f"autoseg {verb}: {error}"), file=sys.stderr)
    return 2


def _log_to_stderr(verb: str) -> None:
    """Show what the library logs, from INFO on, as lines of this verb on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"autoseg {verb}: %(message)s"))
    logger = logging.getLogger("autoseg")
    logger.handlers = [handler]  # replaces that of an earlier verb, if one process runs several verbs
    logger.setLevel(logging.INFO)
