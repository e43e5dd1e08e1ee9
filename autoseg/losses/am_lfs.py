"""The space of AM-LFS (Li et al. 2019): cross entropy whose probability passes a function tau before the logarithm.

tau is linear in each of 6 equal intervals of [0, 1], with a slope and an offset of its own there, and may jump between
them. It is a family of curves like those of a surrogate, but there is one tau and no logic around it:
`autoseg.losses.am_lfs_loss` is the loss. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoseg.errors import InputError
from autoseg.losses.curves import MOST_PIECES, Curve, CurveSpace, Piece, as_numbers
from autoseg.metrics.formula import CurveLayout

FAMILY = "am-lfs"

LAYOUT = "probability"
"""The name of the only layout: tau shapes the probability of the labelled class."""

PIECES = 6
FARTHEST = 1e6
"""The greatest slope or offset."""


@dataclass(frozen=True)
class ProbabilitySpace(CurveSpace):
    """All functions tau: theta is slope and offset of each interval, a1, b1, a2, b2, ..., any real numbers.

    tau(p) = a_k p + b_k for p in interval k; the control points are theta itself.

    >>> space = ProbabilitySpace(pieces=2)
    >>> space.names, space.identity
    (('a1', 'b1', 'a2', 'b2'), [1.0, 0.0, 1.0, 0.0])
    >>> import numpy as np
    >>> space.curve([1, 0, 0.5, 0.4])(np.array([0.25, 0.5, 1.0])).tolist()
    [0.25, 0.65, 0.9]
    """

    family: str = FAMILY
    pieces: int | None = PIECES
    monotone: bool = False
    truth_table: bool = False

    def __post_init__(self) -> None:
        if self.pieces is None:
            object.__setattr__(self, "pieces", PIECES)
        if isinstance(self.pieces, bool) or not isinstance(self.pieces, int) or not 1 <= self.pieces <= MOST_PIECES:
            expected = f"a whole number from 1 to {MOST_PIECES}"
            raise InputError(f"found {self.pieces!r}", where="pieces", expected=expected)

    @property
    def bounded(self) -> bool:
        """Never: slopes and offsets are any real numbers."""
        return False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of theta's numbers, in order."""
        assert self.pieces is not None
        return tuple(f"{letter}{k}" for k in range(1, self.pieces + 1) for letter in "ab")

    @property
    def identity(self) -> list[float]:
        """The theta of tau(p) = p, which is cross entropy."""
        assert self.pieces is not None
        return [1.0, 0.0] * self.pieces

    def count(self, what: str) -> int:
        """Return how many numbers `theta` or `control_points` have: as many."""
        return len(self.names)

    def control_points(self, theta: Sequence[float]) -> list[float]:
        """Return theta."""
        values = as_numbers(theta, "theta")
        name = f"theta of am-lfs with {self.pieces} intervals"
        if len(values) != len(self.names):
            raise InputError(f"has {len(values)} numbers", where=name, expected=str(len(self.names)))
        if far := [value for value in values if abs(value) > FARTHEST]:
            raise InputError(f"holds {far[0]}", where=name, expected=f"numbers from -{FARTHEST:g} to {FARTHEST:g}")
        return values

    def theta(self, control_points: Sequence[float]) -> list[float]:
        """Return the control points."""
        return self.control_points(control_points)

    def curve_of(self, control_points: Sequence[float]) -> Curve:
        """Return tau; at the end of an interval it has the value of the next one."""
        values = self.control_points(control_points)
        width, lines = 1 / (len(values) // 2), list(zip(values[0::2], values[1::2], strict=True))
        pieces = [
            Piece(k * width, slope * k * width + offset, 0.0, width, slope * width, 0.0)
            for k, (slope, offset) in enumerate(lines)
        ]
        return Curve(pieces, lines[0][1], sum(lines[-1]))

    def knots(self, control_points: Sequence[float]) -> tuple[list[float], list[float]]:
        """Return where the intervals begin, and tau there; 1 and tau(1) come last."""
        curve = self.curve_of(control_points)
        return [*(piece.u0 for piece in curve.pieces), 1.0], [*(piece.v0 for piece in curve.pieces), curve.end]


def probability_layout(pieces: int | None) -> CurveLayout:
    """Return the layout: the one curve tau."""
    return CurveLayout({"tau": ("tau", None)}, pieces or PIECES)
