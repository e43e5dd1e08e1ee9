"""Losses made of formulas: `FormulaLoss` is 1 - a formula's score, with a curve in each operator.

A formula that has a linear form (`autoseg.losses.basis`), and BF1, run on the kernels of `autoseg.losses.kernels`. Any
other runs as it is written, with autograd; those of shapes, on a CPU, with quicker operations. All give the same
numbers. Logits that are not finite give a loss of NaN, so
that a training that diverged is noticed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from autoseg.errors import InputError
from autoseg.losses.basis import curve_of, linear_form
from autoseg.losses.batch import Loss, precise, ranks, sum_over_ranks
from autoseg.losses.curves import Curve, refuse_second_derivative
from autoseg.losses.kernels.boundary import BoundaryKernel
from autoseg.losses.kernels.device import eager_on_cpu
from autoseg.losses.kernels.device_boundary import CURVES, BoundaryStats
from autoseg.losses.kernels.device_region import RegionStats
from autoseg.losses.kernels.planes import CHUNK
from autoseg.losses.kernels.region import RegionKernel
from autoseg.losses.kernels.shapes import FastShapeOps
from autoseg.losses.kernels.sigmoid import SigmoidKernel
from autoseg.losses.kernels.tables import ROW, Shaped, table
from autoseg.losses.labels import Labels
from autoseg.metrics import formula as formulas
from autoseg.metrics.conventions import Conventions, reach
from autoseg.metrics.counts import IgnoreIndex, label_map
from autoseg.metrics.formula import Formula
from autoseg.metrics.more import ShapeOps
from autoseg.metrics.targets import NO_VOID, stripped

T = TypeVar("T")

BOUNDARY = ("matched_pred", "pred", "matched_target", "target")
"""The sums of BF1, in the order of its kernels."""


class FormulaLoss(Loss):
    """1 - the score of a formula on probabilities: `loss(logits, target)`.

    Args:
        formula: the metric.
        operands: the names of the curves of each operator's operands; None: no curve.
        curves: the curves by name; pieces: of how many pieces, at most, each is.
        conventions: what the formula leaves open; `absent` must be given.
        ignore_index, common: see `autoseg.losses.batch.Loss`.
    """

    tables: Tensor
    curve_tables: Tensor
    coefficients: Tensor

    def __init__(
        self,
        formula: Formula,
        operands: Mapping[str, tuple[str | None, str | None]],
        curves: Mapping[str, Curve],
        pieces: int,
        conventions: Conventions,
        ignore_index: IgnoreIndex = "auto",
        **common: Any,
    ) -> None:
        super().__init__(ignore_index, **common)
        self.formula, self.conventions = formula, conventions
        self.operands, self.curves = dict(operands), dict(curves)
        size = set(conventions.spacing or [1.0])
        self.even = len(size) == 1  # the size of a pixel is the same along all axes, as kernels want it
        near = {
            name: reach(getattr(conventions, name), (*size, *size), 2)[0] for name in ("tolerance", "boundary_radius")
        }
        self.in_pixels = conventions.replace(**near) if self.even else conventions
        ends = {name: (curve.start, curve.end) for name, curve in curves.items()}
        self.form = linear_form(formula, operands, ends, conventions)
        self.void_seen = formula.void == "seen" and not conventions.mask_void
        self.boundary = formula is formulas.BF1 and all(pair == (0, 1) for pair in ends.values())
        self.sees_neighbours = self.form is None or self.form.in_band
        terms = [] if self.form is None else [*self.form.curves(0), *self.form.curves(1)]
        self.shapes = {term: curve_of(term, curves) for term in terms}
        used = [self.shapes[term] for term in terms] if self.form else curves.values()
        rows = self.form.matrix() if self.form else torch.eye(4)[[0, 1, 2, 3, 3]].tolist()
        # What depends on theta is a tensor, so that code compiled for one theta serves all.
        for name, shapes in (("tables", used), ("curve_tables", curves.values())):
            tables = torch.tensor([table(curve, pieces) for curve in shapes], dtype=torch.float64)
            self.register_buffer(name, tables.view(len(tables), pieces + 1, ROW), persistent=False)
        self.register_buffer("coefficients", torch.tensor(rows, dtype=torch.float64), persistent=False)

    def loss(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return 1 - the soft metric of a batch."""
        uneven = self.sees_neighbours and not self.even
        if logits.ndim == 5 or uneven or (self.form is None and not self.boundary):
            return self._formula_loss(precise(logits), labels)
        if not labels.eager:
            stats = self._boundary_stats(logits, labels) if self.boundary else self._region_stats(logits, labels)
            return self._loss_of_stats(stats).to(torch.promote_types(logits.dtype, torch.float32))
        logits = precise(logits)
        if logits.requires_grad and torch.is_grad_enabled():
            return _KernelLoss.apply(logits, labels, self)
        return self._loss_of_stats(self._kernel(logits, labels, False).stats).to(logits.dtype)

    def of_channels(self, logits: Tensor, channels: Tensor) -> Tensor:
        """Return the mean of the losses of the channels of a multilabel batch; on a CPU, all by one kernel."""
        region = self.form is not None and not self.form.in_band and not self.void_seen
        if not region or not len(logits) or not eager_on_cpu(logits) or not eager_on_cpu(channels):
            return super().of_channels(logits, channels)
        self._follow(logits)
        flat = channels.reshape(1, len(channels) * channels.shape[1], -1)
        known = label_map(flat, 2, self.ignore_index, "target").view(channels.shape)
        with torch.autocast("cpu", enabled=False):
            return _ChannelLoss.apply(precise(logits), known, self)

    def _loss_of_channels(self, stats: Tensor) -> Tensor:
        """Return the loss of what a kernel counted for each channel, with autograd, all at once."""
        assert self.form is not None
        sums = self._of_all_ranks(self.coefficients @ stats.flatten(1, -2))
        return self.mean_of_channels(torch.vmap(functools.partial(self._loss_of_sums, self.form.names))(sums))

    def _loss_of_stats(self, stats: Tensor) -> Tensor:
        """Return the loss of what a kernel counted, with autograd."""
        return self._loss(self.form.names if self.form else BOUNDARY, self.coefficients @ stats.flatten(0, -2))

    def _loss(self, names: Iterable[str], sums: Tensor) -> Tensor:
        """Return the loss of this process's sums, a row of (C,) for each name, in float64.

        The last row has no name: it is greater than 0 for classes in the batch.
        """
        return self._loss_of_sums(names, self._of_all_ranks(sums))

    def _of_all_ranks(self, sums: Tensor) -> Tensor:
        return sum_over_ranks(sums, self.group) if ranks(self.sync, self.group) > 1 else sums

    def _loss_of_sums(self, names: Iterable[str], sums: Tensor) -> Tensor:
        *each, present = sums.unbind(0)
        counted = present > 0 if self.conventions.absent == "skip" else None
        weights = self.weights_of(len(present))
        score = self.formula.score(dict(zip(names, each, strict=True)), self.conventions, counted, weights)
        # Logits that are not finite, and bad labels, make sums that are not finite. The loss must not be finite either.
        return 1 - score + 0 * sums.detach().sum()

    def _formula_loss(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return the loss by the formula as it is written."""
        classes, flat = logits.shape[1], labels.flattened()
        known = flat.known(classes, self.ignore_index).view(labels.target.shape)
        y = formulas.one_hot(known, classes, None, logits.dtype)
        loss = self._loss_of_maps(logits, y, y.sum(1, keepdim=True), labels.eager)
        return flat.poison(loss, classes, self.ignore_index).to(logits.dtype)

    def _loss_of_maps(self, logits: Tensor, y: Tensor, valid: Tensor, eager: bool) -> Tensor:
        """Return the loss of a target as maps (N, C, ...), where `valid` is 1."""
        shaped: Mapping[str, Any] = self.curves
        if not eager:
            rows = zip(shaped, self.curve_tables, strict=True)
            shaped = {name: functools.partial(_shaped, row) for name, row in rows}
        p, pairs = logits.softmax(1), self._pairs(shaped)
        if eager and self.formula.operations is ShapeOps:
            sums = self._sums_of_shapes(p, y, valid, pairs)
        else:
            sums = self.formula.sum_maps(p, y, valid, self.conventions, pairs)
        present = sums["target"] if "target" in sums else y.flatten(2).sum((0, 2))
        return self._loss(sums, torch.stack([*sums.values(), present]).double())

    def _sums_of_shapes(self, p: Tensor, y: Tensor, valid: Tensor, pairs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the sums of a formula of shapes on a CPU, a few images at a time: they stay in its cache."""
        fast = dataclasses.replace(self.formula, operations=FastShapeOps)
        classes = self._of_interest(y) if self.formula.built_in else None
        if classes is not None:
            p, y = p[:, classes], y[:, classes]
        few = max(CHUNK // max(p.shape[1:].numel(), 1), 1)
        parts = zip(p.split(few), y.split(few), valid.split(few), strict=True)
        each = [fast.sum_maps(a, b, c, self.conventions, pairs) for a, b, c in parts]
        sums = {name: torch.stack([part[name] for part in each]).sum(0) for name in each[0]}
        if classes is None:
            return sums
        return {name: x.new_zeros(classes.shape).masked_scatter(classes, x) for name, x in sums.items()}

    def _of_interest(self, y: Tensor) -> Tensor:
        """Return which classes count in the loss of a formula that sees each class by itself; at least one."""
        counted = torch.ones(y.shape[1], dtype=torch.bool)
        if self.conventions.absent == "skip" and ranks(self.sync, self.group) == 1:
            counted = y.flatten(2).any(2).any(0)
        if self.formula.drops_background and self.conventions.drop_background:
            counted[0] = False
        if not counted.any():
            counted[-1] = True
        return counted

    def of_soft(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a target of probabilities by the formula as it is written."""
        if self.boundary or self.formula.void == "unseen" or (self.form is not None and self.form.in_band):
            return super().of_soft(logits, target)
        self._follow(logits)
        target = stripped(target).to(logits.device)
        void = (target == 0).all(1, keepdim=True)  # a pixel of no class, as in one-hot maps
        look, unknown = (eager := eager_on_cpu(target)) or self.check_labels, void.any()
        if self.ignore_index is not None:
            void, unknown = void | (target == self.ignore_index).any(1, keepdim=True), torch.zeros_like(unknown)
        y = target.masked_fill(void, 0.0)
        outside = ~((y >= 0) & (y <= 1)).all()
        if look and outside:
            raise InputError("holds numbers outside [0, 1]", where="target", expected="probabilities of the classes")
        if look and unknown:
            cure = "say ignore_index: they are then void"
            raise InputError("has pixels of no class", where="target", expected="probabilities", cure=cure)
        wrong = outside | unknown
        with torch.autocast(logits.device.type, enabled=False):
            logits = precise(logits)
            valid = (~void).to(logits.dtype)
            loss = self._loss_of_maps(logits, y.to(logits.dtype), valid, eager)
            return torch.where(wrong, torch.nan, loss).to(logits.dtype)

    def _pairs(self, curves: Mapping[str, T]) -> dict[str, tuple[T | None, T | None]]:
        return {name: (curves.get(a or ""), curves.get(b or "")) for name, (a, b) in self.operands.items()}

    def _kernel(self, logits: Tensor, labels: Labels, with_gradient: bool) -> RegionKernel | BoundaryKernel:
        """Return the kernel for a CPU."""
        classes, void, c = logits.shape[1], self.ignore_index, self.in_pixels
        logits = logits.detach().contiguous()
        if self.form is None:
            return BoundaryKernel(logits, labels, void, self._pairs(self.curves), c, with_gradient)
        known = labels.checked(classes, void)
        if self.form.in_band:
            known = labels.in_band(classes, void, c.boundary_radius, c.drop_background)
        return RegionKernel(logits, known, self.form, self.shapes, self.void_seen, with_gradient)

    def _region_stats(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return the sums of the linear form's terms by the kernel for a GPU, with autograd."""
        classes, void, c = logits.shape[1], self.ignore_index, self.in_pixels
        assert self.form is not None
        target = labels.plain()
        if self.form.in_band:
            target = labels.in_band(classes, void, c.boundary_radius, c.drop_background)
        others = len(self.form.curves(0))
        return RegionStats.apply(logits, target, self.tables, others, NO_VOID if void is None else void, self.void_seen)

    def _boundary_stats(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return BF1's sums by the kernels for a GPU, with autograd."""
        classes, void, mask = logits.shape[1], self.ignore_index, self.conventions.mask_void
        known, factor = labels.safe(classes, void)
        tolerance = self.in_pixels.tolerance
        numbers = {name: k for k, name in enumerate(self.curves)}
        stats = BoundaryStats.apply(
            logits,
            known,
            labels.edges(classes, void, mask),
            labels.near_bits(classes, void, mask, tolerance),
            known != classes if mask else None,
            self.tables,
            tuple(numbers.get(self.operands[operator][k] or "", -1) for operator, k in CURVES),
            tolerance,
        )
        return stats * factor


class _KernelLoss(torch.autograd.Function):
    """The loss by its kernel on a CPU; the gradient is computed in the forward pass, from what the kernel holds."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Labels, owner: FormulaLoss) -> Tensor:
        return _with_gradient(ctx, logits, owner._kernel(logits, labels, True), owner, owner._loss_of_stats)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _scaled(ctx, gradient), None, None


class _ChannelLoss(torch.autograd.Function):
    """The loss of all channels by their kernel on a CPU, with the gradient as in `_KernelLoss`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, known: Tensor, owner: FormulaLoss) -> Tensor:
        assert owner.form is not None
        with_gradient = ctx.needs_input_grad[0]
        kernel = SigmoidKernel(logits.detach(), known, owner.form, owner.shapes, with_gradient)
        if not with_gradient:
            return owner._loss_of_channels(kernel.stats).to(logits.dtype)
        return _with_gradient(ctx, logits, kernel, owner, owner._loss_of_channels)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _scaled(ctx, gradient), None, None


def _with_gradient(
    ctx: Any,
    logits: Tensor,
    kernel: RegionKernel | BoundaryKernel | SigmoidKernel,
    owner: FormulaLoss,
    loss_of: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the loss of what a kernel counted, and save its gradient by the logits."""
    stats = kernel.stats.requires_grad_()
    with torch.enable_grad():
        loss = loss_of(stats)
    if not loss.requires_grad:
        where = f"{owner.formula.name}: per_class"
        raise InputError("has no gradient", where=where, expected="arithmetic on the sums, not detached")
    (by_stats,) = torch.autograd.grad(loss, stats, allow_unused=True, materialize_grads=True)
    ctx.save_for_backward(kernel.gradient(by_stats))
    return loss.detach().to(logits.dtype)


def _scaled(ctx: Any, gradient: Tensor) -> Tensor:
    refuse_second_derivative()
    (by_logits,) = ctx.saved_tensors
    return by_logits if gradient == 1 else by_logits * gradient  # 1 as from loss.backward(): no other copy is needed


def _shaped(rows: Tensor, y: Tensor) -> Tensor:
    return Shaped.apply(y, rows)
