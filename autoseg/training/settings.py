"""The settings of a training and of its task, each with its default and unit, as a user writes them. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from autoseg.data.model import LONGEST
from autoseg.errors import InputError, unknown
from autoseg.files import Part, parse
from autoseg.metrics.conventions import Conventions, LossConventions
from autoseg.training.augmentation import check_augmentation
from autoseg.training.names import check_network

Side = Annotated[int, Field(ge=8)]  # pixels; smaller images have no pixel left inside a network
Decide = Literal["argmax", "rankseg", "rankseg-iou"]
Beta = Annotated[float, Field(ge=0, lt=1)]

# Settings that came after the first results. A default of theirs is left out, so that older fingerprints stay valid.
_LATER = (
    *("augmentation", "optimiser", "schedule", "warmup", "betas", "decay_norms"),
    *("freeze_encoder", "freeze_batch_norm", "ema", "tf32"),
)


class Training(Part):
    """How a network is trained: optimiser, schedule, augmentation, and how the machine is used.

    >>> Training.of_protocol("paper-proxy", iterations=10).batch_size
    32
    """

    iterations: int = Field(ge=1, description="optimiser steps")
    batch_size: int = Field(ge=1, description="images in a step, over all processes and accumulated parts")
    crop: tuple[Side, Side] = Field(description="height and width of a training crop, pixels")
    short_side: Side = Field(description="the image's short side before scaling, pixels")
    scale: tuple[float, float] = Field(default=(0.5, 2.0), description="range of the random scale")
    max_share: float = Field(default=0.75, gt=0, le=1, description="greatest share of one class in a crop")
    flip: float = Field(default=0.5, ge=0, le=1, description="probability of a horizontal flip")
    photometric: bool = Field(default=True, description="photometric distortion")
    augmentation: str | None = Field(
        default=None,
        description="an albumentations pipeline instead of scale, max_share, flip and photometric: a .yaml or .json "
        "file in albumentations' own format, or module:callable; null: those",
    )
    test_scale: Literal["training", "original"] | tuple[Side, Side] = Field(
        default="training",
        description="size at which a trained network is scored: [greatest long side, greatest short side], pixels, the "
        "aspect kept; training: [4 x short_side, short_side]; original: as the images are",
    )
    optimiser: Literal["sgd", "adamw"] = Field(default="sgd", description="what moves the weights")
    lr: float = Field(
        default=0.02, gt=0, description="the encoder's learning rate at the start; AdamW wants about 1e-4"
    )
    min_lr: float = Field(default=1e-4, ge=0, description="the learning rate at the end")
    schedule: Literal["poly", "cosine"] = Field(default="poly", description="how the learning rate falls to min_lr")
    power: float = Field(default=0.9, gt=0, description="exponent of the polynomial decay")
    warmup: int = Field(default=0, ge=0, description="steps in which the learning rate first grows linearly to lr")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="SGD's momentum")
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.999), description="AdamW's decays of the two moments")
    weight_decay: float = Field(
        default=5e-4, ge=0, description="weight decay; AdamW's is decoupled, and wants about .01"
    )
    decay_norms: bool = Field(
        default=True, description="weight decay of norms and biases too; false: of weights with two or more axes alone"
    )
    head_lr: float = Field(default=10.0, gt=0, description="the heads' learning rate, times the encoder's")
    freeze_encoder: bool = Field(default=False, description="the encoder and its batch statistics stay as they begin")
    freeze_batch_norm: bool = Field(
        default=False, description="every batch norm's statistics, weight and bias stay as they begin"
    )
    aux_weight: float = Field(default=0.4, ge=0, description="weight of the auxiliary head's loss, the same loss")
    loss_batch: int | None = Field(
        default=None,
        ge=1,
        description="images that a loss takes its sums over; a step's loss is the mean over such groups; null: all "
        "images that are processed at once, on all processes together",
    )
    clip_gradient: float | None = Field(default=None, gt=0, description="greatest norm of the gradient; null: no limit")
    ema: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="decay of an average of the weights over the steps, which is scored and saved instead of the last "
        "weights, such as 0.999; null: no average",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of the initial heads, the batches and the dropout")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32",
        description="number format in which a network computes on a GPU; losses are computed in float32",
    )
    tf32: bool = Field(
        default=True,
        description="compute float32 convolutions in TF32 if the GPU has it (torch's default); never matrix products",
    )
    threads: int = Field(default=1, ge=1, description="CPU threads; the last digits of results depend on their number")
    accumulate: int = Field(
        default=1, ge=1, description="parts in which a batch is processed, to fit into a smaller GPU"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where to train")
    loaders: int = Field(default=2, ge=0, description="processes that load data; their number changes no result")
    channels_last: bool = Field(default=True, description="memory format on a GPU")
    compile: bool = Field(default=False, description="torch.compile the network")
    checkpoint_every: int = Field(default=500, ge=1, description="steps between checkpoints; changes no result")

    @model_validator(mode="after")
    def _consistent(self) -> Training:
        self.check_shares(1)
        if self.min_lr > self.lr:
            raise InputError(f"{self.min_lr} is greater than lr, {self.lr}", where="min_lr")
        check_augmentation(self.augmentation)
        if self.warmup >= self.iterations:
            what = f"found {self.warmup}"
            raise InputError(what, where="warmup", expected=f"less than the {self.iterations} iterations")
        if not 0 < self.scale[0] <= self.scale[1]:
            found, expected = f"found {list(self.scale)}", "two positive numbers, the smaller first"
            raise InputError(found, where="scale", expected=expected)
        if isinstance(self.test_scale, tuple) and self.test_scale[0] < self.test_scale[1]:
            raise InputError(f"found {list(self.test_scale)}", where="test_scale", expected="the long side first")
        return self

    @classmethod
    def of_protocol(cls, protocol: str, **changes: Any) -> Training:
        """Return the settings of a protocol by its name, with changes."""
        if protocol not in PROTOCOLS:
            raise unknown("protocol", protocol, PROTOCOLS)
        return parse(cls, {**PROTOCOLS[protocol][0], **changes}, f"protocol '{protocol}'")

    def check_shares(self, processes: int) -> None:
        """Refuse a batch that so many processes cannot share, in parts and in the groups of its loss."""
        shares, how = processes * self.accumulate, f"(processes {processes}, accumulate {self.accumulate})"
        if self.batch_size % shares:
            what = f"{self.batch_size} images cannot be shared out in {shares} equal parts {how}"
            raise InputError(what, where="batch_size")
        at_once = self.batch_size // shares
        if self.loss_batch is not None and at_once % self.loss_batch:
            what = f"{at_once} images at once {how} do not make groups of {self.loss_batch}"
            raise InputError(what, where="loss_batch", expected=f"a divisor of {at_once}")

    @property
    def scored_at(self) -> tuple[int, int] | None:
        """The greatest long and short side of an image that the trained network is scored on; None: as it is.

        >>> Training.of_protocol("release").scored_at
        (2048, 512)
        """
        if self.test_scale == "training":
            return LONGEST * self.short_side, self.short_side
        return None if self.test_scale == "original" else self.test_scale

    @property
    def kept_states(self) -> int:
        """How many times a network's weights take room on the disk while it trains.

        A checkpoint has the weights, what the optimiser keeps of each (SGD one number, AdamW two), and their average;
        two checkpoints are kept while a third is written.

        >>> Training.of_protocol("paper").kept_states
        6
        """
        return 3 * (2 + (self.optimiser == "adamw") + (self.ema is not None))

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings that trained weights depend on, for their fingerprint; the device's type is added to it."""
        left_out = {"loaders", "checkpoint_every", "device", "test_scale"}
        left_out |= {key for key in _LATER if getattr(self, key) == type(self).model_fields[key].default}
        return self.model_dump(mode="json", exclude=left_out)


