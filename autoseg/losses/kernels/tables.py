"""Curves as numbers in a tensor, so that code on a GPU, compiled or not, is the same for every theta."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autoseg.losses.curves import STEEP, Curve
from autoseg.losses.kernels.device import has_triton, in_triton

ROW = 10
"""Numbers of a piece: u0, 1 - u0, r, 1 - r, 4a, least, b, v0, 2c, 4d. It is evaluated as D^2 = least + 4a (y - r),
half_s = (y - u0) / (D + b), g = v0 + half_s (2c + 4d half_s), g' = (c + 4d half_s) / D, where r is the end of the piece
with the smaller D: so nothing cancels. See `autoseg.losses.curves.evaluate_piece`."""


def table(curve: Curve, pieces: int) -> list[list[float]]:
    """Return the numbers of a curve: a row for the values at the ends, then one for each piece.

    A piece that was dropped leaves a row that no y reaches, so that all tables of a family have one shape.
    """
    rows = [[curve.start, curve.end, *[0.0] * (ROW - 2)]]
    for u0, v0, a, b, c, d in curve.pieces:
        r = u0 + b + a if a < 0 else u0
        rows.append([u0, 1 - u0, r, 1 - r, 4 * a, (b + 2 * a) ** 2 if a < 0 else b**2, b, v0, 2 * c, 4 * d])
    unreached = [2.0, *rows[-1][1:]]
    return rows + [unreached] * (pieces - len(curve.pieces))


def value(rows: Tensor, y: Tensor) -> Tensor:
    """Return g(y) for y in [0, 1], given the table of g; without autograd."""
    rows, pick, _, half_s = _solve(rows, y)
    g = (half_s * pick(9)).add_(pick(8)).mul_(half_s).add_(pick(7))
    g = torch.where(y <= 0, rows[0, 0], g)
    return torch.where(y >= 1, rows[0, 1], g)


def slope(rows: Tensor, y: Tensor) -> Tensor:
    """Return g'(y) for y in [0, 1], given the table of g; without autograd."""
    _, pick, root, half_s = _solve(rows, y)
    return half_s.mul_(pick(9)).add_(pick(8), alpha=0.5).div_(root)


def _solve(rows: Tensor, y: Tensor) -> tuple[Tensor, Callable[[int], Tensor], Tensor, Tensor]:
    """Return the table in y's type, its numbers by piece, D, and s / 2.

    The numbers of the piece that y is in are picked one after the other, so that few maps are in memory at a time.
    """
    rows = rows.to(y.dtype)
    later = [y >= row[0] for row in rows[2:]]

    def pick(k: int) -> Tensor:
        picked = rows[1, k]
        for row, here in zip(rows[2:], later, strict=True):
            picked = torch.where(here, row[k], picked)
        return picked

    root = (y - pick(2)).mul_(pick(4)).add_(pick(5)).clamp_(min=STEEP**2).sqrt_()
    half_s = (y - pick(0)).div_(root + pick(6)).clamp_(max=0.5)
    return rows, pick, root, half_s


def cut_value(rows: Tensor, y: Tensor) -> Tensor:
    """Return g(y), y cut to [0, 1] first."""
    return value(rows, y.clamp(0, 1))


def cut_slope(rows: Tensor, y: Tensor) -> Tensor:
    """Return the derivative of `cut_value`; that of the cut is 1 at both ends."""
    return slope(rows, y.clamp(0, 1)).mul_((y >= 0) & (y <= 1))


@in_triton("triton_curve", lambda rows, y: torch.empty_like(y))
def curve_values(rows: Tensor, y: Tensor) -> Tensor:
    """Return what `cut_value` says, as one launch of a Triton kernel."""
    return cut_value(rows, y)


@in_triton("triton_curve", lambda rows, y: torch.empty_like(y))
def curve_slopes(rows: Tensor, y: Tensor) -> Tensor:
    """Return what `cut_slope` says, as one launch of a Triton kernel."""
    return cut_slope(rows, y)


class Shaped(torch.autograd.Function):
    """g(y), y cut to [0, 1] first, with autograd."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, rows: Tensor) -> Tensor:
        """Return g(y)."""
        ctx.save_for_backward(y, rows)
        return curve_values(rows, y.contiguous()) if has_triton(y) else cut_value(rows, y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient by y."""
        y, rows = ctx.saved_tensors
        return gradient * (curve_slopes(rows, y.contiguous()) if has_triton(y) else cut_slope(rows, y)), None
