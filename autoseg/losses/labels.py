"""The labels of a batch, and what losses derive from them: edges, bands, distances.

On a CPU labels are checked at once. On a GPU a check would wait for the device: there a label that is no class's makes
the loss NaN, and `LabelWatch` says later which label it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from autoseg.losses.kernels import device_labels
from autoseg.losses.kernels.device import eager_on_cpu
from autoseg.metrics import counts
from autoseg.metrics.conventions import Conventions, fitting
from autoseg.metrics.targets import NO_VOID

Made = TypeVar("Made")


def _once(make: Callable[..., Made]) -> Callable[..., Made]:
    """Keep what a method of `Labels` returns for the next call with the same arguments."""

    @functools.wraps(make)
    def kept(labels: Labels, *arguments: Any) -> Made:
        key = (make.__name__, *arguments)
        if key not in labels._made:
            labels._made[key] = make(labels, *arguments)
        return labels._made[key]

    return kept


class Labels:
    """The labels of a batch, (N, H, W) or (N, D, H, W); give one to all losses of a step.

    What losses derive from them is made once.

    >>> from autoseg import build_loss
    >>> loss, logits = build_loss("published:BIoU"), torch.zeros(1, 2, 4, 4)
    >>> target = Labels(torch.zeros(1, 4, 4, dtype=torch.long))
    >>> loss(logits, target) + 0.4 * loss(logits, target)  # of a main and an auxiliary head
    tensor(1.4000)

    In all methods `void` is the label of void, or None. What they return has C, the number of classes, for void.
    """

    def __init__(self, target: Tensor) -> None:
        self.target = target
        self.eager = eager_on_cpu(target)
        self._made: dict[Any, Any] = {}

    @_once
    def flattened(self) -> Labels:
        """Return the labels of volumes (N, D, H, W) as (N, D * H, W); those of images as they are."""
        return self if self.target.ndim < 4 else Labels(self.target.flatten(1, 2))

    @_once
    def split(self, images: int) -> list[Labels]:
        """Return the labels of groups of so many images."""
        return [Labels(part) for part in self.target.split(images)]

    @_once
    def checked(self, classes: int, void: int | None) -> Tensor:
        """Return the labels in the smallest type; a label that is no class's is an InputError. Waits for a GPU."""
        return counts.label_map(self.target, classes, void, "target")

    @_once
    def safe(self, classes: int, void: int | None) -> tuple[Tensor, Tensor]:
        """Return int64 labels, C also for labels that are no class's, and a factor: NaN if there are such, else 1."""
        return device_labels.safe(self.target, classes, NO_VOID if void is None else void)

    @_once
    def plain(self) -> Tensor:
        """Return the target in a type that kernels read."""
        odd = self.target.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64)
        return self.target.long() if odd else self.target

    @_once
    def known(self, classes: int, void: int | None) -> Tensor:
        """Return checked or safe labels, in int64."""
        return self.checked(classes, void).long() if self.eager else self.safe(classes, void)[0]

    def poison(self, loss: Tensor, classes: int, void: int | None) -> Tensor:
        """Return the loss, or NaN if a label is no class's."""
        return loss if self.eager else loss * self.safe(classes, void)[1].to(loss.dtype)

    def doubt(self, loss: Tensor, check: bool) -> Tensor:
        """Return the loss of two classes, unless 255 may be the foreground: then refuse, or on a GPU return NaN.

        With `check`, refuse on a GPU too, which waits for it.
        """
        if self.eager or check:
            counts.check_void_is_no_foreground(self.checked(2, counts.USUAL_VOID))
            return loss
        return torch.where(_doubtful(self.target), torch.nan, loss)

    @_once
    def edges(self, classes: int, void: int | None, mask_void: bool) -> Tensor:
        """Return where a pixel of a class has another label in its 3x3 window; with `mask_void`, void is none.

        In volumes the window is 3x3x3.
        """
        if not self.eager:
            return device_labels.edges(self.safe(classes, void)[0], classes, mask_void)
        labels = self.flattened().checked(classes, void).view(self.target.shape)
        return counts.edges(labels, classes, ~counts.differs(labels, classes) if mask_void else None)

    @_once
    def in_band(self, classes: int, void: int | None, radius: int, drop_background: bool) -> Tensor:
        """Return the labels, void outside the band around boundaries in which BIoU is counted.

        On a GPU, labels that are no class's stay as they are: the kernel finds them.
        """
        edge = self.edges(classes, void, False)
        if not self.eager:
            band = device_labels.band(self.safe(classes, void)[0], edge, radius, drop_background)
            target = self.target.long()
            wrong = target != target.clamp(0, classes - 1)
            return torch.where(band | wrong, target, NO_VOID if void is None else void)
        labels = self.checked(classes, void)
        conventions = Conventions(boundary_radius=radius, drop_background=drop_background)
        return labels.masked_fill(~counts.band(labels, edge, conventions).bool(), classes)

    @_once
    def near_bits(self, classes: int, void: int | None, mask_void: bool, tolerance: int) -> Any:
        """Return, as a bit for each class, where it has an edge within the tolerance: BITS classes in a map."""
        edge = self.edges(classes, void, mask_void)
        if not self.eager:
            return device_labels.near_bits(self.safe(classes, void)[0], edge, classes, tolerance)
        labels, firsts = self.checked(classes, void), range(0, classes, counts.BITS)
        return [counts.dilate(counts.class_bits(labels, edge, first, classes), tolerance) for first in firsts]

    @_once
    def closeness(self, classes: int, void: int | None, spacing: tuple[float, ...] | None = None) -> Tensor:
        """Return 1 - distance to the nearest edge / the greatest such distance, per image; 0 without an edge.

        Void, with which crops are padded, makes no edge and is left out of the greatest distance.
        """
        edge = self.edges(classes, void, True)
        sizes = fitting(spacing, edge.ndim - 1)
        if not self.eager:
            return device_labels.closeness(self.safe(classes, void)[0], edge, classes, sizes)
        import numpy as np
        from scipy.ndimage import distance_transform_edt

        maps = np.zeros(edge.shape)
        known = self.flattened().checked(classes, void).view(edge.shape)
        for out, here, label in zip(maps, edge.numpy(), known.numpy(), strict=True):
            distance = distance_transform_edt(~here, sampling=sizes) if here.any() else out
            greatest = distance[label != classes].max(initial=0.0)
            out[:] = np.clip(1 - distance / greatest, 0, 1) if greatest > 0 else here
        return torch.from_numpy(maps)

    @_once
    def signed_distances(self, classes: int, void: int | None, spacing: tuple[float, ...] | None = None) -> Tensor:
        """Return, as (N, C, ...), the distance to the nearest pixel of each class; inside the class 1 - the distance to
        the nearest pixel of another class. 0 where the image has none of the class, or nothing else but void.
        """
        known = self.flattened().known(classes, void).view(self.target.shape)
        sizes = fitting(spacing, known.ndim - 1)
        if not self.eager:
            return device_labels.signed_distances(known, classes, sizes)
        import numpy as np
        from scipy.ndimage import distance_transform_edt

        maps = np.zeros((len(known), classes, *known.shape[1:]), dtype=np.float32)
        for out, label in zip(maps, known.numpy(), strict=True):
            for c in np.unique(label[label != classes]):
                inside = label == c
                other = (label != classes) & ~inside
                if other.any():
                    away, deep = (distance_transform_edt(~there, sampling=sizes) for there in (inside, other))
                    out[c] = np.where(inside, 1 - deep, away)
        return torch.from_numpy(maps)


