"""Label maps that look like segmentations: smooth blobs, a noisy prediction of them, a void stripe."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter, zoom


def blobs(num_classes: int, height: int, width: int, seed: int, scale: int = 8) -> np.ndarray:
    """Return a uint8 label map of smooth regions, each `scale` times coarser than a pixel or more."""
    rng = np.random.default_rng(seed)
    coarse = (num_classes, -(-height // scale), -(-width // scale))
    fields = gaussian_filter(rng.standard_normal(coarse), (0, 3, 3))
    return zoom(fields, (1, scale, scale), order=1).argmax(0)[:height, :width].astype(np.uint8)


def scene(num_classes: int, height: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return (prediction, target), uint8: the prediction is another scene in places; a void stripe is in the target."""
    target = blobs(num_classes, height, width, seed)
    wrong = blobs(2, height, width, seed + 1).astype(bool)
    pred = np.where(wrong, blobs(num_classes, height, width, seed + 2), np.roll(target, 2, axis=1)).astype(np.uint8)
    target[: height // 16] = 255
    return pred, target
