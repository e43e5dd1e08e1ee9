"""The checks that `doctor` and `prepare` share: headers first, then every byte of every file, then the whole set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from autoseg.data.cache import cache_sizes
from autoseg.data.model import VOID, IndexEntry, Slot, copies
from autoseg.data.prepared import Prepared
from autoseg.data.reading import (
    Array,
    Unreadable,
    decode_image,
    decode_mask,
    has_rotation,
    pixel_checksum,
    read_bytes,
    read_header,
    remarks,
    sha256,
)
from autoseg.data.source import Sample, Source, locate
from autoseg.data.split import load_split
from autoseg.errors import Problem, collect, errors
from autoseg.progress import bar

_NAMED = 12  # names of classes in a remark

Given = TypeVar("Given")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Decoded:
    """A sample read in full: its index entry and its pixels."""

    entry: IndexEntry
    image: Array
    mask: Array
    warnings: list[Problem]


def in_parallel(function: Callable[[Given], Result], items: list[Given], threads: int, title: str) -> Iterator[Result]:
    """Yield the results in order, with a progress bar.

    Threads, not processes: decoding, resizing and hashing release the interpreter lock, and no process is left over
    when the program is killed.
    """
    with ThreadPoolExecutor(max_workers=max(1, threads)) as pool:
        try:
            yield from bar(title, "image", iterable=pool.map(function, items), total=len(items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def survey(source: Source, sample: Sample) -> tuple[int, int] | list[Problem]:
    """Return the size of a sample from its image's header, or the problems that its first bytes show."""
    problems = []
    size = (0, 0)
    try:
        header = read_header(source.locate(sample.image))
        size = (header.height, header.width)
    except Unreadable as error:
        problems.append(error.at(source.locate(sample.image)))
    try:
        read_bytes(source.locate(sample.mask), limit=64)
    except Unreadable as error:
        problems.append(error.at(source.locate(sample.mask)))
    return problems or size


def decode(source: Source, sample: Sample) -> Decoded | list[Problem]:
    """Read a sample in full, or return its problems."""
    problems = []
    path = source.locate(sample.image)
    image = mask = None
    try:
        content = read_bytes(path)
        image, image_checksum = decode_image(content), sha256(content)
        warnings = [Problem(str(path), what, "if this is intended, do nothing", "warning") for what in remarks(content)]
    except Unreadable as error:
        problems.append(error.at(path))
    path = source.locate(sample.mask)
    try:
        content = read_bytes(path)
        mask, mask_checksum = decode_mask(content, sample.encoding, source.labels), sha256(content)
    except Unreadable as error:
        cure = source.cure_of_values(error.values) if source.cure_of_values and error.values else None
        problems.append(replace(error.at(path), cure=cure or error.cure))
    if image is None or mask is None:
        return problems
    if image.shape[:2] != mask.shape:
        size, expected = (f"{shape[1]}x{shape[0]}" for shape in (mask.shape, image.shape))
        what = f"the mask is {size}, its image {source.locate(sample.image).name} is {expected}"
        cure = "find the pair that belongs together; neither is resized to fit"
        if image.shape[1::-1] == mask.shape and has_rotation(source.locate(sample.image)):
            what += ": the image has an EXIF rotation, and the mask was drawn on the rotated image"
            cure = "save the image rotated, or the mask unrotated"
        return [Problem(str(path), what, cure)]
    counts = np.bincount(mask.ravel(), minlength=VOID + 1)
    if counts[VOID] == mask.size:
        warnings.append(Problem(str(path), "every pixel of the mask is void", "nothing is learned from it", "warning"))
    entry = IndexEntry(
        id=sample.id,
        image=sample.image,
        mask=sample.mask,
        encoding=sample.encoding,
        height=mask.shape[0],
        width=mask.shape[1],
        pixels={int(label): int(counts[label]) for label in np.flatnonzero(counts)},
        image_checksum=image_checksum,
        mask_checksum=mask_checksum,
        decoded_checksum=pixel_checksum(image),
    )
    return Decoded(entry, image, mask, warnings)


def leaked(splits: dict[str, list[IndexEntry]]) -> set[str]:
    """Return the ids of training images whose exact pixels are also in another split."""
    return {
        entry.id
        for places in copies(splits)
        if any(split != "train" for split, _ in places)
        for split, entry in places
        if split == "train"
    }