def _doubtful(target: Tensor) -> Tensor:
    """Return, on the device, whether labels of two classes hold 255 and no 1."""
    return (target == counts.USUAL_VOID).any() & ~(target == 1).any()


class LabelWatch:
    """Remembers the least and the greatest label of many batches on their device, without waiting for it.

    >>> watch = LabelWatch(void=255)
    >>> watch.see(torch.tensor([[[0, 21, 255]]]), num_classes=21)
    >>> watch.check()
    Traceback (most recent call last):
    autoseg.errors.InputError: target: holds labels 21; expected 0..20 or 255 (void).
    """

    def __init__(self, void: counts.IgnoreIndex = "auto") -> None:
        self.void, self.guarded = counts.check_ignore_index(void), isinstance(void, str)
        self.num_classes = 2
        self.extremes: Tensor | None = None
        self.doubtful: Tensor | None = None

    def see(self, target: Tensor, num_classes: int) -> None:
        """Take in the labels of a batch, for logits of so many classes (1: two of them)."""
        self.num_classes = max(num_classes, 2)
        labels = target.long()
        if self.guarded and self.num_classes == 2:
            doubtful = _doubtful(labels)
            self.doubtful = doubtful if self.doubtful is None else self.doubtful | doubtful
        if self.void is not None:
            labels = labels.masked_fill(labels == self.void, 0)
        if labels.numel():
            both = [*torch.aminmax(labels), *(() if self.extremes is None else self.extremes)]
            self.extremes = torch.stack(torch.aminmax(torch.stack(both)))

    def check(self) -> None:
        """Say what is wrong with the labels seen, as an InputError. Waits for the device."""
        if self.extremes is not None:
            counts.label_map(self.extremes.view(1, 1, -1), self.num_classes, self.void, "target")
        if self.doubtful is not None and bool(self.doubtful):
            raise counts.not_foreground()
