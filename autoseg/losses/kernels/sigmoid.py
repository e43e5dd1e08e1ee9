"""The sums of a formula with a linear form, on a CPU, for channels that are binary tasks each: see `region`.

Of two classes one is the true one, with a probability s, and the other has 1 - s. So every curve of the form is
evaluated once for each pixel: at s, if it is needed at the true class (y = 1), else at 1 - s.

What makes it fast: some planes at a time stay in the cache, in memory that is used again; see also `blend`. No autograd
is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from autoseg.losses.basis import ONE, BasisFunction, LinearForm, P
from autoseg.losses.curves import Curve
from autoseg.losses.kernels.blend import MAPS, BlendedCurve

PIXELS = 2**18  # worked on at once: fewer, and the calls cost more than the work
OWN = 5  # parts of the memory for the work, beside those for curves


class SigmoidKernel:
    """The sums of 1, p and curves over the pixels of the two classes of each channel, and over the others.

    Args:
        logits: (N, C, ...), float32 or float64.
        labels: of the same shape, in uint8: 0 or 1, and 2 for void, which is left out.
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
        self.has_void = bool(labels.max() > 1) if labels.numel() else False
        # What is summed: where the class is the true one (y = 1) or the other one (y = 0), which term, at which place.
        terms = [(y, k, term) for y in (0, 1) for k, term in enumerate(form.terms[y]) if form.needs(y, term)]
        self.terms = [(y, k, term) for y, k, term in terms if term != ONE]
        self.slopes = [torch.empty_like(self.z) for _ in self.terms] if with_gradient else []
        rows = max(min(PIXELS // max(self.z.shape[1], 1), len(self.z)), 1)
        self.work = [logits.new_empty(rows, min(self.z.shape[1], PIXELS)) for _ in range(OWN + MAPS)]
        shapes = {term: BlendedCurve(curve, logits.dtype) for term, curve in curves.items()}
        sums = [self._count(some, shapes) for some in self._chunks()]
        self.stats = self._by_channel(sums, form.width)

    def _count(self, some: tuple[slice, slice], curves: Mapping[BasisFunction, BlendedCurve]) -> list[Tensor]:
        """Return sums by plane: of 1 and each term, over all pixels and then over those of 1."""
        z = self.z[some]
        of_1, valid, true, other, rise, *work = self._memory(z)
        of_1.copy_(self.labels[some])  # 2 at void, where all that is multiplied by it is 0
        torch.addcmul(z, of_1, z, value=-2.0, out=true)  # -z for 1 and z for 0; NaN if z is not finite
        torch.sigmoid(true, out=other)
        true.neg_().sigmoid_()
        if self.has_void:  # both classes are 0 there, and so is every curve that starts at 0
            self._mask_of_labels(some, valid)
            true.mul_(valid)
            other.mul_(valid)
        torch.mul(true, other, out=rise)  # of s by z for 1; for 0 it is as much less
        # The areas, needed or not, say which classes are in the batch.
        area = valid.sum(1) if self.has_void else z.new_full((len(z),), z.shape[1])
        sums = [area, of_1.sum(1) - 2 * (z.shape[1] - area) if self.has_void else of_1.sum(1)]
        for number, (y, _, term) in enumerate(self.terms):
            s = true if y else other
            if self.slopes:
                work[0] = self.slopes[number][some]
            value, slope = (s, None) if term == P else curves[term].value_and_slope(s, work)
            if self.has_void and slope is not None and curves[term].curve.start:
                value.mul_(valid)
            sums.append(value.sum(1))
            sums.append(torch.mul(value, of_1, out=work[1] if value is s else value).sum(1))
            if self.slopes:
                work[0].copy_(rise) if slope is None else slope.mul_(rise)
        return sums

    def _by_channel(self, sums: list[list[Tensor]], width: int) -> Tensor:
        """Return `stats`, given what `_count` returned for each chunk."""
        images, channels = self.shape[:2]
        each = torch.stack([torch.cat(part) for part in zip(*sums, strict=True)]).double()
        # By term, pixels (all, of 1), image and channel; the chunks of a plane come one after the other.
        whole, of_1 = each.view(1 + len(self.terms), 2, images, channels, -1).sum((2, 4)).unbind(1)
        stats = whole.new_zeros(channels, 2, width, 2)
        for (y, k), whole_k, of_1_k in zip([(1, 0), *((y, k) for y, k, _ in self.terms)], whole, of_1, strict=True):
            stats[:, y, k, y], stats[:, y, k, 1 - y] = of_1_k, whole_k - of_1_k  # the other class of a pixel of 1 is 0
        stats[:, 0, 0] = stats[:, 1, 0].flip(-1)
        return stats

    def _memory(self, z: Tensor) -> list[Tensor]:
        """Return parts of the memory for the work, shaped like z."""
        if z.shape == self.work[0].shape:
            return self.work
        return [w.view(-1)[: z.numel()].view(z.shape) for w in self.work]

    def _mask_of_labels(self, some: tuple[slice, slice], out: Tensor) -> Tensor:
        """Return where a pixel has a label: 0, 1, 2 -> 1, 1, 0. Bytes cost next to nothing, but shifts."""
        return out.copy_((2 - self.labels[some]).clamp_(max=1))

    def gradient(self, by_stats: Tensor) -> Tensor:
        """Return the derivative by the logits, given the derivative by `stats`; the kernel is used up."""
        by = by_stats.to(self.z.dtype).repeat(self.shape[0], 1, 1, 1).unsqueeze(-1)
        factors = []  # of each term's slope, by plane: at a pixel of 0, and how much more at one of 1
        for y, k, _ in self.terms:
            # At a pixel of 1 the true class is 1, and s rises with the logit. At one of 0, and of 1 - s, it falls.
            at_0, at_1 = (-by[:, y, k, 0], by[:, y, k, 1]) if y else (by[:, y, k, 1], -by[:, y, k, 0])
            factors.append((at_0, at_1 - at_0))
        gradient = self.slopes[0] if self.slopes else torch.zeros_like(self.z)
        for some in self._chunks():
            out = gradient[some]
            of_1, spare, *_ = self._memory(out)
            of_1.copy_(self.labels[some])
            for (at_0, more), slope in zip(factors, self.slopes, strict=True):
                into = of_1 if slope is self.slopes[-1] else spare
                weight = torch.mul(of_1, more[some[0]], out=into).add_(at_0[some[0]])  # `addcmul` is slow with a column
                out.mul_(weight) if slope is gradient else out.addcmul_(slope[some], weight)
        return gradient.view(self.shape)

    def _chunks(self) -> Iterator[tuple[slice, slice]]:
        """Yield planes and pixels: some planes, or a part of one."""
        planes, pixels = self.z.shape
        rows = len(self.work[0])
        for plane in range(0, planes, rows):
            for first in range(0, pixels, PIXELS):
                yield slice(plane, min(plane + rows, planes)), slice(first, min(first + PIXELS, pixels))
