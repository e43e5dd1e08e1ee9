"""A model of the score, fitted to all trials of a search: a Gaussian process around a mean. Pure numbers, no files.

The score is modelled as linear + quadratic + rough (Matern 5/2) around the mean, with one scale per coordinate and
noise. A search's mean is an average over one direction after the other; the model uses every trial at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import lapack, solve_triangular
from scipy.optimize import minimize

from autoseg.errors import InputError
from autoseg.search.ppo2 import Array

REACH = 0.75
"""How many sigmas of the policy the answer may be from the mean, in each coordinate: .15 with sigma .2."""

FLOOR = 3.0
"""A score counts as at least median - 3 (upper decile - median): how deep a collapse falls says nothing of the top.

Not with one parameter: trials then crowd at the top so soon that this floor would be what all others score.
"""

OUTLIER = 2.5
"""A score counts as at most so many standard deviations from what the model expects of it, given all others."""

CAUTION = 0.5
"""The answer's expected gain over the mean counts less so many of its standard deviations (`Model.best`)."""

TRUST = 0.05
"""The least skill of a model that is believed. That of pure noise was between -.04 and .05 with 100 trials and more;
with 24 trials it was up to .25, so there this refuses little."""

# The logarithms of the amplitudes of the rough, quadratic and linear part and of the noise, in standard deviations of
# the scores; and of the length scale of the rough part, in sigmas. Each has a normal prior: its mean and width.
ROUGH, LENGTH, QUADRATIC, LINEAR, NOISE = range(5)
PRIOR = np.log([0.5, 2.0, 0.5, 0.5, 0.5])
WIDTH = np.array([1.5, 0.7, 1.5, 1.5, 1.0])

# The logarithm of the amplitude of what the model of another search expects, where there is one: its prior.
OTHER, OTHER_WIDTH = np.log(0.5), 1.5

# The logarithm of a coordinate's scale has a Laplace prior of this width (rounded at its tip): most stay as they are.
SCALE_WIDTH, TIP = 0.2, 0.01

DIGITS = 9
"""Decimals of the parameters that a model chooses."""

LEVEL, JITTER = 10.0, 1e-8  # variance of the unknown level; what keeps a covariance positive in floating point


@dataclass(frozen=True)
class _Parts:
    """The covariance between two sets of points, and what its derivatives need."""

    rough: Array
    slope: Array  # of the rough part: -slope / 2 is its derivative in the squared distance, times 5 / (3 length^2)
    squares: Array  # squared distances
    products: Array  # inner products

    def total(self, p: Array) -> Array:
        quadratic, linear = np.exp(2 * p[[QUADRATIC, LINEAR]])
        return self.rough + (quadratic * self.products + linear) * self.products + LEVEL


