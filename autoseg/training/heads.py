"""Heads: from an encoder's features to scores of classes, as the paper's authors train them (mmsegmentation's).

Every head ends in dropout and a classifier whose weights start near 0 (deviation .01); scores are those of the
finest feature that the head looks at, and `autoseg.training.networks` brings them to the size of the image. Tensors
have mmsegmentation's names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoseg.training.encoders import Norm, initialise, resize


class ConvNorm(nn.Module):
    """A convolution that keeps the size of its input, normalisation, ReLU."""

    def __init__(
        self, channels: int, out: int, size: int, dilation: int = 1, groups: int = 1, norm: Norm = nn.BatchNorm2d
    ) -> None:
        super().__init__()
        padding = dilation * (size // 2)
        self.conv = nn.Conv2d(channels, out, size, padding=padding, dilation=dilation, groups=groups, bias=False)
        self.bn = norm(out)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        return F.relu(self.bn(self.conv(x)), inplace=True)


def separable(channels: int, out: int, dilation: int = 1) -> nn.Module:
    """Return a 3x3 convolution of each channel for itself, then a 1x1 over channels."""
    return nn.Sequential(
        OrderedDict(
            depthwise_conv=ConvNorm(channels, channels, 3, dilation, groups=channels),
            pointwise_conv=ConvNorm(channels, out, 1),
        )
    )


def pooled(bins: int, channels: int, out: int) -> nn.Module:
    """Return the means over bins x bins regions, mixed by a 1x1 convolution."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(bins), ConvNorm(channels, out, 1))


class Head(nn.Module):
    """What all heads share: dropout of whole channels, and a 1x1 classifier."""

    def add_classifier(self, channels: int, num_classes: int, dropout: float = 0.1) -> None:
        """Add the last layers."""
        self.dropout = nn.Dropout2d(dropout)
        self.conv_seg = nn.Conv2d(channels, num_classes, 1)

    def classify(self, x: Tensor) -> Tensor:
        """Return the scores of the classes at every pixel of a map."""
        return self.conv_seg(self.dropout(x))

    def initialise(self) -> Head:
        """Draw the weights as the release does, and return the head."""
        initialise(self)
        nn.init.normal_(self.conv_seg.weight, std=0.01)
        assert self.conv_seg.bias is not None
        nn.init.zeros_(self.conv_seg.bias)
        return self


class DeepLabHead(Head):
    """DeepLabv3+: the last feature through dilated separable convolutions and its mean, beside a thin first feature.

    A quarter of the last feature's channels everywhere: 512 with ResNet-50 and ResNet-101, and 48 of the first.
    """

    def __init__(self, channels: Sequence[int], num_classes: int) -> None:
        fine, deep = channels[0], channels[-1]
        width, thin = deep // 4, 3 * fine // 16
        super().__init__()
        self.image_pool = pooled(1, deep, width)
        self.aspp_modules = nn.ModuleList(
            [ConvNorm(deep, width, 1), *(separable(deep, width, dilation) for dilation in (12, 24, 36))]
        )
        self.bottleneck = ConvNorm(5 * width, width, 3)
        self.c1_bottleneck = ConvNorm(fine, thin, 1)
        self.sep_bottleneck = nn.Sequential(separable(width + thin, width), separable(width, width))
        self.add_classifier(width, num_classes)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Return scores at the first feature's size."""
        x = features[-1]
        seen = [resize(self.image_pool(x), x), *(module(x) for module in self.aspp_modules)]
        fine = self.c1_bottleneck(features[0])
        deep = resize(self.bottleneck(torch.cat(seen, 1)), fine)
        return self.classify(self.sep_bottleneck(torch.cat([deep, fine], 1)))


class PSPHead(Head):
    """PSPNet: the last feature beside its means over 1, 4, 9 and 36 regions."""

    def __init__(self, channels: Sequence[int], num_classes: int) -> None:
        deep, bins = channels[-1], (1, 2, 3, 6)
        width = deep // 4
        super().__init__()
        self.psp_modules = nn.ModuleList(pooled(n, deep, width) for n in bins)
        self.bottleneck = ConvNorm(deep + len(bins) * width, width, 3)
        self.add_classifier(width, num_classes)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Return scores at the last feature's size."""
        x = features[-1]
        seen = [x, *(resize(module(x), x) for module in self.psp_modules)]
        return self.classify(self.bottleneck(torch.cat(seen, 1)))


class FCNHead(Head):
    """One convolution over all features side by side, at the first one's size: HRNetV2's head, the auxiliary head."""

    def __init__(
        self,
        channels: Sequence[int],
        width: int,
        num_classes: int,
        *,
        size: int = 3,
        dropout: float = 0.1,
        norm: Norm = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.convs = nn.Sequential(ConvNorm(sum(channels), width, size, norm=norm))
        self.add_classifier(width, num_classes, dropout)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Return scores at the first feature's size."""
        x = torch.cat([features[0], *(resize(feature, features[0]) for feature in features[1:])], 1)
        return self.classify(self.convs(x))
