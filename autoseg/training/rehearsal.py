"""A look at a network before it is trained: it is built, takes its weights, and a batch goes through it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from autoseg.errors import InputError
from autoseg.training.foreign import Foreign
from autoseg.training.networks import Network, build_network


def rehearse(
    name: str,
    num_classes: int,
    crop: tuple[int, int],
    *,
    weights: str | None = None,
    checkpoint: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Network | Foreign:
    """Return a network that has shown that it can be built and, if it is not of this toolkit, that it gives logits.

    Two images of the crop's size, of noise, go through it in training mode, and one of another, odd size in evaluation
    mode, as whole images are scored.
    """
    network = build_network(name, num_classes, weights, checkpoint=checkpoint, options=options)
    if not isinstance(network, Foreign):
        return network
    where = f"network '{name}'"
    generator = torch.Generator().manual_seed(0)
    for training, shape in ((True, (2, 3, *crop)), (False, (1, 3, crop[0] + 3, crop[1] + 5))):
        images = torch.randn(shape, generator=generator)
        try:
            with torch.no_grad():
                found = network.train(training)(images)
        except InputError:
            raise
        except Exception as error:  # a training names these otherwise: no memory, or a batch that is too small
            raise network.failure(images, error) from None
        if not all(bool(logits.isfinite().all()) for logits in (found if training else [found])):
            mode = "training" if training else "evaluation"
            raise InputError(f"gives logits that are not finite in {mode} mode", where=where)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError("has no parameter that learns", where=where, expected="one that requires a gradient")
    return network
