"""The sums of a linear form on a GPU, and in compiled code: no host sync, no shape or branch that depends on data.

With Triton, an operation of torch's dispatcher (`autoseg::region_sums`, `autoseg::region_gradient`) is one launch of a
kernel of `triton_region`. Without it, the same in torch, which a compiler can read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoseg.losses.kernels.device import SUMMED, fused, in_triton, tile
from autoseg.losses.kernels.tables import slope, value


class RegionStats(torch.autograd.Function):
    """The sums of 1, p and curves, (2, terms, C) in float64: over the pixels of other classes, and of the class itself.

    Args:
        logits: (N, C, H, W), of any float type.
        target: (N, H, W); a label that is neither `void` nor in 0..C-1 makes the sums NaN.
        tables: of the curves: the first `others` for the pixels of other classes, the rest for those of the class.
        void: the label of void; void_seen: void pixels count as pixels of other classes, else they are left out.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, tables: Tensor, others: int, void: int, void_seen: bool
    ) -> Tensor:
        """Return the sums."""
        ctx.save_for_backward(logits, target, tables)
        ctx.settings = (others, void, void_seen)
        if fused(logits, tables):
            return region_sums(logits, target, tables, others, void, void_seen).sum(0, dtype=torch.float64)
        return _sums(logits, target, tables, others, void, void_seen)

    @staticmethod
    def backward(ctx: Any, by_stats: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient by the logits."""
        logits, target, tables = ctx.saved_tensors
        compute = region_gradient if fused(logits, tables) else _gradient
        return compute(logits, target, tables, by_stats, *ctx.settings), None, None, None, None, None


def _width(tables: Tensor, others: int) -> int:
    return 2 + max(others, len(tables) - others)


# ---- In torch ------------------------------------------------------------------------------------------------------


def _read(logits: Tensor, target: Tensor, void: int, void_seen: bool) -> tuple[Tensor, ...]:
    """Return p; the labels, 0 where there is none; where the class is the label; where it is another that counts; where
    a label is bad.
    """
    classes = logits.shape[1]
    p = logits.softmax(1, dtype=torch.promote_types(logits.dtype, torch.float32))
    label = target.unsqueeze(1).long()
    is_void = label == void
    known = (label >= 0) & (label < classes) & ~is_void
    mine = (label == torch.arange(classes, device=label.device).view(1, -1, 1, 1)) & known
    counts = known | is_void if void_seen else known
    return p, torch.where(known, label, 0), mine, ~mine & counts, ~(known | is_void)


def _sums(logits: Tensor, target: Tensor, tables: Tensor, others: int, void: int, void_seen: bool) -> Tensor:
    p, index, mine, other, bad = _read(logits, target, void, void_seen)
    parts = []
    for where, x, curves in ((other, p, tables[:others]), (mine, p.gather(1, index), tables[others:])):
        values = (x, *(value(rows, x) for rows in curves))
        sums = [torch.where(where, v, 0.0).sum((0, 2, 3), dtype=torch.float64) for v in values]
        sums.insert(0, where.sum((0, 2, 3), dtype=torch.float64))
        sums += [torch.zeros_like(sums[0])] * (_width(tables, others) - len(sums))
        parts.append(torch.stack(sums))
    return torch.where(bad.any(), torch.nan, torch.stack(parts))


def _gradient(
    logits: Tensor, target: Tensor, tables: Tensor, by_stats: Tensor, others: int, void: int, void_seen: bool
) -> Tensor:
    p, index, mine, other, _ = _read(logits, target, void, void_seen)
    by_others, by_label = by_stats.to(p.dtype)
    by_p = by_others[1].view(1, -1, 1, 1)
    for rows, by in zip(tables[:others], by_others[2:], strict=False):
        by_p = by_p + slope(rows, p).mul_(by.view(1, -1, 1, 1))
    p_true = p.gather(1, index)
    by_true = by_label[1][index]
    for rows, by in zip(tables[others:], by_label[2:], strict=False):
        by_true = by_true + slope(rows, p_true).mul_(by[index])
    t = torch.where(mine, p_true * by_true, torch.where(other, p * by_p, 0.0))
    gradient = t.addcmul_(p, t.sum(1, keepdim=True), value=-1)
    # A softmax's gradient adds up to 0 over classes. The true class's own is right by that, not by 1 - p, which has few
    # digits left where the network is sure.
    gradient = gradient.masked_fill_(mine, 0.0)
    return torch.where(mine, -gradient.sum(1, keepdim=True), gradient).to(logits.dtype)


# ---- In Triton -----------------------------------------------------------------------------------------------------


def empty_sums(logits: Tensor, target: Tensor, tables: Tensor, others: int, void: int, void_seen: bool) -> Tensor:
    """Return an empty (programs, 2, terms, C)."""
    n, classes, height, width = logits.shape
    pixels = max(tile(classes)[1], SUMMED)
    kind = torch.promote_types(logits.dtype, torch.float32)
    return logits.new_empty(n * -(-height * width // pixels), 2, _width(tables, others), classes, dtype=kind)


@in_triton("triton_region", empty_sums)
def region_sums(logits: Tensor, target: Tensor, tables: Tensor, others: int, void: int, void_seen: bool) -> Tensor:
    """Return the sums of each program, (programs, 2, terms, C); without Triton's, all are in the first."""
    out = empty_sums(logits, target, tables, others, void, void_seen).zero_()
    if len(out):
        out[0] = _sums(logits, target, tables, others, void, void_seen)
    return out


@in_triton("triton_region", lambda logits, *_: torch.empty_like(logits))
def region_gradient(
    logits: Tensor, target: Tensor, tables: Tensor, by_stats: Tensor, others: int, void: int, void_seen: bool
) -> Tensor:
    """Return the gradient by the logits."""
    return _gradient(logits, target, tables, by_stats, others, void, void_seen)
