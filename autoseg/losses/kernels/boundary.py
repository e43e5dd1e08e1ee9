"""BF1 on a CPU, in both layouts: soft edges, matched within a tolerance. Assumes the truth table, g(0) = 0, g(1) = 1.

What makes it fast: a pixel of the target is an edge of one class at most, so the greatest soft edge within a tolerance
is looked for at such pixels only; the rest is as in `region`. No autograd is recorded here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from autoseg.losses.curves import Curve
from autoseg.losses.kernels.planes import at_once, chunks, fast_value_and_slope, softmax, softmax_gradient
from autoseg.losses.labels import Labels
from autoseg.metrics.conventions import Conventions
from autoseg.metrics.counts import BITS, differs


class BoundaryKernel:
    """BF1: soft edges by XOR with the min-pooled map, matched within a tolerance.

    Args:
        logits: (N, C, H, W), float32 or float64.
        labels: the labels; ignore_index: that of void.
        curves: for each operator (edge.AND, edge.OR, precision, recall) the curves of its operands; None: no curve.
        conventions: the tolerance, and whether void is masked.
        with_gradient: keep what `gradient` needs.

    `stats` is (4, C): the sums `matched_pred`, `pred`, `matched_target` and `target` of the formula, in its order.
    """

    def __init__(
        self,
        logits: Tensor,
        labels: Labels,
        ignore_index: int | None,
        curves: Mapping[str, tuple[Curve | None, Curve | None]],
        conventions: Conventions,
        with_gradient: bool,
    ) -> None:
        n, classes = logits.shape[:2]
        self.p = p = softmax(logits)
        self.precision, self.recall = curves["precision"][0], curves["recall"][0]
        known, mask_void = labels.checked(classes, ignore_index), conventions.mask_void
        self.valid = differs(known, classes).to(p.dtype) if mask_void else None
        edge = labels.edges(classes, ignore_index, mask_void)
        self.near = labels.near_bits(classes, ignore_index, mask_void, conventions.tolerance)
        self.work = [p.new_empty(at_once(p), *p.shape[2:]) for _ in range(9)]
        self.framed = [p.new_full((at_once(p), p.shape[2] + 2, p.shape[3] + 2), 2.0) for _ in range(3)]
        # The target's edge pixels, sorted by the plane (image, class) they are in.
        image, row, column = edge.nonzero(as_tuple=True)
        plane = image * classes + known[image, row, column].long()
        order = plane.argsort(stable=True)
        self.plane, row, column = plane[order], row[order], column[order]
        edge_counts = torch.bincount(plane, minlength=n * classes)
        self.starts = [0, *edge_counts.cumsum(0).tolist()]
        best, self.where = p.new_empty(len(plane)), torch.empty_like(plane)

        pred, matched = (p.new_zeros(n, classes, dtype=torch.float64) for _ in range(2))
        self.by_p, self.by_m = (torch.empty_like(p) if with_gradient else None for _ in range(2))
        self.edge_hat = None if self.precision is None else torch.empty_like(p)
        for i, planes in chunks(p):
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
        self.stats = torch.stack(
            [
                matched.sum(0),
                pred.sum(0),
                matched_target.view(n, classes).sum(0),
                edge_counts.view(n, classes).sum(0).double(),
            ]
        )

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

    def gradient(self, by_stats: Tensor) -> Tensor:
        """Return the derivative by the logits, given the derivative by `stats`; the kernel is used up."""
        assert self.by_p is not None
        assert self.by_m is not None
        p, classes = self.p, self.p.shape[1]
        by_matched, by_pred, by_found, _ = by_stats.to(p.dtype)
        found = by_found[self.plane % classes]
        if self.recall_slope is not None:
            found = found * self.recall_slope
        constant = by_pred.tolist()
        framed = [torch.zeros_like(self.framed[0]) for _ in range(3)]
        t, size = self.by_p, p.shape[-2] * p.shape[-1]
        for i, planes in chunks(p):
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
        return softmax_gradient(t, p)


def _value_and_slope(curve: Curve | None, x: Tensor, work: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return g(x) and g'(x) in the last two buffers of `work`: memory that the caller may overwrite."""
    if curve is None:
        return work[2].copy_(x), work[1].fill_(1)
    return fast_value_and_slope(curve, x, None, work)


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
