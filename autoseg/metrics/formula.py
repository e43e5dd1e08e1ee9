"""A metric, written once, as the paper's Table 1 writes it: logic on maps, sums over pixels, a mean over classes.

With plain logic a formula is the metric; with a curve in each of its named operators it is the surrogate
(`autoseg.losses.surrogate_loss`). Formulas are written to be read. The paper's six metrics also have fast kernels
(`autoseg.metrics.counts`, `autoseg.losses.kernels`), tested equal to their formulas; any other formula runs as it is.
Further metrics that come with this package are in `autoseg.metrics.more`.

Torch is imported where it is needed, because search spaces are derived from formulas without it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from autoseg.errors import InputError, one_of, unknown
from autoseg.metrics.conventions import Absent, Conventions, reach

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Sums = Mapping[str, "Tensor"]
CurvePair = tuple["Callable[[Tensor], Tensor] | None", "Callable[[Tensor], Tensor] | None"]
"""The curves of an operator's two operands; None: no curve."""


class Ops:
    """The operations a formula may use on maps of shape (N, C, H, W) or (N, C, D, H, W), with values in [0, 1].

    AND, OR and XOR are the paper's arithmetic forms, exact on {0, 1} (eq. 8), with the curve of each operand, if there
    is one, put in (eq. 9). The name tells operators of one formula apart; each has parameters of its own.

    Args:
        conventions: what the paper leaves open.
        valid: (N, 1, H, W), 1 where the pixel has a label; given only if pooling shall not see void.
        curves: for each operator's name, the curves g of its two operands; None: plain logic.
    """

    def __init__(
        self,
        conventions: Conventions,
        valid: Tensor | None = None,
        curves: Mapping[str, CurvePair] | None = None,
    ) -> None:
        self.conventions = conventions
        self.valid = valid
        self.curves = curves

    def _operands(self, name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        if self.curves is None:
            return a, b
        g_a, g_b = self.curves[name]
        return (g_a(a) if g_a else a), (g_b(b) if g_b else b)

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
        """Return the minimum over the square around each pixel, in pixels; outside the image there are ones."""
        if self.valid is not None:
            x = x * self.valid + (1 - self.valid)
        return -_max_pool(-x, reach(radius, None, x.ndim - 2))

    def max_pool(self, x: Tensor, radius: int) -> Tensor:
        """Return the maximum over the square around each pixel; outside the image there are zeros.

        The radius is in pixels, or in the unit of the conventions' `spacing`.
        """
        return _max_pool(
            x if self.valid is None else x * self.valid, reach(radius, self.conventions.spacing, x.ndim - 2)
        )

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


def _max_pool(x: Tensor, radii: Sequence[int]) -> Tensor:
    import torch.nn.functional as F

    # A square wider than the image covers all of it: a smaller one gives the same and needs less padding.
    around = [min(radius, max(size - 1, 0)) for radius, size in zip(radii, x.shape[2:], strict=True)]
    if len(around) == 2:
        return F.max_pool2d(x, tuple(2 * r + 1 for r in around), stride=1, padding=tuple(around))
    for axis, r in enumerate(around):  # a cube at once would cost its volume
        if r:
            padding = tuple(r if k == axis else 0 for k in range(3))
            x = F.max_pool3d(x, tuple(2 * p + 1 for p in padding), stride=1, padding=padding)
    return x


def ratio(numerator: Tensor, denominator: Tensor, empty: float = math.nan) -> Tensor:
    """Return numerator / denominator, and `empty` where the denominator is 0; its gradient is finite everywhere.

    NaN, the default, means that a class cannot be measured; the mean over classes leaves it out or counts it as 0.
    """
    none = denominator.abs() <= 1e-8
    return (numerator / denominator.masked_fill(none, 1.0)).masked_fill(none, empty)


@dataclass(frozen=True)
class CurveLayout:
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
            conventions mask them. "unseen": they are left out of every sum and of all pooling, so that they make no
            edge.
        drops_background: leave class 0 out of the mean where the conventions drop the background.
        absent_in_loss: what a surrogate's mean does with classes absent from the batch, where the conventions leave it
            open.
        drop_background_in_loss: whether a surrogate drops the background, unless its conventions say otherwise. In the
            release BIoU's does, and BF1's does not, though both metrics do.
        operations: the class of `ops`, if the formula needs more of them than `Ops` has.
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
    sums: Callable[[Any, Any, Any], Mapping[str, Any]]
    per_class: Callable[[Sums], Tensor]
    weight: Callable[[Sums], Tensor] | None = None
    void: Literal["masked", "seen", "unseen"] = "masked"
    drops_background: bool = False
    absent_in_loss: Absent = "skip"
    drop_background_in_loss: bool = True
    operations: type[Ops] = Ops
    layouts: Mapping[str, CurveLayout] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Callable[..., Formula], tuple[Any, ...]]:
        if _REGISTRY.get(self.name.lower()) is self:
            return get, (self.name,)  # other processes find it in their own registry
        return Formula, tuple(getattr(self, f.name) for f in fields(self))

    @property
    def has_kernel(self) -> bool:
        """Whether the counts of the six metrics are enough for it: it is built in, not a user's replacement."""
        return any(self is one for one in (*_SIX, *more.REGIONS))

    @property
    def built_in(self) -> bool:
        """Whether it comes with this package: it is not a user's, nor a user's replacement."""
        return self.has_kernel or any(self is one for one in more.SHAPES)

    @property
    def operators(self) -> dict[str, Literal["AND", "OR"]]:
        """The logical operators by name, in the order in which the formula uses them, and the kind of each."""
        trace, one = _Trace(), np.ones((1, 1, 1, 1))
        try:
            self.sums(one, one, trace)
        except (AttributeError, TypeError) as error:
            raise InputError(
                f"the sums cannot be traced ({error})", where=self.name, expected="arithmetic and `ops` only"
            ) from error
        return trace.operators

    def layout(self, name: str | None = None) -> CurveLayout:
        """Return a layout by name, or the default one."""
        layouts = {
            **self.layouts,
            "paper": CurveLayout({operator: (operator, operator) for operator in self.operators}),
        }
        if name is None:
            name = next(iter(layouts))
        return layouts[one_of(name, layouts, f"layout of {self.name}")]

    def loss_conventions(self, conventions: Conventions | None = None, **changes: Any) -> Conventions:
        """Return a surrogate's conventions: the metric's, but for `drop_background`, with changes.

        >>> BF1.loss_conventions(Conventions(tolerance=2)).model_dump(include={"tolerance", "drop_background"})
        {'tolerance': 2, 'drop_background': False}
        """
        own = {"drop_background": self.drop_background_in_loss, **changes}
        return (conventions or Conventions()).replace(**own)

    def sum_maps(
        self,
        y_hat: Tensor,
        y: Tensor,
        valid: Tensor,
        conventions: Conventions,
        curves: Mapping[str, CurvePair] | None = None,
    ) -> dict[str, Tensor]:
        """Return the formula's sums over the pixels of a batch, each of shape (C,); they add over batches.

        `valid` is (N, 1, H, W), 1 where the pixel has a label; y is 0 for every class where it has none.
        """
        mask = self.void != "seen" or conventions.mask_void
        pool_mask = valid if self.void != "masked" and mask else None
        maps = self.sums(y_hat, y, self.operations(conventions, pool_mask, curves))
        if not (isinstance(maps, Mapping) and maps and all(getattr(x, "shape", 0) == y.shape for x in maps.values())):
            expected = "a name and a map (N, C, H, W) for each sum"
            raise InputError(f"found {type(maps).__name__}", where=f"{self.name}: sums", expected=expected)
        pixels = (0, *range(2, y.ndim))
        return {name: ((x * valid) if mask else x).sum(pixels) for name, x in maps.items()}

    def score(
        self,
        sums: Sums,
        conventions: Conventions,
        present: Tensor | None = None,
        class_weights: Tensor | None = None,
        empty: float = 0.0,
    ) -> Tensor:
        """Return the mean over classes of the per-class scores; `empty` where no class can be measured.

        A class counts as often as `class_weights` say, 0: not at all. Classes that are not in `present` count as not
        measured: a surrogate gives it, because a soft prediction has a little of every class.
        """
        import torch

        own = {"per_class": self.per_class(sums), **({"weight": self.weight(sums)} if self.weight else {})}
        for part, found in own.items():
            fits = isinstance(found, torch.Tensor) and found.shape == next(iter(sums.values())).shape
            if not fits or not found.is_floating_point():
                what, expected = f"found {type(found).__name__}", "a tensor with a float for each class"
                raise InputError(what, where=f"{self.name}: {part}", expected=expected)
        values = own["per_class"]
        measured = values == values  # not NaN
        if present is not None:
            measured = measured & present
        values = values.masked_fill(~measured, 0.0)
        weight = own["weight"] if self.weight else torch.ones_like(values)
        if conventions.absent != "zero":
            weight = weight * measured
        if self.drops_background and conventions.drop_background:
            weight = torch.cat([torch.zeros_like(weight[:1]), weight[1:]])
        if class_weights is not None:
            weight = weight * class_weights
        return ratio((weight * values).sum(), weight.sum(), empty=empty)

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
        self,
        pred: Tensor,
        target: Tensor,
        num_classes: int,
        ignore_index: int | None,
        conventions: Conventions,
    ) -> dict[str, Tensor]:
        """Return the formula's sums (float64, exact) of integer label maps (N, H, W)."""
        y_hat, y = (one_hot(labels, num_classes, ignore_index) for labels in (pred, target))
        return self.sum_maps(y_hat, y, y.sum(1, keepdim=True), conventions)


