"""Run a whole search on this machine, or continue it: ask, score, ask, ..., select.

With --data every trial is trained and scored on the proxy task, as by `autoseg trials`. With --objective your own
function `module:function` trains and scores: it takes a surrogate (autoseg.losses.surrogate.Surrogate) and the number
of the trial, and returns the score on the hold-out images; higher is better. A score is written as soon as its trial
ends. If the search is killed, the same command continues it.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from autoseg import gpus
from autoseg.cli.searches import add_settings_argument, search_of
from autoseg.cli.sources import cores
from autoseg.cli.tasks import add_sharing_argument, add_task_arguments, positive, task_of, task_of_search
from autoseg.errors import InputError

if TYPE_CHECKING:
    from autoseg.search.settings import Search
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
    parser.add_argument(
        "--workers",
        type=_workers,
        default=1,
        metavar="N",
        help="number of trials that are scored at once (default: 1); auto: one for each GPU (times --trials-per-gpu), "
        "or, without a GPU, as many as fit on the cores with the setting `threads`",
    )
    add_sharing_argument(parser)
    parser.add_argument(
        "--hours",
        type=float,
        metavar="H",
        help="how long it may take: a trial is timed, steps and trials that the settings leave open follow, and the "
        "plan is said first; continued, the hours are for what is left of it",
    )
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
    on_cpu = not args.objective and task_of(args).training.device == "cpu"
    trials_per_gpu = 0 if on_cpu else args.trials_per_gpu
    workers = args.workers or _automatic(args, trials_per_gpu)
    chosen = run_search(args.folder, search, objective, workers, not args.quiet, trials_per_gpu, args.hours)
    print(f"{args.folder}/surrogate.json: {chosen.source}")


def _proxy(args: argparse.Namespace, search: Search) -> ProxyObjective:
    from autoseg.training.trial import ProxyObjective

    return ProxyObjective(task_of_search(args, search), tuple(args.plugin))


def _workers(text: str) -> int | None:
    return None if text == "auto" else positive(text)


def _automatic(args: argparse.Namespace, trials_per_gpu: int) -> int:
    """Return how many workers this machine takes, and say why."""
    if trials_per_gpu and (names := gpus.visible()):
        found = trials_per_gpu * len(names)
        why = f"{trials_per_gpu} for each of the GPUs {', '.join(names)}"
    else:
        all_cores = cores()
        # A function of the user's has as many threads as its libraries take: all, or what this variable says.
        own = int(os.environ.get("OMP_NUM_THREADS") or all_cores)
        threads = own if args.objective else task_of(args).training.threads
        found = max(all_cores // threads, 1)
        why = f"{all_cores} core{'s' * (all_cores > 1)}, {threads} thread{'s' * (threads > 1)} for each"
    print(f"autoseg search: {found} worker{'s' * (found > 1)} ({why}).", file=sys.stderr)
    return found
