"""`make bench-metrics`: the six metrics against plain torch and against a confusion matrix alone, on one thread."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from autoseg.metrics.formula import METRICS
from autoseg.metrics.more import MORE
from autoseg.metrics.segmentation import SegmentationMetrics
from benchmarks.plain import six_metrics
from benchmarks.scenes import scene
from benchmarks.shared import interleave, table, write_section


def bare_confusion(pred: np.ndarray, target: np.ndarray, num_classes: int) -> np.ndarray:
    """Count label pairs the usual way: mask void, one `numpy.bincount`."""
    valid = target < num_classes
    codes = num_classes * target[valid].astype(np.int64) + pred[valid]
    return np.bincount(codes, minlength=num_classes**2).reshape(num_classes, num_classes)


def measure(num_classes: int, size: int, rounds: int, plain_rounds: int) -> dict[str, float]:
    """Return median seconds for one image: ours, ours without boundaries, bare confusion, plain torch."""
    pred, target = scene(num_classes, size, size)
    ours = SegmentationMetrics(num_classes)
    regions = SegmentationMetrics(num_classes, metrics=["mIoU", "FWIoU", "mAcc", "gAcc"])
    pred_t, target_t = torch.from_numpy(pred)[None].long(), torch.from_numpy(target)[None].long()
    ours.update(pred, target)
    expected = six_metrics(pred_t, target_t, num_classes)
    np.testing.assert_allclose([ours.compute()[m] for m in METRICS], [expected[m] for m in METRICS], atol=1e-6)
    fast = interleave(
        {
            "bare": lambda: bare_confusion(pred, target, num_classes),
            "ours": lambda: ours.update(pred, target),
            "ours, int64": lambda: ours.update(pred_t, target_t),
            "regions": lambda: regions.update(pred, target),
        },
        rounds,
    )
    further = {name: SegmentationMetrics(num_classes, metrics=[name]) for name in MORE}
    both = {"six": ours, **further}
    fast |= {f"one: {name}": t for name, t in _each(both, pred, target, rounds).items()}
    slow = interleave({"plain": lambda: six_metrics(pred_t, target_t, num_classes)}, plain_rounds)
    return fast | slow


def _each(
    counted: dict[str, SegmentationMetrics], pred: np.ndarray, target: np.ndarray, rounds: int
) -> dict[str, float]:
    return interleave({name: partial(m.update, pred, target) for name, m in counted.items()}, rounds)


def main() -> None:
    torch.set_num_threads(1)
    main_case = measure(21, 512, rounds=50, plain_rounds=5)
    ours, bare = main_case["ours"], main_case["bare"]
    rows = [
        ["plain torch (`benchmarks/plain.py`)", f"{main_case['plain'] * 1e3:.0f}", f"{main_case['plain'] / ours:.0f}x"],
        ["autoseg, all six", f"{ours * 1e3:.2f}", "1"],
        ["autoseg, all six, from int64 torch tensors", f"{main_case['ours, int64'] * 1e3:.2f}", ""],
        ["autoseg, without BIoU and BF1", f"{main_case['regions'] * 1e3:.2f}", ""],
        ["a confusion matrix alone (`numpy.bincount`)", f"{bare * 1e3:.2f}", f"1/{ours / bare:.1f}"],
    ]
    growth = []
    for num_classes, size in ((2, 512), (8, 512), (21, 128), (21, 256), (21, 512), (21, 1024), (64, 512), (150, 512)):
        case = measure(num_classes, size, rounds=15, plain_rounds=1)
        growth.append(
            [num_classes, f"{size} x {size}", f"{case['ours'] * 1e3:.2f}", f"{case['ours'] / case['bare']:.1f}"]
        )
    six = main_case["one: six"]
    singles = {name: main_case[f"one: {name}"] for name in MORE}
    further = [[name, f"{t * 1e3:.2f}", f"{t / six:.1f}"] for name, t in singles.items()]
    write_section(
        "metrics",
        "## Metrics\n\n`make bench-metrics`: one image, 21 classes, 512 x 512, blob-like labels with void, one CPU "
        f"thread, medians. All six metrics are **{main_case['plain'] / ours:.0f}x faster** than the formulas in plain "
        f"torch (same scores to 1e-6) and cost **{ours / bare:.1f}x** a bare confusion matrix.\n\n"
        + table(["", "ms", "relative"], rows)
        + "\n\nHow the cost grows:\n\n"
        + table(["classes", "pixels", "ms, all six", "x bare confusion matrix"], growth)
        + "\n\nEach of the further metrics alone, 21 classes, 512 x 512, beside all six in the same rounds; the "
        f"greatest costs **{max(singles.values()) / six:.1f}x** the six:\n\n"
        + table(["metric", "ms", "x all six"], further),
    )


if __name__ == "__main__":
    main()
