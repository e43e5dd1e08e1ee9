"""The command line: one verb per stage of the pipeline, each in a module of its own beside this file.

A verb's module has `HELP` (one line), `add_arguments(parser)` and `run(args)`; it imports what is heavy inside `run`,
so that `autoseg --help` costs nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from autoseg import __version__
from autoseg.errors import InputError, Preempted
from autoseg.plugins import VARIABLE, load_plugin

# In the order of the data flow.
VERBS: tuple[str, ...] = (
    *("prepare", "split", "ask", "trials", "rescore", "select", "search"),
    *("weights", "train", "evaluate", "table", "figure", "report", "loss"),
    *("plan", "doctor", "resume", "init"),
)

PREEMPTED = 75  # EX_TEMPFAIL: try again


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="autoseg", description="Search a loss function for a segmentation metric.")
    parser.add_argument("--version", action="version", version=f"autoseg {__version__}")
    parser.add_argument(
        "--plugin",
        action="append",
        default=os.environ.get(VARIABLE, "").split(),
        metavar="MODULE",
        help="import this module first: it registers metrics of your own (also: $AUTOSEG_PLUGINS); may be repeated",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in VERBS:
        module = importlib.import_module(f"autoseg.cli.{name}")
        verb = verbs.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; bad input ends in one sentence on stderr and exit code 2, a preemption in exit code 75."""
    args = build_parser().parse_args(argv)
    try:
        for module in args.plugin:
            load_plugin(module)
        return args.run(args) or 0
    except InputError as error:
        print(f"autoseg {args.verb}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "autoseg").partition(".")[0] == "autoseg":
            raise  # a mistake of ours, not of the installation
        print(
            f"autoseg {args.verb}: needs the package {error.name}; `pip install 'autoseg[all]'` brings it.",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print(f"autoseg {args.verb}: stopped; the same command goes on.", file=sys.stderr)
        return 130  # what a shell says of a program that Ctrl-C ended
    except Preempted as stop:
        print(f"autoseg {args.verb}: {stop}; the same command goes on.", file=sys.stderr)
        return PREEMPTED
