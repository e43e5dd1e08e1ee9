"""Hold training images out, so that a loss is searched without looking at the validation set.

A search trains on `train` and is scored on `hold_out`; retraining uses both; only tables look at `val`.
"""

from __future__ import annotations

import hashlib
import os
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from autoseg.data.kinds import KINDS, Kind
from autoseg.data.model import LARGEST_OF_DATA, Checksum, Index, copies
from autoseg.errors import InputError, located
from autoseg.files import Document, fingerprint

if TYPE_CHECKING:
    from autoseg.data.prepared import Prepared

PARTS = ("train", "hold_out", "val")

Ids = Annotated[list[str], Field(min_length=1)]


def parse_hold_out(given: str | int | float) -> int | float:
    """Read a number of images, or a share of them.

    >>> parse_hold_out("1500"), parse_hold_out("0.2"), parse_hold_out("20%"), parse_hold_out(0.2)
    (1500, 0.2, 0.2, 0.2)
    """
    expected = "a number of images (1500), or a share between 0 and 1 (0.2, 20%)"
    try:
        number = _number(given) if isinstance(given, str) else given
    except ValueError:
        raise InputError(f"'{given}' is no number", expected=expected) from None
    if not (0 < number < 1 if isinstance(number, float) else number >= 1):
        raise InputError(f"{given} is neither a number of images nor a share", expected=expected)
    return number


def _number(text: str) -> int | float:
    if text.endswith("%"):
        return float(text[:-1]) / 100
    return float(text) if "." in text else int(text)


def _parsed(given: Any) -> Any:
    return parse_hold_out(given) if isinstance(given, str | int | float) else given


HoldOut = Annotated[
    int | float,
    BeforeValidator(_parsed),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"^\d+(\.\d+)?%$"}]}
    ),
]


def hold_out_size(hold_out: str | int | float | None, dataset: str, available: int) -> int:
    """Return how many of the available images are held out; None: what is usual for the kind of data set.

    >>> hold_out_size(None, "voc", 10582), hold_out_size(0.25, "mine", 40)
    (1500, 10)
    """
    with located("hold_out"):
        size = parse_hold_out(KINDS.get(dataset, Kind).HOLD_OUT if hold_out is None else hold_out)
        if isinstance(size, float):
            size = max(1, round(size * available))
        if size >= available:
            raise InputError(
                f"{size} images, but the training set has {available}",
                expected="at least one image left to train on",
                cure="hold out fewer",
            )
    return size


class Split(Document):
    """`split.json`: which images are trained on, held out and validated on, with a checksum of each part's images."""

    SCHEMA: ClassVar[str] = "autoseg/split/2"
    LARGEST: ClassVar[int] = LARGEST_OF_DATA
    CURE: ClassVar[str] = "run `autoseg split` again"

    dataset: str
    index: Checksum = Field(description="checksum of the index.json that is divided")
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
                raise InputError(f"'{min(common)}' is in both {one} and {other}")
        return self


def make_split(index: Index, hold_out: str | int | float | None = None, seed: int = 0) -> Split:
    """Divide the training set: `hold_out` is a number of images, or a share below 1.

    The images with the smallest hash of (seed, id) are held out: no random generator, whose numbers could change with
    its version. An image that occurs twice in the training set is never held out, so no copy of a held-out image is
    trained on.
    """
    if seed < 0:
        raise InputError(f"is {seed}", where="seed", expected="0 or more")
    for part in ("train", "val"):
        if not index.splits.get(part):
            raise InputError(f"the data set '{index.dataset}' has no {part} images", expected="train and val images")
    entries = index.splits["train"]
    count = hold_out_size(hold_out, index.dataset, len(entries))
    twice = {entry.id for places in copies(index.splits) for _, entry in places}
    single = [entry.id for entry in entries if entry.id not in twice]
    if count > len(single):
        what = f"{count} images, but only {len(single)} training images have no copy in the set"
        raise InputError(what, where="hold_out", cure="hold out fewer")
    held = set(sorted(single, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())[:count])
    parts = {
        "train": [entry.id for entry in entries if entry.id not in held],
        "hold_out": [entry.id for entry in entries if entry.id in held],
        "val": [entry.id for entry in index.splits["val"]],
    }
    checksums = _prove_disjoint(index, parts)
    return Split(dataset=index.dataset, index=index.checksum(), seed=seed, checksums=checksums, **parts)


def load_split(path: str | os.PathLike[str], data: Prepared) -> Split:
    """Read a split and check it against the data set: the same index, known images, parts disjoint by content."""
    split = Split.load(path)
    if split.index != data.index_checksum:
        what = f"made for another index than {data.folder}/index.json"
        raise InputError(what, where=f"{path}: index", cure=Split.CURE)
    known = {entry.id for entry in data.index.entries()}
    for part in PARTS:
        if strange := set(getattr(split, part)) - known:
            what = f"'{min(strange)}' is not in {data.folder}/index.json"
            raise InputError(what, where=f"{path}: {part}", cure=Split.CURE)
    try:
        checksums = _prove_disjoint(data.index, {part: getattr(split, part) for part in PARTS})
    except InputError as error:
        raise error.at(path).replace(cure=Split.CURE) from None
    if checksums != split.checksums:
        part = next(part for part in PARTS if checksums[part] != split.checksums.get(part))
        what = "does not fit the images: the file was edited"
        raise InputError(what, where=f"{path}: checksums.{part}", cure=Split.CURE)
    return split


def _prove_disjoint(index: Index, parts: dict[str, list[str]]) -> dict[str, str]:
    """Return the checksum of each part; an image that is in two of them, by id or by content, is refused."""
    content = {entry.id: entry.decoded_checksum for entry in index.entries()}
    for one, other in combinations(parts, 2):
        first = {content[name]: name for name in parts[one]}
        for name in parts[other]:
            if content[name] in first:
                raise InputError(f"'{first[content[name]]}' of {one} and '{name}' of {other} are the same image")
    return {part: fingerprint([[name, content[name]] for name in names]) for part, names in parts.items()}
