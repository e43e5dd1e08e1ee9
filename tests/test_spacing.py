"""Distances between pixels that are not the same along all axes, in metrics and losses with boundaries."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from test_conversions import blocks, drawn, value_and_gradient

from autoseg import SegmentationMetrics, SurrogateLoss, build_loss
from autoseg.metrics.formula import METRICS, get
from benchmarks.counting import as_on_a_gpu

SPACINGS = [None, (2, 0.5), (3, 1, 1), (1, 0.5, 2), (0.3, 0.3, 0.3)]


def stripes(axis: int, size: int = 12) -> torch.Tensor:
    """Return an image with a border between its classes across an axis."""
    halves = torch.arange(size) // (size // 2)
    return (halves.view(1, size, 1) if axis == 0 else halves.view(1, 1, size)).expand(1, size, size)


@given(seed=st.integers(0, 2**32 - 1), spacing=st.sampled_from(SPACINGS), mask_void=st.booleans(), drop=st.booleans())
def test_counts_of_volumes_equal_the_formulas(seed, spacing, mask_void, drop):
    generator = torch.Generator().manual_seed(seed)
    pred, target = (blocks(generator, 3, (1, 5, 7, 4)) for _ in range(2))
    target[:, :1, :4] = 255
    conventions = {"tolerance": 2, "boundary_radius": 1, "mask_void": mask_void, "drop_background": drop}
    metrics = SegmentationMetrics(3, volumes=True, ignore_index=255, spacing=spacing, **conventions)
    metrics.update(pred, target)
    for name, score in metrics.compute().items():
        sums = get(name).count(pred, target, 3, 255, metrics.conventions)
        expected = get(name).score(sums, metrics.conventions, empty=float("nan"))
        assert score == pytest.approx(expected.item(), abs=1e-12, nan_ok=True), name


@pytest.mark.parametrize("axis", [0, 1])
def test_a_boundary_two_pixels_off_is_near_or_far_as_the_spacing_of_its_axis_says(axis):
    target = stripes(axis)
    pred = target.roll(2, axis + 1)
    pred.select(axis + 1, 0).zero_()
    pred.select(axis + 1, 1).zero_()
    far = [2 if k == axis else 1 for k in range(2)]
    for spacing, expected in ((None, 1.0), ((1, 1), 1.0), (far, 0.0), (far[::-1], 1.0), ([x / 4 for x in far], 1.0)):
        metrics = SegmentationMetrics(2, metrics=["BF1"], tolerance=2, spacing=spacing, drop_background=False)
        metrics.update(pred, target)
        assert metrics.compute()["BF1"] == expected, spacing


@pytest.mark.parametrize("axis", [0, 1])
def test_the_band_of_biou_is_as_wide_as_the_spacing_of_its_axis_says(axis):
    target = stripes(axis)
    for spacing in (None, (1, 2), (2, 1)):
        metrics = SegmentationMetrics(2, boundary_radius=1, spacing=spacing, drop_background=False)
        metrics.update(target, target)
        rows = 2 if spacing and spacing[axis] == 2 else 4  # the two rows of edges alone, or one more on each side
        assert metrics.counts["boundary_confusion"].sum() == 12 * rows, spacing


@pytest.mark.parametrize("name", ["BIoU", "BF1"])
def test_one_spacing_for_all_axes_is_another_unit(name):
    for shape in ((2, 9, 8), (1, 4, 6, 5)):
        logits, target = drawn(0, 3, shape, void=True)
        pixels = SurrogateLoss.published(name, tolerance=2, boundary_radius=2)
        expected = value_and_gradient(pixels, logits, target)
        spacing = (1.5,) * (len(shape) - 1)
        loss = SurrogateLoss.published(name, tolerance=3, boundary_radius=3, spacing=spacing)
        torch.testing.assert_close(value_and_gradient(loss, logits, target), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["BIoU", "BF1"])
@pytest.mark.parametrize("shape", [(2, 9, 12), (1, 4, 6, 9)])
def test_a_sure_prediction_has_the_loss_of_its_score_with_every_spacing(name, shape):
    generator = torch.Generator().manual_seed(1)
    pred, target = (blocks(generator, 3, shape) for _ in range(2))
    logits = 60.0 * (pred.unsqueeze(1) == torch.arange(3).view(1, 3, *(1 for _ in shape[1:]))).double()
    losses = set()
    for spacing in (None, (3, 2, 1)[1 - len(shape) :], (1, 1, 2)[1 - len(shape) :]):
        conventions = {"tolerance": 2, "boundary_radius": 2, "drop_background": False}
        loss = SurrogateLoss(name, spacing=spacing, absent="skip", **conventions)
        metrics = SegmentationMetrics(3, spacing=spacing, volumes=len(shape) == 4, metrics=[name], **conventions)
        metrics.update(pred, target)
        value, gradient = value_and_gradient(loss, logits, target)
        assert value.item() == pytest.approx(1 - metrics.compute()[name], abs=1e-6)
        assert gradient.isfinite().all()
        with as_on_a_gpu(triton=False):
            torch.testing.assert_close(loss(logits, target), value)
        losses.add(round(value.item(), 6))
    assert len(losses) > 1


def test_metrics_without_boundaries_do_not_change_with_the_spacing():
    logits, target = drawn(0, 3, (2, 9, 8), void=True)
    for name in (f"published:{metric}" for metric in METRICS if metric not in ("BIoU", "BF1")):
        plain = value_and_gradient(build_loss(name, ignore_index=255), logits, target)
        spaced = value_and_gradient(build_loss(name, ignore_index=255, spacing=(3, 1)), logits, target)
        torch.testing.assert_close(spaced, plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("dpce", (2, 9, 12)), ("dpce", (1, 4, 6, 7)), ("boundary", (2, 9, 12)), ("boundary", (1, 4, 6, 7))],
)
def test_distances_of_losses_follow_the_spacing_on_every_device(name, shape):
    logits, target = drawn(3, 3, shape, void=False)
    values = []
    for spacing in (None, (1, 1, 1), (3, 1), (1, 3), (2, 1, 1)):
        loss = build_loss(name, spacing=spacing)
        values.append(loss(logits, target).item())
        with as_on_a_gpu(triton=False):
            assert loss(logits, target).item() == pytest.approx(values[-1], abs=1e-5)
    assert values[0] == values[1]
    assert len(set(values)) == (4 if len(shape) == 4 else 3)  # the depth of a voxel says nothing of a slice


@pytest.mark.parametrize("spacing", [0, (1, -1), (1, 0), "mm", (1, 2, 3, 4), (), (1, float("nan"))])
def test_what_is_no_spacing_is_refused(spacing):
    for call in (SegmentationMetrics, SurrogateLoss.published, build_loss):
        with refused(where="spacing", expected="(D, H, W)"):
            call({SegmentationMetrics: 3, build_loss: "dpce"}.get(call, "BF1"), spacing=spacing)


def test_a_spacing_of_slices_is_one_of_volumes_and_one_of_volumes_is_one_of_slices():
    logits, target = drawn(0, 3, (1, 4, 6, 5), void=False)
    deep, flat = (SurrogateLoss.published("BF1", spacing=spacing) for spacing in ((1, 3, 2), (3, 2)))
    torch.testing.assert_close(deep(logits, target), flat(logits, target), rtol=0, atol=0)
    torch.testing.assert_close(deep(logits[:, :, 0], target[:, 0]), flat(logits[:, :, 0], target[:, 0]), rtol=0, atol=0)
    even = SurrogateLoss.published("BF1", tolerance=2, spacing=(2, 2))
    uneven = SurrogateLoss.published("BF1", tolerance=2, spacing=(1, 2, 2))
    torch.testing.assert_close(even(logits, target), uneven(logits, target), rtol=0, atol=0)
    assert "spacing=(3.0, 2.0)" in repr(flat)
