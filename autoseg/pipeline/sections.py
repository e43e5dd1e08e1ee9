"""The sections of a config that say how things are made: data sets, proxy tasks, searches, retrainings.

A section knows its own keys; `autoseg.pipeline.config` checks that the sections fit together.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from autoseg.data.kinds import KINDS, USUAL_HOLD_OUTS, Kind, OnDisk, kind_of
from autoseg.data.split import HoldOut, hold_out_size
from autoseg.errors import InputError
from autoseg.files import Part, parse
from autoseg.losses.names import check_loss
from autoseg.metrics import formula
from autoseg.metrics.conventions import Conventions, LossConventions
from autoseg.pipeline.outputs import Name
from autoseg.pipeline.partial import Fillable, Partial, keys_of
from autoseg.search.settings import Search, word_off
from autoseg.training.settings import CHECKPOINT, NETWORK, NETWORK_OPTIONS, WEIGHTS, Training, check_start


def _options_by_kind(schema: dict[str, Any]) -> None:
    """Add to the JSON schema which options a data set's kind has."""
    schema["allOf"] = [
        {
            "if": {"properties": {"kind": {"const": name}}},
            "then": {"properties": {"options": kind.model_json_schema()}},
        }
        for name, kind in KINDS.items()
    ]


class Dataset(Part):
    """A data set to prepare, and its hold-out."""

    model_config = ConfigDict(json_schema_extra=_options_by_kind)

    kind: str = Field(description=", ".join(KINDS), json_schema_extra={"enum": list(KINDS)})
    options: dict[str, Any] = Field(default={}, description="options of the kind, see below")
    proxy_size: int = Field(default=128, ge=8, description="crop of the proxy task, pixels")
    hold_out: HoldOut | None = Field(
        default=None,
        description=f"images held out: a number, or a share such as 0.2 or 20%; null: {USUAL_HOLD_OUTS}",
    )
    split_seed: int | None = Field(
        default=None, ge=0, description="seed of the hold-out of all searches; null: each search uses its own seed"
    )
    conventions: Conventions = Field(
        default=Conventions(),
        description="conventions of the metrics; drop_background is false by default for cityscapes (class 0 is road)",
    )
    loss_conventions: LossConventions = Field(
        default=LossConventions(),
        description="conventions of searched, naive and published losses, where they differ from `conventions`",
    )

    @cached_property
    def metric_conventions(self) -> Conventions:
        """The conventions of the metrics on this data set."""
        return self.conventions.on_data(kind_of(self.kind).HAS_BACKGROUND)

    @cached_property
    def source(self) -> Kind:
        """The checked options, by which the data set is found."""
        return parse(kind_of(self.kind), self.options, "options")

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Dataset:
        if not isinstance(self.source, OnDisk):  # files on disk are counted before the first job starts
            self.check_hold_out()
        return self

    def check_hold_out(self) -> None:
        """Refuse a hold-out that does not fit into the training set."""
        hold_out_size(self.hold_out, self.kind, self.source.count("train"))


@keys_of(Training)
class SomeTraining(Partial):
    """Changes to the training settings of a protocol."""


class _Trained(Part):
    network: str = Field(description=NETWORK)
    network_options: dict[str, Any] = Field(default={}, description=NETWORK_OPTIONS)
    weights: str | None = Field(default=None, description=WEIGHTS)
    checkpoint: str | None = Field(default=None, description=CHECKPOINT)
    protocol: str
    training: SomeTraining = Field(default=SomeTraining(), description="changes to the protocol")

    @model_validator(mode="after")
    def _allowed(self) -> _Trained:
        check_start(self.network, self.network_options, self.weights, self.checkpoint)
        for key in ("device", "loaders"):
            if key in self.training.model_fields_set:
                what = "is the same for all trainings"
                raise InputError(what, where=f"training.{key}", cure=f"set '{key}' at the top of the config")
        return self


class Proxy(_Trained):
    """What a search trains: a network and its settings."""

    protocol: str = Field(default="paper-proxy", description="training settings by name; the release has the same")
    size: int | None = Field(default=None, ge=8, description="crop, pixels; null: the data set's proxy_size")

    @model_validator(mode="after")
    def _cropped_to_its_size(self) -> Proxy:
        for key in ("crop", "short_side"):
            if key in self.training.model_fields_set:
                what = "follows from the size of the proxy, for which the cache is made"
                raise InputError(what, where=f"training.{key}", cure="set `size` of the proxy instead")
        return self


