"""What the values or colours of masks mean, where no class list says it: all masks are looked at once."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from autoseg.data.check import in_parallel
from autoseg.data.folder import names_background
from autoseg.data.model import VOID
from autoseg.data.reading import GREY, read_bytes
from autoseg.errors import InputError

MOST = 64
"""How many colours are taken for classes; more are smoothed edges, or photographs."""

_GREYS = 8  # values between black and white, from which they are smoothed edges and not classes
_FEW = 0.2  # share of masks that may have fewer such values

_RARE = 0.05  # share of masks, up to which a value far from all others is a mistake and no class
_FEW_GREYS, _FAR = 4, 1.5  # more values than these, and white this many gaps from the last of them: it is void
_BACKGROUND = "; 0 is taken for the background, unless a classes.txt says otherwise"
_BLACK = "; black is taken for the background, unless a classes.txt says otherwise"
_WHITE, _WHITE_16 = 0xFFFFFF, 0xFFFF
_BORDER = 0xE0E0C0  # the colour of void in VOC's palette

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


@dataclass(frozen=True)
class Seen:
    """What one mask holds: values, or colours as numbers."""

    kind: str  # values, colours, black-and-white, smooth (stored with loss), alpha (a shape there alone), unreadable
    found: tuple[int, ...] = ()
    drawn: bool = False  # by a palette, whose colours may be those of a class list


def meaning(paths: Sequence[Path], threads: int = 1) -> Meaning:
    """Return what masks mean, from all that they hold."""
    seen = list(in_parallel(look, list(paths), threads, "looking at masks"))
    where = paths[0].parent
    kinds = Counter(one.kind for one in seen if one.kind != "unreadable")
    if not kinds:
        raise InputError("no mask could be read", where=where)
    if kinds["alpha"] > sum(kinds.values()) / 2:
        what = "masks are of one colour, and their shapes are in the alpha channel"
        raise InputError(what, where=where, cure="save the alpha channel as the mask, in black and white")
    if kinds["smooth"] and not kinds["values"] and not kinds["colours"]:
        raise InputError(
            "masks are stored as JPEG, or are smoothed: their values are no longer those of classes",
            where=where,
            cure="take the original masks, stored as PNG",
        )
    whites = kinds["black-and-white"]
    other = sum(one.kind == "values" and not set(one.found) <= {0, VOID} for one in seen)
    if whites and kinds["values"] + whites == sum(kinds.values()) and other <= _FEW * whites:
        if all(one.found in ((VOID,), (_WHITE,)) for one in seen if one.kind != "unreadable"):
            raise InputError("all masks are white", where=where, expected="black where there is no object")
        return Meaning("background\nobject\n", "masks are black and white: background and object", binary=True)
    # Few masks of another kind make no classes: they are said when they are checked.
    coloured, few = kinds["colours"], _FEW * (kinds["colours"] + other)
    if min(coloured, other) > few:
        what = f"{coloured} masks hold colours, and {other} class numbers"
        raise InputError(what, where=where, cure="store all in one way")
    if coloured > few:
        colours = {code for one in seen if one.kind == "colours" for code in one.found}
        greys = {code for one in seen if one.kind == "black-and-white" for code in one.found}
        return _of_colours(sorted(colours | {_WHITE if code == VOID else code for code in greys}), where)
    numbers = [one for one in seen if one.kind in ("values", "black-and-white")]
    found = Counter(value & VOID if value == _WHITE else value for one in numbers for value in one.found)
    return _of_values(found, len(numbers), where)


def _of_values(counts: Counter[int], number: int, where: Path) -> Meaning:
    """Return the meaning of values, from in how many masks of a number each is."""
    values = sorted(counts)
    if len(values) > MOST_VALUES:
        raise InputError(
            f"masks hold {len(values)} different values",
            where=where,
            expected=f"class numbers, at most {MOST_VALUES}",
            cure="if these are instances or depths, make class masks of them; else give a class list, classes.txt",
        )
    if values[0] < 0:
        cure = f"make class masks of them, one byte a pixel, with {VOID} where nothing is counted"
        what = f"masks hold values from {values[0]} to {values[-1]}"
        raise InputError(what, where=where, expected=f"class numbers, 0 to {VOID}", cure=cure)
    if values in ([0, _WHITE_16], [_WHITE_16]):
        what = f"masks are black and white with 16 bits a pixel, 0 and {_WHITE_16}"
        raise InputError(what, where=where, cure="store them with 8 bits, as 0 and 255")
    if values[-1] > VOID:
        raise InputError(
            f"masks hold values up to {values[-1]}",
            where=where,
            expected=f"class numbers, 0 to {VOID}",
            cure="they look like instances or depths; make class masks of them, one byte a pixel",
        )
    if len(values) < 2:
        raise InputError(f"all masks hold the value {values[0]} alone", where=where, expected="two classes or more")
    usual = [value for value in values if value != VOID]
    if not _compact(usual):  # what is far from the others in a few masks is no class, and is said when they are checked
        usual = [value for value in usual if counts[value] > _RARE * number]
    if _compact(usual):
        lines = _names(usual)
        said = f"masks hold the values {_shown(usual)}" + (f", and {VOID} as void" if VOID in values else "")
        return Meaning("\n".join(lines) + "\n", said + _BACKGROUND * (usual[0] == 0))
    return _of_greys(values)


def _of_greys(values: Sequence[int]) -> Meaning:
    """Return the meaning of values with gaps: greys, or some of many class numbers."""
    names = {value: f"colour-{value * 0x10101:06x}" if value else "background" for value in values}
    void = ""
    if values[-1] == VOID and len(values) > _FEW_GREYS and VOID - values[-2] > _FAR * np.diff(values[:-1]).max():
        names[VOID], void = "void", f", and {VOID} as void"
    shown = _shown(values) if len(values) <= _FEW_GREYS else f"{len(values) - bool(void)} values with gaps between"
    said = f"masks hold {shown}, each taken for a class{void}"
    text = "".join(f"{name} #{value * 0x10101:06x}\n" for value, name in names.items())
    return Meaning(text, said + _BACKGROUND * (values[0] == 0))


def _compact(values: Sequence[int]) -> bool:
    """Whether values are class numbers, and not greys."""
    return len(values) > 1 and values[-1] <= 2 * len(values) + 2


def _names(values: Sequence[int]) -> list[str]:
    """Return a name for each number from 0: of a class, or void for a number that no mask has."""
    names = {value: f"class-{value}" if value else "background" for value in values}
    return [names.get(value, "void") for value in range(values[-1] + 1)]


def _of_colours(colours: list[int], where: Path) -> Meaning:
    if len(colours) > MOST:
        raise InputError(
            f"masks have {len(colours):,} different colours",
            where=where,
            expected=f"one colour a class, at most {MOST}",
            cure="take the original masks, stored as PNG, or give a list of the classes' colours: classes.txt, with "
            "lines such as 'car 64 0 128'",
        )
    names = {code: "background" if code == 0 else f"colour-{code:06x}" for code in colours}
    said = f"masks have {len(colours)} colours, each taken for a class{_BLACK * (0 in names)}"
    greys = [code & VOID for code in colours if code != _WHITE]
    if all(code == (code & VOID) * 0x10101 for code in colours) and _compact(greys):
        names = {value * 0x10101: name for value, name in enumerate(_names(greys)) if value in greys}
        said = f"masks hold the values {_shown(greys)} in three channels{_BACKGROUND * (greys[0] == 0)}"
        if _WHITE in colours:
            names[_WHITE] = "void"
            said += f", and {VOID} as void"
    elif _BORDER in names and len(names) > 2:
        names[_BORDER] = "void"
        said = f"masks have {len(colours) - 1} colours, each taken for a class{_BLACK * (0 in names)}; "
        said += f"#{_BORDER:06x} is VOC's void"
    return Meaning("".join(f"{name} #{code:06x}\n" for code, name in names.items()), said)


def _shown(values: Sequence[int]) -> str:
    return f"{values[0]} to {values[-1]}" if len(values) > 4 else ", ".join(map(str, values))


def look(path: Path) -> Seen:
    """Return what a mask holds."""
    try:
        with Image.open(io.BytesIO(read_bytes(path))) as image:
            lossy = image.format == "JPEG"
            if image.mode in ("P", "L", "1", "I", "I;16") and not lossy:
                pixels = np.asarray(image.convert("L") if image.mode == "1" else image)
                found = tuple(int(value) for value in np.unique(pixels)[: 4 * MOST])
                drawn = image.mode == "P"
                if found[-1] > VOID or found[0] < 0:
                    return Seen("values", found, drawn)
                if len(found) > 2 and _is_black_and_white(pixels) and {0, VOID} <= set(found):
                    return Seen("black-and-white" if len(found) > _GREYS else "values", found, drawn)
                return Seen("black-and-white" if found in ((0, VOID), (VOID,)) else "values", found, drawn)
            if image.mode in ("RGBA", "LA") and _is_shape_in_alpha(image):
                return Seen("alpha")
            rgb = np.asarray(image.convert("RGB")).astype(np.int32)
            codes = np.unique(rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2])
            grey = bool((abs(rgb - rgb.mean(-1, keepdims=True)) < (12 if lossy else 1)).all())
            if grey and (set(codes.tolist()) <= {0, 0xFFFFFF} or (lossy and _is_black_and_white(rgb.mean(-1)))):
                return Seen("black-and-white", tuple(codes.tolist()) if not lossy else ())
            return Seen("smooth" if lossy else "colours", tuple(int(code) for code in codes[: 4 * MOST]))
    except Exception:  # whatever is wrong with it is said when the data set is checked
        return Seen("unreadable")


def _is_shape_in_alpha(image: Image.Image) -> bool:
    pixels = np.asarray(image)
    spread = pixels.max((0, 1)) != pixels.min((0, 1))
    return bool(spread[-1] and not spread[:-1].any())


def _is_black_and_white(grey: np.ndarray) -> bool:
    return float(((grey > 64) & (grey < 192)).mean()) <= GREY
