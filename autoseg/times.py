"""What trials took: a file of its own beside each score, for two equal scores never take the same time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from autoseg.config import parse
from autoseg.errors import InputError
from autoseg.files import read_json, write_json


class TrialTime(BaseModel):
    """`time-<number>.json`: the seconds of a trial's training and scoring, and the device they were spent on."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal["autoseg/time/1"] = Field(default="autoseg/time/1", alias="schema")
    number: int = Field(ge=0)
    seconds: float = Field(ge=0)
    device: str = Field(description="cpu, or the GPU's name")


def write_time(step: str | os.PathLike[str], number: int, seconds: float, device: str) -> None:
    """Write a trial's time into its step's folder."""
    time = TrialTime(number=number, seconds=round(seconds, 3), device=device)
    write_json(Path(step) / f"time-{number}.json", time.model_dump(by_alias=True))


@dataclass(frozen=True)
class SearchTime:
    """What the scored trials of a search took together; `untimed` of them have no time."""

    hours: float
    devices: tuple[str, ...]
    trials: int
    untimed: int


def search_time(folder: str | os.PathLike[str]) -> SearchTime:
    """Return the device hours of a search's trials, rescored means included, as far as they were written down."""
    seconds, devices, trials, untimed = 0.0, set(), 0, 0
    for score in sorted(Path(folder).glob("*/trial-*.json")):
        trials += 1
        path = score.with_name(score.name.replace("trial-", "time-", 1))
        try:
            found = parse(TrialTime, read_json(path), path)
        except InputError:  # missing or broken: no table and no report fails for a time
            untimed += 1
            continue
        seconds += found.seconds
        devices.add(found.device)
    return SearchTime(seconds / 3600, tuple(sorted(devices)), trials, untimed)
