"""Augmentation: sizes, labels, void, and the limit on a single class."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoseg.data.augment import (
    MEAN,
    STD,
    Augmentation,
    CenterView,
    PhotometricDistortion,
    ScaledCrop,
    WholeView,
    largest_share,
    normalize,
    pad,
)


def labelled_picture(height, width):
    """A picture whose colours say where a pixel came from (16-pixel blocks), and a mask that says the same."""
    rows, columns = np.mgrid[:height, :width] // 16
    mask = ((rows * 7 + columns) % 20).astype(np.uint8)
    return np.repeat((mask * 12)[..., None], 3, 2), mask


@given(
    height=st.integers(1, 150),
    width=st.integers(1, 150),
    crop=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    short_side=st.integers(8, 100),
    seed=st.integers(0, 2**63),
)
def test_any_picture_gives_a_crop_of_the_right_size_with_no_new_label(height, width, crop, short_side, seed):
    image, mask = labelled_picture(height, width)
    new_image, new_mask = Augmentation(short_side, crop)(image, mask, seed)
    assert new_image.shape[:2] == new_mask.shape
    assert new_image.dtype == new_mask.dtype == np.uint8
    assert set(np.unique(new_mask)) <= {*np.unique(mask)}
    assert normalize([new_image], crop).shape == (1, 3, *crop)
    assert pad([new_mask], crop).shape == (1, *crop)


@pytest.mark.parametrize("seed", range(12))
def test_image_and_mask_move_together(seed):
    # The image says of every pixel where it came from, in ramps that survive resizing; so does the mask, in blocks.
    rows, columns = np.mgrid[:240, :240]
    image = np.dstack([rows, columns, 0 * rows]).astype(np.uint8)
    mask = (rows // 60 * 4 + columns // 60).astype(np.uint8)
    new_image, new_mask = Augmentation(96, (64, 80), photometric=False)(image, mask, seed)
    from_image = new_image[..., 0] // 60 * 4 + new_image[..., 1] // 60
    # Away from the blocks' borders, where rounding decides, the two must tell the same everywhere.
    inside = (np.abs(new_image[..., :2] % 60 - 29.5) < 25).all(2)
    assert inside.mean() > 0.5
    np.testing.assert_array_equal(new_mask[inside], from_image[inside])


@pytest.mark.parametrize("seed", range(20))
def test_padding_lies_right_and_below_is_void_and_exactly_zero_once_normalised(seed):
    image, mask = labelled_picture(40, 40)
    new_image, new_mask = Augmentation(64, (64, 64), scale=(0.5, 0.5))(image, mask, seed)  # flips and distorts
    pixels, labels = normalize([new_image], (64, 64))[0], pad([new_mask], (64, 64))[0]
    assert (labels[:32, :32] != 255).all()
    np.testing.assert_array_equal(pixels[:, :32, :32], normalize([new_image], (32, 32))[0])
    for beyond in (np.s_[32:, :], np.s_[:, 32:]):
        assert (labels[beyond] == 255).all()
        assert (pixels[:, *beyond] == 0).all()


@pytest.mark.parametrize(
    ("height", "width", "expected"), [(50, 300, (43, 256)), (300, 50, (256, 43)), (50, 200, (64, 256))]
)
def test_a_long_image_is_no_longer_than_four_short_sides_in_training_as_in_the_test(height, width, expected):
    """The release brings images to (2048, 512) at most, times the random scale, in both."""
    image, mask = labelled_picture(height, width)
    assert Augmentation(64, (400, 400), scale=(1, 1))(image, mask, 0)[1].shape == expected
    assert WholeView((256, 64)).size(height, width) == expected
    assert WholeView((256, 64)).size(1, 10000) == (1, 256)


def test_the_scale_is_spread_over_its_range():
    image = np.zeros((64, 64, 3), np.uint8)
    mask = np.zeros((64, 64), np.uint8)
    mask[::2] = 1
    sides = [Augmentation(32, (256, 256))(image, mask, seed)[1].shape[0] for seed in range(200)]
    assert min(sides) >= 16
    assert max(sides) <= 64
    assert min(sides) < 20
    assert max(sides) > 60
    assert abs(np.mean(sides) - 40) < 3


def test_no_class_fills_a_crop_where_that_can_be_avoided():
    mask = np.zeros((128, 256), np.uint8)
    mask[:, 192:] = 1  # a quarter of the picture
    mask[:, 190:192] = 255
    image = np.zeros((128, 256, 3), np.uint8)
    limited = Augmentation(128, (48, 48), scale=(1, 1))
    free = Augmentation(128, (48, 48), scale=(1, 1), max_share=1.1)
    shares = {
        name: np.mean([largest_share(augment(image, mask, seed)[1]) < 0.75 for seed in range(200)])
        for name, augment in (("limited", limited), ("free", free))
    }
    assert shares["free"] < 0.25
    assert shares["limited"] > 0.6  # ten tries


def test_a_picture_of_one_class_still_gives_a_crop():
    mask = np.zeros((50, 50), np.uint8)
    assert (Augmentation(50, (32, 32), scale=(1, 1))(np.zeros((50, 50, 3), np.uint8), mask, 0)[1] == 0).all()
    assert largest_share(np.full((3, 3), 255, np.uint8)) == 1


def test_flipping_mirrors_both():
    image, mask = labelled_picture(64, 64)
    plain = Augmentation(64, (64, 64), scale=(1, 1), flip=0, photometric=False)(image, mask, 3)
    flipped = Augmentation(64, (64, 64), scale=(1, 1), flip=1, photometric=False)(image, mask, 3)
    np.testing.assert_array_equal(flipped[0], plain[0][:, ::-1])
    np.testing.assert_array_equal(flipped[1], plain[1][:, ::-1])


def distort(image, **changes):
    none = {"shift": 0.0, "gain": 1.0, "gain_first": True, "saturation": 1.0, "hue": 0}
    return PhotometricDistortion().apply(image, **{**none, **changes})


def test_photometric_distortion_does_what_its_names_say():
    image = np.array([[[100, 150, 200], [250, 10, 30]]], np.uint8)
    np.testing.assert_array_equal(distort(image), image)
    np.testing.assert_array_equal(distort(image, shift=20.0), [[[120, 170, 220], [255, 30, 50]]])
    for first in (True, False):
        np.testing.assert_array_equal(distort(image, gain=0.5, gain_first=first), [[[50, 75, 100], [125, 5, 15]]])
    grey = distort(image, saturation=0.0)
    assert np.ptp(grey, axis=2).max() <= 1
    turned = distort(image, hue=90)[0, 0] / 255  # half a turn of OpenCV's 180
    before, after = colorsys.rgb_to_hsv(*(image[0, 0] / 255)), colorsys.rgb_to_hsv(*turned)
    assert abs((after[0] - before[0]) % 1 - 0.5) < 0.02


def test_photometric_distortion_leaves_masks_alone_and_changes_most_images():
    image, mask = labelled_picture(64, 64)
    image = np.maximum(image, 1) + np.array([10, 0, 20], np.uint8)
    plain, strong = (Augmentation(64, (64, 64), scale=(1, 1), photometric=on) for on in (False, True))
    changed = 0
    for seed in range(40):
        one, other = plain(image, mask, seed), strong(image, mask, seed)
        np.testing.assert_array_equal(one[1], other[1])
        changed += not np.array_equal(one[0], other[0])
    assert changed > 30  # 15 of 16


def test_equal_seeds_give_equal_samples_whatever_came_before():
    image, mask = labelled_picture(90, 120)
    first, second = Augmentation(64, (48, 48)), Augmentation(64, (48, 48))
    expected = [first(image, mask, seed) for seed in range(20)]
    for seed in (13, 2, 13, 19):
        for got, wanted in zip(second(image, mask, seed), expected[seed], strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert len({image.tobytes() for image, _ in expected}) == 20


def test_read_only_pictures_are_not_written_to():
    image, mask = labelled_picture(64, 64)
    image.flags.writeable = mask.flags.writeable = False
    before = image.copy()
    for seed in range(10):
        Augmentation(64, (64, 64), scale=(1, 1))(image, mask, seed)
    np.testing.assert_array_equal(image, before)


@given(height=st.integers(1, 200), width=st.integers(1, 200), size=st.integers(1, 96))
def test_the_scored_view_is_the_centre_of_the_picture(height, width, size):
    image, mask = labelled_picture(height, width)
    new_image, new_mask = CenterView(size)(image, mask)
    assert new_image.shape == (size, size, 3)
    assert new_mask.shape == (size, size)
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    centre = mask[top : top + side, left : left + side]
    spots = ((np.arange(size) + 0.5) * side / size).astype(int)
    np.testing.assert_array_equal(new_mask, centre[np.ix_(spots, spots)])


def test_normalising_removes_imagenet_s_mean_and_deviation():
    images = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), np.uint8)
    expected = ((images / 255 - MEAN) / STD).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(normalize(list(images), (5, 7)), expected, atol=1e-5)


def test_the_transforms_are_albumentations_transforms():
    import albumentations

    assert issubclass(ScaledCrop, albumentations.DualTransform)
    image, mask = labelled_picture(80, 80)
    steps = albumentations.Compose([ScaledCrop(64, (32, 32)), albumentations.VerticalFlip(p=1)], seed=1)
    assert steps(image=image, mask=mask)["mask"].shape == (32, 32)
