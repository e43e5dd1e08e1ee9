"""Pairs of images and masks anywhere below a folder, by the names of folders and files.

A folder is one of masks if its name says so (masks, labels, annotations, gt, trainannot, SegmentationClass, ...), or if
its files look like masks; a file in a folder of images is a mask if its name ends in one of these words (a_mask.png).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from autoseg.data.folder import IMAGES
from autoseg.data.source import files_below, read_lines
from autoseg.errors import InputError, Problem

_OF_MASKS = r"masks?|labels?|labelled|annot|annots?|annotations?|gt|ground[_ -]?truth|segmentations?|seg|trimaps?"
_OF_MASKS += r"|segmentationclass(?:aug|raw)?|labelcol|indexlabel|targets?|semantic"
_OF_IMAGES = r"images?|imgs?|jpegimages|photos?|pictures?|inputs?|rgb|sat|raw|original"
_MASK_FOLDER = re.compile(
    rf"^(?:{_OF_MASKS})$|[_\- .](?:{_OF_MASKS})$|^(?:{_OF_MASKS})[_\- .]|(?<=[a-z])(?:annot|masks?|labels?)$"
)
_MASK_FILE = re.compile(r"[_\-. ](?:masks?|labels?|l|gt|seg|segmentation|p|matte|annotation|labelids|m)$")
_IMAGE_FILE = re.compile(r"[_\-. ](?:image|img|sat|leftimg8bit|rgb|photo|orig|original)$")
_WORDS = re.compile(rf"(?:^|[_\- .])(?:{_OF_MASKS}|{_OF_IMAGES})(?=$|[_\- .])|(?<=[a-z])(?:annot|masks?|labels?)$")
_SPLITS = {
    **dict.fromkeys(("train", "training", "trn", "tr"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "tst", "eval"), "test"),
}
_PLACES_OF_LISTS = ("", "ImageSets/Segmentation", "splits", "lists", "split")
_LOOKS = 3  # files of a folder that are looked at to tell what it holds
_FEW_COLOURS = 64


@dataclass
class Pairs:
    """Images with their masks, by split (all: none is named), as paths below the root; and what has no partner."""

    by_split: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    problems: list[Problem] = field(default_factory=list)
    mask_folders: set[str] = field(default_factory=set)

    @property
    def count(self) -> int:
        """How many pairs there are."""
        return sum(map(len, self.by_split.values()))


def find_pairs(root: Path) -> Pairs:
    """Return all pairs of images and masks below a folder."""
    found = Pairs()
    names = [name for name in files_below(root, found.problems) if Path(name).suffix.lower() in IMAGES]
    folders: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folders[str(Path(name).parent)].append(name)
    images: dict[tuple[str, ...], list[str]] = defaultdict(list)
    masks: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for folder, files in folders.items():
        whole = _is_mask_folder(root, folder, files, alone=len(folders) == 1)
        for name in files:
            is_mask = whole or bool(_MASK_FILE.search(Path(name).stem.lower()) and _has_partner(name, files))
            (masks if is_mask else images)[_key(folder)].append(name)
    lonely: list[str] = []
    for key, here in images.items():
        unmatched, left = _pair(found, here, masks.get(key, []), _split_of(key))
        lonely += unmatched
        masks[key] = left
    rest = [name for left in masks.values() for name in left]
    if lonely and rest:  # folders whose names do not fit together, such as 701_StillsRaw and LabeledApproved
        by_split: dict[str, list[str]] = defaultdict(list)
        for name in lonely:
            by_split[_split_of(_key(str(Path(name).parent)))].append(name)
        lonely = []
        for split, names in by_split.items():
            unmatched, rest = _pair(found, names, rest, split)
            lonely += unmatched
    found.problems += [_alone(root, name, "image", "mask") for name in lonely]
    found.problems += [_alone(root, name, "mask", "image") for name in rest]
    _apply_lists(root, found)
    return found


def _is_mask_folder(root: Path, folder: str, files: list[str], alone: bool) -> bool:
    parts = [part.lower() for part in Path(folder).parts]
    named = [part for part in parts if part not in _SPLITS]
    if (named and _MASK_FOLDER.search(named[-1])) or any(re.fullmatch(_OF_MASKS, part) for part in named):
        return True
    if alone or any(re.fullmatch(_OF_IMAGES, part) for part in named) or len(named) < len(parts):
        return False
    return all(_looks_like_mask(root / name) for name in files[:_LOOKS])


def _looks_like_mask(path: Path) -> bool:
    """Whether a file is stored without loss and has few colours."""
    try:
        with Image.open(path) as image:
            if image.format in ("JPEG", "WEBP"):
                return False
            return image.mode in ("P", "1") or image.convert("RGB").getcolors(_FEW_COLOURS) is not None
    except Exception:  # whatever is wrong with it is said when it is read
        return False


def _has_partner(name: str, files: Iterable[str]) -> bool:
    """Whether a file in the same folder has the name without the word for a mask."""
    stem = _canonical(name)
    return any(_canonical(other) == stem and other != name for other in files)


def _canonical(name: str) -> str:
    """Return a file's name without its ending and without a word for a mask or an image at its end."""
    stem = Path(name).stem.lower()
    return _IMAGE_FILE.sub("", _MASK_FILE.sub("", stem))


