"""Early rejection: a trial is scored while it trains, and ended when earlier steps say that it will not be good.

A trial's score after a share of its training is compared with those of the good trials of earlier steps at the same
share, and never with trials of its own step: which of those have run depends on the workers. So the bars of a step
follow from the files before it, as its proposals do. Pure functions of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, FiniteFloat, field_validator

from autoseg.errors import InputError
from autoseg.files import Part
from autoseg.search.ppo2 import Array

FEWEST_GOOD = 4
"""At least so many earlier trials count as good: fewer would say too little of where good trials begin."""

TELLS = 0.5
"""The least rank correlation of scores on the way with final ones: below it a look ends no trial."""


class Early(Part):
    """When a trial is ended early."""

    at: list[float] = Field(
        default=[0.25, 0.5], min_length=1, description="the shares of the training after which a trial is scored"
    )
    good: float = Field(default=0.25, gt=0, le=1, description="the share of all earlier trials that counts as good")
    lost: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="a trial is ended if it scores less than the good ones did, but for this share of them",
    )
    images: float = Field(default=0.5, gt=0, le=1, description="the share of the hold-out for these scores")

    @field_validator("at")
    @classmethod
    def _in_order(cls, value: list[float]) -> list[float]:
        if sorted(set(value)) != value or not all(0 < share < 1 for share in value):
            raise InputError(f"found {value}", where="at", expected="shares between 0 and 1, in rising order")
        return value


RULES: dict[str, Early | None] = {"off": None, "mild": Early(), "firm": Early(good=0.1, lost=0.5)}


class Look(Part):
    """What is done after a share of a trial's training: below the bar it is ended, with the score expected of it."""

    at: float
    images: float = Field(description="the share of the hold-out that it is scored on")
    bar: FiniteFloat | None = Field(description="null: too little is known, and no trial is ended")
    partial: list[FiniteFloat] = Field(default=[], description="scores at this share, rising, and")
    expected: list[FiniteFloat] = Field(default=[], description="what trials scored in the end that had them")
    doubt: float = Field(default=0.0, ge=0, description="standard deviation of what they scored from what was expected")

    @property
    def name(self) -> str:
        """The share as the key of a score in a trial's file."""
        return f"{self.at:g}"

    def ends(self, partial: float) -> bool:
        """Whether a trial with this score is ended."""
        return self.bar is not None and not partial >= self.bar

    def predicted(self, partial: float) -> float:
        """Return the final score that is expected of a trial with this score."""
        return float(np.interp(partial, self.partial, self.expected))


class Watch:
    """What a trial tells on its way: called with each share and the score there, it says whether to end the trial."""

    def __init__(self, looks: Sequence[Look] = ()) -> None:
        self.looks = tuple(looks)
        self.partial: dict[str, float] = {}
        self.ended: Look | None = None

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of the training after which the trial is to be scored, rising; none, if no trial can be ended."""
        return tuple(look.at for look in self.looks)

    def __call__(self, share: float, score: float) -> bool:
        """Note the score after a share of the training, and return whether the trial is to be ended now."""
        look = next((look for look in self.looks if math.isclose(look.at, share)), None)
        if look is None:
            expected = f"one of {', '.join(map(str, self.shares))}" if self.looks else "no call: `shares` is empty"
            raise InputError(f"found {share!r}", where="watch: share", expected=expected)
        if math.isfinite(score):
            self.partial[look.name] = float(score)
            self.ended = look if look.ends(score) else None
        return self.ended is not None


@dataclass(frozen=True)
class Seen:
    """An earlier trial: its scores on the way by the share of its training, and its final one, or what was expected."""

    partial: Mapping[str, float]
    final: float
    ended: str | None = None  # the share after which it was ended


def looks(early: Early, seen: Sequence[Seen]) -> list[Look]:
    """Return where the trials of the next step are scored, and the bars, from all trials of all earlier steps.

    The bar is the score that all good trials had there, but for the share `lost`. Where a score on the way says nothing
    of the end, good trials have any score there: the bar is low, and hardly a trial is ended.

    >>> rule = Early(at=[0.5], good=0.5, lost=0)
    >>> seen = [Seen({"0.5": n / 20}, n / 10) for n in range(10)]
    >>> found = looks(rule, seen)[0]
    >>> found.bar, round(found.predicted(0.2), 2)
    (0.25, 0.4)
    """
    return [_look(early, at, seen) for at in early.at]


def _look(early: Early, at: float, seen: Sequence[Seen]) -> Look:
    empty = Look(at=at, images=early.images, bar=None)
    known = [trial for trial in seen if empty.name in trial.partial]
    whole = [(trial.partial[empty.name], trial.final) for trial in known if not trial.ended]
    count = max(math.ceil(early.good * len(known)), FEWEST_GOOD)
    if len(whole) < max(2 * FEWEST_GOOD, count) or _told(empty.name, seen) < TELLS:
        return empty
    partial, final = np.array(whole).T
    good = partial[np.argsort(-final, kind="stable")[:count]]
    bar = float(np.quantile(good, early.lost, method="lower"))
    found = empty.model_copy(update={"bar": bar, **_rising(partial, final)})
    errors = final - np.interp(partial, found.partial, found.expected)
    return found.model_copy(update={"doubt": float(np.sqrt(np.mean(errors**2)))})


def _told(name: str, seen: Sequence[Seen]) -> float:
    """Return the rank correlation of scores on the way with final ones, of the trials before the first that was ended.

    Those after it are a choice: among good trials alone, scores on the way say less than among all.
    """
    first = next((k for k, trial in enumerate(seen) if trial.ended), len(seen))
    both = np.array([(trial.partial[name], trial.final) for trial in seen[:first] if name in trial.partial]).T
    if both.size == 0 or (both.min(axis=1) == both.max(axis=1)).any():
        return 0.0
    return float(np.corrcoef([_ranks(values) for values in both])[0, 1])


def _ranks(values: Array) -> Array:
    """Return the rank of each value; equal values share the mean of theirs."""
    below = (values[:, None] > values).sum(axis=1)
    same = (values[:, None] == values).sum(axis=1)
    return below + (same - 1) / 2


def _rising(x: Array, y: Array) -> dict[str, Any]:
    """Return the rising curve nearest to some points (isotonic regression, by pooling neighbours), by its corners."""
    order = np.lexsort((y, x))
    blocks: list[list[float]] = []  # each has its sums of x and y, and its number of points
    for a, b in zip(x[order], y[order], strict=True):
        blocks.append([a, b, 1.0])
        while len(blocks) > 1 and blocks[-2][1] / blocks[-2][2] >= blocks[-1][1] / blocks[-1][2]:
            last = blocks.pop()
            blocks[-1] = [one + other for one, other in zip(blocks[-1], last, strict=True)]
    return {
        "partial": [float(block[0] / block[2]) for block in blocks],
        "expected": [float(block[1] / block[2]) for block in blocks],
    }
