"""Logits and targets as people have them, checked and turned into what losses compute with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoseg.errors import InputError
from autoseg.losses.kernels.device import eager_on_cpu
from autoseg.losses.labels import Labels
from autoseg.metrics.targets import (
    LABELS,
    NO_CLASS,
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
        labels = label_maps(given, (logits.shape[0], *logits.shape[2:]), logits.shape[1])
    if logits.shape[1] == 1:  # softmax of (0, z) is (1 - p, p) with p = sigmoid(z)
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    if isinstance(target, Labels) and labels is given and labels.device == logits.device:
        return logits, target
    return logits, Labels(labels.to(logits.device))


def check_logits(logits: Tensor) -> Tensor:
    """Check the type and shape of logits; return a plain tensor."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        found = getattr(logits, "dtype", type(logits))
        raise InputError(f"found {found}", where="logits", expected="a tensor of floats", cure=_logits_in(logits))
    if logits.ndim not in (4, 5) or 0 in logits.shape[1:]:
        expected = "(N, C, H, W) or (N, C, D, H, W)"
        cure = "give `logits.unsqueeze(0)` of one image" if logits.ndim == 3 else ""
        raise InputError(f"has shape {tuple(logits.shape)}", where="logits", expected=expected, cure=cure)
    return dense(stripped(logits), "logits")


def _logits_in(outputs: Any) -> str:
    """Return how to take the logits out of what a network gave, for an error, or ""."""
    if isinstance(getattr(outputs, "logits", None), Tensor):
        return "give `outputs.logits`"
    if isinstance(outputs, Mapping):
        name = next((str(name) for name, value in outputs.items() if isinstance(value, Tensor)), "")
        return f'give one of its tensors, such as `outputs["{name}"]`' if name else ""
    if isinstance(outputs, list | tuple):
        return "give `outputs[0]`, and add the losses of auxiliary logits"
    return "give `torch.as_tensor(logits)`" if hasattr(outputs, "__array__") and not isinstance(outputs, Tensor) else ""


def check_mode(logits: Tensor, mode: Mode | None) -> None:
    """Check that logits have the channels of a mode."""
    if (mode == "binary" and logits.shape[1] != 1) or (mode == "multiclass" and logits.shape[1] == 1):
        expected = "(N, 1, ...)" if mode == "binary" else "(N, C, ...) with two channels or more"
        raise InputError(f"has shape {tuple(logits.shape)}", where="logits", expected=f"{expected} in mode '{mode}'")


def label_maps(target: Tensor, shape: tuple[int, ...], channels: int) -> Tensor:
    """Return labels of a shape (N, ...); they may have a channel, (N, 1, ...), or be floats that are whole numbers.

    The logits have so many channels. On a GPU a float that is no whole number becomes a label that is no class's.
    """
    if not isinstance(target, Tensor) or target.is_complex():
        found = f"found {target.dtype if isinstance(target, Tensor) else type(target).__name__}"
        cure = (
            "give `torch.as_tensor(target)`" if hasattr(target, "__array__") and not isinstance(target, Tensor) else ""
        )
        raise InputError(found, where="target", expected=LABELS, cure=cure)
    labels = dense(stripped(target), "target")
    if labels.ndim == len(shape) + 1 and labels.shape[1] == 1:
        labels = labels.squeeze(1)
    if labels.shape != shape:
        given = tuple(target.shape)
        last = labels.shape == (shape[0], channels, *shape[1:-1])  # the logits have their channels at the end
        raise InputError(
            f"has shape {given}",
            where="target",
            expected=f"{shape}, as the logits have",
            cure="give `logits.movedim(-1, 1)`" if last else call_that_works("target", given, shape),
        )
    if not labels.is_floating_point():
        return labels
    floats, labels = labels, labels.long()
    if eager_on_cpu(floats):
        check_whole_numbers(floats, labels, "target")
        return labels
    return torch.where(floats == labels, labels, NO_CLASS)


def label_channels(logits: Tensor, target: Tensor) -> Tensor:
    """Return a multilabel target, shaped like the logits; with one channel it may be left out."""
    if not isinstance(target, Tensor):
        cure = "give `torch.as_tensor(target)`" if hasattr(target, "__array__") else ""
        raise InputError(f"found {type(target)}", where="target", expected=LABELS, cure=cure)
    if logits.shape[1] == 1 and target.ndim == logits.ndim - 1:
        target = target.unsqueeze(1)
    if target.shape != logits.shape:
        raise InputError(
            f"has shape {tuple(target.shape)}",
            where="target",
            expected=f"{tuple(logits.shape)}, as the logits have in mode 'multilabel'",
            cure=_call_for_channels(tuple(target.shape), tuple(logits.shape)),
        )
    target = dense(stripped(target), "target")
    if target.is_floating_point() and eager_on_cpu(target):
        return _bytes_of(target)
    return target


def _bytes_of(floats: Tensor) -> Tensor:
    """Return floats as bytes if they are, else as they are: checks of floats cost more than a loss.

    NumPy converts and compares some times as fast as torch, but does not know all types.
    """
    known = floats.dtype in (torch.float16, torch.float32, torch.float64)
    array = (floats if known else floats.float()).detach().numpy()
    ones = array == 1
    if (ones | (array == 0)).all():  # most are masks, and comparing takes less time than converting
        return torch.from_numpy(ones.view(np.uint8))
    small = np.empty(array.shape, np.uint8)
    with np.errstate(invalid="ignore"):  # what is no byte becomes another number, and is found below
        np.copyto(small, array, casting="unsafe")
    return torch.from_numpy(small) if (small == array).all() else floats


def _call_for_channels(found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Return, for an error, the call that makes a multilabel target of the wanted shape (N, C, ...)."""
    if len(found) == len(wanted) and found == (wanted[0], *wanted[2:], wanted[1]):
        return "give `target.movedim(-1, 1)`"
    if len(found) == len(wanted) and found[:2] == wanted[:2]:
        mode = "trilinear" if len(wanted) == 5 else "bilinear"
        return f'resize the logits: `F.interpolate(logits, {found[2:]}, mode="{mode}")`'
    return f"give `F.one_hot(target, {wanted[1]}).movedim(-1, 1)` of labels"


def is_soft(logits: Tensor, target: Tensor | Labels) -> bool:
    """Return whether a target of the logits' shape, with two classes or more, holds probabilities.

    On a GPU, where no value is looked at, all floats of that shape are taken for probabilities.
    """
    if isinstance(target, Labels) or not isinstance(target, Tensor) or logits.shape[1] == 1:
        return False
    if not target.is_floating_point() or target.shape != logits.shape:
        return False
    plain = dense(stripped(target), "target")
    return not eager_on_cpu(plain) or not bool((plain == plain.long()).all())