def _key(folder: str) -> tuple[str, ...]:
    """Return a folder's path without words for masks and images: that of the images is that of their masks.

    >>> _key("data/trainannot"), _key("data/images/train"), _key("data/train/masks")
    (('data', 'train'), ('data', 'train'), ('data', 'train'))
    """
    plain = (_WORDS.sub("", part.lower()).strip("_-. ") for part in Path(folder).parts)
    return tuple(part for part in plain if part)


def _split_of(key: tuple[str, ...]) -> str:
    return next((_SPLITS[part] for part in reversed(key) if part in _SPLITS), "all")


def _alone(root: Path, name: str, what: str, other: str) -> Problem:
    cure = f"it is left out; add the {other} if it should be used"
    return Problem(str(root / name), f"the {what} has no {other}", cure, "warning")


def _pair(found: Pairs, images: list[str], masks: list[str], split: str) -> tuple[list[str], list[str]]:
    """Add the pairs of equal names, or of names that differ by a word for a mask; return what has no partner."""
    exact = {Path(name).stem: name for name in masks}
    loose = {_canonical(name): name for name in masks}
    lonely, used = [], set()
    for name in images:
        mask = exact.get(Path(name).stem) or loose.get(_canonical(name))
        if mask is None:
            lonely.append(name)
            continue
        used.add(mask)
        found.by_split[split].append((name, mask))
        found.mask_folders.add(str(Path(mask).parent))
    return lonely, [name for name in masks if name not in used]


def _apply_lists(root: Path, found: Pairs) -> None:
    """Take the splits from lists of names, train.txt and val.txt, where no folder says them."""
    if set(found.by_split) != {"all"}:
        return
    for place in _PLACES_OF_LISTS:
        lists = {split: root / place / f"{split}.txt" for split in ("train", "val", "test")}
        there = {split: path for split, path in lists.items() if path.is_file()}
        if "train" in there:
            _split_by(found, {split: read_lines(path) for split, path in there.items()})
            return


def _split_by(found: Pairs, listed: Mapping[str, list[str]]) -> None:
    split_of = {}
    for split, lines in listed.items():
        for line in lines:
            name = re.split(r"[\s,;]+", line)[0]
            split_of[Path(name).stem if Path(name).suffix.lower() in IMAGES else Path(name).name] = split
    pairs = found.by_split.pop("all")
    for image, mask in pairs:
        if (stem := Path(image).stem) in split_of:
            found.by_split[split_of[stem]].append((image, mask))
    if not found.by_split.get("train"):
        raise InputError("no image is named in train.txt", cure="write the images' names, one a line, or remove it")


def with_val(pairs: Pairs, share: float = 0.25) -> tuple[dict[str, list[tuple[str, str]]], str]:
    """Return pairs for training and validation, and a sentence on where the validation images come from."""
    train = sorted([*pairs.by_split.get("train", []), *pairs.by_split.get("all", [])])
    val = sorted(pairs.by_split.get("val", []))
    test = sorted(pairs.by_split.get("test", []))
    if val and train:
        return {"train": train, "val": val}, "the folders' own train and val" + ("; test is not used" if test else "")
    if test and train:
        return {"train": train, "val": test}, "there is no val: test is used for it"
    every = sorted([*train, *val, *test])
    number = max(round(share * len(every)), 2)
    # Evenly over the sorted names, so that neighbours in a video are on both sides as rarely as a share allows.
    chosen = {int((k + 0.5) * len(every) / number) for k in range(number)}
    parts = {
        "train": [pair for k, pair in enumerate(every) if k not in chosen],
        "val": [pair for k, pair in enumerate(every) if k in chosen],
    }
    return parts, f"no split is named: every {round(len(every) / number)}th image is held back as val"
