"""A prepared data set as training sees it: index, caches, and the original files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Self

from autoseg.data.cache import Cache
from autoseg.data.model import VOID, Index, IndexEntry, SourcePaths
from autoseg.data.reading import Array, Unreadable, decode_image, decode_mask, read_bytes, sha256
from autoseg.data.source import locate
from autoseg.errors import InputError, located, unknown
from autoseg.files import fingerprint


class Prepared:
    """What `autoseg prepare` wrote to a folder."""

    ignore_index = VOID

    def __init__(self, folder: Path, index: Index, roots: Mapping[str, Path]) -> None:
        self.folder = folder
        self.index = index
        self.roots = roots
        self._entries = {entry.id: entry for entry in index.entries()}
        self._caches: dict[int, Cache] = {}

    @classmethod
    def open(cls, folder: str | os.PathLike[str], roots: Mapping[str, str | Path] | None = None) -> Self:
        """Open a prepared data set; `roots` replaces folders of original files that have moved."""
        folder = Path(folder)
        if not os.path.exists(folder / "index.json"):  # Path.exists raises an error for a name that is too long
            cure = f"run `autoseg prepare ... --out {folder}` first"
            raise InputError("no index.json in it", where=folder, cure=cure)
        known = SourcePaths.load(folder / "source.json").roots
        index = Index.load(folder / "index.json")
        places = {name: folder / Path(path) for name, path in {**known, **(roots or {})}.items()}
        with located(folder / "index.json"):
            for entry in index.entries():
                for file in (entry.image, entry.mask):
                    locate(places, file)
        return cls(folder, index, places)

    @property
    def num_classes(self) -> int:
        """The number of classes, void not counted."""
        return self.index.num_classes

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, by number."""
        return [info.name for info in self.index.classes]

    @cached_property
    def index_checksum(self) -> str:
        """Checksum of the index, which holds the checksum of every image and mask."""
        return self.index.checksum()

    def checksum(self, short_side: int) -> str:
        """Return the checksum of index and cache together: what a training at proxy size depends on."""
        return fingerprint([self.index_checksum, self.cache(short_side).layout.checksum()])

    def ids(self, split: str) -> list[str]:
        """Return the ids of a split of the data set, in order."""
        if split not in self.index.splits:
            raise unknown("split", split, self.index.splits, where=str(self.folder))
        return [entry.id for entry in self.index.splits[split]]

    def entry(self, name: str) -> IndexEntry:
        """Return the index entry of a sample."""
        return self._entries[name]

    def cache(self, short_side: int) -> Cache:
        """Return the packed cache of that short side."""
        if short_side not in self._caches:
            cache = Cache(self.folder, short_side, self.index_checksum)
            if missing := self._entries.keys() - {slot.id for slot in cache.layout.slots}:
                what = f"'{min(missing)}' of index.json is not in it"
                raise InputError(what, where=cache.path, cure="run `autoseg prepare` again")
            self._caches[short_side] = cache
        return self._caches[short_side]

    def read(self, name: str) -> tuple[Array, Array]:
        """Return image (H, W, 3) and mask (H, W) of a sample at original size, from its original files."""
        entry = self._entries[name]
        image = self._decode(entry.image, entry.image_checksum, decode_image)
        labels = partial(decode_mask, encoding=entry.encoding, labels=self.index.labels)
        return image, self._decode(entry.mask, entry.mask_checksum, labels)

    def _decode(self, file: str, checksum: str, decode: Callable[[bytes], Array]) -> Array:
        path = locate(self.roots, file)
        try:
            content = read_bytes(path)
            if sha256(content) != checksum:
                what = "the file changed since it was prepared"
                raise InputError(what, where=path, cure="run `autoseg prepare` again")
            return decode(content)
        except Unreadable as error:
            what = f"{error.what}, although it was fine when prepared"
            raise InputError(what, where=path, expected=error.expected, cure=error.cure) from None
