"""The six surrogates, fast: the sums of a formula with curves in its operators, and the way back from them to logits.

A kernel is made from logits and labels; it has `sums`, as the formula would give them, and `gradient`, which turns the
derivative of the loss by each sum into the derivative by the logits. How a score is made of those sums is the
formula's business. No autograd is recorded here. All kernels assume the truth table, g(0) = 0 and g(1) = 1.

What makes them fast: the target is binary, so AND is needed at the true class only and OR at the others; values and
slopes come from one evaluation; planes are worked on a few at a time, so that they stay in the cache; later pieces of a
curve are evaluated only where a probability reaches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from autoseg.curves import Curve, evaluate_piece
from autoseg.formula import Conventions
from autoseg.metrics import BITS, class_bits, differs, dilate, edges

CHUNK = 2**17  # elements worked on at once: fewer and the calls cost more than the work, more and they leave the cache


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
        self.p = p = _softmax(logits)
        self.labels = labels = labels.long()
        areas = torch.bincount(labels.view(-1), minlength=classes + 1)
        area = areas[:classes].double()
        void = labels == classes
        if areas[classes]:
            p.mul_((~void).to(p.dtype).unsqueeze(1))  # g(0) = 0: a void pixel adds nothing to a sum, nor has a gradient
        self.index = labels.masked_fill(void, 0).unsqueeze(1)
        p_true = p.gather(1, self.index)
        hit, slope = fast_value_and_slope(curve_and, p_true, self._exact_true)
        self.q_true = slope.mul_(p_true)
        inter = self._per_class(hit)
        self.sums = {"inter": inter, "hit": inter, "target": area}  # IoU's and accuracy's names for the same sum
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
        planes, step = self.p.view(-1, size), _at_once(self.p)
        sums = planes.new_empty(len(planes), dtype=torch.float64)
        work = [planes.new_empty(step, size) for _ in range(3)]  # fresh memory is slower than all the arithmetic
        q = None if self.q is None else self.q.view(-1, size)
        for first in range(0, len(planes), step):
            some = slice(first, min(first + step, len(planes)))
            value, slope = evaluate_piece(curve.pieces[0], planes[some], [w[: some.stop - first] for w in work])
            if curve.jumps_at_0:
                value.masked_fill_(planes[some] <= 0, 0.0)
            sums[some] = value.sum(1)
            if q is not None:
                torch.mul(slope, planes[some], out=q[some])
        # The first piece is right for most; mend the others.
        there, few, g, dg = _beyond_first_piece(curve, self.p, self._exact)
        wrong, _ = evaluate_piece(curve.pieces[0], self.p.view(-1)[there])  # none is 0: a curve reaches them later
        sums.index_add_(0, there // size, g - wrong)
        if self.q is not None:
            self.q.view(-1)[there] = (dg * few).to(self.q.dtype)
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

    def gradient(self, by_sum: Mapping[str, Tensor]) -> Tensor:
        """Return the derivative by the logits, given the derivative by each sum; the kernel is used up."""
        kind = self.p.dtype
        by_inter = sum(by_sum[name] for name in ("inter", "hit") if name in by_sum)
        assert isinstance(by_inter, Tensor)
        padded = torch.cat([by_inter, by_inter.new_zeros(1)]).to(kind)
        true = padded[self.labels].unsqueeze(1).mul_(self.q_true)  # p dL/dp at the true class
        if self.q is None:
            gradient = self.p.mul_(-true)
        else:
            t = self.q.mul_(by_sum["union"].to(kind).view(1, -1, 1, 1)).scatter_(1, self.index, true)
            gradient = _softmax_gradient(t, self.p)
        # A softmax's gradient adds up to 0 over classes. The true class's own is right by that, not by 1 - p, which
        # has few digits left where the network is sure.
        gradient.scatter_(1, self.index, 0.0)
        return gradient.scatter_(1, self.index, -gradient.sum(1, keepdim=True))


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
        self.p = p = _softmax(logits)
        self.precision, self.recall = curves["precision"][0], curves["recall"][0]
        void = ~differs(labels, classes) if conventions.mask_void else None
        self.valid = None if void is None else (~void).to(p.dtype)
        edge = edges(labels, classes, void)
        self.near = _near_bits(labels, edge, classes, conventions.tolerance)
        self.work = [p.new_empty(_at_once(p), *p.shape[2:]) for _ in range(9)]
        self.framed = [p.new_full((_at_once(p), p.shape[2] + 2, p.shape[3] + 2), 2.0) for _ in range(3)]
        # The target's edge pixels, sorted by the plane (image, class) they are in.
        image, row, column = edge.nonzero(as_tuple=True)
        plane = image * classes + labels[image, row, column].long()
        order = plane.argsort(stable=True)
        self.plane, row, column = plane[order], row[order], column[order]
        edge_counts = torch.bincount(plane, minlength=n * classes)
        self.starts = [0, *edge_counts.cumsum(0).tolist()]
        best, self.where = p.new_empty(len(plane)), torch.empty_like(plane)

        pred, matched = (p.new_zeros(n, classes, dtype=torch.float64) for _ in range(2))
        self.by_p, self.by_m = (torch.empty_like(p) if with_gradient else None for _ in range(2))
        self.edge_hat = None if self.precision is None else torch.empty_like(p)
        for i, planes in _chunks(p):
            e = self._soft_edges(i, planes, curves)
            pred[i, planes] = e.sum((-2, -1)).double()
            some = self._edge_pixels(i, planes)
            if some.start == some.stop:
                continue  # no edge of these classes in the target: nothing to match
            hit = e if self.precision is None else self.precision.value_and_slope(e.clamp(0, 1))[0]
            matched[i, planes] = (
                torch.mul(hit, self._near(i, planes), out=self.work[0][: len(e)]).sum((-2, -1)).double()
            )
            # Recall asks for the greatest soft edge within the tolerance of each edge pixel of the target.
            first = i * classes + planes.start
            best[some], self.where[some] = _window_max(
                e, self.plane[some] - first, row[some], column[some], conventions.tolerance
            )
            self.where[some] += first * e[0].numel()
        found, self.recall_slope = best, None
        if self.recall is not None:
            inside = (best >= 0) & (best <= 1)
            found, slope = self.recall.value_and_slope(best.clamp(0, 1))
            self.recall_slope = slope * inside
        matched_target = p.new_zeros(n * classes, dtype=torch.float64).index_add_(0, self.plane, found.double())
        self.sums = {
            "pred": pred.sum(0),
            "matched_pred": matched.sum(0),
            "matched_target": matched_target.view(n, classes).sum(0),
            "target": edge_counts.view(n, classes).sum(0).double(),
        }

    def _edge_pixels(self, i: int, planes: slice) -> slice:
        """Return which of the target's edge pixels are in some planes of image i."""
        first = i * self.p.shape[1]
        return slice(self.starts[first + planes.start], self.starts[first + planes.stop])

    def _soft_edges(self, i: int, planes: slice, curves: Mapping[str, tuple[Curve | None, Curve | None]]) -> Tensor:
        """Return OR - AND of p and its min-pooled map on some planes of image i; keep its derivatives by both."""
        p = self.p[i, planes]
        w = [buffer[: len(p)] for buffer in self.work]
        m = w[8].copy_(self._min_pool(i, planes)[2][:, 1:-1, 1:-1])
        g1, dg1 = _value_and_slope(curves["edge.AND"][0], p, (w[0], w[1], w[2]))
        g2, dg2 = _value_and_slope(curves["edge.AND"][1], m, (w[0], w[3], w[4]))
        # OR - AND = g3 (1 - g4) + g4 - g1 g2, which keeps its digits where all are small; the two halves after each
        # other, to need less memory
        e = torch.mul(g1, g2, out=w[5])
        dg1.mul_(g2)
        dg2.mul_(g1)
        g3, dg3 = _value_and_slope(curves["edge.OR"][0], p, (w[0], w[6], w[2]))
        g4, dg4 = _value_and_slope(curves["edge.OR"][1], m, (w[0], w[7], w[4]))
        torch.sub(g4, e, out=e)
        not4 = g4.neg_().add_(1)
        e.addcmul_(g3, not4)
        not3 = g3.neg_().add_(1)
        if self.by_p is not None and self.by_m is not None:
            torch.mul(dg3, not4, out=self.by_p[i, planes]).sub_(dg1)
            torch.mul(dg4, not3, out=self.by_m[i, planes]).sub_(dg2)
        if self.valid is not None:
            e.mul_(self.valid[i])
        if self.edge_hat is not None:
            self.edge_hat[i, planes] = e
        return e

    def _min_pool(self, i: int, planes: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return p in a frame of twos, its minimum over three columns, and over 3x3; the frame never is the minimum."""
        p = self.p[i, planes]
        x, rows, both = (buffer[: len(p)] for buffer in self.framed)
        x[:, 1:-1, 1:-1] = p if self.valid is None else torch.where(self.valid[i] > 0, p, 1.0)
        _min_of_three(x, 1, rows)
        _min_of_three(rows, x.shape[2], both)
        return x, rows, both

    def _near(self, i: int, planes: slice) -> Tensor:
        """Return, as 0 and 1, where an edge of the target's same class is within the tolerance."""
        out = self.work[8][: planes.stop - planes.start]
        for word in range(planes.start // BITS, (planes.stop - 1) // BITS + 1):
            first, stop = max(planes.start, word * BITS), min(planes.stop, (word + 1) * BITS)
            bits = self.near[word][i]
            numbers = torch.arange(first - word * BITS, stop - word * BITS, dtype=bits.dtype, device=bits.device)
            bit = (torch.ones_like(numbers) << numbers).view(-1, 1, 1)
            torch.eq(bits & bit, bit, out=out[first - planes.start : stop - planes.start])
        return out

    def gradient(self, by_sum: Mapping[str, Tensor]) -> Tensor:
        """Return the derivative by the logits, given the derivative by each sum; the kernel is used up."""
        assert self.by_p is not None
        assert self.by_m is not None
        p, classes = self.p, self.p.shape[1]
        by_pred, by_matched, by_found = (
            by_sum[name].to(p.dtype) for name in ("pred", "matched_pred", "matched_target")
        )
        found = by_found[self.plane % classes]
        if self.recall_slope is not None:
            found = found * self.recall_slope
        constant = by_pred.tolist()
        framed = [torch.zeros_like(self.framed[0]) for _ in range(3)]
        t, size = self.by_p, p.shape[-2] * p.shape[-1]
        for i, planes in _chunks(p):
            some = self._edge_pixels(i, planes)
            if some.start == some.stop:
                w = self.work[8][: planes.stop - planes.start]
                for k, c in enumerate(range(planes.start, planes.stop)):
                    w[k] = constant[c]
            else:
                w = self._near(i, planes)
                if self.precision is not None and self.edge_hat is not None:
                    e = self.edge_hat[i, planes]
                    w *= self.precision.value_and_slope(e.clamp(0, 1))[1] * ((e >= 0) & (e <= 1))
                w = w.mul_(by_matched[planes].view(-1, 1, 1)).add_(by_pred[planes].view(-1, 1, 1))
                w.view(-1).index_add_(0, self.where[some] - (i * classes + planes.start) * size, found[some])
            if self.valid is not None:
                w *= self.valid[i]
            x, rows, both = self._min_pool(i, planes)
            down, across, spare = (buffer[: len(x)] for buffer in framed)
            torch.mul(self.by_m[i, planes], w, out=self.by_m[i, planes])
            down[:, 1:-1, 1:-1] = self.by_m[i, planes]
            _route(rows, both, down, x.shape[2], across, spare)
            _route(x, rows, across, 1, down, spare)
            t[i, planes].mul_(w).add_(down[:, 1:-1, 1:-1]).mul_(p[i, planes])
        if self.valid is not None:
            t.mul_(self.valid.unsqueeze(1))
        return _softmax_gradient(t, p)


def _value_and_slope(curve: Curve | None, x: Tensor, work: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return g(x) and g'(x) in the last two buffers of `work`: memory that the caller may overwrite."""
    if curve is None:
        return work[2].copy_(x), work[1].fill_(1)
    return fast_value_and_slope(curve, x, None, work)


def fast_value_and_slope(
    curve: Curve,
    y: Tensor,
    exact: Callable[[Tensor], Tensor] | None = None,
    work: Sequence[Tensor | None] = (None,) * 3,
) -> tuple[Tensor, Tensor]:
    """Return g(y) and g'(y); `work` may lend memory like y's. For `exact`, see `_beyond_first_piece`."""
    value, slope = evaluate_piece(curve.pieces[0], y, work)
    if curve.jumps_at_0:
        value.masked_fill_(y <= 0, curve.start)
    if len(curve.pieces) == 1 and exact is None and not curve.jumps_at_1:
        return value, slope
    there, _, g, dg = _beyond_first_piece(curve, y, exact)
    value.view(-1)[there], slope.view(-1)[there] = g.to(y.dtype), dg.to(y.dtype)
    return value, slope


def _beyond_first_piece(
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
    """Return the indices where y >= start; on a CPU numpy finds them many times faster than torch."""
    if y.device.type == "cpu":
        return torch.from_numpy((y.numpy() >= y.new_tensor(start).numpy()).nonzero()[0])
    return (y >= start).nonzero().view(-1)


def _softmax(logits: Tensor) -> Tensor:
    """Return the softmax over classes; on a CPU image by image, which is quicker than torch's own over this axis."""
    if logits.device.type != "cpu":
        return logits.softmax(1)
    p = torch.empty_like(logits)
    for z, out in zip(logits, p, strict=True):
        torch.sub(z, z.amax(0), out=out).exp_()
        out.div_(out.sum(0))
    return p


def _at_once(p: Tensor) -> int:
    """Return how many planes to work on at once: on a CPU few, so that they stay in the cache."""
    return max(CHUNK // (p.shape[-2] * p.shape[-1]), 1) if p.device.type == "cpu" else p.shape[0] * p.shape[1]


def _softmax_gradient(t: Tensor, p: Tensor) -> Tensor:
    """Return p (dL/dp - sum_c p dL/dp), given t = p dL/dp; t is overwritten."""
    for one_t, one_p in zip(t, p, strict=True):
        one_t.addcmul_(one_p, one_t.sum(0, keepdim=True), value=-1)
    return t


def _chunks(p: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield (image, planes) with about CHUNK elements each."""
    classes, step = p.shape[1], _at_once(p)
    for i in range(len(p)):
        for first in range(0, classes, step):
            yield i, slice(first, min(first + step, classes))


def _min_of_three(x: Tensor, step: int, out: Tensor) -> None:
    """Put into out the least of x and its two neighbours `step` elements away; framed maps make this one flat shift."""
    x, out = x.view(-1), out.view(-1)
    inner = out[step:-step]
    torch.minimum(x[: -2 * step], x[step:-step], out=inner)
    torch.minimum(inner, x[2 * step :], out=inner)


def _route(x: Tensor, least: Tensor, gradient: Tensor, step: int, out: Tensor, spare: Tensor) -> None:
    """Send the gradient by the least of three back to the first of the three that is the least; see `_min_of_three`."""
    x, least, out, spare = x.view(-1), least.view(-1)[step:-step], out.view(-1).zero_(), spare.view(-1)[step:-step]
    rest = gradient.view(-1)[step:-step]
    for source in (slice(None, -2 * step), slice(step, -step)):
        torch.eq(x[source], least, out=spare).mul_(rest)
        out[source].add_(spare)
        rest.sub_(spare)
    out[2 * step :].add_(rest)


def _near_bits(labels: Tensor, edge: Tensor, classes: int, tolerance: int) -> list[Tensor]:
    """Return, for each BITS classes, the target's edges dilated by the tolerance, a bit a class."""
    return [dilate(class_bits(labels, edge, first, classes), tolerance) for first in range(0, classes, BITS)]


def _window_max(x: Tensor, plane: Tensor, row: Tensor, column: Tensor, radius: int) -> tuple[Tensor, Tensor]:
    """Return the maximum of x (planes, H, W) over the square around some pixels, and where (flat) it first is."""
    height, width = x.shape[1:]
    up, side = min(radius, height - 1), min(radius, width - 1)
    wide = width + 2 * side
    padded = torch.nn.functional.pad(x, (side, side), value=-2.0)  # soft edges are in [-1, 1]
    runs, covered = padded.view(-1), 1
    while covered < 2 * side + 1:  # by doubling; runs[k] is the maximum of padded[k : k + covered]
        step = min(covered, 2 * side + 1 - covered)
        runs = torch.maximum(runs[:-step], runs[step:])
        covered += step
    near_rows = (row.unsqueeze(1) + torch.arange(-up, up + 1, device=x.device)).clamp_(0, height - 1)
    start = plane * height
    best, which = runs[(start.unsqueeze(1) + near_rows) * wide + column.unsqueeze(1)].max(1)
    best_row = start + near_rows.gather(1, which.unsqueeze(1)).squeeze(1)
    across = (best_row * wide + column).unsqueeze(1) + torch.arange(2 * side + 1, device=x.device)
    offset = padded.view(-1)[across].argmax(1)
    return best, best_row * width + column + offset - side
