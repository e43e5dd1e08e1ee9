"""What losses derive from labels, on a GPU and in compiled code: no host sync, no shape that depends on data.

`labels` are (N, H, W), or volumes where it is said, in int64, C for void. Pooling takes floats only on a GPU; labels
are exact in float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from autoseg.losses.kernels.device import has_triton, in_triton
from autoseg.metrics.counts import BITS, dilate

FAR = 1e30  # more than any squared distance, in any unit


def safe(target: Tensor, classes: int, void: int) -> tuple[Tensor, Tensor]:
    """Return labels, C for void and for labels that are no class's, and a factor: NaN if there are such, else 1."""
    target = target.long().contiguous()
    inside, is_void = target == target.clamp(0, classes - 1), target == void
    labels = torch.where(inside & ~is_void, target, classes)
    return labels, torch.where((inside | is_void).all(), 1.0, torch.nan)


def edges(labels: Tensor, classes: int, mask_void: bool) -> Tensor:
    """Return where a pixel of a class has another label in its 3x3 window; with `mask_void`, void is no other label.

    Of volumes (N, D, H, W), where a voxel has one in its 3x3x3 window.
    """
    known = labels != classes
    x = labels.float()
    high, low = (torch.where(known, x, -1.0), torch.where(known, -x, float(-classes))) if mask_void else (x, -x)
    pool = F.max_pool2d if labels.ndim == 3 else F.max_pool3d
    high, low = pool(torch.stack([high, low], 1), 3, stride=1, padding=1).unbind(1)
    return (high + low != 0) & known


def band(labels: Tensor, edge: Tensor, radius: int, drop_background: bool) -> Tensor:
    """Return where an edge (of the background, too, unless dropped) is within the square of that radius."""
    seeds = (edge & (labels != 0) if drop_background else edge).float().unsqueeze(1)
    for size in ((1, 2 * radius + 1), (2 * radius + 1, 1)):
        seeds = F.max_pool2d(seeds, size, stride=1, padding=(size[0] // 2, size[1] // 2))
    return seeds.squeeze(1) > 0


def near_bits(labels: Tensor, edge: Tensor, classes: int, tolerance: int) -> Tensor:
    """Return (words, N, H, W) in int32: a bit for each class, set where the class has an edge within the tolerance."""
    word = torch.arange(-(-classes // BITS), device=labels.device).view(-1, 1, 1, 1)
    here = edge & (labels // BITS == word)
    return dilate(here.int() << (labels % BITS).int(), tolerance)


def closeness(labels: Tensor, edge: Tensor, classes: int, sizes: tuple[float, ...]) -> Tensor:
    """Return 1 - distance to the nearest edge / the greatest such distance but void's, per image; 0 without an edge.

    Labels may be volumes.
    """
    square = torch.where(edge, 0.0, FAR)
    for axis, size in reversed([*enumerate(sizes, 1)]):  # along rows, then along columns
        square = nearest(square.transpose(axis, -1), size).transpose(axis, -1)
    distance = torch.where(square < FAR / 2, square.sqrt(), 0.0)
    greatest = torch.where(labels != classes, distance, 0.0).amax(list(range(1, labels.ndim)), keepdim=True)
    close = (1 - distance / greatest.clamp(min=1e-6)).clamp(0, 1)
    return torch.where(greatest > 0, close, edge.to(close.dtype))


def signed_distances(labels: Tensor, classes: int, sizes: tuple[float, ...]) -> Tensor:
    """Return the distances of `Labels.signed_distances`, (N, C, ...), of labels (N, ...)."""
    numbers = torch.arange(classes, device=labels.device).view(1, -1, *(1 for _ in labels.shape[1:]))
    inside = labels.unsqueeze(1) == numbers
    other = (labels != classes).unsqueeze(1) & ~inside
    squares = []
    for there in (inside, other):
        square = torch.where(there, 0.0, FAR)
        for axis, size in enumerate(sizes, 2):
            square = nearest(square.transpose(axis, -1), size).transpose(axis, -1)
        squares.append(square)
    away, deep = squares
    both = (away < FAR / 2) & (deep < FAR / 2)  # the class, and something else
    return torch.where(both, torch.where(inside, 1 - deep.sqrt(), away.sqrt()), 0.0)


def nearest(square: Tensor, size: float = 1.0) -> Tensor:
    """Return the least square[j] + (size (i - j))^2 over j, for each i of the last axis of (N, ..., W)."""
    if size != 1:
        return nearest(square / size**2) * size**2
    square = square.contiguous()
    return lower_envelope(square) if has_triton(square) else _lower_envelope(square)


def _lower_envelope(square: Tensor) -> Tensor:
    places = torch.arange(square.shape[-1], device=square.device)
    apart = (places.unsqueeze(1) - places).square().float()
    # A compiler makes one loop of it all; else a few j at a time, so that little memory is needed.
    step = len(places) if torch.compiler.is_compiling() else 16
    least = None
    for first in range(0, len(places), step):
        some = slice(first, first + step)
        part = (square[..., some].unsqueeze(-2) + apart[:, some]).amin(-1)
        least = part if least is None else torch.minimum(least, part)
    assert least is not None
    return least


@in_triton("triton_distance", torch.empty_like)
def lower_envelope(square: Tensor) -> Tensor:
    """Return what `nearest` says, as one launch of a Triton kernel."""
    return _lower_envelope(square)
