"""Recorded trials (`benchmarks.search_record`), replayed: a model of them is the landscape, with the measured noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from autoseg.files import read_json
from autoseg.search.model import fit
from benchmarks.search_landscapes import Remembered

RECORDED = Path(__file__).parent / "recorded"


class Record:
    """The trials of one file: theta, final score, scores after 1/4 and 1/2 of the steps, and the noise of a score."""

    def __init__(self, path: Path) -> None:
        content, self.name = read_json(path), path.stem
        metric = content["metric"]
        first = [trial for trial in content["trials"] if trial["seed"] == 0]
        self.thetas = np.array([trial["theta"] for trial in first])
        self.scores, self.half, self.quarter = (
            np.array([trial[key][metric] for trial in first]) for key in ("scores", "scores 1/2", "scores 1/4")
        )
        # With common random numbers only what a seed does to one theta, and not to all of them, is noise.
        several: dict[int, dict[int, float]] = {}
        for trial in content["trials"]:
            several.setdefault(trial["number"], {})[trial["seed"]] = trial["scores"][metric]
        whole = [scores for scores in several.values() if len(scores) == 4]
        found = np.array([[scores[seed] for seed in range(4)] for scores in whole])
        left = found - found.mean(axis=0) - found.mean(axis=1, keepdims=True) + found.mean()
        self.repeated = len(found)
        self.noise = float(np.sqrt((left**2).sum() / (3 * (len(found) - 1))))
        self.model = fit(self.thetas, self.scores, np.full(self.thetas.shape[1], 0.5), 0.2)

    def held_out(self, parts: int = 5) -> float:
        """Return the share of the variance of scores that a model without them predicts."""
        number = np.arange(len(self.scores)) % parts
        error = np.empty_like(self.scores)
        for part in range(parts):
            inside = number == part
            model = fit(self.thetas[~inside], self.scores[~inside], self.model.centre, 0.2)
            error[inside] = self.scores[inside] - model.mean(self.thetas[inside])
        return float(1 - (error**2).mean() / self.scores.var())

    def lost(self, early: np.ndarray, share: float) -> float:
        """Return the share of the best quarter that is lost if the worst by an early score are ended."""
        ended = early < np.quantile(early, share)
        best = self.scores >= np.quantile(self.scores, 0.75)
        return float((ended & best).sum() / best.sum())

    def described(self) -> str:
        """Return a paragraph of what the trials say."""
        ranks = {name: _ranks(getattr(self, name)) for name in ("scores", "half", "quarter")}
        rho = {name: np.corrcoef(ranks[name], ranks["scores"])[0, 1] for name in ("half", "quarter")}
        return (
            f"**Recorded: {self.name}.** {len(self.scores)} real trials (`python -m benchmarks.search_record`), scores "
            f"{self.scores.min():.3f} to {self.scores.max():.3f}, standard deviation {self.scores.std():.3f}; noise "
            f"{self.noise:.3f} ({self.repeated} of them with four seeds, what a seed does to all of them taken off). A "
            f"model of them predicts {100 * self.held_out():.0f} % of the variance of held-out ones. Rank correlation "
            f"with the final score: {rho['quarter']:.2f} after a quarter of the steps, {rho['half']:.2f} after a half. "
            f"Ending the worst half by the score after a half of the steps loses {100 * self.lost(self.half, 0.5):.0f} "
            f"% of the best quarter; after a quarter of the steps {100 * self.lost(self.quarter, 0.5):.0f} %. "
            "Replayed, the landscape is a model of the kind that answers, which flatters the model's answers."
        )


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values))


class Replayed(Remembered):
    """The model of recorded trials as a landscape, with their noise; its best point is the model's."""

    def __init__(self, record: Record, seed: int) -> None:
        dimensions = record.thetas.shape[1]
        super().__init__("bowl", dimensions, seed)  # which has its start
        self.record = record
        self.optimum = record.model.best(np.zeros(dimensions), np.ones(dimensions))
        self.best = float(record.model.mean(self.optimum)[0])

    def regret(self, theta: Any) -> float:
        """How far theta's score by the model lies below the best one."""
        return self.best - float(self.record.model.mean(np.asarray(theta))[0])

    def score(self, theta: Any, number: int) -> float:
        """What a trial of this number would report."""
        noise = np.random.default_rng([99, self.seed, number]).normal()
        self.thetas.append(np.array(theta, float))
        self.scores.append(self.best - self.regret(theta) + self.record.noise * float(noise))
        return self.scores[-1]
