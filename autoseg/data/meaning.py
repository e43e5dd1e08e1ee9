"""What the values or colours of masks mean, where no class list says it: all masks are looked at once."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from autoseg.data.check import in_parallel
from autoseg.data.folder import read_classes
from autoseg.data.model import VOID
from autoseg.data.reading import GREY, read_bytes
from autoseg.errors import InputError

_CLASS_FILES = (
    *("classes.txt", "classes.csv", "class_dict.csv", "label_colors.txt", "labelmap.txt", "labels.txt"),
    *("class_names.txt", "names.txt", "codes.txt", "palette.txt", "labels.csv"),
)
MOST = 64
"""How many colours are taken for classes; more are smoothed edges, or photographs."""

_GREYS = 8  # values between black and white, from which they are smoothed edges and not classes
_FEW = 0.2  # share of masks that may have fewer such values

MOST_VALUES = 200
"""How many values are taken for classes: ADE20K has 151, COCO 182; more are smoothed edges, instances or depths."""


@dataclass(frozen=True)
class Meaning:
    """A class list as text, whether masks are black and white, and a sentence on where it comes from."""

    classes: str
    said: str
    binary: bool = False

    @property
    def has_background(self) -> bool:
        """Whether class 0 is called a background."""
        return names_background(self.classes)


def names_background(classes: str) -> bool:
    """Whether the first class of a list is called a background.

    >>> names_background("bg 0 0 0"), names_background("sky")
    (True, False)
    """
    first = classes.lower().replace("name,r,g,b", "").lstrip().split("\n")[0]
    return re.search(r"(^|[\W_])(background|bg|other|none|unlabell?ed|clutter)($|[\W_])", first) is not None


@dataclass(frozen=True)
class _Seen:
    """What one mask holds: values, or colours as numbers; whether it was stored with loss, and is grey."""

    kind: str  # values, colours, black-and-white, unreadable
    found: tuple[int, ...] = ()


def class_file(root: Path, folders: Iterable[str]) -> Path | None:
    """Return a class list in the root, beside the masks, or in a folder between."""
    places = [root]
    for folder in sorted(folders):
        places += [root / part for part in (Path(folder), *Path(folder).parents)]
    for place in dict.fromkeys(places):
        there = {path.name.lower(): path for path in place.iterdir() if path.is_file()}
        for name in _CLASS_FILES:
            if name in there:
                return there[name]
    return None


def class_text(path: Path) -> str:
    """Return a class list in our words; CVAT's labelmap.txt has `name:R,G,B:parts:actions`."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    cvat = [re.fullmatch(r"([^:#]+):(\d+),(\d+),(\d+):.*", line) for line in lines if not line.startswith("#")]
    if cvat and all(cvat):
        return "\n".join(f"{match[1]},{match[2]},{match[3]},{match[4]}" for match in cvat if match) + "\n"
    read_classes(path)  # refuses what is not understood, in its own words
    return "\n".join(lines) + "\n"


def meaning(paths: Sequence[Path], threads: int = 1) -> Meaning:
    """Return what masks mean, from all that they hold."""
    seen = list(in_parallel(_look, list(paths), threads, "looking at masks"))
    kinds = Counter(one.kind for one in seen if one.kind != "unreadable")
    if not kinds:
        raise InputError("no mask could be read", where=paths[0].parent)
    values = sorted({value for one in seen if one.kind == "values" for value in one.found})
    whites = kinds["black-and-white"]
    other = sum(one.kind == "values" and not set(one.found) <= {0, VOID} for one in seen)
    if whites and kinds["values"] + whites == sum(kinds.values()) and other <= _FEW * whites:
        said = "masks are black and white: background and object"
        return Meaning("background\nobject\n", said, binary=True)
    if kinds["smooth"] and not kinds["values"] and not kinds["colours"]:
        raise InputError(
            "masks are stored as JPEG, or are smoothed: their values are no longer those of classes",
            where=paths[0].parent,
            cure="take the original masks, stored as PNG",
        )
    if kinds["colours"]:
        colours = {code for one in seen if one.kind in ("colours", "black-and-white") for code in one.found}
        colours |= {value * 0x10101 for value in values}
        return _of_colours(sorted(colours), paths[0].parent)
    return _of_values(values, paths[0].parent)


