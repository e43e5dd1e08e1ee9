"""`surrogate.json`: a metric, the curves in its operators, and the conventions it is used with. No torch here."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field

from autoseg.errors import InputError, located, unknown
from autoseg.files import Document, parse
from autoseg.losses.am_lfs import FAMILY as AM_LFS
from autoseg.losses.am_lfs import LAYOUT, ProbabilitySpace, probability_layout
from autoseg.losses.curves import FAMILIES, CurveSpace, as_numbers
from autoseg.metrics import formula
from autoseg.metrics.conventions import Conventions
from autoseg.metrics.formula import CurveLayout

if TYPE_CHECKING:
    FamilyName = str
else:
    FamilyName = Literal[(*FAMILIES, AM_LFS)]  # one more family is one more class in `autoseg.losses.curves`


class Surrogate(Document):
    """A metric's formula with a curve in each of its operators: everything that defines a surrogate.

    >>> s = Surrogate.make("mIoU")
    >>> len(s.theta), s.control_points[:4]
    (12, [0.25, 0.25, 0.5, 0.5])
    >>> Surrogate.make("mAcc", source="nowhere")
    Surrogate(mAcc, bezier, AND of 2 pieces, theta=[0.25 0.25 0.33 0.33 0.5 0.5], source='nowhere')
    """

    model_config = ConfigDict(strict=True)

    SCHEMA: ClassVar[str] = "autoseg/surrogate/1"

    metric: str
    family: FamilyName
    layout: str
    pieces: int = Field(ge=1)
    monotone: bool = True
    truth_table: bool = True
    theta: list[float]
    control_points: list[float]
    conventions: Conventions = Conventions()
    source: str = ""

    @classmethod
    def make(
        cls,
        metric: str,
        theta: Sequence[float] | None = None,
        control_points: Sequence[float] | None = None,
        *,
        family: str = "bezier",
        layout: str | None = None,
        pieces: int | None = None,
        monotone: bool = True,
        truth_table: bool = True,
        conventions: Conventions | Mapping[str, Any] | None = None,
        source: str = "",
    ) -> Surrogate:
        """Return the surrogate of theta, or of absolute control points, or, given neither, with identity curves.

        `conventions` that are a mapping are changes to those that the metric's surrogate has in the release.
        """
        found = formula.get(metric)
        name, arrangement, space = curve_space(found.name, family, layout, pieces, monotone, truth_table)
        if theta is not None and control_points is not None:
            raise InputError("both theta and control_points were given", expected="one of them")
        count = len(arrangement.curves)
        if theta is None and control_points is None:
            theta = space.identity * count
        if theta is not None:
            values = as_numbers(theta, "theta")
            points = [
                x for part in _parts(values, count, space, "theta", found.name) for x in space.control_points(part)
            ]
        else:
            assert control_points is not None
            points = as_numbers(control_points, "control_points")
            values = [
                x for part in _parts(points, count, space, "control_points", found.name) for x in space.theta(part)
            ]
        assert space.pieces is not None
        return cls(
            metric=found.name,
            family=space.family,
            layout=name,
            pieces=space.pieces,
            monotone=space.monotone,
            truth_table=space.truth_table,
            theta=values,
            control_points=points,
            conventions=_conventions(found, conventions),
            source=str(source),
        )

    def __repr__(self) -> str:
        return f"Surrogate({self.summary}, source={textwrap.shorten(self.source, 90, placeholder=' ...')!r})"

    __str__ = __repr__

    @property
    def summary(self) -> str:
        """The metric and its curves in a few words; the numbers are rounded."""
        pieces = f"{self.pieces} piece{'s' * (self.pieces > 1)}"
        theta = " ".join(f"{x:.2g}" for x in self.theta)
        return f"{self.metric}, {self.family}, {' '.join(self.curves)} of {pieces}, theta=[{theta}]"

    @property
    def space(self) -> CurveSpace:
        """The space that each of the curves is from."""
        return self._arrangement[1]

    @property
    def operands(self) -> Mapping[str, tuple[str | None, str | None]]:
        """Which curve shapes each operand of each operator; none does in a loss of AM-LFS."""
        return {} if self.family == AM_LFS else self._arrangement[0].operands

    @property
    def _arrangement(self) -> tuple[CurveLayout, CurveSpace]:
        return curve_space(self.metric, self.family, self.layout, self.pieces, self.monotone, self.truth_table)[1:]

    @property
    def curves(self) -> dict[str, list[float]]:
        """The absolute control points of each curve, by the curve's name."""
        layout, space = self._arrangement
        names = layout.curves
        parts = _parts(self.control_points, len(names), space, "control_points", self.metric)
        return dict(zip(names, parts, strict=True))

    @classmethod
    def read(cls, content: Any, where: str | os.PathLike[str]) -> Self:
        """Check what was read from a file: its keys, and that control points and theta belong together."""
        read = super().read(content, where)
        with located(where):
            again = cls.make(
                read.metric,
                read.theta,
                family=read.family,
                layout=read.layout,
                pieces=read.pieces,
                monotone=read.monotone,
                truth_table=read.truth_table,
            )
        if len(read.control_points) != len(again.control_points) or any(
            not abs(a - b) <= 1e-6 for a, b in zip(read.control_points, again.control_points, strict=True)
        ):
            raise InputError(
                "key 'control_points' does not belong to key 'theta'",
                where=where,
                expected=str([round(x, 6) for x in again.control_points]),
            )
        conventions = read.conventions
        if "drop_background" not in conventions.model_fields_set:
            conventions = again.conventions.replace(**conventions.model_dump(exclude_unset=True))
        return read.model_copy(update={"metric": again.metric, "conventions": conventions})


def curve_space(
    metric: str, family: str, layout: str | None, pieces: int | None, monotone: bool, truth_table: bool
) -> tuple[str, CurveLayout, CurveSpace]:
    """Return the name of the layout, the layout, and the space of each of its curves, for a metric."""
    found = formula.get(metric)
    if isinstance(family, str) and family == AM_LFS:
        if layout is not None and str(layout) != LAYOUT:
            raise unknown("layout", str(layout), [LAYOUT], where="layout of am-lfs")
        return LAYOUT, probability_layout(pieces), ProbabilitySpace(pieces=pieces)
    arrangement = found.layout(layout)
    name = next(iter(found.layouts), "paper") if layout is None else layout
    if pieces is None and isinstance(family, str) and family == "bezier":
        pieces = arrangement.pieces
    return name, arrangement, CurveSpace(family, pieces, monotone, truth_table)


def _conventions(metric: formula.Formula, given: Conventions | Mapping[str, Any] | None) -> Conventions:
    if isinstance(given, Conventions):
        return given
    changes = {} if given is None else given
    if not isinstance(changes, Mapping) or not all(isinstance(name, str) for name in changes):
        expected = "Conventions, or changes to the metric's by name"
        raise InputError(f"found {changes!r}", where="conventions", expected=expected)
    return parse(Conventions, {**metric.loss_conventions().model_dump(), **changes})


def _parts(numbers: Sequence[float], count: int, space: CurveSpace, what: str, metric: str) -> list[list[float]]:
    each = space.count(what)
    if len(numbers) != count * each:
        raise InputError(
            f"has {len(numbers)} numbers",
            where=f"{what} for {metric}",
            expected=f"{count * each}: {each} for each of {count} {space.family} curve(s) with {space.pieces} piece(s)",
        )
    return [list(numbers[k * each : (k + 1) * each]) for k in range(count)]
