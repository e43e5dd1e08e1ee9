"""TuRBO (Eriksson et al., NeurIPS 2019) as a rival: Bayesian optimisation in one trust region, by the searches' model.

The rules of the region are the paper's: it begins at .8, doubles after three batches with a new best trial, halves
after as many without one as the dimensions ask for, and begins anew below 2^-7. What differs: the Gaussian process is
`autoseg.search.model`'s, with its quadratic part, which is the stronger rival on these landscapes, and the centre is
the best trial by the model's mean, as the paper advises under noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.stats import qmc

from autoseg.search.model import PRIOR, Model, fit
from benchmarks.search_landscapes import Landscape

FIRST, LEAST, LARGEST = 0.8, 2.0**-7, 1.6
SUCCESSES = 3
CANDIDATES = 1024  # a power of two, as Sobol points want
SIGMA = 0.2  # the model's unit of length, as in the other searches


def turbo(land: Landscape, budget: int, batch: int) -> Iterator[tuple[int, np.ndarray]]:
    """Answer: the best trial by the model's mean. The first trial is the start, the others of its batch fill space."""
    rng = np.random.default_rng([3, land.seed])
    thetas: list[np.ndarray] = []
    scores: list[float] = []

    def tell(points: np.ndarray) -> None:
        for theta in points:
            scores.append(land.score(theta, len(scores)))
            thetas.append(theta)

    first = qmc.LatinHypercube(land.dimensions, rng=rng).random(max(batch, 2 * land.dimensions))
    first[0] = land.start
    tell(first)
    length, successes, failures, best = FIRST, 0, 0, max(scores)
    patience = math.ceil(max(4 / batch, land.dimensions / batch))
    while len(scores) < budget:
        centre, model = _centre(thetas, scores)
        tell(_batch(model, centre, length, min(batch, budget - len(scores)), rng))
        better = max(scores[-batch:]) > best + 1e-3 * abs(best)
        best = max(best, *scores[-batch:])
        successes, failures = (successes + 1, 0) if better else (0, failures + 1)
        if successes == SUCCESSES:
            length, successes = min(2 * length, LARGEST), 0
        elif failures == patience:
            length, failures = length / 2, 0
        if length < LEAST:
            length = FIRST
    yield budget, _centre(thetas, scores)[0]


def _centre(thetas: list[np.ndarray], scores: list[float]) -> tuple[np.ndarray, Model]:
    model = fit(thetas, scores, thetas[int(np.argmax(scores))], SIGMA)
    return thetas[int(np.argmax(model.mean(thetas)))], model


def _batch(model: Model, centre: np.ndarray, length: float, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return the best candidates of the region, each by another landscape that the model holds for possible."""
    scales = np.exp(-model.parameters[len(PRIOR) :])  # a coordinate's length scale, up to a factor
    side = length * scales / np.exp(np.log(scales).mean()) / 2
    low, high = np.clip(centre - side, 0, 1), np.clip(centre + side, 0, 1)
    candidates = low + (high - low) * qmc.Sobol(len(centre), rng=rng).random(CANDIDATES)
    # A candidate changes some 20 coordinates, and at least one.
    changed = rng.random(candidates.shape) < min(1, 20 / len(centre))
    changed[np.arange(len(changed)), rng.integers(len(centre), size=len(changed))] = True
    candidates = np.where(changed, candidates, centre)
    values, vectors = np.linalg.eigh(model.covariance(candidates))
    root = model.scale * vectors * np.sqrt(np.maximum(values, 0))
    expected = model.mean(candidates)
    taken: list[int] = []
    for _ in range(size):
        landscape = expected + root @ rng.standard_normal(CANDIDATES)
        landscape[taken] = -np.inf
        taken.append(int(np.argmax(landscape)))
    return candidates[taken]
