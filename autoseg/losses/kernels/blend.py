"""A curve on a CPU for probabilities of any distribution, without a choice for each of them.

The numbers of the piece that y is in are blended by masks of 0 and 1, because torch's `where` takes as long as ten
products. See `tables` for how a piece is evaluated.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from autoseg.losses.curves import STEEP, Curve
from autoseg.losses.kernels.tables import table

MAPS = 8  # of memory that `BlendedCurve` takes


class BlendedCurve:
    """A curve, ready to be evaluated on tensors of one type."""

    def __init__(self, curve: Curve, dtype: torch.dtype) -> None:
        self.curve = curve
        self.rows = table(curve, len(curve.pieces))[1:]
        self.starts = [row[0] for row in self.rows[1:]]
        self.lines = all(piece.a == 0 and piece.d == 0 for piece in curve.pieces)
        u0, b, v0, c2, d4 = ([row[k] for row in self.rows] for k in (0, 6, 7, 8, 9))
        if self.lines:
            rise = [piece.c / piece.b for piece in curve.pieces]
            wanted = [rise, [v - r * u for v, r, u in zip(v0, rise, u0, strict=True)]]
        else:
            wanted = [u0, b, v0, c2, d4]
        # For each number: that of the first piece, and by how much it grows at the start of each later one.
        self.numbers = [
            (torch.tensor(x[0], dtype=dtype), [after - before for before, after in itertools.pairwise(x)])
            for x in wanted
        ]
        self.least = [torch.tensor(row[5], dtype=dtype) for row in self.rows]

    def value_and_slope(self, y: Tensor, work: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return g(y) and g'(y) for y in [0, 1], in the memory of `work`: MAPS tensors like y."""
        mask, spare, *picked = work
        numbers = list(zip(self.numbers, picked, strict=False))
        root = picked[5]
        if not self.lines:
            self._square(0, y, root)
        for k, start in enumerate(self.starts):
            torch.ge(y, start, out=mask)
            for (first, growth), out in numbers:
                out.add_(mask, alpha=growth[k]) if k else torch.add(first, mask, alpha=growth[k], out=out)
            if not self.lines:
                root.lerp_(self._square(k + 1, y, spare), mask)
        if not self.starts:
            for (first, _), out in numbers:
                out.copy_(first)
        if self.lines:
            slope, value = picked[:2]
            value.addcmul_(slope, y)
        else:
            value, slope = self._solve(y, root, picked)
        if self.curve.jumps_at_0:
            value.masked_fill_(y <= 0, self.curve.start)
        if self.curve.jumps_at_1:
            value.masked_fill_(y >= 1, self.curve.end)
        return value, slope

    def _square(self, piece: int, y: Tensor, out: Tensor) -> Tensor:
        """Return D^2 of a piece, counted from the end where D is the smaller, so that nothing cancels."""
        r, a4 = self.rows[piece][2], self.rows[piece][4]
        x = torch.sub(y, r, out=out) if r else y
        return torch.add(self.least[piece], x, alpha=a4, out=out)

    @staticmethod
    def _solve(y: Tensor, root: Tensor, picked: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        u0, b, v0, c2, d4 = picked[:5]
        root.clamp_(min=STEEP**2).sqrt_()
        half_s = torch.sub(y, u0, out=u0).div_(b.add_(root)).clamp_(max=0.5)
        rise = d4.mul_(half_s)
        slope = torch.add(rise, c2, alpha=0.5, out=b).div_(root)
        return v0.addcmul_(half_s, rise.add_(c2)), slope
