"""Segmentation networks by name, on smp and timm: an encoder, a decoder, and an FCN auxiliary head while training.

>>> network = build_network("small", num_classes=21)  # or "deeplabv3plus-r101", with weights="imagenet"
>>> images = torch.zeros(2, 3, 40, 56)
>>> logits, auxiliary = network.train()(images)  # both at the size of the images
>>> network.eval()(images).shape == logits.shape == auxiliary.shape == (2, 21, 40, 56)
True
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoseg._torchvision  # noqa: F401  # before smp and timm, which import torchvision
from autoseg.errors import InputError, unknown

Norm = Callable[[int], nn.Module]

__all__ = ["NETWORKS", "Network", "build_network", "encoder_weights", "load_encoder_weights"]


class Network(nn.Module):
    """An encoder with a decoder on its features; in training also an FCN head on an earlier feature (weight .4).

    The encoder gives a list of feature maps, the decoder turns them into one; scores are upsampled to the image's size.
    Where an encoder takes only multiples of a number of pixels, images are padded to `multiple`, as batches are.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        num_classes: int,
        decoder_channels: int,
        aux: tuple[int, int],
        norm: Norm = nn.BatchNorm2d,
        multiple: int = 1,
    ) -> None:
        super().__init__()
        self.num_classes, self.multiple = num_classes, multiple
        self.encoder, self.decoder = encoder, decoder
        self.classifier = nn.Conv2d(decoder_channels, num_classes, 1)
        self.aux_feature, channels = aux
        middle = max(channels // 4, 16)
        self.auxiliary = nn.Sequential(
            *_conv(channels, middle, norm=norm), nn.Dropout2d(0.1), nn.Conv2d(middle, num_classes, 1)
        )

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits (N, C, H, W); in training mode also those of the auxiliary head."""
        height, width = images.shape[-2:]
        if height % self.multiple or width % self.multiple:
            images = F.pad(images, (0, -width % self.multiple, 0, -height % self.multiple))
        features = self.encoder(images)
        logits = _resize(self.classifier(self.decoder(features)), images)[..., :height, :width]
        if not self.training:
            return logits
        return logits, _resize(self.auxiliary(features[self.aux_feature]), images)[..., :height, :width]

    def parameter_groups(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the encoder's parameters, and those of all heads, which learn faster."""
        encoder = list(self.encoder.parameters())
        known = {id(parameter) for parameter in encoder}
        return encoder, [parameter for parameter in self.parameters() if id(parameter) not in known]


def _resize(scores: Tensor, images: Tensor) -> Tensor:
    return F.interpolate(scores, images.shape[-2:], mode="bilinear", align_corners=False)


def _conv(
    channels: int, out: int, size: int = 3, *, stride: int = 1, norm: Norm = nn.BatchNorm2d
) -> Iterator[nn.Module]:
    yield nn.Conv2d(channels, out, size, stride=stride, padding=size // 2, bias=False)
    yield norm(out)
    yield nn.ReLU(inplace=True)


# ---- The paper's networks ------------------------------------------------------------------------------------------


def _resnet(name: str) -> nn.Module:
    """Return a ResNet with dilated last stages, output stride 8 (as the authors' release trains it)."""
    from segmentation_models_pytorch.encoders import get_encoder

    return get_encoder(name, in_channels=3, depth=5, weights=None, output_stride=8)


def _deeplabv3plus(encoder: str) -> Callable[[int], Network]:
    def build(num_classes: int) -> Network:
        from segmentation_models_pytorch.decoders.deeplabv3.decoder import DeepLabV3PlusDecoder

        class Decoder(DeepLabV3PlusDecoder):
            """smp's, for images of any size: smp doubles the deep feature, which fits only multiples of 8."""

            def forward(self, features: Sequence[Tensor]) -> Tensor:
                fine = self.block1(features[2])
                deep = F.interpolate(self.aspp(features[-1]), fine.shape[-2:], mode="bilinear", align_corners=True)
                return self.block2(torch.cat([deep, fine], 1))

        body = _resnet(encoder)
        channels: Sequence[int] = body.out_channels  # type: ignore[assignment]
        decoder = Decoder(
            encoder_channels=list(channels),
            encoder_depth=5,
            out_channels=256,
            atrous_rates=(12, 24, 36),
            output_stride=8,
            aspp_separable=True,
            aspp_dropout=0.5,
        )
        return Network(body, decoder, num_classes, 256, (-2, channels[-2]))

    return build


class PyramidPooling(nn.Module):
    """PSPNet's decoder: the last feature beside its means over 1, 4, 9 and 36 regions."""

    def __init__(self, channels: int, out: int = 512) -> None:
        super().__init__()
        self.bins = (1, 2, 3, 6)
        # A single mean over the image has no variance for batch statistics to see, hence a bias instead.
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, out, 1), nn.ReLU(inplace=True)) for _ in self.bins
        )
        self.fuse = nn.Sequential(*_conv(channels + len(self.bins) * out, out), nn.Dropout2d(0.1))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Return one map from the last feature."""
        x = features[-1]
        pooled = [
            _resize(branch(F.adaptive_avg_pool2d(x, n)), x) for n, branch in zip(self.bins, self.branches, strict=True)
        ]
        return self.fuse(torch.cat([x, *pooled], 1))


def _pspnet(encoder: str) -> Callable[[int], Network]:
    def build(num_classes: int) -> Network:
        body = _resnet(encoder)
        channels: Sequence[int] = body.out_channels  # type: ignore[assignment]
        return Network(body, PyramidPooling(channels[-1]), num_classes, 512, (-2, channels[-2]))

    return build


class ParallelBranches(nn.Module):
    """HRNetV2's decoder: all branches at the finest resolution, side by side, mixed by 1x1."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.mix = nn.Sequential(*_conv(sum(channels), sum(channels), 1))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Return one map from all features."""
        return self.mix(torch.cat([features[0], *(_resize(x, features[0]) for x in features[1:])], 1))


