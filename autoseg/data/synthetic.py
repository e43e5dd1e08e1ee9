"""A made-up data set of textured scenes: no download, not easy, and the same bytes for the same settings.

Six classes: the background, a frequent class, a common one, a rare one in the colours of the common one, a thin one and
a small one. A void band surrounds every object. Colours of different classes overlap; their textures differ.
"""

from __future__ import annotations

import io
import logging
import shutil
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from autoseg.data.check import in_parallel
from autoseg.data.model import VOID, ClassInfo, MaskValues
from autoseg.data.reading import Array
from autoseg.data.source import Sample, Source, plain_values
from autoseg.errors import InputError
from autoseg.files import atomic, read_json, to_json, write_json, writing

logger = logging.getLogger(__name__)

SYNTHETIC_VERSION = 1  # raised when the same settings would give other bytes
CLASSES = [
    ClassInfo(name="ground", color=(0, 0, 0)),
    ClassInfo(name="meadow", color=(60, 160, 60)),  # frequent
    ClassInfo(name="roof", color=(200, 80, 60)),  # common
    ClassInfo(name="crate", color=(240, 200, 40)),  # rare, and coloured like a roof
    ClassInfo(name="wire", color=(60, 90, 220)),  # thin
    ClassInfo(name="pebble", color=(200, 60, 200)),  # small
]
_GROUND, _MEADOW, _ROOF, _CRATE, _WIRE, _PEBBLE = range(6)
# Mean colour of each class. Objects differ from it by a normal deviation of 18, more than neighbouring classes differ.
_COLORS = np.array(
    [(124, 108, 90), (94, 122, 84), (156, 104, 88), (164, 112, 80), (70, 78, 108), (176, 166, 150)], np.float32
)
_STRAY, _NOISE = 18.0, 10.0

Rng = np.random.Generator


def find(
    folder: str | Path,
    train: int = 200,
    val: int = 50,
    size: int = 128,
    seed: int = 0,
    threads: int = 1,
) -> Source:
    """Return the data set whose PNG files lie in `folder`; draw those that are not there yet."""
    for name, value, least in (("train", train, 1), ("val", val, 1), ("size", size, 32), ("seed", seed, 0)):
        if value < least:
            raise InputError(f"is {value}", where=name, expected=f"at least {least}")
    folder = Path(folder)
    samples = [
        Sample(
            f"{split}-{number:05d}",
            split,
            f"data/images/{split}-{number:05d}.png",
            f"data/masks/{split}-{number:05d}.png",
        )
        for split, count in (("train", train), ("val", val))
        for number in range(count)
    ]
    settings = {"train": train, "val": val, "size": size, "seed": seed, "version": SYNTHETIC_VERSION}
    _make(folder, samples, settings, threads)
    return Source("synthetic", {"data": folder}, CLASSES, MaskValues(values=plain_values(len(CLASSES))), samples)


