"""The parameters of an Optuna search space that a policy moves, and their place in its coordinates theta.

A coordinate is in [0, 1]. A plain float has its place on a line, a log float on a line of logarithms. A number with
steps has as many bins of the same width as it has values; the bins of a log int are as wide as its values are in
logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from autoseg.errors import InputError, unknown
from autoseg.search.ppo2 import Array, is_number

Number = FloatDistribution | IntDistribution


def is_plain(d: BaseDistribution) -> bool:
    """Whether a distribution is of floats without steps and without logarithms."""
    return isinstance(d, FloatDistribution) and not d.log and d.step is None


def coordinate(d: Number, value: float) -> float:
    """Return the place of a value in [0, 1]; that of a number with steps is the middle of its bin.

    >>> coordinate(FloatDistribution(1e-4, 1, log=True), 0.01), coordinate(IntDistribution(1, 4), 1)
    (0.5, 0.125)
    """
    if d.log:
        low, high = _logarithms(d)
        place = (math.log(value) - low) / (high - low)
    elif d.step is not None:
        place = (round((value - d.low) / d.step) + 0.5) / _bins(d)
    else:
        place = (value - d.low) / (d.high - d.low)
    return min(max(place, 0.0), 1.0)


def value_at(d: Number, place: float) -> float:
    """Return the value at a place; 0 is exactly the lowest value and 1 the highest.

    >>> round(value_at(FloatDistribution(1e-4, 1, log=True), 0.5), 9), value_at(IntDistribution(1, 4), 0.99)
    (0.01, 4)
    """
    if place <= 0:
        return d.low
    if place >= 1:
        return d.high
    if d.log:
        low, high = _logarithms(d)
        value = math.exp(min(low + place * (high - low), high))
        if isinstance(d, IntDistribution):
            value = math.floor(value + 0.5)
    elif d.step is not None:
        index, last = int(place * _bins(d)), _bins(d) - 1
        value = d.low + index * d.step if index < last else d.high
    else:
        value = d.low + (d.high - d.low) * place
    return min(max(value, d.low), d.high)


def _logarithms(d: Number) -> tuple[float, float]:
    """Return the ends of a line of logarithms; those of a log int are half a value beyond its lowest and highest."""
    half = 0.5 if isinstance(d, IntDistribution) else 0.0
    return math.log(d.low - half), math.log(d.high + half)


def _bins(d: Number) -> int:
    return round((d.high - d.low) / (d.step or 1)) + 1


def by_name(mean: Mapping[str, float] | None) -> dict[str, float]:
    """Return a mean as a dictionary; what is no mapping is refused."""
    if not isinstance(mean, Mapping | None):
        raise InputError(f"found {mean!r}", where="initial_mean", expected="numbers by the parameters' names")
    return dict(mean or {})


@dataclass(frozen=True)
class Box:
    """Numbers by name, in the order of theta's coordinates.

    Theta is in [0, 1], or with family "normal" in the parameters' own units.
    """

    distributions: dict[str, Number]
    family: str

    @classmethod
    def of(cls, search_space: Mapping[str, BaseDistribution], family: str) -> Box:
        """Take what can be searched of a search space: floats and ints; with family "normal" plain floats alone."""
        if not isinstance(search_space, Mapping) or not all(
            isinstance(name, str) and isinstance(d, BaseDistribution) for name, d in search_space.items()
        ):
            raise InputError(
                f"found {search_space!r}",
                where="search_space",
                expected="Optuna distributions by name, such as {'x': FloatDistribution(0, 1)}",
            )
        numbers: dict[str, Number] = {
            name: d
            for name, d in search_space.items()
            if isinstance(d, FloatDistribution | IntDistribution) and not why_not(d, family)
        }
        if not numbers:
            kind = "plain float (no log, no step)" if family == "normal" else "number"
            raise InputError(f"there is no {kind} with more than one value to search", where="search_space")
        for name, d in numbers.items():
            if not math.isfinite(d.high - d.low):
                raise InputError(
                    f"found [{d.low}, {d.high}]", where=f"search_space: {name}", expected="a range of finite width"
                )
        return cls(numbers, family)

    def in_order(self, names: Sequence[str]) -> Box:
        """Return the same parameters in another order."""
        return Box({name: self.distributions[name] for name in names}, self.family)

    def theta(self, params: Mapping[str, float]) -> Array:
        """Return the coordinates of parameters."""
        if self.family == "normal":
            return np.array([float(params[name]) for name in self.distributions])
        return np.array([coordinate(d, params[name]) for name, d in self.distributions.items()])

    def params(self, theta: Array) -> dict[str, float]:
        """Return the parameters at theta, by name."""
        places = dict(zip(self.distributions, theta.tolist(), strict=True))
        if self.family == "normal":
            return {name: min(max(places[name], d.low), d.high) for name, d in self.distributions.items()}
        return {name: value_at(d, places[name]) for name, d in self.distributions.items()}

    def initial(self, mean: Mapping[str, float]) -> Array:
        """Return theta at a mean; a parameter that it leaves out is at the middle, or at 0 with family "normal"."""
        for name in mean:
            if name not in self.distributions:
                raise unknown("parameter", name, self.distributions, where="initial_mean")
        theta = []
        for name, d in self.distributions.items():
            value = mean.get(name)
            if name in mean and not (is_number(value) and d.low <= value <= d.high):  # type: ignore[operator]
                raise InputError(
                    f"found {value!r}", where=f"initial_mean: {name}", expected=f"a number in [{d.low}, {d.high}]"
                )
            if self.family == "normal":
                middle = 0.0 if d.low <= 0 <= d.high else (d.low + d.high) / 2
                theta.append(middle if value is None else float(value))
            elif value is None:
                theta.append(coordinate(d, (d.low + d.high) / 2) if is_plain(d) else 0.5)
            else:
                theta.append(coordinate(d, value))
        return np.array(theta)

    def described(self, theta: Array) -> dict[str, dict[str, Any]]:
        """Return what a study keeps of the space and of its start, theta, as JSON has it."""
        start, places = self.params(theta), dict(zip(self.distributions, theta.tolist(), strict=True))
        plain = {name: is_plain(d) for name, d in self.distributions.items()}
        return {
            "search_space": {
                name: [d.low, d.high] if plain[name] else [type(d).__name__, d.low, d.high, d.step, d.log]
                for name, d in self.distributions.items()
            },
            # Of a number with steps the place itself: the start may be between two of its values.
            "initial_mean": {name: start[name] if plain[name] else places[name] for name in self.distributions},
        }

    def missing(self, trial: FrozenTrial) -> list[str]:
        """Return the parameters that a trial lacks, or suggested with another distribution."""
        return [name for name, d in self.distributions.items() if trial.distributions.get(name) != d]


def why_not(d: BaseDistribution, family: str) -> str:
    """Return why a distribution is not searched; nothing, if it is."""
    if d.single():
        return "it has one value"
    if isinstance(d, CategoricalDistribution):
        return "it is a choice"
    if family == "normal" and not is_plain(d):
        return 'family "normal" has plain floats alone'
    return "" if isinstance(d, FloatDistribution | IntDistribution) else "it is no number"
