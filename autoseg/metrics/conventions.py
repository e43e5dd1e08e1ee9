"""Conventions: what the paper's formulas leave open, as one type for metrics, surrogates, searches and configs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool

from autoseg.errors import unknown, whole_number
from autoseg.files import Part, parse

Absent = Literal["skip", "zero"]
Pixels = Annotated[int, Field(ge=0, le=100_000), BeforeValidator(lambda value: whole_number(value, unit="of pixels"))]


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

    def on_data(self, has_background: bool) -> Conventions:
        """Return the metrics' conventions on a data set: without a value of its own, `drop_background` is the data's.

        >>> Conventions().on_data(has_background=False).drop_background
        False
        """
        return self if "drop_background" in self.model_fields_set else self.replace(drop_background=has_background)

    def replace(self, **changes: Any) -> Conventions:
        """Return the conventions with changes, checked."""
        return parse(Conventions, {**self.model_dump(), **changes})


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


def named_conventions(name: str) -> Conventions:
    """Return the conventions of a data set by name, "voc" or "cityscapes".

    >>> named_conventions("cityscapes").drop_background
    False
    """
    if str(name).lower() not in CONVENTIONS:
        raise unknown("conventions", str(name), CONVENTIONS)
    return CONVENTIONS[str(name).lower()]
