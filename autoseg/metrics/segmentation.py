"""`SegmentationMetrics`: counts label maps as they come and scores them; the public face of this room."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from autoseg.errors import InputError, truth, unknown, whole_number
from autoseg.metrics import formula, shapes
from autoseg.metrics.conventions import Absent, Conventions, named_conventions
from autoseg.metrics.counts import (
    USUAL_VOID,
    Counts,
    IgnoreIndex,
    LabelMap,
    check_ignore_index,
    check_void_is_no_class,
    check_void_is_no_foreground,
    count,
    kernel_sums,
    label_map,
    not_foreground,
)
from autoseg.metrics.formula import METRICS, Formula
from autoseg.metrics.targets import Mode, check_class_weights, check_count, dense, labels_of_one_hot, stripped

States = dict[tuple[str, str], Tensor]
"""Counts by the name of the formula they are of, "" for those of the six metrics, and their own name."""


class SegmentationMetrics(nn.Module):
    """Segmentation metrics over a data set, from integer label maps.

    Args:
        num_classes: labels are 0 .. num_classes - 1; in multilabel mode, the number of channels.
        ignore_index: the label of void pixels, which belong to no class in either map; None: there are none; "auto":
            255, but maps of one or two classes that hold 255 and no 1, and more than 255 classes, are refused.
        tolerance, boundary_radius, drop_background, mask_void, absent: see `autoseg.metrics.conventions.Conventions`.
            The defaults are the settings for PASCAL VOC; `SegmentationMetrics.preset("cityscapes", 19)` has those for
            Cityscapes.
        metrics: which metrics to compute: names of the six, of the eight in `autoseg.metrics.more` (mDice, mFbeta,
            mTversky, mMCC, kappa, BoundaryIoU, NSD, clDice), or of metrics registered with `autoseg.register`. Without
            BIoU and BF1 no boundaries are computed.
        mode: "binary": labels are 0 and 1, of two classes (`num_classes` may be 1). "multilabel": maps are (N, C, ...)
            of 0 and 1, each channel is a binary task of its own, and a score is the mean of the channels' scores.
            "multiclass", or None: one class a pixel.
        class_weights: how much each class weighs in the mean over classes, in multilabel mode each channel, 0: it is
            left out. None: all alike.
        per_image: the scores are the means of the images' scores, over the images in which they can be measured.
        volumes: maps are (D, H, W) or (N, D, H, W), with boundaries in three dimensions.
        empty: the score where there is nothing to measure, such as BF1 of maps without a boundary.
        sync: `compute` adds up the counts of all processes, in distributed training.
        others: more conventions: `spacing`, the size of a pixel (H, W) or voxel (D, H, W), such as (3, 0.8, 0.8) in
            millimetres, in whose unit the tolerance and the radius are then; beta, tversky, band_width,
            surface_tolerance, skeleton_steps of the eight. See `autoseg.metrics.conventions.Conventions`.

    It is an `nn.Module`: counts move with `.to`, and `metrics(pred, target)` counts a batch and returns its own scores.

    BIoU here is the paper's (mean IoU inside a band around the target's boundaries), not the "Boundary IoU" of Cheng et
    al. 2021 (bands of both maps, as wide as 2 % of the diagonal), which is `BoundaryIoU`.

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
        ignore_index: IgnoreIndex = "auto",
        tolerance: int = 5,
        boundary_radius: int = 5,
        drop_background: bool = True,
        *,
        mask_void: bool = False,
        absent: Absent | None = "skip",
        metrics: Sequence[str] = METRICS,
        mode: Mode | None = None,
        class_weights: Sequence[float] | Tensor | None = None,
        per_image: bool = False,
        volumes: bool = False,
        empty: float = math.nan,
        sync: bool = True,
        **others: Any,
    ) -> None:
        super().__init__()
        self.num_classes = whole_number(num_classes, "num_classes", least=1)
        if mode is not None and mode not in get_args(Mode):
            raise unknown("mode", str(mode), get_args(Mode), where="mode")
        if (mode == "binary" and self.num_classes > 2) or (mode == "multiclass" and self.num_classes == 1):
            expected = "1 or 2" if mode == "binary" else "2 or more"
            raise InputError(f"found {num_classes}", where="num_classes", expected=f"{expected} in mode '{mode}'")
        self.mode = mode
        if mode == "binary":
            self.num_classes = 2
        self._classes = 2 if mode == "multilabel" else self.num_classes  # of a pixel
        self.ignore_index = check_ignore_index(ignore_index)
        self.guarded = isinstance(ignore_index, str)
        if self.guarded:
            check_void_is_no_class(self._classes)
        self.conventions = Conventions().replace(
            tolerance=tolerance,
            boundary_radius=boundary_radius,
            drop_background=drop_background,
            mask_void=mask_void,
            absent="skip" if absent is None else absent,
            **others,
        )
        several = isinstance(metrics, Iterable) and not isinstance(metrics, str) and getattr(metrics, "ndim", 1) > 0
        wanted: Iterable[Any] = metrics if several else [metrics]
        self._formulas: dict[str, Formula] = {}
        for name in wanted:
            found = formula.get(name)
            self._formulas[found.name] = found
        if not self._formulas:
            raise InputError("the list is empty", where="metrics", expected="at least one name of a metric")
        if isinstance(empty, bool) or not isinstance(empty, int | float | np.number):
            raise InputError(f"found {empty!r}", where="empty", expected="a number, or NaN")
        self.empty = float(empty)
        self.per_image, self.volumes = truth(per_image, "per_image"), truth(volumes, "volumes")
        self.sync = truth(sync, "sync")
        weights = None if class_weights is None else check_count(check_class_weights(class_weights), self.num_classes)
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", weights, persistent=False)
        self._states: States = {}
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
        kind = torch.uint8 if self._classes < 256 else torch.int32
        channels = [self.num_classes] if self.mode == "multilabel" else []
        shape = (1, *channels, *(1 for _ in range(3 if self.volumes else 2)))
        nothing = torch.full(shape, self._classes, dtype=kind)
        found = self._count(nothing, nothing)  # one void pixel: nothing, but perhaps an image
        # No buffers: DistributedDataParallel gives all processes the buffers of the first at every step of a training.
        device = next(iter(self._states.values())).device if self._states else torch.device("cpu")
        self._states = {place: torch.zeros_like(value, device=device) for place, value in found.items()}
        self._everyones = False

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SegmentationMetrics:
        def moved(x: Tensor) -> Tensor:  # `.half()` of a network with metrics inside does not round them
            return x.to(fn(x).device)

        self._states = {place: moved(value) for place, value in self._states.items()}
        return super()._apply(moved, recurse)

    @property
    def counts(self) -> Counts:
        """The counts of the six metrics, by name."""
        return _of(self._states, "")

    def update(self, pred: LabelMap, target: LabelMap) -> None:
        """Count a pair of label maps, (H, W) or (N, H, W), numpy or torch, on any device.

        They may have a channel, (N, 1, H, W), or be one-hot, (N, C, H, W). In multilabel mode both are (N, C, H, W).

        Raises:
            InputError: (a ValueError) on wrong shapes, types or labels; the counts are then as they were.
        """
        self._add(self._count(*self._checked(pred, target)))

    def forward(self, pred: LabelMap, target: LabelMap) -> dict[str, float]:
        """Count a pair of label maps, and return the scores of this pair alone."""
        states = self._count(*self._checked(pred, target))
        self._add(states)
        return self._scores(states)

    def _checked(self, pred: LabelMap, target: LabelMap) -> tuple[Tensor, Tensor]:
        target, pred = self._labels(target, "target"), self._labels(pred, "pred")
        if self.guarded and self._classes <= 2:
            check_void_is_no_foreground(target, self._classes)
            check_void_is_no_foreground(pred, self._classes, "pred")
        if pred.shape != target.shape:
            raise InputError(
                f"has shape {tuple(pred.shape)}", where="pred", expected=f"the target's shape, {tuple(target.shape)}"
            )
        return pred, target.to(pred.device)

    def _labels(self, maps: LabelMap, what: str) -> Tensor:
        """Return checked labels: (N, H, W), in multilabel mode (N, C, H, W), with a D before the H in volumes."""
        dims = 3 if self.volumes else 2
        shape = tuple(getattr(maps, "shape", ()))
        channels = len(shape) == dims + 2 and shape[1] == self.num_classes
        if self.mode == "multilabel":
            if not channels:
                expected = f"(N, {self.num_classes}, {'D, H, W' if self.volumes else 'H, W'}) in mode 'multilabel'"
                raise InputError(f"has shape {shape}", where=what, expected=expected)
            flat = maps.reshape(shape[0] * shape[1], *shape[2:])
            return label_map(flat, 2, self.ignore_index, what, dims).view(shape)
        if channels and self.num_classes > 1:
            void = self.ignore_index if what == "target" else None  # a prediction of no class is most likely a mistake
            maps = dense(stripped(torch.as_tensor(maps)), what)
            if self.guarded and bool((maps == USUAL_VOID).any()) and not bool((maps == 1).any()):
                raise not_foreground(what)
            maps = labels_of_one_hot(maps, void, what)
        return label_map(maps, self.num_classes, self.ignore_index, what, dims)

    def _count(self, pred: Tensor, target: Tensor) -> States:
        """Return the counts of checked label maps: by "" and the name of a count, or by the name of a formula."""
        if not len(pred):
            return {place: torch.zeros_like(value) for place, value in self._states.items()}
        # On a CPU one image at a time stays in the cache; a GPU wants all at once.
        whole = pred.device.type != "cpu" and not self.per_image
        chunks = [(pred, target)] if whole else zip(pred.split(1), target.split(1), strict=True)
        states: States = {}
        for one_pred, one_target in chunks:
            new = self._count_channels(one_pred, one_target)
            if self.per_image:
                new |= self._image_scores(new)
            for place, value in new.items():
                states[place] = states[place] + value if place in states else value
        return states

    def _count_channels(self, pred: Tensor, target: Tensor) -> States:
        if self.mode != "multilabel":
            return self._count_chunk(pred, target)
        each = [self._count_chunk(*channel) for channel in zip(pred.unbind(1), target.unbind(1), strict=True)]
        return {place: torch.stack([states[place] for states in each]) for place in each[0]}

    def _count_chunk(self, pred: Tensor, target: Tensor) -> States:
        kernels = self._kernels()
        states: States = {}
        if kernels:
            parts = {"bands": "BIoU" in kernels, "matches": "BF1" in kernels}
            counts = count(pred, target, self._classes, self.conventions, **parts)
            states = {("", name): value for name, value in counts.items()}
        for f in self._formulas.values():
            if f.name not in kernels:
                fast = shapes.counter(f)
                sums = (
                    fast(pred, target, self._classes, self.conventions)
                    if fast
                    else f.count(pred, target, self._classes, self._classes, self.conventions)
                )
                states |= {(f.name, name): value for name, value in sums.items()}
        return states

    def _image_scores(self, states: States) -> States:
        """Return the scores of an image, 0 where there is nothing to measure, and where there is something."""
        scores = torch.stack([self._score(f, states, math.nan) for f in self._formulas.values()])
        return {("", "image_scores"): scores.nan_to_num(0.0), ("", "images"): (~scores.isnan()).long()}

    def _add(self, new: States) -> None:
        self._states = {place: value.to(new[place].device) + new[place] for place, value in self._states.items()}
        self._everyones = False

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
        self._add(other._states)

    def all_reduce(self, group: Any = None) -> None:
        """Replace the counts by their sums over all processes of a `torch.distributed` group."""
        self._states = self._summed(group)
        self._everyones = True

    def _summed(self, group: Any = None) -> States:
        """Return the counts of all processes; only tensors are sent."""
        import torch.distributed as dist

        states = dict(self._states)
        settings = zlib.crc32(repr(self._settings()).encode())
        device = torch.device("cpu" if "gloo" in dist.get_backend(group) else "cuda")
        extremes = torch.tensor([settings, -settings], device=device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=group)
        if extremes.tolist() != [settings, -settings]:
            raise InputError(
                "the processes' metrics have different settings", expected=f"{self._settings()}, as in this one"
            )
        for kind in (torch.int64, torch.float64):
            mine = {place: value for place, value in states.items() if value.dtype == kind}
            if mine:
                total = torch.cat([value.flatten().to(device) for value in mine.values()])
                dist.all_reduce(total, group=group)
                parts = total.split([value.numel() for value in mine.values()])
                pairs = zip(mine.items(), parts, strict=True)
                states |= {place: part.view(value.shape).to(value.device) for (place, value), part in pairs}
        return states

    def as_torchmetrics(self, **options: Any) -> Any:
        """Return a `torchmetrics.MetricCollection` of these metrics, by name, each a scalar; nothing is counted yet.

        It goes into other collections and into Lightning's `self.log_dict`, and takes scores (N, C, ...) too, whose
        largest is the prediction. torchmetrics moves and synchronises it; `options` are those of `torchmetrics.Metric`.
        """
        from autoseg.metrics.torchmetrics import collection

        return collection(self, **options)

    def _only(self, name: str) -> SegmentationMetrics:
        """Return metrics with the same settings that compute one of these, and have counted nothing."""
        other = copy.deepcopy(self)
        other._formulas = {name: self._formulas[name]}
        other.reset()
        return other

    def _known(self) -> States:
        """Return the counts that scores are made of: those of all processes, unless that is switched off."""
        import torch.distributed as dist

        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        return self._summed() if self.sync and several and not self._everyones else self._states

    def compute(self) -> dict[str, float]:
        """Return each metric, in [0, 1]; `empty` where there was nothing to measure (no class present, no boundary).

        In distributed training all processes must call it, unless `sync` is off or `all_reduce` was called before.
        """
        return self._scores(self._known())

    def _scores(self, states: States) -> dict[str, float]:
        if self.per_image:
            counts = _of(states, "")
            scores = formula.ratio(counts["image_scores"], counts["images"], self.empty)
            return dict(zip(self._formulas, scores.tolist(), strict=True))
        return {name: float(self._score(f, states, self.empty)) for name, f in self._formulas.items()}

    def _score(self, f: Formula, states: States, empty: float) -> Tensor:
        each = self._formula_sums(f, states)
        device = next(iter(each[0].values())).device
        weights = None if self.class_weights is None else self.class_weights.to(device)
        if self.mode != "multilabel":
            return f.score(each[0], self.conventions, None, weights, empty)
        scores = torch.stack([f.score(sums, self.conventions, None, None, math.nan) for sums in each])
        weights = torch.ones_like(scores) if weights is None else weights
        measured = weights.masked_fill(scores.isnan(), 0.0)
        return formula.ratio((measured * scores.nan_to_num(0.0)).sum(), measured.sum(), empty)

    def per_class(self) -> dict[str, np.ndarray]:
        """Return each metric's score of each class, over all images; NaN where a class cannot be measured.

        FWIoU's are the IoU of each class and gAcc's its accuracy, before they are weighted by frequency. In multilabel
        mode the scores are (C, 2): of each channel's background and foreground.
        """
        states = self._known()
        scores = {}
        for name, f in self._formulas.items():
            each = torch.stack([f.per_class(sums) for sums in self._formula_sums(f, states)])
            scores[name] = (each if self.mode == "multilabel" else each[0]).cpu().numpy()
        return scores

    def _formula_sums(self, f: Formula, states: States) -> list[Counts]:
        """Return the sums of a formula: of each channel in multilabel mode, else of one."""
        owner = "" if f.name in self._kernels() else f.name
        counts = {name: value for name, value in _of(states, owner).items() if name not in ("image_scores", "images")}
        channels = [counts]
        if self.mode == "multilabel":
            channels = [{name: value[c] for name, value in counts.items()} for c in range(self.num_classes)]
        return channels if owner else [kernel_sums(f.name, counts, self.conventions) for counts in channels]

    def _settings(self) -> dict[str, Any]:
        names: dict[str, Any] = {"num_classes": self.num_classes, "ignore_index": self.ignore_index}
        names["metrics"] = tuple(self._formulas)
        if self.class_weights is not None:
            names["class_weights"] = self.class_weights.tolist()
        given = {name: getattr(self, name) for name in ("mode", "per_image", "volumes")}
        chosen = {name: value for name, value in given.items() if value}
        return names | chosen | self.conventions.model_dump()


def _of(states: States, owner: str) -> Counts:
    return {name: value for (of, name), value in states.items() if of == owner}
