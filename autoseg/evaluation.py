"""Scores of a network on images: at proxy size, or at original size, whole or by a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoseg.metrics import SegmentationMetrics

Predicted = Callable[[int, Tensor], None]


def is_finite(network: nn.Module) -> bool:
    """Whether all weights and statistics are finite: without that, labels mean nothing, and the score is 0."""
    return all(bool(value.isfinite().all()) for value in network.state_dict().values())


@torch.inference_mode()
def score(
    network: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    metrics: SegmentationMetrics,
    device: torch.device,
    *,
    window: tuple[int, int] | None = None,
    seen: Predicted | None = None,
) -> SegmentationMetrics:
    """Count the predictions of a network, in evaluation mode, into `metrics` and return it.

    Args:
        network: gives logits of the size of its input.
        batches: of images and masks.
        metrics: what to count into; with several processes, `metrics.all_reduce()` afterwards merges them exactly.
        device: where the network is.
        window: height and width of a sliding window, half overlapping, whose logits are averaged; None: whole images.
        seen: is called with the number of the first image of a batch, and the batch's predicted labels.
    """
    network.eval()
    number = 0
    for images, masks in batches:
        images = images.to(device, non_blocking=True)
        logits = network(images) if window is None else slide(network, images, window)
        labels = logits.argmax(1)
        metrics.update(labels, masks)
        if seen is not None:
            seen(number, labels.cpu())
        number += len(images)
    return metrics


def slide(network: nn.Module, images: Tensor, window: tuple[int, int]) -> Tensor:
    """Return logits averaged over windows that overlap by half; images smaller than the window are padded for it."""
    height, width = images.shape[-2:]
    pad = [max(side - size, 0) for side, size in zip(window, (height, width), strict=True)]
    padded = F.pad(images, (0, pad[1], 0, pad[0]))
    total: Tensor | None = None
    counts = padded.new_zeros(1, 1, *padded.shape[-2:])
    for top in _starts(padded.shape[-2], window[0]):
        for left in _starts(padded.shape[-1], window[1]):
            place = (..., slice(top, top + window[0]), slice(left, left + window[1]))
            logits = network(padded[place])
            if total is None:
                total = logits.new_zeros(len(images), logits.shape[1], *padded.shape[-2:])
            total[place] += logits
            counts[place] += 1
    assert total is not None  # there is a window, however small the image
    return (total / counts)[..., :height, :width]


def _starts(size: int, window: int) -> Iterator[int]:
    """Yield where windows start so that they cover `size`, overlapping by half or more.

    >>> list(_starts(10, 4))
    [0, 2, 4, 6]
    """
    step = max(window // 2, 1)
    yield from range(0, size - window, step)
    yield size - window
