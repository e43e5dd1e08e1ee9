"""Small trees of the real layouts, as they lie on users' disks."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from autoseg.data.voc import palette

VOID = 255
PALETTE = [channel for color in palette(256) for channel in color]


def picture(name: str, height: int = 40, width: int = 60) -> np.ndarray:
    """An image of its own for every name."""
    rng = np.random.default_rng(list(name.encode()))
    coarse = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return np.ascontiguousarray(np.kron(coarse, np.ones((8, 8, 1), np.uint8))[:height, :width])


def blocks(values: tuple[int, ...], height: int = 40, width: int = 60, void: bool = True) -> np.ndarray:
    """A mask of vertical blocks of `values`, a void column between neighbours."""
    mask = np.zeros((height, width), np.uint8)
    for block, value in zip(np.array_split(np.arange(width), len(values)), values, strict=True):
        mask[:, block] = value
        if void and block[0]:
            mask[:, block[0]] = VOID
    return mask


def save_jpeg(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, quality=90)


def save_png(path: Path, array: np.ndarray, palette: list[int] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(array)
    if palette:
        image.putpalette(palette)  # a greyscale image becomes a palette image, its values stay
    image.save(path)


def save_list(path: Path, names: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


def save_sbd_mat(path: Path, mask: np.ndarray, compress: bool = True) -> None:
    """As SBD has it: a 1 x 1 struct array GTcls with Segmentation, Boundaries and CategoriesPresent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    classes = np.setdiff1d(np.unique(mask), [0]).astype(np.uint8)
    fields = {"Segmentation": mask, "Boundaries": np.zeros((20, 1), object), "CategoriesPresent": classes}
    savemat(path, {"GTcls": fields}, do_compression=compress)


VOC_TRAIN, VOC_VAL = ["2007_000032", "2007_000039"], ["2007_000033", "2008_000001"]
SBD_TRAIN, SBD_VAL = ["2008_000002", "2007_000032", "2008_000001"], ["2008_000007", "2007_000033"]
# (VOC train + SBD train + SBD val) - VOC val
TRAINAUG = ["2007_000032", "2007_000039", "2008_000002", "2008_000007"]


def voc_tree(root: Path, sbd: str | None = "mmseg") -> Path:
    """PASCAL VOC with SBD in the layout of mmseg, of torchvision, already converted, or without SBD."""
    base = root / "VOCdevkit" / "VOC2012"
    save_list(base / "ImageSets/Segmentation/train.txt", VOC_TRAIN)
    save_list(base / "ImageSets/Segmentation/val.txt", VOC_VAL)
    everything = sorted({*VOC_TRAIN, *VOC_VAL, *SBD_TRAIN, *SBD_VAL})
    for name in everything:
        save_jpeg(base / f"JPEGImages/{name}.jpg", picture(name))
    for name in VOC_TRAIN + VOC_VAL:
        save_png(base / f"SegmentationClass/{name}.png", blocks((0, 15, 0, 1)), PALETTE)
    extra = {name: blocks((0, 20, 7), void=False) for name in SBD_TRAIN + SBD_VAL}
    if sbd == "converted":
        for name, mask in extra.items():
            save_png(base / f"SegmentationClassAug/{name}.png", mask)
    elif sbd:
        folder = root / "VOCdevkit/VOCaug/dataset" if sbd == "mmseg" else root / "sbd"
        save_list(folder / "train.txt", SBD_TRAIN)
        save_list(folder / "val.txt", SBD_VAL)
        for name, mask in extra.items():
            save_sbd_mat(folder / f"cls/{name}.mat", mask)
            if sbd == "torchvision":
                save_jpeg(folder / f"img/{name}.jpg", picture(name))
                save_sbd_mat(folder / f"inst/{name}.mat", mask)
    return root


