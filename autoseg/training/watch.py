"""Watching the losses of a training without waiting for the device at every step.

A GPU runs behind the host: to read a number from it, the host waits until all its work is done. So losses stay on the
device, and the host reads them every `LOOK_EVERY` steps. The weights are safe in between: after the first loss that is
not finite, all losses and their gradients are NaN, and the device skips steps with such a loss.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

LOOK_EVERY = 20  # steps


def works_behind(device: torch.device) -> bool:
    """Return whether the device works behind the host, so that reading a value from it means waiting."""
    return device.type == "cuda"


class Watch:
    """The losses of a training, kept on the device until the next look.

    >>> watch = Watch(torch.device("cpu"))
    >>> for loss in (0.5, float("inf"), 0.25):
    ...     passed, skip = watch.passed(torch.tensor(loss)), watch.end_step(stop=False)
    >>> watch.look()
    [(0.5, False), (nan, False), (nan, False)]
    """

    def __init__(self, device: torch.device, world: int = 1) -> None:
        self.world = world
        self.gate = torch.ones((), device=device)  # NaN after the first loss that is not finite
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.unseen: list[Tensor] = []

    def passed(self, loss: Tensor) -> Tensor:
        """Add a part of a step's loss; return it, with a gradient of NaN if it or an earlier one is not finite."""
        self.gate = torch.where(loss.detach().isfinite(), self.gate, torch.nan)
        loss = loss * self.gate
        self.loss += loss.detach()
        return loss

    def end_step(self, stop: bool) -> Tensor:
        """End a step, in which this process was told to stop or not; return 1 if it must be skipped, otherwise 0."""
        step = reduced(torch.stack([self.loss, torch.full_like(self.loss, stop)]), self.world)
        self.unseen.append(step)
        self.loss = torch.zeros_like(self.loss)
        finite = step[0].isfinite()  # false if that of any process is not: all processes skip the same steps
        self.gate = torch.where(finite, self.gate, torch.nan)
        return (~finite).float()

    def look(self) -> list[tuple[float, bool]]:
        """Return, of each step since the last look, the mean loss of all processes, and whether one was told to stop.

        This is the only place where the host waits for the device.
        """
        steps = torch.stack(self.unseen).tolist()
        self.unseen.clear()
        return [(loss / self.world, stops > 0) for loss, stops in steps]


def reduced(value: Tensor, world: int) -> Tensor:
    """Return the sum over all processes, in place."""
    if world > 1:
        dist.all_reduce(value)
    return value
