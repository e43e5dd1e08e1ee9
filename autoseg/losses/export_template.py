"""A loss for semantic segmentation, searched for a metric (Auto Seg-Loss), in one file that needs torch alone.

ABOUT

Written by autoseg VERSION, from its own sources. `autoseg.SurrogateLoss` gives the same value and gradient, faster and
with less memory. Use:

    loss = Loss(ignore_index=255)
    loss(logits, target).backward()     # logits (N, C, H, W), C = 1 for two classes; target (N, H, W), whole numbers
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoseg.losses.curves import Curve
from autoseg.metrics.conventions import Conventions
from autoseg.metrics.formula import Formula

# SOURCES

# The surrogates that the loss is a weighted sum of.
TERMS: list[dict[str, Any]] = []


class Loss(torch.nn.Module):
    """The weighted sum of 1 - each surrogate; pixels labelled `ignore_index`, or with no class's number, are void.

    `has_background` says whether class 0 of the data is a background. If not, it is never left out.
    """

    def __init__(self, ignore_index: int | None = 255, has_background: bool = True) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        self.has_background = has_background

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if logits.shape[1] == 1:  # two classes, with the probabilities 1 - p and p
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
        with torch.autocast(logits.device.type, enabled=False):
            classes = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
            y = target.unsqueeze(1) == classes
            if self.ignore_index is not None:
                y = y & (target != self.ignore_index).unsqueeze(1)
            y_hat, y = logits.softmax(1), y.to(logits.dtype)
            losses = [term["weight"] * self.term(y_hat, y, **term) for term in TERMS]
            return torch.stack(losses).sum().to(logits.dtype)

    def term(
        self, y_hat: Tensor, y: Tensor, formula: Formula, conventions: Any, operators: dict, curves: dict, **_: Any
    ) -> Tensor:
        """Return 1 - one surrogate."""
        if not self.has_background:
            conventions = Conventions(**{**vars(conventions), "drop_background": False})
        g = {name: Curve(**curve) for name, curve in curves.items()}
        pairs = {operator: (g.get(a), g.get(b)) for operator, (a, b) in operators.items()}
        maps = formula.sum_maps(y_hat, y, y.sum(1, keepdim=True), conventions, pairs)
        sums = {name: value.double() for name, value in maps.items()}
        present = sums["target"] > 0 if conventions.absent == "skip" else None
        loss = 1 - formula.score(sums, conventions, present)
        finite = torch.stack([value.isfinite().all() for value in sums.values()]).all()
        return torch.where(finite, loss, torch.nan)