CITIES = {"train": {"aachen": 2, "bremen": 1}, "val": {"lindau": 2}}
LABEL_IDS = (0, 3, 7, 8, 11, 17, 23, 26, 33)
TRAIN_IDS = (255, 255, 0, 1, 2, 5, 10, 13, 18)


def cityscapes_tree(root: Path, labels: str = "labelIds") -> Path:
    values = LABEL_IDS if labels == "labelIds" else TRAIN_IDS
    for split, cities in CITIES.items():
        for city, count in cities.items():
            for number in range(count):
                stem = f"{city}_{number:06d}_000019"
                image = picture(stem, 64, 128)
                save_png(root / f"leftImg8bit/{split}/{city}/{stem}_leftImg8bit.png", image)
                mask = blocks(values, 64, 128, void=False)
                save_png(root / f"gtFine/{split}/{city}/{stem}_gtFine_{labels}.png", mask)
                save_png(root / f"gtFine/{split}/{city}/{stem}_gtFine_instanceIds.png", mask)
    return root


# Lists of 'name breed species number'; a cat's name begins with a capital.
PETS_TRAINVAL = ["Bengal_3 6 1 2", "Abyssinian_1 1 1 1", "pug_10 26 2 19", "beagle_7 5 2 4"]
PETS_TEST = ["Abyssinian_9 1 1 1", "yorkshire_terrier_2 37 2 25"]


def pets_tree(root: Path) -> Path:
    """Oxford-IIIT Pet, as its two archives are unpacked; an image of no list has no trimap, as in the real one."""
    for line in PETS_TRAINVAL + PETS_TEST:
        name = line.split()[0]
        save_jpeg(root / f"images/{name}.jpg", picture(name))
        save_png(root / f"annotations/trimaps/{name}.png", blocks((2, 3, 1, 3, 2), void=False))
        (root / f"annotations/trimaps/._{name}.png").write_bytes(b"macOS")
    save_jpeg(root / "images/Abyssinian_104.jpg", picture("Abyssinian_104"))
    save_list(root / "annotations/trainval.txt", PETS_TRAINVAL)
    save_list(root / "annotations/test.txt", PETS_TEST)
    return root


CAMVID = ["sky", "building", "pole", "road", "pavement", "tree"]
CAMVID += ["signsymbol", "fence", "car", "pedestrian", "bicyclist", "void"]


def camvid_tree(root: Path, counts: tuple[int, int, int] = (4, 2, 2)) -> Path:
    for split, count in zip(("train", "val", "test"), counts, strict=True):
        for number in range(count):
            name = f"0001TP_{split}_{number:05d}"
            save_png(root / split / f"{name}.png", picture(name, 36, 48))
            save_png(root / f"{split}annot" / f"{name}.png", blocks((0, 3, 10, 11), 36, 48, void=False))
    save_list(root / "classes.txt", CAMVID)
    return root


COLORS = {"sky": (128, 128, 128), "road": (128, 64, 128), "car": (64, 0, 128), "void": (0, 0, 0)}


def color_tree(root: Path) -> Path:
    """Colour-coded masks; the list is a CSV with a heading, as Kaggle's CamVid has it."""
    for split, count in (("train", 3), ("val", 2)):
        for number in range(count):
            name = f"{split}{number}"
            save_jpeg(root / "images" / split / f"{name}.jpg", picture(name))
            mask = np.zeros((40, 60, 3), np.uint8)
            for place, color in enumerate(COLORS.values()):
                mask[:, 15 * place : 15 * place + 15] = color
            save_png(root / "labels" / split / f"{name}.png", mask)
    lines = ["name,r,g,b", *(f"{name},{','.join(map(str, color))}" for name, color in COLORS.items())]
    save_list(root / "class_dict.csv", lines)
    return root


def digests(folder: Path) -> dict[str, str]:
    """Checksums of what `prepare` promises to be the same bytes: index and caches."""
    names = ["index.json", *(path.name for path in folder.glob("cache-*"))]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sorted(names)}
