"""Encoders: ResNet with output stride 8 and HRNetV2, as the paper's authors train them.

Tensors have the names of torchvision and mmsegmentation, so that their weights load as they are. An encoder turns
images into a list of feature maps, finest first; it knows no classes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


def resize(x: Tensor, like: Tensor) -> Tensor:
    """Return maps at the height and width of others: bilinear, with pixels as areas (`align_corners=False`)."""
    return F.interpolate(x, like.shape[-2:], mode="bilinear", align_corners=False)


def conv(channels: int, out: int, size: int, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    """Return a convolution without bias that keeps the size of its input, up to the stride."""
    padding = dilation * (size // 2)
    return nn.Conv2d(channels, out, size, stride=stride, padding=padding, dilation=dilation, bias=False)


def conv_norm_relu(channels: int, out: int, size: int = 3, stride: int = 1, norm: Norm = nn.BatchNorm2d) -> list:
    """Return the layers of a convolution with normalisation and ReLU."""
    return [conv(channels, out, size, stride), norm(out), nn.ReLU(inplace=True)]


class Block(nn.Module):
    """Convolutions with batch normalisation, and a shortcut beside them, which is projected where shapes differ."""

    def __init__(self, convs: Sequence[nn.Conv2d], stride: int) -> None:
        super().__init__()
        for number, layer in enumerate(convs, 1):
            self.add_module(f"conv{number}", layer)
            self.add_module(f"bn{number}", nn.BatchNorm2d(layer.out_channels))
        self.depth = len(convs)
        channels, out = convs[0].in_channels, convs[-1].out_channels
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(conv(channels, out, 1, stride), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = x
        for number in range(1, self.depth + 1):
            y = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(y))
            if number < self.depth:
                y = F.relu(y, inplace=True)
        return F.relu(y + self.downsample(x), inplace=True)


def basic(channels: int, width: int, stride: int = 1, dilation: int = 1) -> Block:
    """Return ResNet-18's block."""
    return Block([conv(channels, width, 3, stride, dilation), conv(width, width, 3)], stride)


def bottleneck(channels: int, width: int, stride: int = 1, dilation: int = 1) -> Block:
    """Return the block of ResNet-50 and ResNet-101, which widens four times."""
    middle = conv(width, width, 3, stride, dilation)
    return Block([conv(channels, width, 1), middle, conv(width, 4 * width, 1)], stride)


# Depth: the block, how much it widens, and the number of blocks in the four stages.
_BLOCKS = {18: (basic, 1, (2, 2, 2, 2)), 50: (bottleneck, 4, (3, 4, 6, 3)), 101: (bottleneck, 4, (3, 4, 23, 3))}


