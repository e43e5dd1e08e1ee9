"""Find out what a folder of images is: one of the known data sets, or anyone's own, without a word from its owner."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoseg.data import voc
from autoseg.data.class_lists import class_file, class_text
from autoseg.data.layouts import Pairs, find_pairs, with_val
from autoseg.data.meaning import Meaning, meaning
from autoseg.data.source import ARCHIVES, directory, files_below, read_lines
from autoseg.errors import InputError, Problem

_LISTS = ("train", "val")
_VOC_NAME = re.compile(r"(\d{4}_)?\d{6}")  # other images in VOC's folders have their own classes

_OUTLINES = "draw masks from them, with the tool that made them or with Pillow's ImageDraw.polygon"
_OTHER_FORMS = {
    ".json": ("outlines as JSON, of LabelMe or Supervisely", _OUTLINES),
    ".xml": ("boxes or outlines as XML", _OUTLINES),
    ".txt": ("outlines or boxes as text, of YOLO", _OUTLINES),
    **dict.fromkeys((".npy", ".npz", ".mat", ".nii", ".h5"), ("arrays", "store each as a PNG of its class numbers")),
    **dict.fromkeys(ARCHIVES, ("archives", "unpack them")),
}
_COCO = "draw masks from its outlines, such as with pycocotools' annToMask"

_UNREAD = (".heic", ".heif", ".avif", ".jp2", ".j2k", ".dng", ".ppm", ".pgm", ".dcm")
_OBJECTS = 2  # masks of an image, from which they are taken for objects

FEWEST = 8
"""Images that there must be at least: for training, for the hold-out and for validation."""


@dataclass(frozen=True)
class Discovered:
    """A data set as a config names it, the files that its options name, and sentences on what was found."""

    kind: str
    options: dict[str, Any]
    said: list[str]
    files: Mapping[str, str] = field(default_factory=dict)
    has_background: bool | None = None  # None: what the kind says
    problems: list[Problem] = field(default_factory=list)  # of files that are left out
    listed: bool = True  # whether the classes are somebody's, and not made from what masks hold


def discover(root: str | Path, place: str, threads: int = 1) -> Discovered:
    """Find out what the folder `root` holds; `place` is where the files that the options name will be.

    Looks for the official layouts first, then for pairs of images and masks anywhere below.
    """
    root = directory(root, "your images and masks").absolute()
    try:
        os.listdir(root)
    except OSError as error:
        what = f"the folder cannot be listed ({error.strerror})"
        raise InputError(what, where=root, cure="check its permissions") from None
    if known := _known(root):
        kind, what, more = known
        return Discovered(kind, {"root": str(root), **more}, [what])
    pairs = find_pairs(root)
    if pairs.count < FEWEST:
        raise _too_few(root, pairs)
    splits, where_from = with_val(pairs)
    count = f"{len(splits['train'])} images to train with, {len(splits['val'])} to validate: {where_from}"
    files = {f"{place}/{split}.txt": _list(found) for split, found in splits.items()}
    options: dict[str, Any] = {"root": str(root), "split": {split: f"{place}/{split}.txt" for split in splits}}
    if _is_camvid(pairs):
        said = "CamVid's own: 11 classes, 11 is void"
        return Discovered("folder", {**options, "classes": "camvid"}, [count, said], files, False, pairs.problems)
    options["classes"] = f"{place}/classes.txt"
    masks = [root / mask for parts in splits.values() for _, mask in parts]
    if (listed := class_file(root, pairs.mask_folders)) is not None:
        options["classes"] = f"{place}/{listed.name}"  # problems name the list as its owner does
        text, binary = class_text(listed, masks)
        found = Meaning(text, f"classes: {listed.relative_to(root)}", binary)
    else:
        found = meaning(masks, threads)
    if found.binary:
        options["binary"] = True
    files[options["classes"]] = found.classes
    return Discovered(
        "folder", options, [count, found.said], files, found.has_background, pairs.problems, listed is not None
    )


def _known(root: Path) -> tuple[str, str, dict[str, Any]] | None:
    """Return the kind of an official layout."""
    for place in (root, root / "oxford-iiit-pet"):
        if (place / "annotations" / "trimaps").is_dir() and (place / "annotations" / "trainval.txt").is_file():
            return "pets", "Oxford-IIIT Pet: background, cat, dog; its own splits", {"leave_out_copies": True}
    if (root / "leftImg8bit").is_dir() and _has_city_labels(root / "gtFine"):
        return "cityscapes", "Cityscapes: 19 classes; its own splits", {}
    for place in (root, root / "VOC2012", root / "VOCdevkit" / "VOC2012"):
        lists = [place / "ImageSets" / "Segmentation" / f"{split}.txt" for split in _LISTS]
        own = (place / "labelmap.txt").exists()  # CVAT's: it has the layout, and not the classes
        if own or not (place / "SegmentationClass").is_dir() or not all(path.is_file() for path in lists):
            continue
        if all(_VOC_NAME.fullmatch(name) for path in lists for name in read_lines(path)):
            return _voc(root)
    return None


def _has_city_labels(folder: Path) -> bool:
    """Return whether Cityscapes' own labels lie here; IDD has its folders, and other labels."""
    return any(next(folder.rglob(f"*_gtFine_{ids}.png"), None) for ids in ("labelIds", "labelTrainIds"))