def _parts(a: Array, b: Array, p: Array) -> _Parts:
    products = a @ b.T
    squares = np.maximum((a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * products, 0)
    u = np.sqrt(5 * squares) / np.exp(p[LENGTH])
    decay = np.exp(2 * p[ROUGH] - u)
    return _Parts((1 + u + u * u / 3) * decay, (1 + u) * decay, squares, products)


@dataclass(frozen=True)
class Model:
    """A fitted model. Points are rows of parameters; scores are in their own unit."""

    thetas: Array
    centre: Array
    unit: float  # a coordinate's unit: sigma times the root of the dimensions
    parameters: Array  # logarithms: the five above, then each coordinate's scale
    targets: Array  # scores less their level, in standard deviations, outliers cut
    level: float
    scale: float  # the scores' standard deviation
    doubts: Array  # variance of each target beside the noise
    other: Model | None = None  # of another search; the last parameter is the amplitude of what it expects

    @cached_property
    def _scales(self) -> Array:
        return np.exp(self.parameters[len(PRIOR) : len(PRIOR) + len(self.centre)])

    @cached_property
    def _trust(self) -> float:
        """The variance that the other model explains."""
        return 0.0 if self.other is None else float(np.exp(2 * self.parameters[-1]))

    def _expected(self, points: ArrayLike) -> Array:
        """Return what the other model expects at every point, in its own standard deviations."""
        if self.other is None:
            return np.zeros(len(np.atleast_2d(points)))
        return (self.other.mean(points) - self.other.level) / self.other.scale

    @cached_property
    def _features(self) -> Array:
        return self._expected(self.thetas)

    @cached_property
    def _places(self) -> Array:
        return self._place(self.thetas)

    @cached_property
    def _lower(self) -> Array:
        covariance = _parts(self._places, self._places, self.parameters).total(self.parameters)
        covariance += self._trust * np.outer(self._features, self._features)
        covariance.flat[:: len(covariance) + 1] += np.exp(2 * self.parameters[NOISE]) + JITTER + self.doubts
        return lapack.dpotrf(covariance, lower=1)[0]

    @cached_property
    def _weights(self) -> Array:
        return lapack.dpotrs(self._lower, self.targets, lower=1)[0]

    @cached_property
    def _precision(self) -> Array:
        return _symmetric(lapack.dpotri(self._lower, lower=1)[0])

    def _place(self, points: ArrayLike) -> Array:
        return (np.atleast_2d(points) - self.centre) / self.unit * self._scales

    @property
    def noise(self) -> float:
        """The standard deviation of a score around its true value."""
        return float(self.scale * np.exp(self.parameters[NOISE]))

    def mean(self, points: ArrayLike) -> Array:
        """Return the expected score at every point."""
        cross = _parts(self._place(points), self._places, self.parameters).total(self.parameters)
        cross += self._trust * np.outer(self._expected(points), self._features)
        return self.level + self.scale * (cross @ self._weights)

    def covariance(self, points: ArrayLike) -> Array:
        """Return the posterior covariance of the true scores of the points, in squares of `scale`."""
        places, features = self._place(points), self._expected(points)
        cross = _parts(places, self._places, self.parameters).total(self.parameters)
        cross += self._trust * np.outer(features, self._features)
        known = solve_triangular(self._lower, cross.T, lower=True)
        own = _parts(places, places, self.parameters).total(self.parameters)
        return own + self._trust * np.outer(features, features) - known.T @ known

    def _negative(self, theta: Array) -> tuple[float, Array]:
        """Return minus the expected score, in standard deviations and without the level, and its gradient in theta."""
        p, place = self.parameters, self._place(theta)
        parts = _parts(place, self._places, p)
        quadratic, linear = np.exp(2 * p[[QUADRATIC, LINEAR]])
        inner, weights = parts.products[0], self._weights
        pull = -weights * parts.slope[0] * 5 / (3 * np.exp(2 * p[LENGTH]))
        slope = (
            pull.sum() * place[0] - pull @ self._places + (weights * (2 * quadratic * inner + linear)) @ self._places
        )
        value = weights @ (parts.total(p)[0] - LEVEL)
        found, gradient = -float(value), -slope * self._scales / self.unit
        if self.other is not None:
            weight = self._trust * float(weights @ self._features)
            expected, change = self.other._negative(theta)
            found, gradient = found + weight * expected, gradient + weight * change
        return found, gradient

    def best(self, low: Array, high: Array, caution: float = 0.0) -> Array:
        """Return the point of the greatest expected score in a box, sought from the centre and the best trials.

        With caution it is the point on the way there from the centre where the expected gain, less so many standard
        deviations of the gain, is greatest: what the model hardly knows is left alone.
        """
        promising = self.thetas[np.argsort(-self.mean(self.thetas), kind="stable")[:3]]
        found = [
            minimize(
                self._negative,
                np.clip(start, low, high),
                jac=True,
                method="L-BFGS-B",
                bounds=list(zip(low, high, strict=True)),
                options={"maxiter": 100},
            )
            for start in (self.centre, *promising)
        ]
        goal = np.clip(min(found, key=lambda result: result.fun).x, low, high)
        way = self.centre + np.linspace(0, 1, 21)[:, None] * (goal - self.centre)
        expected, spread = self.mean(way) / self.scale, self.covariance(way)
        doubt = np.sqrt(np.maximum(np.diag(spread) + spread[0, 0] - 2 * spread[0], 0))
        return way[int(np.argmax(expected - caution * doubt))]

    def skill(self, steps: ArrayLike) -> float:
        """Return how much of the differences within a step the model knows from the other steps: 1 all, 0 nothing.

        Every step is left out in turn, with the same parameters of the model.
        """
        numbers = np.asarray(steps)
        missed = known = 0.0
        for step in np.unique(numbers):
            inside = np.flatnonzero(numbers == step)
            error = np.linalg.solve(self._precision[np.ix_(inside, inside)], self._weights[inside])
            missed += float(np.var(error)) * len(inside)
            known += float(np.var(self.targets[inside])) * len(inside)
        return 1 - missed / known if known > 0 else 0.0


def fit(
    thetas: ArrayLike,
    scores: ArrayLike,
    centre: ArrayLike,
    sigma: float,
    *,
    doubts: ArrayLike | None = None,
    other: Model | None = None,
) -> Model:
    """Return the model of the scores around a centre, its parameters those of the greatest posterior density.

    What the model of another search expects is one more part of the score. Its amplitude is fitted like the others: if
    the two searches have nothing in common, it is almost nothing. `doubts` are standard deviations of the scores beside
    their common noise: those of trials that were ended early.

    >>> thetas = np.random.default_rng(0).random((60, 2))
    >>> model = fit(thetas, -((thetas - 0.6) ** 2).sum(1), [0.5, 0.5], sigma=0.2)
    >>> model.best(np.zeros(2), np.ones(2)).round(2).tolist()
    [0.6, 0.6]
    """
    points, found = np.asarray(thetas, float), np.asarray(scores, float)
    if not (np.isfinite(points).all() and np.isfinite(found).all()):
        raise InputError("a theta or a score is not finite", where="model", cure="leave failed trials out")
    largest = float(np.abs(found).max())
    if largest > 1e100 or 0 < largest < 1e-100:  # squares would overflow, or vanish
        doubts = None if doubts is None else np.asarray(doubts) / largest
        model = fit(points, found / largest, centre, sigma, doubts=doubts, other=other)
        return replace(model, level=model.level * largest, scale=model.scale * largest)
    if points.shape[1] > 1:
        upper, middle = np.quantile(found, [0.9, 0.5])
        found = np.maximum(found, middle - FLOOR * (upper - middle))
    level, scale = float(found.mean()), float(found.std())
    if scale <= 1e-12 * largest:
        scale = 1.0  # all scores are the same
    mean = np.asarray(centre, float)
    unit, start = sigma * np.sqrt(points.shape[1]), np.concatenate([PRIOR, np.zeros(points.shape[1])])
    if other is not None:
        start = np.append(start, OTHER)
    unsure = np.zeros(len(found)) if doubts is None else (np.asarray(doubts, float) / scale) ** 2
    model = Model(points, mean, unit, start, (found - level) / scale, level, scale, unsure, other)
    model = _fitted(model, 60)
    for _ in range(2):
        spread = 1 / np.sqrt(np.diag(model._precision))
        error = model._weights * spread**2  # of each score, from all others
        if not (np.abs(error) > OUTLIER * spread).any():
            break
        cut = model.targets - error + np.clip(error, -OUTLIER * spread, OUTLIER * spread)
        model = _fitted(replace(model, targets=cut), 30)
    return model


def _symmetric(lower: Array) -> Array:
    below = np.tril(lower, -1)
    return below + below.T + np.diag(np.diag(lower))


def _fitted(model: Model, iterations: int) -> Model:
    """Return the model with parameters of the greatest posterior density, sought from those it has."""
    plain = (model.thetas - model.centre) / model.unit
    found = minimize(
        _loss,
        model.parameters,
        args=(plain, model.targets, model.doubts, model._features if model.other else None),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-7, 5)] * len(model.parameters),
        options={"maxiter": iterations, "ftol": 1e-5, "gtol": 1e-2},
    )
    return replace(model, parameters=found.x)