_DEEPLAB = {"batch_size": 16, "lr": 0.007, "min_lr": 0.0, "weight_decay": 4e-5, "head_lr": 1.0}
_KEPT = (
    "not as DeepLabv3+, but as in the release: output stride 8, auxiliary loss, photometric distortion, no crop with "
    "over 75 % of one class, and images brought to the crop's short side before they are scaled"
)

PROTOCOLS: Mapping[str, tuple[dict[str, Any], str]] = {
    "paper-proxy": (
        {"iterations": 1000, "batch_size": 32, "crop": (128, 128), "short_side": 128},
        "the paper's Appendix A: 1000 iterations of 32 images at 128 x 128, lr .02 decayed by (1 - t/T)^.9 to 1e-4, "
        "momentum .9, weight decay 5e-4, heads' lr x10; augmentation and auxiliary head from the authors' release, "
        "whose proxy task has the same settings",
    ),
    "paper": (
        {"iterations": 30000, "crop": (513, 513), "short_side": 513, **_DEEPLAB},
        "the paper's Appendix A: retraining as DeepLabv3+ (Chen et al. 2018) does: 30 k iterations of 16 crops of 513, "
        f"lr .007 decayed to 0, weight decay 4e-5; {_KEPT}",
    ),
    "paper-cityscapes": (
        {"iterations": 90000, "crop": (769, 769), "short_side": 1024, **_DEEPLAB},
        "as 'paper', with the iterations and the crop that DeepLabv3+'s authors publish for Cityscapes",
    ),
    "release": (
        {"iterations": 10000, "batch_size": 32, "crop": (512, 512), "short_side": 512, "loss_batch": 8},
        "the authors' release on VOC: 10 k iterations of 32 crops of 512 over 4 GPUs, each with the loss of its own 8, "
        "lr .02, heads' lr x10, SyncBN",
    ),
    "release-cityscapes": (
        {
            "iterations": 40000,
            "batch_size": 8,
            "crop": (512, 1024),
            "short_side": 1024,
            "loss_batch": 2,
            "lr": 0.01,
            "head_lr": 1.0,
        },
        "not released; mmsegmentation's usual schedule for DeepLabv3+ on Cityscapes, over 4 GPUs, all parts at lr .01",
    ),
}


