"""Rims, surfaces, distances and skeletons: of soft maps (N, C, ...) with gradients, and of label maps (N, ...), fast.

Both are tested equal on hard maps. Two or three dimensions. `valid` is (N, 1, ...), 1 where a pixel has a label: void
erodes nothing and spreads nothing, as if the map ended there. In rims and surfaces the border of the image does erode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from autoseg.metrics import more
from autoseg.metrics.conventions import Conventions, fitting
from autoseg.metrics.counts import BITS, Counts, class_bits, differs, matched_edges, smallest_type
from autoseg.metrics.formula import Formula

# ---- Geometry ------------------------------------------------------------------------------------------------------


def pixels_wide(width: float, sizes: Sequence[int]) -> int:
    """Return the width of Boundary IoU's bands in pixels: at least 1, and below 1 a share of the image's diagonal.

    The diagonal of a volume that is one slice is that of the slice.

    >>> pixels_wide(0.02, (512, 512)), pixels_wide(3, (512, 512))
    (14, 3)
    """
    share = width * math.hypot(*(sizes[axis] for axis in bordered(sizes, 0))) if width < 1 else width
    return max(round(share), 1)


def ball(distance: float, spacing: tuple[float, ...] | None, sizes: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    """Return a ball as rows along the last axis: the offset along the other axes -> how far the row reaches.

    >>> ball(1.5, None, (9, 9))
    {(-1,): 1, (0,): 1, (1,): 1}
    """
    spacing = fitting(spacing, len(sizes))
    rows: dict[tuple[int, ...], int] = {}
    limit = distance**2 * (1 + 1e-9)
    for offset in _offsets(distance, spacing[:-1], sizes[:-1]):
        rest = limit - sum((step * size) ** 2 for step, size in zip(offset, spacing, strict=False))
        if rest >= 0:
            rows[offset] = min(int(math.sqrt(rest) / spacing[-1]), sizes[-1] - 1)
    return rows


def _offsets(distance: float, spacing: Sequence[float], sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not spacing:
        yield ()
        return
    reach = min(int(distance / spacing[0] * (1 + 1e-9)), sizes[0] - 1)
    for step in range(-reach, reach + 1):
        for rest in _offsets(distance, spacing[1:], sizes[1:]):
            yield (step, *rest)


def bordered(shape: Sequence[int], first: int) -> list[int]:
    """Return the axes along which the image has a border: all, but for the depth of a volume that is one slice."""
    axes = list(range(first, len(shape)))
    return axes[1:] if len(axes) == 3 and shape[first] == 1 else axes


# ---- Soft maps (N, C, ...) -----------------------------------------------------------------------------------------


def rim(x: Tensor, width: int, valid: Tensor | None = None) -> Tensor:
    """Return x - the minimum of x over a square of radius `width`, with zeros outside the image."""
    low = x = _filled(x, valid)
    for axis in bordered(x.shape, 2):
        low = _least(low, axis, width, outside=0.0)
    return _kept(x - low, valid)


def surface(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return x - the minimum of x over each pixel and its neighbours along the axes, with zeros outside the image."""
    low = x = _filled(x, valid)
    for axis in bordered(x.shape, 2):
        low = torch.minimum(low, _least(x, axis, 1, outside=0.0))
    return _kept(x - low, valid)


def near(x: Tensor, distance: float, spacing: tuple[float, ...] | None = None) -> Tensor:
    """Return the maximum of x over the ball of radius `distance` around each pixel, with zeros outside the image."""
    sizes = tuple(x.shape[2:])
    widest: dict[int, Tensor] = {}
    found: Tensor | None = None
    for offset, reach in ball(float(distance), spacing, sizes).items():
        if reach not in widest:
            widest[reach] = -_least(-x, x.ndim - 1, reach, outside=0.0) if reach else x
        moved = widest[reach]
        for axis, step in enumerate(offset, 2):
            moved = _moved(moved, axis, step)
        found = moved if found is None else torch.maximum(found, moved)
    assert found is not None  # the ball holds its centre
    return found


def skeleton(x: Tensor, steps: int, valid: Tensor | None = None) -> Tensor:
    """Return the soft skeleton: what an opening removes from x, eroded 0 .. `steps` times, put together as by OR."""
    x = _filled(x, valid)
    line = torch.zeros_like(x)
    for step in range(steps + 1):
        eroded = x
        for axis in range(2, x.ndim):
            eroded = torch.minimum(eroded, _least(x, axis, 1))
        opened = _kept(eroded, valid)
        for axis in range(2, x.ndim):
            opened = -_least(-opened, axis, 1)
        lost = _kept(F.relu(x - opened), valid)
        line = line + F.relu(lost - line * lost)
        if step < steps:
            x = _filled(eroded, valid)
    return line


