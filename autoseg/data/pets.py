"""Oxford-IIIT Pet (Parkhi et al., CVPR 2012): trimaps, whose animal is a cat, a dog or a breed by the lists."""

from __future__ import annotations

from pathlib import Path

from autoseg.data.model import VOID, ClassInfo, MaskValues
from autoseg.data.source import Sample, Source, directory, read_lines, unique_ids, whole_set
from autoseg.data.voc import palette
from autoseg.errors import InputError, Problem, collect, unknown

TASKS = ("species", "breed")
_SPECIES = [("background", (0, 0, 0)), ("cat", (64, 0, 0)), ("dog", (64, 0, 128))]  # VOC's colours
# In the order of the lists' second column, 1 to 37; as in the names of the images, a cat's begins with a capital.
BREEDS = [
    *("Abyssinian", "american_bulldog", "american_pit_bull_terrier", "basset_hound", "beagle", "Bengal", "Birman"),
    *("Bombay", "boxer", "British_Shorthair", "chihuahua", "Egyptian_Mau", "english_cocker_spaniel", "english_setter"),
    *("german_shorthaired", "great_pyrenees", "havanese", "japanese_chin", "keeshond", "leonberger", "Maine_Coon"),
    *("miniature_pinscher", "newfoundland", "Persian", "pomeranian", "pug", "Ragdoll", "Russian_Blue"),
    *("saint_bernard", "samoyed", "scottish_terrier", "shiba_inu", "Siamese", "Sphynx", "staffordshire_bull_terrier"),
    *("wheaten_terrier", "yorkshire_terrier"),
]
_LISTS = {"train": "trainval", "val": "test"}


def find(root: str | Path, task: str = "species") -> Source:
    """Find the set below `root`; the animal of an image is its species or its breed, and its border is void."""
    root = directory(root, "images and annotations")
    if task not in TASKS:
        raise unknown("task", task, TASKS, where="task")
    if not (root / "annotations").is_dir() and (root / "oxford-iiit-pet" / "annotations").is_dir():
        root = root / "oxford-iiit-pet"  # as torchvision unpacks it
    problems: list[Problem] = []
    for part, archive in (("images", "images.tar.gz"), ("annotations/trimaps", "annotations.tar.gz")):
        if not (root / part).is_dir():
            problems.append(Problem(str(root / part), "the folder does not exist", f"unpack {archive} into {root}"))
    samples: list[Sample] = []
    for split, name in _LISTS.items():
        with collect(problems):
            samples += _read_list(root / "annotations" / f"{name}.txt", split, task, problems)
    roots = {"data": root}
    samples, repeated = unique_ids(samples, roots)
    problems += whole_set(root, samples, {"train": 3680, "val": 3669})
    if task == "breed":
        named = zip(["background", *BREEDS], palette(len(BREEDS) + 1), strict=True)
        classes = [ClassInfo(name=name, color=color) for name, color in named]
    else:
        classes = [ClassInfo(name=name, color=color) for name, color in _SPECIES]
    labels = MaskValues(values={1: 1, 2: 0, 3: VOID})  # a sample's encoding says which class its 1 is
    return Source("pets", roots, classes, labels, samples, problems + repeated)


def _read_list(path: Path, split: str, task: str, problems: list[Problem]) -> list[Sample]:
    """Return the samples of a list, sorted; its lines are 'name breed species number-within-species'."""
    samples = []
    for number, line in enumerate(read_lines(path), 1):
        if line.startswith("#"):
            continue
        parts = line.split()
        try:
            breed, species = (int(part) for part in parts[1:3])
            known = 1 <= breed <= len(BREEDS) and species in (1, 2) and "/" not in parts[0]
        except ValueError:
            known = False
        if not known:
            what = f"'{line}' is not 'name breed species ...', the breed 1 to {len(BREEDS)}, the species 1 or 2"
            problems.append(Problem(f"{path}:{number}", what, "take the list from annotations.tar.gz"))
            continue
        label = breed if task == "breed" else species
        image, mask = f"data/images/{parts[0]}.jpg", f"data/annotations/trimaps/{parts[0]}.png"
        samples.append(Sample(parts[0], split, image, mask, f"trimap:{label}"))
    if not samples:
        raise InputError("no line of the list names an image", where=path, cure="take it from annotations.tar.gz")
    return sorted(samples, key=lambda sample: sample.id)
