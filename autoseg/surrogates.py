"""Losses made of metrics: `SurrogateLoss` is 1 - a metric whose logic has a curve in each operator.

The six metrics of the paper run on the kernels of `autoseg.kernels`; any other registered formula, and curves without
the truth table, run on the formula itself with autograd. Both give the same numbers; logits that are not finite give a
loss of NaN, so that a training that diverged is seen to have.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autoseg import formula, surrogate_json
from autoseg.curves import Curve
from autoseg.errors import InputError
from autoseg.formula import Absent, Formula
from autoseg.kernels import BoundaryKernel, RegionKernel
from autoseg.metrics import band, check_ignore_index, edges, label_map
from autoseg.surrogate_json import PUBLISHED, Surrogate, parse_conventions

__all__ = ["PUBLISHED", "Surrogate", "SurrogateLoss"]


class SurrogateLoss(torch.nn.Module):
    """1 - the surrogate of a metric, for training: `loss(logits, target)` is a scalar, finite for all finite logits.

    Args:
        metric: one of the six, or registered with `autoseg.formula.register`.
        theta: the relative parameters, as a search samples them; curve after curve.
        control_points: instead of theta, the absolute control points, as published. Neither: identity curves.
        family: "bezier" or "linear"; pieces: how many pieces a curve has (2 and 5 by default).
        layout: which operand has which curve; for BF1 "release" (the default: four curves of one piece) or "paper".
        monotone, truth_table: the two constraints; the paper's ablation drops them.
        ignore_index: the label of void pixels; None: there are none.
        tolerance, boundary_radius, drop_background, mask_void: see `autoseg.formula.Conventions`.
        absent: what the mean does with classes absent from the batch, "skip" or "zero"; None: as the release does (zero
            for mIoU, BIoU and mAcc, skip for the others).
        sync: in distributed training, take the sums over the batches of all ranks (of the process group `group`). The
            gradient is scaled so that averaging over ranks, as DistributedDataParallel does, gives that of the whole.

    `logits` are (N, C, H, W); with C = 1 the loss is binary, with the classes 1 - p and p, p = sigmoid(logit). `target`
    is (N, H, W) of integer labels. Computes in float32 (or float64, if the logits are), under autocast too.

    >>> loss = SurrogateLoss.published("mIoU")
    >>> logits = torch.zeros(2, 3, 8, 8, requires_grad=True)
    >>> value = loss(logits, torch.zeros(2, 8, 8, dtype=torch.long))
    >>> value.backward()
    >>> round(value.item(), 4)
    0.7652
    """

    def __init__(
        self,
        metric: str | Surrogate,
        theta: Sequence[float] | None = None,
        family: str = "bezier",
        ignore_index: int | None = 255,
        *,
        control_points: Sequence[float] | None = None,
        layout: str | None = None,
        pieces: int | None = None,
        monotone: bool = True,
        truth_table: bool = True,
        tolerance: int = 5,
        boundary_radius: int = 5,
        drop_background: bool = True,
        mask_void: bool = False,
        absent: Absent | None = None,
        source: str = "",
        sync: bool = False,
        group: Any = None,
    ) -> None:
        super().__init__()
        if isinstance(metric, Surrogate):
            if theta is not None or control_points is not None:
                raise InputError("a Surrogate has its own parameters; give neither theta nor control_points beside it.")
        else:
            c = formula.Conventions(tolerance, boundary_radius, drop_background, mask_void, absent or "skip")
            metric = Surrogate.make(
                metric,
                theta,
                control_points,
                family=family,
                layout=layout,
                pieces=pieces,
                monotone=monotone,
                truth_table=truth_table,
                conventions={
                    "tolerance": c.tolerance,
                    "boundary_radius": c.boundary_radius,
                    "drop_background": drop_background,
                    "mask_void": mask_void,
                    "absent": absent,
                },
                source=source,
            )
        self.surrogate = metric
        self.ignore_index = check_ignore_index(ignore_index)
        self.sync, self.group = sync, group
        self.formula: Formula = formula.get(metric.metric)
        self.conventions = surrogate_json.conventions_of(metric)
        self.absent: Absent = metric.conventions.absent or self.formula.absent_in_loss
        curves = {name: metric.space.curve_of(points) for name, points in metric.curves.items()}
        operands = self.formula.layout(metric.layout).operands
        self._curves: dict[str, tuple[Curve | None, Curve | None]] = {
            operator: (curves.get(a or ""), curves.get(b or "")) for operator, (a, b) in operands.items()
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, ignore_index: int | None = 255, sync: bool = False) -> SurrogateLoss:
        """Return the loss that a `surrogate.json` describes."""
        return cls(Surrogate.load(path), ignore_index=ignore_index, sync=sync)

    @classmethod
    def published(
        cls, name: str, *, ignore_index: int | None = 255, sync: bool = False, **changes: Any
    ) -> SurrogateLoss:
        """Return a surrogate that the authors published; see `PUBLISHED` for the names.

        `changes` are conventions (tolerance, boundary_radius, drop_background, mask_void, absent) other than VOC's.
        """
        found = surrogate_json.published(name)
        conventions = parse_conventions({**found.conventions.model_dump(), **changes})
        return cls(found.model_copy(update={"conventions": conventions}), ignore_index=ignore_index, sync=sync)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this loss as `surrogate.json`."""
        self.surrogate.save(path)

    def extra_repr(self) -> str:
        """Describe the loss in one line."""
        s = self.surrogate
        own = {key: value for key, value in s.conventions.model_dump().items() if value is not None}
        settings = ", ".join(f"{key}={value}" for key, value in own.items())
        return (
            f"{s.metric}, family={s.family}, layout={s.layout}, theta={[round(x, 4) for x in s.theta]}, "
            f"ignore_index={self.ignore_index}, {settings}"
        )

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return 1 - the soft metric of a batch."""
        logits, labels = check_batch(logits, target, self.ignore_index)
        with torch.autocast(logits.device.type, enabled=False):
            if formula.has_kernel(self.formula) and self.surrogate.truth_table:
                return _KernelLoss.apply(logits, labels, self)
            return self._formula_loss(logits, labels)

    def _kernel(self, logits: Tensor, labels: Tensor, with_gradient: bool) -> RegionKernel | BoundaryKernel:
        if self.formula.name == "BF1":
            return BoundaryKernel(logits, labels, self._curves, self.conventions, with_gradient)
        classes, c = logits.shape[1], self.conventions
        if self.formula.name == "BIoU":
            labels = labels.masked_fill(~band(labels, edges(labels, classes), c).bool(), classes)
        curve_and, curve_or = self._curves["AND"][0], self._curves.get("OR", (None,))[0]
        assert curve_and is not None
        return RegionKernel(logits, labels, curve_and, curve_or, with_gradient)

    def _loss_of_sums(self, sums: Mapping[str, Tensor], present: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the sums (over all ranks, if so told) and its derivative by each of them."""
        sums = {name: value.detach().double() for name, value in sums.items()}
        world = ranks(self.sync, self.group)
        if world > 1:
            everything = torch.stack([*sums.values(), present.double()])
            torch.distributed.all_reduce(everything, group=self.group)
            sums, present = dict(zip(sums, everything[:-1], strict=True)), everything[-1] > 0
        leaves = {name: value.requires_grad_() for name, value in sums.items()}
        with torch.enable_grad():
            score = self.formula.score(
                leaves, self.conventions, absent=self.absent, present=present if self.absent == "skip" else None
            )
            loss = 1 - score
        # Logits that are not finite make sums that are not: the loss must say so, not call the class absent.
        sane = torch.stack([value.isfinite().all() for value in sums.values()]).all()
        slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        by_sum = {
            n: torch.zeros_like(x) if d is None else d * world for (n, x), d in zip(leaves.items(), slopes, strict=True)
        }
        return torch.where(sane, loss.detach(), math.nan), by_sum

    def _formula_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        classes = logits.shape[1]
        y_hat, y = logits.softmax(1), formula.one_hot(labels, classes, None).to(logits.dtype)
        curves = {operator: (a or _identity, b or _identity) for operator, (a, b) in self._curves.items()}
        sums = self.formula.sum_maps(y_hat, y, y.sum(1, keepdim=True), self.conventions, curves)
        loss, by_sum = self._loss_of_sums(sums, sums.get("target", y.sum((0, 2, 3))) > 0)
        # The loss as a linear function of this rank's sums: the same value, and the gradient that belongs to it.
        linear = sum((by_sum[name].to(value.dtype) * value).sum() for name, value in sums.items())
        assert isinstance(linear, Tensor)
        return loss.to(logits.dtype) + (linear - linear.detach())


