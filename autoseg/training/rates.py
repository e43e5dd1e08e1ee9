"""Learning rates tuned on the proxy task: which are tried, the files of their trials, and the best. No torch here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from pydantic import Field, FiniteFloat

from autoseg.errors import InputError, unknown
from autoseg.files import Document
from autoseg.training.settings import Training


class RateTrial(Document):
    """`trial-<number>.json` of a tuning: what one learning rate scored on the hold-out set."""

    SCHEMA: ClassVar[str] = "autoseg/rate/1"

    number: int = Field(ge=0)
    lr: float = Field(gt=0, allow_inf_nan=False)
    scores: dict[str, FiniteFloat] = Field(min_length=1, description="of all metrics, as shares in [0, 1]")
    diverged: bool = Field(default=False, description="whether the training collapsed")
    fingerprint: str = Field(default="", description="of everything that the scores depend on")


class TunedRates(Document):
    """`tuning.json`: the learning rate that scored best, for each metric."""

    SCHEMA: ClassVar[str] = "autoseg/tuning/1"

    loss: str
    trials: int = Field(ge=2, description="learning rates that were tried, one training each")
    best: dict[str, float] = Field(min_length=1, description="metric -> learning rate")

    def rate(self, metric: str) -> float:
        """Return the best learning rate for a metric."""
        if metric not in self.best:
            raise unknown("metric", metric, self.best, where="tuned_for")
        return self.best[metric]


def rates(low: float, high: float, trials: int) -> list[float]:
    """Return learning rates evenly between two by their logarithms, with four digits.

    >>> rates(1e-4, 1e-2, 3)
    [0.0001, 0.001, 0.01]
    """
    if not (0 < low < high < float("inf")) or trials < 2:
        found = f"found {trials} from {low:g} to {high:g}"
        raise InputError(found, where="lr", expected="two or more, between two positive numbers, the smaller first")
    return [float(f"{low * (high / low) ** (k / (trials - 1)):.4g}") for k in range(trials)]


def at_rate(training: Training, lr: float) -> Training:
    """Return the settings with another learning rate; that at the end is changed in the same proportion.

    >>> f'{at_rate(Training.of_protocol("paper-proxy"), 0.01).min_lr:g}'
    '5e-05'
    """
    return training.model_copy(update={"lr": lr, "min_lr": training.min_lr * lr / training.lr})


def trial_path(folder: str | os.PathLike[str], number: int) -> Path:
    """Return the file of a trial."""
    return Path(folder) / f"trial-{number}.json"


def select(folder: str | os.PathLike[str], loss: str, tried: list[float]) -> TunedRates:
    """Return the best of the learning rates, all of which must be scored; of equally good ones the lowest."""
    found = [RateTrial.load(trial_path(folder, number)) for number in range(len(tried))]
    for trial, lr in zip(found, tried, strict=True):
        if trial.lr != lr:
            what = f"is of the learning rate {trial.lr:g}"
            raise InputError(what, where=trial_path(folder, trial.number), expected=f"{lr:g}", cure="run it again")
    metrics = [name for name in found[0].scores if all(name in trial.scores for trial in found)]
    best = {name: max(found, key=lambda trial: (trial.scores[name], -trial.number)).lr for name in metrics}
    return TunedRates(loss=loss, trials=len(tried), best=best)
