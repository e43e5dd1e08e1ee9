"""Read a data set once, check every file, and write its index, class statistics and packed cache.

Killed or stopped, the same command goes on where it was. The folder given with --out then holds
  index.json        ids, files, sizes, class pixel counts, checksums
  statistics.json   class statistics per split
  cache-<n>.bin     images and masks at short side n = 2 x proxy size, mapped into memory by training
  source.json       where the original files lie (retraining and evaluation at full size read those)
"""

from __future__ import annotations

import argparse
import sys

from autoseg.cli.sources import DISK_KINDS, SYNTHETIC, add_source_arguments, add_workers, find_source
from autoseg.errors import InputError

HELP = "read a data set once: index, class statistics, packed cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-command per kind of data set."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, text in {**DISK_KINDS, "synthetic": SYNTHETIC}.items():
        sub = kinds.add_parser(kind, help=text, description=text)
        if kind == "synthetic":
            sub.add_argument("--train", type=int, default=200, metavar="N", help="training images (default 200)")
            sub.add_argument("--val", type=int, default=50, metavar="N", help="validation images (default 50)")
            sub.add_argument("--size", type=int, default=128, metavar="PX", help="height and width (default 128)")
            sub.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, other scenes (default 0)")
        else:
            add_source_arguments(sub, kind)
        sub.add_argument("--out", required=True, metavar="DIR", help="folder for the prepared data set")
        sub.add_argument(
            "--proxy-size",
            type=int,
            default=128,
            metavar="PX",
            help="crop of the proxy task; the cache's short side is twice that (default 128)",
        )
        sub.add_argument(
            "--leave-out-copies",
            action="store_true",
            help="leave out training images that are copies of validation or test images, instead of refusing",
        )
        add_workers(sub)


def run(args: argparse.Namespace) -> None:
    """Prepare the data set."""
    from autoseg.data.prepare import prepare

    if args.proxy_size < 1:
        raise InputError(f"--proxy-size {args.proxy_size}: a crop has at least 1 pixel.")

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    source = find_source(args, args.kind, say)
    prepare(source, args.out, 2 * args.proxy_size, args.workers, args.leave_out_copies, say)
