"""The parameters of an Optuna search space that a policy moves, and their place in its coordinates theta."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import FrozenTrial

from autoseg.errors import InputError, unknown
from autoseg.search.ppo2 import Array, is_number


@dataclass(frozen=True)
class Box:
    """Plain floats by name, in the order of theta's coordinates.

    Theta is in [0, 1], or with family "normal" in the parameters' own units.
    """

    distributions: dict[str, FloatDistribution]
    family: str

    @classmethod
    def of(cls, search_space: Mapping[str, BaseDistribution], family: str) -> Box:
        """Take the plain floats (no log, no step) of a search space."""
        if not isinstance(search_space, Mapping) or not all(
            isinstance(d, BaseDistribution) for d in search_space.values()
        ):
            raise InputError(
                f"found {search_space!r}",
                where="search_space",
                expected="Optuna distributions by name, such as {'x': FloatDistribution(0, 1)}",
            )
        plain = {
            name: d
            for name, d in search_space.items()
            if isinstance(d, FloatDistribution) and not d.single() and not d.log and d.step is None
        }
        if not plain:
            raise InputError("there is no plain float parameter (no log, no step) to search", where="search_space")
        for name, d in plain.items():
            if not math.isfinite(d.high - d.low):
                raise InputError(
                    f"found [{d.low}, {d.high}]", where=f"search_space: {name}", expected="a range of finite width"
                )
        return cls(plain, family)

    @cached_property
    def low(self) -> Array:
        """The lower ends of the ranges."""
        return np.array([d.low for d in self.distributions.values()])

    @cached_property
    def range(self) -> Array:
        """The widths of the ranges."""
        return np.array([d.high for d in self.distributions.values()]) - self.low

    def in_order(self, names: Sequence[str]) -> Box:
        """Return the same parameters in another order."""
        return Box({name: self.distributions[name] for name in names}, self.family)

    def theta(self, params: Mapping[str, float]) -> Array:
        """Return the coordinates of parameters."""
        values = np.array([float(params[name]) for name in self.distributions])
        return values if self.family == "normal" else np.clip((values - self.low) / self.range, 0, 1)

    def params(self, theta: Array) -> dict[str, float]:
        """Return the parameters at theta, by name."""
        values = theta if self.family == "normal" else self.low + self.range * theta
        values = np.clip(values, self.low, self.low + self.range)
        return dict(zip(self.distributions, values.tolist(), strict=True))

    def initial(self, mean: Mapping[str, float]) -> Array:
        """Return theta at a mean; a parameter that it leaves out is at the middle, or at 0 with family "normal"."""
        for name in mean:
            if name not in self.distributions:
                raise unknown("parameter", name, self.distributions, where="initial_mean")
        values = {}
        for name, d in self.distributions.items():
            middle = 0.0 if self.family == "normal" and d.low <= 0 <= d.high else (d.low + d.high) / 2
            values[name] = mean.get(name, middle)
            if not is_number(values[name]) or not d.low <= values[name] <= d.high:
                raise InputError(
                    f"found {values[name]!r}",
                    where=f"initial_mean: {name}",
                    expected=f"a number in [{d.low}, {d.high}]",
                )
        return self.theta(values)

    def missing(self, trial: FrozenTrial) -> list[str]:
        """Return the parameters that a trial lacks, or suggested with another distribution."""
        return [name for name, d in self.distributions.items() if trial.distributions.get(name) != d]
