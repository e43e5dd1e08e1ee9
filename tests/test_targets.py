"""What targets mean: which label is void, which forms are taken, and that all forms give the same numbers."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from autoseg import SegmentationMetrics, build_loss
from autoseg.cli import main
from autoseg.errors import InputError
from autoseg.losses.labels import LabelWatch
from benchmarks.counting import as_on_a_gpu

MASK = torch.zeros(2, 8, 8, dtype=torch.long)
MASK[:, 2:6, 3:7] = 255


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The exported file of the mIoU loss."""
    path = tmp_path_factory.mktemp("exported") / "exported.py"
    assert main(["loss", "export", "mIoU", "--out", str(path)]) == 0
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("exported", path))
    module.__spec__.loader.exec_module(module)
    return module


# ---- Is 255 void? --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["published:mIoU", "naive:BF1", "ce", "ce + published:mIoU"])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_mask_of_0_and_255_is_refused_unless_void_is_said(name, channels):
    logits = torch.zeros(2, channels, 8, 8)
    with pytest.raises(InputError) as error:
        build_loss(name)(logits, MASK)
    assert "(target > 0).long()" in error.value.cure
    assert build_loss(name, ignore_index=255)(logits, MASK).isfinite()
    assert build_loss(name)(logits, (MASK > 0).long()).isfinite()
    assert build_loss(name)(logits, MASK * 0).isfinite()  # no void: an image without foreground


@pytest.mark.parametrize("name", ["published:mIoU", "published:BF1", "ce"])
def test_on_a_gpu_a_mask_of_0_and_255_makes_the_loss_nan_and_the_watch_says_why(name):
    logits = torch.zeros(2, 1, 8, 8)
    with as_on_a_gpu():
        assert build_loss(name)(logits, MASK).isnan()
        assert build_loss(name, ignore_index=255)(logits, MASK).isfinite()
        assert build_loss(name)(logits, (MASK > 0).long()).isfinite()
    watch = LabelWatch(2)
    watch.see(MASK)
    with pytest.raises(InputError, match="foreground"):
        watch.check()


def test_metrics_refuse_a_mask_of_0_and_255_unless_void_is_said():
    metrics = SegmentationMetrics(2)
    with pytest.raises(InputError, match="foreground"):
        metrics.update(np.zeros((2, 8, 8), int), MASK)
    assert metrics.compute()["mIoU"] == 0
    SegmentationMetrics(2, ignore_index=255).update(np.zeros((2, 8, 8), int), MASK)
    metrics.update(MASK > 0, MASK > 0)
    assert metrics.compute()["mIoU"] == 1


def test_255_is_not_taken_for_void_where_it_is_a_class(exported):
    logits, target = torch.zeros(1, 300, 2, 2), torch.full((1, 2, 2), 255)
    for call in (lambda: SegmentationMetrics(300), lambda: build_loss("ce")(logits, target)):
        with pytest.raises(InputError) as error:
            call()
        assert error.value.where == "ignore_index"
    with pytest.raises(ValueError, match="say ignore_index"):
        exported.Loss()(logits, target)
    metrics = SegmentationMetrics(300, ignore_index=None, metrics=["gAcc"])
    metrics.update(target, target)
    assert metrics.compute() == {"gAcc": 1}
    assert build_loss("ce", ignore_index=None)(logits, target) == pytest.approx(np.log(300))


def test_the_exported_file_refuses_a_mask_of_0_and_255_and_wrong_labels(exported, monkeypatch):
    logits = torch.zeros(2, 1, 8, 8)
    for loss in (exported.Loss(), exported.Loss(ignore_index=None)):
        with pytest.raises(ValueError, match=r"\(target > 0\).long\(\)"):
            loss(logits, MASK)
    assert exported.Loss(ignore_index=255)(logits, MASK).isfinite()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # where values may not be looked at
    assert exported.Loss()(logits, MASK).isnan()
    assert exported.Loss()(logits, (MASK > 0).long()).isfinite()
