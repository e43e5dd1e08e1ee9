"""Fetch a public data set from its official place, check its bytes, unpack it, and examine it as `autoseg doctor` does.

A stopped fetch goes on with the same command, and what was fetched before is not fetched again. Trainings and jobs of a
pipeline never fetch anything. Cityscapes needs an account; `autoseg fetch cityscapes` says what to do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from autoseg.cli.sources import add_threads
from autoseg.errors import InputError

if TYPE_CHECKING:
    from autoseg.data.source import Source

HELP = "fetch a public data set, check its bytes, and unpack it"

DATA_SETS = {
    "pets": "Oxford-IIIT Pet, 0.8 GB (CC BY-SA 4.0)",
    "voc": "PASCAL VOC 2012, 2.0 GB",
    "sbd": "SBD, the further masks of VOC's images, 1.4 GB",
    "cityscapes": "Cityscapes: says how it is fetched by hand",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    named = "; ".join(f"{name}: {what}" for name, what in DATA_SETS.items())
    parser.add_argument("dataset", metavar="DATASET", choices=DATA_SETS, help=named)
    parser.add_argument("--root", metavar="DIR", help="folder that the data set is unpacked into")
    parser.add_argument(
        "--from",
        dest="mirror",
        metavar="URL|DIR",
        help="take the archives from this address or folder, where they have their own names (default: the official "
        "places)",
    )
    add_threads(parser)


def run(args: argparse.Namespace) -> int:
    """Fetch what is missing, and examine the data set."""
    from autoseg.cli.doctor import show
    from autoseg.data.check import check
    from autoseg.data.fetch import ARCHIVES, fetch

    if args.dataset == "cityscapes":
        place = args.root or "DIR"
        raise InputError(
            "Cityscapes is given to people with an account alone",
            where=args.root or "",
            cure="make one at www.cityscapes-dataset.com, fetch leftImg8bit_trainvaltest.zip (11 GB) and "
            f"gtFine_trainvaltest.zip (241 MB), unzip both in {place}, then run `autoseg doctor cityscapes --root "
            f"{place}`",
        )
    if args.root is None:
        raise InputError("is not given", where="--root", expected="the folder that the data set is unpacked into")
    root = Path(args.root).expanduser()
    for archive in ARCHIVES[args.dataset]:
        with _root_named():
            fetched = fetch(archive, root, args.mirror)
        if not fetched:
            told = f"{archive.name} was fetched before; remove {root / f'.fetched-{archive.name}'} to fetch it again."
            print(f"autoseg fetch: {told}", file=sys.stderr)
    source = _find(args.dataset, root)
    if source is None:
        print(f"SBD is unpacked. Its images and lists belong to VOC: `autoseg fetch voc --root {root}`.")
        return 0
    return show("pets" if args.dataset == "pets" else "voc", check(source, args.threads))


@contextmanager
def _root_named() -> Iterator[None]:
    """Name this verb's option in what is said of a place that cannot be written to."""
    try:
        yield
    except InputError as error:
        raise error.replace(cure=error.cure.replace("--out", "--root")) from None


def _find(dataset: str, root: Path) -> Source | None:
    """Return what was fetched, as far as it is whole enough to be examined."""
    from autoseg.data import pets, voc

    if dataset == "pets":
        return pets.find(root)
    if dataset == "sbd" and not (root / "VOCdevkit" / "VOC2012").is_dir():
        return None
    return voc.find(root, None if (root / "benchmark_RELEASE").is_dir() else "none")
