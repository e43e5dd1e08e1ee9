"""Train one run: a network with a loss on a data set. The same command continues after any stop.

A loss is ce, wce, dpce, ssim, dice, dice-squared, lovasz, naive:METRIC, published:NAME, the path of a surrogate.json,
or a sum such as "published:mIoU + 0.5 * published:BIoU". For several GPUs give --processes, or start it with torchrun:
batch statistics, the surrogates' sums and cross entropy's mean are then those of the whole batch. SIGTERM and SIGUSR1
write a checkpoint and end with exit code 75.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys

from autoseg import gpus
from autoseg.cli.tasks import add_task_arguments, on_gpus, settings, task_of
from autoseg.errors import InputError

HELP = "train a network with a loss"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("--loss", required=True, help="see above")
    parser.add_argument("--out", required=True, metavar="DIR", help="the run's folder")
    parser.add_argument(
        "--searched", action="append", default=[], metavar="SEARCH=FILE", help="the surrogate.json of searched:SEARCH"
    )
    parser.add_argument("--on", choices=("train", "search-train"), default="train", help="with or without the hold-out")
    parser.add_argument("--source", choices=("files", "cache"), default="files", help="original files, or the cache")
    parser.add_argument("--tensorboard", metavar="DIR", help="write what log.jsonl holds for TensorBoard too")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="processes, one a GPU (default 1)")
    parser.add_argument("--quiet", action="store_true", help="show no bar of progress")
    add_task_arguments(parser, "paper")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    if args.processes < 1:
        raise InputError(f"--processes {args.processes}: expected 1 or more.")
    task = task_of(args)
    with on_gpus(task, args.processes):
        if "WORLD_SIZE" in os.environ:
            _end_with_torchrun()
        elif args.processes != 1:
            _become_torchrun(args.processes)
        from autoseg.training.run import train_run

        trained = train_run(
            task,
            args.loss,
            args.out,
            searched=settings(args.searched, "--searched"),
            on=args.on,
            source=args.source,
            tensorboard=args.tensorboard,
            progress=not args.quiet,
        )
    if trained is not None:
        end = " (diverged: the loss was not finite)" if trained.diverged else ""
        print(f"{args.out}: {trained.iterations} steps{end}", file=sys.stderr)


def _become_torchrun(processes: int) -> None:
    """Replace this process by torchrun with the same command: a signal to it reaches its processes."""
    gpus.keep_over_exec()
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "60")  # seconds to write a checkpoint
    # A port of its own (--standalone), so that several can run on one machine.
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    os.execv(sys.executable, [sys.executable, *torchrun, "-m", "autoseg", *sys.argv[1:]])


def _end_with_torchrun() -> None:
    """Have the system end this process when torchrun is killed: it would train on, on GPUs that others then take."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
