"""Class lists that lie beside images and masks, in anyone's form; and how they fit what masks hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from autoseg.data.folder import IMAGES, named_classes, names_background, read_classes
from autoseg.data.meaning import Seen, look
from autoseg.data.model import VOID
from autoseg.data.source import read_lines
from autoseg.errors import located

Named = tuple[str, tuple[int, int, int] | None]

_CLASS_FILES = (
    *("classes.txt", "classes.csv", "class_dict.csv", "label_colors.txt", "labelmap.txt", "labels.txt"),
    *("class_names.txt", "names.txt", "codes.txt", "palette.txt", "labels.csv", "_classes.csv"),
    *("class_dict_seg.csv", "label_class_dict.csv", "objectinfo150.txt"),
)
_COCO = 183  # names in the list of COCO-Stuff
_LOOKED_AT = 64  # masks that a list is compared with


def class_file(root: Path, folders: Iterable[str]) -> Path | None:
    """Return a class list in the root, beside the masks, or in a folder between."""
    places = [root]
    for folder in sorted(folders):
        places += [root / part for part in (Path(folder), *Path(folder).parents)]
    for place in dict.fromkeys(places):
        there = {path.name.lower(): path for path in place.iterdir() if path.is_file()}
        for name in _CLASS_FILES:
            if name in there and not _lists_files(there[name]):
                return there[name]
    return None


def _lists_files(path: Path) -> bool:
    """Whether a list names images, such as a labels.txt of some sets."""
    lines = path.read_text(encoding="utf-8-sig", errors="replace").split()
    return bool(lines) and Path(lines[-1]).suffix.lower() in IMAGES


def class_text(path: Path, masks: Sequence[Path]) -> tuple[str, bool]:
    """Return a class list in our words, as masks need it, and whether these are black and white.

    CVAT's labelmap.txt has `name:R,G,B:parts:actions`; LabelMe's labels.txt begins with `__ignore__`, no value.
    """
    lines = read_lines(path)
    cvat = [re.fullmatch(r"([^:#]+):(\d+),(\d+),(\d+):.*", line) for line in lines if not line.startswith("#")]
    if cvat and all(cvat):
        lines = [f"{match[1]},{match[2]},{match[3]},{match[4]}" for match in cvat if match]
    if lines[0] == "__ignore__":
        del lines[0]
    if lines[0].split("\t")[0] == "Idx":  # ADE20K's: 0 is all other things, and counts nowhere
        lines = ["void", *(re.split("[,;]", line.split("\t")[-1])[0] for line in lines[1:])]
    with located(path):
        named = named_classes(lines)
    seen = [one for one in map(look, masks[:: max(len(masks) // _LOOKED_AT, 1)]) if one.kind != "unreadable"]
    for fits, binary in ((_of_black_and_white, True), (_of_numbers, False)):
        if names := fits(named, seen):
            return "\n".join(names) + "\n", binary
    if len(named) == _COCO and [name for name, _ in named[:2]] == ["unlabeled", "person"]:
        lines = [name for name, _ in named[1:]]  # its masks store a thing's number in this list less 1
    if lines == read_lines(path):
        read_classes(path)  # refuses what is not understood, in its own words
    return "\n".join(lines) + "\n", False


def _of_black_and_white(named: Sequence[Named], seen: Sequence[Seen]) -> list[str] | None:
    """Return two names for masks that are black and white; a list may have that of the object alone."""
    names = [name for name, color in named if color is None]
    if len(names) < len(named) or not all(one.kind == "black-and-white" or one.found == (0,) for one in seen):
        return None
    if len(names) == 1 and not names_background(names[0]):
        names = ["background", *names]
    return names if len(names) == 2 and any(one.kind == "black-and-white" for one in seen) else None


def _of_numbers(named: Sequence[Named], seen: Sequence[Seen]) -> list[str] | None:
    """Return the names alone, where masks hold class numbers and not the list's colours."""
    colours = [color for _, color in named if color is not None]
    values = {value for one in seen for value in one.found}
    greys = {red for red, green, blue in colours if red == green == blue}
    numbers = all(one.kind == "values" and not one.drawn for one in seen)
    fit = numbers and not values <= greys and max(values - {VOID}, default=len(named)) < len(named)
    return [name for name, _ in named] if fit and len(colours) == len(named) else None
