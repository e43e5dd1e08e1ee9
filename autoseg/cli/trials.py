"""Train and score the proposals of one step of a search, or a chunk of them, one after the other.

All trials start from the same weights and see the same batches and dropout. Each score is written as soon as its trial
ends, as trial-<number>.json in the folder of the step. A trial that has a score of the same task and parameters is not
trained again. A score of another task is renamed to stale-trial-<number>-*.json and not used.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autoseg.cli.tasks import add_sharing_argument, add_task_arguments, on_gpus, task_of_search
from autoseg.errors import InputError

if TYPE_CHECKING:
    from autoseg.search.records import StepName

HELP = "train and score the proposals of a step (a chunk of them)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("folder", help="the search's folder")
    parser.add_argument(
        "--step", required=True, metavar="STEP", help="number of the step, its folder (step-003), or 'rescore'"
    )
    parser.add_argument("--chunk", default="0/1", metavar="K/N", help="trials K, K+N, K+2N, ... (default 0/1: all)")
    parser.add_argument(
        "--out", metavar="FILE", help="a file to write the checksums of the score files to when all trials are scored"
    )
    parser.add_argument("--quiet", action="store_true", help="show no bar of progress")
    add_sharing_argument(parser)
    add_task_arguments(parser, "paper-proxy")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.files import checksum
    from autoseg.search.folder import Folder
    from autoseg.search.records import ChunkScores
    from autoseg.search.runner import run_chunk
    from autoseg.training.trial import ProxyTask

    k, slash, n = args.chunk.partition("/")
    if not (slash and k.isdigit() and n.isdigit()):
        raise InputError(f"found '{args.chunk}'", where="--chunk", expected="K/N, such as 0/4")
    number = args.step.removeprefix("step-")
    if args.step != "rescore" and not number.isdigit():
        raise InputError(f"found '{args.step}'", where="--step", expected="a number or 'rescore'")
    step: StepName = "rescore" if args.step == "rescore" else int(number)
    task = task_of_search(args, Folder(args.folder).proposals(step).search)
    with on_gpus(task, sharing=args.trials_per_gpu):
        paths = run_chunk(args.folder, step, ProxyTask(task, progress=not args.quiet), (int(k), int(n)))
    if args.out:
        ChunkScores(scores={path.name: checksum(path) for path in paths}).save(args.out)
