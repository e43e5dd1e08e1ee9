"""A curve in Triton: g and g' from the rows of `autoseg.losses.kernels.tables`."""

# Triton's compiler reads these functions: their arguments have no types.
# mypy: ignore-errors

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
def shaped(table, y, rest, PIECES: tl.constexpr):
    """Return g(y) and g'(y), given the table of g; `rest` is 1 - y, more precise than y where y is near 1."""
    from_r = tl.where(y < 0.5, y - _pick(table, y, 1, PIECES), _pick(table, y, 2, PIECES) - rest)
    square = _pick(table, y, 4, PIECES) + _pick(table, y, 3, PIECES) * from_r
    root = tl.sqrt(tl.maximum(square, LEAST_ROOT * LEAST_ROOT))
    half_s = tl.minimum((y - _pick(table, y, 0, PIECES)) / (root + _pick(table, y, 5, PIECES)), 0.5)
    rise, c2 = half_s * _pick(table, y, 8, PIECES), _pick(table, y, 7, PIECES)
    value = _pick(table, y, 6, PIECES) + half_s * (c2 + rise)
    value = tl.where(y <= 0, tl.load(table), value)
    value = tl.where(y >= 1, tl.load(table + 1), value)
    return value, (0.5 * c2 + rise) / root
