"""Metrics beyond the paper's six, each a formula: Dice, F-beta, Tversky, MCC, kappa, Boundary IoU, NSD, clDice.

The first five need the same counts as mIoU, and with curves the same two operators, AND and OR. So a curve that was
searched for one of them fits the others. The last three are about shapes.
No torch here, as in `autoseg.metrics.formula`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autoseg.metrics.conventions import Conventions
from autoseg.metrics.formula import Formula, Ops, Sums, ratio, register

if TYPE_CHECKING:
    from torch import Tensor


# ---- Regions -------------------------------------------------------------------------------------------------------
# TP = AND, FP = OR - y, FN = y - AND: with curves too, each is at least 0, and the scores stay in their ranges.


def _dice_sums(y_hat: Any, y: Any, ops: Ops) -> dict[str, Any]:
    return _weighted(ops.AND("AND", y_hat, y), ops.OR("OR", y_hat, y), y, (0.5, 0.5))


def _fbeta_sums(y_hat: Any, y: Any, ops: Ops) -> dict[str, Any]:
    return _weighted(ops.AND("AND", y_hat, y), ops.OR("OR", y_hat, y), y, _fbeta_weights(ops.conventions.beta))


def _tversky_sums(y_hat: Any, y: Any, ops: Ops) -> dict[str, Any]:
    return _weighted(ops.AND("AND", y_hat, y), ops.OR("OR", y_hat, y), y, ops.conventions.tversky)


def _fbeta_weights(beta: float) -> tuple[float, float]:
    return 1 / (1 + beta**2), beta**2 / (1 + beta**2)


def _weighted(inter: Any, union: Any, target: Any, weights: tuple[float, float]) -> dict[str, Any]:
    """Return the sums of TP / (TP + a FP + b FN)."""
    return {"inter": inter, "wrong": weights[0] * (union - target) + weights[1] * (target - inter), "target": target}


def _weighted_score(s: Sums) -> Tensor:
    # Rounding makes the sum of nothing wrong fall below 0, which shows where a curve leaves next to nothing of TP.
    return ratio(s["inter"], s["inter"] + s["wrong"].clamp(min=0))


def _agreement(y_hat: Any, y: Any, ops: Ops) -> dict[str, Any]:
    inter = ops.AND("AND", y_hat, y)
    return {"inter": inter, "pred": ops.OR("OR", y_hat, y) - y + inter, "target": y, "all": 0 * y + 1}


def _mcc_score(s: Sums) -> Tensor:
    # In units of pixels, so that numbers stay small: cov / sqrt(var var), each times the number of pixels.
    n = s["all"].clamp(min=1)
    covariance = s["inter"] - s["pred"] * s["target"] / n
    spread = (s["pred"] * (n - s["pred"]) / n) * (s["target"] * (n - s["target"]) / n)
    none = spread <= 1e-8
    mcc = (covariance / spread.masked_fill(none, 1.0).sqrt()).masked_fill(none, 0.0)
    return mcc.masked_fill(_without_rest(s), float("nan"))


def _kappa_score(s: Sums) -> Tensor:
    n = s["all"].clamp(min=1)
    return ratio(s["inter"] - s["pred"] * s["target"] / n, _chance(s)).masked_fill(_without_rest(s), float("nan"))


def _chance(s: Sums) -> Tensor:
    """Return what chance leaves wrong; weighted by it, the classes' kappas have Cohen's kappa of all as their mean."""
    n = s["all"].clamp(min=1)
    return (s["pred"] * (n - s["target"]) + s["target"] * (n - s["pred"])) / (2 * n)


def _without_rest(s: Sums) -> Tensor:
    """Return which classes have no pixel in either map, or all in both: there nothing can agree beyond chance."""
    both = s["pred"] + s["target"]
    return (both <= 1e-8) | (2 * s["all"] - both <= 1e-8)


def region_sums(name: str, overlap: Sums, conventions: Conventions) -> dict[str, Tensor]:
    """Return the sums of one of these formulas out of the numbers of pixels: inter, union, target, all."""
    inter, union, target = overlap["inter"], overlap["union"], overlap["target"]
    weights = {"mDice": (0.5, 0.5), "mFbeta": _fbeta_weights(conventions.beta), "mTversky": conventions.tversky}
    if name in weights:
        return _weighted(inter, union, target, weights[name])
    return {"inter": inter, "pred": union - target + inter, "target": target, "all": overlap["all"]}


# ---- Shapes --------------------------------------------------------------------------------------------------------


class ShapeOps(Ops):
    """Operations on shapes, see `shapes`. Void takes no part in them. Outside the image there is no class."""

    def rim(self, x: Tensor, width: float) -> Tensor:
        """Return x - its minimum over a square: a map's inner rim, `width` pixels or, below 1, a share of the diagonal.

        The border of the image is a rim too.
        """
        from autoseg.metrics import shapes

        return shapes.rim(x, shapes.pixels_wide(width, x.shape[2:]), self.valid)

    def surface(self, x: Tensor) -> Tensor:
        """Return x - its minimum over each pixel and its neighbours along the axes: a map's outermost pixels.

        The border of the image is a surface too.
        """
        from autoseg.metrics import shapes

        return shapes.surface(x, self.valid)

    def near(self, x: Tensor, distance: float) -> Tensor:
        """Return the maximum over the ball of that radius around each pixel, in pixels or in units of `spacing`."""
        from autoseg.metrics import shapes

        return shapes.near(x if self.valid is None else x * self.valid, distance, self.conventions.spacing)

    def skeleton(self, x: Tensor, steps: int) -> Tensor:
        """Return the soft skeleton of Shit et al. (2021): what openings remove from x, eroded up to `steps` times."""
        from autoseg.metrics import shapes

        return shapes.skeleton(x, steps, self.valid)


def _both_rims(y_hat: Any, y: Any, ops: ShapeOps) -> dict[str, Any]:
    width = ops.conventions.band_width
    rim_hat, rim = ops.rim(y_hat, width), ops.rim(y, width)
    return {"inter": ops.AND("AND", rim_hat, rim), "union": ops.OR("OR", rim_hat, rim), "target": rim}


def _surfaces(y_hat: Any, y: Any, ops: ShapeOps) -> dict[str, Any]:
    tolerance = ops.conventions.distance
    edge_hat, edge = ops.surface(y_hat), ops.surface(y)
    near_hat, near = ops.near(edge_hat, tolerance), ops.near(edge, tolerance)
    return {
        "matched": ops.AND("matched", edge_hat, near) + ops.AND("matched", near_hat, edge),
        "missed": ops.AND("missed", edge_hat, 1 - near) + ops.AND("missed", 1 - near_hat, edge),
        "target": edge,
    }


def _centrelines(y_hat: Any, y: Any, ops: ShapeOps) -> dict[str, Any]:
    steps = ops.conventions.skeleton_steps
    line_hat, line = ops.skeleton(y_hat, steps), ops.skeleton(y, steps)
    return {
        "inside": ops.AND("matched", line_hat, y),
        "outside": ops.AND("missed", line_hat, 1 - y),
        "covered": ops.AND("matched", y_hat, line),
        "target": line,
    }


def _overlap_score(s: Sums) -> Tensor:
    return ratio(s["inter"], s["union"])


def _surface_score(s: Sums) -> Tensor:
    return ratio(s["matched"], s["matched"] + s["missed"])


def _centreline_score(s: Sums) -> Tensor:
    precision = ratio(s["inside"], s["inside"] + s["outside"], empty=0.0)
    recall = ratio(s["covered"], s["target"], empty=0.0)
    found = ratio(2 * precision * recall, precision + recall, empty=0.0)
    # A class without a line in either map has no score.
    return found.masked_fill(s["inside"] + s["outside"] + s["target"] <= 1e-8, float("nan"))


mDice = register(Formula("mDice", _dice_sums, _weighted_score))
mFbeta = register(Formula("mFbeta", _fbeta_sums, _weighted_score))
mTversky = register(Formula("mTversky", _tversky_sums, _weighted_score))
mMCC = register(Formula("mMCC", _agreement, _mcc_score))
kappa = register(Formula("kappa", _agreement, _kappa_score, weight=_chance))
REGIONS = (mDice, mFbeta, mTversky, mMCC, kappa)

_SHAPE: dict[str, Any] = {"void": "unseen", "drops_background": True, "operations": ShapeOps}
BoundaryIoU = register(Formula("BoundaryIoU", _both_rims, _overlap_score, **_SHAPE))
NSD = register(Formula("NSD", _surfaces, _surface_score, **_SHAPE))
clDice = register(Formula("clDice", _centrelines, _centreline_score, **_SHAPE))
SHAPES = (BoundaryIoU, NSD, clDice)

MORE: tuple[str, ...] = tuple(formula.name for formula in (*REGIONS, *SHAPES))
