"""The settings of one search, as a user writes them in YAML or JSON. Imports neither torch nor Optuna."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, FiniteFloat, field_validator, model_validator

from autoseg.errors import InputError, located, unknown
from autoseg.files import Part, parse, read_settings
from autoseg.losses.curves import CurveSpace
from autoseg.losses.names import parse_loss
from autoseg.losses.surrogate import FamilyName, curve_space
from autoseg.metrics import formula
from autoseg.metrics.conventions import Conventions, LossConventions
from autoseg.metrics.formula import CurveLayout
from autoseg.search.early import RULES, Early
from autoseg.search.ppo2 import PRESETS, Settings


def word_off(content: Any) -> Any:
    """Return the settings with the word `off` in the place of false: YAML reads `early: off` so."""
    off = isinstance(content, Mapping) and content.get("early") is False
    return {**content, "early": "off"} if off else content


class Search(Part):
    """One search: a target metric, the curves to search, and how to search them.

    >>> Search(metric="miou").metric
    'mIoU'
    """

    name: str = Field(default="search", description="name of the search in files and on the dashboard")
    metric: str = Field(
        description="the target metric: gAcc mAcc mIoU FWIoU BIoU BF1, another of docs/losses.md, or a registered one"
    )
    family: FamilyName = Field(
        default="bezier",
        description="the family of curves; am-lfs: no curves in the metric, but cross entropy of a probability that "
        "passes a piecewise linear function",
    )
    layout: str | None = Field(
        default=None, description="which operands have a curve of their own; null: the default of the metric"
    )
    pieces: int | None = Field(
        default=None, ge=1, description="pieces of each curve; null: the layout's, 5 (linear) or 4 (spline)"
    )
    monotone: bool = Field(default=True, description="keep the monotonicity constraint")
    truth_table: bool = Field(default=True, description="keep the truth-table constraint")
    conventions: Conventions = Field(
        default=Conventions(), description="conventions of the target metric: tolerance, boundary_radius, ..."
    )
    loss_conventions: LossConventions = Field(
        default=LossConventions(), description="conventions of the loss, where they differ from `conventions`"
    )
    initial: str | list[FiniteFloat] = Field(
        default="identity",
        description="the first mean: identity, published:<name>, the path of a surrogate.json, relative to the file "
        "that these settings are in, or theta itself",
    )
    prior: str | None = Field(
        default=None,
        description="another search with the same parameters, of another metric, data set or proxy: its trials make a "
        "starting model, trusted as far as the own trials agree; its folder, or in a pipeline its name",
    )
    sampler: Literal["ppo2", "random", "tpe", "cmaes", "gp", "am-lfs"] = Field(
        default="ppo2",
        description="sampler that proposes the trials; am-lfs: REINFORCE, and all trials of a step start from the best "
        "network of the step before",
    )
    preset: str = Field(
        default="default", description="PPO2's settings: default, paper, release, annealed or recommended"
    )
    ppo2: dict[str, Any] = Field(default={}, description="changes to the preset: sigma, clip, updates, ratio, ...")
    answer: Literal["mean", "model"] | None = Field(
        default=None,
        description="mean: the sampler's own answer, a mean or its best trial; model: the best point near that by a "
        "model of all trials; null: model with the preset recommended, else mean",
    )
    # Limits far above any search: a typing error, or a stranger's file, must not fill the memory.
    steps: int | None = Field(default=None, ge=1, le=10_000, description="T, the number of steps; null: the preset's")
    trials_per_step: int | None = Field(
        default=None, ge=2, le=100_000, description="M, trials in a step; null: the preset's"
    )
    score_last_mean: bool | None = Field(
        default=None,
        description="PPO2: run one more step, which scores the mean after step T too (Algorithm 1); null: only with "
        "the preset paper",
    )
    early: str | Early = Field(
        default="off",
        description="end trials early that will not be good: off, mild, firm, hard, or {at, good, lost, images, save}",
    )
    rescore: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="k > 0: train the identity, the k best means, the last one and the model's answer, and select the "
        "best of them",
    )
    rescore_length: float = Field(
        default=1.0,
        ge=1,
        le=1000,
        description="how many times as long as a trial an answer is trained when it is rescored: as long as the runs, "
        "and it is chosen by what it is for, as a loss that leads in short trainings need not lead in long ones",
    )
    seed: int = Field(
        default=0,
        ge=0,
        description="seed of the search; in a pipeline also of the initial heads and batches of its trials (unless "
        "`training.seed` of the proxy is given) and of its hold-out (unless `split_seed` of the data set is given)",
    )

    @model_validator(mode="before")
    @classmethod
    def _word_off(cls, content: Any) -> Any:
        return word_off(content)

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        return formula.get(value).name

    @field_validator("early", mode="before")
    @classmethod
    def _rule(cls, value: Any) -> Any:
        if isinstance(value, str | Early):
            return value
        if isinstance(value, Mapping):
            return parse(Early, value)
        keys = ", ".join(Early.model_fields)
        raise InputError(f"found {value!r}", expected=f"{', '.join(RULES)}, or keys and values: {keys}")

    @model_validator(mode="after")
    def _consistent(self) -> Search:
        for key in ("steps", "trials_per_step", "family"):
            if key in self.ppo2:
                raise InputError("is not a setting of its own here", where=f"ppo2.{key}", cure=f"set '{key}' itself")
        for key in ("preset", "ppo2", "score_last_mean"):
            if self.sampler != "ppo2" and getattr(self, key) != type(self).model_fields[key].default:
                raise InputError(f"belongs to sampler 'ppo2', not '{self.sampler}'", where=key, cure="leave it out")
        if self.sampler == "random" and self.initial != "identity":
            raise InputError("random search starts at random", where="initial", cure="leave it out")
        if self.preset not in PRESETS:
            raise unknown("PPO2 preset", self.preset, PRESETS, where="preset")
        if isinstance(self.early, str) and self.early not in RULES:
            raise unknown("rule of early rejection", self.early, RULES, where="early")
        if self.prior is not None and not (self.sampler == "ppo2" and self.settings.move == "model"):
            cure = "use `preset: recommended`, or leave it out"
            raise InputError("is a model's, and this sampler fits none", where="prior", cure=cure)
        if self.chained:
            self._check_chain()
        family = self._policy_family
        with located("ppo2"):
            Settings.preset(self.preset, family=family, **self.ppo2)
        return self

    def _check_chain(self) -> None:
        why = "does not go with sampler 'am-lfs', whose trials start from other weights in every step"
        unused = {"early": "off", "rescore": 0, "answer": self.answer if self.answer != "model" else None}
        for key, value in unused.items():
            if getattr(self, key) != value:
                raise InputError(why, where=key, cure="leave it out")
        if self.curves[2].bounded:
            cure = "set family to am-lfs, linear or spline"
            raise InputError(f"'{self.family}' is bounded, and sampler 'am-lfs' is not", where="family", cure=cure)

    @property
    def chained(self) -> bool:
        """Whether all trials of a step start from the best network of the step before."""
        return self.sampler == "am-lfs"

    @property
    def curves(self) -> tuple[str, CurveLayout, CurveSpace]:
        """The name of the layout, the layout, and the space of each of its curves."""
        return curve_space(self.metric, self.family, self.layout, self.pieces, self.monotone, self.truth_table)

    @property
    def _policy_family(self) -> str:
        return "truncated" if self.curves[2].bounded else "normal"

    @property
    def settings(self) -> Settings:
        """PPO2's settings; other samplers take their numbers of steps and trials from here too."""
        sizes = {"steps": self.steps, "trials_per_step": self.trials_per_step}
        given = {key: value for key, value in sizes.items() if value is not None}
        return Settings.preset(self.preset, family=self._policy_family, **given, **self.ppo2)

    @property
    def total_steps(self) -> int:
        """The number of steps: T, and one more if the mean after step T is scored too."""
        last = self.preset == "paper" if self.score_last_mean is None else self.score_last_mean
        return self.settings.steps + (1 if last else 0)

    @property
    def most_rescored(self) -> int:
        """How many answers are rescored at most: identity, start, best, last, model's; some may be the same."""
        starts = 1 if self.initial == "identity" else 2
        return starts + min(self.rescore, self.total_steps) + 2 if self.rescore else 0

    @property
    def rescored_trainings(self) -> float:
        """How many trainings of a trial's length the rescored answers take at most."""
        return self.most_rescored * self.rescore_length

    @property
    def answers_with_model(self) -> bool:
        """Whether the answer is the model's."""
        return self.settings.answer == "model" if self.answer is None else self.answer == "model"

    @property
    def early_rule(self) -> Early | None:
        """When trials are ended early; None: never."""
        return RULES[self.early] if isinstance(self.early, str) else self.early

    @property
    def conventions_in_loss(self) -> Conventions:
        """The conventions of the surrogates that are searched."""
        return formula.get(self.metric).loss_conventions(self.conventions, **self.loss_conventions.changes)

    @property
    def starts_from_file(self) -> bool:
        """Whether `initial` is a path."""
        given = self.initial
        return isinstance(given, str) and given != "identity" and parse_loss(given)[0].kind == "file"


def load_search(path: str | os.PathLike[str]) -> Search:
    """Read the settings of a search; a relative path in them is taken from the folder of their file."""
    search = parse(Search, read_settings(path), path)
    if search.starts_from_file:
        search = search.model_copy(update={"initial": str(Path(path).parent / str(search.initial))})
    if search.prior is not None:
        search = search.model_copy(update={"prior": str((Path(path).parent / search.prior).absolute())})
    return search
