"""Speed beside torchmetrics, measured in one run; `make bench-peers` has the figures."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.frameworks("torchmetrics")


def test_miou_is_counted_many_times_faster_than_by_torchmetrics():
    from benchmarks.peers import multiclass

    best = max(
        (lambda found: found["torchmetrics"] / found["mIoU"])(multiclass(21, 256, 4, rounds=5)) for _ in range(3)
    )
    assert best > 5  # 10 and more on a quiet machine


def test_miou_of_labels_that_overlap_is_counted_many_times_faster_than_by_torchmetrics():
    from benchmarks.peers import multilabel

    best = max((lambda found: found["torchmetrics"] / found["mIoU"])(multilabel(5, 128, 4, rounds=5)) for _ in range(3))
    assert best > 3
