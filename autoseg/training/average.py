"""The exponential moving average of a network's weights over the steps of a training."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Average:
    """An average of all weights and batch statistics: a <- d a + (1 - d) w after each step.

    Early on d is smaller, (1 + t) / (10 + t) after t steps, so that a short training forgets where it began.

    >>> network = nn.Linear(1, 1)
    >>> average = Average(network, 0.999)
    >>> _ = network.weight.data.fill_(1.0)
    >>> average.update(network, step=1000)
    >>> average.put_into(network)
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {name: value.detach().clone() for name, value in network.state_dict().items()}

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Take in the weights after a step; `step` is its number, from 1."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        now = network.state_dict()
        averaged = [name for name, value in now.items() if value.is_floating_point()]
        torch._foreach_lerp_([self.state[name] for name in averaged], [now[name] for name in averaged], share)
        for name in now.keys() - set(averaged):  # counts of batches
            self.state[name].copy_(now[name])

    def put_into(self, network: nn.Module) -> None:
        """Give the network the averaged weights."""
        network.load_state_dict(self.state)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state that a checkpoint kept."""
        for name, value in state.items():
            self.state[name].copy_(value)
