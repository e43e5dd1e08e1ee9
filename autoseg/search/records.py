"""The JSON files of a search: what a step tries, and what each trial scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, FiniteFloat, model_validator

from autoseg.errors import InputError
from autoseg.files import Document, Part
from autoseg.search.early import Look, Seen
from autoseg.search.ppo2 import Array
from autoseg.search.settings import Search
from autoseg.versions import SEARCH_VERSION

StepName = int | Literal["rescore"]


class Trial(Part):
    """A proposal: the trial's number, unique in the search, and its parameters."""

    number: int = Field(ge=0)
    theta: list[FiniteFloat]

    def agrees_with(self, other: Trial) -> bool:
        """Whether the parameters are the same; the last digits may differ between machines."""
        return len(self.theta) == len(other.theta) and np.allclose(self.theta, other.theta, rtol=0, atol=1e-9)


class Start(Part):
    """The network that all trials of a chained step start from: the best of the step before."""

    trial: int = Field(ge=0, description="the number of the trial that trained it")
    weights: str = Field(description="checksum of its file")


class PriorTrials(Part):
    """The trials of another search, from which a search starts with a model."""

    names: list[str] = Field(description="of the parameters, as in this search")
    thetas: list[list[FiniteFloat]] = Field(min_length=2)
    scores: list[FiniteFloat]

    @model_validator(mode="after")
    def _consistent(self) -> PriorTrials:
        if len(self.thetas) != len(self.scores) or {len(theta) for theta in self.thetas} != {len(self.names)}:
            raise InputError("names, thetas and scores do not fit together", where="prior")
        return self


class Proposals(Document):
    """`proposals.json`: what one step tries, and the settings that decide it, so that no other file is needed."""

    SCHEMA: ClassVar[str] = "autoseg/proposals/2"
    CURE: ClassVar[str] = "delete it, and have the step asked for again"

    search: Search = Field(description="the settings that decide the proposals, all written out")
    version: int = Field(default=SEARCH_VERSION, description="of the algorithm that proposed")
    step: StepName
    mu: list[FiniteFloat] | None = Field(default=None, description="the mean that is sampled around, if there is one")
    after: str | None = Field(
        default=None,
        description="where a model was fitted: the fingerprint of all trials and scores before, from which it follows",
    )
    trials: list[Trial] = Field(min_length=1)
    looks: list[Look] = Field(
        default=[], description="where trials can be ended early: when they are scored on the way, and the bars"
    )

    prior: PriorTrials | None = Field(
        default=None, description="in the first step of a search that was given them: the trials of another search"
    )

    start: Start | None = Field(
        default=None, description="in a chained search, from its second step on: the network that its trials start from"
    )

    length: float = Field(default=1.0, ge=1, description="how many times as long as a trial these are trained")

    def content(self) -> dict[str, Any]:
        """Return what is written to the file; `looks`, `prior`, `start` and `length` only where they say something."""
        unused: dict[str, Any] = {"looks": [], "prior": None, "start": None, "length": 1.0}
        return {key: value for key, value in super().content().items() if key not in unused or value != unused[key]}

    @model_validator(mode="after")
    def _consistent(self) -> Proposals:
        if len({len(trial.theta) for trial in self.trials}) != 1:
            raise InputError("the trials have thetas of different lengths", where="trials")
        if len({trial.number for trial in self.trials}) != len(self.trials):
            raise InputError("two trials have the same number", where="trials")
        if self.mu is not None and len(self.mu) != len(self.trials[0].theta):
            what = f"has {len(self.mu)} numbers, theta {len(self.trials[0].theta)}"
            raise InputError(what, where="mu", expected="as many")
        return self

    def agrees_with(self, other: Proposals) -> bool:
        """Whether both propose the same; the last digits may differ between machines, and a search may be renamed.

        Where a model was fitted, they may differ more: both propose the same if they follow from the same scores.
        """
        same = (self.step, self.version, _nameless(self.search)) == (other.step, other.version, _nameless(other.search))
        if (
            not same
            or (self.start, self.length) != (other.start, other.length)
            or [trial.number for trial in self.trials] != [trial.number for trial in other.trials]
        ):
            return False
        if self.after is not None and self.after == other.after:
            return True
        same = all(a.agrees_with(b) for a, b in zip(self.trials, other.trials, strict=True))
        return same and self.looks == other.looks


