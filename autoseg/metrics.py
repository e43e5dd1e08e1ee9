"""The six metrics of the paper on integer label maps: exact counts, fast.

Pure functions turn label maps into counts (int64, additive over batches, processes and GPUs); `SegmentationMetrics`
adds them up and hands them to the formulas of `autoseg.formula`, which alone know how a score is made of them. The
counts equal those of the authors' evaluator.

What makes it fast: a pixel can be an inner edge of its own class only, so the edges of all classes are one boolean map;
and a label is a bit in an integer, so a running OR dilates the edges of all classes at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from autoseg import formula
from autoseg.errors import InputError
from autoseg.formula import METRICS, Conventions, Formula, has_kernel

__all__ = ["METRICS", "SegmentationMetrics", "boundary_matches", "confusion", "dilate", "edges"]

Labels = Any  # numpy array, torch tensor, or what numpy turns into one
Counts = dict[str, Tensor]

BITS = 32  # classes dilated at once


# ---- Label maps ----------------------------------------------------------------------------------------------------


def label_map(labels: Labels, num_classes: int, ignore_index: int | None, what: str) -> Tensor:
    """Check a label map and return it as (N, H, W), in the smallest type, with `num_classes` for void."""
    if not isinstance(labels, Tensor):
        try:
            array = np.asarray(labels)
        except ValueError as error:
            raise InputError(f"{what} is not an array of labels ({error}).") from None
        if array.dtype.kind not in "iub":
            raise InputError(f"{what} has dtype {array.dtype}; expected integer class labels.")
        labels = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    if labels.is_floating_point() or labels.is_complex():
        raise InputError(f"{what} has dtype {labels.dtype}; expected integer class labels.")
    if labels.ndim not in (2, 3) or 0 in labels.shape[-2:]:
        raise InputError(f"{what} has shape {tuple(labels.shape)}; expected (H, W) or (N, H, W).")
    if labels.dtype == torch.bool:
        labels = labels.to(torch.uint8)
    elif labels.dtype in (torch.uint16, torch.uint32, torch.uint64):
        labels = labels.to(torch.int64)  # torch computes on few unsigned types
    labels = labels.contiguous()
    if labels.ndim == 2:
        labels = labels.unsqueeze(0)
    if labels.numel() == 0:
        return labels.to(torch.uint8)
    low, high = (int(value) for value in torch.aminmax(labels))
    if low >= 0 and high <= 255:
        labels = labels.to(torch.uint8)  # the tests below then cost next to nothing
    kind = torch.uint8 if num_classes < 256 else torch.int32
    if ignore_index is None or not low <= ignore_index <= high:
        inside = labels
    else:
        named = differs(labels, ignore_index)
        inside = labels * named
        low, high = (int(value) for value in torch.aminmax(inside))
    if low < 0 or high >= num_classes:
        found = ", ".join(str(int(value)) for value in inside[(inside < 0) | (inside >= num_classes)].unique()[:5])
        allowed = f"0..{num_classes - 1}" + ("" if ignore_index is None else f" or {ignore_index} (void)")
        raise InputError(f"{what} holds labels {found}; expected {allowed}.")
    return inside.to(kind) if inside is labels else inside.to(kind).add_(~named, alpha=num_classes)


def differs(labels: Tensor, value: int) -> Tensor:
    return (labels ^ value).bool()  # labels != value, but vectorised: torch's comparison with a number is not


def check_ignore_index(ignore_index: int | None) -> int | None:
    """Return the label of void as an int, or None."""
    return None if ignore_index is None else formula.whole_number(ignore_index, "ignore_index", least=None)


# ---- Counting ------------------------------------------------------------------------------------------------------


def confusion(pred: Tensor, target: Tensor, num_classes: int, band: Tensor) -> tuple[Tensor, Tensor]:
    """Count label pairs of all pixels and of those in the band: two (C, C + 1) matrices, rows are the target's classes.

    The last column counts the pixels where the prediction names no class. Pixels void in the target are not counted.
    """
    side = num_classes + 1
    bins = 2 * side * side
    code = band.to(_smallest_type(bins))
    code = code.mul_(side).add_(target).mul_(side).add_(pred)
    counts = torch.bincount(code.view(-1), minlength=bins).view(2, side, side)[:, :num_classes]
    return counts.sum(0), counts[1]


def edges(labels: Tensor, num_classes: int, void: Tensor | None = None) -> Tensor:
    """Return where a pixel of a class has another label in its 3x3 window, as a boolean map.

    The border of the image is no edge. A pixel of no class is another label, unless it is in the mask `void`.
    """
    low = high = _frame(labels)
    if void is not None:  # raises no maximum and lowers no minimum, so it makes no edge
        low = _frame(labels.masked_fill(void, num_classes))
        high = _frame(labels.masked_fill(void, 0))
    for dim in (-1, -2):
        low, high = _window3(torch.minimum, low, dim), _window3(torch.maximum, high, dim)
    edge = (low != high) & differs(labels, num_classes)
    return edge if void is None else edge & ~void


def _frame(labels: Tensor) -> Tensor:
    """Repeat the outermost pixels once around the image."""
    framed = labels.new_empty(len(labels), labels.shape[1] + 2, labels.shape[2] + 2)
    framed[:, 1:-1, 1:-1] = labels
    framed[:, 1:-1, 0], framed[:, 1:-1, -1] = labels[:, :, 0], labels[:, :, -1]
    framed[:, 0], framed[:, -1] = framed[:, 1], framed[:, -2]
    return framed


def _window3(reduce: Any, x: Tensor, dim: int) -> Tensor:
    size = x.shape[dim] - 2
    out = reduce(x.narrow(dim, 0, size), x.narrow(dim, 1, size))
    return reduce(out, x.narrow(dim, 2, size), out=out)


def dilate(bits: Tensor, radius: int) -> Tensor:
    """Return the OR over the square of `radius` around each pixel, by doubling: log2(radius) passes a side."""
    for dim in (-1, -2):
        size = bits.shape[dim]
        reach = min(radius, size - 1)
        if reach == 0:
            continue
        shape = list(bits.shape)
        shape[dim] = size + 2 * reach
        padded = bits.new_zeros(shape)
        padded.narrow(dim, reach, size).copy_(bits)
        bits, covered, window = padded, 1, 2 * reach + 1
        while covered < window:
            step = min(covered, window - covered)
            rest = bits.shape[dim] - step
            bits = bits.narrow(dim, 0, rest) | bits.narrow(dim, step, rest)
            covered += step
    return bits


def band(target: Tensor, target_edge: Tensor, conventions: Conventions) -> Tensor:
    """Return, as 0 and 1 (uint8), the band around the target's edges in which BIoU is counted."""
    seeds = target_edge & target.bool() if conventions.drop_background else target_edge
    return dilate(seeds.view(torch.uint8), conventions.boundary_radius)