def _hrnetv2(name: str) -> Callable[[int], Network]:
    def build(num_classes: int) -> Network:
        import timm

        # feature_location="": the four branches themselves, not the classifier's widened copies of them
        body = timm.create_model(
            name, pretrained=False, features_only=True, feature_location="", out_indices=(1, 2, 3, 4)
        )
        channels: list[int] = body.feature_info.channels()  # type: ignore[operator, union-attr]
        # Branches meet by doubling the coarser one, down to 1/32 of the image.
        return Network(body, ParallelBranches(channels), num_classes, sum(channels), (-2, channels[-2]), multiple=32)

    return build


# ---- Small ones, for a CPU -----------------------------------------------------------------------------------------


class SmallEncoder(nn.Module):
    """Three stages of two 3x3 convolutions, each at half the size of the one before."""

    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.out_channels = widths
        stages, before = [], 3
        for out in widths:
            stages.append(nn.Sequential(*_conv(before, out, stride=2, norm=norm), *_conv(out, out, norm=norm)))
            before = out
        self.stages = nn.ModuleList(stages)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the features at 1/2, 1/4 and 1/8 of the image's size."""
        features = []
        x = images
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


class SmallDecoder(nn.Module):
    """The last feature with its mean over the image, upsampled step by step beside the earlier ones."""

    def __init__(self, channels: Sequence[int], out: int, norm: Norm) -> None:
        super().__init__()
        self.context = nn.Conv2d(channels[-1], out, 1)
        self.last = nn.Conv2d(channels[-1], out, 1)
        self.laterals = nn.ModuleList(nn.Conv2d(c, out, 1) for c in channels[-2::-1])
        self.mixes = nn.ModuleList(nn.Sequential(*_conv(out, out, norm=norm)) for _ in channels[-2::-1])

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Return one map at the finest feature's size."""
        x = self.last(features[-1]) + self.context(features[-1].mean((2, 3), keepdim=True))
        for lateral, mix, feature in zip(self.laterals, self.mixes, features[-2::-1], strict=True):
            x = mix(_resize(x, feature) + lateral(feature))
        return x


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(max(channels // 8, 1), channels)


def _small(width: int, norm: Norm) -> Callable[[int], Network]:
    def build(num_classes: int) -> Network:
        encoder = SmallEncoder(width, norm)
        decoder = SmallDecoder(encoder.out_channels, 2 * width, norm)
        return Network(encoder, decoder, num_classes, 2 * width, (-2, encoder.out_channels[-2]), norm)

    return build


@dataclass(frozen=True)
class Entry:
    """How a network is made, what it is, and what its encoder's ImageNet weights are called on timm's hub."""

    build: Callable[[int], Network]
    what: str
    hub: str | None = None


NETWORKS: Mapping[str, Entry] = {
    "deeplabv3plus-r50": Entry(
        _deeplabv3plus("resnet50"), "DeepLabv3+ with ResNet-50: the proxy task's", "resnet50.tv_in1k"
    ),
    "deeplabv3plus-r101": Entry(
        _deeplabv3plus("resnet101"), "DeepLabv3+ with ResNet-101: retraining", "resnet101.tv_in1k"
    ),
    "deeplabv3plus-r50c": Entry(
        _deeplabv3plus("tu-resnet50c"),
        "DeepLabv3+ with ResNet-50 v1c (deep stem): the release's proxy",
        "resnet50c.gluon_in1k",
    ),
    "deeplabv3plus-r101c": Entry(
        _deeplabv3plus("tu-resnet101c"),
        "DeepLabv3+ with ResNet-101 v1c (deep stem): the release's",
        "resnet101c.gluon_in1k",
    ),
    "pspnet-r101": Entry(_pspnet("resnet101"), "PSPNet with ResNet-101", "resnet101.tv_in1k"),
    "hrnetv2-w48": Entry(_hrnetv2("hrnet_w48"), "HRNetV2-W48", "hrnet_w48.ms_in1k"),
    "deeplabv3plus-r18": Entry(
        _deeplabv3plus("resnet18"), "DeepLabv3+ with ResNet-18, a light one", "resnet18.tv_in1k"
    ),
    "small": Entry(_small(24, nn.BatchNorm2d), "a few 100 k parameters, for a CPU"),
    "tiny": Entry(_small(8, _group_norm), "a few 10 k parameters, no batch statistics, for tests"),
}


def build_network(name: str, num_classes: int, weights: str | os.PathLike[str] | None = None) -> Network:
    """Return a network by name.

    Args:
        name: see `NETWORKS`.
        num_classes: the data set's.
        weights: the encoder's: "imagenet" (from timm's hub, or its cache), the path of a local file with the keys of
            torchvision, timm or mmseg (.pth, .pt, .safetensors), or None: as initialised.

    >>> build_network("tiny", 4).eval()(torch.zeros(1, 3, 32, 40)).shape
    torch.Size([1, 4, 32, 40])
    """
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 1:
        raise InputError(f"num_classes is {num_classes!r}; expected a whole number, 1 or more.")
    network = NETWORKS[name].build(num_classes)
    if weights is not None and str(weights) != "none":
        load_encoder_weights(network, encoder_weights(name, weights), str(weights))
    return network


# ---- Weights -------------------------------------------------------------------------------------------------------


def encoder_weights(name: str, weights: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the state of an encoder's ImageNet weights: from a local file, or from the hub by "imagenet"."""
    if str(weights) == "imagenet":
        return _from_hub(name)
    path = Path(weights)
    if not path.is_file():
        fetch = f" On a machine with network, `autoseg weights {name} --out FILE` fetches one."
        cure = "give a file, 'imagenet' or 'none'." + fetch if NETWORKS[name].hub else "give a file or 'none'."
        raise InputError(f"weights '{weights}': no such file; {cure}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"{path}: not readable as weights ({type(error).__name__}: {str(error).splitlines()[0]})."
        ) from None
    for key in ("state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"{path}: expected a mapping of names to tensors.")
    return dict(state)


def _from_hub(name: str) -> dict[str, Tensor]:
    import timm

    hub = NETWORKS[name].hub
    if hub is None:
        raise InputError(f"network '{name}' has no ImageNet weights; use weights 'none'.")
    try:
        return timm.create_model(hub, pretrained=True).state_dict()
    except Exception as error:
        raise InputError(
            f"the ImageNet weights '{hub}' cannot be fetched here ({type(error).__name__}); fetch them on a machine "
            f"with network by `autoseg weights {name} --out FILE` and give that file as weights."
        ) from None


def load_encoder_weights(network: Network, state: Mapping[str, Tensor], what: str) -> None:
    """Put weights into a network's encoder, whichever of the usual names they go by; every one must be there."""
    own = network.encoder.state_dict()
    found = {_plain(key): value for key, value in state.items()}
    wanted = {key: _plain(key) for key in own if not key.endswith("num_batches_tracked")}
    missing = [key for key, plain in wanted.items() if plain not in found]
    if missing:
        raise InputError(
            f"weights '{what}' lack {len(missing)} of the encoder's {len(wanted)} tensors, such as '{missing[0]}'; "
            "are they another network's?"
        )
    for key, plain in wanted.items():
        if found[plain].shape != own[key].shape:
            raise InputError(
                f"weights '{what}': '{key}' has shape {tuple(found[plain].shape)}, expected {tuple(own[key].shape)}; "
                "are they another network's?"
            )
    network.encoder.load_state_dict({key: found[plain] for key, plain in wanted.items()}, strict=False)


# mmseg's deep stem (v1c) -> timm's
_STEM = {
    "stem.0.": "conv1.0.",
    "stem.1.": "conv1.1.",
    "stem.3.": "conv1.3.",
    "stem.4.": "conv1.4.",
    "stem.6.": "conv1.6.",
    "stem.7.": "bn1.",
}


def _plain(key: str) -> str:
    """Return a tensor's name as torchvision has it, without the prefixes that others put before it."""
    for prefix in ("module.", "backbone.", "encoder.", "model."):
        key = key.removeprefix(prefix)
    for theirs, ours in _STEM.items():
        if key.startswith(theirs):
            key = ours + key.removeprefix(theirs)
    return key
