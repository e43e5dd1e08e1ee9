"""Shapes of soft maps on a CPU: the same numbers as by `autoseg.metrics.shapes`, sooner.

Minima and maxima are those of shifted maps: torch's pooling keeps where it found each, and is slow on a CPU. Of equal
pixels the first takes the gradient. A map of zeros and ones that needs no gradient, such as a target, is computed in
bytes, and a curve leaves it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autoseg.losses.curves import Curve, refuse_second_derivative
from autoseg.metrics import shapes
from autoseg.metrics.more import ShapeOps


class FastShapeOps(ShapeOps):
    """Operations on shapes of maps whose values may be looked at."""

    def _operands(self, name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        of_a, of_b = (None, None) if self.curves is None else self.curves[name]
        return _curved(of_a, a), _curved(of_b, b)

    def rim(self, x: Tensor, width: float) -> Tensor:
        """Return what `autoseg.metrics.shapes.rim` does."""
        reach = shapes.pixels_wide(width, x.shape[2:])
        return _with_bytes(x, self.valid, lambda x, valid: _rim(x, reach, valid))

    def surface(self, x: Tensor) -> Tensor:
        """Return what `autoseg.metrics.shapes.surface` does."""
        return _with_bytes(x, self.valid, _surface)

    def near(self, x: Tensor, distance: float) -> Tensor:
        """Return what `autoseg.metrics.shapes.near` does."""
        rows = shapes.ball(float(distance), self.conventions.spacing, tuple(x.shape[2:]))
        return _with_bytes(x, self.valid, lambda x, valid: _near(x if valid is None else x * valid, rows))

    def skeleton(self, x: Tensor, steps: int) -> Tensor:
        """Return what `autoseg.metrics.shapes.skeleton` does."""
        return _with_bytes(x, self.valid, lambda x, valid: _skeleton(x, steps, valid))


def is_hard(x: Tensor) -> bool:
    """Return whether a map needs no gradient and holds nothing but 0 and 1."""
    return not x.requires_grad and torch.equal(x, x.square())


def _curved(curve: Callable[[Tensor], Tensor] | None, x: Tensor) -> Tensor:
    """Return g(x), or x if there is no curve."""
    if curve is None:
        return x
    if isinstance(curve, Curve) and is_hard(x):
        return x if (curve.start, curve.end) == (0, 1) else curve.start + (curve.end - curve.start) * x
    return curve(x)


def _with_bytes(x: Tensor, valid: Tensor | None, function: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
    """Return a function of x and of where there are labels, computed in bytes if x is hard."""
    if not is_hard(x):
        return function(x, valid)
    return function(x.to(torch.uint8), None if valid is None else valid.to(torch.uint8)).to(x.dtype)


def _rim(x: Tensor, width: int, valid: Tensor | None) -> Tensor:
    low = x = _filled(x, valid)
    for axis in shapes.bordered(x.shape, 2):
        low = _least(low, axis, width, 0)
    return _kept(x - low, valid)


def _surface(x: Tensor, valid: Tensor | None) -> Tensor:
    low = x = _filled(x, valid)
    for axis in shapes.bordered(x.shape, 2):
        low = _lesser(low, _least(x, axis, 1, 0))
    return _kept(x - low, valid)


def _near(x: Tensor, rows: dict[tuple[int, ...], int]) -> Tensor:
    wide = {reach: _most(x, x.ndim - 1, reach, 0) if reach else x for reach in sorted(set(rows.values()))}
    far = [max(abs(offset[axis]) for offset in rows) for axis in range(x.ndim - 3)]
    sides = [side for reach in reversed([*far, 0]) for side in (reach, reach)]
    framed = {reach: F.pad(one, sides) if any(far) else one for reach, one in wide.items()}
    found: Tensor | None = None
    for offset, reach in rows.items():
        moved = framed[reach]
        for axis, (step, most) in enumerate(zip(offset, far, strict=True), 2):
            moved = moved.narrow(axis, most - step, x.shape[axis])
        found = moved if found is None else _greater(found, moved)
    assert found is not None  # the ball holds its centre
    return found


def _skeleton(x: Tensor, steps: int, valid: Tensor | None) -> Tensor:
    x = _filled(x, valid)
    line: Tensor | None = None
    for step in range(steps + 1):
        eroded = x
        for axis in range(2, x.ndim):
            eroded = _lesser(eroded, _least(x, axis, 1, None))
        opened = _kept(eroded, valid)
        for axis in range(2, x.ndim):
            opened = _most(opened, axis, 1, None)
        # An opening may add: it erodes by a cross, and spreads by a square.
        lost = _kept(F.relu(x - opened) if x.is_floating_point() else x * (1 - opened), valid)
        line = lost if line is None else line + lost * (1 - line)
        if step < steps:
            x = _filled(eroded, valid)
    assert line is not None
    return line


def _filled(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return x with ones in void, which erode nothing."""
    return x if valid is None else x * valid + (1 - valid)