def scene(size: int, seed: int, split: str, number: int) -> tuple[Array, Array]:
    """Return image (size, size, 3) and mask (size, size) of one scene.

    >>> image, mask = scene(64, seed=0, split="train", number=0)
    >>> image.shape, mask.shape, set(np.unique(mask).tolist()) <= {0, 1, 2, 3, 4, 5, 255}
    ((64, 64, 3), (64, 64), True)
    """
    rng = np.random.default_rng([seed, {"train": 0, "val": 1}[split], number])
    mask = np.full((size, size), _GROUND, np.uint8)
    canvas = _texture(rng, _GROUND, size, size)
    for label in _objects(rng):
        shape = _shape(rng, label, size)
        band = cv2.dilate(shape, np.ones((3, 3), np.uint8), iterations=max(1, size // 96))
        mask[band > 0] = VOID
        mask[shape > 0] = label
        left, top, width, height = cv2.boundingRect(shape)
        box = np.s_[top : top + height, left : left + width]
        inside = shape[box] > 0
        canvas[box][inside] = _texture(rng, label, height, width)[inside]
    return _photograph(rng, canvas, size), mask


def _objects(rng: Rng) -> list[int]:
    """Draw the objects of a scene, from back to front."""
    meadows, roofs = rng.integers(1, 4), rng.integers(0, 4)
    crates = int(rng.random() < 0.25)
    small = [_WIRE] * rng.integers(0, 3) + [_PEBBLE] * rng.integers(0, 6)
    objects = [_MEADOW] * meadows + list(rng.permutation([_ROOF] * roofs + [_CRATE] * crates))
    return [int(label) for label in [*objects, *rng.permutation(small)]]


def _shape(rng: Rng, label: int, size: int) -> Array:
    shape = np.zeros((size, size), np.uint8)
    center = rng.uniform(0.05, 0.95, 2) * size
    if label == _MEADOW:
        axes = rng.uniform(0.12, 0.42, 2) * size
        cv2.ellipse(shape, _ints(center), _ints(axes), float(rng.uniform(0, 180)), 0, 360, 1, -1)
    elif label in (_ROOF, _CRATE):
        corners = 4 if label == _CRATE else int(rng.integers(3, 7))
        radius = rng.uniform(0.08, 0.14 if label == _CRATE else 0.2) * size
        spread = 0.0 if label == _CRATE else 0.5
        angles = (np.arange(corners) + rng.uniform(-spread, spread, corners) + rng.random()) * 2 * np.pi / corners
        points = center + radius * np.stack([np.cos(angles), np.sin(angles)], 1)
        cv2.fillPoly(shape, [np.rint(points).astype(np.int32)], 1)
    elif label == _WIRE:
        ends = rng.uniform(-0.1, 1.1, (2, 2)) * size
        bow = ends.mean(0) + rng.normal(0, 0.15 * size, 2)
        t = np.linspace(0, 1, 12)[:, None]
        points = (1 - t) ** 2 * ends[0] + 2 * t * (1 - t) * bow + t**2 * ends[1]
        cv2.polylines(shape, [np.rint(points).astype(np.int32)], False, 1, thickness=max(2, size // 42))
    else:
        cv2.circle(shape, _ints(center), max(2, round(rng.uniform(0.022, 0.045) * size)), 1, -1)
    return shape


def _texture(rng: Rng, label: int, height: int, width: int) -> np.ndarray:
    """Return a picture of one object's surface, float32 (height, width, 3)."""
    y, x = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)
    angle = rng.uniform(0, np.pi)
    along = np.float32(np.cos(angle)) * x + np.float32(np.sin(angle)) * y
    across = np.float32(-np.sin(angle)) * x + np.float32(np.cos(angle)) * y
    if label == _GROUND:  # soft clouds
        grain = _clouds(rng, 22, 14, height, width)
    elif label == _MEADOW:  # clouds with fine stripes
        grain = _clouds(rng, 16, 11, height, width) + 10 * np.sin(along * np.float32(2 * np.pi / rng.uniform(3, 6)))
    elif label == _ROOF:  # wide stripes
        grain = 18 * np.sign(np.sin(along * np.float32(2 * np.pi / rng.uniform(7, 12))))
    elif label == _CRATE:  # a chequered board
        wave = np.float32(2 * np.pi / rng.uniform(7, 12))
        grain = 18 * np.sign(np.sin(along * wave) * np.sin(across * wave))
    else:
        grain = rng.normal(0, 10, (height, width)).astype(np.float32)
    color = _COLORS[label] + rng.normal(0, _STRAY, 3).astype(np.float32)
    return (color + grain[..., None]).astype(np.float32)


def _clouds(rng: Rng, strength: float, cell: int, height: int, width: int) -> np.ndarray:
    coarse = rng.normal(0, strength, (height // cell + 2, width // cell + 2)).astype(np.float32)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def _photograph(rng: Rng, canvas: np.ndarray, size: int) -> Array:
    """Blur a little, light from one side, and add noise."""
    blurred = cv2.GaussianBlur(canvas, (3, 3), float(rng.uniform(0.3, 0.9)))
    slope = rng.uniform(-0.35, 0.35, 2).astype(np.float32)
    ramp = np.linspace(-0.5, 0.5, size, dtype=np.float32)
    light = 1 + slope[0] * ramp[:, None] + slope[1] * ramp[None, :]
    noise = rng.normal(0, _NOISE, canvas.shape).astype(np.float32)
    return np.clip(np.rint(blurred * light[..., None] + noise), 0, 255).astype(np.uint8)


def _ints(pair: np.ndarray) -> tuple[int, int]:
    return round(float(pair[0])), round(float(pair[1]))


def _make(folder: Path, samples: list[Sample], settings: dict[str, int], threads: int) -> None:
    """Write the files that are missing; files of other settings are removed first."""
    from autoseg.data.prepare import require_room

    marker = folder / "synthetic.json"
    with writing(folder):
        if folder.exists() and any(folder.iterdir()):
            if not marker.exists():
                what = "holds files that are not a synthetic data set"
                raise InputError(what, where=folder, cure="choose another folder")
            if _settings_of(marker) != to_json(settings):
                logger.info("%s: holds scenes of other settings, which are replaced.", folder)
                shutil.rmtree(folder)
    files = [[folder / name.removeprefix("data/") for name in (s.image, s.mask)] for s in samples]
    missing = [s for s, pair in zip(samples, files, strict=True) if not all(path.exists() for path in pair)]
    if not missing:
        return
    size, seed = settings["size"], settings["seed"]
    require_room(folder, 4 * size * size * len(missing))
    colors = [channel for info in CLASSES for channel in info.color]
    palette = colors + [0] * (3 * VOID - len(colors)) + [224, 224, 192]

    def draw(sample: Sample) -> None:
        image, mask = scene(size, seed, sample.split, int(sample.id.rpartition("-")[2]))
        drawn = Image.fromarray(mask)
        drawn.putpalette(palette)
        for name, picture in ((sample.mask, drawn), (sample.image, Image.fromarray(image))):
            content = io.BytesIO()
            picture.save(content, "PNG", compress_level=1)
            with atomic(folder / name.removeprefix("data/"), "wb") as file:
                file.write(content.getvalue())

    with writing(folder):
        write_json(marker, settings)
        for _ in in_parallel(draw, missing, threads, "drawing"):
            pass


def _settings_of(marker: Path) -> str | None:
    try:
        return to_json(read_json(marker))
    except InputError:  # damaged: the scenes are drawn again
        return None
