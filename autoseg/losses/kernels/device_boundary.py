"""BF1 on a GPU, and in compiled code, for all images at once: no host sync, no shape that depends on data.

With Triton, each operation of torch's dispatcher here is one launch of a kernel of `triton_boundary`. Without it, the
same in torch, which a compiler can read. Assumes the truth table, g(0) = 0 and g(1) = 1.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autoseg.losses.kernels.device import SUMMED, fused, in_triton
from autoseg.losses.kernels.tables import cut_slope, cut_value
from autoseg.metrics.counts import BITS

CURVES = (("edge.AND", 0), ("edge.AND", 1), ("edge.OR", 0), ("edge.OR", 1), ("precision", 0), ("recall", 0))
"""The operands that have a curve. `which` says, for each, the number of its table; -1: no curve."""


class BoundaryStats(torch.autograd.Function):
    """The sums matched_pred, pred, matched_target and target of BF1's formula, (4, C) in float64.

    Args:
        logits: (N, C, H, W), of any float type.
        labels: (N, H, W) in int64, C for void.
        edge: where the target has an edge.
        near: (words, N, H, W) in int32, a bit for each class: where it has an edge within the tolerance.
        seen: where pixels are seen at all; None: everywhere.
        tables, which: the curves, see `CURVES`.
        tolerance: in pixels.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        edge: Tensor,
        near: Tensor,
        seen: Tensor | None,
        tables: Tensor,
        which: tuple[int, ...],
        tolerance: int,
    ) -> Tensor:
        """Return the sums."""
        p = logits.softmax(1, dtype=torch.promote_types(logits.dtype, torch.float32)).contiguous()
        by_triton, curves = fused(p, tables), list(which)
        e, of_pred = (soft_edges if by_triton else _soft_edges)(p, near, seen, tables, curves)
        match = best_match if by_triton else _best_match
        slope, where, of_target = match(e, labels, edge, tables, curves[5], tolerance)
        ctx.save_for_backward(p, labels, near, seen, tables, slope, where)
        ctx.which, ctx.kind = curves, logits.dtype
        pred = of_pred.unflatten(0, p.shape[:2]).sum((0, 2), dtype=torch.float64)
        return torch.cat([pred.t(), of_target.sum(0, dtype=torch.float64)])

    @staticmethod
    def backward(ctx: Any, by_stats: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient by the logits."""
        p, labels, near, seen, tables, slope, where = ctx.saved_tensors
        by_triton, by = fused(p, tables), by_stats.to(p.dtype)
        # What each matched edge pixel of the target adds to the derivative by the soft edge that matched it.
        by_found = torch.cat([by[2], by.new_zeros(1)])[labels].mul_(slope)
        by_edge = torch.zeros_like(p).view(-1).index_add_(0, where.view(-1), by_found.view(-1)).view_as(p)
        parts = (edge_gradient if by_triton else _edge_gradient)(p, by_edge, near, seen, tables, ctx.which, by[:2])
        del by_edge
        by_p, by_least, direction = parts
        gradient = (route if by_triton else _route)(p, by_p, by_least, direction, seen).to(ctx.kind)
        return gradient, None, None, None, None, None, None, None


# ---- In torch ------------------------------------------------------------------------------------------------------


def _value(tables: Tensor, number: int, x: Tensor) -> Tensor:
    """Return g, or x itself without a curve."""
    return x if number < 0 else cut_value(tables[number], x)


def _slope(tables: Tensor, number: int, x: Tensor) -> Tensor:
    """Return g', or 1 without a curve."""
    return torch.ones_like(x) if number < 0 else cut_slope(tables[number], x)


def _least(p: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the least neighbour of p in the 3x3 window, and where that is."""
    x = p if seen is None else torch.where(seen.unsqueeze(1), p, 1.0)
    least, index = F.max_pool2d(-x, 3, stride=1, padding=1, return_indices=True)
    return least.neg_(), index


def _edge(p: Tensor, least: Tensor, seen: Tensor | None, tables: Tensor, which: list[int]) -> Tensor:
    """Return the soft edges OR - AND of p and its least neighbour."""
    g4 = _value(tables, which[3], least)
    # in a form that keeps its digits where all are small
    e = _value(tables, which[2], p) * (1 - g4) + g4
    e = e - _value(tables, which[0], p) * _value(tables, which[1], least)
    return e if seen is None else torch.where(seen.unsqueeze(1), e, 0.0)


def _near(near: Tensor, classes: int) -> Tensor:
    """Return (N, C, H, W): whether the class has an edge within the tolerance."""
    c = torch.arange(classes, device=near.device, dtype=near.dtype).view(1, -1, 1, 1)
    return (near.transpose(0, 1).repeat_interleave(BITS, 1)[:, :classes] >> (c % BITS) & 1).bool()


def _soft_edges(
    p: Tensor, near: Tensor, seen: Tensor | None, tables: Tensor, which: list[int]
) -> tuple[Tensor, Tensor]:
    e = _edge(p, _least(p, seen)[0], seen, tables, which)
    hit = torch.where(_near(near, p.shape[1]), _value(tables, which[4], e), 0.0)
    sums = torch.stack([x.sum((2, 3), dtype=torch.float64) for x in (hit, e)], 2)
    return e, sums.flatten(0, 1).unsqueeze(1)


def _best_match(
    e: Tensor, labels: Tensor, edge: Tensor, tables: Tensor, recall: int, tolerance: int
) -> tuple[Tensor, Tensor, Tensor]:
    n, classes, height, width = e.shape
    rows, columns = min(tolerance, height - 1), min(tolerance, width - 1)
    size = (2 * rows + 1, 2 * columns + 1)
    best, index = F.max_pool2d(e, size, stride=1, padding=(rows, columns), return_indices=True)
    label = torch.where(edge, labels, 0).unsqueeze(1)
    plane = torch.arange(n, device=e.device).view(-1, 1, 1) * classes + label.squeeze(1)
    where = index.gather(1, label).squeeze(1) + plane * (height * width)
    best = best.gather(1, label).squeeze(1)
    found, slope = _value(tables, recall, best), _slope(tables, recall, best)
    mine = (label == torch.arange(classes, device=e.device).view(1, -1, 1, 1)) & edge.unsqueeze(1)
    matched = torch.where(mine, found.unsqueeze(1), 0.0).sum((0, 2, 3), dtype=torch.float64)
    sums = torch.stack([matched, mine.sum((0, 2, 3), dtype=torch.float64)])
    return torch.where(edge, slope, 0.0), where, sums.unsqueeze(0)


def _edge_gradient(
    p: Tensor, by_edge: Tensor, near: Tensor, seen: Tensor | None, tables: Tensor, which: list[int], by: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    least, index = _least(p, seen)
    width = p.shape[3]
    places = torch.arange(p.shape[2] * width, device=p.device).view(p.shape[2:])
    down, right = index // width - places // width, index % width - places % width
    direction = down.mul_(3).add_(right).add_(4).to(torch.uint8)
    del index, down, right
    by_matched, by_pred = by.view(2, 1, -1, 1, 1)
    weight = _slope(tables, which[4], _edge(p, least, seen, tables, which)) * by_matched
    weight = torch.where(_near(near, p.shape[1]), weight, 0.0).add_(by_pred).add_(by_edge)
    if seen is not None:
        weight = torch.where(seen.unsqueeze(1), weight, 0.0)
    parts = []
    for x, of_and, other, and_, or_ in ((p, 0, least, 1, 3), (least, 1, p, 0, 2)):
        part = _slope(tables, which[of_and + 2], x) * (1 - _value(tables, which[or_], other))
        parts.append(part.sub_(_slope(tables, which[of_and], x) * _value(tables, which[and_], other)).mul_(weight))
    return parts[0], parts[1], direction


def _route(p: Tensor, by_p: Tensor, by_least: Tensor, direction: Tensor, seen: Tensor | None) -> Tensor:
    height, width = p.shape[2:]
    by_least, direction = F.pad(by_least, (1, 1, 1, 1)), F.pad(direction, (1, 1, 1, 1), value=9)
    t = by_p
    for k in range(9):  # the neighbour in direction k has this pixel in the opposite one
        there = (..., slice(k // 3, k // 3 + height), slice(k % 3, k % 3 + width))
        t = t + torch.where(direction[there] == 8 - k, by_least[there], 0.0)
    if seen is not None:
        t = torch.where(seen.unsqueeze(1), t, 0.0)
    t = t * p
    return t.addcmul_(p, t.sum(1, keepdim=True), value=-1)


# ---- In Triton -----------------------------------------------------------------------------------------------------


def _programs(x: Tensor) -> int:
    """Return how many programs sum up the pixels of an image."""
    return -(-x.shape[2] * x.shape[3] // SUMMED)


@in_triton("triton_boundary", lambda p, *_: (torch.empty_like(p), p.new_empty(len(p) * p.shape[1], _programs(p), 2)))
def soft_edges(p: Tensor, near: Tensor, seen: Tensor | None, tables: Tensor, which: list[int]) -> tuple[Tensor, Tensor]:
    """Return the soft edges, and the sums of each part of a plane: of those near the target's edges, and of all."""
    e, sums = _soft_edges(p, near, seen, tables, which)
    return e, F.pad(sums, (0, 0, 0, _programs(p) - 1)).to(p.dtype)


def _empty_match(e: Tensor, labels: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    sums = e.new_empty(len(e) * _programs(e), 2, e.shape[1])
    return torch.empty_like(labels, dtype=e.dtype), torch.empty_like(labels), sums


@in_triton("triton_boundary", _empty_match)
def best_match(
    e: Tensor, labels: Tensor, edge: Tensor, tables: Tensor, recall: int, tolerance: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each edge pixel of the target, the slope of the recall's curve at the greatest soft edge of its class
    within the tolerance, and where that is; and the sums of each program: of the curve, and of the target's edges.
    """
    slope, where, sums = _best_match(e, labels, edge, tables, recall, tolerance)
    return slope, where, F.pad(sums, (0, 0, 0, 0, 0, len(e) * _programs(e) - 1)).to(e.dtype)


def _empty_parts(p: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(p), torch.empty_like(p), torch.empty_like(p, dtype=torch.uint8)


@in_triton("triton_boundary", _empty_parts)
def edge_gradient(
    p: Tensor, by_edge: Tensor, near: Tensor, seen: Tensor | None, tables: Tensor, which: list[int], by: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the derivatives by p and by its least neighbour, and in which of 9 directions that is.

    `by_edge` is the derivative by each soft edge through the target's matches, `by` (2, C) that by the other sums.
    """
    return _edge_gradient(p, by_edge, near, seen, tables, which, by)


@in_triton("triton_boundary", lambda p, *_: torch.empty_like(p))
def route(p: Tensor, by_p: Tensor, by_least: Tensor, direction: Tensor, seen: Tensor | None) -> Tensor:
    """Return the gradient by the logits, given what `edge_gradient` returns."""
    return _route(p, by_p, by_least, direction, seen)
