"""The sums of every formula that has a linear form, on a CPU: see `autoseg.losses.basis`.

What makes it fast: the pixels of a class are few, so what is needed there only is computed at the true class only;
values and slopes come from one evaluation; planes are worked on a few at a time, so that they stay in the cache; later
pieces of a curve are evaluated only where a probability reaches them. No autograd is recorded here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from autoseg.losses.basis import BasisFunction, LinearForm, P
from autoseg.losses.curves import Curve, evaluate_piece
from autoseg.losses.kernels.planes import (
    at_once,
    beyond_first_piece,
    fast_value_and_slope,
    softmax,
    softmax_gradient,
)


class RegionKernel:
    """The sums of 1, p and curves over the pixels of each class, and over the others.

    Args:
        logits: (N, C, H, W), float32 or float64.
        labels: (N, H, W), C for void.
        form: which curves are needed where.
        curves: the curve of each term of the form.
        void_seen: void pixels count as pixels of no class; else they are left out.
        with_gradient: keep what `gradient` needs.

    `stats` is (2, terms, C): for y = 0 and y = 1 the sums of the form's terms.
    """

    def __init__(
        self,
        logits: Tensor,
        labels: Tensor,
        form: LinearForm,
        curves: Mapping[BasisFunction, Curve],
        void_seen: bool,
        with_gradient: bool,
    ) -> None:
        classes = logits.shape[1]
        self.logits, self.form = logits, form
        self.p = p = softmax(logits)
        self.labels = labels = labels.long()
        areas = torch.bincount(labels.view(-1), minlength=classes + 1)
        self.void = void = labels == classes
        self.void_seen = void_seen
        outside = 0 if void_seen else int(areas[classes])
        if outside:
            p.mul_((~void).to(p.dtype).unsqueeze(1))  # no gradient there; what g(0) adds to a sum is taken off again
        self.index = labels.masked_fill(void, 0).unsqueeze(1)
        self.p_true = p_true = p.gather(1, self.index)
        self.stats = stats = p.new_zeros(2, form.width, classes, dtype=torch.float64)
        stats[1, 0] = areas[:classes]
        stats[0, 0] = labels.numel() - outside - stats[1, 0]
        if form.needs(1, P) or form.needs(0, P):
            stats[1, 1] = self._per_class(p_true)
        if form.needs(0, P):
            stats[0, 1] = p.sum((2, 3)).double().sum(0) - stats[1, 1]
        self.q_true: list[Tensor] = []  # p g'(p) of each curve
        for k, term in enumerate(form.curves(1)):
            value, slope = fast_value_and_slope(curves[term], p_true, self._exact_true)
            stats[1, k + 2] = self._per_class(value)
            self.q_true.append(slope.mul_(p_true))
        self.q: list[Tensor] = []
        for k, term in enumerate(form.curves(0)):
            q = torch.empty_like(p) if with_gradient else None
            everywhere = self._plane_sums(curves[term], q).view(-1, classes).sum(0)
            of_true, _ = fast_value_and_slope(curves[term], p_true, self._exact_true)
            stats[0, k + 2] = everywhere - self._per_class(of_true) - outside * curves[term].start
            self.q += [] if q is None else [q]

    def _plane_sums(self, curve: Curve, q: Tensor | None) -> Tensor:
        """Return the sums of g(p) over each of the N * C planes; put p g'(p) into q."""
        size = self.p.shape[-2] * self.p.shape[-1]
        planes, step = self.p.view(-1, size), at_once(self.p)
        sums = planes.new_empty(len(planes), dtype=torch.float64)
        work = [planes.new_empty(step, size) for _ in range(3)]  # fresh memory is slower than all the arithmetic
        for first in range(0, len(planes), step):
            some = slice(first, min(first + step, len(planes)))
            value, slope = evaluate_piece(curve.pieces[0], planes[some], [w[: some.stop - first] for w in work])
            if curve.jumps_at_0:
                value.masked_fill_(planes[some] <= 0, curve.start)
            sums[some] = value.sum(1)
            if q is not None:
                torch.mul(slope, planes[some], out=q.view(-1, size)[some])
        # The first piece is right for most; mend the others.
        there, few, g, dg = beyond_first_piece(curve, self.p, self._exact)
        wrong, _ = evaluate_piece(curve.pieces[0], self.p.view(-1)[there])  # none is 0: a curve reaches them later
        sums.index_add_(0, there // size, g - wrong)
        if q is not None:
            q.view(-1)[there] = (dg * few).to(q.dtype)
        return sums

    def _exact(self, flat: Tensor) -> Tensor:
        """Return p in float64 at flat indices."""
        classes, size = self.p.shape[1], self.p.shape[-2] * self.p.shape[-1]
        plane, pixel = flat // size, flat % size
        image, class_ = plane // classes, plane % classes
        scores = self.logits.reshape(len(self.logits), classes, size)[image, :, pixel].double()
        p = scores.softmax(1).gather(1, class_.unsqueeze(1)).squeeze(1)
        return p * (self.p.view(-1)[flat] > 0)  # void stays 0

    def _exact_true(self, flat: Tensor) -> Tensor:
        """Return the true class's p in float64 at flat pixel indices."""
        size = self.p.shape[-2] * self.p.shape[-1]
        class_ = self.index.view(-1)[flat]
        return self._exact((flat // size * self.p.shape[1] + class_) * size + flat % size)

    def _per_class(self, values: Tensor) -> Tensor:
        """Add up (N, 1, H, W) values by the class of their pixel, in float64."""
        total = torch.zeros(self.p.shape[1] + 1, dtype=torch.float64, device=self.p.device)
        return total.index_add_(0, self.labels.view(-1), values.reshape(-1).double())[:-1]

    def gradient(self, by_stats: Tensor) -> Tensor:
        """Return the derivative by the logits, given the derivative by `stats`; the kernel is used up."""
        (by_others, by_label), form = by_stats.to(self.p.dtype), self.form
        # t = p dL/dp: of the true class, then of all
        padded = torch.cat([by_label, by_label.new_zeros(form.width, 1)], 1)
        true = torch.zeros_like(self.p_true)
        for k, q in enumerate([self.p_true, *self.q_true], 1):
            if form.needs(1, form.terms[1][k]):
                true.addcmul_(padded[k][self.labels].unsqueeze(1), q)
        t: Tensor | None = None
        for k, q in enumerate([self.p, *self.q], 1):
            by_plane = by_others[k].view(1, -1, 1, 1)
            if form.needs(0, form.terms[0][k]):
                t = torch.mul(q, by_plane, out=q if k > 1 else None) if t is None else t.addcmul_(q, by_plane)
        if t is None:
            gradient = self.p.mul_(-true)
        else:
            if self.void_seen:  # a void pixel has no true class: the class in its place is one of the others
                true = torch.where(self.void.unsqueeze(1), t.gather(1, self.index), true)
            gradient = softmax_gradient(t.scatter_(1, self.index, true), self.p)
        # A softmax's gradient adds up to 0 over classes. The true class's own is right by that, not by 1 - p, which
        # has few digits left where the network is sure.
        gradient.scatter_(1, self.index, 0.0)
        return gradient.scatter_(1, self.index, -gradient.sum(1, keepdim=True))
