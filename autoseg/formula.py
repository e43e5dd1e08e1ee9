"""A metric, written once, as the paper's Table 1 writes it: logic on maps, sums over pixels, a mean over classes.

With hard logic a formula gives the metric; with a curve in each of its named operators (`autoseg.surrogates`) it gives
the surrogate. Nothing here is fast: `autoseg.metrics` and `autoseg.surrogates` have kernels for the six metrics of the
paper, tested equal to these formulas, and any other registered formula is used as it stands.

Torch is imported where it is first needed, so that search spaces can be derived from formulas without it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from autoseg.errors import InputError, unknown

if TYPE_CHECKING:
    from torch import Tensor

Absent = Literal["skip", "zero"]
Curve = Callable[["Tensor"], "Tensor"]
Sums = Mapping[str, "Tensor"]


def whole_number(value: Any, name: str, unit: str = "", least: int | None = 0) -> int:
    """Return a whole number, numpy's too, not below `least`; anything else is an InputError."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_) or (least is not None and number < least):
        bound = "" if least is None else f", {least} or more"
        raise InputError(f"{name} is {value!r}; expected a whole number{' ' + unit if unit else ''}{bound}.")
    return number


@dataclass(frozen=True)
class Conventions:
    """What the paper's formulas leave open, settled as the authors' evaluator does.

    Args:
        tolerance: how far, in pixels, a boundary may be off and still match (BF1): radius of the max-pooling square.
        boundary_radius: half width, in pixels, of the band around boundaries (BIoU): radius of the dilating square.
        drop_background: leave class 0 out of BIoU's band (its edges) and out of BF1's mean over classes.
        mask_void: BF1 without void: void pixels have no edge, make none and match none. The release (False) sees void
            as pixels of no class, so the border between an object and void is an edge of the object.
        absent: a class that a metric cannot measure is left out of the mean ("skip") or counts 0 ("zero").
    """

    tolerance: int = 5
    boundary_radius: int = 5
    drop_background: bool = True
    mask_void: bool = False
    absent: Absent = "skip"

    def __post_init__(self) -> None:
        for name in ("tolerance", "boundary_radius"):
            object.__setattr__(self, name, whole_number(getattr(self, name), name, "of pixels"))
        for name in ("drop_background", "mask_void"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)!r}; expected True or False.")
        if self.absent not in ("skip", "zero"):
            raise unknown("treatment of absent classes", str(self.absent), ["skip", "zero"])


CONVENTIONS: Mapping[str, Conventions] = MappingProxyType(
    {"voc": Conventions(), "cityscapes": Conventions(drop_background=False)}
)


def conventions(name: str | Conventions, **changes: Any) -> Conventions:
    """Return the conventions of a data set by name ("voc", "cityscapes"), with changes.

    >>> conventions("cityscapes", tolerance=2)
    Conventions(tolerance=2, boundary_radius=5, drop_background=False, mask_void=False, absent='skip')
    """
    if not isinstance(name, Conventions):
        if str(name).lower() not in CONVENTIONS:
            raise unknown("conventions", str(name), CONVENTIONS)
        name = CONVENTIONS[name.lower()]
    return replace(name, **changes)


