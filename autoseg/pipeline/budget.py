"""How a study fits into some hours: crop, trials and iterations, from measured seconds. Pure numbers.

A study is a search for each metric, a tuning of cross entropy with as many trainings, and runs of every loss with
several seeds. Its jobs fill all places that run at once, so its time is the sum of their seconds over those places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoseg.errors import InputError

RETRAINING = 2
"""How many times longer a run trains than a trial of the proxy task, and rescored answers with it.

Trials of a fifth of a run chose losses that begin fast and are overtaken (benchmarks/README.md, Real photographs).
"""

FEWEST_STEPS = 10
"""Iterations of a trial below which no time is saved by fewer: a job's start takes longer."""

ENOUGH_STEPS = 60
"""Iterations of a trial from which more trials, or larger crops, are worth more than more iterations."""

OVER = 1.25
"""How far over its time the smallest study may be by what was measured, which is no exact time either."""

LADDER = ((3, 8), (4, 8), (5, 8), (5, 12), (6, 12), (8, 12), (8, 16), (10, 16))
"""Steps and trials of a step, from few to many."""

RESCORED = 5  # the identity, the published curves, the best mean, the last one, and the model's answer, at most
_ASK = 1.5  # seconds of a job without torch: ask, select, split, a table
_AROUND = 0.3  # seconds that Snakemake adds to a job
_PAGE = 15.0  # seconds of Snakemake's start, figures and the page
_SLACK = 1.06  # places that wait for the last jobs of a step


@dataclass(frozen=True)
class Size:
    """How large a study is."""

    crop: int
    steps: int
    trials_per_step: int
    iterations: int  # of a trial

    @property
    def trainings(self) -> int:
        """The trainings of a search; a rescored answer counts as many as it is long."""
        return self.steps * self.trials_per_step + RETRAINING * RESCORED

    @property
    def run_iterations(self) -> int:
        """The iterations of a run."""
        return RETRAINING * self.iterations


@dataclass(frozen=True)
class Study:
    """What a study is made of, and what was measured of it at one crop."""

    crop: int
    step: Mapping[str, float]  # loss -> seconds of a training step
    image: float  # seconds to score an image
    start: float  # seconds until a job trains
    searched: Sequence[str]  # for each search, the loss whose step takes as long as that of its trials
    losses: Sequence[str]  # of the runs; one of a run with a tuned learning rate is there twice
    seeds: int
    hold_out: int
    val: int
    prepared: float  # seconds to prepare the data
    places: int  # jobs that run at once

    def seconds(self, size: Size) -> float:
        """Return how long the study takes."""
        area = (size.crop / self.crop) ** 2
        start = self.start + _AROUND
        jobs_of_step = min(self.places, size.trials_per_step)
        score = self.image * area * self.hold_out
        total = self.prepared + 2 * start
        scored = size.steps * size.trials_per_step + RESCORED
        for loss in self.searched:
            total += size.trainings * size.iterations * self.step[loss] * area + scored * score
            total += size.steps * (jobs_of_step * start + _ASK) + RESCORED * start / 2 + 3 * _ASK
        total += size.trainings * (size.iterations * self.step["ce"] * area + score) + self.places * start + _ASK
        for loss in self.losses:
            trained = size.run_iterations * self.step[loss] * area
            total += self.seeds * (trained + self.image * area * self.val + 2 * start)
        return _SLACK * total / self.places + _PAGE

    def fitted(self, crop: int, steps: int, trials: int, seconds: float) -> Size:
        """Return the study of so many trials with the iterations that fill the time best."""

        def size(iterations: int) -> Size:
            return Size(crop, steps, trials, iterations)

        fixed = self.seconds(size(0))
        each = self.seconds(size(1)) - fixed
        return size(max(int((seconds - fixed) / each), 0))


def plan(study: Study, crops: Sequence[int], seconds: float) -> Size:
    """Return the largest study that fits: crops and trials grow together, as long as trials are not too short."""
    pairs = [(c / len(crops) + t / len(LADDER), c, t) for c in range(len(crops)) for t in range(len(LADDER))]
    smallest = study.fitted(crops[0], *LADDER[0], seconds)
    for _, c, t in sorted(pairs, reverse=True):
        found = study.fitted(crops[c], *LADDER[t], seconds)
        if found.iterations >= ENOUGH_STEPS:
            return found
    least = Size(crops[0], *LADDER[0], FEWEST_STEPS)
    need = study.seconds(least)
    if need > OVER * seconds:
        raise InputError(
            f"{max(seconds, 0) / 60:.0f} minutes are left for the study, and the smallest takes {need / 60:.0f} here",
            where="--hours",
            cure=f"give {1.1 * need / 3600 + 0.01:.2f} or more, more `--jobs`, or a smaller `--network`",
        )
    return smallest if smallest.iterations >= FEWEST_STEPS else least