def check_whole_set(source: Source, splits: dict[str, list[IndexEntry]]) -> Iterator[Problem]:
    """Yield the problems of the set as a whole: empty splits, copies, classes that no pixel has."""
    for split in ("train", "val"):
        if not splits.get(split) and not errors(source.problems):  # those say why
            yield Problem(source.dataset, f"there is no image in {split}", "see the problems of its files, if any")
    yield from _check_copies(source, splits)
    if splits.get("train"):
        yield from _check_classes(source, splits["train"])


def _check_copies(source: Source, splits: dict[str, list[IndexEntry]]) -> Iterator[Problem]:
    for places in copies(splits):
        paths = [(split, str(source.locate(entry.image))) for split, entry in places]
        first_split, first = next((place for place in paths if place[0] != "train"), paths[0])
        for split, path in paths:
            if path == first:
                continue
            what = f"the image in {split} is a copy of {first} in {first_split}"
            if split == "train" != first_split:
                cure = "remove it from train, or give `--leave-out-copies`"
                yield Problem(path, f"{what}: scores would be too high", cure)
            else:
                cure = "scores are correct, as copies are never held out; remove it if it is a mistake"
                yield Problem(path, what, cure, "warning")


def _check_classes(source: Source, train: list[IndexEntry]) -> Iterator[Problem]:
    seen = set().union(*(entry.pixels for entry in train))
    present = [info.name for number, info in enumerate(source.classes) if number in seen]
    missing = [info.name for number, info in enumerate(source.classes) if number not in seen]
    if len(present) < 2:
        hint = " (255 is void: two-class masks hold 0 and 1)" if VOID in seen else ""
        what = f"of all classes only {present} occur in train{hint}"
        yield Problem(source.dataset, what, "check the class list against the masks' values")
    elif missing:
        names = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
        what = f"no training pixel has the class{'es' * (len(missing) > 1)} {names}"
        yield Problem(source.dataset, what, "check the class list, if they should occur", "warning")


def check(source: Source, threads: int = 1) -> list[Problem]:
    """Return all problems of a data set, reading every file in full; nothing is written."""
    problems = list(source.problems)
    splits: dict[str, list[IndexEntry]] = defaultdict(list)

    def look(sample: Sample) -> tuple[Sample, IndexEntry | None, list[Problem]]:
        result = decode(source, sample)
        return (sample, result.entry, result.warnings) if isinstance(result, Decoded) else (sample, None, result)

    for sample, entry, found in in_parallel(look, source.samples, threads, "checking"):
        problems += found
        if entry is not None:
            splits[sample.split].append(entry)
    return problems + list(check_whole_set(replace(source, problems=problems), splits))


def check_prepared(data: Prepared, threads: int = 1) -> list[Problem]:
    """Return all problems of a prepared data set: split, caches, and the original files against their checksums."""
    problems: list[Problem] = []
    with collect(problems):
        if (path := data.folder / "split.json").exists():
            load_split(path, data)
    for short_side in cache_sizes(data.folder):
        problems += _check_cache(data, short_side, threads)
    for found in in_parallel(lambda entry: _changed(data, entry), data.index.entries(), threads, "originals"):
        problems += found
    return problems


def _check_cache(data: Prepared, short_side: int, threads: int) -> list[Problem]:
    problems: list[Problem] = []
    with collect(problems):
        cache = data.cache(short_side)

        def intact(slot: Slot) -> bool:
            image, mask = cache.read(slot.id)
            return sha256(image.tobytes() + mask.tobytes()) == slot.checksum

        slots = cache.layout.slots
        for slot, fine in zip(slots, in_parallel(intact, slots, threads, cache.path.stem), strict=True):
            if not fine:
                what = f"the bytes of '{slot.id}' changed since they were written"
                cure = "remove the file and run `autoseg prepare` again"
                problems.append(Problem(str(cache.path), what, cure))
    return problems


def _changed(data: Prepared, entry: IndexEntry) -> list[Problem]:
    problems = []
    for file, checksum in ((entry.image, entry.image_checksum), (entry.mask, entry.mask_checksum)):
        place = locate(data.roots, file)
        try:
            if sha256(read_bytes(place)) != checksum:
                problems.append(
                    Problem(str(place), "the file changed since it was prepared", "run `autoseg prepare` again")
                )
        except Unreadable as error:
            problems.append(error.at(place))
    return problems
