"""What the kernels for a GPU share: where they run, the size of their tiles, and how torch's dispatcher knows them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None

MOST_CLASSES, MOST_TRITON_PIECES = 1024, 16  # of the Triton kernels

SUMMED = 1024  # pixels, at least, whose sums a program of the Triton kernels writes as one


def on_gpu(x: Tensor) -> bool:
    """Return whether a tensor is on a GPU, so that a look at its values makes the host wait."""
    return x.is_cuda


def eager_on_cpu(x: Tensor) -> bool:
    """Return whether code may look at the values of a tensor: it is not on a GPU, nor traced by a compiler."""
    plain = x.device.type == "cpu" and type(x) in (Tensor, torch.nn.Parameter)
    return plain and not on_gpu(x) and not torch.compiler.is_compiling()


def has_triton(x: Tensor) -> bool:
    """Return whether Triton kernels run on the device of a tensor."""
    return TRITON and on_gpu(x) and (torch.compiler.is_compiling() or _new_enough(x.device.index))


@functools.cache
def _new_enough(device: int | None) -> bool:
    """Return whether Triton compiles for a GPU: NVIDIA's since Volta."""
    return torch.version.cuda is None or torch.cuda.get_device_capability(device) >= (7, 0)


def fused(logits: Tensor, tables: Tensor) -> bool:
    """Return whether the Triton kernels take these logits and curves."""
    return has_triton(logits) and logits.shape[1] <= MOST_CLASSES and tables.shape[1] <= MOST_TRITON_PIECES + 1


def tile(classes: int) -> tuple[int, int]:
    """Return how many classes and pixels a tile of the Triton kernels has, both powers of 2."""
    padded = 1 << max(classes - 1, 1).bit_length()
    return padded, (1024 if padded <= 64 else 4096) // padded


def in_triton(module: str, empty: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function an operation of torch's dispatcher, `autoseg::<its name>`, which a compiler takes as a whole.

    On a GPU the function of the same name in a module of Triton kernels computes it; elsewhere, where only tests and
    counts call it, the decorated function. `empty` returns empty tensors of the same shapes.
    """

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        operation = torch.library.custom_op(f"autoseg::{function.__name__}", function, mutates_args=())
        operation.register_fake(empty)

        @operation.register_kernel("cuda")
        def by_triton(*arguments: Any) -> Any:
            kernels = importlib.import_module(f"autoseg.losses.kernels.{module}")
            return getattr(kernels, function.__name__)(*arguments)

        return operation

    return make
