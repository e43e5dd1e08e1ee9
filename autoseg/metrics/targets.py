"""Forms in which people have labels, turned into one: a plain tensor of whole numbers, (N, ...) without a channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from autoseg.errors import InputError

LABELS = "integer class labels"
NO_VOID = -(2**40)  # the label of void where there is none: no pixel has it
NO_CLASS = NO_VOID - 1  # what a pixel becomes that has no label; it is void nowhere

Mode = Literal["binary", "multiclass", "multilabel"]
"""What the channels of a prediction are: see `autoseg.losses.batch.Loss`."""


def stripped(x: Tensor) -> Tensor:
    """Return a plain tensor of one whose class only adds attributes, such as MONAI's MetaTensor; gradients flow.

    Classes that compute for themselves (DTensor, those of compilers) stay as they are.
    """
    kind = type(x)
    if kind is Tensor or kind is torch.nn.Parameter or kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return x
    return x.as_subclass(Tensor)


def dense(x: Tensor, where: str) -> Tensor:
    """Return the tensor; a sparse, quantised or meta tensor is refused."""
    if x.layout != torch.strided or x.is_meta or x.is_quantized:
        raise InputError("is sparse, quantised or without data", where=where, expected="a dense tensor")
    if x.is_floating_point() and x.element_size() < 2:
        raise InputError(f"has dtype {x.dtype}", where=where, expected="floats of 16 bits or more")
    return x


def check_whole_numbers(floats: Tensor, labels: Tensor, where: str) -> None:
    """Refuse floats that are not the whole numbers `labels`."""
    if not bool((floats == labels).all()):
        found = floats[floats != labels].flatten()[0].item()
        cure = f"give `{where}.argmax(1)` of scores, `{where} > 0` of binary logits, `{where} > 0.5` of probabilities"
        raise InputError(f"holds {found:g}, no whole number", where=where, expected=LABELS, cure=cure)


def labels_of_one_hot(maps: Tensor, ignore_index: int | None, where: str = "target", look: bool = True) -> Tensor:
    """Return the labels (N, ...) of one-hot maps (N, C, ...); `ignore_index` in a pixel, or no 1, makes it void.

    A pixel with several ones, or without any where there is no void, is refused; if values may not be looked at, its
    label is no class's.
    """
    ones = maps == 1
    counts, zeros = ones.sum(1), (maps == 0).sum(1)
    labels = torch.where((counts == 1) & (zeros == maps.shape[1] - 1), ones.byte().argmax(1), NO_CLASS)
    if ignore_index is not None:
        void = (zeros == maps.shape[1]) | (maps == ignore_index).any(1)
        labels = torch.where(void, ignore_index, labels)
    if look and bool((labels == NO_CLASS).any()):
        raise InputError(
            "has pixels that are not of one class",
            where=where,
            expected="labels, or one-hot maps of 0 and 1",
            cure=f"give `{where}.argmax(1)` of scores; for classes that overlap, give mode='multilabel'",
        )
    return labels


def check_class_weights(weights: Sequence[float] | Tensor, where: str = "class_weights") -> Tensor:
    """Return how much each class weighs in a mean, in float64; 0 leaves a class out."""
    try:
        found = torch.as_tensor(weights, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError):  # torch raises the last two
        found = torch.zeros(0)
    if found.ndim != 1 or not bool((found >= 0).all() & found.isfinite().all()) or not found.sum() > 0:
        raise InputError(f"found {weights}", where=where, expected="a number for each class, 0 or more, not all 0")
    return found


def check_count(weights: Tensor, classes: int, where: str = "class_weights") -> Tensor:
    """Refuse weights of another number of classes."""
    if len(weights) != classes:
        raise InputError(f"has {len(weights)} numbers", where=where, expected=f"one for each of {classes} classes")
    return weights


def call_that_works(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Return, for an error, the call that makes labels of the wanted shape (N, ...), or "".

    >>> call_that_works("target", (2, 8, 9, 1), (2, 8, 9))
    'give `target.squeeze(-1).long()`'
    """
    if found == (wanted[0], 1, *wanted[1:]):
        return f"give `{name}.squeeze(1).long()`"
    if found == (*wanted, 1):
        return f"give `{name}.squeeze(-1).long()`"
    if len(found) == len(wanted) + 1 and (found[0], *found[2:]) == wanted:
        return f"give `{name}.argmax(1)` of one-hot maps"
    if found[:-1] == wanted:
        return f"give `{name}.argmax(-1)` of one-hot maps"
    if (1, *found) == wanted:
        return f"give `{name}.unsqueeze(0)`"
    if len(found) in (len(wanted), len(wanted) + 1) and found[0] == wanted[0] and name == "target":
        mode = "trilinear" if len(wanted) == 4 else "bilinear"
        return f'resize the logits: `F.interpolate(logits, {found[1 - len(wanted) :]}, mode="{mode}")`'
    return ""
