"""Counts of the paper's six metrics on integer label maps: pure functions, exact and fast.

The counts are int64, add up over batches, processes and GPUs, and equal those of the authors' evaluator.
`SegmentationMetrics` adds them up; the formulas of `autoseg.metrics.formula` turn them into scores.

Two facts make the counting fast. A pixel can be an inner edge of its own class only, so the edges of all classes fit
into one boolean map. A label can be a bit of an integer, so one running OR dilates the edges of 32 classes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from autoseg.errors import InputError, first_line, whole_number
from autoseg.metrics import more
from autoseg.metrics.conventions import Conventions, reach
from autoseg.metrics.targets import LABELS, check_whole_numbers, dense, stripped

LabelMap = Any  # numpy array, torch tensor, or what numpy turns into one
Counts = dict[str, Tensor]
IgnoreIndex = int | None | Literal["auto"]
BITS = 32  # classes dilated at once
USUAL_VOID = 255  # what "auto" takes for void


# ---- Label maps ----------------------------------------------------------------------------------------------------


def label_map(labels: LabelMap, num_classes: int, ignore_index: int | None, what: str, dims: int = 2) -> Tensor:
    """Check a label map and return it as (N, H, W), in the smallest type, with `num_classes` for void.

    It may be (H, W), (N, H, W) or (N, 1, H, W), of whole numbers of any type; with 3 `dims` it has a D before the H.
    """
    if not isinstance(labels, Tensor):
        try:
            array = np.asarray(labels)
        except (ValueError, TypeError, RuntimeError, MemoryError) as error:
            raise InputError(f"is not an array ({first_line(error)})", where=what, expected=LABELS) from None
        if array.dtype.kind not in "iubf":
            raise InputError(f"has dtype {array.dtype}", where=what, expected=LABELS)
        labels = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    labels = dense(stripped(labels), what).detach()
    if labels.is_complex():
        raise InputError(f"has dtype {labels.dtype}", where=what, expected=LABELS)
    if labels.ndim == dims + 2 and labels.shape[1] == 1:
        labels = labels.squeeze(1)
    if labels.is_floating_point():
        floats, labels = labels, labels.long()
        check_whole_numbers(floats, labels, what)
    if labels.ndim not in (dims, dims + 1) or 0 in labels.shape[-dims:]:
        cure = f"give `{what}.argmax(1)` of scores or one-hot maps" if labels.ndim == dims + 2 else ""
        if cure and labels.shape[-1] in (1, num_classes):  # the channels are the last axis
            cure = f"give `{what}.squeeze(-1)`" if labels.shape[-1] == 1 else cure.replace("(1)", "(-1)")
        elif cure and dims == 2:
            cure += ", `SegmentationMetrics(..., volumes=True)` for volumes"
        expected = "(H, W) or (N, H, W)" if dims == 2 else "(D, H, W) or (N, D, H, W)"
        raise InputError(f"has shape {tuple(labels.shape)}", where=what, expected=expected, cure=cure)
    if labels.dtype == torch.bool:
        labels = labels.to(torch.uint8)
    elif labels.dtype in (torch.uint16, torch.uint32, torch.uint64):
        labels = labels.to(torch.int64)  # torch computes on few unsigned types
    labels = labels.contiguous()
    if labels.ndim == dims:
        labels = labels.unsqueeze(0)
    kind = torch.uint8 if num_classes < 256 else torch.int32
    if labels.numel() == 0:
        return labels.to(kind)
    low, high = (int(value) for value in torch.aminmax(labels))
    if low >= 0 and high <= 255:
        labels = labels.to(torch.uint8)  # the tests below then cost next to nothing
    if ignore_index is None or not low <= ignore_index <= high:
        inside = labels
    else:
        named = differs(labels, ignore_index).view(torch.uint8)  # mixed with bool, bytes take three times as long
        inside = labels * named
        low, high = (int(value) for value in torch.aminmax(inside))
    if low < 0 or high >= num_classes:
        found = ", ".join(str(int(value)) for value in inside[(inside < 0) | (inside >= num_classes)].unique()[:5])
        allowed = f"0..{num_classes - 1}" + ("" if ignore_index is None else f" or {ignore_index} (void)")
        cure = "say num_classes=2 for a background and a foreground" if num_classes == 1 else ""
        raise InputError(f"holds labels {found}", where=what, expected=allowed, cure=cure)
    return inside.to(kind) if inside is labels else inside.to(kind).sub_(named, alpha=num_classes).add_(num_classes)


def differs(labels: Tensor, value: int) -> Tensor:
    """Return labels != value; torch vectorises the XOR, but not the comparison with a number."""
    return (labels ^ value).bool()


def check_ignore_index(ignore_index: IgnoreIndex) -> int | None:
    """Return the label of void as an int, or None; "auto" is 255, whose use the functions below then guard."""
    if ignore_index is None or (isinstance(ignore_index, str) and ignore_index == "auto"):
        return None if ignore_index is None else USUAL_VOID
    return whole_number(ignore_index, "ignore_index", least=None)


def check_void_is_no_class(num_classes: int) -> None:
    """Refuse so many classes that 255, taken for void because nobody said otherwise, is one of them."""
    if num_classes > USUAL_VOID:
        raise InputError(
            f"with {num_classes} classes, {USUAL_VOID} may be void or a class",
            where="ignore_index",
            expected="the label of void, or None if there is none",
        )


def check_void_is_no_foreground(labels: Tensor, classes: int = 2, what: str = "target") -> None:
    """Refuse labels of a class or two (as many for void) with void but without a 1: most likely a mask of 0 and 255."""
    if not differs(labels, classes).all() and (classes < 2 or not (labels == 1).any()):
        raise not_foreground(what)


def not_foreground(what: str = "target") -> InputError:
    """Return the error of two classes' labels that are 0 and 255 alone."""
    return InputError(
        f"holds no label but 0 and {USUAL_VOID}, which may be void or the foreground",
        where=what,
        cure=f"give `({what} > 0).long()` if {USUAL_VOID} is the foreground, else say ignore_index={USUAL_VOID}",
    )


