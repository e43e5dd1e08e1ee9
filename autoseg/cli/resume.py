"""Bring a run of the pipeline back after its Snakemake was killed, with one command, in the folder it ran in.

Jobs that are left on the cluster, and processes that are left on this machine, are ended (of this run only), temporary
files removed, the folder unlocked; then Snakemake is started as it was the last time. What was finished is kept.
Arguments after `--` replace those of the last time: autoseg resume -- --profile slurm
"""

from __future__ import annotations

import argparse

HELP = "bring a killed run of the pipeline back"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("--name", help="the run's name in its config (default: the one started last in this folder)")
    parser.add_argument(
        "--wait", action="store_true", help="let jobs that run on the cluster end by themselves (default: cancel them)"
    )
    parser.add_argument("--force", action="store_true", help="the machine where the run was started is down")
    parser.add_argument("arguments", nargs="*", metavar="-- ARGUMENT", help="Snakemake's (default: as the last time)")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.pipeline.resume import go_on, prepare

    go_on(prepare(args.name, args.arguments, wait=args.wait, force=args.force))