class Ops:
    """The operations a formula may use on maps of shape (N, C, H, W) with values in [0, 1].

    AND, OR and XOR are the paper's arithmetic forms, exact on {0, 1} (eq. 8), with the curve of each operand, if there
    is one, put in (eq. 9). The name tells operators of one formula apart; each has parameters of its own.

    Args:
        conventions: what the paper leaves open.
        valid: (N, 1, H, W), 1 where the pixel has a label; given only if pooling shall not see void.
        curves: for each operator's name, the curves g of its two operands.
    """

    def __init__(
        self,
        conventions: Conventions | None = None,
        valid: Tensor | None = None,
        curves: Mapping[str, tuple[Curve, Curve]] | None = None,
    ) -> None:
        self.conventions = conventions or Conventions()
        self.valid = valid
        self.curves = curves

    def _operands(self, name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        if self.curves is None:
            return a, b
        g_a, g_b = self.curves[name]
        return g_a(a), g_b(b)

    def AND(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Return h_AND(a, b) = g(a) g(b)."""
        a, b = self._operands(name, a, b)
        return a * b

    def OR(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Return h_OR(a, b) = g(a) + g(b) - g(a) g(b)."""
        a, b = self._operands(name, a, b)
        return a + b - a * b

    def XOR(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Return OR - AND: two operators, `<name>.AND` and `<name>.OR`, each with its own curve."""
        both = self.AND(f"{name}.AND", a, b)
        return self.OR(f"{name}.OR", a, b) - both

    def min_pool(self, x: Tensor, radius: int = 1) -> Tensor:
        """Return the minimum over the square around each pixel; outside the image there are ones."""
        if self.valid is not None:
            x = x * self.valid + (1 - self.valid)
        return -_max_pool(-x, radius)

    def max_pool(self, x: Tensor, radius: int) -> Tensor:
        """Return the maximum over the square around each pixel; outside the image there are zeros."""
        return _max_pool(x if self.valid is None else x * self.valid, radius)

    def boundary(self, y: Tensor) -> Tensor:
        """Return BD(y) = y XOR Min-Pooling(y) (eq. 5) of a hard map: each class's inner 3x3 edge."""
        inner = self.min_pool(y)
        return y + inner - 2 * y * inner

    def band(self, y: Tensor) -> Tensor:
        """Return 1 within `boundary_radius` of any class's boundary in the hard map y, as (N, 1, H, W)."""
        edges = self.boundary(y)
        if self.conventions.drop_background:
            edges = edges[:, 1:]
        return self.max_pool(edges.sum(1, keepdim=True).clamp(max=1), self.conventions.boundary_radius)


def _max_pool(x: Tensor, radius: int) -> Tensor:
    import torch.nn.functional as F

    # A square wider than the image sees all of it: no need to pad (and pay) for more.
    radius_h, radius_w = (min(radius, max(size - 1, 0)) for size in x.shape[-2:])
    return F.max_pool2d(x, (2 * radius_h + 1, 2 * radius_w + 1), stride=1, padding=(radius_h, radius_w))


def ratio(numerator: Tensor, denominator: Tensor, empty: float = math.nan) -> Tensor:
    """Return numerator / denominator, and `empty` where the denominator is 0; its gradient is finite everywhere.

    NaN, the default, says "this class cannot be measured"; the mean over classes knows what to do with it.
    """
    import torch

    some = denominator.abs() > 1e-8
    quotient = numerator / torch.where(some, denominator, torch.ones_like(denominator))
    return torch.where(some, quotient, torch.full_like(quotient, empty))


@dataclass(frozen=True)
class Layout:
    """Which curve shapes each operand of each operator: operator -> (curve of a, curve of b); None is no curve."""

    operands: Mapping[str, tuple[str | None, str | None]]
    pieces: int = 2

    @property
    def curves(self) -> tuple[str, ...]:
        """The names of the curves, in the order of their parameters."""
        names = [name for pair in self.operands.values() for name in pair if name is not None]
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class Formula:
    """A metric as a formula.

    Args:
        name: how the metric is called wherever a metric name is accepted (in any case of letters).
        sums: from the prediction and the target, (N, C, H, W) maps, and the operations `ops`, the maps whose sums over
            pixels the metric needs, by name. Use arithmetic and `ops` only: the operators are found by tracing. A sum
            named "target" tells a surrogate which classes are in the batch; else any pixel of a class does.
        per_class: from those sums, each of shape (C,), the score of each class; NaN where a class has none.
        weight: from those sums, how much each class weighs in the mean; None: all alike.
        void: "masked": void pixels are left out of every sum. "seen": they stay in, as pixels of no class, unless the
            conventions mask them.
        drops_background: leave class 0 out of the mean where the conventions drop the background.
        absent_in_loss: what the mean does in a surrogate with classes absent from the batch, unless told otherwise.
        layouts: other ways than "paper" (a curve of two pieces for each operator, shared by its operands) to put curves
            into the operators; the first one named is the default.

    Mean Dice, in four lines:

    >>> dice = Formula(
    ...     "mDice",
    ...     sums=lambda y_hat, y, ops: {"both": ops.AND("AND", y_hat, y), "size": y_hat + y},
    ...     per_class=lambda s: ratio(2 * s["both"], s["size"]),
    ... )
    >>> import torch
    >>> pred, target = torch.tensor([[[0, 0, 1]]]), torch.tensor([[[0, 1, 1]]])
    >>> round(dice.evaluate(pred, target, num_classes=2), 4)
    0.6667
    """

    name: str
    sums: Callable[[Any, Any, Ops], Mapping[str, Any]]
    per_class: Callable[[Sums], Tensor]
    weight: Callable[[Sums], Tensor] | None = None
    void: Literal["masked", "seen"] = "masked"
    drops_background: bool = False
    absent_in_loss: Absent = "skip"
    layouts: Mapping[str, Layout] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Callable[..., Formula], tuple[Any, ...]]:
        if _REGISTRY.get(self.name.lower()) is self:
            return get, (self.name,)  # other processes find it in their own registry
        return Formula, tuple(getattr(self, f.name) for f in fields(self))

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of the logical operators, in the order in which the formula uses them."""
        trace, one = _Trace(), np.ones((1, 1, 1, 1))
        try:
            self.sums(one, one, trace)
        except (AttributeError, TypeError) as error:
            raise InputError(f"the sums of {self.name} must use arithmetic and `ops` only, but: {error}.") from error
        return tuple(dict.fromkeys(trace.names))

    def layout(self, name: str | None = None) -> Layout:
        """Return a layout by name, or the default one."""
        layouts = {**self.layouts, "paper": Layout({operator: (operator, operator) for operator in self.operators})}
        if name is None:
            name = next(iter(layouts))
        if name not in layouts:
            raise unknown(f"layout of {self.name}", str(name), layouts)
        return layouts[name]

    def sum_maps(
        self,
        y_hat: Tensor,
        y: Tensor,
        valid: Tensor,
        conventions: Conventions,
        curves: Mapping[str, tuple[Curve, Curve]] | None = None,
    ) -> dict[str, Tensor]:
        """Return the formula's sums over the pixels of a batch, each of shape (C,); they add over batches.

        `valid` is (N, 1, H, W), 1 where the pixel has a label; y is 0 for every class where it has none.
        """
        mask = self.void == "masked" or conventions.mask_void
        pool_mask = valid if self.void == "seen" and conventions.mask_void else None
        maps = self.sums(y_hat, y, Ops(conventions, pool_mask, curves))
        return {name: ((x * valid) if mask else x).sum((0, 2, 3)) for name, x in maps.items()}

    def score(
        self, sums: Sums, conventions: Conventions, *, absent: Absent | None = None, present: Tensor | None = None
    ) -> Tensor:
        """Return the mean over classes of the per-class scores; 0 where no class can be measured.

        `present` further restricts which classes can be (surrogates: a soft prediction has a bit of every class).
        """
        import torch

        values = self.per_class(sums)
        measured = ~torch.isnan(values)
        if present is not None:
            measured = measured & present
        values = torch.where(measured, values, torch.zeros_like(values))
        weight = torch.ones_like(values) if self.weight is None else self.weight(sums)
        if (absent or conventions.absent) == "skip":
            weight = weight * measured
        if self.drops_background and conventions.drop_background:
            weight = torch.cat([torch.zeros_like(weight[:1]), weight[1:]])
        return ratio((weight * values).sum(), weight.sum(), empty=0.0)

    def evaluate(
        self,
        pred: Tensor,
        target: Tensor,
        num_classes: int,
        ignore_index: int | None = 255,
        conventions: Conventions | None = None,
    ) -> float:
        """Return the metric of integer label maps (N, H, W), by the formula itself: exact and slow."""
        conventions = conventions or Conventions()
        return float(self.score(self.count(pred, target, num_classes, ignore_index, conventions), conventions))

    def count(
        self, pred: Tensor, target: Tensor, num_classes: int, ignore_index: int | None, conventions: Conventions
    ) -> dict[str, Tensor]:
        """Return the formula's sums (float64, exact) of integer label maps (N, H, W)."""
        y_hat, y = (one_hot(labels, num_classes, ignore_index) for labels in (pred, target))
        return self.sum_maps(y_hat, y, y.sum(1, keepdim=True), conventions)


class _Trace(Ops):
    """Writes down the names of the operators that a formula uses."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def AND(self, name: str, a: Any, b: Any) -> Any:
        self.names.append(name)
        return a * b

    OR = AND

    def min_pool(self, x: Any, radius: int = 1) -> Any:
        return x

    def max_pool(self, x: Any, radius: int) -> Any:
        return x

    def boundary(self, y: Any) -> Any:
        return y

    def band(self, y: Any) -> Any:
        return y


def one_hot(labels: Tensor, num_classes: int, ignore_index: int | None = 255) -> Tensor:
    """Return (N, C, H, W) float64 maps, 1 where the label is c; all 0 where the pixel is void."""
    import torch

    classes = torch.arange(num_classes, device=labels.device).view(1, -1, 1, 1)
    y = labels.unsqueeze(1) == classes
    if ignore_index is not None:
        y = y & (labels != ignore_index).unsqueeze(1)
    return y.double()


_REGISTRY: dict[str, Formula] = {}


def register(formula: Formula, *, replace: bool = False) -> Formula:
    """Make a formula known under its name, wherever a metric name is accepted."""
    key = formula.name.lower()
    if key in _REGISTRY and not replace:
        raise InputError(
            f"a metric named '{_REGISTRY[key].name}' is registered already; pass replace=True to replace it."
        )
    _REGISTRY[key] = formula
    return formula


def get(name: str) -> Formula:
    """Return the formula of a metric by name, in any case of letters.

    >>> get("miou").name
    'mIoU'
    """
    key = str(name).lower()
    if key not in _REGISTRY:
        raise unknown("metric", str(name), names())
    return _REGISTRY[key]


def names() -> tuple[str, ...]:
    """Return the names of all registered metrics."""
    return tuple(formula.name for formula in _REGISTRY.values())


# ---- The six metrics of the paper (Table 1) ------------------------------------------------------------------------


def _accuracy(y_hat: Any, y: Any, ops: Ops) -> dict[str, Any]:
    return {"hit": ops.AND("AND", y_hat, y), "target": y}


def _overlap(y_hat: Any, y: Any, ops: Ops) -> dict[str, Any]:
    return {"inter": ops.AND("AND", y_hat, y), "union": ops.OR("OR", y_hat, y), "target": y}


def _boundary_overlap(y_hat: Any, y: Any, ops: Ops) -> dict[str, Any]:
    band = ops.band(y)
    return {"inter": band * ops.AND("AND", y_hat, y), "union": band * ops.OR("OR", y_hat, y), "target": band * y}


def _boundary_match(y_hat: Any, y: Any, ops: Ops) -> dict[str, Any]:
    edge_hat = ops.XOR("edge", y_hat, ops.min_pool(y_hat))
    edge = ops.boundary(y)
    tolerance = ops.conventions.tolerance
    return {
        "matched_pred": ops.AND("precision", edge_hat, ops.max_pool(edge, tolerance)),
        "pred": edge_hat,
        "matched_target": ops.AND("recall", ops.max_pool(edge_hat, tolerance), edge),
        "target": edge,
    }


def _accuracy_score(s: Sums) -> Tensor:
    return ratio(s["hit"], s["target"])


def _iou_score(s: Sums) -> Tensor:
    return ratio(s["inter"], s["union"])


def _f1_score(s: Sums) -> Tensor:
    # Cut to [0, 1], which hard maps never leave: with a curve in each, OR - AND can be negative, and F1 have poles.
    precision = ratio(s["matched_pred"], s["pred"], empty=0.0).clamp(0, 1)
    recall = ratio(s["matched_target"], s["target"], empty=0.0).clamp(0, 1)
    f1 = ratio(2 * precision * recall, precision + recall, empty=0.0)
    return f1.masked_fill(s["target"] == 0, math.nan)  # a class with no target edge has no score


def _frequency(s: Sums) -> Tensor:
    return s["target"]


gAcc = register(Formula("gAcc", _accuracy, _accuracy_score, weight=_frequency))  # eq. 1
mAcc = register(Formula("mAcc", _accuracy, _accuracy_score, absent_in_loss="zero"))  # eq. 2
mIoU = register(Formula("mIoU", _overlap, _iou_score, absent_in_loss="zero"))  # eq. 3
FWIoU = register(Formula("FWIoU", _overlap, _iou_score, weight=_frequency))  # eq. 4
BIoU = register(Formula("BIoU", _boundary_overlap, _iou_score, absent_in_loss="zero"))  # eq. 5
BF1 = register(  # eq. 6
    Formula(
        "BF1",
        _boundary_match,
        _f1_score,
        void="seen",
        drops_background=True,
        layouts={
            # The authors' release: a curve of one piece for each operand of the edge's AND and OR, then plain products.
            "release": Layout(
                {"edge.AND": ("g1", "g2"), "edge.OR": ("g3", "g4"), "precision": (None, None), "recall": (None, None)},
                pieces=1,
            )
        },
    )
)

_SIX = (gAcc, mAcc, mIoU, FWIoU, BIoU, BF1)


def has_kernel(formula: Formula) -> bool:
    """Whether the fast kernels stand for this formula: it is one of the six, not a user's replacement of one."""
    return any(formula is one for one in _SIX)


METRICS: tuple[str, ...] = ("mIoU", "FWIoU", "BIoU", "BF1", "mAcc", "gAcc")  # in the order of the paper's tables
