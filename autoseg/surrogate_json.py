"""`surrogate.json`: what a surrogate is, on disk; and the surrogates that the authors published. No torch here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autoseg import formula
from autoseg.curves import CurveSpace, as_numbers
from autoseg.errors import InputError, unknown
from autoseg.files import read_json, write_json
from autoseg.formula import Absent, Conventions, Layout


class SurrogateConventions(BaseModel):
    """The conventions of a surrogate, see `autoseg.formula.Conventions`; where `absent` is null, the metric's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    tolerance: int = Field(default=5, ge=0, description="how far off a boundary of BF1 may be, pixels")
    boundary_radius: int = Field(default=5, ge=0, description="half the width of BIoU's band, pixels")
    drop_background: bool = Field(default=True, description="leave class 0 out of boundaries, as on VOC")
    mask_void: bool = Field(default=False, description="leave borders with void out of boundaries")
    absent: Absent | None = Field(default=None, description="how classes that are not there count; null: as usual")


def parse_conventions(content: Mapping[str, Any]) -> SurrogateConventions:
    """Return checked conventions; what is wrong is named with its key.

    >>> parse_conventions({"tolerance": -1})
    Traceback (most recent call last):
    autoseg.errors.InputError: convention 'tolerance': Input should be greater than or equal to 0.
    """
    known = SurrogateConventions.model_fields
    for key in content:
        if key not in known:
            raise unknown("convention", key, known)
    try:
        return SurrogateConventions(**content)
    except ValidationError as error:
        problem = error.errors()[0]
        raise InputError(f"convention '{problem['loc'][0]}': {problem['msg']}.") from None


