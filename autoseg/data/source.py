"""A data set as it was found on disk, before an image is read; and what all readers share."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autoseg.data.model import VOID, ClassInfo, Encoding, MaskValues, is_plain_path
from autoseg.errors import InputError, Problem

ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".7z", ".rar")
"""Endings of archives, which are to be unpacked first."""


@dataclass(frozen=True)
class Sample:
    """One image and its mask, before anything is read; files are written "<root>/<path>"."""

    id: str
    split: str
    image: str
    mask: str
    encoding: Encoding = "index"


@dataclass(frozen=True)
class Source:
    """A data set as it was found on disk: samples, classes, the meaning of mask values, and the problems so far.

    `cure_of_values` may say what to do about values that a mask should not hold, where the reader knows more of it.
    """

    dataset: str
    roots: dict[str, Path]
    classes: list[ClassInfo]
    labels: MaskValues
    samples: list[Sample]
    problems: list[Problem] = field(default_factory=list)
    cure_of_values: Callable[[Sequence[int]], str | None] | None = None

    def locate(self, name: str) -> Path:
        """Return the path of a file written "<root>/<path>"."""
        return locate(self.roots, name)


def locate(roots: Mapping[str, Path], name: str) -> Path:
    """Return the path of a file written "<root>/<path>".

    >>> locate({"data": Path("/sets/mine")}, "data/train/a.png").as_posix()
    '/sets/mine/train/a.png'
    """
    root, _, rest = name.partition("/")
    if root not in roots or not is_plain_path(rest):
        raise InputError(
            f"the file '{name}' is below no known folder", expected=f"one of {', '.join(roots)}, then a path"
        )
    return roots[root] / rest


def plain_values(num_classes: int) -> dict[int, int]:
    """Return the values of a mask that needs no mapping: the classes, and void.

    >>> plain_values(2)
    {0: 0, 1: 1, 255: 255}
    """
    return {**{c: c for c in range(num_classes)}, VOID: VOID}


def directory(path: str | Path, what: str) -> Path:
    """Return `path` as a folder that exists, or raise an error that says what it should hold."""
    path = Path(path).expanduser()
    if not os.path.isdir(path):  # Path.is_dir raises an error for a name that is too long
        found = "this is a file, not a folder" if os.path.exists(path) else "the folder does not exist"
        unpack = "unpack it, and " * (path.suffix.lower() in ARCHIVES and os.path.isfile(path))
        raise InputError(found, where=path, cure=f"{unpack}give the folder that holds {what}")
    if (shown := printable(path.resolve())) != str(path.resolve()):
        raise InputError("the folder's name is not UTF-8", where=shown, cure="rename it")
    return path


def printable(path: str | Path) -> str:
    r"""Return a path that can be printed and stored: bytes that are not UTF-8 become \\x...

    >>> printable("b\udce4r.png")
    'b\\xe4r.png'
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def files_below(folder: Path, problems: list[Problem]) -> list[str]:
    """Return the names of all files below a folder, relative to it, sorted.

    Links to folders are followed, but not in circles. Hidden files (macOS's `._*`) are left out. Files whose names are
    not UTF-8 cannot stand in an index and become problems.
    """

    def walk(place: str, above: tuple[str, ...]) -> Iterator[str]:
        real = os.path.realpath(place)
        if real in above:
            return
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError as error:
            cure = "check its permissions"
            raise InputError(f"the folder cannot be listed ({error.strerror})", where=place, cure=cure) from None
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from walk(entry.path, (*above, real))
            elif (shown := printable(entry.path)) != entry.path:
                problems.append(Problem(shown, "the file's name is not UTF-8", "rename the file"))
            else:
                yield os.path.relpath(entry.path, folder)

    return list(walk(str(folder), ())) if folder.is_dir() else []


def read_lines(path: Path) -> list[str]:
    """Return the stripped lines of a list without the empty ones; a list without any line is refused."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"the list cannot be read ({error.strerror})", where=path, cure="put it there") from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise InputError(f"line {line} is not UTF-8", where=path, cure="save the list as UTF-8 text") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(
            "the list is empty", where=path, cure="take it from where the data came from, or write it again"
        )
    return lines


def whole_set(root: Path, samples: Iterable[Sample], expected: Mapping[str, int]) -> list[Problem]:
    """Return a warning for each split that has not as many images as the published set."""
    counts = Counter(sample.split for sample in samples)
    cure = "fetch the rest, unless you want a part of it"
    return [
        Problem(str(root), f"{split} has {counts[split]:,} images, the published set {number:,}", cure, "warning")
        for split, number in expected.items()
        if counts[split] != number
    ]


def unique_ids(samples: Iterable[Sample], roots: Mapping[str, Path]) -> tuple[list[Sample], list[Problem]]:
    """Return the samples without repeated ids, and a problem for each repetition (within or between splits)."""
    first: dict[str, Sample] = {}
    problems = []
    for sample in samples:
        known = first.setdefault(sample.id, sample)
        if known is sample:
            continue
        if known.split == sample.split:
            what, cure = f"the id '{sample.id}' occurs twice in {sample.split}", "keep one of the two"
            if known.image != sample.image:
                what += f" ({locate(roots, known.image)} has it too)"
        else:
            what = f"'{sample.id}' is in both {known.split} and {sample.split}: scores would be too high"
            cure = f"take it out of {known.split if sample.split == 'val' else sample.split}"
        problems.append(Problem(str(locate(roots, sample.image)), what, cure))
    return list(first.values()), problems
