"""`make bench-peers`: the metrics against torchmetrics' JaccardIndex in the same run, on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torchmetrics.classification import MulticlassJaccardIndex, MultilabelJaccardIndex

from autoseg.metrics.segmentation import SegmentationMetrics
from benchmarks.scenes import scene
from benchmarks.shared import interleave, table, write_section

REGIONS = ["mIoU", "FWIoU", "mAcc", "gAcc"]
BATCHES = 4  # counted one after the other, as in a validation: the first one finds the cache as another metric left it


def batches(metrics: Any, pred: torch.Tensor, target: torch.Tensor) -> Callable[[], None]:
    """Return a call that counts some batches."""

    def call() -> None:
        for _ in range(BATCHES):
            metrics.update(pred, target)

    return call


def multiclass(classes: int, size: int, images: int, rounds: int = 7) -> dict[str, float]:
    """Return median seconds of a batch: torchmetrics' index, our mIoU alone, four metrics, and all six."""
    pairs = [scene(classes, size, size, seed) for seed in range(images)]
    pred, target = (torch.stack([torch.from_numpy(pair[k]).long() for pair in pairs]) for k in (0, 1))
    theirs = MulticlassJaccardIndex(classes, ignore_index=255)
    ours = {
        "mIoU": SegmentationMetrics(classes, ignore_index=255, metrics=["mIoU"]),
        "four": SegmentationMetrics(classes, ignore_index=255, metrics=REGIONS),
        "six": SegmentationMetrics(classes, ignore_index=255),
    }
    theirs.update(pred, target)
    ours["mIoU"].update(pred, target)
    assert abs(theirs.compute().item() - ours["mIoU"].compute()["mIoU"]) < 1e-5
    calls = {name: batches(one, pred, target) for name, one in {"torchmetrics": theirs, **ours}.items()}
    return interleave(calls, rounds, time.process_time)


def multilabel(labels: int, size: int, images: int, rounds: int = 7) -> dict[str, float]:
    """Return median seconds of a batch of maps of 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    pred, target = (torch.rand(images, labels, size, size, generator=generator) < 0.3 for _ in range(2))
    theirs = MultilabelJaccardIndex(labels, average="none")
    mine = SegmentationMetrics(labels, mode="multilabel", metrics=["mIoU"])
    theirs.update(pred.long(), target.long())
    mine.update(pred, target)
    torch.testing.assert_close(
        theirs.compute().double(), torch.from_numpy(mine.per_class()["mIoU"][:, 1]), atol=1e-5, rtol=0
    )
    calls = {name: batches(one, pred.long(), target.long()) for name, one in (("torchmetrics", theirs), ("mIoU", mine))}
    return interleave(calls, rounds, time.process_time)


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for classes, size, images in ((2, 256, 8), (21, 256, 8), (21, 512, 4), (150, 512, 2)):
        found = multiclass(classes, size, images)
        theirs = found["torchmetrics"]
        times = [f"{theirs / found[name]:.1f}x" for name in ("mIoU", "four", "six")]
        rows.append([f"{classes} classes", f"{images} x {size} x {size}", f"{theirs / BATCHES * 1e3:.1f}", *times])
    found = multilabel(5, 256, 8)
    theirs = found["torchmetrics"]
    rows.append(
        [
            "5 labels that overlap",
            "8 x 256 x 256",
            f"{theirs / BATCHES * 1e3:.1f}",
            f"{theirs / found['mIoU']:.1f}x",
            "",
            "",
        ]
    )
    write_section(
        "peers",
        "## Metrics beside torchmetrics\n\n`make bench-peers`: `update` with int64 maps, one CPU thread, medians of "
        f"CPU time, {BATCHES} batches of each in turn in one run; the scores agree. How many times faster than "
        "torchmetrics' `MulticlassJaccardIndex` (`MultilabelJaccardIndex`):\n\n"
        + table(["", "batch", "torchmetrics, ms a batch", "our mIoU", "our four without boundaries", "our six"], rows),
    )


if __name__ == "__main__":
    main()
