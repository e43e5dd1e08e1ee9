"""Segmentation networks by name: this toolkit's (an encoder, a head, an auxiliary head), smp's, and anyone's own.

>>> import torch
>>> network = build_network("small", num_classes=21)  # or "deeplabv3plus-r101c", with weights="imagenet"
>>> images = torch.zeros(2, 3, 40, 56)
>>> logits, auxiliary = network.train()(images)  # both at the size of the images
>>> network.eval()(images).shape == logits.shape == auxiliary.shape == (2, 21, 40, 56)
True
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from autoseg.errors import InputError
from autoseg.plugins import import_callable
from autoseg.training import weights as stored
from autoseg.training.encoders import HRNet, Norm, ResNet, resize
from autoseg.training.foreign import Foreign, own_module, smp_imagenet, smp_model
from autoseg.training.heads import DeepLabHead, FCNHead, PSPHead
from autoseg.training.names import check_network, kind_of, register_network, registered, smp_parts
from autoseg.training.small import SmallEncoder, SmallHead, group_norm

__all__ = [
    "NETWORKS",
    "Architecture",
    "Network",
    "build_network",
    "encoder_weights",
    "has_imagenet",
    "register_network",
]


class Network(nn.Module):
    """An encoder with a head on its features; in training also an auxiliary head on the last feature but one.

    `encoder` gives a list of feature maps, `head` turns them into scores, which are brought to the image's size;
    `auxiliary` is None where the network is trained without one.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, auxiliary: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.head, self.auxiliary = encoder, head, auxiliary

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return logits (N, C, H, W); in training mode a tuple of them and those of the auxiliary head, if any."""
        features = self.encoder(images)
        logits = resize(self.head(features), images)
        if not self.training:
            return logits
        return (logits, resize(self.auxiliary(features[-2:-1]), images)) if self.auxiliary is not None else (logits,)

    def parameter_groups(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the encoder's parameters, and those of all heads, which learn faster."""
        encoder = list(self.encoder.parameters())
        known = {id(parameter) for parameter in encoder}
        return encoder, [parameter for parameter in self.parameters() if id(parameter) not in known]


