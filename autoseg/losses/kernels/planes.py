"""What the kernels on a CPU share: planes a few at a time, and curves evaluated where a probability reaches them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from autoseg.losses.curves import Curve, evaluate_piece

CHUNK = 2**17  # elements worked on at once: fewer and the calls cost more than the work, more and they leave the cache


def fast_value_and_slope(
    curve: Curve,
    y: Tensor,
    exact: Callable[[Tensor], Tensor] | None = None,
    work: Sequence[Tensor | None] = (None,) * 3,
) -> tuple[Tensor, Tensor]:
    """Return g(y) and g'(y); `work` may lend memory like y's. For `exact`, see `beyond_first_piece`."""
    value, slope = evaluate_piece(curve.pieces[0], y, work)
    if curve.jumps_at_0:
        value.masked_fill_(y <= 0, curve.start)
    if len(curve.pieces) == 1 and exact is None and not curve.jumps_at_1:
        return value, slope
    there, _, g, dg = beyond_first_piece(curve, y, exact)
    value.view(-1)[there], slope.view(-1)[there] = g.to(y.dtype), dg.to(y.dtype)
    return value, slope


def beyond_first_piece(
    curve: Curve, y: Tensor, exact: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return where y passes the curve's first piece, as flat indices, and y, g(y) and g'(y) there, in float64.

    Few y do, so this may be slow and precise. Where the curve is delicate, y itself is not precise enough: `exact`
    gives it in float64, for flat indices.
    """
    starts = [piece.u0 for piece in curve.pieces[1:]] + [low for low, _ in curve.delicate if exact is not None]
    if curve.jumps_at_1:
        starts.append(1.0)
    there = _reaching(y.reshape(-1), min(starts, default=2.0))
    few = y.reshape(-1)[there].double()
    if exact is not None:
        for low, high in curve.delicate:
            zone = ((few >= low - 1e-6) & (few <= high + 1e-6)).nonzero().view(-1)
            if len(zone):
                few[zone] = exact(there[zone])
    return there, few, *curve.value_and_slope(few)


def _reaching(y: Tensor, start: float) -> Tensor:
    """Return the indices where y >= start; numpy finds them many times faster than torch."""
    return torch.from_numpy((y.numpy() >= y.new_tensor(start).numpy()).nonzero()[0])


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax over classes, image by image, which is quicker than torch's own over this axis."""
    p = torch.empty_like(logits)
    for z, out in zip(logits, p, strict=True):
        torch.sub(z, z.amax(0), out=out).exp_()
        out.div_(out.sum(0))
    return p


def at_once(p: Tensor) -> int:
    """Return how many planes to work on at once: few, so that they stay in the cache."""
    return max(CHUNK // math.prod(p.shape[2:]), 1)


def softmax_gradient(t: Tensor, p: Tensor, whole: bool = False) -> Tensor:
    """Return p (dL/dp - sum_c p dL/dp), given t = p dL/dp; t is overwritten. `whole`: all images at once."""
    if whole:
        return t.addcmul_(p, t.sum(1, keepdim=True), value=-1)
    for one_t, one_p in zip(t, p, strict=True):
        softmax_gradient(one_t.unsqueeze(0), one_p.unsqueeze(0), whole=True)
    return t


def chunks(p: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield (image, planes) with about CHUNK elements each."""
    classes, step = p.shape[1], at_once(p)
    for i in range(len(p)):
        for first in range(0, classes, step):
            yield i, slice(first, min(first + step, classes))
