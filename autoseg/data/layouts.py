"""Pairs of images and masks anywhere below a folder, by the names of folders and files.

A folder is one of masks if its name says so (masks, labels, annotations, gt, trainannot, SegmentationClass, ...), or if
its files look like masks; a file in a folder of images is a mask if its name ends in one of these words (a_mask.png).
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path

from PIL import Image

from autoseg.data.folder import IMAGES
from autoseg.data.source import files_below, read_lines
from autoseg.errors import InputError, Problem

_OF_MASKS = r"masks?|labels?|labelled|annot|annots?|annotations?|gt|ground[_ -]?truth|segmentations?|seg|trimaps?"
_OF_MASKS += r"|segmentationclass(?:aug|raw|png)?|labelcol|indexlabel|targets?|semantic|gtfine|gtcoarse"
_OF_MASKS += r"|manual\d?|ann[_-]?dir|stuffthingmaps|pixelmaps"
_OF_IMAGES = r"images?|imgs?|jpegimages|photos?|pictures?|inputs?|rgb|sat|raw|original|leftimg8bit"
_MASK_FOLDER = re.compile(
    rf"^(?:{_OF_MASKS})$|[_\- .](?:{_OF_MASKS})$|^(?:{_OF_MASKS})[_\- .]|(?<=[a-z])(?:annot|masks?|labels?)$"
)
# Pictures of what is no class; they are masks, and taken for want of others alone.
_LESS = re.compile(
    r"instances?|panoptic|depths?|superpixels?|edges?|contours?|overlays?|segmentationobject(?:png)?"
    r"|colou?r(?:s|ed|maps?)?|rgb|human|noboundary|(?:segmentation(?:class|object))?visuali[sz]ations?"
)
_NO_IMAGES = re.compile(
    r"instances?|panoptic|superpixels?|overlays?|segmentationobject(?:png)?"
    r"|(?:segmentation(?:class|object))?visuali[sz]ations?"
)
_MANUAL = re.compile(r"manual\d?$")
_VIEW = re.compile(r"masks?|fov|roi")  # beside manual segmentations, as of retinas: where the camera sees
_MASK_FILE = re.compile(
    r"[_\-. ](?:masks?(?:[_\-. ]?\d)?|labels?|l|gt|seg|segmentation|p|matte|annotation|anno|lbl|lab|labelids|m"
    r"|manual\d?|\d(?:st|nd)(?:ho|[_\-. ]manual))$"
    r"|^(?:masks?|labels?|gt|seg|segmentation|annotation)[_\-. ]+(?=.)"
)
_IMAGE_FILE = re.compile(
    r"[_\-. ](?:image|img|sat|leftimg8bit|rgb|photo|orig|original)$|^(?:image|img|photo|original)[_\-. ]+(?=.)"
)
_WORDS = re.compile(rf"(?:^|[_\- .])(?:{_OF_MASKS}|{_OF_IMAGES})(?=$|[_\- .])|(?<=[a-z])(?:annot|masks?|labels?)$")
_BETWEEN = re.compile(r"[_\-. ]+")
_SPLITS = {
    **dict.fromkeys(("train", "training", "trn", "tr"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "tst", "te", "eval"), "test"),
}
_WITHIN = {"train", "training", "tr", "val", "valid", "validation", "test", "testing", "te"}  # a folder's name
_SPLIT_WORD = re.compile(r"(train|val|valid|test)(?:\d{4}|(?:data)?set|data|crops?|im(?:age|g)s?)")  # such as train2017
_FORMATS = ("png", "tif", "tiff", "bmp", "jpg", "jpeg")  # names of folders, the first liked best
_PLACES_OF_LISTS = ("", "ImageSets/Segmentation", "splits", "lists", "split")
_LOOKS = 3  # files of a folder that are looked at to tell what it holds
_FEW_COLOURS = 64


@dataclass
class Pairs:
    """Images with their masks, by split (all: none is named), as paths below the root; and what has no partner."""

    by_split: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    problems: list[Problem] = field(default_factory=list)
    mask_folders: set[str] = field(default_factory=set)
    split_by: str = ""
    """The lists that say the splits; empty: folders do, or nothing."""

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
    for folder, why in [*_in_another_format(folders), *_fields_of_view(folders)]:
        cure = "it is left out"
        found.problems += [Problem(str(root / name), why, cure, "warning") for name in folders.pop(folder)]
    images: dict[tuple[str, ...], list[str]] = defaultdict(list)
    masks: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for folder, files in folders.items():
        whole = _is_mask_folder(root, folder, files, alone=len(folders) == 1)
        partners = Counter(map(_canonical, files))
        beside = set() if whole else _masks_beside(root, files)
        for name in files:
            of_mask = _MASK_FILE.search(Path(name).stem.lower())
            is_mask = whole or name in beside or bool(of_mask and partners[_canonical(name)] > 1)
            (masks if is_mask else images)[_key(folder)].append(name)
    lonely: list[str] = []
    for key, here in images.items():
        unmatched, left = _pair(found, _named(here), _named(masks.get(key, [])))
        lonely += unmatched
        masks[key] = left
    rest = [name for left in masks.values() for name in left]
    # Folders whose names do not fit together, such as 701_StillsRaw and LabeledApproved; then files whose names do not.
    for naming in (_named, _bare):
        paired_images = [image for pairs in found.by_split.values() for image, _ in pairs]
        seen = {_scene(image, text) for image, text in naming(paired_images).items()}
        texts = naming(lonely)
        others = [image for image in lonely if _scene(image, texts[image]) in seen]
        for image in others:
            del texts[image]
        unmatched, rest = _pair(found, texts, naming(rest))
        lonely = [*unmatched, *others]
    paired = {name: mask for pairs in found.by_split.values() for image, mask in pairs for name in _names(image, mask)}
    found.problems += [_alone(root, name, "image", "mask") for name in lonely]
    found.problems += [_left_over(root, name, paired.get(_canonical(name))) for name in rest]
    _apply_lists(root, found)
    return found


def _in_another_format(folders: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield the folders that a folder of another format repeats whole: tif/images, tif/masks beside png/images, ..."""
    trees: dict[tuple[str, ...], dict[str, dict[tuple[str, ...], set[str]]]] = defaultdict(lambda: defaultdict(dict))
    for folder, files in folders.items():
        parts = Path(folder).parts
        place = next((k for k, part in enumerate(parts) if part.lower() in _FORMATS), None)
        if place is not None:
            trees[parts[:place]][parts[place]][parts[place + 1 :]] = {Path(name).stem for name in files}
    for top, tree in trees.items():
        first, *others = sorted(tree, key=lambda form: _FORMATS.index(form.lower()))
        for form in others:
            # Images in jpg/ and their masks in png/ repeat nothing.
            if len(tree[form]) > 1 and all(files <= tree[first].get(rest, set()) for rest, files in tree[form].items()):
                yield from ((os.path.join(*top, form, *rest), f"the same lies in {first}/") for rest in tree[form])