NETWORK = "a name: built-in, smp:<Architecture>/<encoder>, module:callable, or registered; see docs/training.md"
NETWORK_OPTIONS = "arguments of the smp architecture, or of the callable"
WEIGHTS = "the encoder's weights at the start: imagenet, a file, or null"
CHECKPOINT = "a file with the weights of the whole network at the start, instead of `weights`"


class Task(Part):
    """What a network is trained and scored on: data, split, network, and how."""

    data: str = Field(description="a folder made by `autoseg prepare`")
    split: str | None = Field(default=None, description="a file made by `autoseg split`; null: split.json in `data`")
    network: str = Field(description=NETWORK)
    network_options: dict[str, Any] = Field(default={}, description=NETWORK_OPTIONS)
    weights: str | None = Field(default=None, description=WEIGHTS)
    checkpoint: str | None = Field(default=None, description=CHECKPOINT)
    training: Training
    conventions: Conventions = Field(
        default=Conventions(), description="conventions of the metrics: tolerance, boundary_radius, ..."
    )
    loss_conventions: LossConventions = Field(
        default=LossConventions(), description="conventions of naive and published losses, where they differ"
    )

    @model_validator(mode="after")
    def _begins_once(self) -> Task:
        check_start(self.network, self.network_options, self.weights, self.checkpoint)
        return self

    def longer(self, times: float) -> Task:
        """Return the task with so many times the iterations."""
        training = self.training.model_copy(update={"iterations": round(times * self.training.iterations)})
        return self.model_copy(update={"training": training})


def check_start(network: str, options: Mapping[str, Any], weights: str | None, checkpoint: str | None) -> None:
    """Refuse what a training cannot begin from, as far as it shows without loading anything."""
    check_network(network, options)
    if weights is not None and checkpoint is not None:
        what = "both are given"
        raise InputError(what, where="weights and checkpoint", cure="leave one out: a checkpoint has the encoder too")