def _on_resnet(depth: int, deep_stem: bool, make_head: type[DeepLabHead | PSPHead]) -> Callable[[int], Network]:
    def build(num_classes: int) -> Network:
        encoder = ResNet(depth, deep_stem)
        channels = encoder.out_channels
        auxiliary = FCNHead(channels[2:3], channels[2] // 4, num_classes)
        return Network(encoder, make_head(channels, num_classes).initialise(), auxiliary.initialise())

    return build


def _hrnetv2(width: int) -> Callable[[int], Network]:
    def build(num_classes: int) -> Network:
        encoder = HRNet(width)
        channels = encoder.out_channels
        head = FCNHead(channels, sum(channels), num_classes, size=1, dropout=0.0)
        return Network(encoder, head.initialise())

    return build


def _small(width: int, norm: Norm) -> Callable[[int], Network]:
    def build(num_classes: int) -> Network:
        encoder = SmallEncoder(width, norm)
        channels = encoder.out_channels
        head = SmallHead(channels, 2 * width, num_classes, norm)
        auxiliary = FCNHead(channels[1:2], max(channels[1] // 4, 16), num_classes, norm=norm)
        return Network(encoder, head, auxiliary)

    return build


@dataclass(frozen=True)
class Architecture:
    """How a network is made, what it is, and what its encoder's ImageNet weights are called on timm's hub."""

    build: Callable[[int], Network]
    what: str
    hub: str | None = None


NETWORKS: Mapping[str, Architecture] = {
    "deeplabv3plus-r50c": Architecture(
        _on_resnet(50, True, DeepLabHead),
        "DeepLabv3+ with ResNet-50 v1c (deep stem): the release's proxy",
        "resnet50c.gluon_in1k",
    ),
    "deeplabv3plus-r101c": Architecture(
        _on_resnet(101, True, DeepLabHead),
        "DeepLabv3+ with ResNet-101 v1c: the release's retraining",
        "resnet101c.gluon_in1k",
    ),
    "pspnet-r101c": Architecture(
        _on_resnet(101, True, PSPHead), "PSPNet with ResNet-101 v1c: the release's", "resnet101c.gluon_in1k"
    ),
    "hrnetv2-w48": Architecture(_hrnetv2(48), "FCN on HRNetV2-W48: the release's", "hrnet_w48.ms_in1k"),
    "deeplabv3plus-r50": Architecture(
        _on_resnet(50, False, DeepLabHead), "DeepLabv3+ with ResNet-50, torchvision's stem", "resnet50.tv_in1k"
    ),
    "deeplabv3plus-r101": Architecture(
        _on_resnet(101, False, DeepLabHead), "DeepLabv3+ with ResNet-101, torchvision's stem", "resnet101.tv_in1k"
    ),
    "pspnet-r101": Architecture(
        _on_resnet(101, False, PSPHead), "PSPNet with ResNet-101, torchvision's stem", "resnet101.tv_in1k"
    ),
    "deeplabv3plus-r18": Architecture(
        _on_resnet(18, False, DeepLabHead), "DeepLabv3+ with ResNet-18, a light one", "resnet18.tv_in1k"
    ),
    "small": Architecture(_small(24, nn.BatchNorm2d), "a few 100 k parameters, for a CPU"),
    "tiny": Architecture(_small(8, group_norm), "a few 10 k parameters, no batch statistics, for tests"),
}


def build_network(
    name: str,
    num_classes: int,
    weights: str | os.PathLike[str] | None = None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Network | Foreign:
    """Return a network by name.

    Args:
        name: see `NETWORKS`; or `smp:<Architecture>/<encoder>`, or `module:callable`, or a registered name.
        num_classes: the data set's.
        weights: the encoder's: "imagenet" (from the hub of timm or smp, or its cache), the path of a local file with
            the names of torchvision, timm or mmsegmentation (.pth, .pt, .safetensors), or None: as initialised.
        checkpoint: a file with the weights of the whole network: mmsegmentation's, or `weights.safetensors` of a run.
        options: of the architecture, or of the callable.

    >>> type(build_network("tiny", 4).encoder).__name__
    'SmallEncoder'
    """
    options = options or {}
    check_network(name, options)
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 1:
        raise InputError(f"num_classes is {num_classes!r}", expected="a whole number, 1 or more")
    network = _as_initialised(name, num_classes, options)
    if checkpoint is not None:
        stored.load_whole(network, stored.read(checkpoint, prefix=""), checkpoint)
    elif weights is not None and str(weights) != "none":
        if network.encoder is None:
            what, cure = f"network '{name}' has neither .encoder nor .backbone", "give the whole network's checkpoint"
            raise InputError(what, where="weights", cure=f"{cure}, or load them where it is made")
        stored.load_encoder(network.encoder, encoder_weights(name, weights, options), weights)
    return network


def _as_initialised(name: str, num_classes: int, options: Mapping[str, Any]) -> Network | Foreign:
    kind = kind_of(name)
    if kind == "built-in":
        return NETWORKS[name].build(num_classes)
    if kind == "smp":
        return Foreign(smp_model(*smp_parts(name), num_classes, options), num_classes, name)
    if kind == "own":
        import autoseg.training._torchvision  # noqa: F401  # the module may import smp, timm or torchvision

        make = import_callable(name, "network")
    else:
        make = registered(name)
    return Foreign(own_module(make, num_classes, options, name), num_classes, name)


def has_imagenet(name: str) -> bool:
    """Return whether ImageNet weights of a network's encoder may be had by the name "imagenet"."""
    return NETWORKS[name].hub is not None if name in NETWORKS else kind_of(name) == "smp"


def encoder_weights(
    name: str, weights: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """Return an encoder's ImageNet weights by their names: from a local file, or from the hub by "imagenet"."""
    fetching = f"fetch a file on a machine with network by `autoseg weights {name} --out FILE`, and give that"
    if str(weights) != "imagenet":
        return stored.read(weights, "give a file or 'none'" + (f", or {fetching}" if has_imagenet(name) else ""))
    if not has_imagenet(name):
        raise InputError(f"network '{name}' has no ImageNet weights", where="weights", cure="use weights 'none'")
    if kind_of(name) == "smp":
        return smp_imagenet(*smp_parts(name), options or {}, fetching)
    hub = NETWORKS[name].hub
    assert hub is not None
    return stored.fetch(hub, fetching)
