"""The files of a prepared data set: `index.json`, `source.json`, `cache-<short side>.json`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from autoseg.errors import InputError
from autoseg.files import Document, Part

LARGEST_OF_DATA = 512 << 20
"""The greatest size of a file with a line for each image, in bytes: that of about a million images."""

VOID = 255  # the label of pixels that count nowhere; every data set is mapped to it

Checksum = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256")]
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Label = Annotated[int, Field(ge=0, le=VOID)]


Encoding = Annotated[
    str,
    Field(
        pattern="^(index|color|binary|sbd|trimap:[0-9]+)$",
        description='how the mask is stored: "index", "color", "binary" (black and white), "sbd" (a .mat file), or '
        '"trimap:2" (the animal, 1 in the mask, is of class 2)',
    ),
]


def is_plain_path(name: str) -> bool:
    """Return whether a name stays below the folder that it is put into.

    >>> [is_plain_path(name) for name in ("a/b.png", "a/../../b", "/b", "")]
    [True, False, False, False]
    """
    return bool(name) and not name.startswith("/") and "\0" not in name and ".." not in name.split("/")


class ClassInfo(Part):
    """A class: its name and the colour it is drawn in."""

    name: str
    color: tuple[Label, Label, Label]


class MaskValues(Part):
    """What a mask file's values mean: every legal raw value (or "#rrggbb" colour) -> class number or void.

    If both are given, masks hold values, and a palette must have the colour of its class for each value.
    """

    values: dict[Label, Label] = Field(default={})
    colors: dict[Annotated[str, Field(pattern="^#[0-9a-fA-F]{6}$")], Label] = Field(default={})


class IndexEntry(Part):
    """One image with its mask; files are written "<root>/<path>", the roots stand in source.json."""

    id: str
    image: str
    mask: str
    encoding: Encoding
    height: Size
    width: Size
    pixels: dict[Label, Count] = Field(description="class (255: void) -> number of pixels, at original size")
    image_checksum: Checksum
    mask_checksum: Checksum
    decoded_checksum: Checksum = Field(description="of the image's pixels: equal for copies, also in another format")


class Index(Document):
    """`index.json`: all that training needs to know about a data set without opening an image."""

    SCHEMA: ClassVar[str] = "autoseg/index/3"
    LARGEST: ClassVar[int] = LARGEST_OF_DATA

    dataset: str
    classes: list[ClassInfo] = Field(min_length=1, max_length=VOID)
    labels: MaskValues
    splits: dict[str, Annotated[list[IndexEntry], Field(min_length=1)]]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        seen: set[str] = set()
        known = {*range(len(self.classes)), VOID}
        if not {*self.labels.values.values(), *self.labels.colors.values()} <= known:
            raise InputError("a value stands for a class that there is not", where="labels")
        for entry in self.entries():
            if entry.id in seen:
                raise InputError(f"the id '{entry.id}' occurs twice")
            seen.add(entry.id)
            if not is_plain_path(entry.id):  # predictions are written to a path of this name
                raise InputError(f"the id {entry.id!r}", where="splits", expected="a relative path without '..'")
            if not known.issuperset(entry.pixels) or sum(entry.pixels.values()) != entry.height * entry.width:
                raise InputError(f"the pixels of '{entry.id}' are not those of its size and classes", where="splits")
        return self

    @property
    def num_classes(self) -> int:
        """The number of classes, void not counted."""
        return len(self.classes)

    def entries(self) -> list[IndexEntry]:
        """Return the entries of all splits, in the order of the file."""
        return [entry for entries in self.splits.values() for entry in entries]


def copies(splits: Mapping[str, list[IndexEntry]]) -> list[list[tuple[str, IndexEntry]]]:
    """Return the images whose exact pixels occur under several ids, each with all its places (split, entry)."""
    found = defaultdict(list)
    for split, entries in splits.items():
        for entry in entries:
            found[entry.decoded_checksum].append((split, entry))
    return [places for places in found.values() if len(places) > 1]


class SourcePaths(Document):
    """`source.json`: where the original files lie on this machine; the only file that changes when they move."""

    SCHEMA: ClassVar[str] = "autoseg/source/2"

    roots: dict[str, str] = Field(description="root name -> folder, relative to this file or absolute")
    fingerprints: dict[str, Checksum] = Field(
        description="short side of a cache -> fingerprint of all it was made from: files' names, sizes, times, options"
    )


LONGEST = 4
"""The greatest long side of a resized image, in wanted short sides: the release's (2048, 512) and (512, 128)."""

_CACHE_SCALE = 2  # augmentation enlarges up to twice, so no image has to be enlarged from the cache


def cache_short_side(crop: int) -> int:
    """Return the short side of the images in the cache for a crop of the proxy task.

    >>> cache_short_side(128), crop_of_cache(256)
    (256, 128)
    """
    return _CACHE_SCALE * crop


def crop_of_cache(short_side: int) -> int:
    """Return the crop that a cache of this short side is for."""
    return short_side // _CACHE_SCALE


class Slot(Part):
    """Where one sample lies in the packed file: height * width * 3 image bytes, then height * width mask bytes."""

    id: str
    offset: Count
    height: Size
    width: Size
    checksum: Checksum

    @property
    def nbytes(self) -> int:
        """Bytes of image and mask together."""
        return 4 * self.height * self.width


class CacheLayout(Document):
    """`cache-<short side>.json`: the contents of the packed file beside it."""

    SCHEMA: ClassVar[str] = "autoseg/cache/2"
    LARGEST: ClassVar[int] = LARGEST_OF_DATA

    short_side: Size
    index: Checksum = Field(description="checksum of the index.json it was made with")
    slots: list[Slot]

    @model_validator(mode="after")
    def _packed(self) -> Self:
        if len({slot.id for slot in self.slots}) != len(self.slots):
            raise InputError("an id occurs twice", where="slots")
        for slot in self.slots:
            if slot.offset + slot.nbytes > self.nbytes:
                raise InputError(f"'{slot.id}' lies beyond the end of the packed file", where="slots")
        return self

    @cached_property
    def nbytes(self) -> int:
        """Size of the packed file."""
        return sum(slot.nbytes for slot in self.slots)