def boundary_matches(
    pred: Tensor, target: Tensor, pred_edge: Tensor, target_edge: Tensor, num_classes: int, tolerance: int
) -> Counts:
    """Count, per class, the edge pixels of each map and those near an edge of the same class in the other map."""
    matched_pred, matched_target = torch.zeros_like(pred_edge), torch.zeros_like(target_edge)
    for first in range(0, num_classes, BITS):
        pred_bits = class_bits(pred, pred_edge, first, num_classes)
        target_bits = class_bits(target, target_edge, first, num_classes)
        matched_pred |= (dilate(target_bits, tolerance) & pred_bits).bool()
        matched_target |= (dilate(pred_bits, tolerance) & target_bits).bool()
    # One histogram of both maps' states: 0 no edge, then for each class an unmatched and a matched edge.
    states = 2 * num_classes + 2
    code = torch.zeros_like(pred, dtype=_smallest_type(states * states))
    for labels, edge, matched in ((pred, pred_edge, matched_pred), (target, target_edge, matched_target)):
        state = labels.to(code.dtype).mul_(2).add_(matched).add_(2).mul_(edge)
        code = code.mul_(states).add_(state)
    joint = torch.bincount(code.view(-1), minlength=states * states).view(states, states)
    of_pred, of_target = (joint.sum(1 - axis)[2:].view(-1, 2) for axis in (0, 1))
    return {
        "n_pred_edge": of_pred.sum(1),
        "matched_pred": of_pred[:, 1],
        "n_target_edge": of_target.sum(1),
        "matched_target": of_target[:, 1],
    }


