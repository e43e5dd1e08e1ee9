"""How a GPU computes a network: its precision, TF32 and cuDNN's choice of algorithms. A CPU computes in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.backends import cudnn

from autoseg.training.settings import Training


def autocast(settings: Training, device: torch.device) -> torch.autocast:
    """Return the context in which a network computes in the precision of the settings."""
    half = device.type == "cuda" and settings.precision != "float32"
    return torch.autocast(device.type, getattr(torch, settings.precision), enabled=half)


@contextmanager
def cudnn_settings(settings: Training, device: torch.device, *, fixed_shape: bool) -> Iterator[None]:
    """Let cuDNN use TF32 if the settings say so, and try its algorithms where all inputs have one shape."""
    if device.type != "cuda":
        yield
        return
    before = cudnn.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32, cudnn.benchmark = settings.tf32, fixed_shape
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = before


def decisive_for_scores(settings: Training, device: torch.device) -> dict[str, Any]:
    """Return what the scores of given weights depend on, where it is not the default: nothing on a CPU."""
    if device.type != "cuda":
        return {}
    changed = {"precision": settings.precision, "tf32": settings.tf32}
    return {name: value for name, value in changed.items() if value != Training.model_fields[name].default}