class _KernelLoss(torch.autograd.Function):
    """The loss by its kernel; the gradient is made in the forward pass, where everything it needs is at hand."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, owner: SurrogateLoss) -> Tensor:
        with_gradient = ctx.needs_input_grad[0]
        kernel = owner._kernel(logits.detach().contiguous(), labels, with_gradient)
        loss, by_sum = owner._loss_of_sums(kernel.sums, kernel.sums["target"] > 0)
        if with_gradient:
            ctx.save_for_backward(kernel.gradient(by_sum))
        return loss.to(logits.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (by_logits,) = ctx.saved_tensors
        if gradient.device.type == "cpu" and gradient == 1:  # as from loss.backward(): spare one more map of this size
            return by_logits, None, None
        return by_logits * gradient, None, None


def ranks(sync: bool, group: Any = None) -> int:
    """Return over how many processes to take sums: 1, unless told to and in distributed training."""
    distributed = sync and torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size(group) if distributed else 1


def _identity(x: Tensor) -> Tensor:
    return x


def check_batch(logits: Tensor, target: Tensor, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Check a batch; return logits of two classes or more, float32 or float64, and labels with C for void."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise InputError(f"logits are {getattr(logits, 'dtype', type(logits))}; expected a tensor of floats.")
    if logits.ndim != 4 or 0 in logits.shape[1:]:
        raise InputError(f"logits have shape {tuple(logits.shape)}; expected (N, C, H, W).")
    if not isinstance(target, Tensor) or target.is_floating_point():
        raise InputError(f"target is {getattr(target, 'dtype', type(target))}; expected a tensor of integer labels.")
    if target.shape != (logits.shape[0], *logits.shape[2:]):
        raise InputError(f"target has shape {tuple(target.shape)}; expected (N, H, W) of logits {tuple(logits.shape)}.")
    if logits.dtype != torch.float64:
        logits = logits.float()
    if logits.shape[1] == 1:  # softmax of (0, z) is (1 - p, p) with p = sigmoid(z)
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    return logits, label_map(target, logits.shape[1], ignore_index, "target").to(logits.device)
