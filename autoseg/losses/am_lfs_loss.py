"""The loss of AM-LFS (Li et al. 2019): the mean of -log tau(p), p the probability of the pixel's label."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autoseg.errors import InputError
from autoseg.losses.am_lfs import FAMILY
from autoseg.losses.hand_made import PixelLoss
from autoseg.losses.labels import Labels
from autoseg.losses.surrogate import Surrogate
from autoseg.metrics.counts import IgnoreIndex

FLOOR = 1e-6
"""The least tau: a sampled slope and offset can make it negative, where there is no logarithm. The slope is 0 there."""


class AMLFSLoss(PixelLoss):
    """Cross entropy whose probability passes a piecewise linear function, as AM-LFS searches it.

    Args:
        surrogate: of the family "am-lfs".
        ignore_index, common: see `autoseg.losses.batch.Loss`.

    >>> loss = AMLFSLoss(Surrogate.make("mIoU", family="am-lfs"))  # tau(p) = p: cross entropy
    >>> round(loss(torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long)).item(), 4)
    0.6931
    """

    takes_volumes = True

    def __init__(self, surrogate: Surrogate, ignore_index: IgnoreIndex = "auto", **common: Any) -> None:
        super().__init__(ignore_index, **common)
        if surrogate.family != FAMILY:
            raise InputError(f"found family '{surrogate.family}'", where="surrogate", expected=f"'{FAMILY}'")
        self.surrogate = surrogate
        self.tau = surrogate.space.curve_of(surrogate.control_points)

    def extra_repr(self) -> str:
        """Describe the loss in one line."""
        return f"{self.surrogate.summary}, {super().extra_repr()}"

    def of_labels(self, logits: Tensor, known: Tensor, labels: Labels) -> Tensor:
        """Return the mean of -log tau(p_y)."""
        classes = logits.shape[1]
        cross_entropy = F.cross_entropy(logits, known, ignore_index=classes, reduction="none")
        p = torch.exp(-cross_entropy)
        logarithm = self.tau(p).clamp(min=FLOOR).log()
        first, width = self.tau.pieces[0], self.tau.pieces[0].b
        if first.v0 == 0 and first.c > 0:  # log(a p) = log a + log p, also where p is 0 in float32
            exact = math.log(first.c / first.b) - cross_entropy
            logarithm = torch.where(p < width, exact, logarithm)
        valid = known != classes
        return self._scaled_mean(-logarithm, valid.to(logarithm.dtype), known, classes)