def _filled(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return x with ones in void, which erode nothing."""
    return x if valid is None else x * valid + (1 - valid)


def _kept(x: Tensor, valid: Tensor | None) -> Tensor:
    return x if valid is None else x * valid


def _least(x: Tensor, axis: int, reach: int, outside: float | None = None) -> Tensor:
    """Return the minimum over 2 reach + 1 pixels along an axis; None: outside the image there is nothing."""
    reach = min(reach, x.shape[axis] if outside is not None else max(x.shape[axis] - 1, 0))
    if reach == 0:
        return x
    kernel, padding = [1] * (x.ndim - 2), [0] * (x.ndim - 2)
    kernel[axis - 2] = 2 * reach + 1
    if outside is None:
        padding[axis - 2] = reach
    else:
        sides = [0] * (2 * (x.ndim - 2))
        sides[2 * (x.ndim - 1 - axis)] = sides[2 * (x.ndim - 1 - axis) + 1] = reach
        x = F.pad(x, sides, value=outside)
    pool: Callable[..., Tensor] = F.max_pool2d if len(kernel) == 2 else F.max_pool3d
    return -pool(-x, kernel, stride=1, padding=padding)


def _moved(x: Tensor, axis: int, step: int) -> Tensor:
    """Return x moved along an axis; zeros come in."""
    if step == 0:
        return x
    size, sides = x.shape[axis], [0] * (2 * (x.ndim - 2))
    place = 2 * (x.ndim - 1 - axis)
    sides[place + (step < 0)] = abs(step)
    kept = x.narrow(axis, max(-step, 0), size - abs(step))
    return F.pad(kept, sides)


# ---- Label maps (N, ...) -------------------------------------------------------------------------------------------


def counter(formula: Formula) -> Callable[[Tensor, Tensor, int, Conventions], Counts] | None:
    """Return the function that counts a formula's sums on checked label maps, with C for void; None: there is none."""
    known = ((more.BoundaryIoU, count_rims), (more.NSD, count_surfaces), (more.clDice, count_skeletons))
    return next((count for one, count in known if one is formula), None)


def count_rims(pred: Tensor, target: Tensor, num_classes: int, conventions: Conventions) -> Counts:
    """Count the sums of Boundary IoU."""
    void = ~differs(target, num_classes)
    width = pixels_wide(conventions.band_width, pred.shape[1:])
    in_rim = [labels.where(_label_rim(labels, num_classes, void, width), num_classes) for labels in (pred, target)]
    joint = _joint(in_rim[0], in_rim[1], num_classes)
    inter, of_pred, of_target = joint.diagonal()[:-1], joint.sum(1)[:-1], joint.sum(0)[:-1]
    return {"inter": inter, "union": of_pred + of_target - inter, "target": of_target}


def count_surfaces(pred: Tensor, target: Tensor, num_classes: int, conventions: Conventions) -> Counts:
    """Count the sums of NSD."""
    void = ~differs(target, num_classes)
    edges = [_label_surface(labels, num_classes, void) for labels in (pred, target)]
    rows = ball(conventions.distance, conventions.spacing, tuple(pred.shape[1:]))
    matched = matched_edges(pred, target, edges[0], edges[1], num_classes, lambda bits: _near_bits(bits, rows))
    total, hits = (
        [_histogram(labels, here, num_classes) for labels, here in zip((pred, target), maps, strict=True)]
        for maps in (edges, matched)
    )
    both = hits[0] + hits[1]
    return {"matched": both, "missed": total[0] + total[1] - both, "target": total[1]}


def count_skeletons(pred: Tensor, target: Tensor, num_classes: int, conventions: Conventions) -> Counts:
    """Count the sums of clDice."""
    void = ~differs(target, num_classes)
    same = pred == target
    steps = conventions.skeleton_steps
    lines = [_label_skeleton(labels, num_classes, void, steps) for labels in (pred, target)]
    inside = _histogram(pred, lines[0] & same, num_classes)
    return {
        "inside": inside,
        "outside": _histogram(pred, lines[0], num_classes) - inside,
        "covered": _histogram(target, lines[1] & same, num_classes),
        "target": _histogram(target, lines[1], num_classes),
    }


def _histogram(labels: Tensor, here: Tensor, num_classes: int) -> Tensor:
    """Return the number of pixels of each class where a map is true: at few of them, each of a class."""
    return torch.bincount(labels[here], minlength=num_classes).double()


def _joint(first: Tensor, second: Tensor, num_classes: int) -> Tensor:
    """Return how often each pair of labels occurs, C included."""
    side = num_classes + 1
    code = first.to(smallest_type(side * side)).mul_(side).add_(second)
    return torch.bincount(code.view(-1), minlength=side * side).view(side, side).double()


def _label_rim(labels: Tensor, num_classes: int, void: Tensor, width: int) -> Tensor:
    """Return where a pixel of a class has another label, or the border, within a square of radius `width`."""
    low, high = labels.masked_fill(void, num_classes), labels.masked_fill(void, 0)
    for axis in range(1, labels.ndim):
        low, high = _running(torch.minimum, low, axis, width), _running(torch.maximum, high, axis, width)
    # Void alone in the window: low is C, high 0. A pixel of a class has at least its own label there.
    found = low != high
    for axis in bordered(labels.shape, 1):
        reach = min(width, labels.shape[axis])
        found.narrow(axis, 0, reach).fill_(True)
        found.narrow(axis, labels.shape[axis] - reach, reach).fill_(True)
    return found & differs(labels, num_classes) & ~void


def _label_surface(labels: Tensor, num_classes: int, void: Tensor) -> Tensor:
    """Return where a pixel of a class has another label beside it along an axis, or the border."""
    found = torch.zeros_like(void)
    for axis in range(1, labels.ndim):
        size = labels.shape[axis]
        if size > 1:
            left, right = (slice(0, size - 1), slice(1, size))
            ends = [labels.narrow(axis, part.start, size - 1) for part in (left, right)]
            gone = [void.narrow(axis, part.start, size - 1) for part in (left, right)]
            step = (ends[0] != ends[1]) & ~(gone[0] | gone[1])
            found.narrow(axis, 0, size - 1).logical_or_(step)
            found.narrow(axis, 1, size - 1).logical_or_(step)
    for axis in bordered(labels.shape, 1):
        found.narrow(axis, 0, 1).fill_(True)
        found.narrow(axis, labels.shape[axis] - 1, 1).fill_(True)
    return found & differs(labels, num_classes) & ~void


def _near_bits(bits: Tensor, rows: dict[tuple[int, ...], int]) -> Tensor:
    """Return the OR over a ball around each pixel."""
    wide, reach, last = {0: bits}, 0, bits.ndim - 1
    for wanted in sorted(set(rows.values())):
        grown = wide[reach].clone()
        for step in range(reach + 1, wanted + 1):
            _spread(grown, bits, last, step)
            _spread(grown, bits, last, -step)
        wide[wanted], reach = grown, wanted
    found = torch.zeros_like(bits)
    for offset, wanted in rows.items():
        _spread_by(found, wide[wanted], offset)
    return found


def _spread(onto: Tensor, bits: Tensor, axis: int, step: int) -> None:
    size = bits.shape[axis] - abs(step)
    onto.narrow(axis, max(step, 0), size).bitwise_or_(bits.narrow(axis, max(-step, 0), size))


def _spread_by(onto: Tensor, bits: Tensor, offset: Sequence[int]) -> None:
    for axis, step in enumerate(offset, 1):
        size = bits.shape[axis] - abs(step)
        onto, bits = onto.narrow(axis, max(step, 0), size), bits.narrow(axis, max(-step, 0), size)
    onto.bitwise_or_(bits)


def _label_skeleton(labels: Tensor, num_classes: int, void: Tensor, steps: int) -> Tensor:
    """Return the skeletons of all classes: a pixel can be in that of its own class only."""
    line = torch.zeros_like(void)
    known = differs(labels, num_classes) & ~void
    for first in range(0, num_classes, BITS):
        bits = class_bits(labels, known, first, num_classes)
        every = ~torch.zeros_like(bits) * void if bool(void.any()) else None  # void erodes no class
        lost, opened, rows = torch.zeros_like(bits), torch.empty_like(bits), torch.empty_like(bits)
        for _ in range(steps + 1):
            source = bits if every is None else bits | every
            eroded = bits.clone()
            for axis in range(1, bits.ndim):
                size = bits.shape[axis] - 1
                eroded.narrow(axis, 0, size).bitwise_and_(source.narrow(axis, 1, size))
                eroded.narrow(axis, 1, size).bitwise_and_(source.narrow(axis, 0, size))
            opened.copy_(eroded)
            for axis in range(1, bits.ndim):
                rows.copy_(opened)
                _spread(opened, rows, axis, 1)
                _spread(opened, rows, axis, -1)
            lost |= opened.bitwise_not_().bitwise_and_(bits)
            bits = eroded
        line |= lost.bool()
    return line


def _running(reduce: Callable[..., Tensor], x: Tensor, axis: int, reach: int) -> Tensor:
    """Return a minimum or maximum over 2 reach + 1 pixels along an axis, by doubling; the image's edge goes on."""
    size = x.shape[axis]
    reach = min(reach, size - 1)
    if reach == 0:
        return x
    ends = [x.narrow(axis, 0, 1), x.narrow(axis, size - 1, 1)]
    shape = [reach if k == axis else -1 for k in range(x.ndim)]
    x = torch.cat([ends[0].expand(shape), x, ends[1].expand(shape)], axis)
    covered, window = 1, 2 * reach + 1
    while covered < window:
        step = min(covered, window - covered)
        rest = x.shape[axis] - step
        x = reduce(x.narrow(axis, 0, rest), x.narrow(axis, step, rest))
        covered += step
    return x
