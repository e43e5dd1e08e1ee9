"""`SegmentationMetrics`: counts label maps as they come and scores them; the public face of this room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoseg.errors import InputError, whole_number
from autoseg.metrics import formula
from autoseg.metrics.conventions import Absent, Conventions, named_conventions
from autoseg.metrics.counts import Counts, Labels, check_ignore_index, count, kernel_sums, label_map
from autoseg.metrics.formula import METRICS, Formula


class SegmentationMetrics:
    """Segmentation metrics over a data set, from integer label maps.

    Args:
        num_classes: labels are 0 .. num_classes - 1.
        ignore_index: the label of void pixels, which belong to no class in either map; None: there are none.
        tolerance, boundary_radius, drop_background, mask_void, absent: see `autoseg.metrics.conventions.Conventions`.
            The defaults are the settings for PASCAL VOC; `SegmentationMetrics.preset("cityscapes", 19)` has those for
            Cityscapes.
        metrics: which metrics to compute: names of the six, or of metrics registered with `autoseg.register`. Without
            BIoU and BF1 no boundaries are computed.

    BIoU here is the paper's (mean IoU inside a band around the target's boundaries), not the "Boundary IoU" of Cheng et
    al. 2021 (bands of both maps, as wide as 2 % of the diagonal).

    >>> import numpy as np
    >>> m = SegmentationMetrics(num_classes=2)
    >>> m.update(np.array([[0, 0, 1, 1]]), np.array([[0, 1, 1, 255]]))
    >>> {name: round(score, 3) for name, score in m.compute().items()}
    {'mIoU': 0.5, 'FWIoU': 0.5, 'BIoU': 0.5, 'BF1': 1.0, 'mAcc': 0.75, 'gAcc': 0.667}
    >>> m.per_class()["mIoU"]
    array([0.5, 0.5])
    """

    def __init__(
        self,
        num_classes: int,
        ignore_index: int | None = 255,
        tolerance: int = 5,
        boundary_radius: int = 5,
        drop_background: bool = True,
        *,
        mask_void: bool = False,
        absent: Absent | None = "skip",
        metrics: Sequence[str] = METRICS,
    ) -> None:
        self.num_classes = whole_number(num_classes, "num_classes", least=1)
        self.ignore_index = check_ignore_index(ignore_index)
        self.conventions = Conventions().replace(
            tolerance=tolerance,
            boundary_radius=boundary_radius,
            drop_background=drop_background,
            mask_void=mask_void,
            absent=absent or "skip",
        )
        if not isinstance(metrics, Iterable) or isinstance(metrics, str):
            metrics = [metrics]
        self._formulas: dict[str, Formula] = {}
        for name in metrics:
            found = formula.get(name)
            self._formulas[found.name] = found
        if not self._formulas:
            raise InputError("the list is empty", where="metrics", expected="at least one name of a metric")
        self.reset()

    @classmethod
    def preset(cls, conventions: str | Conventions, num_classes: int, **changes: Any) -> SegmentationMetrics:
        """Return metrics with given conventions, or those of a data set by name: "voc" or "cityscapes".

        >>> SegmentationMetrics.preset("cityscapes", num_classes=19).conventions.drop_background
        False
        """
        if not isinstance(conventions, Conventions):
            conventions = named_conventions(conventions)
        return cls(num_classes, **{**conventions.model_dump(), **changes})

    def reset(self) -> None:
        """Forget everything counted so far."""
        self.counts: Counts = {}
        self._sums: dict[str, Counts] = {}

    def update(self, pred: Labels, target: Labels) -> None:
        """Count a pair of label maps, (H, W) or (N, H, W), numpy or torch, on any device.

        Raises:
            InputError: (a ValueError) on wrong shapes, types or labels; the counts are then as they were.
        """
        target = label_map(target, self.num_classes, self.ignore_index, "target")
        pred = label_map(pred, self.num_classes, self.ignore_index, "pred")
        if pred.shape != target.shape:
            raise InputError(
                f"has shape {tuple(pred.shape)}", where="pred", expected=f"the target's shape, {tuple(target.shape)}"
            )
        target = target.to(pred.device)
        kernels, others = self._kernels(), [f for f in self._formulas.values() if not f.has_kernel]
        # On a CPU one image at a time stays in the cache; a GPU wants all at once.
        chunks = zip(pred.split(1), target.split(1), strict=True) if pred.device.type == "cpu" else [(pred, target)]
        counts: Counts = {}
        sums: dict[str, Counts] = {f.name: {} for f in others}
        for one_pred, one_target in chunks:
            if kernels:
                bands, matches = "BIoU" in kernels, "BF1" in kernels
                _add(
                    counts,
                    count(one_pred, one_target, self.num_classes, self.conventions, bands=bands, matches=matches),
                )
            for f in others:
                new = f.count(one_pred, one_target, self.num_classes, self.num_classes, self.conventions)
                _add(sums[f.name], new)
        self._add(counts, sums)

    def _add(self, counts: Counts, sums: Mapping[str, Counts]) -> None:
        _add(self.counts, counts)
        for name, new in sums.items():
            _add(self._sums.setdefault(name, {}), new)

    def _kernels(self) -> set[str]:
        return {name for name, f in self._formulas.items() if f.has_kernel}

    def __repr__(self) -> str:
        return f"SegmentationMetrics({', '.join(f'{key}={value!r}' for key, value in self._settings().items())})"

    def merge(self, other: SegmentationMetrics) -> None:
        """Add what another object with the same settings has counted."""
        if not isinstance(other, SegmentationMetrics):
            raise InputError(f"{other!r} cannot be merged", expected="SegmentationMetrics")
        if self._settings() != other._settings():
            raise InputError(
                f"metrics with settings {other._settings()} cannot be merged", expected=str(self._settings())
            )
        self._add(other.counts, other._sums)

    def all_reduce(self, group: Any = None) -> None:
        """Replace the counts by their sums over all processes of a `torch.distributed` group."""
        import torch.distributed as dist

        everyone: list[Any] = [None] * dist.get_world_size(group)
        sums = {name: _to_cpu(new) for name, new in self._sums.items()}
        dist.all_gather_object(everyone, (self._settings(), _to_cpu(self.counts), sums), group)
        if any(settings != self._settings() for settings, *_ in everyone):
            raise InputError(
                f"the processes' metrics have different settings: {[settings for settings, *_ in everyone]}"
            )
        self.reset()
        for _, counts, sums in everyone:
            self._add(counts, sums)

    def compute(self) -> dict[str, float]:
        """Return each metric, in [0, 1]; 0 where there was nothing to measure (no class present, no boundary)."""
        return {name: float(f.score(self._formula_sums(f), self.conventions)) for name, f in self._formulas.items()}

    def per_class(self) -> dict[str, np.ndarray]:
        """Return each metric's score of each class; NaN where a class cannot be measured.

        FWIoU's are the IoU of each class and gAcc's its accuracy, before they are weighted by frequency.
        """
        return {name: f.per_class(self._formula_sums(f)).cpu().numpy() for name, f in self._formulas.items()}

    def _formula_sums(self, f: Formula) -> Counts:
        nothing = torch.full((1, 1, 1), self.num_classes, dtype=torch.int32)  # one void pixel: every count is 0
        if f.has_kernel:
            counts = self.counts or count(nothing, nothing, self.num_classes, self.conventions)
            return kernel_sums(f.name, counts)
        return self._sums.get(f.name) or f.count(nothing, nothing, self.num_classes, self.num_classes, self.conventions)

    def _settings(self) -> dict[str, Any]:
        names = {"num_classes": self.num_classes, "ignore_index": self.ignore_index, "metrics": tuple(self._formulas)}
        return names | self.conventions.model_dump()


def _add(total: Counts, new: Mapping[str, Tensor]) -> None:
    for name, value in new.items():
        total[name] = total[name].to(value.device) + value if name in total else value


def _to_cpu(counts: Counts) -> Counts:
    return {name: value.cpu() for name, value in counts.items()}