# ---- Counting ------------------------------------------------------------------------------------------------------


def confusion(pred: Tensor, target: Tensor, num_classes: int, band: Tensor | None) -> list[Tensor]:
    """Count label pairs of all pixels, and of those in a band: (C, C + 1) matrices, rows are the target's classes.

    The last column counts the pixels where the prediction names no class. Pixels void in the target are not counted.
    """
    side = num_classes + 1
    parts = 1 if band is None else 2
    bins = parts * side * side
    kind = smallest_type(bins)
    code = target.to(kind, copy=True) if band is None else band.to(kind).mul_(side).add_(target)
    counts = torch.bincount(code.mul_(side).add_(pred).view(-1), minlength=bins)
    counts = counts.view(parts, side, side)[:, :num_classes]
    return [counts.sum(0), *counts[1:]]


def edges(labels: Tensor, num_classes: int, void: Tensor | None = None) -> Tensor:
    """Return where a pixel of a class has another label in its 3x3 window (in volumes 3x3x3), as a boolean map.

    The border of the image is no edge. A pixel of no class is another label, unless it is in the mask `void`.
    """
    low = high = _frame(labels)
    if void is not None:  # raises no maximum and lowers no minimum, so it makes no edge
        low = _frame(labels.masked_fill(void, num_classes))
        high = _frame(labels.masked_fill(void, 0))
    for dim in range(-1, -labels.ndim, -1):
        low, high = _window3(torch.minimum, low, dim), _window3(torch.maximum, high, dim)
    edge = (low != high) & differs(labels, num_classes)
    return edge if void is None else edge & ~void


def _frame(labels: Tensor) -> Tensor:
    """Repeat the outermost pixels once around the image."""
    framed = labels.new_empty(len(labels), *(size + 2 for size in labels.shape[1:]))
    framed[:, *(slice(1, -1) for _ in labels.shape[1:])] = labels
    for dim in range(-1, -labels.ndim, -1):
        size = framed.shape[dim]
        framed.narrow(dim, 0, 1).copy_(framed.narrow(dim, 1, 1))
        framed.narrow(dim, size - 1, 1).copy_(framed.narrow(dim, size - 2, 1))
    return framed


def _window3(reduce: Any, x: Tensor, dim: int) -> Tensor:
    size = x.shape[dim] - 2
    out = reduce(x.narrow(dim, 0, size), x.narrow(dim, 1, size))
    return reduce(out, x.narrow(dim, 2, size), out=out)


def dilate(bits: Tensor, radius: int | Sequence[int]) -> Tensor:
    """Return the OR over the square of `radius` around each pixel, by doubling: log2(radius) passes a side.

    Several radii are those along the last axes.
    """
    radii = [radius, radius] if isinstance(radius, int) else radius
    for dim, along in zip(range(-1, -len(radii) - 1, -1), reversed(radii), strict=True):
        size = bits.shape[dim]
        near = min(along, size - 1)
        if near == 0:
            continue
        shape = list(bits.shape)
        shape[dim] = size + 2 * near
        padded = bits.new_zeros(shape)
        padded.narrow(dim, near, size).copy_(bits)
        bits, covered, window = padded, 1, 2 * near + 1
        while covered < window:
            step = min(covered, window - covered)
            rest = bits.shape[dim] - step
            bits = bits.narrow(dim, 0, rest) | bits.narrow(dim, step, rest)
            covered += step
    return bits


def band(target: Tensor, target_edge: Tensor, conventions: Conventions) -> Tensor:
    """Return, as 0 and 1 (uint8), the band around the target's edges in which BIoU is counted."""
    seeds = target_edge & target.bool() if conventions.drop_background else target_edge
    return dilate(seeds.view(torch.uint8), reach(conventions.boundary_radius, conventions.spacing, target.ndim - 1))