def _of_values(values: list[int], where: Path) -> Meaning:
    plain = [value for value in values if value != VOID]
    if len(values) > MOST_VALUES:
        raise InputError(
            f"masks hold {len(values)} different values",
            where=where,
            expected=f"class numbers, at most {MOST_VALUES}",
            cure="if these are instances or depths, make class masks of them; else give a class list, classes.txt",
        )
    if values[-1] > VOID or values[0] < 0:
        raise InputError(
            f"masks hold values up to {values[-1]}",
            where=where,
            expected=f"class numbers, 0 to {VOID}",
            cure="they look like instances or depths; make class masks of them, one byte a pixel",
        )
    if len(values) < 2:
        raise InputError(f"all masks hold the value {values[0]} alone", where=where, expected="two classes or more")
    if plain and plain[-1] <= 2 * len(plain) + 2 and len(plain) > 1:
        names = {0: "background", **{value: f"class-{value}" for value in plain if value}}
        lines = [names.get(value, "void") if value in plain else "void" for value in range(plain[-1] + 1)]
        said = f"masks hold the values {_shown(plain)}" + (f", and {VOID} as void" if VOID in values else "")
        return Meaning("\n".join(lines) + "\n", said)
    return _of_colours([value * 0x10101 for value in values], where)


def _of_colours(colours: list[int], where: Path) -> Meaning:
    if len(colours) > MOST:
        raise InputError(
            f"masks have {len(colours):,} different colours",
            where=where,
            expected=f"one colour a class, at most {MOST}",
            cure="take the original masks, stored as PNG, or give a list of the classes' colours: classes.txt, with "
            "lines such as 'car 64 0 128'",
        )
    lines = [f"{'background' if code == 0 else f'colour-{code:06x}'} #{code:06x}" for code in colours]
    return Meaning("\n".join(lines) + "\n", f"masks have {len(colours)} colours, each taken for a class")


def _shown(values: Sequence[int]) -> str:
    return f"{values[0]} to {values[-1]}" if len(values) > 4 else ", ".join(map(str, values))


def _look(path: Path) -> _Seen:
    try:
        with Image.open(io.BytesIO(read_bytes(path))) as image:
            lossy = image.format == "JPEG"
            if image.mode in ("P", "L", "1", "I", "I;16") and not lossy:
                pixels = np.asarray(image.convert("L") if image.mode == "1" else image)
                found = tuple(int(value) for value in np.unique(pixels)[: 4 * MOST])
                if found[-1] > VOID or found[0] < 0:
                    return _Seen("values", found)
                if len(found) > 2 and _is_black_and_white(pixels) and {0, VOID} <= set(found):
                    return _Seen("black-and-white" if len(found) > _GREYS else "values", found)
                return _Seen("black-and-white" if found in ((0, VOID), (VOID,)) else "values", found)
            rgb = np.asarray(image.convert("RGB")).astype(np.int32)
            codes = np.unique(rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2])
            grey = bool((abs(rgb - rgb.mean(-1, keepdims=True)) < (12 if lossy else 1)).all())
            if grey and (set(codes.tolist()) <= {0, 0xFFFFFF} or (lossy and _is_black_and_white(rgb.mean(-1)))):
                return _Seen("black-and-white", tuple(codes.tolist()) if not lossy else ())
            return _Seen("smooth" if lossy else "colours", tuple(int(code) for code in codes[: 4 * MOST]))
    except Exception:  # whatever is wrong with it is said when the data set is checked
        return _Seen("unreadable")


def _is_black_and_white(grey: np.ndarray) -> bool:
    return float(((grey > 64) & (grey < 192)).mean()) <= GREY
