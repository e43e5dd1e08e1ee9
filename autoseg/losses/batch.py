"""What all losses have in common: they check logits and labels first, and may sum over processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autoseg.errors import InputError
from autoseg.losses.labels import Labels
from autoseg.metrics.counts import check_ignore_index


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
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        found = getattr(logits, "dtype", type(logits))
        raise InputError(f"found {found}", where="logits", expected="a tensor of floats")
    if logits.ndim != 4 or 0 in logits.shape[1:]:
        raise InputError(f"has shape {tuple(logits.shape)}", where="logits", expected="(N, C, H, W)")
    if logits.layout != torch.strided or logits.is_meta:
        raise InputError("is sparse or without data", where="logits", expected="a dense tensor")
    labels = target.target if isinstance(target, Labels) else target
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        found = getattr(labels, "dtype", type(labels))
        raise InputError(f"found {found}", where="target", expected="a tensor of integer labels")
    if labels.layout != torch.strided or labels.is_meta or labels.is_complex():
        raise InputError("is sparse, complex or without data", where="target", expected="a dense tensor of integers")
    if labels.shape != (shape := (logits.shape[0], *logits.shape[2:])):
        raise InputError(f"has shape {tuple(labels.shape)}", where="target", expected=f"{shape}, as the logits have")
    if logits.shape[1] == 1:  # softmax of (0, z) is (1 - p, p) with p = sigmoid(z)
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    if isinstance(target, Labels) and labels.device == logits.device:
        return logits, target
    return logits, Labels(labels.to(logits.device))


class Loss(nn.Module):
    """A loss of logits (N, C, H, W), with C = 1 for binary ones, and labels (N, H, W): `loss(logits, target)`.

    Args:
        ignore_index: the label of void pixels; None: there are none.
        sync: in distributed training, normalise over the batches of all ranks (of the process group `group`). The
            gradient is scaled so that averaging over ranks, as DistributedDataParallel does, gives that of the whole.
        check_labels: check the labels of every batch on a GPU too, which waits for it. Else a label that is no class's
            makes the loss NaN there; on a CPU labels are always checked.

    A subclass computes `loss` from checked logits and labels. Give losses of one batch the same `Labels`, and what they
    derive from them is made once.
    """

    def __init__(
        self, ignore_index: int | None = 255, *, sync: bool = False, group: Any = None, check_labels: bool = False
    ) -> None:
        super().__init__()
        self.ignore_index = check_ignore_index(ignore_index)
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
            return self.loss(logits, labels)

    def loss(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return the loss of logits of two classes or more, and labels on their device."""
        raise NotImplementedError


def precise(logits: Tensor) -> Tensor:
    """Return the logits in float32, or in float64 if they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