def _fields_of_view(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the folders of masks that say where a camera sees, which lie beside manual segmentations alone."""
    last = {folder: Path(folder).name.lower() for folder in folders}
    if any(_MANUAL.search(name) for name in last.values()):
        for folder, name in last.items():
            if _VIEW.fullmatch(name):
                yield folder, "the mask is a field of view, as there are manual segmentations"


def _masks_beside(root: Path, files: list[str]) -> set[str]:
    """Return the masks among files of a folder that have the name of a JPEG image each: a.png beside a.jpg."""
    photos = {_canonical(name) for name in files if Path(name).suffix.lower() in (".jpg", ".jpeg")}
    others = [name for name in files if Path(name).suffix.lower() not in (".jpg", ".jpeg")]
    others = [name for name in others if _canonical(name) in photos]
    return set(others) if all(_looks_like_mask(root / name) for name in others[:_LOOKS]) else set()


def _is_mask_folder(root: Path, folder: str, files: list[str], alone: bool) -> bool:
    parts = [part.lower() for part in Path(folder).parts]
    named = [part for part in parts if part not in _SPLITS]
    if (named and _MASK_FOLDER.search(named[-1])) or any(re.fullmatch(_OF_MASKS, part) for part in named):
        return True
    if named and any(_NO_IMAGES.fullmatch(word) for word in _BETWEEN.split(named[-1])):
        return True
    if alone or not named or any(re.fullmatch(_OF_IMAGES, part) for part in named):
        return False
    return all(_looks_like_mask(root / name) for name in files[:_LOOKS])


def _looks_like_mask(path: Path) -> bool:
    """Whether a file is stored without loss and has few colours."""
    try:
        with Image.open(path) as image:
            if image.format in ("JPEG", "WEBP") or image.mode == "F":  # photographs, and heights
                return False
            return image.mode in ("P", "1") or image.convert("RGB").getcolors(_FEW_COLOURS) is not None
    except Exception:  # whatever is wrong with it is said when it is read
        return False


def _canonical(name: str) -> str:
    """Return a file's name without its ending and without a word for a mask or an image at its end or beginning.

    >>> _canonical("a/7_mask.png"), _canonical("a/7.jpg.png"), _canonical("a/mask_7.png"), _canonical("a/7.jpg")
    ('7', '7', '7', '7')
    """
    stem = Path(name).stem.lower()
    if Path(stem).suffix in IMAGES:
        stem = Path(stem).stem
    return _IMAGE_FILE.sub("", _MASK_FILE.sub("", stem))


def _named(names: Iterable[str]) -> dict[str, str]:
    return {name: _canonical(name) for name in names}


def _bare(names: Iterable[str]) -> dict[str, str]:
    """Return the names of files without the words that all files of their folder begin or end with.

    >>> _bare(["a/scan_1_left.jpg", "a/scan_2_left.jpg"])
    {'a/scan_1_left.jpg': '1', 'a/scan_2_left.jpg': '2'}
    """
    folders: dict[Path, dict[str, list[str]]] = defaultdict(dict)
    for name in names:
        folders[Path(name).parent][name] = _BETWEEN.split(_canonical(name))
    bare: dict[str, str] = {}
    for files in folders.values():
        fewest = min(map(len, files.values()))
        begin = _alike_words(files.values(), range(fewest - 1)) if len(files) > 1 else 0
        end = _alike_words(files.values(), range(-1, begin - fewest, -1)) if len(files) > 1 else 0
        bare |= {name: "_".join(words[begin : len(words) - end]) for name, words in files.items()}
    return bare


def _alike_words(names: Collection[list[str]], places: Iterable[int]) -> int:
    """Return at how many places, one after the other, all names have the same word."""
    return sum(1 for _ in takewhile(lambda place: len({words[place] for words in names}) == 1, places))


def _key(folder: str) -> tuple[str, ...]:
    """Return a folder's path without words for masks and images: that of the images is that of their masks.

    >>> _key("data/trainannot"), _key("data/images/train"), _key("data/train/masks")
    (('data', 'train'), ('data', 'train'), ('data', 'train'))
    """
    plain = (_WORDS.sub("", part.lower()).strip("_-. ") for part in Path(folder).parts)
    return tuple(part for part in plain if part)


def _split_of(name: str) -> str:
    """Return the split that a file's folders name, in a word at least.

    >>> _split_of("data/val/a.png"), _split_of("ISIC-2017_Training_Data/a.png"), _split_of("a.png")
    ('val', 'train', 'all')
    >>> _split_of("train2017/a.png"), _split_of("DUTS-TE/a.png")
    ('train', 'test')
    """
    return _split_of_folder(str(Path(name).parent))


@cache
def _split_of_folder(folder: str) -> str:
    key = [_SPLIT_WORD.sub(r"\1", part) for part in _key(folder)]
    among = {_SPLITS[word] for part in key for word in _BETWEEN.split(part) if word in _WITHIN}
    return next((_SPLITS[part] for part in reversed(key) if part in _SPLITS), among.pop() if len(among) == 1 else "all")


def _scene(image: str, text: str) -> tuple[Path, str, str]:
    """Return what pictures of one scene in folders side by side, such as RGB and IRRG, have alike."""
    return Path(image).parent.parent, _split_of(image), text


def _alone(root: Path, name: str, what: str, other: str) -> Problem:
    cure = f"it is left out; add the {other} if it should be used"
    return Problem(str(root / name), f"the {what} has no {other}", cure, "warning")


def _left_over(root: Path, mask: str, taken: str | None) -> Problem:
    if taken is None:
        return _alone(root, mask, "mask", "image")
    cure = "this one is left out; remove the other, if this one should be used"
    return Problem(str(root / mask), f"its image has another mask, {taken}", cure, "warning")


def _names(image: str, mask: str) -> set[str]:
    return {_canonical(image), _canonical(mask)}


def _pair(found: Pairs, images: Mapping[str, str], masks: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Add the pairs of images and masks, files with what is compared of their names; return what has no partner.

    Of several masks an image gets the one most like it; a mask that is as much like images elsewhere is of none.
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for mask, text in masks.items():
        alike[text].append(mask)
    wanted: dict[str, dict[str, tuple[int, bool, int]]] = defaultdict(dict)
    for image, text in images.items():
        # The masks of train are never those of test, whatever their names are.
        splits = {"all", _split_of(image)}
        near = [mask for mask in sorted(alike.get(text, ())) if _split_of(mask) in splits or splits == {"all"}]
        if near:
            likeness = {mask: _likeness(image, mask) for mask in near}
            mask = max(likeness, key=likeness.__getitem__)
            wanted[mask][image] = likeness[mask]
    used: dict[str, str] = {}
    for mask, likeness in wanted.items():
        best = [image for image in likeness if likeness[image] == max(likeness.values())]
        if len({str(Path(image).with_suffix("")) for image in best}) == 1:
            used |= dict.fromkeys(best, mask)
    for image in images:
        if image in used:
            found.by_split[_split_of(image)].append((image, used[image]))
            found.mask_folders.add(str(Path(used[image]).parent))
    taken = set(used.values())
    return [image for image in images if image not in used], [mask for mask in masks if mask not in taken]


def _likeness(image: str, mask: str) -> tuple[int, bool, int]:
    """Return how much a mask of an image's name looks like its own: holds classes, has the same name, lies near."""
    of_image, of_mask = (
        set(_BETWEEN.split(str(Path(name).parent).lower().replace("/", " "))) for name in (image, mask)
    )
    less = sum(_LESS.fullmatch(word) is not None for word in of_mask)
    return -less, Path(image).stem == Path(mask).stem, len(of_image & of_mask)


def _apply_lists(root: Path, found: Pairs) -> None:
    """Take the splits from lists of names, train.txt and val.txt, where no folder says them."""
    if set(found.by_split) != {"all"}:
        return
    for place in _PLACES_OF_LISTS:
        there = {
            split: root / place / f"{name}.txt"
            for split, names in (("train", ("train",)), ("val", ("val", "valid")), ("test", ("test",)))
            for name in names
            if (root / place / f"{name}.txt").is_file()
        }
        if there.keys() & {"train", "val"}:
            _split_by(found, {split: read_lines(path) for split, path in there.items()})
            found.split_by = " and ".join(os.path.relpath(path, root) for path in there.values())
            return


def _split_by(found: Pairs, listed: Mapping[str, list[str]]) -> None:
    """Move the pairs into the splits of the lists; without a list for training, the others are to train with."""
    pairs = found.by_split.pop("all")
    stems = Counter(Path(image).stem for image, _ in pairs)
    lines: dict[str, list[tuple[tuple[str, ...], str]]] = defaultdict(list)
    for split, there in listed.items():
        for line in there:
            path = next((path for path in _paths(line) if path.name in stems), None)
            if path is not None:
                lines[path.name].append((path.parts, split))
    rest: str | None = "train" if "train" not in listed else None
    for image, mask in pairs:
        parts = Path(image).with_suffix("").parts
        # Where images in several folders have one name, a line says the folder too.
        one = stems[parts[-1]] == 1
        named = next((split for end, split in lines[parts[-1]] if one or parts[-len(end) :] == end), rest)
        if named is not None:
            found.by_split[named].append((image, mask))
    if not found.by_split.get("train"):
        raise InputError("no image is named in train.txt", cure="write the images' names, one a line, or remove it")


def _paths(line: str) -> Iterator[Path]:
    """Yield what a line of a list may name, without the ending of an image."""
    for text in (line, *re.split(r"[\t,;]+", line)[:1], *line.split()[:1]):
        path = Path(text.strip())
        yield path.with_suffix("") if path.suffix.lower() in IMAGES else path


def with_val(pairs: Pairs, share: float = 0.25) -> tuple[dict[str, list[tuple[str, str]]], str]:
    """Return pairs for training and validation, and a sentence on where the validation images come from."""
    train = sorted([*pairs.by_split.get("train", []), *pairs.by_split.get("all", [])])
    val = sorted(pairs.by_split.get("val", []))
    test = sorted(pairs.by_split.get("test", []))
    if val and train:
        said = f"as {pairs.split_by} say{'s' * (' and ' not in pairs.split_by)}"
        if not pairs.split_by:
            said = "the folders' own train and val" + ("; test is not used" if test else "")
        return {"train": train, "val": val}, said
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