class ResNet(nn.Module):
    """ResNet whose last two stages are dilated by 2 and 4 instead of strided: output stride 8.

    The first block of a dilated stage has half its dilation, as in torchvision and in the release: it samples the
    stage before it at that stage's own spacing. `deep_stem` is the release's variant "v1c": three 3x3 convolutions
    instead of one of 7x7.
    """

    def __init__(self, depth: int, deep_stem: bool = False) -> None:
        super().__init__()
        if deep_stem:
            layers = [*conv_norm_relu(3, 32, stride=2), *conv_norm_relu(32, 32), *conv_norm_relu(32, 64)]
            self.stem = nn.Sequential(*layers)
        else:
            self.conv1, self.bn1 = conv(3, 64, 7, stride=2), nn.BatchNorm2d(64)
        self.deep_stem = deep_stem
        block, widening, counts = _BLOCKS[depth]
        self.out_channels = [widening * 64 * 2**stage for stage in range(4)]
        channels = 64
        for stage, (count, stride, dilation) in enumerate(zip(counts, (1, 2, 1, 1), (1, 1, 2, 4), strict=True)):
            blocks = []
            for number in range(count):
                first = (stride, max(dilation // 2, 1))
                blocks.append(block(channels, 64 * 2**stage, *((1, dilation) if number else first)))
                channels = self.out_channels[stage]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        initialise(self)
        for module in self.modules():
            if isinstance(module, Block):  # a block begins as its shortcut
                nn.init.zeros_(getattr(module, f"bn{module.depth}").weight)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the features of the four stages, at 1/4, 1/8, 1/8 and 1/8 of the images' size."""
        x = self.stem(images) if self.deep_stem else F.relu(self.bn1(self.conv1(images)), inplace=True)
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        features = []
        for stage in cast(list[nn.Module], [self.layer1, self.layer2, self.layer3, self.layer4]):
            x = stage(x)
            features.append(x)
        return features


class HRNet(nn.Module):
    """HRNetV2: branches at 1/4, 1/8, 1/16 and 1/32 of the image's size, which exchange what they see."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out_channels = a, b, c, d = [width * 2**branch for branch in range(4)]
        self.conv1, self.bn1 = conv(3, 64, 3, stride=2), nn.BatchNorm2d(64)
        self.conv2, self.bn2 = conv(64, 64, 3, stride=2), nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(bottleneck(64, 64), *(bottleneck(256, 64) for _ in range(3)))
        self.transition1 = nn.ModuleList([nn.Sequential(*conv_norm_relu(256, a)), _new_branch(256, b)])
        self.stage2 = nn.Sequential(Exchange([a, b]))
        self.transition2 = nn.ModuleList([nn.Identity(), nn.Identity(), _new_branch(b, c)])
        self.stage3 = nn.Sequential(*(Exchange([a, b, c]) for _ in range(4)))
        self.transition3 = nn.ModuleList([nn.Identity(), nn.Identity(), nn.Identity(), _new_branch(c, d)])
        self.stage4 = nn.Sequential(*(Exchange([a, b, c, d]) for _ in range(3)))
        initialise(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the four branches."""
        x = F.relu(self.bn1(self.conv1(images)), inplace=True)
        branches = [self.layer1(F.relu(self.bn2(self.conv2(x)), inplace=True))]
        for transition, stage in (
            (self.transition1, self.stage2),
            (self.transition2, self.stage3),
            (self.transition3, self.stage4),
        ):
            last = len(branches) - 1  # a new branch comes from the coarsest one
            branches = stage([layer(branches[min(number, last)]) for number, layer in enumerate(transition)])
        return branches


def _new_branch(channels: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Sequential(*conv_norm_relu(channels, out, stride=2)))


class Exchange(nn.Module):
    """One module of HRNet: four blocks in every branch, then each branch receives all the others at its own size."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*(basic(width, width) for _ in range(4))) for width in widths)
        self.fuse_layers = nn.ModuleList(
            nn.ModuleList(self._path(widths, source, target) for source in range(len(widths)))
            for target in range(len(widths))
        )

    @staticmethod
    def _path(widths: Sequence[int], source: int, target: int) -> nn.Module:
        channels, out = widths[source], widths[target]
        if source == target:
            return nn.Identity()
        if source > target:
            return nn.Sequential(conv(channels, out, 1), nn.BatchNorm2d(out))
        halvings = [nn.Sequential(*conv_norm_relu(channels, channels, stride=2)) for _ in range(target - source - 1)]
        return nn.Sequential(*halvings, nn.Sequential(conv(channels, out, 3, stride=2), nn.BatchNorm2d(out)))

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        """Return the branches after the exchange."""
        x = [branch(feature) for branch, feature in zip(self.branches, x, strict=True)]
        received = [
            [self._received(path, x, source, target) for source, path in enumerate(cast(nn.ModuleList, paths))]
            for target, paths in enumerate(self.fuse_layers)
        ]
        return [F.relu(functools.reduce(torch.add, maps)) for maps in received]

    @staticmethod
    def _received(path: nn.Module, x: list[Tensor], source: int, target: int) -> Tensor:
        y = path(x[source])
        if source <= target:
            return y
        # Enlarged by a whole factor, and then to the size that is wanted: the two differ where a size was odd.
        y = F.interpolate(y, scale_factor=2 ** (source - target), mode="bilinear", align_corners=False)
        return resize(y, x[target])


def initialise(module: nn.Module) -> None:
    """Draw the weights of all convolutions as the release does: normal, by what goes out of them."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
