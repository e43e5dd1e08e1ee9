"""`SurrogateLoss`: 1 - a metric whose logic has a curve in each operator, as a search finds them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from autoseg.errors import InputError
from autoseg.losses.am_lfs import FAMILY as AM_LFS
from autoseg.losses.formula_loss import FormulaLoss
from autoseg.losses.published import published
from autoseg.losses.surrogate import Surrogate
from autoseg.losses.zoo import from_zoo
from autoseg.metrics import formula
from autoseg.metrics.conventions import Absent
from autoseg.metrics.counts import IgnoreIndex
from autoseg.metrics.targets import Mode


class SurrogateLoss(FormulaLoss):
    """1 - the surrogate of a metric, for training: `loss(logits, target)` is a scalar, finite for all finite logits.

    Args:
        metric: one of the six, one of `autoseg.metrics.more`, or one registered with `autoseg.register`.
        theta: the relative parameters, as a search samples them; curve after curve.
        control_points: instead of theta, the absolute control points, as published. Neither: identity curves.
        family: "bezier", "linear" or "spline"; pieces: how many pieces a curve has (2, 5 and 4 by default).
        layout: which operand has which curve; for BF1 "release" (the default: four curves of one piece) or "paper".
        monotone, truth_table: the two constraints; the paper's ablation drops them.
        tolerance, boundary_radius, mask_void: see `autoseg.metrics.conventions.Conventions`; None: as there, or as the
            Surrogate has them, if one is given.
        drop_background: leave class 0 out of BIoU's band and of BF1's mean; None: as the release's losses do (BIoU's
            does, BF1's does not, though both metrics do).
        has_background: whether class 0 of the data is a background. If not, it is never left out.
        absent: what the mean does with classes absent from the batch, "skip" or "zero"; None: as the release does (zero
            for mIoU, BIoU and mAcc, skip for the others).
        ignore_index, mode, class_weights, sync, group, check_labels: see `autoseg.losses.batch.Loss`; with `sync` the
            sums run over all ranks' batches.
        others: more conventions: `spacing`, the size of a pixel (H, W) or voxel (D, H, W), such as (3, 0.8, 0.8) in
            millimetres, in whose unit tolerance and boundary_radius are then; and those of the metrics in
            `autoseg.metrics.more`, such as beta.

    `logits` are (N, C, H, W) or (N, C, D, H, W); `target` has labels, one-hot maps, or (of metrics without boundaries)
    probabilities of the classes, see `autoseg.losses.batch.Loss`. Computes in float32 (or float64, if the logits are),
    under autocast too.

    >>> import torch
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
        ignore_index: IgnoreIndex = "auto",
        *,
        control_points: Sequence[float] | None = None,
        layout: str | None = None,
        pieces: int | None = None,
        monotone: bool = True,
        truth_table: bool = True,
        tolerance: int | None = None,
        boundary_radius: int | None = None,
        drop_background: bool | None = None,
        mask_void: bool | None = None,
        absent: Absent | None = None,
        source: str = "",
        has_background: bool = True,
        mode: Mode | None = None,
        class_weights: Sequence[float] | None = None,
        sync: bool = False,
        group: Any = None,
        check_labels: bool = False,
        **others: Any,
    ) -> None:
        stated = {
            **others,
            "tolerance": tolerance,
            "boundary_radius": boundary_radius,
            "drop_background": drop_background,
            "mask_void": mask_void,
            "absent": absent,
        }
        changes = {name: value for name, value in stated.items() if value is not None}
        if isinstance(metric, Surrogate):
            own = (theta, control_points, layout, pieces)
            if any(given is not None for given in own) or (family, monotone, truth_table) != ("bezier", True, True):
                expected = "no theta, control_points, family, layout, pieces, monotone or truth_table"
                raise InputError("a Surrogate has its own parameters", expected=expected)
            metric = metric.model_copy(update={"conventions": metric.conventions.replace(**changes)})
        else:
            metric = Surrogate.make(
                metric,
                theta,
                control_points,
                family=family,
                layout=layout,
                pieces=pieces,
                monotone=monotone,
                truth_table=truth_table,
                conventions=changes,
                source=source,
            )
        if metric.family == AM_LFS:
            cure = "build it with `build_loss`, which takes its surrogate.json"
            raise InputError("a loss of AM-LFS is cross entropy, and no metric's surrogate", where="family", cure=cure)
        found = formula.get(metric.metric)
        conventions = metric.conventions.replace(
            absent=metric.conventions.absent or found.absent_in_loss,
            drop_background=metric.conventions.drop_background and has_background,
        )
        super().__init__(
            found,
            metric.operands,
            {name: metric.space.curve_of(points) for name, points in metric.curves.items()},
            metric.pieces,
            conventions,
            ignore_index,
            mode=mode,
            class_weights=class_weights,
            sync=sync,
            group=group,
            check_labels=check_labels,
        )
        self.surrogate = metric

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        ignore_index: IgnoreIndex = "auto",
        has_background: bool = True,
        mode: Mode | None = None,
        class_weights: Sequence[float] | None = None,
        sync: bool = False,
        check_labels: bool = False,
        **changes: Any,
    ) -> SurrogateLoss:
        """Return the loss that a `surrogate.json` describes, or one of the zoo by its name, "zoo:mDice".

        `has_background` is said of the data it is used on. `changes` are conventions other than the file's, such as
        `surface_tolerance` and `spacing`.
        """
        zoo, colon, name = str(path).partition(":")
        found = from_zoo(name) if colon and zoo.lower() == "zoo" else Surrogate.load(path)
        return cls(
            found.model_copy(update={"conventions": found.conventions.replace(**changes)}),
            ignore_index=ignore_index,
            has_background=has_background,
            mode=mode,
            class_weights=class_weights,
            sync=sync,
            check_labels=check_labels,
        )

    @classmethod
    def published(
        cls,
        name: str,
        *,
        ignore_index: IgnoreIndex = "auto",
        has_background: bool = True,
        mode: Mode | None = None,
        class_weights: Sequence[float] | None = None,
        sync: bool = False,
        check_labels: bool = False,
        **changes: Any,
    ) -> SurrogateLoss:
        """Return a surrogate that the authors published; see `PUBLISHED` for the names.

        `changes` are conventions (tolerance, boundary_radius, drop_background, mask_void, absent) other than the
        release's.
        """
        found = published(name)
        found = found.model_copy(update={"conventions": found.conventions.replace(**changes)})
        return cls(
            found,
            ignore_index=ignore_index,
            has_background=has_background,
            mode=mode,
            class_weights=class_weights,
            sync=sync,
            check_labels=check_labels,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this loss as `surrogate.json`."""
        self.surrogate.save(path)

    def extra_repr(self) -> str:
        """Describe the loss in one line."""
        usual = formula.get(self.surrogate.metric).loss_conventions().model_dump()
        others = {key: value for key, value in self.conventions.model_dump().items() if value != usual.get(key)}
        settings = "".join(f", {key}={value}" for key, value in others.items())
        mode = "" if self.mode is None else f", mode={self.mode}"
        return f"{self.surrogate.summary}, ignore_index={self.ignore_index}{mode}{settings}"