def _loss(
    p: Array, plain: Array, targets: Array, doubts: Array | float = 0.0, features: Array | None = None
) -> tuple[float, Array]:
    """Return minus the log posterior density of the parameters, up to a constant, and its gradient."""
    own = len(PRIOR) + plain.shape[1]
    places = plain * np.exp(p[len(PRIOR) : own])
    parts = _parts(places, places, p)
    quadratic, linear, noise = np.exp(2 * p[[QUADRATIC, LINEAR, NOISE]])
    covariance = parts.total(p)
    if features is not None:
        covariance += np.exp(2 * p[own]) * np.outer(features, features)
    covariance.flat[:: len(covariance) + 1] += noise + JITTER + doubts
    lower, failed = lapack.dpotrf(covariance, lower=1)
    if failed:
        return 1e25, np.zeros_like(p)
    weights = lapack.dpotrs(lower, targets, lower=1)[0]
    value = 0.5 * targets @ weights + np.log(np.diag(lower)).sum()
    change = _symmetric(lapack.dpotri(lower, lower=1)[0]) - np.outer(weights, weights)  # d value / d covariance, twice
    pull = change * parts.slope * (5 / (3 * np.exp(2 * p[LENGTH])))
    turn = change * (2 * quadratic * parts.products + linear)
    gradient = np.concatenate(
        [
            [
                np.vdot(change, parts.rough),
                0.5 * np.vdot(pull, parts.squares),
                quadratic * np.vdot(change, parts.products**2),
                linear * np.vdot(change, parts.products),
                noise * np.trace(change),
            ],
            (((pull + turn) @ places) * places).sum(0) - pull.sum(1) @ (places * places),
        ]
    )
    offset = (p[: len(PRIOR)] - PRIOR) / WIDTH
    scales = p[len(PRIOR) : own] / SCALE_WIDTH
    rounded = np.sqrt(scales**2 + TIP)
    prior = np.concatenate([offset / WIDTH, scales / rounded / SCALE_WIDTH])
    value, gradient = float(value + 0.5 * offset @ offset + rounded.sum()), gradient + prior
    if features is not None:
        off = (p[own] - OTHER) / OTHER_WIDTH
        slope = np.exp(2 * p[own]) * (features @ change @ features) + off / OTHER_WIDTH
        value, gradient = value + 0.5 * off * off, np.append(gradient, slope)
    return value, gradient


