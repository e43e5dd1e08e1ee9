"""Steps that a model guides: it moves the mean within a trust region, and picks the trials among many candidates.

Batch Bayesian optimisation with a trust region. The region is the policy itself: N_trunc[0,1](mu, sigma^2 I) as in
PPO2; the mean goes at most `model.REACH` sigmas a step. Pure functions of numbers, like `autoseg.search.ppo2`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from autoseg.search.model import DIGITS, Model, fit, region
from autoseg.search.ppo2 import Array, Policy, Settings, draw, propose

CAUTION_OF_MOVES = 1.0
"""As `model.CAUTION`, for the moves of the mean: more, as the next step's trials are around it."""

CANDIDATES = 400
"""Samples of the policy among which a step's trials are chosen."""

FIRST_CANDIDATE = 2**32
"""The number of the first candidate, beyond those of all trials: candidates have random numbers of their own."""


def other_model(thetas: ArrayLike, scores: ArrayLike, sigma: float) -> Model:
    """Return the model of another search from all its trials, around the middle of its best quarter."""
    points, found = np.asarray(thetas, float), np.asarray(scores, float)
    best = np.argsort(-found, kind="stable")[: max(len(found) // 4, 1)]
    return fit(points, found, points[best].mean(axis=0), sigma)


def second_start(settings: Settings, other: Model) -> Array:
    """Return where the other search's model expects the best score, near its best trials."""
    return np.round(other.best(*region(other.centre, settings.sigma, settings.family == "truncated")), DIGITS)


def from_two_starts(settings: Settings, mu: Array, second: Array, seed: int, numbers: range) -> Array:
    """Return the trials of the first step with another search's trials: half around mu, half around the second start.

    So a search that has nothing in common with the other one loses half a step.
    """
    half = len(numbers) // 2
    starts = [mu if k < half else second for k in range(len(numbers))]
    return np.array(
        [draw(settings, Policy(start), seed, number) for start, number in zip(starts, numbers, strict=True)]
    )


def better_start(mu: Array, second: Array, scores: ArrayLike) -> Array:
    """Return the start whose half of the first step scored better on average."""
    found = np.asarray(scores, float)
    half = len(found) // 2
    return second if found[half:].mean() > found[:half].mean() else mu


def moved(
    settings: Settings,
    mu: ArrayLike,
    thetas: ArrayLike,
    scores: ArrayLike,
    doubts: ArrayLike | None = None,
    other: Model | None = None,
) -> tuple[Array, Model]:
    """Return the next mean, the best point near mu by the model of all trials so far, and the model."""
    model = fit(thetas, scores, mu, settings.sigma, doubts=doubts, other=other)
    box = region(model.centre, settings.sigma, settings.family == "truncated")
    return np.round(model.best(*box, CAUTION_OF_MOVES), DIGITS), model


def chosen(settings: Settings, model: Model, mu: Array, seed: int, step: int) -> Array:
    """Return the trials of a step around mu by Thompson sampling, one row each.

    Each trial is the best candidate of another landscape that the model holds for possible, so a step's trials differ
    as far as the model is unsure. No candidate is taken twice.
    """
    count = max(CANDIDATES, 4 * settings.trials_per_step)
    first = FIRST_CANDIDATE + step * count
    candidates = np.array(
        [propose(mu, seed, first + k, sigma=settings.sigma, family=settings.family) for k in range(count)]
    )
    mean, spread = model.mean(candidates), model.covariance(candidates)
    # From eigenvalues, and not by Cholesky: a posterior covariance has many that are almost 0.
    values, vectors = np.linalg.eigh(spread)
    root = model.scale * vectors * np.sqrt(np.maximum(values, 0))
    rng = np.random.default_rng([seed, FIRST_CANDIDATE, step])
    taken: list[int] = []
    for _ in range(settings.trials_per_step):
        landscape = mean + root @ rng.standard_normal(count)
        landscape[taken] = -np.inf
        taken.append(int(np.argmax(landscape)))
    return np.round(candidates[taken], DIGITS)


def guided_policy(
    settings: Settings,
    mu: ArrayLike,
    seed: int,
    step: int,
    thetas: ArrayLike,
    scores: ArrayLike,
    doubts: ArrayLike | None = None,
    other: Model | None = None,
) -> Policy:
    """Return the policy of step `step` + 1 from all trials so far and the mean mu of step `step`.

    Its `begin` is 0; the caller knows the number of the step's first trial.
    """
    mean, model = moved(settings, mu, thetas, scores, doubts, other)
    return Policy(mean, design=chosen(settings, model, mean, seed, step + 1))
