"""Train one run: a network with a loss on a data set. The same command continues after any stop.

A loss is ce, wce, dpce, ssim, dice, dice-squared, lovasz, jml, dml, focal, tversky, boundary, naive:METRIC,
published:NAME, zoo:NAME (see `autoseg loss list`), the path of a surrogate.json, or a sum such as
"published:mIoU + 0.5 * published:BIoU". For several GPUs give --processes, or start it with torchrun: batch statistics,
the sums of surrogates and the mean of cross entropy are then taken over the whole batch. On SIGTERM and SIGUSR1 it
writes a checkpoint and ends with exit code 75.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys

from autoseg import gpus
from autoseg.cli.parts import add_repeated
from autoseg.cli.tasks import add_task_arguments, on_gpus, settings, task_of
from autoseg.errors import InputError

HELP = "train a network with a loss"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("--loss", required=True, metavar="NAME|FILE", help="a loss or a sum of losses, see above")
    parser.add_argument("--out", required=True, metavar="DIR", help="the run's folder")
    add_repeated(parser, "--searched", "SEARCH=FILE", "the surrogate.json of searched:SEARCH")
    parser.add_argument("--tuning", metavar="FILE", help="take the learning rate from this file of `autoseg tune`")
    parser.add_argument(
        "--tuned-for", default="mIoU", metavar="METRIC", help="the one that was best for this metric (default mIoU)"
    )
    parser.add_argument(
        "--on",
        choices=("train", "search-train"),
        default="train",
        help="all training images (default), or only those that a search trains on, without the hold-out",
    )
    parser.add_argument(
        "--source", choices=("files", "cache"), default="files", help="read the original files (default), or the cache"
    )
    parser.add_argument("--tensorboard", metavar="DIR", help="write the numbers of log.jsonl for TensorBoard too")
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="processes that train together, one for each GPU (default 1)",
    )
    parser.add_argument("--quiet", action="store_true", help="show no bar of progress")
    add_task_arguments(parser, "paper")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    if args.processes < 1:
        raise InputError(f"found {args.processes}", where="--processes", expected="1 or more")
    task = task_of(args)
    if args.tuning:
        from autoseg.training.rates import TunedRates, at_rate

        lr = TunedRates.load(args.tuning).rate(args.tuned_for)
        task = task.model_copy(update={"training": at_rate(task.training, lr)})
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
    """Replace this process by torchrun with the same command, so that torchrun gets the signals to this process."""
    gpus.keep_over_exec()
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "60")  # seconds that processes have to write a checkpoint
    # --standalone takes a free port, so that several trainings can run on one machine.
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    os.execv(sys.executable, [sys.executable, *torchrun, "-m", "autoseg", *sys.argv[1:]])


def _end_with_torchrun() -> None:
    """Let the system end this process when torchrun is killed; otherwise it would train on, on GPUs of other jobs."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
