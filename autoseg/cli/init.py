"""Write the pipeline into a folder of your own: Snakefile, workflow/ (rules, configs), envs/, slurm/ and profiles/.

Then, in that folder: `snakemake --cores all` runs the demo, and `snakemake --cores all --configfile my.yaml` yours.
No file is overwritten.
"""

from __future__ import annotations

import argparse

HELP = "write a project with the pipeline and its configs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("folder", help="the folder to write to; made if it does not exist")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    import shlex

    from autoseg.pipeline.project import write

    written = write(args.folder)
    print(f"{len(written)} files written. Next: cd {shlex.quote(args.folder)} && snakemake --cores all")
