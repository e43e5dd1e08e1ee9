"""The sums of a formula with a linear form, on a CPU, for channels that are binary tasks each: see `region`.

Of two classes one is the true one, with a probability s, and the other has 1 - s. So every curve of the form is
evaluated once for each pixel: at s, if it is needed at the true class (y = 1), else at 1 - s. No autograd is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from autoseg.losses.basis import ONE, BasisFunction, LinearForm, P
from autoseg.losses.curves import Curve, evaluate_piece

PIXELS = 2**15  # worked on at once, so that they stay in the cache


class SigmoidKernel:
    """The sums of 1, p and curves over the pixels of the two classes of each channel, and over the others.

    Args:
        logits: (N, C, ...), float32 or float64.
        labels: of the same shape, 0 or 1, and 2 for void, which is left out.
        form: which curves are needed where.
        curves: the curve of each term of the form.
        with_gradient: keep what `gradient` needs.

    `stats` is (C, 2, terms, 2): for each channel, for y = 0 and y = 1, the sums of the form's terms for both classes.
    """

    def __init__(
        self,
        logits: Tensor,
        labels: Tensor,
        form: LinearForm,
        curves: Mapping[BasisFunction, Curve],
        with_gradient: bool,
    ) -> None:
        images, channels = logits.shape[:2]
        self.shape = logits.shape
        self.z, self.labels = logits.reshape(images * channels, -1), labels.reshape(images * channels, -1)
        self.ones = (self.labels == 1).to(logits.dtype)
        void = self.labels == 2
        self.valid = (~void).to(logits.dtype) if bool(void.any()) else None
        # What is summed: where the class is the true one (y = 1) or the other one (y = 0), which term, at which place.
        terms = [(y, k, term) for y in (0, 1) for k, term in enumerate(form.terms[y]) if form.needs(y, term)]
        self.terms = [(y, k, term) for y, k, term in terms if term != ONE]
        self.stats = logits.new_zeros(len(self.z), 2, form.width, 2, dtype=torch.float64)
        self.slopes = [torch.empty_like(self.z) for _ in self.terms] if with_gradient else []
        for plane, first in self._chunks():
            self._count(plane, slice(first, first + PIXELS), curves)
        self.stats = self.stats.view(images, channels, *self.stats.shape[1:]).sum(0)

    def _count(self, plane: int, some: slice, curves: Mapping[BasisFunction, Curve]) -> None:
        z, of_1 = self.z[plane, some], self.ones[plane, some]
        sign = of_1 * 2 - 1
        valid = None if self.valid is None else self.valid[plane, some]
        u = z * sign
        true = torch.sigmoid(u)
        other = torch.sigmoid(u.neg_())
        rise = sign.mul_(true).mul_(other)  # of s by the logit
        if valid is not None:
            rise.mul_(valid)
        slopes = iter(self.slopes)
        # The areas, needed or not, say which classes are in the batch; NaN where a logit is not finite.
        areas = _by_class(torch.ones_like(z) if valid is None else valid, of_1) + 0 * z.sum()
        self.stats[plane, 1, 0] += areas
        self.stats[plane, 0, 0] += areas.flip(0)
        for y, k, term in self.terms:
            s = true if y else other
            value, slope = (s, None) if term == P else _value_and_slope(curves[term], s)
            sums = _by_class(value if valid is None else value * valid, of_1)
            self.stats[plane, y, k] += sums if y else sums.flip(0)  # the other class of a pixel of 1 is 0
            if self.slopes:
                out = next(slopes)[plane, some]
                torch.mul(rise, slope, out=out) if slope is not None else out.copy_(rise)

    def gradient(self, by_stats: Tensor) -> Tensor:
        """Return the derivative by the logits, given the derivative by `stats`; the kernel is used up."""
        by, channels = by_stats.to(self.z.dtype), self.shape[1]
        gradient = torch.zeros_like(self.z)
        for plane, first in self._chunks():
            some = slice(first, first + PIXELS)
            of_1, out = self.ones[plane, some], gradient[plane, some]
            on_1 = torch.zeros_like(out)  # what a pixel of 1 has more than one of 0
            for (y, k, _), slope in zip(self.terms, self.slopes, strict=True):
                at_0, at_1 = by[plane % channels, y, k].tolist()
                if not y:  # 1 - s falls where s rises
                    at_0, at_1 = -at_1, -at_0
                out.add_(slope[plane, some], alpha=at_0)
                on_1.add_(slope[plane, some], alpha=at_1 - at_0)
            out.addcmul_(on_1, of_1)
        return gradient.view(self.shape)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        return ((plane, first) for plane in range(len(self.z)) for first in range(0, self.z.shape[1], PIXELS))


def _by_class(values: Tensor, of_1: Tensor) -> Tensor:
    """Return the sums of values over the pixels of 0 and of 1, in float64."""
    in_1 = (values * of_1).sum().double()
    return torch.stack([values.sum().double() - in_1, in_1])


def _value_and_slope(curve: Curve, s: Tensor) -> tuple[Tensor, Tensor]:
    if len(curve.pieces) == 1 and not curve.jumps_at_0 and not curve.jumps_at_1:
        return evaluate_piece(curve.pieces[0], s)
    return curve.value_and_slope(s)
