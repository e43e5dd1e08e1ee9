"""A curve in Triton: g and g' from the rows of `autoseg.losses.kernels.tables`, for kernels and on maps."""

# Triton's compiler reads these functions: their arguments have no types.
# mypy: ignore-errors

import torch
import triton
import triton.language as tl

from autoseg.losses.curves import STEEP
from autoseg.losses.kernels.tables import ROW

ROW_SIZE = tl.constexpr(ROW)
LEAST_ROOT = tl.constexpr(STEEP)


@triton.jit
def _pick(table, y, k: tl.constexpr, PIECES: tl.constexpr):
    """Return number k of the piece that y is in."""
    picked = tl.load(table + ROW_SIZE + k)
    for piece in tl.static_range(2, PIECES + 1):
        row = table + piece * ROW_SIZE
        picked = tl.where(y >= tl.load(row), tl.load(row + k), picked)
    return picked


@triton.jit
def _beyond(table, y, rest, k: tl.constexpr, PIECES: tl.constexpr):
    """Return y - u, given that number k is u and the next one 1 - u; from `rest` where that has more digits."""
    return tl.where(y < 0.5, y - _pick(table, y, k, PIECES), _pick(table, y, k + 1, PIECES) - rest)


@triton.jit
def _square(table, y, rest, PIECES: tl.constexpr):
    """Return D^2, not cut."""
    return _pick(table, y, 5, PIECES) + _pick(table, y, 4, PIECES) * _beyond(table, y, rest, 2, PIECES)


@triton.jit
def delicate(table, y, rest, PIECES: tl.constexpr):
    """Return where D is so small that g' of a float32 y has fewer than 5 digits, see `Curve.delicate`."""
    return _square(table, y, rest, PIECES) < 6e-3 * tl.abs(_pick(table, y, 4, PIECES)) * tl.minimum(y, rest)


@triton.jit
def shaped(table, y, rest, PIECES: tl.constexpr):
    """Return g(y) and g'(y), given the table of g; `rest` is 1 - y, more precise than y where y is near 1."""
    root = tl.sqrt(tl.maximum(_square(table, y, rest, PIECES), LEAST_ROOT * LEAST_ROOT))
    half_s = tl.minimum(_beyond(table, y, rest, 0, PIECES) / (root + _pick(table, y, 6, PIECES)), 0.5)
    rise, c2 = half_s * _pick(table, y, 9, PIECES), _pick(table, y, 8, PIECES)
    value = _pick(table, y, 7, PIECES) + half_s * (c2 + rise)
    value = tl.where(y <= 0, tl.load(table), value)
    value = tl.where(y >= 1, tl.load(table + 1), value)
    return value, (0.5 * c2 + rise) / root


@triton.jit
def cut(table, x, PIECES: tl.constexpr):
    """Return g and g' of x cut to [0, 1]; the slope is 0 outside."""
    y = tl.minimum(tl.maximum(x, 0.0), 1.0)
    value, slope = shaped(table, y, 1 - y, PIECES)
    value = tl.where(x == x, value, float("nan"))
    return value, tl.where((x >= 0) & (x <= 1), slope, 0.0)


@triton.jit
def _map_kernel(rows, y, out, size, PIECES: tl.constexpr, SLOPE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value, slope = cut(rows, tl.load(y + i, mask=i < size, other=0.0), PIECES)
    if SLOPE:
        value = slope
    tl.store(out + i, value, mask=i < size)


def _on_map(rows, y, slope):
    out = torch.empty_like(y)
    if y.numel():
        grid, rows = (triton.cdiv(y.numel(), 1024),), rows.to(y.dtype).contiguous()
        _map_kernel[grid](rows, y, out, y.numel(), PIECES=len(rows) - 1, SLOPE=slope, BLOCK=1024)
    return out


def curve_values(rows, y):
    """See `tables.curve_values`."""
    return _on_map(rows, y, False)


def curve_slopes(rows, y):
    """See `tables.curve_slopes`."""
    return _on_map(rows, y, True)
