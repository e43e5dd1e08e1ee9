"""Logits and targets as people have them, checked and turned into what losses compute with."""

from __future__ import annotations

import torch
from torch import Tensor

from autoseg.errors import InputError
from autoseg.losses.kernels.device import eager_on_cpu
from autoseg.losses.labels import Labels
from autoseg.metrics.targets import (
    LABELS,
    NO_VOID,
    Mode,
    call_that_works,
    check_whole_numbers,
    dense,
    labels_of_one_hot,
    stripped,
)


def check_batch(logits: Tensor, target: Tensor | Labels, ignore_index: int | None) -> tuple[Tensor, Labels]:
    """Check the shape of a target; return logits of two classes or more, and labels on their device."""
    given = target.target if isinstance(target, Labels) else target
    if logits.shape[1] > 1 and getattr(given, "shape", None) == logits.shape:
        maps = stripped(given)
        labels = labels_of_one_hot(maps, ignore_index, look=eager_on_cpu(maps))
    else:
        labels = label_maps(given, (logits.shape[0], *logits.shape[2:]))
    if logits.shape[1] == 1:  # softmax of (0, z) is (1 - p, p) with p = sigmoid(z)
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    if isinstance(target, Labels) and labels is given and labels.device == logits.device:
        return logits, target
    return logits, Labels(labels.to(logits.device))


def check_logits(logits: Tensor) -> Tensor:
    """Check the type and shape of logits; return a plain tensor."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        found = getattr(logits, "dtype", type(logits))
        raise InputError(f"found {found}", where="logits", expected="a tensor of floats")
    if logits.ndim not in (4, 5) or 0 in logits.shape[1:]:
        expected = "(N, C, H, W) or (N, C, D, H, W)"
        raise InputError(f"has shape {tuple(logits.shape)}", where="logits", expected=expected)
    return dense(stripped(logits), "logits")


def check_mode(logits: Tensor, mode: Mode | None) -> None:
    """Check that logits have the channels of a mode."""
    if (mode == "binary" and logits.shape[1] != 1) or (mode == "multiclass" and logits.shape[1] == 1):
        expected = "(N, 1, ...)" if mode == "binary" else "(N, C, ...) with two channels or more"
        raise InputError(f"has shape {tuple(logits.shape)}", where="logits", expected=f"{expected} in mode '{mode}'")


def label_maps(target: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return labels of a shape (N, ...); they may have a channel, (N, 1, ...), or be floats that are whole numbers.

    On a GPU a float that is no whole number becomes a label that is no class's.
    """
    if not isinstance(target, Tensor) or target.is_complex():
        raise InputError(f"found {getattr(target, 'dtype', type(target))}", where="target", expected=LABELS)
    labels = dense(stripped(target), "target")
    if labels.ndim == len(shape) + 1 and labels.shape[1] == 1:
        labels = labels.squeeze(1)
    if labels.shape != shape:
        raise InputError(
            f"has shape {tuple(target.shape)}",
            where="target",
            expected=f"{shape}, as the logits have",
            cure=call_that_works("target", tuple(target.shape), shape),
        )
    if not labels.is_floating_point():
        return labels
    floats, labels = labels, labels.long()
    if eager_on_cpu(floats):
        check_whole_numbers(floats, labels, "target")
        return labels
    return torch.where(floats == labels, labels, NO_VOID)


def label_channels(logits: Tensor, target: Tensor) -> Tensor:
    """Return a multilabel target, shaped like the logits; with one channel it may be left out."""
    if not isinstance(target, Tensor):
        raise InputError(f"found {type(target)}", where="target", expected=LABELS)
    if logits.shape[1] == 1 and target.ndim == logits.ndim - 1:
        target = target.unsqueeze(1)
    if target.shape != logits.shape:
        raise InputError(
            f"has shape {tuple(target.shape)}",
            where="target",
            expected=f"{tuple(logits.shape)}, as the logits have in mode 'multilabel'",
            cure=f"give `F.one_hot(target, {logits.shape[1]}).movedim(-1, 1)` of labels",
        )
    target = dense(stripped(target), "target")
    if target.is_floating_point() and eager_on_cpu(target):
        small = target.to(torch.uint8)
        parts = zip(small.flatten().split(2**17), target.flatten().split(2**17), strict=True)  # they stay in the cache
        if all(torch.equal(part.to(target.dtype), floats) for part, floats in parts):
            return small  # checks of floats cost more than a loss
    return target


def is_soft(logits: Tensor, target: Tensor | Labels) -> bool:
    """Return whether a target of the logits' shape, with two classes or more, holds probabilities.

    On a GPU, where no value is looked at, all floats of that shape are taken for probabilities.
    """
    if isinstance(target, Labels) or not isinstance(target, Tensor) or logits.shape[1] == 1:
        return False
    if not target.is_floating_point() or target.shape != logits.shape:
        return False
    plain = stripped(target)
    return not eager_on_cpu(plain) or not bool((plain == plain.long()).all())
