"""Augmentation, with albumentations: scale, crop, flip, photometric distortion; and the fixed view for scoring.

Scaling and cropping are one step: the window of the crop is cut out first, and only the window is resized. A mask's
pixel takes the label under its centre; labels are never interpolated. An image that does not fill the crop is padded
last, right and below, by `normalize` with exact zeros and by `pad` with void.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

# albumentations looks for newer releases on the internet when it is imported; compute nodes have none.
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
import albumentations as A  # type: ignore[import-untyped]
import cv2

from autoseg.data.cache import resize_mask
from autoseg.data.model import LONGEST, VOID
from autoseg.data.reading import Array

# A crop is too small to be divided among threads, and worker processes use the cores already.
cv2.setNumThreads(0)

MEAN = (0.485, 0.456, 0.406)  # ImageNet's, of channels in [0, 1]
STD = (0.229, 0.224, 0.225)
_LEVELS = np.arange(256, dtype=np.float32)
_NORMALIZED = [((_LEVELS / 255 - mean) / std).astype(np.float32) for mean, std in zip(MEAN, STD, strict=True)]


class ScaledCrop(A.DualTransform):
    """Resize so that the short side is about `short_side` times U(scale), and cut a random window of `crop` from it.

    Where the image is longer than four times its short side, the long side is brought to four times `short_side`
    instead, as in the release, and as `WholeView` does it when the trained network is scored.

    A window in which one class has more than `max_share` of the pixels that are not void is drawn again, up to `tries`
    times. An image that does not fill the crop gives a smaller one.
    """

    def __init__(
        self,
        short_side: int,
        crop: tuple[int, int],
        scale: tuple[float, float] = (0.5, 2.0),
        max_share: float = 0.75,
        tries: int = 10,
        p: float = 1.0,  # albumentations saves it with every step
    ) -> None:
        super().__init__(p=p)
        self.short_side, self.crop, self.scale, self.max_share, self.tries = short_side, crop, scale, max_share, tries

    def get_params_dependent_on_data(self, params: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        """Draw the scale and the window."""
        mask = data["mask"]
        height, width = mask.shape
        short_side = max(min(height, width), max(height, width) / LONGEST)
        zoom = self.py_random.uniform(*self.scale) * self.short_side / short_side
        # The window in the image's own pixels, and its size after resizing.
        window = [min(side, max(1, round(want / zoom))) for side, want in zip(mask.shape, self.crop, strict=True)]
        size = [min(want, max(1, round(side * zoom))) for side, want in zip(window, self.crop, strict=True)]
        for _ in range(self.tries):
            top, left = (self.py_random.randint(0, side - part) for side, part in zip(mask.shape, window, strict=True))
            place = np.s_[top : top + window[0], left : left + window[1]]
            labels = resize_mask(mask[place], *size)
            if largest_share(labels) < self.max_share:
                break
        return {"place": place, "labels": labels}

    def apply(self, img: Array, place: Any, labels: Array, **params: Any) -> Array:
        """Resize the window of the image."""
        return cv2.resize(img[place], labels.shape[::-1], interpolation=cv2.INTER_LINEAR).astype(np.uint8, copy=False)

    def apply_to_mask(self, mask: Array, labels: Array, **params: Any) -> Array:
        """Return the window of the mask, which was resized when it was chosen."""
        return labels


class PhotometricDistortion(A.ImageOnlyTransform):
    """SSD's distortion as mmseg applies it: brightness, contrast, saturation, hue, each with probability 1/2.

    Contrast comes before saturation and hue or after them, with equal probability.
    """

    def __init__(
        self,
        brightness: float = 32,
        contrast: float = 0.5,
        saturation: float = 0.5,
        hue: float = 18,
        p: float = 1.0,
    ) -> None:
        super().__init__(p=p)
        self.brightness, self.contrast, self.saturation, self.hue = brightness, contrast, saturation, hue

    def get_params(self) -> dict[str, Any]:
        """Draw which of them are changed, and by how much."""
        draw = self.py_random

        def maybe(width: float) -> float:
            return draw.uniform(-width, width) if draw.random() < 0.5 else 0.0

        return {
            "shift": maybe(self.brightness),
            "gain": 1 + maybe(self.contrast),
            "gain_first": draw.random() < 0.5,
            "saturation": 1 + maybe(self.saturation),
            "hue": round(maybe(self.hue)),
        }

    def apply(
        self, img: np.ndarray, shift: float, gain: float, gain_first: bool, saturation: float, hue: int, **params: Any
    ) -> np.ndarray:
        """Change the image; every step is a table of 256 values."""
        if shift or (gain_first and gain != 1):
            shifted = np.minimum(np.maximum(_LEVELS + shift, 0), 255)
            img = cv2.LUT(img, _table(shifted * gain if gain_first else shifted))
        if saturation != 1 or hue:
            hsv = cv2.cvtColor(img, cv2.COLOR_RGB2HSV)
            table = np.empty((1, 256, 3), np.uint8)
            table[0, :, 0] = (_LEVELS + hue) % 180
            table[0, :, 1] = _table(_LEVELS * saturation)
            table[0, :, 2] = _LEVELS
            img = cv2.cvtColor(cv2.LUT(hsv, table), cv2.COLOR_HSV2RGB)
        return img if gain_first or gain == 1 else cv2.LUT(img, _table(_LEVELS * gain))


class Augmenter:
    """An albumentations pipeline as a function of (image, mask, seed) alone; its crops are no larger than `crop`."""

    def __init__(self, compose: A.Compose, crop: tuple[int, int]) -> None:
        self.compose, self.crop = compose, crop

    def __call__(self, image: Array, mask: Array, seed: int) -> tuple[Array, Array]:
        """Return a uint8 crop of image and mask, not padded, a function of the arguments alone."""
        draw = random.Random(seed)
        self.compose.set_random_state(np.random.Generator(np.random.SFC64(seed)), draw)
        done = self.compose(image=image, mask=mask)
        return done["image"], done["mask"]


class Augmentation(Augmenter):
    """The augmentation of a training sample: `ScaledCrop` with its options, flip, photometric distortion.

    The paper's proxy task is `Augmentation(short_side=128, crop=(128, 128))` on the cache, the release's retraining on
    VOC `Augmentation(short_side=512, crop=(512, 512))` on the original files.
    """

    def __init__(
        self,
        short_side: int,
        crop: tuple[int, int],
        *,
        flip: float = 0.5,
        photometric: bool = True,
        **cropping: Any,
    ) -> None:
        steps: list[A.BasicTransform] = [ScaledCrop(short_side, crop, **cropping), A.HorizontalFlip(p=flip)]
        if photometric:
            steps.append(PhotometricDistortion())
        super().__init__(A.Compose(steps, is_check_shapes=False), crop)  # `prepare` has checked every pair


class CenterView:
    """The view that is scored in the proxy task: short side `size`, centre crop `size` x `size`, no randomness."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Array, mask: Array) -> tuple[Array, Array]:
        """Return a uint8 crop of image and mask."""
        side = min(mask.shape)
        top, left = ((length - side) // 2 for length in mask.shape)
        place = np.s_[top : top + side, left : left + side]
        # Averaging areas is right for shrinking; OpenCV falls back to linear where a small image is enlarged.
        small = cv2.resize(image[place], (self.size, self.size), interpolation=cv2.INTER_AREA)
        return small.astype(np.uint8, copy=False), resize_mask(mask[place], self.size, self.size)


class WholeView:
    """A whole image as it is scored after a retraining: resized to fit `scale`, its aspect kept; the mask as it is.

    Args:
        scale: the greatest long side and the greatest short side, pixels; the image is as large as both allow, and so
            a small one grows. The release's is (2048, 512).

    >>> WholeView((2048, 512)).size(375, 500), WholeView((2048, 512)).size(500, 3000)
    ((512, 683), (341, 2048))
    """

    def __init__(self, scale: tuple[int, int]) -> None:
        self.scale = scale

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of an image when it is scored."""
        zoom = min(self.scale[0] / max(height, width), self.scale[1] / min(height, width))
        return max(1, int(height * zoom + 0.5)), max(1, int(width * zoom + 0.5))

    def __call__(self, image: Array, mask: Array) -> tuple[Array, Array]:
        """Return the image, resized, and the mask."""
        height, width = self.size(*mask.shape)
        resized: Array = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)  # type: ignore[assignment]
        return resized, mask


def largest_share(labels: Array) -> float:
    """Return the share of the most frequent class among the pixels that are not void (1 if there are none).

    >>> largest_share(np.array([[0, 0, 3, 255]], np.uint8))
    0.6666666666666666
    """
    counts = cv2.calcHist([labels], [0], None, [VOID], [0, VOID])  # twice as fast as bincount; void falls outside
    total = float(counts.sum())
    return float(counts.max()) / total if total else 1.0


def normalize(images: Sequence[Array], size: tuple[int, int]) -> np.ndarray:
    """Return images (H, W, 3) as float32 (N, 3, *size), ImageNet's mean and deviation removed, padded with zeros.

    >>> normalize([np.full((1, 1, 3), 255, np.uint8)], (1, 2)).round(1).tolist()
    [[[[2.200000047683716, 0.0]], [[2.4000000953674316, 0.0]], [[2.5999999046325684, 0.0]]]]
    """
    batch = np.zeros((len(images), 3, *size), np.float32)
    for image, planes in zip(images, batch, strict=True):
        height, width = image.shape[:2]
        for channel, plane, table in zip(cv2.split(image), planes, _NORMALIZED, strict=True):
            cv2.LUT(channel, table, dst=plane[:height, :width])  # straight into the batch: nothing is stacked later
    return batch


def pad(masks: Sequence[Array], size: tuple[int, int]) -> Array:
    """Return masks (H, W) as (N, *size), padded with void.

    >>> pad([np.zeros((1, 1), np.uint8)], (1, 2)).tolist()
    [[[0, 255]]]
    """
    batch = np.full((len(masks), *size), VOID, np.uint8)
    for mask, labels in zip(masks, batch, strict=True):
        labels[: mask.shape[0], : mask.shape[1]] = mask
    return batch


def _table(levels: np.ndarray) -> Array:
    return np.minimum(np.rint(levels), 255).astype(np.uint8)