def boundary_matches(
    pred: Tensor, target: Tensor, pred_edge: Tensor, target_edge: Tensor, num_classes: int, near: Sequence[int]
) -> Counts:
    """Count, per class, the edge pixels of each map and those near an edge of the same class in the other map.

    `near` is the tolerance along each axis, in pixels.
    """
    matched_pred, matched_target = matched_edges(
        pred, target, pred_edge, target_edge, num_classes, lambda bits: dilate(bits, near)
    )
    # One histogram of both maps' states: 0 no edge, then for each class an unmatched and a matched edge.
    states = 2 * num_classes + 2
    code = torch.zeros_like(pred, dtype=smallest_type(states * states))
    for labels, edge, matched in ((pred, pred_edge, matched_pred), (target, target_edge, matched_target)):
        state = labels.to(code.dtype, copy=True).mul_(2).add_(matched).add_(2).mul_(edge)
        code = code.mul_(states).add_(state)
    joint = torch.bincount(code.view(-1), minlength=states * states).view(states, states)
    of_pred, of_target = (joint.sum(1 - axis)[2:].view(-1, 2) for axis in (0, 1))
    return {
        "n_pred_edge": of_pred.sum(1),
        "matched_pred": of_pred[:, 1],
        "n_target_edge": of_target.sum(1),
        "matched_target": of_target[:, 1],
    }


def matched_edges(
    pred: Tensor,
    target: Tensor,
    pred_edge: Tensor,
    target_edge: Tensor,
    num_classes: int,
    spread: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Return where the edges of each map are on those of the same class in the other map, spread out."""
    matched_pred, matched_target = torch.zeros_like(pred_edge), torch.zeros_like(target_edge)
    for first in range(0, num_classes, BITS):
        pred_bits = class_bits(pred, pred_edge, first, num_classes)
        target_bits = class_bits(target, target_edge, first, num_classes)
        matched_pred |= (spread(target_bits) & pred_bits).bool()
        matched_target |= (spread(pred_bits) & target_bits).bool()
    return matched_pred, matched_target


def class_bits(labels: Tensor, edge: Tensor, first: int, num_classes: int) -> Tensor:
    """Return, at edge pixels of the classes first .. first + BITS - 1, the bit of their class."""
    width = min(num_classes - first, BITS)
    kind = torch.uint8 if width <= 8 else torch.int16 if width <= 16 else torch.int32
    if num_classes > BITS:
        edge = edge & ~differs(labels // BITS, first // BITS)
        labels = labels % BITS
    return torch.bitwise_left_shift(edge.to(kind), labels.to(kind))


def smallest_type(bins: int) -> torch.dtype:
    """Return the smallest type that holds so many numbers."""
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
    """Count what the six metrics need from checked label maps, (N, H, W) or (N, D, H, W); see `SegmentationMetrics`.

    Without `bands` BIoU's counts are left out, without `matches` BF1's.
    """
    target_edge = edges(target, num_classes) if bands or matches else None
    around = band(target, cast(Tensor, target_edge), conventions) if bands else None
    names = ("confusion", "boundary_confusion") if bands else ("confusion",)
    counts = dict(zip(names, confusion(pred, target, num_classes, around), strict=True))
    if matches:
        void = ~differs(target, num_classes) if conventions.mask_void else None
        if void is not None:
            target_edge = edges(target, num_classes, void)
        pred_edge = edges(pred, num_classes, void)
        near = reach(conventions.tolerance, conventions.spacing, target.ndim - 1)
        counts |= boundary_matches(pred, target, pred_edge, cast(Tensor, target_edge), num_classes, near)
    return counts


# ---- From counts to the sums of the formulas -----------------------------------------------------------------------


def _overlap_sums(matrix: Tensor) -> dict[str, Tensor]:
    matrix = matrix.double()
    inter, target = matrix.diagonal(), matrix.sum(1)
    union = target + matrix[:, :-1].sum(0) - inter
    return {"inter": inter, "hit": inter, "target": target, "union": union, "all": target.sum().expand_as(target)}


def kernel_sums(name: str, counts: Mapping[str, Tensor], conventions: Conventions | None = None) -> dict[str, Tensor]:
    """Return the sums that the formula of one of the six metrics, or of `more.REGIONS`, takes, out of the counts."""
    if name == "BF1":
        keys = {"pred": "n_pred_edge", "target": "n_target_edge"}
        keys |= {key: key for key in ("matched_pred", "matched_target")}
        return {key: counts[source].double() for key, source in keys.items()}
    sums = _overlap_sums(counts["boundary_confusion" if name == "BIoU" else "confusion"])
    if any(name == one.name for one in more.REGIONS):
        return more.region_sums(name, sums, conventions or Conventions())
    return sums
