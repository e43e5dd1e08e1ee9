"""Tune the learning rate of a loss on the proxy task: as many trainings as a search has trials, on the same images.

A searched loss is worth its search only if it beats this. Each score is written as soon as its training ends, as
trial-<number>.json in the folder; a learning rate that has scores of the same task is not trained again. With --select
nothing is trained: the best learning rate for each metric is written to --out.
"""

from __future__ import annotations

import argparse

from autoseg.cli.tasks import add_sharing_argument, add_task_arguments, on_gpus, positive, task_of
from autoseg.errors import InputError

HELP = "tune the learning rate of a loss on the proxy task"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("folder", help="the tuning's folder")
    parser.add_argument("--loss", default="ce", metavar="NAME", help="a loss or a sum of losses (default ce)")
    parser.add_argument(
        "--lr", type=float, nargs=2, required=True, metavar=("LOW", "HIGH"), help="the range of learning rates"
    )
    parser.add_argument("--trials", type=positive, required=True, metavar="N", help="how many are tried")
    parser.add_argument(
        "--metrics", nargs="+", default=[], metavar="METRIC", help="score these too, such as NSD or BoundaryIoU"
    )
    parser.add_argument("--chunk", metavar="K/N", help="train only trials K, K+N, K+2N, ...")
    parser.add_argument("--select", action="store_true", help="train nothing, and write the best to --out")
    parser.add_argument(
        "--out", metavar="FILE", help="with --chunk, for the checksums of the trials' files; else for the best"
    )
    parser.add_argument("--quiet", action="store_true", help="show no bar of progress")
    add_sharing_argument(parser)
    add_task_arguments(parser, "paper-proxy")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from pathlib import Path

    from autoseg.files import checksum
    from autoseg.losses.names import check_loss
    from autoseg.search.records import ChunkScores
    from autoseg.training.rates import rates, select

    check_loss(args.loss, ())
    tried = rates(args.lr[0], args.lr[1], args.trials)
    if args.select and args.chunk:
        raise InputError("both are given", where="--select and --chunk", cure="leave one out")
    if not args.select:
        k, slash, n = (args.chunk or "0/1").partition("/")
        if not (slash and k.isdigit() and n.isdigit()):
            raise InputError(f"found '{args.chunk}'", where="--chunk", expected="K/N, such as 0/4")
        from autoseg.training.tuning import run_rates

        task = task_of(args)
        with on_gpus(task, sharing=args.trials_per_gpu):
            paths = run_rates(
                args.folder, task, args.loss, tried, (int(k), int(n)), metrics=args.metrics, progress=not args.quiet
            )
        if args.chunk:
            if args.out:
                ChunkScores(scores={path.name: checksum(path) for path in paths}).save(args.out)
            return
    select(args.folder, args.loss, tried).save(args.out or Path(args.folder) / "tuning.json")
