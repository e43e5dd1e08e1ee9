"""A look at a network before it is trained: it is built, takes its weights, and a batch of zeros goes through it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from autoseg.errors import InputError
from autoseg.training.foreign import Foreign, described
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

    Two images of the crop's size go through it in training mode, and one of another, odd size in evaluation mode, as
    whole images are scored.
    """
    network = build_network(name, num_classes, weights, checkpoint=checkpoint, options=options)
    if not isinstance(network, Foreign):
        return network
    for training, shape in ((True, (2, 3, *crop)), (False, (1, 3, crop[0] + 3, crop[1] + 5))):
        try:
            with torch.no_grad():
                network.train(training)(torch.zeros(shape))
        except InputError:
            raise
        except Exception as error:  # whatever a module may raise
            cure = "if sides must be multiples of a number, give the module an attribute `size_multiple`"
            what = f"fails on images {shape} in {'training' if training else 'evaluation'} mode: {described(error)}"
            raise InputError(what, where=f"network '{name}'", cure=cure) from None
    return network
