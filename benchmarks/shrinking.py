"""`make bench-shrinking`: how the proxy task's images and labels differ from the release's, which shrinks otherwise.

Here images are shrunk by averaging areas, through the cache, and a label is the one under its pixel's centre. The
release shrinks the original image bilinearly, and labels by OpenCV's nearest neighbour, which takes the label at a
pixel's upper left corner. The folder of the Oxford-IIIT Pet data set may be given as an argument, for real images.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from autoseg.data.augment import CenterView
from autoseg.data.cache import cached_size, shrink
from autoseg.data.synthetic import scene
from benchmarks.shared import table, write_section

SIZE, IMAGES = 128, 200
Array = np.ndarray
Pair = tuple[Array, Array]


def ours(image: Array, mask: Array) -> Pair:
    """Return the view that a trial is scored on."""
    return CenterView(SIZE)(*shrink(image, mask, *cached_size(mask.shape[0], mask.shape[1], 2 * SIZE)))


def theirs(image: Array, mask: Array) -> Pair:
    """Return the view that the release scores: short side 128, then the centre."""
    zoom = SIZE / min(mask.shape)
    height, width = (int(side * zoom + 0.5) for side in mask.shape)
    top, left = (height - SIZE) // 2, (width - SIZE) // 2
    place = np.s_[top : top + SIZE, left : left + SIZE]
    image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    return image[place], cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST)[place]


def scenes() -> Iterator[Pair]:
    """Yield made-up scenes with the short side of most VOC images."""
    for number in range(IMAGES):
        yield scene(375, 0, "train", number)


def pets(folder: Path) -> Iterator[Pair]:
    """Yield photographs with their trimaps: animal, background, border."""
    for path in sorted((folder / "images").glob("*.jpg"))[:IMAGES]:
        mask = cv2.imread(str(folder / "annotations" / "trimaps" / f"{path.stem}.png"), cv2.IMREAD_UNCHANGED)
        image = cv2.imread(str(path))
        assert image is not None, path
        assert mask is not None, path
        yield image, mask


def sharpness(image: Array) -> float:
    """Return the mean square difference of neighbouring pixels."""
    values = image.astype(np.float64)
    return float(np.square(np.diff(values, axis=0)).mean() + np.square(np.diff(values, axis=1)).mean())


def row(name: str, pairs: Iterator[Pair]) -> list[str]:
    """Return the shares and differences of a set of images."""
    differing, distances, ratios = [], [], []
    for image, mask in pairs:
        (our_image, our_labels), (their_image, their_labels) = ours(image, mask), theirs(image, mask)
        differing.append((our_labels != their_labels).mean())
        distances.append(np.abs(our_image.astype(int) - their_image.astype(int)).mean())
        ratios.append(sharpness(their_image) / sharpness(our_image))
    return [
        name,
        f"{100 * np.mean(differing):.1f} %",
        f"{np.mean(distances):.1f} of 255",
        f"{np.mean(ratios):.2f}x",
    ]


def main() -> None:
    """Measure, and write the section."""
    rows = [row(f"{IMAGES} made-up scenes, 375 px", scenes())]
    if len(sys.argv) > 1:
        rows.append(row(f"{IMAGES} photographs of pets with trimaps, 256 px", pets(Path(sys.argv[1]))))
    head = ["", "labels that differ", "mean difference of pixels", "squared contrast of neighbours, release / here"]
    write_section(
        "shrinking",
        "## Shrinking\n\n"
        f"`make bench-shrinking`: the {SIZE} x {SIZE} views on which trials are scored, as made here (areas averaged, "
        "through the cache; labels at pixels' centres) and as the release makes them (bilinearly from the original "
        f"image; labels at upper left corners).\n\n{table(head, rows)}",
    )


if __name__ == "__main__":
    main()
