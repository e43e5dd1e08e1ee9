"""What the presets of `workflow/config/paper.yaml` do, in words: read from the code, for the table of docs/fidelity.md.

The config is expanded under a preset; settings are those of its protocols, networks are built, functions are asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import nn

from autoseg.data.augment import Augmentation, CenterView, WholeView
from autoseg.data.cache import resize_mask, shrink
from autoseg.losses.build import build_loss
from autoseg.losses.names import parse_loss
from autoseg.losses.surrogate_loss import SurrogateLoss
from autoseg.metrics.conventions import Conventions
from autoseg.metrics.formula import METRICS
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.expansion import load_pipeline
from autoseg.training.encoders import Block
from autoseg.training.networks import NETWORKS, Network, build_network
from autoseg.training.settings import Training

CONFIG = Path(__file__).parents[1] / "workflow/config/paper.yaml"
_DEPTHS = {(3, 4, 6, 3): "ResNet-50", (3, 4, 23, 3): "ResNet-101"}
_CLASSES = 21  # VOC's


@cache
def _without_numbers(name: str) -> Network:
    with torch.device("meta"):
        return build_network(name, _CLASSES)


@cache
def _first_deviation(name: str) -> float:
    torch.manual_seed(0)
    network: Any = _without_numbers(name)
    head = type(network.head)(network.encoder.out_channels, _CLASSES).initialise()
    return float(head.conv_seg.weight.detach().std())


class Trained:
    """A network and how it is trained, under a preset."""

    def __init__(self, name: str, weights: str | None, training: Training, processes: int) -> None:
        self.name, self.weights, self.training, self.processes = name, weights, training, processes

    @property
    def network(self) -> Network:
        """The network without numbers."""
        return _without_numbers(self.name)

    @property
    def initial(self) -> str:
        """The weights that the encoder begins with."""
        return f"`{NETWORKS[self.name].hub}`" if self.weights == "imagenet" else str(self.weights)

    @property
    def encoder(self) -> str:
        """Its depth, by the blocks of its stages."""
        stages = [getattr(self.network.encoder, f"layer{stage}") for stage in (1, 2, 3, 4)]
        return _DEPTHS[tuple(sum(isinstance(module, Block) for module in stage.modules()) for stage in stages)]

    @property
    def stem(self) -> str:
        """The convolutions before the first stage."""
        parts = [part for name, part in self.network.encoder.named_children() if not name.startswith("layer")]
        convs = [module for part in parts for module in part.modules() if isinstance(module, nn.Conv2d)]
        size = {conv.kernel_size for conv in convs}
        return f"{len(convs)} of {size.pop()[0]}x{convs[0].kernel_size[1]}"

    @property
    def stride(self) -> str:
        """What an image's side is divided by in the last feature."""
        return str(256 // self.network.encoder(torch.empty(1, 3, 256, 256, device="meta"))[-1].shape[-1])

    @property
    def head(self) -> str:
        """DeepLabv3+'s head: its dilations, and its channels."""
        head: Any = self.network.head
        dilations = [
            max(conv.dilation[0] for conv in module.modules() if isinstance(conv, nn.Conv2d))
            for module in head.aspp_modules
        ]
        return f"dilations {', '.join(map(str, dilations))}; {head.conv_seg.in_channels} channels"

    @property
    def parameters(self) -> str:
        """The number of trainable numbers."""
        return f"{sum(parameter.numel() for parameter in self.network.parameters()):,}"

    @property
    def auxiliary(self) -> str:
        """The auxiliary head: its channels, the stage it looks at, its weight."""
        head: Any = self.network.auxiliary
        conv = head.convs[0].conv
        stage = 1 + self.network.encoder.out_channels.index(conv.in_channels)  # type: ignore[union-attr,operator]
        return f"{head.conv_seg.in_channels} channels on stage {stage}; weight {self.training.aux_weight:g}"

    @property
    def first_heads(self) -> str:
        """The deviation of the weights that a classifier begins with."""
        return f"deviation {_first_deviation(self.name):.1g}"

    @property
    def dropout(self) -> str:
        """The dropout before the classifiers."""
        layers = [module for module in self.network.modules() if isinstance(module, nn.Dropout2d)]
        return f"{layers[0].p:g} of whole channels, {len(layers)} heads"

    @property
    def statistics(self) -> str:
        """Batch statistics: of one process, or of all."""
        assert any(isinstance(module, nn.BatchNorm2d) for module in self.network.modules())
        return f"SyncBN over {self.processes} GPUs" if self.processes > 1 else "BN on 1 GPU"

    @property
    def optimiser(self) -> str:
        """The optimiser, with its rates."""
        s = self.training
        moments = f"momentum {s.momentum:g}" if s.optimiser == "sgd" else "betas {:g}, {:g}".format(*s.betas)
        others = {
            f"gradients up to {s.clip_gradient}": s.clip_gradient is not None,
            "encoder frozen": s.freeze_encoder,
            "batch norms frozen": s.freeze_batch_norm,
            f"weights averaged by {s.ema}": s.ema is not None,
        }
        rates = f"{s.optimiser.upper()}, {moments}, lr {s.lr:g}, heads x{s.head_lr:g}"
        return ", ".join([rates, *(text for text, there in others.items() if there)])

    @property
    def schedule(self) -> str:
        """The decay of the learning rate."""
        s = self.training
        form = f"polynomial, power {s.power:g}" if s.schedule == "poly" else "cosine"
        return f"{form}, to {s.min_lr:g}" + (f", after {s.warmup} steps of warm-up" if s.warmup else "")

    @property
    def weight_decay(self) -> str:
        """The weight decay, and of which weights."""
        return f"{self.training.weight_decay:g}" + ("" if self.training.decay_norms else ", not of norms and biases")

    @property
    def scale(self) -> str:
        """The size of an image before the crop: of a VOC image and of a long one, without the random factor."""
        s, (low, high) = self.training, self.training.scale
        whole = Augmentation(s.short_side, (9999, 9999), scale=(1, 1), flip=0, photometric=False, max_share=1)
        small, long = (
            whole(np.zeros((*size, 3), np.uint8), np.zeros(size, np.uint8), 0)[1].shape
            for size in ((375, 500), (90, 500))
        )
        return f"{small[0]} x {small[1]}, {long[0]} x {long[1]}; times {low:g} to {high:g}"

    @property
    def augmentation(self) -> str:
        """What else is done to a crop."""
        s = self.training
        if s.augmentation is not None:
            return s.augmentation
        photometric = "photometric distortion" if s.photometric else "colours kept"
        return f"one class at most {s.max_share:.0%}, flip {s.flip:g}, {photometric}"

    @property
    def sums(self) -> str:
        """How many images a loss takes its sums over."""
        return f"{self.training.loss_batch or self.training.batch_size // self.training.accumulate} images"

    @property
    def precision(self) -> str:
        """The arithmetic."""
        tf32 = self.training.tf32 and self.training.precision == "float32"
        return f"{self.training.precision}{', TF32 where a GPU has it' if tf32 else ''}"

    def of(self, key: str) -> str:
        """A setting of the training as it is."""
        value = getattr(self.training, key)
        return " x ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"


class Preset:
    """`workflow/config/paper.yaml` under a preset."""

    def __init__(self, name: str, content: Mapping[str, Any] | None = None) -> None:
        if content is None:
            content = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
        self.pipeline: Pipeline = load_pipeline({**content, "preset": name}, CONFIG.name)

    @cached_property
    def proxy(self) -> Trained:
        """What the searches on VOC train."""
        how = self.pipeline.proxies[self.pipeline.searches["voc-mIoU"].proxy]
        return Trained(how.network, how.weights, self.pipeline.proxy_training("voc-mIoU"), 1)

    def run(self, dataset: str) -> Trained:
        """How the main table's losses are trained and scored on a data set."""
        (retraining,) = {c.retraining for c in self.pipeline.tables["main"].columns if c.dataset == dataset}
        how = self.pipeline.retrainings[retraining]
        assert how.window is None  # the table says: whole images
        return Trained(how.network, how.weights, self.pipeline.run_training(retraining, 0), how.processes)

    @cached_property
    def voc(self) -> Trained:
        """The retraining on VOC."""
        return self.run("voc")

    @cached_property
    def cityscapes(self) -> Trained:
        """The retraining on Cityscapes."""
        return self.run("cityscapes")

    def cross_entropy(self) -> str:
        """What the table's cross entropy divides by: asked of the loss itself, on a batch that is void by half."""
        (spec,) = {
            row.loss
            for row in self.pipeline.tables["main"].rows
            if parse_loss(row.loss.replace("{searches}", "x"))[0].name.startswith("ce")
        }
        logits, labels = torch.zeros(1, 2, 2, 2), torch.zeros(1, 2, 2, dtype=torch.long)
        half = torch.tensor([[[0, 0], [255, 255]]])
        ratio = float(build_loss(spec, ignore_index=255)(logits, half) / build_loss(spec)(logits, labels))
        return {0.5: "all pixels, void and padding too", 1.0: "valid pixels"}[ratio]

    def in_loss(self, metric: str, dataset: str = "voc") -> Conventions:
        """The conventions of a metric's loss on a data set, as its trials use them."""
        search = self.pipeline.search(f"{dataset}-{metric}")
        background = search.conventions.drop_background
        loss = SurrogateLoss(metric, has_background=background, **search.conventions_in_loss.model_dump())
        return loss.conventions

    def in_metric(self, metric: str, dataset: str = "voc") -> Conventions:
        """The conventions by which a metric's trials are scored."""
        return self.pipeline.search(f"{dataset}-{metric}").conventions

    def absent(self) -> str:
        """The losses in which a class that a batch lacks scores 0."""
        return ", ".join(metric for metric in METRICS if self.in_loss(metric).absent == "zero")

    def seeds(self, *names: str) -> str:
        """The seeds of searches."""
        return ", ".join(str(self.pipeline.search(name).seed) for name in names)


def background(conventions: Conventions) -> str:
    """Say what is done with class 0."""
    return "left out" if conventions.drop_background else "kept"


def view(size: int) -> str:
    """The view of a VOC image that is scored in the proxy task."""
    _, mask = CenterView(size)(np.zeros((375, 500, 3), np.uint8), np.zeros((375, 500), np.uint8))
    return f"centre, {mask.shape[0]} x {mask.shape[1]}"


def tested(trained: Trained, *size: int) -> str:
    """The size at which an image of a size is scored."""
    scale = trained.training.scored_at
    height, width = WholeView(scale).size(*size) if scale else size
    return f"{height} x {width}"


def shrinking() -> str:
    """How the cache shrinks an image: asked of it, with one bright pixel of four."""
    image, mask = np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.uint8)
    image[0, 0] = 160
    return "areas averaged" if shrink(image, mask, 1, 1)[0].max() == 10 else "bilinear"


def sampling() -> str:
    """Which label a smaller mask takes: asked of it, with numbered pixels."""
    found = resize_mask(np.arange(8, dtype=np.uint8)[None], 1, 2)[0].tolist()
    return {(2, 6): "at a pixel's centre", (0, 4): "at its upper left corner"}[tuple(found)]
