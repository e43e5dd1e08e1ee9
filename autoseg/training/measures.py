"""What a probe is asked and what it answers, as files. No torch here: `autoseg.training.probe` measures."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, FiniteFloat

from autoseg.files import Document
from autoseg.training.settings import Task

UNMEASURED = 2
"""Steps with each loss before those that are measured: the first ones compile and allocate."""


class Asked(Document):
    """What to measure: a few steps of a task with each loss and, if wanted, a range test of learning rates."""

    SCHEMA: ClassVar[str] = "autoseg/asked/1"

    task: Task
    losses: list[str] = Field(min_length=1)
    steps: int = Field(default=4, ge=1, description="measured steps with each loss")
    range_steps: int = Field(default=0, ge=0, description="steps of the range test; 0: none")

    @property
    def all_steps(self) -> int:
        """How many steps are trained in all, if the range test does not end early."""
        return len(self.losses) * (self.steps + UNMEASURED) + self.range_steps


class Measured(Document):
    """What was measured on this machine, in seconds; and the range test."""

    SCHEMA: ClassVar[str] = "autoseg/measured/1"

    step: dict[str, FiniteFloat] = Field(description="loss -> seconds of a training step")
    image: FiniteFloat = Field(description="seconds to score an image")
    start: FiniteFloat = Field(description="seconds until a job trains: libraries, data, network")
    rates: list[FiniteFloat] = Field(default=[], description="learning rates of the range test, one a step")
    losses: list[FiniteFloat] = Field(default=[], description="cross entropy of these steps")


BELOW = 5.0
"""How far below the learning rate at which cross entropy was lowest in the range test the chosen one is."""

_SMOOTHED = 0.8


def chosen_rate(rates: list[float], losses: list[float]) -> float:
    """Return a learning rate from a range test: a part of that at which the smoothed loss was lowest, two digits.

    The loss is lowest shortly before steps become too large; a training that lasts wants smaller ones.

    >>> chosen_rate([1e-4, 1e-3, 1e-2, 1e-1], [1.0, 0.8, 0.5, 9.0])
    0.002
    """
    smoothed, average = [], 0.0
    for number, loss in enumerate(losses, start=1):
        average = _SMOOTHED * average + (1 - _SMOOTHED) * loss
        smoothed.append(average / (1 - _SMOOTHED**number))
    lowest = min(range(len(smoothed)), key=smoothed.__getitem__)
    return float(f"{rates[lowest] / BELOW:.2g}")
