"""What all losses have in common: checks of logits and targets, modes, class weights, sums over processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

from autoseg.errors import InputError, one_of, truth
from autoseg.losses.labels import Labels
from autoseg.losses.targets import check_batch, check_logits, check_mode, is_soft, label_channels
from autoseg.metrics.counts import IgnoreIndex, check_ignore_index, check_void_is_no_class
from autoseg.metrics.targets import Mode, check_class_weights, check_count, stripped


def ranks(sync: bool, group: Any = None) -> int:
    """Return the number of processes that sums are taken over: 1 without `sync` or distributed training."""
    distributed = sync and torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size(group) if distributed else 1


def sum_over_ranks(local: Tensor, group: Any) -> Tensor:
    """Return the sum over ranks; the gradient reaches the local part, scaled for averaging over ranks."""
    total = local.detach().clone()
    torch.distributed.all_reduce(total, group=group)
    return total + (local - local.detach()) * torch.distributed.get_world_size(group)


class Loss(nn.Module):
    """A loss of logits (N, C, H, W) or (N, C, D, H, W), and labels: `loss(logits, target)`.

    Args:
        ignore_index: the label of void pixels; None: there are none; "auto": 255, but labels of two classes that hold
            255 and no 1 (a mask of 0 and 255), and more than 255 classes, are refused.
        mode: "binary": logits have one channel, and the classes 1 - p and p, p = sigmoid(logit). "multiclass": softmax
            over two channels or more. "multilabel": each channel is a binary task of its own, and the loss is the mean
            of theirs. None: binary with one channel, else multiclass.
        class_weights: how much each class weighs in the mean over classes or pixels, 0: it is left out; in multilabel
            mode, how much each channel does. None: all alike.
        sync: in distributed training, normalise over the batches of all ranks (of the process group `group`). The
            gradient is scaled so that averaging over ranks, as DistributedDataParallel does, gives that of the whole.
        check_labels: check the labels of every batch on a GPU too, which waits for it. Else a label that is no class's
            makes the loss NaN there; on a CPU labels are always checked.

    The target has (N, H, W) or (N, 1, H, W) labels: whole numbers of any type, floats and bool included. In multiclass
    mode it may be one-hot, (N, C, H, W); in multilabel mode it is (N, C, H, W) of 0, 1 and `ignore_index`. Volumes have
    a D before the H everywhere.

    A subclass computes `loss` from checked logits and labels. Give losses of one batch the same `Labels`, and what they
    derive from them is made once.
    """

    # Whether the loss of a pixel depends on those around it. If not, a volume is computed as an image (D * H, W).
    sees_neighbours = False

    def __init__(
        self,
        ignore_index: IgnoreIndex = "auto",
        *,
        mode: Mode | None = None,
        class_weights: Sequence[float] | Tensor | None = None,
        sync: bool = False,
        group: Any = None,
        check_labels: bool = False,
    ) -> None:
        super().__init__()
        self.ignore_index = check_ignore_index(ignore_index)
        self.guarded = isinstance(ignore_index, str)
        if mode is not None:
            one_of(mode, get_args(Mode), "mode", where="mode")
        self.mode = mode
        self.class_weights: Tensor | None
        weights = None if class_weights is None else check_class_weights(class_weights)
        self.register_buffer("class_weights", weights, persistent=False)
        self.sync, self.group = truth(sync, "sync"), group
        self.check_labels = truth(check_labels, "check_labels")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Loss:
        # `.half()` of a network with a loss inside moves weights and curves, but does not round them.
        return super()._apply(lambda x: x.to(fn(x).device), recurse)

    def extra_repr(self) -> str:
        """Describe the loss in one line."""
        mode = "" if self.mode is None else f", mode={self.mode}"
        return f"ignore_index={self.ignore_index}{mode}, sync={self.sync}"

    def forward(self, logits: Tensor, target: Tensor | Labels) -> Tensor:
        """Return the loss of a batch, computed in float32 (float64, if the logits are)."""
        logits = check_logits(logits)
        if self.mode == "multilabel":
            channels = label_channels(logits, target.target if isinstance(target, Labels) else target)
            return self._guard(self.of_channels(logits, channels), Labels(channels.flatten(0, 1)), 2)
        check_mode(logits, self.mode)
        if is_soft(logits, target):
            return self.of_soft(logits, cast(Tensor, target))
        shape = logits.shape
        logits, labels = check_batch(logits, target, self.ignore_index)
        value = self._guard(self.of_batch(logits, labels), labels, logits.shape[1])
        if isinstance(target, Tensor) and target.shape == shape and shape[1] > 1 and target.dtype != torch.bool:
            value = self._guard(value, Labels(stripped(target).flatten(0, 1)), 2)  # one-hot maps of 0 and 255
        return value

    def of_channels(self, logits: Tensor, channels: Tensor) -> Tensor:
        """Return the loss of a multilabel batch: the mean of its channels' losses."""
        parts = zip(logits.split(1, 1), channels.unbind(1), strict=True)
        return self.mean_of_channels(
            torch.stack([self.of_batch(*check_batch(x, y, self.ignore_index)) for x, y in parts])
        )

    def mean_of_channels(self, losses: Tensor) -> Tensor:
        """Return the mean of the losses of the channels (C,), as `class_weights` weigh them."""
        if self.class_weights is None:
            return losses.mean()
        weights = check_count(self.class_weights, len(losses)).to(losses)
        return (losses * weights).sum() / weights.sum()

    def of_batch(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return the loss of what `autoseg.losses.targets.check_batch` returns."""
        if logits.ndim == 5 and (logits.shape[2] == 1 or not self.sees_neighbours):
            logits, labels = logits.flatten(2, 3), labels.flattened()
        if self.check_labels:
            labels.flattened().checked(logits.shape[1], self.ignore_index)
        self._follow(logits)
        with torch.autocast(logits.device.type, enabled=False):
            return self.loss(logits, labels)

    def weights_of(self, classes: int) -> Tensor | None:
        """Return the weights of the classes of a batch that `loss` sees; None: all alike."""
        if self.class_weights is None or self.mode == "multilabel":
            return None
        return check_count(self.class_weights, classes)

    def _follow(self, logits: Tensor) -> None:
        """Move to the device of the logits."""
        if any(buffer.device != logits.device for buffer in self.buffers()):
            with torch.inference_mode(False):  # they may be used in training afterwards
                self.to(logits.device)

    def _guard(self, value: Tensor, labels: Labels, classes: int) -> Tensor:
        """Refuse labels of 0 and 255 if nobody gave `ignore_index`: 255 may be the foreground. On a GPU, return NaN."""
        if not self.guarded:
            return value
        check_void_is_no_class(classes)
        return value if classes > 2 else labels.flattened().doubt(value, self.check_labels)

    def loss(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return the loss of logits of two classes or more, and labels on their device.

        Both have a depth only if the loss sees neighbours.
        """
        raise NotImplementedError

    def of_soft(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a target of probabilities, shaped like the logits, whose loss is `1 - formula`."""
        raise InputError(
            "holds probabilities", where="target", expected="labels in this loss", cure="give `target.argmax(1)`"
        )


def precise(logits: Tensor) -> Tensor:
    """Return the logits in float32, or in float64 if they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