class _Trace(Ops):
    """Writes down the operators that a formula uses."""

    def __init__(self) -> None:
        super().__init__(Conventions())
        self.operators: dict[str, Literal["AND", "OR"]] = {}

    def AND(self, name: str, a: Any, b: Any) -> Any:
        self.operators.setdefault(name, "AND")
        return a * b

    def OR(self, name: str, a: Any, b: Any) -> Any:
        self.operators.setdefault(name, "OR")
        return a * b

    def min_pool(self, x: Any, radius: int = 1) -> Any:
        return x

    def max_pool(self, x: Any, radius: int) -> Any:
        return x

    def boundary(self, y: Any) -> Any:
        return y

    def band(self, y: Any) -> Any:
        return y

    def rim(self, x: Any, width: float) -> Any:
        return x

    def surface(self, x: Any) -> Any:
        return x

    def near(self, x: Any, distance: float) -> Any:
        return x

    def skeleton(self, x: Any, steps: int) -> Any:
        return x


def one_hot(
    labels: Tensor, num_classes: int, ignore_index: int | None = 255, dtype: torch.dtype | None = None
) -> Tensor:
    """Return (N, C, H, W) maps, float64 if nothing is said, 1 where the label is c; all 0 where the pixel is void."""
    import torch

    classes = torch.arange(num_classes, device=labels.device).view(1, -1, *(1 for _ in labels.shape[1:]))
    y = labels.unsqueeze(1) == classes
    if ignore_index is not None:
        y = y & (labels != ignore_index).unsqueeze(1)
    return y.to(dtype or torch.float64)


