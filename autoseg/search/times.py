"""The times of trials, in files beside the scores: equal trainings have equal score files, but not equal times."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from autoseg.errors import InputError
from autoseg.files import Document


class TrialTime(Document):
    """`time-<number>.json`: the seconds of a trial's training and scoring, and the device they were spent on."""

    SCHEMA: ClassVar[str] = "autoseg/time/1"

    number: int = Field(ge=0)
    seconds: float = Field(ge=0)
    device: str = Field(description="cpu, or the GPU's name")
    trained: float = Field(
        default=1.0, gt=0, le=1, description="the share of the training; below 1: it was ended early"
    )


def write_time(step: str | os.PathLike[str], number: int, seconds: float, device: str, trained: float = 1.0) -> None:
    """Write a trial's time into its step's folder."""
    time = TrialTime(number=number, seconds=round(seconds, 3), device=device, trained=trained)
    time.save(Path(step) / f"time-{number}.json")


class Timing(Document):
    """`timing.json`: the seconds of a trial, measured before a search of some hours; its plan follows from them."""

    SCHEMA: ClassVar[str] = "autoseg/timing/1"
    CURE: ClassVar[str] = "delete it, and have a trial timed again"

    first: float = Field(gt=0, description="seconds of the first trial of a process, which loads much")
    later: float = Field(gt=0, description="seconds of each later one")
    device: str = Field(description="cpu, or the GPU's name")

    def seconds(self, trials_per_job: int) -> float:
        """Return the seconds of a trial on average, in jobs of so many."""
        return (self.first + (trials_per_job - 1) * self.later) / trials_per_job


@dataclass(frozen=True)
class SearchTime:
    """The time of all scored trials of a search together; `untimed` of them have no time file, `ended` ended early."""

    hours: float
    devices: tuple[str, ...]
    trials: int
    untimed: int
    ended: int = 0


def search_time(folder: str | os.PathLike[str]) -> SearchTime:
    """Return the device hours of a search's trials, rescored means included, as far as there are time files."""
    seconds, devices, trials, untimed, ended = 0.0, set(), 0, 0, 0
    for score in sorted(Path(folder).glob("*/trial-*.json")):
        trials += 1
        path = score.with_name(score.name.replace("trial-", "time-", 1))
        try:
            found = TrialTime.load(path)
        except InputError:  # missing or broken; a table or report must not fail because of a time
            untimed += 1
            continue
        seconds += found.seconds
        devices.add(found.device)
        ended += found.trained < 1
    return SearchTime(seconds / 3600, tuple(sorted(devices)), trials, untimed, ended)
