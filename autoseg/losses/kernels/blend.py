"""A curve on a CPU for probabilities of any distribution, without a choice for each of them.

The numbers of the piece that y is in are blended by masks of 0 and 1, because torch's `where` takes as long as ten
products. See `tables` for how a piece is evaluated. Every pass over memory counts here: a number that is 0 in the first
piece, as u0 and v0 are, is not blended, but the mask is added as often as it grows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from autoseg.losses.curves import STEEP, Curve
from autoseg.losses.kernels.tables import table

MAPS = 6  # of memory that `BlendedCurve` takes


class BlendedCurve:
    """A curve, ready to be evaluated on tensors of one type."""

    def __init__(self, curve: Curve, dtype: torch.dtype) -> None:
        self.curve = curve
        self.rows = table(curve, len(curve.pieces))[1:]
        self.starts = [row[0] for row in self.rows[1:]]
        self.lines = all(piece.a == 0 and piece.d == 0 for piece in curve.pieces)
        # Where D is small, rounding can make D^2 negative and s greater than 1; not at r = 0, where y - r is exact.
        self.delicate = any(row[5] < 2 * STEEP**2 + 1e-6 * abs(row[2] * row[4]) for row in self.rows)
        u0, b, v0, c2, d4 = ([row[k] for row in self.rows] for k in (0, 6, 7, 8, 9))
        c = [x / 2 for x in c2]
        if self.lines:
            rise = [piece.c / piece.b for piece in curve.pieces]
            blended = [rise, [v - r * u for v, r, u in zip(v0, rise, u0, strict=True)]]
        else:
            blended = [d4, b, c]
        self.blended = [(torch.tensor(x[0], dtype=dtype), _growth(x)) for x in blended]
        self.u0, self.v0 = ((x[0], _growth(x)) for x in (u0, v0))
        # D^2 = least + 4a (y - r). Where little cancels, r is put into the constant, which saves a pass.
        near = [abs(row[2] * row[4]) <= 30 * row[5] for row in self.rows]
        self.r = [0.0 if here else row[2] for row, here in zip(self.rows, near, strict=True)]
        least = [row[5] - row[4] * row[2] * here for row, here in zip(self.rows, near, strict=True)]
        self.least = [torch.tensor(x, dtype=dtype) for x in least]

    def value_and_slope(self, y: Tensor, work: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return g(y) and g'(y) for y in [0, 1] in the memory of `work`, MAPS tensors like y: g' is in the first."""
        value, slope = self._lines(y, *work[:3]) if self.lines else self._curves(y, *work)
        if self.curve.jumps_at_0:
            value.masked_fill_(y <= 0, self.curve.start)
        if self.curve.jumps_at_1:
            value.masked_fill_(y >= 1, self.curve.end)
        return value, slope

    def _lines(self, y: Tensor, slope: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        for number, out in zip(self._blend((slope, value), y, mask), (slope, value), strict=True):
            if isinstance(number, float):
                out.fill_(number)
        return value.addcmul_(slope, y), slope

    def _curves(
        self, y: Tensor, d4_s: Tensor, shifted: Tensor, cs: Tensor, mask: Tensor, root: Tensor, inverse: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return g and g'. What is done in place takes two thirds of the time: there is less to keep in the cache."""
        d4, b, c = self._blend((d4_s, shifted, cs), y, mask)
        self._square(0, y, root)
        for k in self._reached(y, mask):
            root.lerp_(self._square(k + 1, y, inverse), mask)
        if self.delicate:
            root.clamp_(min=STEEP**2)
        torch.pow(root, -0.5, out=inverse)  # 1 / D, as precise as `rsqrt` and `sqrt`, and two or three times as fast
        root.mul_(inverse).add_(b)  # D + b
        half_s = torch.div(self._shifted(y, self.u0, -1.0, y, mask, shifted), root, out=root)
        if self.delicate:
            half_s.clamp_(max=0.5)
        rise = torch.mul(half_s, d4, out=d4_s).add_(c)  # g' D
        value = torch.add(rise, c, out=cs).mul_(half_s)
        return self._shifted(value, self.v0, 1.0, y, mask, value), rise.mul_(inverse)

    def _reached(self, y: Tensor, mask: Tensor) -> Iterator[int]:
        """Yield the numbers of the growths; `mask` is then 1 where y has reached the piece after it, else 0."""
        for k, start in enumerate(self.starts):
            if len(self.starts) > 1:
                torch.ge(y, start, out=mask)
            yield k

    def _blend(self, out: Sequence[Tensor], y: Tensor, mask: Tensor) -> list[Tensor | float]:
        """Return the blended numbers of the piece that y is in, in `out` if pieces differ; the mask gets a start."""
        numbers: list[Tensor | float] = [first.item() for first, _ in self.blended]
        for k, start in enumerate(self.starts):
            torch.ge(y, start, out=mask)
            for n, ((first, growth), into) in enumerate(zip(self.blended, out, strict=True)):
                if any(growth):
                    numbers[n] = torch.add(into if k else first, mask, alpha=growth[k], out=into)
        return numbers

    def _shifted(
        self, x: Tensor, number: tuple[float, list[float]], sign: float, y: Tensor, mask: Tensor, out: Tensor
    ) -> Tensor:
        """Return x plus or minus a number of the piece that y is in; x itself if the number is 0."""
        first, growth = number
        if first:
            x = torch.add(x, sign * first, out=out)
        if any(growth):
            for k in self._reached(y, mask):
                x = torch.add(x, mask, alpha=sign * growth[k], out=out)
        return x

    def _square(self, piece: int, y: Tensor, out: Tensor) -> Tensor:
        """Return D^2 of a piece, counted from the end where D is the smaller, so that nothing cancels."""
        r = self.r[piece]
        x = torch.sub(y, r, out=out) if r else y
        return torch.add(self.least[piece], x, alpha=self.rows[piece][4], out=out)


def _growth(numbers: Sequence[float]) -> list[float]:
    """Return by how much a number of the pieces grows at the start of each later one."""
    return [after - before for before, after in itertools.pairwise(numbers)]
