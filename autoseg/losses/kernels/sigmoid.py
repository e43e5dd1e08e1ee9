"""The sums of a formula with a linear form, on a CPU, for channels that are binary tasks each: see `region`.

Of two classes one is the true one, with a probability s, and the other has 1 - s. So every curve of the form is
evaluated once for each pixel: at s, if it is needed at the true class (y = 1), else at 1 - s. No autograd is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from autoseg.losses.basis import ONE, LinearForm, P, Term
from autoseg.losses.curves import Curve

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
        self, logits: Tensor, labels: Tensor, form: LinearForm, curves: Mapping[Term, Curve], with_gradient: bool
    ) -> None:
        images, channels = logits.shape[:2]
        self.shape = logits.shape
        self.z, self.labels = logits.reshape(images * channels, -1), labels.reshape(images * channels, -1)
        # What is summed: where the class is the true one (y = 1) or the other one (y = 0), which term, at which place.
        self.terms = [(y, k, term) for y in (0, 1) for k, term in enumerate(form.terms[y]) if form.needs(y, term)]
        self.stats = logits.new_zeros(len(self.z), 2, form.width, 2, dtype=torch.float64)
        slopes = [term for term in self.terms if term[2] != ONE]
        self.slopes = [torch.empty_like(self.z) for _ in slopes] if with_gradient else []
        for plane in range(len(self.z)):
            for first in range(0, self.z.shape[1], PIXELS):
                self._count(plane, slice(first, first + PIXELS), curves)
        self.stats = self.stats.view(images, channels, *self.stats.shape[1:]).sum(0)

    def _count(self, plane: int, some: slice, curves: Mapping[Term, Curve]) -> None:
        z, labels = self.z[plane, some], self.labels[plane, some]
        of_class = [(labels == k).to(z.dtype) for k in (0, 1)]
        sign = of_class[1] - of_class[0]
        true = torch.sigmoid(z * sign)
        other = torch.sigmoid(-z * sign)
        rise = true * other * sign  # of s by the logit
        slopes = iter(self.slopes)
        # The areas, needed or not, say which classes are in the batch.
        areas = torch.stack(of_class).sum(1).double() + 0 * z.sum()  # NaN where a logit is not finite
        self.stats[plane, 1, 0] += areas
        self.stats[plane, 0, 0] += areas.flip(0)
        for y, k, term in self.terms:
            if term == ONE:
                continue
            s = true if y else other
            value, slope = (s, None) if term == P else curves[term].value_and_slope(s)
            sums = torch.stack([(value * of_class[0]).sum(), (value * of_class[1]).sum()]).double()
            self.stats[plane, y, k] += sums if y else sums.flip(0)  # the other class of a pixel of 1 is 0
            if self.slopes:
                out = next(slopes)[plane, some]
                torch.mul(rise, 1.0 if slope is None else slope, out=out)
                if not y:
                    out.neg_()

    def gradient(self, by_stats: Tensor) -> Tensor:
        """Return the derivative by the logits, given the derivative by `stats`."""
        by = by_stats.to(self.z.dtype)
        gradient = torch.zeros_like(self.z)
        terms = [term for term in self.terms if term[2] != ONE]
        channels = self.shape[1]
        for plane, labels in enumerate(self.labels):
            for (y, k, _), slope in zip(terms, self.slopes, strict=True):
                # By the class of a pixel; void's slope is 0.
                of_0, of_1 = (by[plane % channels, y, k] if y else by[plane % channels, y, k].flip(0)).tolist()
                for first in range(0, len(labels), PIXELS):
                    some = slice(first, first + PIXELS)
                    factor = (labels[some] == 1).to(self.z.dtype).mul_(of_1 - of_0).add_(of_0)
                    gradient[plane, some].addcmul_(slope[plane, some], factor)
        return gradient.view(self.shape)