def class_bits(labels: Tensor, edge: Tensor, first: int, num_classes: int) -> Tensor:
    """Return, at edge pixels of the classes first .. first + BITS - 1, the bit of their class."""
    width = min(num_classes - first, BITS)
    kind = torch.uint8 if width <= 8 else torch.int16 if width <= 16 else torch.int32
    if num_classes > BITS:
        edge = edge & ~differs(labels // BITS, first // BITS)
        labels = labels % BITS
    return torch.bitwise_left_shift(edge.to(kind), labels.to(kind))


def _smallest_type(bins: int) -> torch.dtype:
    return torch.int16 if bins < 2**15 else torch.int32 if bins < 2**31 else torch.int64


def count(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    conventions: Conventions,
    *,
    bands: bool = True,
    matches: bool = True,
) -> Counts:
    """Count everything the six metrics need from checked label maps (N, H, W); see `SegmentationMetrics.counts`.

    Without `bands` BIoU's counts are left out, without `matches` BF1's.
    """
    target_edge = edges(target, num_classes) if bands or matches else None
    around = band(target, cast(Tensor, target_edge), conventions) if bands else torch.zeros_like(target)
    total, boundary = confusion(pred, target, num_classes, around)
    counts = {"confusion": total}
    if bands:
        counts["boundary_confusion"] = boundary
    if matches:
        void = ~differs(target, num_classes) if conventions.mask_void else None
        if void is not None:
            target_edge = edges(target, num_classes, void)
        pred_edge = edges(pred, num_classes, void)
        counts |= boundary_matches(
            pred, target, pred_edge, cast(Tensor, target_edge), num_classes, conventions.tolerance
        )
    return counts


# ---- From counts to the sums of the formulas -----------------------------------------------------------------------


def _overlap_sums(matrix: Tensor) -> dict[str, Tensor]:
    matrix = matrix.double()
    inter, target = matrix.diagonal(), matrix.sum(1)
    return {"inter": inter, "hit": inter, "target": target, "union": target + matrix[:, :-1].sum(0) - inter}


def kernel_sums(name: str, counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the sums that the formula of one of the six metrics takes, out of the counts."""
    if name == "BF1":
        keys = {"pred": "n_pred_edge", "target": "n_target_edge"}
        keys |= {key: key for key in ("matched_pred", "matched_target")}
        return {key: counts[source].double() for key, source in keys.items()}
    return _overlap_sums(counts["boundary_confusion" if name == "BIoU" else "confusion"])


class SegmentationMetrics:
    """Segmentation metrics over a data set, from integer label maps.

    Args:
        num_classes: labels are 0 .. num_classes - 1.
        ignore_index: the label of void pixels, which belong to no class in either map; None: there are none.
        tolerance, boundary_radius, drop_background, mask_void, absent: see `autoseg.formula.Conventions`. The defaults
            are the settings for PASCAL VOC; `SegmentationMetrics.preset("cityscapes", 19)` has those for Cityscapes.
        metrics: which to compute: of the six, or registered with `autoseg.formula.register`. Without BIoU and BF1 the
            boundaries are not looked at.

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
        absent: formula.Absent = "skip",
        metrics: Sequence[str] = METRICS,
    ) -> None:
        self.num_classes = formula.whole_number(num_classes, "num_classes", least=1)
        self.ignore_index = check_ignore_index(ignore_index)
        self.conventions = Conventions(tolerance, boundary_radius, drop_background, mask_void, absent)
        if not isinstance(metrics, Iterable) or isinstance(metrics, str):
            metrics = [metrics]
        self._formulas: dict[str, Formula] = {}
        for name in metrics:
            found = formula.get(name)
            self._formulas[found.name] = found
        if not self._formulas:
            raise InputError("no metric was asked for; expected at least one name in `metrics`.")
        self.reset()

    @classmethod
    def preset(cls, conventions: str, num_classes: int, **changes: Any) -> SegmentationMetrics:
        """Return metrics with the conventions of a data set by name: "voc" or "cityscapes".

        >>> SegmentationMetrics.preset("cityscapes", num_classes=19).conventions.drop_background
        False
        """
        return cls(num_classes, **{**asdict(formula.conventions(conventions)), **changes})

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
                f"pred and target have shapes {tuple(pred.shape)} and {tuple(target.shape)}; expected equal."
            )
        target = target.to(pred.device)
        kernels, others = self._kernels(), [f for f in self._formulas.values() if not has_kernel(f)]
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
        return {name for name, f in self._formulas.items() if has_kernel(f)}

    def __repr__(self) -> str:
        return f"SegmentationMetrics({', '.join(f'{key}={value!r}' for key, value in self._settings().items())})"

    def merge(self, other: SegmentationMetrics) -> None:
        """Add what another object with the same settings has counted."""
        if not isinstance(other, SegmentationMetrics):
            raise InputError(f"{other!r} cannot be merged; expected SegmentationMetrics.")
        if self._settings() != other._settings():
            raise InputError(f"metrics with settings {other._settings()} cannot be merged into {self._settings()}.")
        self._add(other.counts, other._sums)

    def all_reduce(self, group: Any = None) -> None:
        """Replace the counts by their sums over all processes of a `torch.distributed` group."""
        import torch.distributed as dist

        everyone: list[Any] = [None] * dist.get_world_size(group)
        sums = {name: _to_cpu(new) for name, new in self._sums.items()}
        dist.all_gather_object(everyone, (self._settings(), _to_cpu(self.counts), sums), group)
        if any(settings != self._settings() for settings, *_ in everyone):
            raise InputError(
                f"the processes' metrics have different settings: {[settings for settings, *_ in everyone]}."
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
        if has_kernel(f):
            counts = self.counts or count(nothing, nothing, self.num_classes, self.conventions)
            return kernel_sums(f.name, counts)
        return self._sums.get(f.name) or f.count(nothing, nothing, self.num_classes, self.num_classes, self.conventions)

    def _settings(self) -> dict[str, Any]:
        names = {"num_classes": self.num_classes, "ignore_index": self.ignore_index, "metrics": tuple(self._formulas)}
        return names | asdict(self.conventions)


def _add(total: Counts, new: Mapping[str, Tensor]) -> None:
    for name, value in new.items():
        total[name] = total[name].to(value.device) + value if name in total else value


def _to_cpu(counts: Counts) -> Counts:
    return {name: value.cpu() for name, value in counts.items()}
