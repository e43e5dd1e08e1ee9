"""Anyone's own data set: an image folder and a mask folder per split, or lists, and a class list.

These layouts are found without `split`: CamVid's `train/ trainannot/ val/ valannot/` and `train/ train_labels/ ...`,
`images/train/ masks/train/` and `train/images/ train/masks/` (or `labels`, `annotations` instead of `masks`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autoseg.data.model import VOID, ClassInfo, Encoding, MaskValues
from autoseg.data.source import Sample, Source, directory, files_below, plain_values, read_lines, unique_ids
from autoseg.data.voc import palette
from autoseg.errors import InputError, Problem, collect, located

_SPLITS = ("train", "val", "test")
IMAGES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif"})
_HEX = "#[0-9a-fA-F]{6}"
_HEADING = {"name", "names", "class", "classes", "label", "labels", "id", "index", "color", "colour"}
_HEADING |= {"r", "g", "b", "red", "green", "blue", "pixel", "value"}
_CAMVID = {
    "sky": (128, 128, 128),
    "building": (128, 0, 0),
    "pole": (192, 192, 128),
    "road": (128, 64, 128),
    "pavement": (60, 40, 222),
    "tree": (128, 128, 0),
    "sign symbol": (192, 128, 128),
    "fence": (64, 64, 128),
    "car": (64, 0, 128),
    "pedestrian": (64, 64, 0),
    "bicyclist": (0, 128, 192),
}
_MASK_FOLDERS = ("masks", "labels", "annotations")
_LAYOUTS = (
    ("{split}", "{split}annot"),
    ("{split}", "{split}_labels"),
    *(("images/{split}", f"{folder}/{{split}}") for folder in _MASK_FOLDERS),
    *(("{split}/images", f"{{split}}/{folder}") for folder in _MASK_FOLDERS),
)


def find(
    root: str | Path,
    classes: str | Path,
    split: Mapping[str, str] | None = None,
    mask_suffix: str = "",
    binary: bool = False,
) -> Source:
    """Find a data set below `root`.

    `split` gives each split's place, relative to `root`: "images folder,masks folder", the same and a list of the
    names to take from them, or only a list whose lines are "image mask". A list may also lie elsewhere. `mask_suffix`
    is what a mask's name has more than its image's ("_L": a.png, a_L.png). `binary`: masks are black and white.
    """
    root = directory(root, "your images and masks")
    infos, labels, encoding = camvid() if _is_camvid(classes) else read_classes(Path(classes))
    if binary:
        if encoding != "index" or len(infos) != 2:
            what = f"{len(infos)} classes{' with colours' * (encoding != 'index')}"
            raise InputError(what, where=classes, expected="two names for black-and-white masks: of black, of white")
        encoding = "binary"
    places = dict(split) if split else _guess(root)
    for name in ("train", "val"):
        if name not in places:
            what, cure = f"no split '{name}' (found: {', '.join(places)})", f"name it with `--split {name}=...`"
            raise InputError(what, where=root, cure=cure)
    samples: list[Sample] = []
    problems: list[Problem] = []
    for name, place in places.items():
        with located(f"split {name}"):
            listed = _list_elsewhere(root, place)
            parts = [] if listed else [_below(root, part.strip()) for part in place.split(",")]
            if len(parts) > 3:
                raise InputError(
                    f"'{place}' has {len(parts)} parts", expected="IMAGES,MASKS or IMAGES,MASKS,LIST or LIST"
                )
        with collect(problems):
            if listed or len(parts) == 1:
                found, wrong = _from_list(root, name, listed or root / parts[0])
            else:
                names = read_lines(root / parts[2]) if len(parts) > 2 else None
                found, wrong = _from_folders(root, name, parts[0], parts[1], mask_suffix, names)
            samples += [Sample(s.id, s.split, s.image, s.mask, encoding) for s in found]
            problems += wrong
    roots = {"data": root}
    samples, repeated = unique_ids(samples, roots)
    return Source("folder", roots, infos, labels, samples, problems + repeated, _cure_of_values(infos, labels, classes))


def _cure_of_values(
    infos: Sequence[ClassInfo], labels: MaskValues, classes: str | Path
) -> Callable[[Sequence[int]], str | None]:
    """Return what to do about values that the class list does not name, where that can be told."""

    def cure(strange: Sequence[int]) -> str | None:
        number = max((value for value in labels.values if value != VOID), default=-1) + 1
        if list(strange) == [number]:
            what = f"add a line `void` at the end of {Path(classes).name} if it counts nowhere"
            if not names_background(infos[0].name):
                return f"{what}; or a line `background` at the beginning, if 0 is that"
            return f"{what}, or the name of its class"
        return None

    return cure


def _list_elsewhere(root: Path, place: str) -> Path | None:
    """Return a list that does not lie below the root: what it names does, so the index does not depend on its place."""
    path = Path(place)
    return path if "," not in place and path.is_file() and not (root / path).exists() else None


def camvid() -> tuple[list[ClassInfo], MaskValues, Encoding]:
    """Return CamVid's 11 classes as SegNet's authors distribute it: one number a pixel, 11 is void.

    >>> [info.name for info in camvid()[0]][:3], camvid()[1].values[11]
    (['sky', 'building', 'pole'], 255)
    """
    infos = [ClassInfo(name=name, color=color) for name, color in _CAMVID.items()]
    return infos, MaskValues(values={**plain_values(len(infos)), len(infos): VOID}), "index"


def _is_camvid(classes: str | Path) -> bool:
    return str(classes).lower() == "camvid" and not Path(classes).exists()


def read_classes(path: Path) -> tuple[list[ClassInfo], MaskValues, Encoding]:
    """Read a class list: one class a line, a name, with its colour if masks are colour-coded.

    "car", "car 64 0 128", "64 0 128 car", "car,64,0,128" and "car #400080" are all understood, with or without the
    line's number in front. Lines are numbered from 0. A line named `void` is a value or colour that counts nowhere; it
    gets no class number.
    """
    lines = read_lines(path)
    with located(path):
        return _read_classes(lines)


def named_classes(lines: list[str]) -> list[tuple[str, tuple[int, int, int] | None]]:
    """Return the names of a class list with their colours, where it has some.

    >>> named_classes(["name,r,g,b", "sky,0,0,0"]), named_classes(["0 sky"])
    ([('sky', (0, 0, 0))], [('sky', None)])
    """
    return [_parse_class(line) for line in _class_lines(lines)]


def names_background(classes: str) -> bool:
    """Return whether the first class of a list is called a background.

    >>> names_background("bg 0 0 0"), names_background("name, r, g, b\\nbackground, 0, 0, 0"), names_background("sky")
    (True, True, False)
    """
    first = next((line for line in classes.lower().splitlines() if line.strip() and not _is_heading(line)), "")
    return re.search(r"(^|[\W_])(background|bg|other|none|unlabell?ed|clutter)($|[\W_])", first) is not None


def _read_classes(lines: list[str]) -> tuple[list[ClassInfo], MaskValues, Encoding]:
    parsed = named_classes(lines)
    with_color = [color is not None for _, color in parsed]
    if any(with_color) and not all(with_color):
        bare = parsed[with_color.index(False)][0]
        raise InputError(
            f"the class '{bare}' has no colour, but others have one", cure="give a colour to all, or to none"
        )
    names = [name for name, _ in parsed if name.lower() != "void"]
    if len(names) < 2 or len(names) > VOID:
        raise InputError(f"{len(names)} classes", expected=f"2 to {VOID}, one a line (`void` not counted)")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the class '{twice}' is named twice", expected="different names")
    drawn = iter(palette(len(names)))
    classes: list[ClassInfo] = []
    values: dict[int, int] = {}
    colors: dict[str, int] = {}
    for value, (name, color) in enumerate(parsed):
        label = VOID if name.lower() == "void" else len(classes)
        if color is not None:
            code = "#{:02x}{:02x}{:02x}".format(*color)
            if code in colors:
                raise InputError(f"another class than '{name}' has its colour {code} too", expected="different colours")
            colors[code] = label
        elif value > VOID or (value == VOID and label != VOID):
            raise InputError(f"'{name}' would be the value {value}", expected=f"at most {VOID - 1}, as {VOID} is void")
        else:
            values[value] = label
        if label != VOID:
            classes.append(ClassInfo(name=name, color=color or next(drawn)))
    if colors:
        return classes, MaskValues(colors=colors), "color"
    return classes, MaskValues(values={**values, VOID: VOID}), "index"


def _is_heading(line: str) -> bool:
    return _HEADING.issuperset(re.findall(r"\w+", line.lower()))


def _class_lines(lines: list[str]) -> list[str]:
    """Return the lines of a class list without comments, without a heading, and without numbers in front."""
    lines = [line for line in lines if not line.startswith("#") or re.match(rf"{_HEX}\W", line)]
    if lines and _is_heading(lines[0]):
        lines = lines[1:]
    numbered = [re.fullmatch(r"(\d+)\s*[\s,;:=]\s*([^\d\s].*)", line) for line in lines]
    if not all(numbered):
        return lines
    found = [(int(match[1]), match[2]) for match in numbered if match]
    if [number for number, _ in found] != list(range(len(found))):
        cure = "sort the lines, and fill gaps with lines named `void`"
        raise InputError("the lines are numbered, but not 0, 1, 2, ...", cure=cure)
    return [line for _, line in found]


def _parse_class(line: str) -> tuple[str, tuple[int, int, int] | None]:
    if match := re.fullmatch(rf"(?P<name>.+?)[\s,;]+(?P<code>{_HEX})|(?P<other>{_HEX})[\s,;]+(?P<last>.+)", line):
        code = match["code"] or match["other"]
        red, green, blue = bytes.fromhex(code[1:])
        return _class_name(line, match["name"] or match["last"]), (red, green, blue)
    numbers = r"(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})"
    for pattern in (rf"(?P<name>.*\D.*?)[\s,;]+{numbers}", rf"{numbers}[\s,;]+(?P<name>.*\D.*)"):
        if match := re.fullmatch(pattern, line):
            red, green, blue = (int(number) for number in match.groups() if number and number.isdigit())
            if max(red, green, blue) > 255:
                raise InputError(f"'{line}' has a colour above 255")
            name = match["name"].strip(" \t,;")
            # Four numbers in a row may be a colour with opacity; between commas, a name may end in a number.
            if re.search(r"(^|\s)\d+$", name) and not re.search(r"[,;\t]", line):
                raise InputError(f"'{line}' has more than three numbers", cure="write 'name,R,G,B'")
            return _class_name(line, name), (red, green, blue)
    return _class_name(line, line), None


def _class_name(line: str, name: str) -> str:
    if re.search(r"[,;\t#]|[:=]\s*\d|(\b\d[\d.]*\s+){2}\d", name):
        raise InputError(f"'{line}' is not understood", expected="'name' or 'name R G B' or 'name #rrggbb'")
    return name


def _guess(root: Path) -> dict[str, str]:
    for images, masks in _LAYOUTS:
        found = {
            split: f"{images.format(split=split)},{masks.format(split=split)}"
            for split in _SPLITS
            if (root / images.format(split=split)).is_dir() and (root / masks.format(split=split)).is_dir()
        }
        if "train" in found:
            return found
    raise InputError(
        "no known layout",
        where=root,
        expected="train/ + trainannot/, images/train/ + masks/train/, or train/images/ + train/masks/",
        cure="name folders with `--split train=IMAGES,MASKS --split val=IMAGES,MASKS`, or lists: `--split train=FILE`",
    )


def _files(folder: Path, problems: list[Problem]) -> list[str]:
    return [name for name in files_below(folder, problems) if Path(name).suffix.lower() in IMAGES]


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _below(root: Path, name: str) -> str:
    """Return a place relative to `root`; a place outside is refused, as the index must not depend on where data lie."""
    path = Path(name)
    for base in (root.absolute(), root.resolve()):  # the root may be given through a link, or its target
        if path.is_relative_to(base):
            path = path.relative_to(base)
    if path.is_absolute() or ".." in path.parts:
        raise InputError(f"'{name}' does not lie below {root}", cure="give a `--root` that holds all splits")
    return path.as_posix()


def _from_folders(
    root: Path, split: str, images: str, masks: str, mask_suffix: str, names: list[str] | None
) -> tuple[list[Sample], list[Problem]]:
    problems: list[Problem] = []
    image_files = _files(directory(root / images, f"the images of {split}"), problems)
    mask_files = _files(directory(root / masks, f"the masks of {split}"), problems)
    if not image_files:
        raise InputError("no image in it", where=root / images, cure=f"{split} needs {', '.join(sorted(IMAGES))} files")
    by_stem: dict[str, str] = {}
    problems += [
        Problem(str(root / masks / name), f"{known} is a mask of the same name", "keep one")
        for name in mask_files
        if (known := by_stem.setdefault(_stem(name), name)) is not name
    ]
    if names is not None:
        listed = {_stem(name) if Path(name).suffix.lower() in IMAGES else name for name in names}
        there = {_stem(name) for name in image_files}
        problems += [
            Problem(str(root / images / name), "the image is listed, but missing", "add it, or take it off the list")
            for name in sorted(listed - there)
        ]
        image_files = [name for name in image_files if _stem(name) in listed]
    samples = []
    for name in image_files:
        mask = by_stem.get(_stem(name) + mask_suffix)
        if mask is None:
            wanted = root / masks / f"{_stem(name)}{mask_suffix}.png"
            cure = "add the mask, or give `--mask-suffix` if masks are named otherwise"
            problems.append(Problem(str(root / images / name), f"the image has no mask (looked for {wanted})", cure))
        else:
            samples.append(Sample(f"{images}/{_stem(name)}", split, f"data/{images}/{name}", f"data/{masks}/{mask}"))
    wanted_stems = {_stem(name) + mask_suffix for name in image_files}
    problems += [
        Problem(str(root / masks / name), "the mask has no image", "add the image, or remove the mask")
        for stem, name in by_stem.items()
        if names is None and stem not in wanted_stems
    ]
    return samples, problems


def _from_list(root: Path, split: str, path: Path) -> tuple[list[Sample], list[Problem]]:
    lines = read_lines(path)
    samples = []
    problems = []
    for number, line in enumerate(lines, 1):
        between = "\t" if "\t" in line else "[,;]"  # names may hold commas, where tabs are between them
        parts = re.split(rf"\s*{between}\s*", line) if re.search(between, line) else line.split()
        if len(parts) != 2:
            cure = "write two paths a line, relative to root; if they hold spaces, with a tab or comma between"
            problems.append(Problem(f"{path}:{number}", f"'{line}' is not 'image mask'", cure))
            continue
        if any(".." in Path(part).parts for part in parts):
            problems.append(Problem(f"{path}:{number}", f"'{line}' leaves the root", "give a `--root` that holds all"))
            continue
        image, mask = (_relative(root, part) for part in parts)
        samples.append(Sample(_stem(image), split, f"data/{image}", f"data/{mask}"))
    return samples, problems


def _relative(root: Path, name: str) -> str:
    """Drop leading parts until the file exists: lists of other tools begin with their own root (`/SegNet/CamVid/`)."""
    parts = Path(name).parts
    for start in range(len(parts)):
        if (shorter := Path(*parts[start:])) and not shorter.is_absolute() and (root / shorter).exists():
            return shorter.as_posix()
    return name.lstrip("/")
