"""List all problems of a data set, a training or a cluster before it is used, each with its cure.

Exit code 0: no problem (there may be remarks); 2: there are problems.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from autoseg.cli.sources import add_options, add_threads, read_options
from autoseg.cli.tasks import add_network_arguments, add_sharing_argument, add_task_arguments, settings, task_of
from autoseg.errors import Problem, collect, errors, listing, summary, warnings

if TYPE_CHECKING:
    from autoseg.data.kinds import OnDisk

HELP = "list everything that is wrong with a data set, a training, GPUs or a cluster, with cures"


class Subject(NamedTuple):
    """Something that can be examined: its help, its arguments, and the check that returns all its problems."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    check: Callable[[argparse.Namespace], list[Problem]]


def _data_set(kind: type[OnDisk]) -> Subject:
    def arguments(parser: argparse.ArgumentParser) -> None:
        add_options(parser, kind, kind.own_options())
        add_threads(parser)

    def check(args: argparse.Namespace) -> list[Problem]:
        from autoseg.data.check import check

        return check(read_options(args, kind).find(), args.threads)

    return Subject(kind.help(), arguments, check)


def _prepared() -> Subject:
    def arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("data", metavar="DIR", help="a folder made by `autoseg prepare`")
        add_threads(parser)

    def check(args: argparse.Namespace) -> list[Problem]:
        from autoseg.data.check import check_prepared
        from autoseg.data.prepared import Prepared

        return check_prepared(Prepared.open(args.data), args.threads)

    return Subject("a prepared data set: compare its caches and original files with their checksums", arguments, check)


def _task() -> Subject:
    def arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--out", default=".", metavar="DIR", help="the folder of the results (default: this one)")
        parser.add_argument(
            "--source",
            choices=("files", "cache"),
            default="cache",
            help="read the cache, as `autoseg trials` does (default), or the original files, as `autoseg train` does",
        )
        add_task_arguments(parser, "paper-proxy")

    def check(args: argparse.Namespace) -> list[Problem]:
        from autoseg.training.task import check_task

        return check_task(task_of(args), args.out, args.source)

    return Subject(
        "a training: its device, weights, data and disk (the arguments of `autoseg train`)", arguments, check
    )


def _network() -> Subject:
    def arguments(parser: argparse.ArgumentParser) -> None:
        add_network_arguments(parser)
        parser.add_argument("--classes", type=int, default=2, metavar="N", help="how many (default 2)")
        parser.add_argument(
            "--crop",
            type=int,
            nargs=2,
            default=[64, 64],
            metavar=("H", "W"),
            help="of a training image (default 64 64)",
        )

    def check(args: argparse.Namespace) -> list[Problem]:
        from autoseg.training.rehearsal import rehearse
        from autoseg.training.settings import check_start

        found: list[Problem] = []
        with collect(found):
            options = settings(args.network_option, "--network-option")
            weights = None if args.weights == "none" else args.weights
            check_start(args.network, options, weights, args.checkpoint)
            start = {"weights": weights, "checkpoint": args.checkpoint}
            rehearse(args.network, args.classes, (args.crop[0], args.crop[1]), **start, options=options)
        return found

    return Subject("a network: that it can be built, takes its weights, and gives logits", arguments, check)


def _gpus() -> Subject:
    def check(args: argparse.Namespace) -> list[Problem]:
        from autoseg.training.task import check_gpus

        none = Problem("gpus", "there is none that could be used here", "trainings run on the CPU", "warning")
        return check_gpus(args.trials_per_gpu) or [none]

    return Subject("the GPUs of this machine, and how jobs share them", add_sharing_argument, check)


def _slurm() -> Subject:
    def arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--profile", default="slurm", metavar="DIR", help="folder of the Snakemake profile (default: slurm)"
        )
        parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs of the largest job (default 1)")
        parser.add_argument(
            "--wait",
            type=int,
            default=60,
            metavar="S",
            help="wait S seconds at most for a node that looks at this folder (default 60)",
        )

    def check(args: argparse.Namespace) -> list[Problem]:
        from autoseg.pipeline import slurm

        need, status = slurm.read_profile(args.profile, args.gpus)
        return slurm.check(need, status) or slurm.try_node(need, os.getcwd(), args.wait)

    return Subject("a SLURM cluster: partition, account, GPUs, and whether its nodes see this folder", arguments, check)


def _subjects() -> dict[str, Subject]:
    from autoseg.data.kinds import KINDS, OnDisk

    data_sets = {name: _data_set(kind) for name, kind in KINDS.items() if issubclass(kind, OnDisk)}
    own = {"task": _task(), "network": _network(), "gpus": _gpus(), "slurm": _slurm()}
    return {**data_sets, "prepared": _prepared(), **own}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-command per subject."""
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    for name, subject in _subjects().items():
        sub = subjects.add_parser(name, help=subject.help, description=subject.help)
        subject.add_arguments(sub)
        sub.add_argument("--all", action="store_true", help="a line for each problem (default: for each kind of them)")
        sub.set_defaults(check=subject.check)


def run(args: argparse.Namespace) -> int:
    """Examine the subject and print what was found."""
    return show(args.subject, args.check(args), listing if args.all else summary)


def show(subject: str, found: list[Problem], lines: Callable[[list[Problem]], str] = summary) -> int:
    """Print what was found about a subject, a line for each kind of it, and return the exit code."""
    wrong, remarks = errors(found), warnings(found)
    if wrong:
        print(f"{len(wrong)} problem{'s' * (len(wrong) > 1)}:\n{lines(wrong)}")
    if remarks:
        print(f"{len(remarks)} remark{'s' * (len(remarks) > 1)}:\n{lines(remarks)}")
    if not wrong:
        print(f"{subject}: no problem found.")
    return 2 if wrong else 0
