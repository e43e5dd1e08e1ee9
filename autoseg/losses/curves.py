"""The curve g: [0, 1] -> R inside every logical operator: theta -> control points -> g and g'.

Three families: piecewise quadratic Bézier (Section 3.2 of the paper), piecewise linear (Appendix B), smooth splines.
A family is a class, see `Family`. Parameters are plain floats. A curve is evaluated on torch tensors or on numpy arrays
by the same code; no torch is imported here.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from autoseg.errors import InputError, one_of, truth

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Array = Any
"""A torch tensor (losses) or a numpy array (text and figures, which need no torch)."""


MOST_PIECES = 1000
MOST_NUMBERS = 1_000_000  # of theta: more than any surrogate has, and not endless


NARROW = 1e-6
"""A Bézier piece narrower than this in u is dropped. The curve jumps there and takes the value on the right of the
jump, except at y = 0, where it is g(0)."""


STEEP = 1e-6
"""The least D = du/ds that g' = (dv/ds) / D is divided by: |g'| is at most 2 / STEEP = 2e6."""


class Piece(NamedTuple):
    """One quadratic piece, from y = u0 up to the next piece's u0: what it takes to evaluate it.

    With s in [0, 1] along the piece, y = u0 + b s + a s^2 (eq. 13a) and g = v0 + c s + d s^2 (eq. 13b).
    """

    u0: float
    v0: float
    a: float
    b: float
    c: float
    d: float


class Curve:
    """A curve g, ready to be evaluated: its pieces from left to right, and its values at 0 and 1.

    >>> import numpy as np
    >>> CurveSpace("linear", 2).curve_of([0.8])(np.array([0.0, 0.25, 0.5, 1.0])).tolist()
    [0.0, 0.4, 0.8, 1.0]
    """

    def __init__(self, pieces: Sequence[Piece], start: float, end: float) -> None:
        self.pieces = tuple(pieces)
        self.start, self.end = start, end

    def __call__(self, y: Array) -> Array:
        """Return g(y), in torch with autograd; y is cut to [0, 1] first."""
        if library(y).__name__ == "torch":
            return _with_autograd(self, y)
        with library(y).errstate(invalid="ignore", divide="ignore"):  # a piece may be NaN where another one counts
            return self.value_and_slope(y.clip(0, 1))[0]

    def value_and_slope(self, y: Array) -> tuple[Array, Array]:
        """Return g(y) and g'(y) for y in [0, 1], without autograd. |g'| is capped, see STEEP."""
        xp = library(y)
        value, slope = evaluate_piece(self.pieces[0], y)
        for piece in self.pieces[1:]:
            g, dg = evaluate_piece(piece, y)
            here = y >= piece.u0
            value, slope = xp.where(here, g, value), xp.where(here, dg, slope)
        # The ends are set, so that they are exact: rounding changes them, and a dropped narrow piece makes them jump.
        value = xp.where(y <= 0, xp.full_like(y, self.start), value)
        return xp.where(y >= 1, xp.full_like(y, self.end), value), slope

    @cached_property
    def jumps_at_0(self) -> bool:
        """Whether the first piece was too narrow to be kept, so that the curve jumps at 0."""
        return self.pieces[0].u0 > 0 or self.pieces[0].v0 != self.start

    @cached_property
    def jumps_at_1(self) -> bool:
        """Whether the last piece was too narrow to be kept, so that the curve jumps at 1."""
        last = self.pieces[-1]
        return last.u0 + last.b + last.a < 1 - NARROW / 2 or abs(last.v0 + last.c + last.d - self.end) > 1e-12

    @cached_property
    def delicate(self) -> tuple[tuple[float, float], ...]:
        """Where a rounding error of 6e-8 in y, that of a float32 near 1, would change g' by more than 2e-5 of itself.

        That is where D is small, so that |dD/dy| / D = 2 |a| / D^2 is large: after a knot, or before one. Near y = 0 a
        float32 is precise enough.
        """
        zones = []
        for piece in self.pieces:
            limit = math.sqrt(abs(piece.a) * 2 * 6e-8 / 2e-5)
            if piece.a > 0 and piece.b < limit and piece.u0 > 0:
                s = min((limit - piece.b) / (2 * piece.a), 1.0)
                zones.append((piece.u0, piece.u0 + s * (piece.b + s * piece.a)))
            if piece.a < 0 and piece.b + 2 * piece.a < limit:
                s = max((limit - piece.b) / (2 * piece.a), 0.0)
                zones.append((piece.u0 + s * (piece.b + s * piece.a), piece.u0 + piece.b + piece.a))
        return tuple(zones)


def evaluate_piece(piece: Piece, y: Array, work: Sequence[Array | None] = (None, None, None)) -> tuple[Array, Array]:
    """Return g and g' of one piece at y; what is returned for y outside the piece has no meaning.

    `work` may lend memory of y's shape, to torch only: g is then in its last part, g' in its second.

    s solves y = u0 + b s + a s^2 in the form s = 2x / (D + b), D = sqrt(b^2 + 4 a x), x = y - u0: it has no special
    case at a = 0 (control point in the middle) nor at b = 0 (on the left end), and no cancellation but D's own.
    """
    xp = library(y)
    x = xp.subtract(y, piece.u0, out=work[2]) if piece.u0 else y
    if piece.a == 0 and piece.d == 0:  # a line
        rise = piece.c / piece.b
        value = _affine(piece.v0, rise, x, work[2])
        return value, xp.full_like(x, rise) if work[1] is None else work[1].fill_(rise)
    # D^2 is a sum of two positive terms, counted from the end where D is the smaller, so that nothing cancels.
    end = piece.u0 + piece.b + piece.a
    if piece.a < 0:
        least = (piece.b + 2 * piece.a) ** 2
        root = _affine(end, -1, y, work[0])
        root = _affine(least, -4 * piece.a, root, root)
    else:
        least = piece.b**2
        root = _affine(least, 4 * piece.a, x, work[0])
    beyond = end < 1  # then y may lie behind the piece, where D^2 may be negative and s greater than 1
    if beyond or least < 2 * STEEP**2:
        xp.clip(root, STEEP**2, None, out=root)
    xp.sqrt(root, out=root)
    half_s = xp.add(root, piece.b, out=work[1])
    xp.divide(x, half_s, out=half_s)
    if beyond or piece.a < 0:  # rounding can give s > 1 where D is small
        xp.clip(half_s, None, 0.5, out=half_s)
    value = _affine(2 * piece.c, 4 * piece.d, half_s, work[2])
    value *= half_s
    if piece.v0:
        value += piece.v0
    slope = _affine(piece.c, 4 * piece.d, half_s, half_s)
    slope /= root
    return value, slope


def library(y: Array) -> Any:
    """Return the library that y is an array of: torch or numpy."""
    return sys.modules[type(y).__module__.partition(".")[0]]


def _affine(constant: float, factor: float, x: Array, out: Array | None = None) -> Array:
    """Return constant + factor x; torch needs one pass over memory for it, and `out` lends it that memory."""
    plain = type(x).__name__ in ("Tensor", "Parameter")  # no array of numpy, and none that torch traces code with
    if plain and not library(x).compiler.is_compiling():
        return library(x).add(_constant(constant, x.dtype, x.device), x, alpha=factor, out=out)
    return constant + factor * x


@lru_cache(maxsize=256)
def _constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    import torch

    with torch.inference_mode(False):  # it may be used in training afterwards
        return torch.tensor(value, dtype=dtype, device=device)


def refuse_second_derivative() -> None:
    """Refuse, in a backward pass, to make a graph of the gradient.

    torch's `once_differentiable` is refused only if the graph is walked to its end: `torch.autograd.grad` of a gradient
    would silently take a part of it for a constant.
    """
    import torch

    if torch.is_grad_enabled():
        raise RuntimeError("this loss has no second derivative: leave out create_graph=True")


def _with_autograd(curve: Curve, y: Tensor) -> Tensor:
    import torch

    if not y.is_floating_point():
        raise TypeError(f"a curve needs floats, but was given {y.dtype}")
    if torch.compiler.is_compiling():  # a class that is made here cannot be traced; compiled, this costs no more
        y = y.clamp(0, 1)
        value, slope = curve.value_and_slope(y.detach())
        return value + slope * (y - y.detach())

    class Evaluate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:
            value, slope = curve.value_and_slope(y)
            ctx.save_for_backward(slope)
            return value

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            refuse_second_derivative()
            (slope,) = ctx.saved_tensors
            return gradient * slope

    return Evaluate.apply(y.clamp(0, 1))


def as_numbers(numbers: Sequence[float], what: str) -> list[float]:
    """Return a flat list of floats; anything else is an InputError."""
    try:
        if isinstance(numbers, str | bytes | bytearray | Mapping | Set):
            raise TypeError
        kind = str(getattr(numbers, "dtype", ""))  # an array's or a tensor's
        listed = list(itertools.islice(numbers, MOST_NUMBERS))
        if "bool" in kind or "complex" in kind or any(isinstance(number, str | bytes | bool) for number in listed):
            raise TypeError
        found = [float(number) for number in listed]
    except (TypeError, ValueError, OverflowError, RuntimeError, NotImplementedError):  # torch raises the last two
        raise InputError(f"found {numbers!r}", where=what, expected="a flat list of numbers") from None
    if not all(math.isfinite(number) for number in found):
        raise InputError(f"found {found}", where=what, expected="finite numbers")
    return found


class Family:
    """A family of curves: how many control points it has, where they are, and the quadratic pieces they make.

    The kernels know pieces only, so that a new family is one class here, and its name in `FAMILIES`. If the control
    points move along u too (`planar`), theta has u and v of each. If not, their places are fixed, and theta has one
    number for each step from a height to the next: any real numbers, which cannot make a monotone curve fall.
    """

    usual_pieces = 2
    planar = False

    def inner(self, pieces: int) -> int:
        """Return the number of control points between the two ends."""
        raise NotImplementedError

    def places(self, pieces: int) -> list[float]:
        """Return u of all control points, unless they are planar; heights at the same numbers make g(y) = y."""
        raise NotImplementedError

    def steps(self, pieces: int) -> list[float]:
        """Return how much each height rises above the one before where g(y) = y, up to a common factor."""
        return [b - a for a, b in itertools.pairwise(self.places(pieces))]

    def pieces(self, u: Sequence[float], v: Sequence[float]) -> list[Piece]:
        """Return the pieces of control points, the two ends included."""
        raise NotImplementedError


class Bezier(Family):
    """Piecewise quadratic Bézier curves: two control points a piece, free in both coordinates."""

    planar = True

    def inner(self, pieces: int) -> int:
        """Return 2 n - 1."""
        return 2 * pieces - 1

    def pieces(self, u: Sequence[float], v: Sequence[float]) -> list[Piece]:
        """Return a piece for every three points; narrow ones are dropped."""
        found = []
        for k in range(0, len(u) - 2, 2):
            (u0, u1, u2), (v0, v1, v2) = u[k : k + 3], v[k : k + 3]
            if u2 - u0 >= NARROW:
                found.append(Piece(u0, v0, u0 - 2 * u1 + u2, 2 * (u1 - u0), 2 * (v1 - v0), v0 - 2 * v1 + v2))
        return found


class Linear(Family):
    """Piecewise linear functions with knots at equal distances."""

    usual_pieces = 5

    def inner(self, pieces: int) -> int:
        """Return n - 1."""
        return pieces - 1

    def places(self, pieces: int) -> list[float]:
        """Return the knots."""
        return [k / pieces for k in range(pieces + 1)]

    def steps(self, pieces: int) -> list[float]:
        """Return ones, which no rounding makes different."""
        return [1.0] * pieces

    def pieces(self, u: Sequence[float], v: Sequence[float]) -> list[Piece]:
        """Return the lines between the knots."""
        width = 1 / (len(v) - 1)
        return [Piece(k * width, v0, 0.0, width, v2 - v0, 0.0) for k, (v0, v2) in enumerate(itertools.pairwise(v))]


class Spline(Family):
    """Quadratic splines with knots at equal distances: Bernstein polynomials of degree 2, joined with equal slopes.

    The heights are the coefficients of B-splines. Where they rise, by cumulative sums of positive steps, so does the
    curve. Its slope has no jumps, unlike those of the other two families.
    """

    usual_pieces = 4

    def inner(self, pieces: int) -> int:
        """Return n."""
        return pieces

    def places(self, pieces: int) -> list[float]:
        """Return the middles of the pieces, and the ends."""
        return [0.0, *((k + 0.5) / pieces for k in range(pieces)), 1.0]

    def pieces(self, u: Sequence[float], v: Sequence[float]) -> list[Piece]:
        """Return the polynomials; at a knot inside, the value is the mean of the heights beside it."""
        count = len(v) - 2
        knots = [v[0], *((a + b) / 2 for a, b in itertools.pairwise(v[1:-1])), v[-1]]
        return [
            Piece(k / count, left, 0.0, 1 / count, 2 * (middle - left), left - 2 * middle + right)
            for k, (left, middle, right) in enumerate(zip(knots, v[1:], knots[1:], strict=False))
        ]


FAMILIES: dict[str, Family] = {"bezier": Bezier(), "linear": Linear(), "spline": Spline()}


@dataclass(frozen=True)
class CurveSpace:
    """All curves of a family: how many parameters, what they are called, and how they become control points.

    Args:
        family: "bezier", "linear" or "spline".
        pieces: how many pieces; None: 2 for bezier, 5 for linear, 4 for spline.
        monotone: keep the monotonicity constraint. Without it each height is its own number in [0, 1].
        truth_table: keep g(0) = 0 and g(1) = 1. Without it the two end heights are parameters too, the last two.

    `theta`: for bezier, coordinates relative to the point before, in [0, 1]: u1, v1, u2, v2, ...; for the others, z1,
    z2, ... whose softmax gives the slopes (any real numbers), or the heights v1, v2, ... if not monotone.
    `control_points`: for bezier, the absolute u1, v1, u2, v2, ...; for the others, the inner heights v1, v2, ....

    >>> space = CurveSpace("bezier")
    >>> space.names
    ('u1', 'v1', 'u2', 'v2', 'u3', 'v3')
    >>> space.control_points(space.identity)
    [0.25, 0.25, 0.5, 0.5, 0.75, 0.75]
    """

    family: Literal["bezier", "linear", "spline"] | str = "bezier"
    pieces: int | None = None
    monotone: bool = True
    truth_table: bool = True

    def __post_init__(self) -> None:
        one_of(self.family, FAMILIES, "family of curves")
        if self.pieces is None:
            object.__setattr__(self, "pieces", FAMILIES[self.family].usual_pieces)
        if isinstance(self.pieces, bool) or not isinstance(self.pieces, int) or not 1 <= self.pieces <= MOST_PIECES:
            raise InputError(
                f"found {self.pieces!r}", where="pieces", expected=f"a whole number from 1 to {MOST_PIECES}"
            )
        for name in ("monotone", "truth_table"):
            truth(getattr(self, name), name)
        if not self._kind.planar and self.monotone and not self.truth_table:
            raise InputError(
                f"a monotone {self.family} curve has its slopes from a softmax, which fixes g(1) = 1",
                where="truth_table",
                cure="drop the monotonicity constraint too, or use family 'bezier'",
            )

    @property
    def _kind(self) -> Family:
        return FAMILIES[self.family]

    @property
    def _inner(self) -> int:
        """The number of control points between the two ends."""
        assert self.pieces is not None
        return self._kind.inner(self.pieces)

    @property
    def _steps(self) -> list[float]:
        assert self.pieces is not None
        return self._kind.steps(self.pieces)

    @property
    def bounded(self) -> bool:
        """Whether theta lives in [0, 1] (else each is any real number)."""
        return self._kind.planar or not self.monotone

    @property
    def names(self) -> tuple[str, ...]:
        """The names of theta's numbers, in order."""
        if not self.bounded:
            return tuple(f"z{k}" for k in range(1, self._inner + 2))
        axes = "uv" if self._kind.planar else "v"
        inner = tuple(f"{axis}{i}" for i in range(1, self._inner + 1) for axis in axes)
        return inner if self.truth_table else (*inner, "v0", f"v{self._inner + 1}")

    @property
    def identity(self) -> list[float]:
        """The theta of g(y) = y."""
        if not self.bounded:
            return [0.0] * len(self.names)
        points, last = [], self._inner + 1
        if self._kind.planar:
            for i in range(1, last):
                points += [i / last] * 2
        else:
            assert self.pieces is not None
            points = self._kind.places(self.pieces)[1:-1]
        return self.theta(points if self.truth_table else [*points, 0.0, 1.0])

    def control_points(self, theta: Sequence[float]) -> list[float]:
        """Return the absolute control points of theta; without the truth table the two end heights come last."""
        theta = self._check(theta, "theta")
        if not self.bounded:
            peak = max(theta)
            slopes = [width * math.exp(z - peak) for z, width in zip(theta, self._steps, strict=True)]
            total, height, heights = math.fsum(slopes), 0.0, []
            for slope in slopes[:-1]:
                height += slope / total
                heights.append(min(height, 1.0))
            return heights
        low, high, inner = self._ends(theta)
        if not self._kind.planar:
            return [*inner, *theta[len(inner) :]]
        points, u, v = [], 0.0, low
        for i in range(0, len(inner), 2):
            u = min(u + inner[i] * (1 - u), 1.0)
            v = v + inner[i + 1] * (high - v) if self.monotone else inner[i + 1]
            points += [u, v]
        return [*points, *((low, high) if not self.truth_table else ())]

    def theta(self, control_points: Sequence[float]) -> list[float]:
        """Return the theta of absolute control points: the inverse of `control_points`.

        Where a coordinate cannot go further (its predecessor is at the end already), its theta is 0.
        """
        points = self._check(control_points, "control_points")
        if not self.bounded:
            heights = [0.0, *points, 1.0]
            steps = zip(itertools.pairwise(heights), self._steps, strict=True)
            logs = [math.log(max((b - a) / width, 1e-12)) for (a, b), width in steps]
            middle = math.fsum(logs) / len(logs)
            return [z - middle for z in logs]
        low, high, inner = self._ends(points)
        if not self._kind.planar:
            return list(points)
        theta, u, v = [], 0.0, low
        for i in range(0, len(inner), 2):
            theta.append((inner[i] - u) / (1 - u) if u < 1 else 0.0)
            if not self.monotone:
                theta.append(inner[i + 1])
            else:
                theta.append((inner[i + 1] - v) / (high - v) if v != high else 0.0)
            u, v = inner[i], inner[i + 1]
        return [*theta, *points[len(inner) :]]

    def curve(self, theta: Sequence[float]) -> Curve:
        """Return the curve of theta."""
        return self.curve_of(self.control_points(theta))

    def curve_of(self, control_points: Sequence[float]) -> Curve:
        """Return the curve of absolute control points."""
        u, v = self.knots(control_points)
        return Curve(self._kind.pieces(u, v), v[0], v[-1])

    def knots(self, control_points: Sequence[float]) -> tuple[list[float], list[float]]:
        """Return u and v of all control points, the two ends included.

        >>> CurveSpace("bezier", 1).knots([0.2, 0.7])
        ([0.0, 0.2, 1.0], [0.0, 0.7, 1.0])
        """
        low, high, inner = self._ends(self._check(control_points, "control_points"))
        if self._kind.planar:
            return [0.0, *inner[0::2], 1.0], [low, *inner[1::2], high]
        assert self.pieces is not None
        return self._kind.places(self.pieces), [low, *inner, high]

    def _ends(self, numbers: Sequence[float]) -> tuple[float, float, Sequence[float]]:
        """Split parameters or points into the heights of the two ends and the rest."""
        if self.truth_table:
            return 0.0, 1.0, numbers
        return numbers[-2], numbers[-1], numbers[:-2]

    def count(self, what: str) -> int:
        """Return how many numbers `theta` or `control_points` have."""
        return len(self.names) if what == "theta" or self.bounded else len(self.names) - 1

    def _check(self, numbers: Sequence[float], what: str) -> list[float]:
        count = self.count(what)
        values = as_numbers(numbers, what)
        name = f"{what} of a {self.family} curve with {self.pieces} pieces"
        if len(values) != count:
            raise InputError(f"has {len(values)} numbers", where=name, expected=str(count))
        bounded = self.bounded or what == "control_points"
        for number in values:
            if not math.isfinite(number) or (bounded and not -1e-9 <= number <= 1 + 1e-9):
                expected = "numbers in [0, 1]" if bounded else "finite numbers"
                raise InputError(f"holds {number}", where=name, expected=expected)
        if bounded:
            values = [min(max(number, 0.0), 1.0) for number in values]
        if what == "control_points":
            self._check_order(values, name)
        return values

    def _check_order(self, values: list[float], name: str) -> None:
        low, high, inner = self._ends(values)
        if self._kind.planar:
            abscissae = [0.0, *inner[0::2], 1.0]
            if any(b < a for a, b in itertools.pairwise(abscissae)):
                raise InputError(f"u falls from one point to the next: {inner[0::2]}", where=name)
            inner = inner[1::2]
        if self.monotone:
            heights = [low, *inner, high]
            falls = any(b < a for a, b in itertools.pairwise(heights))
            rises = any(b > a for a, b in itertools.pairwise(heights))
            if (falls and low <= high) or (rises and low > high):
                raise InputError(f"the heights are not monotone: {heights}", where=name)
