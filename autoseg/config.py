"""Every setting, with its default and unit, in one place: what a user writes in YAML or JSON, checked whole.

Knows no algorithm: it says what may be written down, and other modules say what it does. No torch here.
"""

from __future__ import annotations

import json
import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from autoseg import formula
from autoseg.errors import InputError, unknown
from autoseg.surrogate_json import SurrogateConventions, curve_space

Model = TypeVar("Model", bound=BaseModel)
Side = Annotated[int, Field(ge=8)]  # pixels; smaller pictures vanish in a network


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
        if problem["type"] == "extra_forbidden":
            *path, last = problem["loc"]
            inside = f"{'.'.join(map(str, path))}: " if path else ""
            raise InputError(f"{where}: {inside}{unknown('key', str(last), _keys(model, path))}") from None
        message = problem["msg"].removeprefix("Value error, ")
        found = "" if problem["type"] in ("missing", "value_error") else f" (found {problem['input']!r})"
        raise InputError(f"{where}: {f'{key}: ' if key else ''}{message}{found}") from None


def _keys(annotation: Any, path: Sequence[Any]) -> list[str]:
    """Return the keys that are known at a place in a model."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        if not path:
            return [field.alias or name for name, field in fields.items()]
        return _keys(fields[path[0]].annotation, path[1:]) if path[0] in fields else _keys(annotation, path[1:])
    inner = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    if typing.get_origin(annotation) in (dict, list):
        return _keys(inner[-1], path[1:])
    of_kind = [kind for kind in inner if path and path[0] in typing.get_args(_annotation(kind, "kind"))]
    return [key for kind in of_kind or inner for key in _keys(kind, path)]


def _annotation(model: Any, field: str) -> Any:
    fields = getattr(model, "model_fields", {})
    return fields[field].annotation if field in fields else None


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
        default="identity",
        description="the first mean: identity, published:<name>, or the path of a surrogate.json, relative to the file "
        "that these settings are in",
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
        description="k > 0: train the identity, the k best means and the last one, and select the best of them",
    )
    seed: int = Field(default=0, ge=0, description="the source of all random numbers of the search")

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        return formula.get(value).name

    @model_validator(mode="after")
    def _consistent(self) -> Search:
        from autoseg.sampler import Settings  # not at the top: whoever reads a config need not load Optuna

        *_, curves = curve_space(self.metric, self.family, self.layout, self.pieces, self.monotone, self.truth_table)
        for key in ("steps", "trials_per_step", "family"):
            if key in self.ppo2:
                raise InputError(f"ppo2.{key} is not a setting of its own here: write '{key}' beside 'ppo2'.")
        if self.sampler != "ppo2" and (self.ppo2 or self.preset != "default" or self.score_last_mean):
            raise InputError(f"preset, ppo2 and score_last_mean belong to sampler 'ppo2', not '{self.sampler}'.")
        Settings.preset(self.preset, **self.ppo2, family="truncated" if curves.bounded else "normal")
        return self

    @property
    def starts_from_file(self) -> bool:
        """Whether `initial` is a path."""
        return self.initial != "identity" and self.initial.partition(":")[0].lower() not in ("published", "naive")


def load_search(path: str | os.PathLike[str]) -> Search:
    """Read the settings of a search; a relative path in them is taken from the folder of their file."""
    search = parse(Search, read(path), path)
    if search.starts_from_file:
        search = search.model_copy(update={"initial": str(Path(path).parent / search.initial)})
    return search


NETWORK_NAMES = (
    *("deeplabv3plus-r50", "deeplabv3plus-r101", "deeplabv3plus-r50c", "deeplabv3plus-r101c"),
    *("deeplabv3plus-r18", "pspnet-r101", "hrnetv2-w48", "small", "tiny"),
)
"""`autoseg.networks` has them; named here for those who check a config without torch."""


class Training(BaseModel):
    """How a network is trained: optimiser, schedule, augmentation, and what the machine does.

    >>> training("paper-proxy", iterations=10).batch_size
    32
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    iterations: int = Field(ge=1, description="optimiser steps")
    batch_size: int = Field(ge=1, description="images in a step, over all processes and accumulated parts")
    crop: tuple[Side, Side] = Field(description="height and width of a training crop, pixels")
    short_side: Side = Field(description="the image's short side before scaling, pixels")
    scale: tuple[float, float] = Field(default=(0.5, 2.0), description="range of the random scale")
    max_share: float = Field(default=0.75, gt=0, le=1, description="greatest share of one class in a crop")
    flip: float = Field(default=0.5, ge=0, le=1, description="probability of a horizontal flip")
    photometric: bool = Field(default=True, description="photometric distortion")
    lr: float = Field(default=0.02, gt=0, description="the encoder's learning rate at the start")
    min_lr: float = Field(default=1e-4, ge=0, description="the learning rate at the end")
    power: float = Field(default=0.9, gt=0, description="exponent of the polynomial decay")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="SGD's momentum")
    weight_decay: float = Field(default=5e-4, ge=0, description="SGD's weight decay")
    head_lr: float = Field(default=10.0, gt=0, description="the heads' learning rate, times the encoder's")
    aux_weight: float = Field(default=0.4, ge=0, description="weight of the auxiliary head's loss, the same loss")
    clip_gradient: float | None = Field(default=None, gt=0, description="greatest norm of the gradient; null: no limit")
    seed: int = Field(default=0, ge=0, lt=2**63, description="the source of initial heads, batches and dropout")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="of the network's arithmetic on a GPU; losses stay in float32"
    )
    threads: int = Field(default=1, ge=1, description="CPU threads; another number gives other last digits")
    accumulate: int = Field(default=1, ge=1, description="parts a batch is processed in, to fit a smaller GPU")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where to train")
    workers: int = Field(default=2, ge=0, description="processes that load data; changes no result")
    channels_last: bool = Field(default=True, description="memory format on a GPU")
    compile: bool = Field(default=False, description="torch.compile the network")
    checkpoint_every: int = Field(default=500, ge=1, description="steps between checkpoints; changes no result")

    @model_validator(mode="after")
    def _consistent(self) -> Training:
        if self.batch_size % self.accumulate:
            raise InputError(f"batch_size {self.batch_size} cannot be processed in {self.accumulate} equal parts.")
        if self.min_lr > self.lr:
            raise InputError(f"min_lr {self.min_lr} is greater than lr {self.lr}.")
        if not 0 < self.scale[0] <= self.scale[1]:
            raise InputError(f"scale is {list(self.scale)}; expected two positive numbers, the smaller first.")
        return self

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings that a result depends on, for its fingerprint."""
        # Where it trains counts by what is found there, not by how it was asked for.
        return self.model_dump(mode="json", exclude={"workers", "checkpoint_every", "device"})


PROTOCOLS: Mapping[str, tuple[dict[str, Any], str]] = {
    "paper-proxy": (
        {"iterations": 1000, "batch_size": 32, "crop": (128, 128), "short_side": 128},
        "the paper's Appendix A: 1000 iterations of 32 images at 128 x 128, lr .02 decayed by (1 - t/T)^.9 to 1e-4, "
        "momentum .9, weight decay 5e-4, heads' lr x10; augmentation and auxiliary head from the authors' release",
    ),
    "release-proxy": (
        {"iterations": 1000, "batch_size": 32, "crop": (128, 128), "short_side": 128},
        "the authors' release: as the paper's",
    ),
    "paper": (
        {
            "iterations": 30000,
            "batch_size": 16,
            "crop": (513, 513),
            "short_side": 513,
            "lr": 0.007,
            "min_lr": 0.0,
            "weight_decay": 4e-5,
            "head_lr": 1.0,
        },
        "the paper's Appendix A: retraining as DeepLabv3+ (Chen et al. 2018) does: 30 k iterations of 16 crops of 513, "
        "lr .007 decayed to 0, weight decay 4e-5",
    ),
    "paper-cityscapes": (
        {
            "iterations": 90000,
            "batch_size": 16,
            "crop": (769, 769),
            "short_side": 1024,
            "lr": 0.007,
            "min_lr": 0.0,
            "weight_decay": 4e-5,
            "head_lr": 1.0,
        },
        "as 'paper', with the iterations and the crop that DeepLabv3+'s authors publish for Cityscapes",
    ),
    "release": (
        {"iterations": 10000, "batch_size": 32, "crop": (512, 512), "short_side": 512},
        "the authors' release on VOC: 10 k iterations of 32 crops of 512 over 4 GPUs, lr .02, SyncBN",
    ),
    "release-cityscapes": (
        {"iterations": 40000, "batch_size": 8, "crop": (512, 1024), "short_side": 1024, "lr": 0.01},
        "not released; mmsegmentation's usual schedule for DeepLabv3+ on Cityscapes",
    ),
}


def training(protocol: str, **changes: Any) -> Training:
    """Return the training settings of a protocol by name, with changes."""
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    return parse(Training, {**PROTOCOLS[protocol][0], **changes}, f"protocol '{protocol}'")


class Task(BaseModel):
    """What a network is trained and scored on: data, split, network, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str = Field(description="a folder made by `autoseg prepare`")
    split: str | None = Field(default=None, description="a file made by `autoseg split`; null: split.json in `data`")
    network: str = Field(description="see `autoseg.networks.NETWORKS`")
    weights: str | None = Field(default=None, description="the encoder's: imagenet, a file, or null")
    training: Training
    conventions: SurrogateConventions = Field(
        default=SurrogateConventions(), description="of the metrics that score: tolerance, boundary_radius, ..."
    )