# ---------------------------------------------------------------------------------------------------------- the answer


@dataclass(frozen=True)
class ModelAnswer:
    """The model's answer beside the mean it was sought around; scores are the model's expectations.

    `std` is the posterior standard deviation of the answer's true score, `gain_std` that of its gain over the mean.
    """

    theta: Array
    score: float
    std: float
    gain: float
    gain_std: float
    distance: float  # the greatest difference of a coordinate from the mean
    noise: float  # standard deviation of a trial's score
    skill: float  # see `Model.skill`
    trusted: bool  # False: the model knows nothing of a step that it has not seen, and theta is the mean


def region(centre: Array, sigma: float, bounded: bool) -> tuple[Array, Array]:
    """Return the lower and upper ends of the box around a mean in which the best point is sought."""
    low, high = centre - REACH * sigma, centre + REACH * sigma
    return (np.clip(low, 0, 1), np.clip(high, 0, 1)) if bounded else (low, high)


def model_answer(
    thetas: ArrayLike,
    scores: ArrayLike,
    steps: ArrayLike,
    mean: ArrayLike,
    sigma: float,
    *,
    bounded: bool = True,
    doubts: ArrayLike | None = None,
    other: Model | None = None,
) -> ModelAnswer:
    """Return the point within `REACH` sigmas of a mean that scores best by the model of all trials.

    Args:
        thetas: all trials, one row each.
        scores: theirs, higher being better.
        steps: the number of each trial's step.
        mean: the search's mean, in [0, 1] where `bounded`.
        sigma: the standard deviation that trials were drawn with.
        bounded: whether parameters are in [0, 1].
        doubts, other: as in `fit`.
    """
    centre = np.asarray(mean, float)
    model = fit(thetas, scores, centre, sigma, doubts=doubts, other=other)
    skill = model.skill(steps)
    trusted = skill > TRUST
    theta = np.round(model.best(*region(centre, sigma, bounded), CAUTION), DIGITS) if trusted else centre
    expected, spread = model.mean([theta, centre]), model.covariance([theta, centre])
    return ModelAnswer(
        theta=theta,
        score=float(expected[0]),
        std=float(model.scale * np.sqrt(max(spread[0, 0], 0))),
        gain=float(expected[0] - expected[1]),
        gain_std=float(model.scale * np.sqrt(max(spread[0, 0] + spread[1, 1] - 2 * spread[0, 1], 0))),
        distance=float(np.abs(theta - centre).max()),
        noise=model.noise,
        skill=skill,
        trusted=trusted,
    )