@keys_of(Conventions, Fillable())
class SomeConventions(Partial):
    """Changes to the conventions of a data set."""


@keys_of(LossConventions, Fillable())
class SomeLossConventions(Partial):
    """Changes to the conventions of the losses on a data set."""


@keys_of(Search, Fillable())
class SomeSearch(Partial):
    """The settings of a search; the others are the preset's, or the defaults."""

    conventions: SomeConventions = Field(default=SomeConventions(), description="changes to those of the data set")
    loss_conventions: SomeLossConventions = Field(
        default=SomeLossConventions(), description="changes to those of the data set's losses"
    )

    @model_validator(mode="before")
    @classmethod
    def _word_off(cls, content: Any) -> Any:
        return word_off(content)


class SearchPlan(Part):
    """A search of the pipeline: its data set, proxy task and settings, and how many trials a job has."""

    dataset: Name = Field(description="one of `datasets`")
    proxy: Name = Field(description="one of `proxies`")
    trials_per_job: Annotated[int, Fillable()] = Field(
        default=4, ge=1, description="trials that one job trains, one after the other"
    )
    hours: Annotated[float | None, Fillable()] = Field(
        default=None,
        gt=0,
        description="hours of one device that its trials may take: a trial is timed first, and the steps and trials "
        "that its settings leave open follow; null: they are the settings'",
    )
    search: SomeSearch = Field(description="metric, steps, trials_per_step, ...")
    values: dict[str, list[Any]] = Field(
        default={}, alias="for", description="write this search once for every combination; {name} is the value"
    )

    @model_validator(mode="after")
    def _called_by_its_key(self) -> SearchPlan:
        if "name" in self.search.model_fields_set:
            raise InputError("the name of a search is its key", where="search.name", cure="leave it out")
        if self.hours is not None and {"steps", "trials_per_step"} <= self.search.model_fields_set:
            what = "steps and trials_per_step are given, so there is nothing to plan"
            raise InputError(what, where="hours", cure="leave one of the three out")
        return self


class Tuning(Part):
    """A learning rate tuned on the proxy task, with one loss: a rival of a search with as many trainings."""

    dataset: Name = Field(description="one of `datasets`")
    proxy: Name = Field(description="one of `proxies`")
    loss: str = Field(default="ce", description="what is trained with; no searched loss")
    lr: tuple[float, float] = Field(description="lowest and highest learning rate; evenly between them by their logs")
    trials: int = Field(ge=2, le=10_000, description="how many learning rates are tried, one training each")
    trials_per_job: int = Field(default=4, ge=1, description="trials that one job trains, one after the other")

    @model_validator(mode="after")
    def _can_be_tuned(self) -> Tuning:
        if not 0 < self.lr[0] < self.lr[1]:
            expected = "two positive numbers, the smaller first"
            raise InputError(f"found {list(self.lr)}", where="lr", expected=expected)
        check_loss(self.loss, ())
        return self


class Retraining(_Trained):
    """How a run is trained and evaluated."""

    protocol: str = Field(default="{preset}", description="training settings by name; {preset}: the preset's, or paper")
    source: Literal["files", "cache"] = Field(default="files", description="read original files, or the proxy's cache")
    window: tuple[int, int] | None = Field(
        default=None, description="height and width of the sliding window in the evaluation; null: whole images"
    )
    processes: int = Field(default=1, ge=1, description="GPUs (on a CPU: processes) that train together")
    tuning: Name | None = Field(default=None, description="one of `tunings`, whose learning rate is taken; null: none")
    tuned_for: str = Field(default="mIoU", description="the metric for which that learning rate was the best")

    @model_validator(mode="after")
    def _fits(self) -> Retraining:
        if "seed" in self.training.model_fields_set:
            what = "the seeds of runs are those of the table"
            raise InputError(what, where="training.seed", cure="set `seeds` in the table")
        formula.get(self.tuned_for)
        if self.window is not None and min(self.window) < 32:
            raise InputError(f"found {list(self.window)}", where="window", expected="at least 32 x 32 pixels")
        return self