class Surrogate(BaseModel):
    """A metric's formula with a curve in each of its operators: all there is to know of a surrogate.

    >>> s = Surrogate.make("mIoU")
    >>> len(s.theta), s.control_points[:4]
    (12, [0.25, 0.25, 0.5, 0.5])
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, strict=True)

    schema_: Literal["autoseg/surrogate/1"] = Field(default="autoseg/surrogate/1", alias="schema")
    metric: str
    family: Literal["bezier", "linear"]
    layout: str
    pieces: int = Field(ge=1)
    monotone: bool = True
    truth_table: bool = True
    theta: list[float]
    control_points: list[float]
    conventions: SurrogateConventions = SurrogateConventions()
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
        conventions: SurrogateConventions | Mapping[str, Any] | None = None,
        source: str = "",
    ) -> Surrogate:
        """Return the surrogate of theta, or of absolute control points, or, given neither, with identity curves."""
        found = formula.get(metric)
        name, arrangement, space = curve_space(found.name, family, layout, pieces, monotone, truth_table)
        if theta is not None and control_points is not None:
            raise InputError("both theta and control_points were given; expected one of them.")
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
            family=space.family,  # type: ignore[arg-type]
            layout=name,
            pieces=space.pieces,
            monotone=monotone,
            truth_table=truth_table,
            theta=values,
            control_points=points,
            conventions=parse_conventions(dict(conventions or {})),
            source=str(source),
        )

    @property
    def space(self) -> CurveSpace:
        """The space that each of the curves is from."""
        return CurveSpace(self.family, self.pieces, self.monotone, self.truth_table)

    @property
    def curves(self) -> dict[str, list[float]]:
        """The absolute control points of each curve, by the curve's name."""
        names = formula.get(self.metric).layout(self.layout).curves
        parts = _parts(self.control_points, len(names), self.space, "control_points", self.metric)
        return dict(zip(names, parts, strict=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `surrogate.json`, atomically."""
        write_json(path, self.model_dump(by_alias=True))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Surrogate:
        """Read `surrogate.json` and check it; what is wrong is named with the file and the key."""
        content = read_json(path)
        if not isinstance(content, dict):
            raise InputError(f"{path}: expected a JSON object with the keys of a surrogate.")
        if "schema" not in content:
            raise InputError(f"{path}: key 'schema' is missing; expected 'autoseg/surrogate/1'.")
        try:
            read = cls.model_validate(content)
            again = cls.make(
                read.metric,
                read.theta,
                family=read.family,
                layout=read.layout,
                pieces=read.pieces,
                monotone=read.monotone,
                truth_table=read.truth_table,
            )
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(str(part) for part in problem["loc"])
            raise InputError(f"{path}: key '{key}': {problem['msg']}.") from None
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        if len(read.control_points) != len(again.control_points) or any(
            not abs(a - b) <= 1e-6 for a, b in zip(read.control_points, again.control_points, strict=True)
        ):
            raise InputError(
                f"{path}: key 'control_points' does not belong to key 'theta'; "
                f"expected {[round(x, 6) for x in again.control_points]}."
            )
        return read.model_copy(update={"metric": again.metric})


def curve_space(
    metric: str, family: str, layout: str | None, pieces: int | None, monotone: bool, truth_table: bool
) -> tuple[str, Layout, CurveSpace]:
    """Return the name of the layout, the layout, and the space of each of its curves, for a metric."""
    found = formula.get(metric)
    arrangement = found.layout(layout)
    name = layout or next(iter(found.layouts), "paper")
    if pieces is None and family == "bezier":
        pieces = arrangement.pieces
    return name, arrangement, CurveSpace(family, pieces, monotone, truth_table)


def _parts(numbers: Sequence[float], count: int, space: CurveSpace, what: str, metric: str) -> list[list[float]]:
    each = len(space.names) if what == "theta" or space.bounded else len(space.names) - 1
    if len(numbers) != count * each:
        raise InputError(
            f"{what} for {metric} has {len(numbers)} numbers; expected {count * each}: {each} for each of "
            f"{count} {space.family} curve(s) with {space.pieces} piece(s)."
        )
    return [list(numbers[k * each : (k + 1) * each]) for k in range(count)]


# ---- Published curves: absolute control points of the authors' release ---------------------------------------------

_PAPER_IOU = [
    *(3.65390355e-04, 0.984171689, 0.969491959, 0.992340326, 0.988328516, 0.995552719),
    *(0.354609758, 0.267221928, 0.560551465, 0.435290039, 0.565432191, 0.601448298),
]
_MACC = [0.021453928, 0.73905742, 0.41163361, 0.79865617, 0.91986191, 0.95041156]

_PUBLISHED: dict[str, tuple[str, list[float], str]] = {
    "mIoU": (
        "mIoU",
        [
            *(5.69728440e-04, 0.643720450, 0.338589169, 0.705543360, 0.625281252, 0.779551927),
            *(0.690375570, 0.0130628900, 0.834170515, 0.962431815, 0.942998269, 0.980038125),
        ],
        "release HEAD; its log: 80.78 mIoU",
    ),
    "mIoU-paper": ("mIoU", _PAPER_IOU, "the paper's row with 80.97 mIoU"),
    "FWIoU": (
        "FWIoU",
        [
            *(0.11907931, 0.669945, 0.19315827, 0.71179134, 0.46337387, 0.79494196),
            *(0.5266451, 0.29869753, 0.706645, 0.4485701, 0.86858255, 0.7261703),
        ],
        "the release's log with 91.93 FWIoU (its config holds another curve by mistake)",
    ),
    "BIoU": ("BIoU", _PAPER_IOU, "the release's config and log; the same numbers as mIoU-paper"),
    "BF1": (
        "BF1",
        [
            *(0.8113003373146057, 0.8526162505149841, 0.17164576053619385, 0.03164796531200409),
            *(0.20997394621372223, 0.44903290271759033, 0.07847517728805542, 0.8753038048744202),
        ],
        "the release; one curve of one piece for each operand of the edge's AND and OR",
    ),
    "mAcc": ("mAcc", _MACC, "the release"),
    "gAcc": ("gAcc", [0.221453928, *_MACC[1:]], "the release's log (its config has mAcc's u1)"),
}

PUBLISHED: tuple[str, ...] = tuple(_PUBLISHED)


def published(name: str) -> Surrogate:
    """Return a published surrogate by name, in any case of letters.

    >>> published("miou").source
    'Auto Seg-Loss, release HEAD; its log: 80.78 mIoU'
    """
    found = {known.lower(): known for known in PUBLISHED}.get(str(name).lower())
    if found is None:
        raise unknown("published surrogate", str(name), PUBLISHED)
    metric, points, source = _PUBLISHED[found]
    return Surrogate.make(metric, control_points=points, source=f"Auto Seg-Loss, {source}")


def conventions_of(surrogate: Surrogate) -> Conventions:
    """Return the conventions that the formula takes; absent classes are the loss's business."""
    c = surrogate.conventions
    return Conventions(c.tolerance, c.boundary_radius, c.drop_background, c.mask_void)


def resolve(spec: str) -> Surrogate:
    """Return the surrogate that "published:NAME", "naive:METRIC" or the path of a surrogate.json names."""
    kind, _, name = spec.partition(":")
    kind = kind.lower()
    if kind == "published":
        return published(name)
    if kind == "naive":
        return Surrogate.make(name, family="linear", pieces=1, source="identity curves (no parameters)")
    return Surrogate.load(Path(spec))