def _nameless(search: Search) -> Search:
    return search.model_copy(update={"name": ""})


class TrialScore(Document):
    """`trial-<number>.json`: what one trial scored on the hold-out set."""

    SCHEMA: ClassVar[str] = "autoseg/trial/1"

    number: int = Field(ge=0)
    metric: str = Field(description="the metric that the search maximises")
    score: FiniteFloat | None = Field(
        description="of that metric, on the proxy task a share in [0, 1]; null: a collapsed training without a score, "
        "which counts as the step's worst"
    )
    scores: dict[str, FiniteFloat] = Field(default={}, description="of all metrics, as shares in [0, 1]")
    diverged: bool = Field(default=False, description="whether the training collapsed")
    partial: dict[str, FiniteFloat] = Field(
        default={}, description="scores of the metric on the way, on part of the hold-out, by the share of the training"
    )
    ended: float | None = Field(
        default=None, description="the share of the training after which the trial was ended: its score is a prediction"
    )
    weights: str | None = Field(
        default=None, description="in a chained search: the checksum of weights-<number>.safetensors, its network"
    )
    fingerprint: str = Field(default="", description="of everything that the score depends on")

    def content(self) -> dict[str, Any]:
        """Return what is written to the file; nothing of early rejection or of a network that is not kept."""
        unused = [*([] if self.partial else ["partial", "ended"]), *([] if self.weights else ["weights"])]
        return {key: value for key, value in super().content().items() if key not in unused}

    @model_validator(mode="after")
    def _consistent(self) -> TrialScore:
        if self.ended is not None and not self.partial:
            raise InputError("the trial was ended, but has no score on the way", where="partial")
        if self.score is None and not self.diverged:
            raise InputError("is null, but the trial has not diverged", where="score", expected="a number")
        return self


class ChunkScores(Document):
    """`chunk-<k>-of-<n>.json`: written when all trials of a job are scored; each score as it was then."""

    SCHEMA: ClassVar[str] = "autoseg/chunk/1"

    # By these names files are looked for, and set aside: only a step's own may be meant.
    scores: dict[Annotated[str, Field(pattern=r"^trial-\d{1,18}\.json$")], str] = Field(
        description="the checksum of each trial's file, by its name"
    )


@dataclass(frozen=True)
class Scored:
    """A step that is done: its proposals and, in their order, its scores; and what was seen of them on the way, and the
    files that all is from.

    The score of a trial that was ended is what was expected of it.
    """

    proposals: Proposals
    scores: tuple[float, ...]
    seen: tuple[Seen, ...] = ()
    files: tuple[TrialScore, ...] = ()

    @property
    def ended(self) -> list[bool]:
        """Which trials were ended early."""
        return [trial.ended is not None for trial in self.seen] or [False] * len(self.scores)

    @property
    def doubts(self) -> list[float]:
        """How far off the score of each trial may be: of one that was ended, the doubt of what was expected."""
        known = {look.name: look.doubt for look in self.proposals.looks}
        return [known[trial.ended] if trial.ended else 0.0 for trial in self.seen] or [0.0] * len(self.scores)

    @property
    def best(self) -> TrialScore:
        """The file of the trial with the best score; of several, the first."""
        return self.files[int(np.argmax(self.scores))]

    @property
    def thetas(self) -> Array:
        """The parameters, one row per trial."""
        return np.array([trial.theta for trial in self.proposals.trials])

    @property
    def average(self) -> float:
        """The step's average score."""
        return float(np.mean(self.scores))
