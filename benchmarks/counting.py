"""What a loss would cost on a GPU, counted without one: launches, waits of the host, bytes moved, peak memory.

The code of a GPU runs on CPU tensors. Every operation of torch is a launch, but views and allocations; an operation of
`autoseg`'s own is one or two launches of its Triton kernel. Not seen: copies between host and device, contention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "bincount", "unique", "_unique2", "equal")
ALLOCATING = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
LAUNCHES = {"sort": 8, "gaussian_blur": 2, "region_gradient": 2}  # of one call, if not 1
PASSES = {"sort": 8, "gaussian_blur": 2}  # over memory; the second launch of region_gradient sees to few tiles


class Cost(NamedTuple):
    """What was counted; `moved` and `peak` are multiples of the logits' size."""

    launches: int
    waits: int
    moved: float
    peak: float


class Counter(TorchDispatchMode):
    """Counts operations while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.waits = self.moved = self.peak = 0
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        given, made = _tensors((args, kwargs)), _tensors(result)
        before = {tensor.untyped_storage()._cdata for tensor in given}
        fresh = [tensor for tensor in made if tensor.untyped_storage()._cdata not in before]
        for tensor in fresh:
            storage = tensor.untyped_storage()
            self.live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.live = {key: value for key, value in self.live.items() if not value[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        if name in ALLOCATING or not (fresh or function._schema.is_mutable or name in WAITING):
            return result
        self.launches += LAUNCHES.get(name, 1)
        self.moved += PASSES.get(name, 1) * sum(_bytes(tensor) for tensor in [*given, *made])
        masked = name.startswith("index") and any(tensor.dtype == torch.bool for tensor in _tensors(args[1]))
        self.waits += name in WAITING or masked
        return result


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """Return the bytes that are read or written; an expanded axis is read once."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return tensor.element_size() * int(torch.Size(sizes).numel())


def _yes(_: Any) -> bool:
    return True


@contextmanager
def as_on_a_gpu(triton: bool = True) -> Iterator[None]:
    """Let losses take the way that they take on a GPU, with Triton or without it."""
    where = "autoseg.losses.kernels.device"
    with (
        mock.patch(f"{where}.on_gpu", _yes),
        mock.patch(f"{where}._new_enough", _yes),
        mock.patch(f"{where}.TRITON", triton),
    ):
        yield


def cost(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor, triton: bool = True) -> Cost:
    """Count a forward and a backward pass."""
    logits = logits.detach().clone().requires_grad_()
    size = logits.numel() * logits.element_size()
    with as_on_a_gpu(triton), Counter() as counter:
        loss(logits, target).backward()
    return Cost(counter.launches, counter.waits, counter.moved / size, counter.peak / size)
