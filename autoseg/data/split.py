"""Hold training images out, so that a loss is searched without ever looking at the validation set.

The search trains on `train` and is scored on `hold_out`; retraining uses both; only tables look at `val`.
"""

from __future__ import annotations

import hashlib
import os
from itertools import combinations
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from autoseg.data import cityscapes, voc
from autoseg.data.model import Checksum, FileModel, Index, copies
from autoseg.data.prepared import Prepared
from autoseg.errors import InputError
from autoseg.files import fingerprint
from autoseg.problems import ProblemError

# What the paper holds out; a fifth elsewhere.
DEFAULT_HOLD_OUT: dict[str, int | float] = {"voc": voc.HOLD_OUT, "cityscapes": cityscapes.HOLD_OUT}
_ELSEWHERE = 0.2
PARTS = ("train", "hold_out", "val")

Ids = Annotated[list[str], Field(min_length=1)]


class Split(FileModel):
    """`split.json`: which images are trained on, held out and validated on, with a checksum of each part's images."""

    SCHEMA: ClassVar[str] = "autoseg.split"

    dataset: str
    index: Checksum = Field(description="fingerprint of the index.json it divides")
    seed: int
    train: Ids
    hold_out: Ids
    val: Ids
    checksums: dict[str, Checksum] = Field(description="of the ids and pixel checksums of each part")

    @property
    def whole_train(self) -> list[str]:
        """The whole training set, hold-out included, sorted: what a network is retrained on."""
        return sorted(self.train + self.hold_out)

    @model_validator(mode="after")
    def _parts_are_disjoint(self) -> Self:
        for one, other in combinations(PARTS, 2):
            if common := set(getattr(self, one)) & set(getattr(self, other)):
                raise ValueError(f"'{min(common)}' is in both {one} and {other}")
        return self


def make_split(index: Index, hold_out: int | float | None = None, seed: int = 0) -> Split:
    """Divide the training set: `hold_out` is a number of images, or a fraction below 1.

    The images with the least hash of (seed, id) are held out: no random generator whose stream could change. An image
    that occurs twice in the training set is never held out, so no copy of a held-out image is trained on.
    """
    if seed < 0:
        raise InputError(f"seed {seed}: a seed is 0 or more.")
    for part in ("train", "val"):
        if not index.splits.get(part):
            raise InputError(f"the data set '{index.dataset}' has no {part} images; a split needs train and val.")
    entries = index.splits["train"]
    count = hold_out_size(hold_out, index.dataset, len(entries))
    twice = {entry.id for places in copies(index.splits) for _, entry in places}
    single = [entry.id for entry in entries if entry.id not in twice]
    if count > len(single):
        raise InputError(
            f"hold-out of {count}: only {len(single)} training images have no copy in the set; hold out fewer."
        )
    held = set(sorted(single, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())[:count])
    parts = {
        "train": [entry.id for entry in entries if entry.id not in held],
        "hold_out": [entry.id for entry in entries if entry.id in held],
        "val": [entry.id for entry in index.splits["val"]],
    }
    checksums = _prove_disjoint(index, parts)
    return Split(dataset=index.dataset, index=index.fingerprint(), seed=seed, checksums=checksums, **parts)


def load_split(path: str | os.PathLike[str], data: Prepared) -> Split:
    """Read a split and check it against the data set: the same index, known images, parts disjoint by content."""
    split = Split.load(path)
    if split.index != data.index_checksum:
        what = f"key 'index': made for another index than {data.folder}/index.json"
        raise ProblemError(path, what, "run `autoseg split` again")
    known = {entry.id for entry in data.index.entries()}
    for part in PARTS:
        if strange := set(getattr(split, part)) - known:
            what = f"key '{part}': '{min(strange)}' is not in {data.folder}/index.json"
            raise ProblemError(path, what, "run `autoseg split` again")
    try:
        checksums = _prove_disjoint(data.index, {part: getattr(split, part) for part in PARTS})
    except InputError as error:
        raise ProblemError(path, str(error).rstrip("."), "run `autoseg split` again") from None
    if checksums != split.checksums:
        part = next(part for part in PARTS if checksums[part] != split.checksums.get(part))
        what = f"key 'checksums.{part}' does not fit the images"
        raise ProblemError(path, what, "the file was edited, run `autoseg split` again")
    return split


def parse_hold_out(text: str) -> int | float:
    """Read a number of images or a fraction.

    >>> parse_hold_out("1500"), parse_hold_out("0.2"), parse_hold_out("20%")
    (1500, 0.2, 0.2)
    """
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return float(text) if "." in text else int(text)
    except ValueError:
        raise InputError(f"hold-out '{text}' is neither a number of images (1500) nor a fraction (0.2, 20%).") from None


def hold_out_size(hold_out: int | float | None, dataset: str, available: int) -> int:
    """Return how many of the available images are held out; the data set's usual number if none is given.

    >>> hold_out_size(None, "voc", 10582), hold_out_size(0.25, "mine", 40)
    (1500, 10)
    """
    if hold_out is None:
        hold_out = DEFAULT_HOLD_OUT.get(dataset, _ELSEWHERE)
    if isinstance(hold_out, float):
        if not 0 < hold_out < 1:
            raise InputError(
                f"hold-out of {hold_out}: a fraction lies between 0 and 1; write a whole number for images."
            )
        hold_out = max(1, round(hold_out * available))
    if not 0 < hold_out < available:
        raise InputError(
            f"hold-out of {hold_out} images: the training set has {available}; hold out at least 1 and leave 1."
        )
    return hold_out


def _prove_disjoint(index: Index, parts: dict[str, list[str]]) -> dict[str, str]:
    """Return the checksum of each part, once no image is in two of them, neither by id nor by content."""
    content = {entry.id: entry.decoded_checksum for entry in index.entries()}
    for one, other in combinations(parts, 2):
        first = {content[name]: name for name in parts[one]}
        for name in parts[other]:
            if content[name] in first:
                raise InputError(f"'{first[content[name]]}' of {one} and '{name}' of {other} are the same image.")
    return {part: fingerprint([[name, content[name]] for name in names]) for part, names in parts.items()}
