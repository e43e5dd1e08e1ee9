"""What all losses do with a batch first: check logits and labels, and count the processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoseg.errors import InputError
from autoseg.losses.labels import Labels


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
    labels = target.target if isinstance(target, Labels) else target
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        found = getattr(labels, "dtype", type(labels))
        raise InputError(f"found {found}", where="target", expected="a tensor of integer labels")
    if labels.shape != (shape := (logits.shape[0], *logits.shape[2:])):
        raise InputError(f"has shape {tuple(labels.shape)}", where="target", expected=f"{shape}, as the logits have")
    if logits.shape[1] == 1:  # softmax of (0, z) is (1 - p, p) with p = sigmoid(z)
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    if isinstance(target, Labels) and labels.device == logits.device:
        return logits, target
    return logits, Labels(labels.to(logits.device))
