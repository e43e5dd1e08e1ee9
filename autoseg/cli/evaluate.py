"""Score a run on the validation images at their original size: the six metrics, in percent, and each class's.

Under torchrun the images are shared out over the processes and the counts added up exactly.
"""

from __future__ import annotations

import argparse
import sys

from autoseg.cli.tasks import add_task_arguments, task_of

HELP = "score a run on the validation images"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("run_folder", metavar="RUN", help="a folder made by `autoseg train`")
    parser.add_argument("--out", metavar="FILE", help="where to write scores.json (default: in RUN)")
    parser.add_argument("--part", choices=("val", "hold_out"), default="val", help="which images (default val)")
    parser.add_argument(
        "--window", type=int, nargs=2, metavar=("H", "W"), help="slide a window of this size (default: whole images)"
    )
    parser.add_argument("--predictions", metavar="DIR", help="write the predicted label maps here, as palette PNGs")
    parser.add_argument("--name", help="what the run is called in the file (default: its folder's name)")
    parser.add_argument("--quiet", action="store_true", help="show no bar of progress")
    add_task_arguments(parser, "paper")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from pathlib import Path

    from autoseg.runs import evaluate_run

    found = evaluate_run(
        task_of(args),
        args.run_folder,
        args.out or Path(args.run_folder) / "scores.json",
        part=args.part,
        window=tuple(args.window) if args.window else None,
        predictions=args.predictions,
        name=args.name,
        progress=not args.quiet,
    )
    if found is not None:
        print("  ".join(f"{name} {value:.2f}" for name, value in found.scores.items()), file=sys.stderr)
