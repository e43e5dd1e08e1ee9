"""The packed cache: all images and masks of a data set, shrunk, as raw uint8 in one file that is mapped, not read.

Each sample is mapped alone and unmapped when its arrays are deleted. A map of the whole file would count as memory of
the process, and SLURM would charge for it.
"""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

import cv2
import numpy as np

from autoseg.data.model import CacheLayout, crop_of_cache
from autoseg.data.reading import Array
from autoseg.errors import InputError


def cached_size(height: int, width: int, short_side: int) -> tuple[int, int]:
    """Return the size at which an image is cached: short side at most `short_side`, never upsampled.

    >>> cached_size(375, 500, 256), cached_size(100, 80, 256)
    ((256, 341), (100, 80))
    """
    scale = min(1.0, short_side / min(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def shrink(image: Array, mask: Array, height: int, width: int) -> tuple[Array, Array]:
    """Resize an image by averaging areas and its mask by the nearest pixel."""
    if image.shape[:2] == (height, width):
        return image, mask
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)
    return small, resize_mask(mask, height, width)


def resize_mask(mask: Array, height: int, width: int) -> Array:
    """Resize a mask: each pixel takes the label under its own centre, so no new label appears.

    >>> resize_mask(np.array([[0, 1, 2, 255]], np.uint8), 2, 2).tolist()
    [[1, 255], [1, 255]]
    """
    rows = (2 * np.arange(height) + 1) * mask.shape[0] // (2 * height)
    columns = (2 * np.arange(width) + 1) * mask.shape[1] // (2 * width)
    return mask.take(rows, axis=0).take(columns, axis=1)


def cache_paths(folder: Path, short_side: int) -> tuple[Path, Path]:
    """Return the packed file of that size and its layout."""
    return folder / f"cache-{short_side}.bin", folder / f"cache-{short_side}.json"


def cache_sizes(folder: Path) -> list[int]:
    """Return the short sides of the caches in a folder."""
    names = (re.fullmatch(r"cache-(\d+)\.json", path.name) for path in folder.glob("cache-*.json"))
    return sorted(int(name[1]) for name in names if name)


class Cache:
    """Read access to a packed file, by id; worker processes that receive one open the file again."""

    def __init__(self, folder: str | os.PathLike[str], short_side: int, index_checksum: str | None = None) -> None:
        self.path, layout_path = cache_paths(Path(folder), short_side)
        again = f"run `autoseg prepare` again, with `--proxy-size {crop_of_cache(short_side)}`"
        if not layout_path.exists():
            made = ", ".join(map(str, cache_sizes(Path(folder)))) or "none"
            raise InputError(f"no cache of this size (there: {made})", where=layout_path, cure=again)
        self.layout = CacheLayout.load(layout_path)
        if index_checksum not in (None, self.layout.index):
            raise InputError("made with another index.json", where=layout_path, cure=again)
        found = self.path.stat().st_size if self.path.exists() else None
        if found != self.layout.nbytes:
            what = "is missing" if found is None else f"has {found} bytes instead of {self.layout.nbytes}"
            raise InputError(what, where=self.path, cure=again)
        self._slots = {slot.id: slot for slot in self.layout.slots}
        self._file: int | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_file": None}

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            os.close(self._file)  # type: ignore[arg-type]

    def read(self, name: str) -> tuple[Array, Array]:
        """Return image (H, W, 3) and mask (H, W) of a sample: read-only views of the mapped file."""
        slot = self._slots[name]
        if self._file is None:
            self._file = os.open(self.path, os.O_RDONLY)
        start = slot.offset - slot.offset % mmap.ALLOCATIONGRANULARITY
        lead = slot.offset - start
        mapped = mmap.mmap(self._file, lead + slot.nbytes, access=mmap.ACCESS_READ, offset=start)
        area = slot.height * slot.width
        image = np.frombuffer(mapped, np.uint8, 3 * area, lead).reshape(slot.height, slot.width, 3)
        mask = np.frombuffer(mapped, np.uint8, area, lead + 3 * area).reshape(slot.height, slot.width)
        return image, mask
