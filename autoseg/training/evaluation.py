"""Scores of a network on images, whole or by a sliding window, at the size of the labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoseg.errors import InputError
from autoseg.metrics.segmentation import SegmentationMetrics
from autoseg.training.arithmetic import autocast, cudnn_settings
from autoseg.training.settings import Decide, Training

Predicted = Callable[[int, Tensor], None]


def is_finite(network: nn.Module) -> bool:
    """Return whether all weights and statistics are finite; if not, predictions mean nothing and the score is 0."""
    return bool(torch.stack([value.isfinite().all() for value in network.state_dict().values()]).all())


@torch.inference_mode()
def score(
    network: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    metrics: SegmentationMetrics,
    device: torch.device,
    settings: Training,
    *,
    window: tuple[int, int] | None = None,
    decide: Decide = "argmax",
    seen: Predicted | None = None,
) -> SegmentationMetrics:
    """Count the predictions of a network, in evaluation mode, into `metrics` and return it.

    Args:
        network: gives logits of the size of its input.
        batches: of images and masks; the images may have another size than their masks.
        metrics: what to count into; with several processes, `metrics.all_reduce()` afterwards merges them exactly.
        device: where the network is.
        settings: of the training, whose precision the network has here too.
        window: height and width of a sliding window, half overlapping, whose logits are averaged; None: whole images.
        decide: how labels follow from logits, see `decision`.
        seen: is called with the number of the first image of a batch, and the batch's predicted labels.
    """
    network.eval()
    number, labels_of = 0, decision(decide)
    with cudnn_settings(settings, device, fixed_shape=False):
        for images, masks in batches:
            images = images.to(device, non_blocking=True)
            with autocast(settings, device):
                labels = predict(network, images, masks.shape[-2:], window, labels_of)
            metrics.update(labels, masks)
            if seen is not None:
                seen(number, labels.cpu())
            number += len(images)
    return metrics


def most_likely(logits: Tensor) -> Tensor:
    """Return the class of the greatest logit."""
    return logits.argmax(1)


def decision(name: Decide) -> Callable[[Tensor], Tensor]:
    """Return what makes labels (N, H, W) of logits (N, C, H, W): argmax, or RankSEG for each image's Dice or IoU.

    RankSEG (Dai and Li, JMLR 2023; Wang and Dai, NeurIPS 2025) takes the logits' softmax for the probabilities of
    labels, and chooses the map with the best expected score. A loss that is no likelihood makes other probabilities.
    """
    if name == "argmax":
        return most_likely
    try:
        from rankseg import RankSEG
    except ImportError:
        cure = "pip install 'autoseg[rankseg]'"
        raise InputError(f"'{name}' needs the package rankseg", where="decide", cure=cure) from None
    solver = RankSEG(metric="iou" if name == "rankseg-iou" else "dice", output_mode="multiclass")
    return lambda logits: solver(logits.softmax(1))


def predict(
    network: nn.Module,
    images: Tensor,
    size: Sequence[int],
    window: tuple[int, int] | None = None,
    labels_of: Callable[[Tensor], Tensor] = most_likely,
) -> Tensor:
    """Return the labels (N, H, W) that a network predicts for images, at the height and width `size`.

    Logits, not labels, are resized from the images' size to that one, as in the release.
    """
    # In float32: neither resized nor averaged logits should lose digits, whatever the network's arithmetic.
    logits = network(images).float() if window is None else slide(network, images, window)
    if logits.shape[-2:] != tuple(size):
        logits = F.interpolate(logits, tuple(size), mode="bilinear", align_corners=False)
    return labels_of(logits)


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
            logits = network(padded[place]).float()
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
