"""Cityscapes: labelIds are mapped to the 19 classes when a mask is read; labelTrainIds need no mapping."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoseg.data.model import VOID, ClassInfo, MaskValues
from autoseg.data.source import Sample, Source, directory, files_below, plain_values, unique_ids, whole_set
from autoseg.errors import Problem, collect, unknown

# labelId -> (name, colour), in the order of the train ids; every other labelId is void.
_CLASSES: dict[int, tuple[str, tuple[int, int, int]]] = {
    7: ("road", (128, 64, 128)),
    8: ("sidewalk", (244, 35, 232)),
    11: ("building", (70, 70, 70)),
    12: ("wall", (102, 102, 156)),
    13: ("fence", (190, 153, 153)),
    17: ("pole", (153, 153, 153)),
    19: ("traffic light", (250, 170, 30)),
    20: ("traffic sign", (220, 220, 0)),
    21: ("vegetation", (107, 142, 35)),
    22: ("terrain", (152, 251, 152)),
    23: ("sky", (70, 130, 180)),
    24: ("person", (220, 20, 60)),
    25: ("rider", (255, 0, 0)),
    26: ("car", (0, 0, 142)),
    27: ("truck", (0, 0, 70)),
    28: ("bus", (0, 60, 100)),
    31: ("train", (0, 80, 100)),
    32: ("motorcycle", (0, 0, 230)),
    33: ("bicycle", (119, 11, 32)),
}
_LABEL_IDS = {raw: list(_CLASSES).index(raw) if raw in _CLASSES else VOID for raw in range(34)}
_IMAGE, _KINDS = "_leftImg8bit.png", ("labelIds", "labelTrainIds")


def find(root: str | Path, labels: str | None = None) -> Source:
    """Find Cityscapes' train and val below `root`; without `labels`, labelIds are taken if there are any."""
    root = directory(root, "leftImg8bit and gtFine")
    if not (root / "leftImg8bit").is_dir() and (root / "cityscapes" / "leftImg8bit").is_dir():
        root = root / "cityscapes"
    problems: list[Problem] = []
    for part in ("leftImg8bit", "gtFine"):
        for split in ("train", "val"):
            with collect(problems):
                directory(root / part / split, f"Cityscapes' {part}/{split}/<city>")
    if labels is None:
        labels = _KINDS[0] if any((root / "gtFine").glob(f"*/*/[!.]*_{_KINDS[0]}.png")) else _KINDS[1]
    elif labels not in _KINDS:
        raise unknown("kind of label file", labels, _KINDS, where="labels")
    suffix = f"_gtFine_{labels}.png"
    samples: list[Sample] = []
    for split in ("train", "val"):
        images = _in_cities(root / "leftImg8bit" / split, _IMAGE, problems)
        if not images and (root / "leftImg8bit" / split).is_dir():
            what, cure = f"no <city>/*{_IMAGE} in it", "unpack leftImg8bit_trainvaltest.zip"
            problems.append(Problem(str(root / "leftImg8bit" / split), what, cure))
        wanted = set()
        for image in images:
            mask = image.removesuffix(_IMAGE) + suffix
            wanted.add(mask)
            stem = mask.partition("/")[2].removesuffix(suffix)
            samples.append(Sample(stem, split, f"data/leftImg8bit/{split}/{image}", f"data/gtFine/{split}/{mask}"))
        problems += [
            Problem(str(root / "gtFine" / split / mask), "the mask has no image", "unpack leftImg8bit again")
            for mask in _in_cities(root / "gtFine" / split, suffix, problems)
            if mask not in wanted
        ]
    roots = {"data": root}
    samples, repeated = unique_ids(sorted(samples, key=lambda sample: (sample.split, sample.id)), roots)
    problems += whole_set(root, samples, {"train": 2975, "val": 500})
    classes = [ClassInfo(name=name, color=color) for name, color in _CLASSES.values()]
    values = _LABEL_IDS if labels == "labelIds" else plain_values(len(classes))
    return Source(
        "cityscapes",
        roots,
        classes,
        MaskValues(values=values),
        samples,
        problems + repeated,
        cure_of_values=_cure_of_values,
    )


def _cure_of_values(strange: Sequence[int]) -> str | None:
    """Return what to do about wrong values if they look like those of the other kind of label file."""
    if list(strange) == [VOID]:
        return "these look like labelTrainIds: rename the file, or pass `--labels labelTrainIds`"
    if max(strange) < len(_LABEL_IDS):
        return "these look like labelIds: rename the file, or pass `--labels labelIds`"
    return None


def _in_cities(folder: Path, suffix: str, problems: list[Problem]) -> list[str]:
    return [name for name in files_below(folder, problems) if name.endswith(suffix) and name.count("/") == 1]
