"""Continue a run of the pipeline after its Snakemake was killed, in the folder in which it ran.

It ends the jobs that this run left on the cluster and the processes that it left on this machine, removes temporary
files, unlocks the folder, and starts Snakemake with the arguments of the last time. Finished results are kept.
Arguments after `--` replace those of the last time: autoseg resume -- --profile slurm
"""

from __future__ import annotations

import argparse

HELP = "continue a run of the pipeline that was killed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("--name", help="the run's name in its config (default: the one started last in this folder)")
    parser.add_argument(
        "--wait", action="store_true", help="let jobs that run on the cluster end by themselves (default: cancel them)"
    )
    parser.add_argument(
        "--force", action="store_true", help="continue a run that was started on another machine, which is down"
    )
    parser.add_argument(
        "arguments", nargs="*", metavar="-- ARGUMENT", help="arguments of Snakemake (default: those of the last time)"
    )


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.pipeline.resume import go_on, prepare

    go_on(prepare(args.name, args.arguments, wait=args.wait, force=args.force))
