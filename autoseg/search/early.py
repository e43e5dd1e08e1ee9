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
from numpy.typing import ArrayLike
from pydantic import Field, FiniteFloat, field_validator
from scipy.optimize import brentq
from scipy.special import ndtr

from autoseg.errors import InputError
from autoseg.files import Part
from autoseg.search.model import DIGITS, fit
from autoseg.search.ppo2 import Array

FEWEST_GOOD = 4
"""At least so many earlier trials count as good: fewer would say too little of where good trials begin."""

TELLS = 0.5
"""The least rank correlation of scores on the way with final ones: below it a look ends no trial."""

WARY = 4.0
"""How many times the measured doubt a model is told. On seeds 700 to 705 with `hard`, 4 in place of 1 halved the regret
on scenes and changed nothing on pets. Why was not tested; perhaps trials near each other are mispredicted alike."""

MOST = 0.95
"""The greatest share of a step that is expected to be ended: some trials show what is reached in the end."""


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
    save: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="the share of the iterations after the first step that is to be saved: bars are as high as that "
        "needs, without `good` and `lost`",
    )

    @field_validator("at")
    @classmethod
    def _in_order(cls, value: list[float]) -> list[float]:
        if sorted(set(value)) != value or not all(0 < share < 1 for share in value):
            raise InputError(f"found {value}", where="at", expected="shares between 0 and 1, in rising order")
        return value


RULES: dict[str, Early | None] = {
    "off": None,
    "mild": Early(),
    "firm": Early(good=0.1, lost=0.5),
    "hard": Early(save=0.42),
}


class Look(Part):
    """What is done after a share of a trial's training: below the bar it is ended, with the score expected of it."""

    at: float
    images: float = Field(description="the share of the hold-out that it is scored on")
    bar: FiniteFloat | None = Field(description="null: too little is known, and no trial is ended")
    partial: list[FiniteFloat] = Field(default=[], description="scores at this share, rising, and")
    expected: list[FiniteFloat] = Field(default=[], description="what trials scored in the end that had them")
    doubt: float = Field(default=0.0, ge=0, description="how far what is expected may be off: it counts so much less")

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


def looks(
    early: Early, seen: Sequence[Seen], thetas: ArrayLike = (), ahead: ArrayLike = (), sigma: float = 0.2
) -> list[Look]:
    """Return where the trials of the next step are scored, and the bars, from all trials of all earlier steps.

    The bar is the score that all good trials had there, but for the share `lost`. Where a score on the way says nothing
    of the end, no trial is ended.

    A rule with `save` has bars that are expected to end as many trials as that needs. They need `thetas`, the earlier
    trials' parameters, `ahead`, those of the next step's trials, and `sigma`, with which trials are drawn.

    >>> rule = Early(at=[0.5], good=0.5, lost=0)
    >>> seen = [Seen({"0.5": n / 20}, n / 10) for n in range(10)]
    >>> found = looks(rule, seen)[0]
    >>> found.bar, round(found.predicted(0.2), 2)
    (0.25, 0.4)
    """
    found = [_look(early, at, seen) for at in early.at]
    if early.save is None:
        return found
    return _saving(early.save, found, seen, np.asarray(thetas, float), np.asarray(ahead, float), sigma)


def _look(early: Early, at: float, seen: Sequence[Seen]) -> Look:
    empty = Look(at=at, images=early.images, bar=None)
    known = [trial for trial in seen if empty.name in trial.partial]
    whole = [(trial.partial[empty.name], trial.final) for trial in known if not trial.ended]
    count = FEWEST_GOOD if early.save else max(math.ceil(early.good * len(known)), FEWEST_GOOD)
    if len(whole) < max(2 * FEWEST_GOOD, count) or _told(empty.name, seen) < TELLS:
        return empty
    partial, final = np.array(whole).T
    good = partial[np.argsort(-final, kind="stable")[:count]]
    bar = float(np.quantile(good, early.lost, method="lower"))
    found = empty.model_copy(update={"bar": bar, **_rising(partial, final)})
    errors = final - np.interp(partial, found.partial, found.expected)
    return found.model_copy(update={"doubt": WARY * float(np.sqrt(np.mean(errors**2)))})


def _saving(
    save: float, found: list[Look], seen: Sequence[Seen], thetas: Array, ahead: Array, sigma: float
) -> list[Look]:
    """Return the looks that tell with bars that save as much as is still to be saved, the same part at each look.

    A step's trials score better than those of the steps before, so what these had would end too few. A model of the
    earlier scores at the same share says what the step's own trials are expected to have there.
    """
    if not any(look.bar is not None for look in found):
        return found
    # In trainings. With this step there are as many steps after the first as there were steps before it.
    saved = sum(1 - float(trial.ended) for trial in seen if trial.ended)
    left = max(save * len(seen) - saved, 0) / len(ahead)
    each = left / sum(1 - look.at for look in found if look.bar is not None)
    below, raised = 0.0, []
    for look in found:
        if look.bar is not None and each > 0:
            below = min(below + each, MOST)
            look = look.model_copy(update={"bar": _level(look.name, below, seen, thetas, ahead, sigma)})
        elif look.bar is not None:
            look = look.model_copy(update={"bar": None})
        raised.append(look)
    return raised


def _level(name: str, share: float, seen: Sequence[Seen], thetas: Array, ahead: Array, sigma: float) -> float:
    """Return the score on the way below which such a share of the next step's trials is expected."""
    scored = [k for k, trial in enumerate(seen) if name in trial.partial]
    model = fit(thetas[scored], [seen[k].partial[name] for k in scored], ahead.mean(axis=0), sigma)
    middle = model.mean(ahead)
    variance = np.maximum(np.diag(model.covariance(ahead)), 0) * model.scale**2
    spread = np.maximum(np.sqrt(variance + model.noise**2), 1e-9 * max(1.0, float(np.abs(middle).max())))
    low, high = float((middle - 9 * spread).min()), float((middle + 9 * spread).max())
    return round(float(brentq(lambda bar: float(ndtr((bar - middle) / spread).mean()) - share, low, high)), DIGITS)


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
