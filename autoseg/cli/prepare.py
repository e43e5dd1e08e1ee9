"""Read a data set once, check every file, and write its index and a packed cache.

If it is killed or stopped, the same command continues. At the end the folder given with --out holds
  index.json        ids, files, sizes, number of pixels of each class, checksums
  cache-<n>.bin     images and masks with short side n = 2 x proxy size, mapped into memory by training
  cache-<n>.json    the place of each of them in that file
  source.json       the folders of the original files (retraining and evaluation at full size read those)
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autoseg.cli.sources import add_options, add_threads, read_options
from autoseg.errors import InputError

HELP = "read a data set once: index and packed cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-command per kind of data set."""
    from autoseg.data.kinds import KINDS, Kind

    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, kind in KINDS.items():
        sub = kinds.add_parser(name, help=kind.help(), description=kind.help())
        add_options(sub, kind, kind.own_options())
        sub.add_argument("--out", required=True, metavar="DIR", help="folder for the prepared data set")
        sub.add_argument(
            "--proxy-size",
            type=int,
            default=128,
            metavar="PX",
            help="size of a crop in the proxy task; the short side of cached images is twice that (default 128)",
        )
        add_options(sub, kind, Kind.model_fields)
        add_threads(sub)


def run(args: argparse.Namespace) -> None:
    """Prepare the data set."""
    from autoseg.data.kinds import KINDS
    from autoseg.data.model import cache_short_side
    from autoseg.data.prepare import prepare

    if args.proxy_size < 1:
        raise InputError(f"is {args.proxy_size}", where="--proxy-size", expected="at least 1 pixel")
    options = read_options(args, KINDS[args.kind])
    source = options.find(Path(args.out) / "source", args.threads)
    prepare(source, args.out, cache_short_side(args.proxy_size), args.threads, options.leave_out_copies)