_REGISTRY: dict[str, Formula] = {}


_NAME = re.compile(r"[^\s:/+*]([^\n\r\0\x1b:/+*]*[^\s:/+*])?")  # as a name may stand in a sum of losses


def register(formula: Formula, *, replace: bool = False) -> Formula:
    """Make a formula known under its name, wherever a metric name is accepted.

    The paper's six metrics, and those registered before, give way only with `replace`. Those of `autoseg.metrics.more`
    always do: a formula that somebody wrote before they were here keeps its name.
    """
    name = getattr(formula, "name", None)
    if not isinstance(formula, Formula) or not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"found {name or formula!r}", where="register", expected="a Formula with a plain name")
    key = name.lower()
    if key in _REGISTRY and not replace and not (_REGISTRY[key].built_in and _REGISTRY[key] not in _SIX):
        raise InputError(
            f"a metric named '{_REGISTRY[key].name}' is registered already", cure="pass replace=True to replace it"
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
    # Hard maps give values in [0, 1]. With curves, OR - AND can be negative and F1 have poles: cut to [0, 1].
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
        drop_background_in_loss=False,
        layouts={
            # The authors' release: a curve of one piece for each operand of the edge's AND and OR, then plain products.
            "release": CurveLayout(
                {"edge.AND": ("g1", "g2"), "edge.OR": ("g3", "g4"), "precision": (None, None), "recall": (None, None)},
                pieces=1,
            )
        },
    )
)

_SIX = (gAcc, mAcc, mIoU, FWIoU, BIoU, BF1)
METRICS: tuple[str, ...] = ("mIoU", "FWIoU", "BIoU", "BF1", "mAcc", "gAcc")  # in the order of the paper's tables

from autoseg.metrics import more  # noqa: E402  (needs the names above)
