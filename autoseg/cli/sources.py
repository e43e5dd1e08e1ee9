"""The arguments that name a data set on the command line, shared by `prepare` and `doctor`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from autoseg.errors import InputError

if TYPE_CHECKING:
    from autoseg.data.source import Source

DISK_KINDS = {
    "voc": "PASCAL VOC 2012 with SBD (mmseg's, torchvision's or the converted layout)",
    "cityscapes": "Cityscapes (labelIds or labelTrainIds)",
    "folder": "your own: images and masks in folders or lists, and a class list",
}
SYNTHETIC = "made-up scenes, no download (the demo's data set)"


def add_source_arguments(parser: argparse.ArgumentParser, kind: str) -> None:
    """Add what is needed to find a data set of one kind that lies on disk."""
    parser.add_argument("--root", required=True, metavar="DIR", help="where the data set lies")
    if kind == "voc":
        parser.add_argument(
            "--sbd", metavar="DIR", help="where SBD lies (default: looked for beside VOC); 'none' leaves it out"
        )
    elif kind == "cityscapes":
        parser.add_argument("--labels", metavar="KIND", help="labelIds or labelTrainIds (default: what is there)")
    else:
        parser.add_argument(
            "--classes",
            required=True,
            metavar="FILE",
            help="class list: one a line, a name or 'name R G B' for colour-coded masks; 'void' counts nowhere",
        )
        parser.add_argument(
            "--split",
            action="append",
            default=[],
            metavar="NAME=PLACE",
            help="a split's IMAGES,MASKS folders, or IMAGES,MASKS,LIST of names, or a LIST of 'image mask' lines; "
            "relative to --root (default: guessed)",
        )
        parser.add_argument(
            "--mask-suffix", default="", metavar="TEXT", help="what masks' names have more (a_L.png: _L)"
        )


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the number of threads; it never changes a byte of the result."""
    parser.add_argument(
        "--workers", type=int, default=_cores(), metavar="N", help="threads (default: the cores of this job)"
    )


def find_source(args: argparse.Namespace, kind: str, say: Callable[[str], None]) -> Source:
    """Find the data set that the arguments name."""
    if kind == "voc":
        from autoseg.data import voc

        return voc.find(args.root, args.sbd)
    if kind == "cityscapes":
        from autoseg.data import cityscapes

        return cityscapes.find(args.root, args.labels)
    if kind == "folder":
        from autoseg.data import folder

        return folder.find(args.root, args.classes, _parse_splits(args.split), args.mask_suffix)
    from autoseg.data import synthetic

    return synthetic.find(
        os.path.join(args.out, "source"), args.train, args.val, args.size, args.seed, args.workers, say
    )


def _parse_splits(given: list[str]) -> dict[str, str]:
    splits: dict[str, str] = {}
    for text in given:
        name, equals, place = text.partition("=")
        if not (name and equals and place):
            raise InputError(
                f"--split '{text}': expected NAME=IMAGES,MASKS or NAME=LIST, as in train=img/train,ann/train."
            )
        if name in splits:
            raise InputError(f"--split: '{name}' is named twice, as {splits[name]} and as {place}; name it once.")
        splits[name] = place
    return splits


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
