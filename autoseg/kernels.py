"""The six surrogates, fast: the sums of a formula with curves in its operators, and the way back from them to logits.

A kernel is made from logits and labels; it has `sums`, as the formula would give them, and `gradient`, which turns the
derivative of the loss by each sum into the derivative by the logits. How a score is made of those sums is the
formula's business. No autograd is recorded here. All kernels assume the truth table, g(0) = 0 and g(1) = 1.

What makes them fast: the target is binary, so AND is needed at the true class only and OR at the others; values and
slopes come from one evaluation; planes are worked on a few at a time, so that they stay in the cache; later pieces of a
curve are evaluated only where a probability reaches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from autoseg.curves import Curve, evaluate_piece
from autoseg.formula import Conventions
from autoseg.metrics import BITS, class_bits, differs, dilate, edges

CHUNK = 2**16  # elements worked on at once: a few such float32 buffers fit into a core's cache


class RegionKernel:
    """gAcc, mAcc (no OR), mIoU, FWIoU; BIoU too, with everything outside the band made void.

    Args:
        logits: (N, C, H, W), float32 or float64.
        labels: (N, H, W), C for void.
        curve_and, curve_or: the curves in the operators.
        with_gradient: keep what `gradient` needs.
    """

    def __init__(
        self, logits: Tensor, labels: Tensor, curve_and: Curve, curve_or: Curve | None, with_gradient: bool
    ) -> None:
        classes = logits.shape[1]
        self.logits = logits
        self.p = p = logits.softmax(1)
        self.labels = labels = labels.long()
        void = labels == classes
        if void.any():
            p.mul_(~void.unsqueeze(1))  # g(0) = 0: a void pixel adds nothing to a sum and has no gradient
        self.index = labels.masked_fill(void, 0).unsqueeze(1)
        p_true = p.gather(1, self.index)
        area = torch.bincount(labels.view(-1), minlength=classes + 1)[:classes].double()
        hit, slope = fast_value_and_slope(curve_and, p_true, self._exact_true)
        self.q_true = slope.mul_(p_true)
        inter = self._per_class(hit)
        self.sums = {"inter": inter, "hit": inter, "target": area}
        self.q: Tensor | None = None
        if curve_or is not None:
            self.q = torch.empty_like(p) if with_gradient else None
            either = self._plane_sums(curve_or).view(-1, classes).sum(0)
            # OR is g at the other classes, and 1 at the true one.
            of_true, _ = fast_value_and_slope(curve_or, p_true, self._exact_true)
            self.sums["union"] = area + either - self._per_class(of_true)

    def _plane_sums(self, curve: Curve) -> Tensor:
        """Return the sums of g(p) over each of the N * C planes, and keep p g'(p)."""
        size = self.p.shape[-2] * self.p.shape[-1]
        planes = self.p.view(-1, size)
        sums, step = planes.new_empty(len(planes), dtype=torch.float64), max(CHUNK // size, 1)
        for first in range(0, len(planes), step):
            some = slice(first, first + step)
            value, slope = fast_value_and_slope(curve, planes[some], partial(self._exact, first * size))
            sums[some] = value.sum(1, dtype=torch.float64)
            if self.q is not None:
                torch.mul(slope, planes[some], out=self.q.view(-1, size)[some])
        return sums

    def _exact(self, start: int, flat: Tensor) -> Tensor:
        """Return p in float64 at flat indices counted from `start`."""
        classes, size = self.p.shape[1], self.p.shape[-2] * self.p.shape[-1]
        plane, pixel = (flat + start) // size, (flat + start) % size
        image, class_ = plane // classes, plane % classes
        scores = self.logits.reshape(len(self.logits), classes, size)[image, :, pixel].double()
        p = scores.softmax(1).gather(1, class_.unsqueeze(1)).squeeze(1)
        return p * (self.p.view(-1)[flat + start] > 0)  # void stays 0

    def _exact_true(self, flat: Tensor) -> Tensor:
        """Return the true class's p in float64 at flat pixel indices."""
        size = self.p.shape[-2] * self.p.shape[-1]
        class_ = self.index.view(-1)[flat]
        return self._exact(0, (flat // size * self.p.shape[1] + class_) * size + flat % size)

    def _per_class(self, values: Tensor) -> Tensor:
        """Add up (N, 1, H, W) values by the class of their pixel, in float64."""
        total = torch.zeros(self.p.shape[1] + 1, dtype=torch.float64, device=self.p.device)
        return total.index_add_(0, self.labels.view(-1), values.reshape(-1).double())[:-1]

    def gradient(self, by_sum: Mapping[str, Tensor]) -> Tensor:
        """Return the derivative by the logits, given the derivative by each sum; the kernel is used up."""
        kind = self.p.dtype
        by_inter = sum(by_sum[name] for name in ("inter", "hit") if name in by_sum)
        assert isinstance(by_inter, Tensor)
        padded = torch.cat([by_inter, by_inter.new_zeros(1)]).to(kind)
        true = padded[self.labels].unsqueeze(1).mul_(self.q_true)  # p dL/dp at the true class
        if self.q is None:
            return self.p.mul_(-true).scatter_add_(1, self.index, true)
        t = self.q.mul_(by_sum["union"].to(kind).view(1, -1, 1, 1)).scatter_(1, self.index, true)
        return _softmax_gradient(t, self.p)


class BoundaryKernel:
    """BF1: soft edges by XOR with the min-pooled map, matched within a tolerance.

    Args:
        logits, labels, with_gradient: as for `RegionKernel`.
        curves: for each operator (edge.AND, edge.OR, precision, recall) the curves of its operands; None: no curve.
        conventions: the tolerance, and whether void is masked.
    """

    def __init__(
        self,
        logits: Tensor,
        labels: Tensor,
        curves: Mapping[str, tuple[Curve | None, Curve | None]],
        conventions: Conventions,
        with_gradient: bool,
    ) -> None:
        n, classes = logits.shape[:2]
        self.p = p = logits.softmax(1)
        self.precision, self.recall = curves["precision"][0], curves["recall"][0]
        void = ~differs(labels, classes) if conventions.mask_void else None
        self.valid = None if void is None else ~void
        edge = edges(labels, classes, void)
        self.near = _near_bits(labels, edge, classes, conventions.tolerance)
        zeros = p.new_zeros(n * classes, dtype=torch.float64)
        pred, matched = zeros.clone(), zeros.clone()
        self.edge_hat = torch.empty_like(p)
        self.by_p = torch.empty_like(p) if with_gradient else None
        self.by_m = torch.empty_like(p) if with_gradient else None
        for i, planes in _chunks(p):
            e = self._soft_edges(i, planes, curves)
            pred[i * classes : (i + 1) * classes][planes] = e.sum((-2, -1), dtype=torch.float64)
            hit = e if self.precision is None else self.precision.value_and_slope(e.clamp(0, 1))[0]
            matched[i * classes : (i + 1) * classes][planes] = (hit * self._near(i, planes)).sum(
                (-2, -1), dtype=torch.float64
            )
        # Recall asks for the greatest soft edge within the tolerance, at the target's edge pixels of their own class.
        image, row, column = edge.nonzero(as_tuple=True)
        class_ = labels[image, row, column].long()
        best, self.where = _window_max(self.edge_hat, image, class_, row, column, conventions.tolerance)
        self.where_class = class_
        if self.recall is None:
            found, self.recall_slope = best, None
        else:
            inside = (best >= 0) & (best <= 1)
            found, slope = self.recall.value_and_slope(best.clamp(0, 1))
            self.recall_slope = slope * inside
        self.sums = {
            "pred": pred.view(n, classes).sum(0),
            "matched_pred": matched.view(n, classes).sum(0),
            "matched_target": torch.zeros(classes, dtype=torch.float64, device=p.device).index_add_(
                0, class_, found.double()
            ),
            "target": torch.bincount(class_, minlength=classes).double(),
        }
        if self.precision is None:
            del self.edge_hat

    def _soft_edges(self, i: int, planes: slice, curves: Mapping[str, tuple[Curve | None, Curve | None]]) -> Tensor:
        """Return OR - AND of p and its min-pooled map on some planes of image i; keep its derivatives by both."""
        p, m = self.p[i, planes], _min_pool(self._filled(i, planes))
        (and_p, and_m), (or_p, or_m) = (
            [_value_and_slope(g, x) for g, x in zip(curves[op], (p, m), strict=True)] for op in ("edge.AND", "edge.OR")
        )
        e = self.edge_hat[i, planes]
        # OR - AND = 1 - (1 - g3)(1 - g4) - g1 g2
        not_p, not_m = 1 - or_p[0], 1 - or_m[0]
        torch.mul(not_p, not_m, out=e).neg_().add_(1).addcmul_(and_p[0], and_m[0], value=-1)
        if self.by_p is not None and self.by_m is not None:
            torch.mul(or_p[1], not_m, out=self.by_p[i, planes]).addcmul_(and_p[1], and_m[0], value=-1)
            torch.mul(or_m[1], not_p, out=self.by_m[i, planes]).addcmul_(and_p[0], and_m[1], value=-1)
        if self.valid is not None:
            e.mul_(self.valid[i])
        return e

    def _filled(self, i: int, planes: slice) -> Tensor:
        """Return p, with ones where void is masked: what the min-pooling sees."""
        p = self.p[i, planes]
        return p if self.valid is None else p.masked_fill(~self.valid[i], 1)

    def _near(self, i: int, planes: slice) -> Tensor:
        """Return, as 0 and 1, where an edge of the target's same class is within the tolerance."""
        numbers = range(*planes.indices(self.p.shape[1]))
        return torch.stack([(self.near[c // BITS][i] >> (c % BITS)) & 1 for c in numbers]).to(self.p.dtype)

    def gradient(self, by_sum: Mapping[str, Tensor]) -> Tensor:
        """Return the derivative by the logits, given the derivative by each sum; the kernel is used up."""
        assert self.by_p is not None
        assert self.by_m is not None
        p, kind, classes = self.p, self.p.dtype, self.p.shape[1]
        by_pred, by_matched, by_found = (by_sum[name].to(kind) for name in ("pred", "matched_pred", "matched_target"))
        found = by_found[self.where_class]
        if self.recall_slope is not None:
            found = found * self.recall_slope
        t = self.by_p
        starts, order = _by_plane(self.where, p)
        where, found = self.where[order], found[order]
        size = p.shape[-2] * p.shape[-1]
        for i, planes in _chunks(p):
            w = self._near(i, planes)
            if self.precision is not None:
                e = self.edge_hat[i, planes]
                w *= self.precision.value_and_slope(e.clamp(0, 1))[1] * ((e >= 0) & (e <= 1))
            w = w.mul_(by_matched[planes].view(-1, 1, 1)).add_(by_pred[planes].view(-1, 1, 1))
            first, last = (i * classes + c for c in (planes.start, planes.stop))
            some = slice(int(starts[first]), int(starts[last]))
            w.view(-1).index_add_(0, where[some] - first * size, found[some])
            if self.valid is not None:
                w *= self.valid[i]
            by_min = _min_pool_gradient(self._filled(i, planes), self.by_m[i, planes].mul_(w))
            if self.valid is not None:
                by_min *= self.valid[i]
            t[i, planes].mul_(w).add_(by_min).mul_(p[i, planes])
        return _softmax_gradient(t, p)


def _value_and_slope(curve: Curve | None, x: Tensor) -> tuple[Tensor, Tensor]:
    return (x, torch.ones_like(x)) if curve is None else fast_value_and_slope(curve, x)


def fast_value_and_slope(
    curve: Curve, y: Tensor, exact: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return g(y) and g'(y), as precise as float64 where y passes the first piece, which few y do.

    Where the curve is delicate, y itself is not precise enough: `exact` gives it in float64, for flat indices.
    """
    value, slope = evaluate_piece(curve.pieces[0], y)
    delicate = curve.delicate
    start = min([1.0, *(piece.u0 for piece in curve.pieces[1:]), *(low for low, _ in delicate)])
    there = _reaching(y.reshape(-1), start)
    if len(there):
        few = y.reshape(-1)[there].double()
        for low, high in delicate if exact is not None else ():
            zone = ((few >= low - 1e-6) & (few <= high + 1e-6)).nonzero().view(-1)
            if len(zone) and exact is not None:
                few[zone] = exact(there[zone])
        g, dg = curve.value_and_slope(few)
        value.view(-1)[there], slope.view(-1)[there] = g.to(y.dtype), dg.to(y.dtype)
    return value, slope


def _reaching(y: Tensor, start: float) -> Tensor:
    """Return the indices where y >= start; on a CPU numpy finds them many times faster than torch."""
    if y.device.type == "cpu":
        return torch.from_numpy((y.numpy() >= y.new_tensor(start).numpy()).nonzero()[0])
    return (y >= start).nonzero().view(-1)


def _softmax_gradient(t: Tensor, p: Tensor) -> Tensor:
    """Return p (dL/dp - sum_c p dL/dp), given t = p dL/dp; t is overwritten."""
    for one_t, one_p in zip(t, p, strict=True):
        one_t.addcmul_(one_p, one_t.sum(0, keepdim=True), value=-1)
    return t


def _chunks(p: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield (image, planes) with about CHUNK elements each."""
    classes, step = p.shape[1], max(CHUNK // (p.shape[-2] * p.shape[-1]), 1)
    for i in range(len(p)):
        for first in range(0, classes, step):
            yield i, slice(first, min(first + step, classes))


def _min_pool(x: Tensor) -> Tensor:
    """Return the minimum over the 3x3 window, ones outside."""
    return _min_of_three(_min_of_three(x, -1), -2)


def _min_pool_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient by x of its 3x3 min-pooling, given that by the minimum; a tie goes to the first."""
    rows = _min_of_three(x, -1)
    gradient = _route(rows, _min_of_three(rows, -2), gradient, -2)
    return _route(x, rows, gradient, -1)


def _min_of_three(x: Tensor, dim: int) -> Tensor:
    size = x.shape[dim]
    out = x.clone()
    if size > 1:
        left, right = out.narrow(dim, 0, size - 1), out.narrow(dim, 1, size - 1)
        torch.minimum(left, x.narrow(dim, 1, size - 1), out=left)
        torch.minimum(right, x.narrow(dim, 0, size - 1), out=right)
    return out


def _route(x: Tensor, least: Tensor, gradient: Tensor, dim: int) -> Tensor:
    """Send the gradient at each window of three along dim to the first of its elements that is the least."""
    size = x.shape[dim]
    if size == 1:
        return gradient
    rest = gradient.clone()
    out = torch.zeros_like(gradient)
    for offset in (-1, 0, 1):
        windows = slice(max(-offset, 0), size - max(offset, 0))  # the windows that have such an element
        sources = slice(max(offset, 0), size + min(offset, 0))
        inside = rest.narrow(dim, windows.start, windows.stop - windows.start)
        here = x.narrow(dim, sources.start, sources.stop - sources.start)
        sent = inside * (here == least.narrow(dim, windows.start, windows.stop - windows.start))
        out.narrow(dim, sources.start, sources.stop - sources.start).add_(sent)
        inside.sub_(sent)
    return out


def _near_bits(labels: Tensor, edge: Tensor, classes: int, tolerance: int) -> list[Tensor]:
    """Return, for each BITS classes, the target's edges dilated by the tolerance, a bit a class."""
    return [dilate(class_bits(labels, edge, first, classes), tolerance) for first in range(0, classes, BITS)]


def _window_max(
    x: Tensor, image: Tensor, class_: Tensor, row: Tensor, column: Tensor, radius: int
) -> tuple[Tensor, Tensor]:
    """Return the maximum of x over the square around each of some pixels, and where in x (flat) it is first reached."""
    classes, height, width = x.shape[1:]
    rows = _running_max(x, min(radius, width - 1))
    base = (image * classes + class_) * (height * width)
    span = torch.arange(-min(radius, height - 1), min(radius, height - 1) + 1, device=x.device)
    near_rows = (row.unsqueeze(1) + span).clamp_(0, height - 1)
    best, which = rows.view(-1)[base.unsqueeze(1) + near_rows * width + column.unsqueeze(1)].max(1)
    best_row = near_rows.gather(1, which.unsqueeze(1)).squeeze(1)
    span = torch.arange(-min(radius, width - 1), min(radius, width - 1) + 1, device=x.device)
    near_columns = (column.unsqueeze(1) + span).clamp_(0, width - 1)
    start = base + best_row * width
    which = x.view(-1)[start.unsqueeze(1) + near_columns].argmax(1)
    return best, start + near_columns.gather(1, which.unsqueeze(1)).squeeze(1)


def _running_max(x: Tensor, radius: int) -> Tensor:
    """Return the maximum over 2 radius + 1 neighbours along the last axis."""
    return torch.nn.functional.max_pool2d(x, (1, 2 * radius + 1), stride=1, padding=(0, radius))


def _by_plane(where: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each plane's entries start once sorted by plane, and the order that sorts them."""
    planes = where // (p.shape[-2] * p.shape[-1])
    order = planes.argsort(stable=True)
    counts = torch.bincount(planes, minlength=p.shape[0] * p.shape[1])
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), order
