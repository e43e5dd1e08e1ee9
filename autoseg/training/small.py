"""Small networks for a CPU: an encoder of three stages, and a head that goes back up beside it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from autoseg.training.encoders import Norm, conv_norm_relu, resize
from autoseg.training.heads import Head


def group_norm(channels: int) -> nn.Module:
    """Return a normalisation that needs no batch statistics."""
    return nn.GroupNorm(max(channels // 8, 1), channels)


class SmallEncoder(nn.Module):
    """Three stages of two 3x3 convolutions, each at half the size of the one before."""

    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        self.out_channels = [width, 2 * width, 4 * width]
        stages, before = [], 3
        for out in self.out_channels:
            stages.append(
                nn.Sequential(*conv_norm_relu(before, out, stride=2, norm=norm), *conv_norm_relu(out, out, norm=norm))
            )
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


class SmallHead(Head):
    """The last feature with its mean over the image, upsampled step by step beside the earlier ones."""

    def __init__(self, channels: Sequence[int], width: int, num_classes: int, norm: Norm) -> None:
        super().__init__()
        self.context = nn.Conv2d(channels[-1], width, 1)
        self.last = nn.Conv2d(channels[-1], width, 1)
        self.laterals = nn.ModuleList(nn.Conv2d(c, width, 1) for c in channels[-2::-1])
        self.mixes = nn.ModuleList(nn.Sequential(*conv_norm_relu(width, width, norm=norm)) for _ in channels[-2::-1])
        self.add_classifier(width, num_classes, dropout=0.0)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Return scores at the finest feature's size."""
        x = self.last(features[-1]) + self.context(features[-1].mean((2, 3), keepdim=True))
        for lateral, mix, feature in zip(self.laterals, self.mixes, features[-2::-1], strict=True):
            x = mix(resize(x, feature) + lateral(feature))
        return self.classify(x)
