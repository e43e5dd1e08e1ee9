"""Conventions: what the paper's formulas leave open, as one type for metrics, surrogates, searches and configs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    field_validator,
    model_serializer,
)

from autoseg.errors import InputError, unknown, whole_number
from autoseg.files import Part, parse

Absent = Literal["skip", "zero"]
Pixels = Annotated[int, Field(ge=0, le=100_000), BeforeValidator(lambda value: whole_number(value, unit="of pixels"))]

Weight = Annotated[float, Field(ge=0, le=100)]
Size = Annotated[float, Field(gt=0, le=1e6)]


class Conventions(Part):
    """What the paper's formulas leave open; the defaults are those of the authors' evaluator on PASCAL VOC.

    `drop_background` is used where class 0 is a background. The other conventions are the same on every data set.

    >>> Conventions(tolerance=3).replace(mask_void=True)
    Conventions(tolerance=3, boundary_radius=5, drop_background=True, mask_void=True, absent=None)
    """

    tolerance: Pixels = Field(
        default=5, description="BF1: how far, in pixels, a boundary may be off and still match (radius of a square)"
    )
    boundary_radius: Pixels = Field(
        default=5, description="BIoU: half the width, in pixels, of the band around boundaries (radius of a square)"
    )
    drop_background: StrictBool = Field(
        default=True, description="leave class 0 out of the edges of BIoU's band and out of BF1's mean over classes"
    )
    mask_void: StrictBool = Field(
        default=False,
        description="BF1: void pixels have no edge, make none and match none; false, as in the release: void is no "
        "class, so that the border between an object and void is an edge of the object",
    )
    absent: Absent | None = Field(
        default=None,
        description="a class that cannot be measured is left out of the mean (skip) or counts 0 (zero); null: skip in "
        "metrics, and in losses what the release does for each metric",
    )

    # Of the metrics in `autoseg.metrics.more`. Files name them only where they differ from these defaults.
    beta: float = Field(default=2.0, gt=0, le=100, description="mFbeta: how much recall counts, against precision")
    tversky: tuple[Weight, Weight] = Field(
        default=(0.3, 0.7), description="mTversky: the weights of false positives and of false negatives"
    )
    band_width: float = Field(
        default=0.02,
        gt=0,
        le=100_000,
        description="BoundaryIoU: the width of the bands, in pixels, or below 1 as a share of the image's diagonal",
    )
    surface_tolerance: float | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="NSD: how far a surface may be off and still match (radius of a ball), in pixels or in the unit of "
        "`spacing`; null: `tolerance`",
    )
    spacing: tuple[Size, Size] | tuple[Size, Size, Size] | None = Field(
        default=None,
        description="the size of a pixel (H, W) or voxel (D, H, W), such as [3, 0.8, 0.8] mm, in whose unit "
        "`tolerance`, `boundary_radius` and `surface_tolerance` are then; null: 1 along each axis",
    )
    skeleton_steps: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="clDice: how often a map is eroded to find its skeleton; half the width of the widest object is "
        "enough, and objects wider than 2 (skeleton_steps + 1) have none and do not count",
    )

    @field_validator("spacing", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:
        if value is None:
            return None
        try:
            sizes = tuple(float(size) for size in value)
        except (TypeError, ValueError):
            sizes = ()
        if len(sizes) not in (2, 3) or not all(0 < size <= 1e6 for size in sizes):
            raise InputError(f"found {value}", expected="two or three numbers above 0, (H, W) or (D, H, W)")
        return sizes

    @field_validator("tversky")
    @classmethod
    def _not_both_0(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value == (0, 0):
            raise InputError(
                f"found {list(value)}", expected="one above 0: else nothing is wrong, and all scores are 1"
            )
        return value

    @field_validator("band_width")
    @classmethod
    def _whole_pixels(cls, value: float) -> float:
        if value >= 1 and value != int(value):
            raise InputError(f"found {value:g}", expected="a whole number of pixels, or a share below 1")
        return value

    @model_serializer(mode="wrap")
    def _without_unused(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if self._is_used(name)}

    def __repr_args__(self) -> Any:
        return [(name, value) for name, value in super().__repr_args__() if name is None or self._is_used(name)]

    def _is_used(self, name: str) -> bool:
        """Return whether files name it. What a dump holds is no guide: a tuple is a list there, and equals none."""
        return name not in _LATER or getattr(self, name) != _LATER[name]

    @property
    def distance(self) -> float:
        """How far a surface may be off in NSD."""
        return float(self.tolerance if self.surface_tolerance is None else self.surface_tolerance)

    def on_data(self, has_background: bool) -> Conventions:
        """Return the metrics' conventions on a data set: without a value of its own, `drop_background` is the data's.

        >>> Conventions().on_data(has_background=False).drop_background
        False
        """
        return self if "drop_background" in self.model_fields_set else self.replace(drop_background=has_background)

    def replace(self, **changes: Any) -> Conventions:
        """Return the conventions with changes, checked."""
        return parse(Conventions, {**self.model_dump(), **changes})


_LATER = {
    name: Conventions.model_fields[name].default
    for name in ("beta", "tversky", "band_width", "surface_tolerance", "spacing", "skeleton_steps")
}


class LossConventions(Part):
    """Where the conventions of losses differ from those of metrics; null: they do not."""

    tolerance: Pixels | None = Field(default=None, description="BF1: how far, in pixels, a boundary may be off")
    boundary_radius: Pixels | None = Field(default=None, description="BIoU: half the width of the band, in pixels")
    drop_background: StrictBool | None = Field(
        default=None, description="null: as the release's losses do; BIoU's drops the background, BF1's keeps it"
    )
    mask_void: StrictBool | None = Field(default=None, description="BF1: void pixels have no edge and make none")
    absent: Absent | None = Field(default=None, description="absent classes: skip or zero")

    @property
    def changes(self) -> dict[str, Any]:
        """The conventions that differ."""
        return self.model_dump(exclude_none=True)


CONVENTIONS: Mapping[str, Conventions] = MappingProxyType(
    {"voc": Conventions(), "cityscapes": Conventions(drop_background=False)}
)


def fitting(spacing: tuple[float, ...] | None, dims: int) -> tuple[float, ...]:
    """Return the size of a pixel along each axis; that of a volume's voxels without the depth is that of its slices."""
    if spacing is None:
        return (1.0,) * dims
    return spacing if len(spacing) == dims else (1.0, *spacing) if dims == 3 else spacing[1:]


def reach(distance: int, spacing: tuple[float, ...] | None, dims: int) -> tuple[int, ...]:
    """Return how many pixels along each axis are within a distance.

    >>> reach(5, (3.0, 1.0, 0.5), 3)
    (1, 5, 10)
    """
    return tuple(int(distance / size * (1 + 1e-9)) for size in fitting(spacing, dims))


def named_conventions(name: str) -> Conventions:
    """Return the conventions of a data set by name, "voc" or "cityscapes".

    >>> named_conventions("cityscapes").drop_background
    False
    """
    if str(name).lower() not in CONVENTIONS:
        raise unknown("conventions", str(name), CONVENTIONS)
    return CONVENTIONS[str(name).lower()]
