"""An augmentation of a user's own, as docs/training.md says it may be."""

import albumentations as A

from autoseg.data.augment import ScaledCrop


def make() -> A.Compose:
    return A.Compose(
        [
            ScaledCrop(32, (32, 32)),
            A.OneOf([A.HorizontalFlip(), A.VerticalFlip()], p=0.7),
            A.Affine(rotate=(-20, 20), fill_mask=255),
            A.RandomBrightnessContrast(),
        ]
    )