def _kept(x: Tensor, valid: Tensor | None) -> Tensor:
    return x if valid is None else x * valid


def _least(x: Tensor, axis: int, reach: int, outside: int | None) -> Tensor:
    """Return the minimum over 2 reach + 1 pixels along an axis; None: outside the image there is nothing."""
    nothing = math.inf if x.is_floating_point() else 1
    return _slide(x, axis, reach, nothing if outside is None else outside, greatest=False)


def _most(x: Tensor, axis: int, reach: int, outside: int | None) -> Tensor:
    """Return the maximum over 2 reach + 1 pixels along an axis."""
    nothing = -math.inf if x.is_floating_point() else 0
    return _slide(x, axis, reach, nothing if outside is None else outside, greatest=True)


def _slide(x: Tensor, axis: int, reach: int, outside: float, greatest: bool) -> Tensor:
    how = (axis, min(reach, x.shape[axis]), outside, greatest)
    return _Slide.apply(x, *how) if x.requires_grad else _slid(x, *how)[-1]


def _lesser(a: Tensor, b: Tensor) -> Tensor:
    return _Better.apply(a, b, False) if a.requires_grad or b.requires_grad else torch.minimum(a, b)


def _greater(a: Tensor, b: Tensor) -> Tensor:
    return _Better.apply(a, b, True) if a.requires_grad or b.requires_grad else torch.maximum(a, b)


def _slid(x: Tensor, axis: int, reach: int, outside: float, greatest: bool) -> list[Tensor]:
    """Return x with `reach` more pixels at both ends, and its minima or maxima over more and more pixels."""
    sides = [0] * (2 * (x.ndim - 2))
    place = 2 * (x.ndim - 1 - axis)
    sides[place] = sides[place + 1] = reach
    better = torch.maximum if greatest else torch.minimum
    found, covered = [F.pad(x, sides, value=outside)], 1
    while covered < 2 * reach + 1:
        step = min(covered, 2 * reach + 1 - covered)
        left, right = _halves(found[-1], axis, step)
        found.append(better(left, right))
        covered += step
    return found


def _halves(x: Tensor, axis: int, step: int) -> tuple[Tensor, Tensor]:
    size = x.shape[axis] - step
    return x.narrow(axis, 0, size), x.narrow(axis, step, size)


class _Slide(torch.autograd.Function):
    """The minimum or maximum over some pixels along an axis, of which the first takes the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, reach: int, outside: float, greatest: bool) -> Tensor:
        ctx.how = axis, reach, outside, greatest
        ctx.save_for_backward(x)
        return _slid(x, *ctx.how)[-1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        refuse_second_derivative()
        (x,) = ctx.saved_tensors
        axis, reach, _, greatest = ctx.how
        for before in reversed(_slid(x, *ctx.how)[:-1]):
            size = gradient.shape[axis]
            step = before.shape[axis] - size
            left, right = _halves(before, axis, step)
            first = gradient * (left >= right if greatest else left <= right)
            whole = torch.empty_like(before)
            whole.narrow(axis, 0, size).copy_(first)
            whole.narrow(axis, size, step).zero_()
            whole.narrow(axis, step, size).add_(gradient - first)
            gradient = whole
        return gradient.narrow(axis, reach, x.shape[axis]), None, None, None, None


class _Better(torch.autograd.Function):
    """The lesser or the greater of two maps; where they are equal, the first takes the gradient."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, greatest: bool) -> Tensor:
        ctx.save_for_backward(a >= b if greatest else a <= b)
        return torch.maximum(a, b) if greatest else torch.minimum(a, b)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        refuse_second_derivative()
        (first,) = ctx.saved_tensors
        of_a = gradient * first
        return of_a, gradient - of_a, None
