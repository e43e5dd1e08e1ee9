"""The files of a prepared data set as pydantic models; a file that does not fit is named with its key."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autoseg.errors import InputError
from autoseg.files import fingerprint, read_json, write_json
from autoseg.problems import ProblemError

VOID = 255  # the label of pixels that count nowhere; every data set is mapped to it

Checksum = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256")]
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Label = Annotated[int, Field(ge=0, le=VOID)]


class Part(BaseModel):
    """A part of a file: every key is known, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class FileModel(Part):
    """A JSON file with a schema name and a version."""

    SCHEMA: ClassVar[str]
    VERSION: ClassVar[int] = 1

    def content(self) -> dict[str, Any]:
        """Return what is written to the file."""
        return {"schema": self.SCHEMA, "version": self.VERSION, **self.model_dump(mode="json")}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically, in its canonical text."""
        write_json(path, self.content())

    def fingerprint(self) -> str:
        """Return the SHA-256 of the canonical text, which is also the file's."""
        return fingerprint(self.content())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read and check the file; a problem names the file, the key and what was expected."""
        try:
            content = read_json(path)
        except InputError as error:
            raise ProblemError(path, str(error).removeprefix(f"{path}: ").rstrip("."), "make it again") from None
        found = content.pop("schema", None) if isinstance(content, dict) else None
        if found != cls.SCHEMA:
            what = f"key 'schema' is {found!r}, expected '{cls.SCHEMA}'"
            raise ProblemError(path, what, "this is another kind of file")
        version = content.pop("version", None)
        if version != cls.VERSION:
            what = f"key 'version' is {version!r}, this autoseg reads {cls.VERSION}"
            raise ProblemError(path, what, "make it again")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"]) or "(whole file)"
            more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            raise ProblemError(path, f"key '{key}': {first['msg']}{more}", "make it again") from None


class ClassInfo(Part):
    """A class: its name and the colour it is drawn in."""

    name: str
    color: tuple[Label, Label, Label]


class Labels(Part):
    """What a mask file's values mean: every legal raw value (or "#rrggbb" colour) -> class number or void.

    Where both are given, masks hold values, and a palette must draw each in the colour of its class.
    """

    values: dict[Label, Label] = {}
    colors: dict[str, Label] = {}


class Entry(Part):
    """One image with its mask; files are written "<root>/<path>", the roots stand in source.json."""

    id: str
    image: str
    mask: str
    encoding: str = Field(description='how the mask is stored: "index", "color" or "sbd" (a .mat file)')
    height: Size
    width: Size
    pixels: dict[Label, Count] = Field(description="class (255: void) -> number of pixels, at original size")
    image_checksum: Checksum
    mask_checksum: Checksum
    decoded_checksum: Checksum = Field(description="of the image's pixels: copies share it, however they are stored")


class Index(FileModel):
    """`index.json`: everything training needs to know of a data set without opening an image."""

    SCHEMA: ClassVar[str] = "autoseg.index"
    VERSION: ClassVar[int] = 2

    dataset: str
    classes: list[ClassInfo]
    labels: Labels
    splits: dict[str, Annotated[list[Entry], Field(min_length=1)]]

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Self:
        seen: set[str] = set()
        for entries in self.splits.values():
            for entry in entries:
                if entry.id in seen:
                    raise ValueError(f"the id '{entry.id}' occurs twice")
                seen.add(entry.id)
        return self

    @property
    def num_classes(self) -> int:
        """The number of classes, void not counted."""
        return len(self.classes)

    def entries(self) -> list[Entry]:
        """Return the entries of all splits, in the order of the file."""
        return [entry for entries in self.splits.values() for entry in entries]


def copies(splits: Mapping[str, list[Entry]]) -> list[list[tuple[str, Entry]]]:
    """Return the images that occur under several ids, pixel for pixel: each with all its places (split, entry)."""
    found = defaultdict(list)
    for split, entries in splits.items():
        for entry in entries:
            found[entry.decoded_checksum].append((split, entry))
    return [places for places in found.values() if len(places) > 1]


class SplitStatistics(Part):
    """Counts over one split."""

    images: Count
    pixels: list[Count] = Field(description="pixels of each class")
    void: Count
    images_with: list[Count] = Field(description="images in which each class occurs")
    smallest: tuple[Size, Size] = Field(description="least height and least width")
    largest: tuple[Size, Size] = Field(description="greatest height and greatest width")


class Statistics(FileModel):
    """`statistics.json`: class statistics per split, to be looked at; nothing is computed from them."""

    SCHEMA: ClassVar[str] = "autoseg.statistics"

    classes: list[str]
    splits: dict[str, SplitStatistics]

    @classmethod
    def of(cls, index: Index) -> Statistics:
        """Count over an index."""
        classes = range(index.num_classes)
        return cls(
            classes=[info.name for info in index.classes],
            splits={
                name: SplitStatistics(
                    images=len(entries),
                    pixels=[sum(entry.pixels.get(c, 0) for entry in entries) for c in classes],
                    void=sum(entry.pixels.get(VOID, 0) for entry in entries),
                    images_with=[sum(c in entry.pixels for entry in entries) for c in classes],
                    smallest=(min(entry.height for entry in entries), min(entry.width for entry in entries)),
                    largest=(max(entry.height for entry in entries), max(entry.width for entry in entries)),
                )
                for name, entries in index.splits.items()
            },
        )


class SourcePaths(FileModel):
    """`source.json`: where the original files lie on this machine; the one file that moving the data changes."""

    SCHEMA: ClassVar[str] = "autoseg.source"

    roots: dict[str, str] = Field(description="root name -> folder, relative to this file or absolute")
    states: dict[str, Checksum] = Field(
        description="short side of a cache -> fingerprint of the files' names, sizes and times when it was made"
    )


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


class CacheLayout(FileModel):
    """`cache-<short side>.json`: the contents of the packed file beside it."""

    SCHEMA: ClassVar[str] = "autoseg.cache"

    short_side: Size
    index: Checksum = Field(description="fingerprint of the index.json it was made with")
    slots: list[Slot]

    @property
    def nbytes(self) -> int:
        """Size of the packed file."""
        return sum(slot.nbytes for slot in self.slots)