def _voc(root: Path) -> tuple[str, str, dict[str, Any]]:
    what = "PASCAL VOC: 20 classes and background; its own splits"
    try:
        voc.find(root)
    except InputError as error:
        if "--sbd none" in error.cure:
            return "voc", f"{what}; without SBD, which is not beside it", {"sbd": "none"}
    return "voc", what, {}


def _is_camvid(pairs: Pairs) -> bool:
    return any(Path(folder).name == "trainannot" for folder in pairs.mask_folders)


def _list(pairs: list[tuple[str, str]]) -> str:
    """Return a list as the kind `folder` reads it."""
    return "".join(f"{image}\t{mask}\n" for image, mask in pairs)


def _too_few(root: Path, pairs: Pairs) -> InputError:
    alone = [problem.what for problem in pairs.problems]
    images, masks = alone.count("the image has no mask"), alone.count("the mask has no image")
    found = f"{pairs.count} images with a mask were found"
    if images or masks:
        found += f", {images} images without, and {masks} masks without an image"
    expected = f"at least {FEWEST}"
    if pairs.count and not (images or masks):
        return InputError(found, where=root, expected=expected, cure="add images with their masks")
    if masks > _OBJECTS * (images + pairs.count) > 0:
        cure = "if each mask is of one object, unite those of an image to one mask"
        return InputError(found, where=root, expected="one mask for an image", cure=cure)
    if not (images or pairs.count) and (unread := _unread(root)):
        return InputError(unread, where=root, expected="PNG, JPEG, TIFF, BMP, WebP or GIF", cure="store them as PNG")
    if (other := _other_form(root)) is not None and not masks and not pairs.count:
        found = f"{images} images have no masks" if images else "there is no image"
        found, cure = f"{found}; there are {other[0]}", other[1]
        if "archive" not in found:
            expected = "masks that are pictures: a class number or colour for each pixel"
        return InputError(found, where=root, expected=expected, cure=cure)
    return InputError(
        found,
        where=root,
        expected=expected,
        cure="put images into images/, and their masks into masks/ under the same names; or both into train/ and val/",
    )


def _unread(root: Path) -> str:
    """Return how many pictures there are in formats that are not read."""
    found = [name for name in files_below(root, []) if Path(name).suffix.lower() in _UNREAD]
    return f"{len(found)} pictures are in another format, such as {found[0]}" if found else ""


def _other_form(root: Path) -> tuple[str, str] | None:
    """Return in which form there are annotations that are no masks, such as an example, and what to do."""
    files: dict[str, list[str]] = defaultdict(list)
    for name in files_below(root, []):
        files[Path(name).suffix.lower()].append(name)
    coco = [name for name in files[".json"] if "coco" in name.lower() or Path(name).stem.startswith("instances")]
    if coco:
        return f"annotations of COCO ({coco[0]})", _COCO
    suffix = max(_OTHER_FORMS, key=lambda suffix: len(files[suffix]))
    if not files[suffix] or (suffix == ".txt" and len(files[suffix]) < FEWEST):  # a list, a licence
        return None
    what, cure = _OTHER_FORMS[suffix]
    return f"{what} ({files[suffix][0]})", cure
