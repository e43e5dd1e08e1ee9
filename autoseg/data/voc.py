"""PASCAL VOC 2012 with SBD's extra masks, in mmseg's, torchvision's or the already converted layout."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from autoseg.data.model import ClassInfo, MaskValues
from autoseg.data.source import Sample, Source, directory, files_below, plain_values, read_lines, whole_set
from autoseg.errors import InputError, Problem, collect

NAMES = [
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
]
_CONVERTED = "SegmentationClassAug"
_SBD_PLACES = ("VOCaug/dataset", "VOCaug", "sbd", "SBD", "benchmark_RELEASE/dataset", "dataset")


def palette(num_classes: int) -> list[tuple[int, int, int]]:
    """Return VOC's colours: the bits of the class number go in turn to red, green and blue, highest bits first.

    >>> palette(3)
    [(0, 0, 0), (128, 0, 0), (0, 128, 0)]
    """
    colors = []
    for number in range(num_classes):
        red, green, blue = (
            sum((number >> (3 * bit + channel) & 1) << (7 - bit) for bit in range(3)) for channel in range(3)
        )
        colors.append((red, green, blue))
    return colors


def find(root: str | Path, sbd: str | Path | None = None) -> Source:
    """Find VOC 2012 below `root` and SBD in `sbd` (looked for beside VOC; "none" leaves it out).

    The training set is trainaug = (VOC train + SBD train + SBD val) - VOC val, sorted. Where both have a mask, VOC's
    is used.
    """
    voc = _find_voc(directory(root, "VOCdevkit/VOC2012"))
    roots = {"voc": voc}
    problems: list[Problem] = []
    train, val = _read_list(voc, "train", problems), _read_list(voc, "val", problems)
    masks = {name: Sample(name, "train", _voc_image(name), f"voc/SegmentationClass/{name}.png") for name in train}
    expected = {"train": 1464 if str(sbd) == "none" else 10_582, "val": 1449}
    extra = {} if str(sbd) == "none" else _find_extra(voc, sbd, roots, problems)
    merged = {**extra, **masks}
    leaked = set(val) & set(train)  # images of val in SBD are removed below; VOC's own lists must not overlap
    problems += [
        Problem(
            str(voc / f"JPEGImages/{name}.jpg"),
            "the image is in both VOC's train.txt and val.txt",
            "restore ImageSets/Segmentation",
        )
        for name in sorted(leaked)
    ]
    samples = [merged[name] for name in sorted(set(merged) - (set(val) - leaked))]
    samples += [
        Sample(name, "val", _voc_image(name), f"voc/SegmentationClass/{name}.png") for name in sorted(set(val) - leaked)
    ]
    problems += _check_own_trainaug(voc, val)
    problems += whole_set(voc, samples, expected)
    classes = [ClassInfo(name=name, color=color) for name, color in zip(NAMES, palette(21), strict=True)]
    colors = {"#{:02x}{:02x}{:02x}".format(*info.color): number for number, info in enumerate(classes)}
    labels = MaskValues(values=plain_values(21), colors=colors)
    return Source("voc", roots, classes, labels, samples, problems)


def _voc_image(name: str) -> str:
    return f"voc/JPEGImages/{name}.jpg"


def _find_voc(root: Path) -> Path:
    for place in ("", "VOC2012", "VOCdevkit/VOC2012", "TrainVal/VOCdevkit/VOC2012"):
        if (root / place / "ImageSets" / "Segmentation").is_dir():
            return root / place
    what, cure = "no VOC2012/ImageSets/Segmentation below it", "give the folder that holds VOCdevkit"
    raise InputError(what, where=root, cure=cure)


def _read_list(voc: Path, split: str, problems: list[Problem]) -> list[str]:
    path = voc / "ImageSets" / "Segmentation" / f"{split}.txt"
    with collect(problems):
        names = read_lines(path)
        twice = [name for name, count in Counter(names).items() if count > 1]
        problems += [Problem(str(path), f"'{name}' is listed twice", "it is used once", "warning") for name in twice]
        return names
    return []


def _check_own_trainaug(voc: Path, val: list[str]) -> list[Problem]:
    """Return a warning if there is a trainaug.txt with images of val; the file is not used."""
    path = voc / "ImageSets" / "Segmentation" / "trainaug.txt"
    problems: list[Problem] = []
    with collect(problems):
        if path.exists() and (inside := set(read_lines(path)) & set(val)):
            what = f"{len(inside)} images of val.txt are in it, such as '{min(inside)}'"
            problems.append(Problem(str(path), what, "the list is not used: trainaug is built without them", "warning"))
    return problems


def _find_extra(
    voc: Path, given: str | Path | None, roots: dict[str, Path], problems: list[Problem]
) -> dict[str, Sample]:
    """Return SBD's masks: those of the folder given; else the released or the converted ones, whichever are more."""
    converted = {} if given is not None else _find_converted(voc, problems)
    sbd = _find_sbd(voc, given)
    if sbd is None and not converted:
        looked = given if given is not None else voc.parent
        empty = " (it is empty)" if (voc / _CONVERTED).is_dir() else ""
        raise InputError(
            f"found neither SBD (a folder with cls/*.mat, train.txt, val.txt) nor masks in VOC2012/{_CONVERTED}{empty}",
            where=looked,
            cure="give its folder with `--sbd`, or `--sbd none` to train on VOC's own masks alone",
        )
    if sbd is None:
        return converted
    wrong: list[Problem] = []
    released = _find_mats(voc, sbd, wrong)
    if converted:
        used, other = (voc / _CONVERTED, sbd) if len(converted) >= len(released) else (sbd, voc / _CONVERTED)
        what = f"{len(converted):,} converted masks in {_CONVERTED} and {len(released):,} of SBD in {sbd}"
        problems.append(Problem(str(voc), what, f"{used} is used; move it away to use {other}", "warning"))
        if used != sbd:
            return converted
    roots["sbd"] = sbd
    problems += wrong
    return released


def _find_sbd(voc: Path, given: str | Path | None) -> Path | None:
    if given is not None:
        top = directory(given, "SBD (cls/, train.txt, val.txt)")
        places = [top, top / "dataset", top / "benchmark_RELEASE" / "dataset"]
    else:
        places = [parent / place for parent in (voc.parent, voc.parent.parent) for place in _SBD_PLACES]
    return next((place for place in places if (place / "cls").is_dir()), None)


def _find_mats(voc: Path, sbd: Path, problems: list[Problem]) -> dict[str, Sample]:
    """Return SBD as released: MATLAB masks. Its images are VOC's; torchvision's download has copies in `img`."""
    names: set[str] = set()
    for split in ("train", "val"):
        with collect(problems):
            names.update(read_lines(sbd / f"{split}.txt"))
    samples = {}
    for name in names:
        own = f"sbd/img/{name}.jpg"
        elsewhere = not (voc / "JPEGImages" / f"{name}.jpg").exists() and (sbd / "img" / f"{name}.jpg").exists()
        image = own if elsewhere else _voc_image(name)
        samples[name] = Sample(name, "train", image, f"sbd/cls/{name}.mat", "sbd")
    return samples


def _find_converted(voc: Path, problems: list[Problem]) -> dict[str, Sample]:
    files = files_below(voc / _CONVERTED, problems)
    names = [name.removesuffix(".png") for name in files if name.endswith(".png") and "/" not in name]
    return {name: Sample(name, "train", _voc_image(name), f"voc/{_CONVERTED}/{name}.png") for name in names}
