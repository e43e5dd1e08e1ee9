"""Find out what a folder of images is: one of the known data sets, or anyone's own, without a word from its owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoseg.data.layouts import Pairs, find_pairs, with_val
from autoseg.data.meaning import class_file, class_text, meaning, names_background
from autoseg.data.source import directory
from autoseg.errors import InputError, Problem

_LISTS = ("train", "val")

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


def discover(root: str | Path, place: str, threads: int = 1) -> Discovered:
    """Find out what the folder `root` holds; `place` is where the files that the options name will be.

    Looks for the official layouts first, then for pairs of images and masks anywhere below.
    """
    root = directory(root, "your images and masks").absolute()
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
        masks = "CamVid's own: 11 classes, 11 is void"
        return Discovered("folder", {**options, "classes": "camvid"}, [count, masks], files, False, pairs.problems)
    options["classes"] = f"{place}/classes.txt"
    if (listed := class_file(root, pairs.mask_folders)) is not None:
        text = class_text(listed)
        background = names_background(text)
        said = [count, f"classes: {listed.relative_to(root)}"]
        return Discovered("folder", options, said, {**files, options["classes"]: text}, background, pairs.problems)
    found = meaning([root / mask for parts in splits.values() for _, mask in parts], threads)
    if found.binary:
        options["binary"] = True
    files[options["classes"]] = found.classes
    return Discovered("folder", options, [count, found.said], files, found.has_background, pairs.problems)


def _known(root: Path) -> tuple[str, str, dict[str, Any]] | None:
    """Return the kind of an official layout."""
    for place in (root, root / "oxford-iiit-pet"):
        if (place / "annotations" / "trimaps").is_dir() and (place / "annotations" / "trainval.txt").is_file():
            return "pets", "Oxford-IIIT Pet: background, cat, dog; its own splits", {"leave_out_copies": True}
    if (root / "leftImg8bit").is_dir() and (root / "gtFine").is_dir():
        return "cityscapes", "Cityscapes: 19 classes; its own splits", {}
    for place in (root, root / "VOC2012", root / "VOCdevkit" / "VOC2012"):
        lists = place / "ImageSets" / "Segmentation"
        own = (place / "labelmap.txt").exists()  # CVAT's: it has the layout, and not the classes
        if not own and (place / "SegmentationClass").is_dir() and all((lists / f"{s}.txt").is_file() for s in _LISTS):
            return "voc", "PASCAL VOC: 20 classes and background; its own splits", {}
    return None


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
    return InputError(
        found,
        where=root,
        expected=f"at least {FEWEST}",
        cure="put images into images/, and their masks into masks/ under the same names; or both into train/ and val/",
    )
