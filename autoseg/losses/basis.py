"""A formula's sums as linear functions of a few sums of the prediction, found by running the formula once.

The target y is 0 or 1. So a map made of logic and arithmetic is a linear combination of 1, p and curves g(p): one on
the pixels of a class (y = 1), another one on all others (y = 0). The sums of those functions over the pixels of each
class, and over the others, are therefore all that the formula needs, and one kernel makes them for every such formula.
No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from autoseg.losses.curves import Curve, Piece
from autoseg.metrics.conventions import Conventions
from autoseg.metrics.formula import Formula, Ops


class BasisFunction(NamedTuple):
    """A function of p: g(p), or mirrored g(1 - p), with g a curve by name; ONE and P have no curve."""

    curve: str | None
    mirrored: bool = False


ONE, P = BasisFunction(None, False), BasisFunction(None, True)


@dataclass(frozen=True)
class LinearForm:
    """The sums of a formula as linear functions of the sums of 1, p and some curves over pixels.

    Args:
        names: the names of the formula's sums.
        terms: the functions needed on pixels of other classes (y = 0), and on those of the class (y = 1). Each list
            begins with ONE and P, needed or not.
        coefficients: by y, term and name.
        in_band: only pixels within `boundary_radius` of a boundary of the target count.
    """

    names: tuple[str, ...]
    terms: tuple[tuple[BasisFunction, ...], tuple[BasisFunction, ...]]
    coefficients: tuple[tuple[tuple[float, ...], ...], ...]
    in_band: bool

    @property
    def width(self) -> int:
        """The number of terms, ONE and P included, that are enough for both y."""
        return max(len(terms) for terms in self.terms)

    def curves(self, y: int) -> tuple[BasisFunction, ...]:
        """Return the terms with a curve."""
        return self.terms[y][2:]

    def matrix(self) -> list[list[float]]:
        """Return the coefficients of each sum, for y = 0 and then y = 1, both `width` long; last, those of a sum that
        says which classes are in the batch: the one named "target", else the number of their pixels.
        """
        rows = [[*self._padded(0, name), *self._padded(1, name)] for name in range(len(self.names))]
        area = [float(k == self.width) for k in range(2 * self.width)]
        return [*rows, rows[self.names.index("target")] if "target" in self.names else area]

    def _padded(self, y: int, name: int) -> list[float]:
        column = [coefficients[name] for coefficients in self.coefficients[y]]
        return column + [0.0] * (self.width - len(column))

    def needs(self, y: int, term: BasisFunction) -> bool:
        """Return whether a sum depends on this term where the target is y."""
        return term in self.terms[y] and any(self.coefficients[y][self.terms[y].index(term)])


def linear_form(
    formula: Formula,
    operands: Mapping[str, tuple[str | None, str | None]],
    ends: Mapping[str, tuple[float, float]],
    conventions: Conventions | None = None,
) -> LinearForm | None:
    """Return the linear form of a formula; None if it has none, because it pools or multiplies predictions.

    Args:
        formula: the formula.
        operands: the names of the curves of each operator, see `autoseg.metrics.formula.CurveLayout`.
        ends: g(0) and g(1) of each curve.
        conventions: what the formula finds in `ops.conventions`.

    >>> from autoseg.metrics import formula
    >>> form = linear_form(formula.mIoU, formula.mIoU.layout().operands, {"AND": (0, 1), "OR": (0, 1)})
    >>> form.names
    ('inter', 'union', 'target')
    >>> form.curves(0), form.curves(1)
    ((BasisFunction(curve='OR', mirrored=False),), (BasisFunction(curve='AND', mirrored=False),))
    """
    y_hat, y = _Map({P: 1.0}, {P: 1.0}), _Map({}, {ONE: 1.0})
    try:
        maps = {name: _map(x) for name, x in formula.sums(y_hat, y, _LinearOps(operands, ends, conventions)).items()}
    except (_NotLinearError, AttributeError, TypeError, ValueError):
        return None
    bands = {x.in_band for x in maps.values() if any(x.at)}
    # Without a sum named "target", the classes of the batch are those of all its pixels, not of the band's.
    if len(bands) != 1 or (bands == {True} and "target" not in maps):
        return None
    terms = [tuple(dict.fromkeys([ONE, P, *(term for x in maps.values() for term in x.at[y])])) for y in (0, 1)]
    coefficients = tuple(
        tuple(tuple(x.at[y].get(term, 0.0) for x in maps.values()) for term in terms[y]) for y in (0, 1)
    )
    return LinearForm(tuple(maps), (terms[0], terms[1]), coefficients, bands.pop())


def curve_of(term: BasisFunction, curves: Mapping[str, Curve]) -> Curve:
    """Return the function of p that a term stands for; the curve mirrored is h(p) = g(1 - p)."""
    assert term.curve is not None
    curve = curves[term.curve]
    if not term.mirrored:
        return curve
    pieces = [
        Piece(1 - (p.u0 + p.b + p.a), p.v0 + p.c + p.d, -p.a, p.b + 2 * p.a, -p.c - 2 * p.d, p.d)
        for p in reversed(curve.pieces)
    ]
    first = pieces[0]
    if abs(first.u0) < 1e-12 and abs(first.v0 - curve.end) < 1e-12:  # no jump: the same, but for rounding
        pieces[0] = first._replace(u0=0.0, v0=curve.end)
    return Curve(pieces, curve.end, curve.start)


class _NotLinearError(Exception):
    """A map is not a linear combination of terms."""


class _Map:
    """A map while a formula is traced: the coefficients of its terms where the target is 0, and where it is 1."""

    __array_ufunc__ = None  # numpy's numbers leave the arithmetic to this class

    def __init__(
        self, at_0: Mapping[BasisFunction, float], at_1: Mapping[BasisFunction, float], in_band: bool = False
    ) -> None:
        self.at = [{term: c for term, c in at.items() if c} for at in (at_0, at_1)]
        self.in_band = in_band

    def __add__(self, other: Any) -> _Map:
        other = _map(other)
        if any(self.at) and any(other.at) and self.in_band != other.in_band:
            raise _NotLinearError
        sums = [{t: a.get(t, 0.0) + b.get(t, 0.0) for t in {**a, **b}} for a, b in zip(self.at, other.at, strict=True)]
        return _Map(sums[0], sums[1], in_band=self.in_band or other.in_band)

    def __mul__(self, other: Any) -> _Map:
        other = _map(other)
        products = []
        for a, b in zip(self.at, other.at, strict=True):
            if not a.keys() <= {ONE}:
                a, b = b, a
            if not a.keys() <= {ONE}:
                raise _NotLinearError
            products.append({term: a.get(ONE, 0.0) * c for term, c in b.items()})
        return _Map(products[0], products[1], in_band=self.in_band or other.in_band)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> _Map:
        return self * -1.0

    def __sub__(self, other: Any) -> _Map:
        return self + -_map(other)

    def __rsub__(self, other: Any) -> _Map:
        return _map(other) + -self

    def __truediv__(self, other: float) -> _Map:
        return self * (1 / float(other))


def _map(x: Any) -> _Map:
    return x if isinstance(x, _Map) else _Map({ONE: float(x)}, {ONE: float(x)})


class _LinearOps(Ops):
    """The operations of a formula on traced maps."""

    def __init__(
        self,
        operands: Mapping[str, tuple[str | None, str | None]],
        ends: Mapping[str, tuple[float, float]],
        conventions: Conventions | None,
    ) -> None:
        super().__init__(conventions or Conventions())
        self.names, self.ends = operands, ends

    def _operands(self, name: str, a: Any, b: Any) -> tuple[Any, Any]:
        of_a, of_b = self.names[name]
        return self._shape(of_a, _map(a)), self._shape(of_b, _map(b))

    def _shape(self, curve: str | None, x: _Map) -> _Map:
        """Return g(x): x must be 0, 1, p or 1 - p, each for y = 0 and y = 1."""
        if curve is None:
            return x
        if x.in_band:  # g(0) need not be 0
            raise _NotLinearError
        start, end = self.ends[curve]
        known: dict[frozenset[tuple[BasisFunction, float]], dict[BasisFunction, float]] = {
            frozenset(): {ONE: start},
            frozenset({(ONE, 1.0)}): {ONE: end},
            frozenset({(P, 1.0)}): {BasisFunction(curve): 1.0},
            frozenset({(ONE, 1.0), (P, -1.0)}): {BasisFunction(curve, mirrored=True): 1.0},
        }
        found = [known.get(frozenset(at.items())) for at in x.at]
        if found[0] is None or found[1] is None:
            raise _NotLinearError
        return _Map(found[0], found[1])

    def min_pool(self, x: Any, radius: int = 1) -> Any:
        raise _NotLinearError

    def max_pool(self, x: Any, radius: int) -> Any:
        raise _NotLinearError

    def boundary(self, y: Any) -> Any:
        raise _NotLinearError

    def band(self, y: Any) -> Any:
        if _map(y).at != [{}, {ONE: 1.0}]:
            raise _NotLinearError
        return _Map({ONE: 1.0}, {ONE: 1.0}, in_band=True)
