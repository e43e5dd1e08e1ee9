"""Recorded trials (`benchmarks.search_record`), replayed: models of them are the landscape, with the measured noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from autoseg.files import read_json
from autoseg.search.model import Model, fit
from benchmarks.search_landscapes import Remembered

RECORDED = Path(__file__).parent / "recorded"
SHARES = {"0.25": "scores 1/4", "0.5": "scores 1/2", "1": "scores"}
"""The shares of the training after which recorded trials were scored, and the keys of these scores."""


class Record:
    """The trials of one file: theta, final score, scores after 1/4 and 1/2 of the steps, and the noise of a score.

    Trials are recorded with the curves of one metric, and scored with six: each of these is a landscape of its own.
    """

    def __init__(self, path: Path, metric: str | None = None) -> None:
        content, self.name = read_json(path), path.stem
        self.metric = metric = metric or content["metric"]
        self.trials = len(content["trials"])
        first = [trial for trial in content["trials"] if trial["seed"] == 0]
        self.thetas = np.array([trial["theta"] for trial in first])
        self.scored = {share: np.array([t[key][metric] for t in first]) for share, key in SHARES.items()}
        self.scores = self.scored["1"]
        # With common random numbers only what a seed does to one theta, and not to all of them, is noise.
        several: dict[int, dict[int, list[float]]] = {}
        for trial in content["trials"]:
            found = [trial[key][metric] for key in SHARES.values()]
            several.setdefault(trial["number"], {})[trial["seed"]] = found
        whole = [scores for scores in several.values() if len(scores) == 4]
        table = np.array([[scores[seed] for seed in range(4)] for scores in whole])
        left = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean(axis=(0, 1))
        self.repeated = len(table)
        # Of the scores after 1/4, 1/2 and all of the steps, together: a lucky half is often a lucky whole.
        self.covariance = np.einsum("nsi,nsj->ij", left, left) / (3 * (len(table) - 1))
        self.noise = float(np.sqrt(self.covariance[-1, -1]))

    def model(self, share: str = "1") -> Model:
        """Return the model of the scores after a share of the steps."""
        return _model(self, share)

    def held_out(self, parts: int = 5) -> float:
        """Return the share of the variance of scores that a model without them predicts."""
        number = np.arange(len(self.scores)) % parts
        error = np.empty_like(self.scores)
        for part in range(parts):
            inside = number == part
            model = fit(self.thetas[~inside], self.scores[~inside], self.model().centre, 0.2)
            error[inside] = self.scores[inside] - model.mean(self.thetas[inside])
        return float(1 - (error**2).mean() / self.scores.var())

    def rank_correlation(self, share: str) -> float:
        """Return how well the order of the scores after a share of the steps is that of the final ones."""
        return float(np.corrcoef(_ranks(self.scored[share]), _ranks(self.scores))[0, 1])


@cache
def _model(record: Record, share: str) -> Model:
    return fit(record.thetas, record.scored[share], np.full(record.thetas.shape[1], 0.5), 0.2)


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values))


class Replayed(Remembered):
    """The model of recorded trials as a landscape, with their noise; its best point is the model's.

    With `seeds` a trial is the mean of so many trainings with other seeds.
    """

    def __init__(self, record: Record, seed: int, seeds: int = 1) -> None:
        dimensions = record.thetas.shape[1]
        super().__init__("bowl", dimensions, seed)  # which has its start
        self.record, self.seeds = record, seeds
        self.optimum = record.model().best(np.zeros(dimensions), np.ones(dimensions))
        self.best = float(record.model().mean(self.optimum)[0])

    def regret(self, theta: Any) -> float:
        """How far theta's score by the model lies below the best one."""
        return self.best - float(self.record.model().mean(np.asarray(theta))[0])

    def watched(self, theta: Any, number: int, shares: Sequence[str] = tuple(SHARES)) -> list[float]:
        """What a trial of this number would report after these shares of its steps."""
        rng = np.random.default_rng([99, self.seed, number])
        noise = rng.multivariate_normal(np.zeros(3), self.record.covariance / self.seeds)
        place, known = np.asarray(theta), list(SHARES)
        return [float(self.record.model(share).mean(place)[0] + noise[known.index(share)]) for share in shares]

    def score(self, theta: Any, number: int) -> float:
        """What a trial of this number would report."""
        self.thetas.append(np.array(theta, float))
        self.scores.append(self.watched(theta, number, ("1",))[0])
        return self.scores[-1]
