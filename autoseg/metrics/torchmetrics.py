"""Metrics of this room as torchmetrics' own kind, for `MetricCollection` and Lightning's `self.log`.

`SegmentationMetrics.as_torchmetrics` makes them; nothing else imports this module.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from autoseg.metrics.segmentation import SegmentationMetrics


class SegmentationMetric(Metric):
    """One metric of a `SegmentationMetrics`: a scalar, whose counts are states that torchmetrics moves and sums up.

    `options` are those of `torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    def __init__(self, settings: SegmentationMetrics, name: str, **options: Any) -> None:
        super().__init__(**options)
        self.name = name
        self._counter = settings._only(name)
        # A collection lets metrics share their states when those have the same names, and were equal once. Here the
        # names tell counts of different settings apart.
        settings_of_counts = self._counter._settings()
        if not settings.per_image:
            del settings_of_counts["metrics"]
        digest = zlib.crc32(repr(settings_of_counts).encode())
        self._places = {place: f"{'_'.join(filter(None, place))}_{digest:08x}" for place in self._counter._states}
        for place, zero in self._counter._states.items():
            self.add_state(self._places[place], zero, dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count label maps, or scores (N, C, ...) of classes, whose largest is taken."""
        counter = self._counter
        scores = preds.is_floating_point() and preds.ndim == (5 if counter.volumes else 4) and counter.num_classes > 1
        if scores and preds.shape[1] == counter.num_classes and counter.mode != "multilabel":
            preds = preds.argmax(1)
        for place, value in counter._count(*counter._checked(preds, target)).items():
            state = self._places[place]
            setattr(self, state, getattr(self, state) + value.to(self.device))

    def compute(self) -> Tensor:
        """Return the score of everything counted, in [0, 1]."""
        states = {place: getattr(self, state) for place, state in self._places.items()}
        return torch.tensor(self._counter._scores(states)[self.name], device=self.device)

    def __repr__(self) -> str:
        return f"SegmentationMetric({self._counter!r})"


def collection(settings: SegmentationMetrics, **options: Any) -> MetricCollection:
    """Return a collection of the metrics, by their names."""
    return MetricCollection({name: SegmentationMetric(settings, name, **options) for name in settings._formulas})
