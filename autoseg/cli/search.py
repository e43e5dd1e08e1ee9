"""Run a whole search on this machine, or continue it: ask, score, ask, ..., select.

With --data every trial is trained and scored on the proxy task, as by `autoseg trials`. With --objective your own
function `module:function` trains and scores: it takes a surrogate (autoseg.losses.surrogate.Surrogate) and the number
of the trial, and returns the score on the hold-out images; higher is better. A score is written as soon as its trial
ends. If the search is killed, the same command continues it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autoseg.cli.searches import add_settings_argument, search_of
from autoseg.cli.tasks import add_task_arguments, task_of
from autoseg.errors import InputError

if TYPE_CHECKING:
    from autoseg.training.trial import ProxyObjective

HELP = "run a whole search on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("folder", help="the folder of the search's files; made if it does not exist")
    add_settings_argument(parser)
    parser.add_argument(
        "--objective",
        metavar="MODULE:FUNCTION",
        help="your function that trains and scores one surrogate (default: the task)",
    )
    parser.add_argument("--workers", type=int, default=1, help="how many trials to score at once (default: 1)")
    parser.add_argument("--quiet", action="store_true", help="show no bar of progress")
    add_task_arguments(parser, "paper-proxy")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.search.folder import Folder
    from autoseg.search.runner import run as run_search

    if args.objective and args.data:
        raise InputError(
            "both are given", where="--objective and --data", expected="one: a function or the task trains the trials"
        )
    objective = args.objective or _proxy(args)
    search = search_of(args, Folder(args.folder), remember=False)  # the runner does
    chosen = run_search(args.folder, search, objective, args.workers, progress=not args.quiet)
    print(f"{args.folder}/surrogate.json: {chosen.source}")


def _proxy(args: argparse.Namespace) -> ProxyObjective:
    from autoseg.training.trial import ProxyObjective

    return ProxyObjective(task_of(args), tuple(args.plugin))
