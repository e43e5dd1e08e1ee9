"""What all losses have in common: they check logits and labels first, and may sum over processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autoseg.errors import InputError
from autoseg.losses.kernels.device import eager_on_cpu
from autoseg.losses.labels import NO_VOID, Labels
from autoseg.metrics.counts import IgnoreIndex, check_ignore_index, check_void_is_no_class
from autoseg.metrics.targets import LABELS, call_that_works, check_whole, stripped


def ranks(sync: bool, group: Any = None) -> int:
    """Return the number of processes that sums are taken over: 1 without `sync` or distributed training."""
    distributed = sync and torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size(group) if distributed else 1


def sum_over_ranks(local: Tensor, group: Any) -> Tensor:
    """Return the sum over ranks; the gradient reaches the local part, scaled for averaging over ranks."""
    total = local.detach().clone()
    torch.distributed.all_reduce(total, group=group)
    return total + (local - local.detach()) * torch.distributed.get_world_size(group)


def check_batch(logits: Tensor, target: Tensor | Labels) -> tuple[Tensor, Labels]:
    """Check types and shapes; return logits of two classes or more, and labels on their device."""
    logits = check_logits(logits)
    given = target.target if isinstance(target, Labels) else target
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
    if logits.ndim != 4 or 0 in logits.shape[1:]:
        raise InputError(f"has shape {tuple(logits.shape)}", where="logits", expected="(N, C, H, W)")
    return stripped(logits)


def label_maps(target: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return labels of a shape (N, H, W); they may have a channel, (N, 1, H, W), or be floats that are whole numbers.

    On a GPU a float that is no whole number becomes a label that is no class's.
    """
    if not isinstance(target, Tensor) or target.is_complex():
        raise InputError(f"found {getattr(target, 'dtype', type(target))}", where="target", expected=LABELS)
    labels = stripped(target)
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
        check_whole(floats, labels, "target")
        return labels
    return torch.where(floats == labels, labels, NO_VOID)


class Loss(nn.Module):
    """A loss of logits (N, C, H, W), with C = 1 for binary ones, and labels (N, H, W): `loss(logits, target)`.

    Labels are whole numbers of any type, floats and bool included, and may be (N, 1, H, W).

    Args:
        ignore_index: the label of void pixels; None: there are none; "auto": 255, but labels of two classes that hold
            255 and no 1 (a mask of 0 and 255), and more than 255 classes, are refused.
        sync: in distributed training, normalise over the batches of all ranks (of the process group `group`). The
            gradient is scaled so that averaging over ranks, as DistributedDataParallel does, gives that of the whole.
        check_labels: check the labels of every batch on a GPU too, which waits for it. Else a label that is no class's
            makes the loss NaN there; on a CPU labels are always checked.

    A subclass computes `loss` from checked logits and labels. Give losses of one batch the same `Labels`, and what they
    derive from them is made once.
    """

    def __init__(
        self, ignore_index: IgnoreIndex = "auto", *, sync: bool = False, group: Any = None, check_labels: bool = False
    ) -> None:
        super().__init__()
        self.ignore_index = check_ignore_index(ignore_index)
        self.guarded = isinstance(ignore_index, str)
        self.sync, self.group, self.check_labels = sync, group, check_labels

    def extra_repr(self) -> str:
        """Describe the loss in one line."""
        return f"ignore_index={self.ignore_index}, sync={self.sync}"

    def forward(self, logits: Tensor, target: Tensor | Labels) -> Tensor:
        """Return the loss of a batch, computed in float32 (float64, if the logits are)."""
        logits, labels = check_batch(logits, target)
        if self.check_labels:
            labels.checked(logits.shape[1], self.ignore_index)
        if any(buffer.device != logits.device for buffer in self.buffers()):
            with torch.inference_mode(False):  # they may be used in training afterwards
                self.to(logits.device)
        with torch.autocast(logits.device.type, enabled=False):
            value = self.loss(logits, labels)
            return self._guard(value, labels, logits.shape[1]) if self.guarded else value

    def _guard(self, value: Tensor, labels: Labels, classes: int) -> Tensor:
        """Refuse labels of which nobody said whether 255 is void; on a GPU the loss is NaN then."""
        check_void_is_no_class(classes)
        return value if classes > 2 else labels.doubt(value)

    def loss(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return the loss of logits of two classes or more, and labels on their device."""
        raise NotImplementedError


def precise(logits: Tensor) -> Tensor:
    """Return the logits in float32, or in float64 if they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
