"""Forms of one task give one number: binary, multilabel, two classes; slices and volumes; labels and one-hot maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from autoseg import SegmentationMetrics, build_loss
from autoseg.losses.names import HAND_MADE
from autoseg.metrics.formula import METRICS

LOSSES = [*(f"published:{name}" for name in METRICS), "naive:mIoU", "naive:BF1", *HAND_MADE]
seeds = st.integers(0, 2**32 - 1)
settings_ = settings(max_examples=12)


def blocks(generator: torch.Generator, classes: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return labels in blocks of 3 pixels, so that there are boundaries."""
    small = torch.randint(0, classes, [-(-size // 3) for size in shape[1:]], generator=generator)
    for axis in range(small.ndim):
        small = small.repeat_interleave(3, axis)
    return torch.stack([small.roll(k, -1) for k in range(shape[0])])[:, *(slice(size) for size in shape[1:])]


def drawn(seed: int, classes: int, shape: tuple[int, ...], void: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = blocks(generator, classes, shape)
    channels = 1 if classes == 2 else classes
    logits = 3 * torch.randn(shape[0], channels, *shape[1:], generator=generator, dtype=torch.float64)
    if void:
        target = torch.where(torch.rand(target.shape, generator=generator) < 0.1, 255, target)
    return logits, target


def one_hot(labels: torch.Tensor, classes: int) -> torch.Tensor:
    return (labels.unsqueeze(1) == torch.arange(classes).view(1, -1, *(1 for _ in labels.shape[1:]))).long()


def loss_of(name: str, mode: str | None = None):
    counts = {"class_counts": [3, 5, 7] if mode is None else [3, 5]} if name.startswith("wce") else {}
    return build_loss(name, ignore_index=255, mode=mode, **counts)


def value_and_gradient(loss, logits, target):
    x = logits.detach().clone().requires_grad_()
    value = loss(x, target)
    value.backward()
    return value.detach(), x.grad


def scores(pred, target, classes, **options):
    metrics = SegmentationMetrics(classes, ignore_index=255, tolerance=1, boundary_radius=1, **options)
    metrics.update(pred, target)
    return metrics.compute()


# ---- Losses ----------------------------------------------------------------------------------------------------------


@settings_
@given(seed=seeds, void=st.booleans(), height=st.integers(1, 9), width=st.integers(1, 9))
@pytest.mark.parametrize("name", LOSSES)
def test_binary_multilabel_of_one_class_and_two_classes_are_one_loss(name, seed, void, height, width):
    z, target = drawn(seed, 2, (2, height, width), void)
    binary = value_and_gradient(loss_of(name, "binary"), z, target)
    multilabel = value_and_gradient(loss_of(name, "multilabel"), z, target.unsqueeze(1))
    two, by_two = value_and_gradient(loss_of(name, "multiclass"), torch.cat([torch.zeros_like(z), z], 1), target)
    torch.testing.assert_close(multilabel, binary, rtol=0, atol=1e-6)
    torch.testing.assert_close((two, by_two[:, 1:]), binary, rtol=0, atol=1e-6)


@settings_
@given(seed=seeds, void=st.booleans(), height=st.integers(1, 9), width=st.integers(1, 9))
@pytest.mark.parametrize("name", LOSSES)
def test_a_volume_of_depth_1_and_one_hot_maps_give_the_loss_of_labels(name, seed, void, height, width):
    logits, target = drawn(seed, 3, (2, height, width), void)
    expected = value_and_gradient(loss_of(name), logits, target)
    value, gradient = value_and_gradient(loss_of(name), logits.unsqueeze(2), target.unsqueeze(1))
    torch.testing.assert_close((value, gradient.squeeze(2)), expected, rtol=0, atol=1e-6)
    for maps in (one_hot(target, 3), one_hot(target, 3).double()):
        torch.testing.assert_close(value_and_gradient(loss_of(name), logits, maps), expected, rtol=0, atol=1e-6)


# ---- Metrics ---------------------------------------------------------------------------------------------------------


@given(
    seed=seeds, void=st.booleans(), shape=st.sampled_from([(2, 1, 5), (2, 7, 8), (1, 3, 5, 4)]), per_image=st.booleans()
)
def test_binary_multilabel_of_one_class_and_two_classes_are_one_score(seed, void, shape, per_image):
    z, target = drawn(seed, 2, shape, void)
    options = {"volumes": len(shape) == 4, "per_image": per_image}
    two = scores((z > 0)[:, 0].long(), target, 2, **options)
    for mode, classes in (("binary", 1), ("binary", 2), ("multiclass", 2), ("multilabel", 1)):
        channel = target.unsqueeze(1)
        assert scores(z > 0, channel, classes, mode=mode, **options) == pytest.approx(two, nan_ok=True), mode
    assert scores((z > 0).float(), target.double(), 2, **options) == pytest.approx(two, nan_ok=True)


@given(seed=seeds, void=st.booleans(), weights=st.sampled_from([None, [1, 0, 2]]))
def test_a_multilabel_score_is_the_mean_of_its_channels(seed, void, weights):
    generator = torch.Generator().manual_seed(seed)
    pred, target = (torch.stack([blocks(generator, 2, (2, 7, 8)) for _ in range(3)], 1) for _ in range(2))
    if void:
        target[:, :, :2] = 255
    found = scores(pred, target, 3, mode="multilabel", class_weights=weights)
    channels = [scores(pred[:, c], target[:, c], 2) for c in range(3)]
    for name in METRICS:
        each = np.array([channel[name] for channel in channels])
        measured = np.where(np.isnan(each), 0, weights or 1)
        mean = np.nansum(each * measured) / measured.sum() if measured.sum() else np.nan
        assert found[name] == pytest.approx(mean, nan_ok=True), name


@given(seed=seeds, void=st.booleans(), mask_void=st.booleans(), drop=st.booleans())
def test_labels_one_hot_maps_and_volumes_of_depth_1_have_one_score(seed, void, mask_void, drop):
    logits, target = drawn(seed, 3, (2, 7, 8), void)
    pred, options = logits.argmax(1), {"mask_void": mask_void, "drop_background": drop}
    labels = scores(pred, target, 3, **options)
    assert scores(one_hot(pred, 3), one_hot(target, 3).float(), 3, **options) == pytest.approx(labels, nan_ok=True)
    assert scores(one_hot(pred, 3).numpy(), target, 3, **options) == pytest.approx(labels, nan_ok=True)
    deep = scores(pred.unsqueeze(1), target.unsqueeze(1), 3, volumes=True, **options)
    assert deep == pytest.approx(labels, nan_ok=True)


def test_maps_that_are_not_one_hot_are_refused_with_the_call_that_works():
    target = torch.randint(0, 3, (2, 8, 8))
    for pred in (torch.randn(2, 3, 8, 8), torch.zeros(2, 3, 8, 8), torch.ones(2, 3, 8, 8).int()):
        with refused(where="pred", cure="pred.argmax(1)"):
            SegmentationMetrics(3).update(pred, target)
    with refused(where="pred", cure="pred > 0"):
        SegmentationMetrics(3, mode="multilabel").update(torch.randn(2, 3, 8, 8), one_hot(target, 3))
    with refused(where="target", expected="(N, 3, H, W)"):
        SegmentationMetrics(3, mode="multilabel").update(one_hot(target, 3), target)
    with refused(where="target", cure="ignore_index=255"):
        SegmentationMetrics(3, mode="multilabel").update(one_hot(target, 3), one_hot(target, 3) * 255)


@pytest.mark.parametrize(
    ("classes", "mode", "where"), [(3, "binary", "num_classes"), (1, "multiclass", "num_classes"), (2, "smp", "mode")]
)
def test_metrics_refuse_a_mode_that_does_not_fit(classes, mode, where):
    with refused(where=where):
        SegmentationMetrics(classes, mode=mode)


def test_multilabel_metrics_are_merged_and_have_scores_of_both_classes_of_each_channel():
    generator = torch.Generator().manual_seed(0)
    pred, target = (torch.stack([blocks(generator, 2, (2, 9, 9)) for _ in range(3)], 1) for _ in range(2))
    whole, *parts = (SegmentationMetrics(3, mode="multilabel") for _ in range(3))
    whole.update(pred, target)
    for part, some in zip(parts, (slice(1), slice(1, 2)), strict=True):
        part.update(pred[some], target[some])
    parts[0].merge(parts[1])
    assert parts[0].compute() == pytest.approx(whole.compute())
    foreground = [
        ((pred & target)[:, c].sum() / (pred | target)[:, c].sum()).item() for c in range(3)
    ]  # as torchmetrics' MultilabelJaccardIndex has it
    np.testing.assert_allclose(whole.per_class()["mIoU"][:, 1], foreground, rtol=1e-6)
    assert "mode='multilabel'" in repr(whole)
    with refused(expected="multilabel"):
        whole.merge(SegmentationMetrics(3))
