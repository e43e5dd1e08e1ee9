"""Run a whole search on this machine, or continue it: ask, score, ask, ..., select.

With --data every trial is trained and scored on the proxy task, as by `autoseg trials`. With --objective any function
`module:function` does it instead: it takes a surrogate (autoseg.losses.surrogate.Surrogate) and the trial's number and
returns the score on the hold-out set, higher being better. Every score is written as soon as it is there; the same
command continues after a kill.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autoseg.cli.searches import add_settings_argument, search_of
from autoseg.cli.tasks import add_task_arguments, task_of_search
from autoseg.errors import InputError

if TYPE_CHECKING:
    from autoseg.search.settings import Search
    from autoseg.training.trial import ProxyObjective

HELP = "run a whole search on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("folder", help="where the search's files are or will be")
    add_settings_argument(parser)
    parser.add_argument("--objective", help="module:function that trains and scores one surrogate (default: the task)")
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
    search = search_of(args, Folder(args.folder), remember=False)  # the runner does
    objective = args.objective or _proxy(args, search)
    chosen = run_search(args.folder, search, objective, args.workers, progress=not args.quiet)
    print(f"{args.folder}/surrogate.json: {chosen.source}")


def _proxy(args: argparse.Namespace, search: Search) -> ProxyObjective:
    from autoseg.training.trial import ProxyObjective

    return ProxyObjective(task_of_search(args, search), tuple(args.plugin))
