"""examples/torchmetrics_collection.py, and `SegmentationMetrics.as_torchmetrics` as torchmetrics expects a metric."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from example_files import example

from autoseg import SegmentationMetrics

pytestmark = pytest.mark.frameworks("torchmetrics")


def maps(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return predictions and targets (2, 32, 32) with blocks of one label."""
    coarse = torch.randint(0, 3, (number, 2, 2, 8, 8), generator=torch.manual_seed(0))
    return [(pred, target) for pred, target in coarse.repeat_interleave(4, 3).repeat_interleave(4, 4)]


def test_the_example_agrees_with_torchmetrics_own_index():
    scores = example("torchmetrics_collection").main()
    assert sorted(scores) == ["val/autoseg_BF1", "val/autoseg_BIoU", "val/autoseg_mIoU", "val/jaccard"]
    assert scores["val/autoseg_mIoU"].item() == pytest.approx(scores["val/jaccard"].item(), abs=1e-6)


@pytest.mark.parametrize("per_image", [False, True])
def test_forward_scores_the_batch_and_compute_everything(per_image):
    ours = SegmentationMetrics(3, ignore_index=255, per_image=per_image)
    theirs = ours.as_torchmetrics()
    for pred, target in maps(3):
        batch = theirs(pred, target)
        assert {k: v.item() for k, v in batch.items()} == pytest.approx(ours(pred, target), abs=1e-6)
    assert {k: v.item() for k, v in theirs.compute().items()} == pytest.approx(ours.compute(), abs=1e-6)
    theirs.reset()
    assert all(score.isnan() for score in theirs.compute().values())


def test_scores_go_with_every_form_of_labels():
    (_, target), scores = maps(1)[0], torch.randn(2, 3, 32, 32)
    theirs = SegmentationMetrics(3, ignore_index=255).as_torchmetrics()
    expected = theirs(scores.argmax(1), target)
    one_hot = torch.nn.functional.one_hot(target, 3).movedim(-1, 1)
    for form in (target, target.unsqueeze(1), target.unsqueeze(1).float(), one_hot, one_hot.float()):
        assert theirs(scores, form) == expected
    volumes = SegmentationMetrics(3, ignore_index=255, volumes=True).as_torchmetrics()
    assert volumes(scores.unsqueeze(2), target[:, None, None]) == expected


def test_metrics_that_need_the_same_counts_share_them():
    theirs = SegmentationMetrics(3, ignore_index=255).as_torchmetrics()
    theirs.update(*maps(1)[0])
    groups = sorted(sorted(group) for group in theirs.compute_groups.values())
    assert groups == [["BF1"], ["BIoU"], ["FWIoU", "gAcc", "mAcc", "mIoU"]]


def test_metrics_of_different_settings_never_share_counts_that_were_equal_once():
    from torchmetrics import MetricCollection

    strict, loose = (SegmentationMetrics(3, ignore_index=255, metrics=["BF1"], tolerance=t) for t in (0, 5))
    both = MetricCollection({"strict": strict.as_torchmetrics(), "loose": loose.as_torchmetrics()})
    for number, (pred, target) in enumerate(maps(3)):
        pred = target if number == 0 else pred  # the first batch is perfect for both
        both.update(pred, target)
        strict.update(pred, target)
        loose.update(pred, target)
    assert both.compute()["strict_BF1"].item() == pytest.approx(strict.compute()["BF1"], abs=1e-6)
    assert both.compute()["loose_BF1"].item() == pytest.approx(loose.compute()["BF1"], abs=1e-6)
    assert strict.compute()["BF1"] < loose.compute()["BF1"]


def test_a_collection_is_cloned_pickled_and_not_rounded():
    theirs = SegmentationMetrics(3, ignore_index=255).as_torchmetrics()
    pred, target = maps(1)[0]
    theirs.update(pred, target)
    expected = {k: v.item() for k, v in theirs.compute().items()}
    for other in (theirs.clone(), copy.deepcopy(theirs), pickle.loads(pickle.dumps(theirs)), theirs.half()):
        assert {k: v.item() for k, v in other.compute().items()} == pytest.approx(expected)


def test_torchmetrics_wrappers_take_them():
    from torchmetrics.wrappers import MetricTracker

    tracker = MetricTracker(SegmentationMetrics(3, ignore_index=255).as_torchmetrics())
    for pred, target in maps(2):
        tracker.increment()
        tracker.update(pred, target)
    best, steps = tracker.best_metric(return_step=True)
    assert best["mIoU"] == max(float(x) for x in tracker.compute_all()["mIoU"])
    assert steps["mIoU"] in (0, 1)
