"""Score a run on the validation images: the six metrics in percent, of all classes together and of each class.

`--metrics NSD BoundaryIoU` scores further ones too: mDice mFbeta mTversky mMCC kappa BoundaryIoU NSD clDice.

Images are resized to the scale of the training. The logits are resized to the original size, and labels are compared
there. A checkpoint of mmsegmentation can be scored too, if its network has a name here:
`autoseg evaluate --checkpoint FILE --network deeplabv3plus-r101c --data DIR`.

Under torchrun each process scores a part of the images; the counts are added up exactly.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from autoseg.cli.tasks import add_task_arguments, on_gpus, task_of
from autoseg.errors import InputError

HELP = "score a run, or a checkpoint, on the validation images"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("run_folder", metavar="RUN", nargs="?", help="a folder made by `autoseg train`")
    parser.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="instead of RUN: the weights of a whole network, such as mmsegmentation's; see --network",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="where to write the scores (default: scores.json in RUN, or FILE.scores.json)"
    )
    parser.add_argument("--part", choices=("val", "hold_out"), default="val", help="which images (default val)")
    parser.add_argument(
        "--window", type=int, nargs=2, metavar=("H", "W"), help="slide a window of this size (default: whole images)"
    )
    parser.add_argument(
        "--scale",
        metavar="LONG,SHORT",
        help="greatest long side and greatest short side of an image, in pixels; or: original (default: test_scale of "
        "the run's training; for --checkpoint, of --protocol and --set)",
    )
    parser.add_argument("--predictions", metavar="DIR", help="write the predicted label maps here, as palette PNGs")
    parser.add_argument(
        "--metrics", nargs="+", default=[], metavar="METRIC", help="score these too, such as NSD or BoundaryIoU"
    )
    parser.add_argument(
        "--decide",
        choices=("argmax", "rankseg", "rankseg-iou"),
        default="argmax",
        help="how labels follow from probabilities: the most likely class, or RankSEG's map with the best expected "
        "Dice or IoU of each image, which needs the package rankseg (default argmax)",
    )
    parser.add_argument("--name", help="the name of the run in the file (default: that of its folder)")
    parser.add_argument("--quiet", action="store_true", help="show no bar of progress")
    add_task_arguments(parser, "release", "release-cityscapes on Cityscapes", checkpoint=False)


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.data.prepared import Prepared
    from autoseg.training.run import evaluate_checkpoint, evaluate_run

    if bool(args.run_folder) == bool(args.checkpoint):
        raise InputError("found both or none", where="RUN, --checkpoint", expected="one of them")
    options: dict[str, Any] = {
        "part": args.part,
        "window": tuple(args.window) if args.window else None,
        "predictions": args.predictions,
        "metrics": args.metrics,
        "decide": args.decide,
        "name": args.name,
        "progress": not args.quiet,
    }
    if args.scale:
        options["scale"] = _scale(args.scale)
    if args.protocol is None and args.data and Prepared.open(args.data).index.dataset == "cityscapes":
        args.protocol = "release-cityscapes"
    task = task_of(args)
    with on_gpus(task):
        if args.checkpoint:
            out = args.out or f"{args.checkpoint}.scores.json"
            found = evaluate_checkpoint(task, args.checkpoint, out, **options)
        else:
            out = args.out or Path(args.run_folder) / "scores.json"
            found = evaluate_run(task, args.run_folder, out, **options)
    if found is not None:
        print("  ".join(f"{name} {value:.2f}" for name, value in found.scores.items()), file=sys.stderr)


def _scale(text: str) -> tuple[int, int] | None:
    if text == "original":
        return None
    sides = tuple(int(side) for side in text.split(",") if side.isdecimal())
    if len(sides) != 2 or not sides[0] >= sides[1] >= 8:
        raise InputError(f"'{text}'", where="--scale", expected="LONG,SHORT in pixels, such as 2048,512, or original")
    return sides
