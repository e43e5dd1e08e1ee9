"""Divide the training set of a prepared data set into training and hold-out images.

A search trains on the first and is scored on the second; it never reads the validation images. No image is in two of
the three parts: ids and the content of images are compared.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from autoseg.errors import InputError, located

HELP = "hold training images out for the search"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `autoseg split`."""
    from autoseg.data.kinds import USUAL_HOLD_OUTS

    parser.add_argument("data", metavar="DIR", help="a folder made by `autoseg prepare`")
    parser.add_argument(
        "--hold-out",
        metavar="N",
        help=f"a number of images, or a share: 0.2 or 20%% (default: {USUAL_HOLD_OUTS})",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed that decides which images are held out (default 0)"
    )
    parser.add_argument("--out", metavar="FILE", help="the file to write (default: DIR/split.json)")


def run(args: argparse.Namespace) -> None:
    """Write the split."""
    from autoseg.data.prepared import Prepared
    from autoseg.data.split import Split, make_split, parse_hold_out

    with located("--hold-out"):
        hold_out = None if args.hold_out is None else parse_hold_out(args.hold_out)
    split = make_split(Prepared.open(args.data).index, hold_out, args.seed)
    out = Path(args.out) if args.out else Path(args.data) / "split.json"
    if os.path.exists(out):
        try:
            known = Split.load(out)
        except InputError as error:
            raise error.replace(cure="remove the file first, or give another one with `--out`") from None
        if known != split:
            held = f"seed {known.seed}, {len(known.hold_out)} held out of {len(known.whole_train)}"
            print(f"{out}: replaces another split ({held}).", file=sys.stderr)
    split.save(out)
    print(
        f"{out}: {len(split.train)} train, {len(split.hold_out)} hold-out, {len(split.val)} val, disjoint.",
        file=sys.stderr,
    )
