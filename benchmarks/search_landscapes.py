"""Landscapes to search: scores over [0, 1]^d, seen through noise, whose best value and place are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoseg.losses.published import published

NOISE = 0.01  # standard deviation of a score; a bowl's score falls by .01 at a distance of .1 in every coordinate

QUADRATIC = ("bowl", "plateau", "valley")
ROUGH = ("ridge", "curved", "cliff", "heavy", "flat", "anisotropic")
OTHER = ("crest", "lopsided", "two hills")  # nothing was chosen on these
FAMILIES = (*QUADRATIC, *ROUGH, *OTHER)


class Landscape:
    """A score to maximise over [0, 1]^d, seen through noise; its best value is 0, so regret is minus the true score.

    bowl: a quadratic. valley: a quadratic of condition 100 in a random rotation: coordinates must move together.
    plateau: a hill of height .3 in a plain without slope.

    ridge: absolute values in a random rotation. curved: valleys along parabolas. cliff: a bowl that falls to -.5, as
    collapsed trainings do, beyond a plane at a distance of .1 from the optimum. heavy: a bowl under noise of Student's
    t with two degrees of freedom. flat: the square of a bowl. anisotropic: a quadratic of condition 10,000 along the
    axes. crest: the greatest absolute value of all coordinates counts. lopsided: a bowl four times as steep on one side
    of each coordinate. two hills: a plateau with a second hill, half as high.

    The optimum lies in [.15, .85]^d; "bowl@anywhere" has it anywhere in [0, 1]^d, "bowl@mIoU" at the theta of that
    published surrogate, some of whose coordinates are edges.
    """

    ELSEWHERE = ("anywhere", "mIoU", "mIoU-paper")

    def __init__(self, name: str, dimensions: int, seed: int) -> None:
        name, _, where = name.partition("@")
        rng = np.random.default_rng([7, seed, dimensions, FAMILIES.index(name)])
        self.name, self.dimensions, self.seed = name, dimensions, seed
        self.optimum = rng.uniform(0.15, 0.85, dimensions)
        if where == "anywhere":
            self.optimum = (self.optimum - 0.15) / 0.7
        elif where:
            self.optimum = np.array(published(where).theta)
        # Where every method starts: the identity of two-piece Bézier curves.
        self.start = np.tile([1 / 4, 1 / 4, 1 / 3, 1 / 3, 1 / 2, 1 / 2], dimensions // 6)
        self.metric = np.eye(dimensions)
        if name in ("valley", "ridge", "curved"):
            self.rotation, _ = np.linalg.qr(rng.normal(size=(dimensions, dimensions)))
        if name == "valley":
            self.metric = self.rotation @ np.diag(np.logspace(-1, 1, dimensions)) @ self.rotation.T
            self.metric *= dimensions / np.trace(self.metric)
        if name == "anisotropic":
            weights = rng.permutation(np.logspace(-2, 2, dimensions))
            self.metric = np.diag(weights * dimensions / weights.sum())
        self.towards = rng.normal(size=dimensions)
        self.towards /= np.linalg.norm(self.towards)
        if self.towards @ (self.start - self.optimum) > 0:
            self.towards *= -1  # no search starts beyond the cliff
        self.second = rng.uniform(0.15, 0.85, dimensions)

    def regret(self, theta: Any) -> float:
        """How far theta's true score lies below the best one."""
        error = np.asarray(theta) - self.optimum
        distance = float(error @ self.metric @ error) / self.dimensions
        match self.name:
            case "plateau":
                return 0.3 * (1 - _hill(distance))
            case "two hills":
                other = np.asarray(theta) - self.second
                return 0.3 * (1 - max(_hill(distance), 0.5 * _hill(float(other @ other) / self.dimensions)))
            case "ridge":
                return 0.2 * float(np.abs(self.rotation @ error).mean())
            case "crest":
                return 0.15 * float(np.abs(error).max())
            case "curved":
                along, across = np.split(self.rotation @ error, 2)
                return float((2.5 * (across - 2 * along**2) ** 2 + 0.15 * along**2).mean())
            case "cliff":
                return 0.5 if self.towards @ error > 0.1 else distance
            case "flat":
                return 20 * distance**2
            case "lopsided":
                return float((np.where(error > 0, 2.0, 0.5) * error**2).mean())
        return distance

    def score(self, theta: Any, number: int) -> float:
        """What a trial of this number would report."""
        rng = np.random.default_rng([99, self.seed, number])
        noise = rng.standard_t(2) if self.name == "heavy" else rng.normal()
        return float(NOISE * noise) - self.regret(theta)


def _hill(distance: float) -> float:
    return float(np.exp(-distance / (2 * 0.15**2)))


class Remembered(Landscape):
    """A landscape that remembers every trial, so that another answer can be sought in the same search."""

    def __init__(self, name: str, dimensions: int, seed: int) -> None:
        super().__init__(name, dimensions, seed)
        self.thetas: list[np.ndarray] = []
        self.scores: list[float] = []

    def score(self, theta: Any, number: int) -> float:
        """What a trial of this number would report."""
        self.thetas.append(np.array(theta, float))
        self.scores.append(super().score(theta, number))
        return self.scores[-1]
