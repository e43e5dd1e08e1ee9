"""Every setting, with its default and unit, in one place: what a user writes in YAML or JSON, checked whole.

Knows no algorithm: it says what may be written down, and other modules say what it does. No torch here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from autoseg import formula
from autoseg.errors import InputError, unknown
from autoseg.surrogate_json import SurrogateConventions, curve_space

Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], content: Any, where: str | os.PathLike[str]) -> Model:
    """Return `content` as a checked model; what is wrong is named with the file and the key, and the nearest key.

    >>> parse(Search, {"metric": "mIoU", "samplr": "tpe"}, "search.yaml")
    Traceback (most recent call last):
    autoseg.errors.InputError: search.yaml: unknown key 'samplr'; did you mean 'sampler'? Known: ...
    """
    if not isinstance(content, Mapping):
        raise InputError(f"{where}: expected keys and values, found {type(content).__name__}.")
    try:
        return model.model_validate(dict(content))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
            known = [field.alias or name for name, field in model.model_fields.items()]
            raise InputError(f"{where}: {unknown('key', key, known)}") from None
        message = problem["msg"].removeprefix("Value error, ")
        found = "" if problem["type"] in ("missing", "value_error") else f" (found {problem['input']!r})"
        raise InputError(f"{where}: {f'{key}: ' if key else ''}{message}{found}") from None


def read(path: str | os.PathLike[str]) -> Any:
    """Return the content of a YAML or JSON file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not readable ({error}).") from None
    if str(path).endswith(".json"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise InputError(f"{path}: not readable as JSON ({error}).") from None
    try:
        import yaml
    except ImportError:
        raise InputError(f"{path}: reading YAML needs the package pyyaml; install it, or write JSON.") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not readable as YAML ({' '.join(str(error).split())}).") from None


class Search(BaseModel):
    """One search: a target metric, the curves to search, and how to search them.

    >>> Search(metric="miou").metric
    'mIoU'
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(default="search", description="what the search is called in files and on the dashboard")
    metric: str = Field(description="the target metric: gAcc mAcc mIoU FWIoU BIoU BF1, or a registered one")
    family: Literal["bezier", "linear"] = Field(default="bezier", description="the family of curves")
    layout: str | None = Field(default=None, description="which operands have a curve; null: the metric's default")
    pieces: int | None = Field(default=None, ge=1, description="pieces of each curve; null: the layout's or 5 (linear)")
    monotone: bool = Field(default=True, description="keep the monotonicity constraint")
    truth_table: bool = Field(default=True, description="keep the truth-table constraint")
    conventions: SurrogateConventions = Field(
        default=SurrogateConventions(), description="what a formula leaves open: tolerance, boundary_radius, ..."
    )
    initial: str = Field(
        default="identity", description="the first mean: identity, published:<name>, or the path of a surrogate.json"
    )
    sampler: Literal["ppo2", "random", "tpe", "cmaes", "gp"] = Field(default="ppo2", description="who proposes")
    preset: str = Field(default="default", description="PPO2's settings: default, paper, release or annealed")
    ppo2: dict[str, Any] = Field(default={}, description="changes to the preset: sigma, clip, updates, ratio, ...")
    steps: int | None = Field(default=None, ge=1, description="T, the number of steps; null: the preset's")
    trials_per_step: int | None = Field(default=None, ge=2, description="M, trials in a step; null: the preset's")
    score_last_mean: bool = Field(
        default=False, description="PPO2: run one step more, so that the mean after step T competes (Algorithm 1)"
    )
    rescore: int = Field(
        default=0,
        ge=0,
        description="k > 0: train the first mean, the k best and the last one themselves, and select the best of them",
    )
    seed: int = Field(default=0, ge=0, description="the source of all random numbers of the search")

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        return formula.get(value).name

    @model_validator(mode="after")
    def _consistent(self) -> Search:
        from autoseg.sampler import Settings  # not at the top: whoever reads a config need not load Optuna

        curve_space(self.metric, self.family, self.layout, self.pieces, self.monotone, self.truth_table)
        for key in ("steps", "trials_per_step", "family"):
            if key in self.ppo2:
                raise InputError(f"ppo2.{key} is not a setting of its own here: write '{key}' beside 'ppo2'.")
        if self.sampler != "ppo2" and (self.ppo2 or self.preset != "default" or self.score_last_mean):
            raise InputError(f"preset, ppo2 and score_last_mean belong to sampler 'ppo2', not '{self.sampler}'.")
        Settings.preset(self.preset, **self.ppo2)
        return self


def load_search(path: str | os.PathLike[str]) -> Search:
    """Read the settings of a search."""
    return parse(Search, read(path), path)
