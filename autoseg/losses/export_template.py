"""A loss for semantic segmentation, searched for a metric (Auto Seg-Loss), in one file that needs torch alone.

ABOUT

Written by autoseg VERSION, from its own sources. `autoseg.SurrogateLoss` gives the same value and gradient, faster and
with less memory. Use:

    loss = Loss(ignore_index=255)
    loss(logits, target).backward()     # logits (N, C, H, W), C = 1 for two classes; target (N, H, W), whole numbers

Volumes have a D before the H.

Without `ignore_index`, 255 is void, but more than 255 classes, and a target of two classes that holds 255 and no 1
(most likely a mask of 0 and 255), are refused. On a GPU a wrong label makes the loss NaN; elsewhere it is an error.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from autoseg.losses.curves import Curve
from autoseg.metrics.conventions import Conventions
from autoseg.metrics.formula import Formula
from autoseg.metrics.targets import stripped

# SOURCES

# The surrogates that the loss is a weighted sum of.
TERMS: list[dict[str, Any]] = []


def label_map(logits: Tensor, target: Tensor) -> Tensor:
    """Return the target, (N, H, W) or (N, 1, H, W), as (N, H, W); any other shape is an error."""
    if target.ndim == logits.ndim and target.shape[1] == 1:
        target = target.squeeze(1)
    if logits.ndim not in (4, 5) or target.shape != (logits.shape[0], *logits.shape[2:]):
        raise ValueError(
            f"logits have shape {tuple(logits.shape)} and the target has {tuple(target.shape)}; expected (N, C, H, W) "
            "and (N, H, W), with a D before the H in volumes, such as target.squeeze(1).long(), or target.argmax(1) of "
            "one-hot maps"
        )
    return target if target.is_floating_point() else target.long()  # few unsigned types can be compared


class Loss(torch.nn.Module):
    """The weighted sum of 1 - each surrogate; pixels labelled `ignore_index` are void, None: there are none.

    `has_background` says whether class 0 of the data is a background. If not, it is never left out.
    """

    def __init__(self, ignore_index: int | Literal["auto"] | None = "auto", has_background: bool = True) -> None:
        super().__init__()
        self.ignore_index = 255 if isinstance(ignore_index, str) else ignore_index
        self.guarded = isinstance(ignore_index, str)
        self.has_background = has_background

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch."""
        if not (isinstance(logits, Tensor) and isinstance(target, Tensor)):
            found = f"{type(logits).__name__} and {type(target).__name__}"
            raise ValueError(f"logits and target are {found}; expected tensors, such as torch.as_tensor(target)")
        logits, target = stripped(logits), stripped(target)
        target = label_map(logits, target)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if logits.shape[1] == 1:  # two classes, with the probabilities 1 - p and p
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
        with torch.autocast(logits.device.type, enabled=False):
            classes = torch.arange(logits.shape[1], device=logits.device).view(1, -1, *(1,) * (logits.ndim - 2))
            y = target.unsqueeze(1) == classes
            wrong = self.wrong(target, y)
            if self.ignore_index is not None:
                y = y & (target != self.ignore_index).unsqueeze(1)
            y_hat, y = logits.softmax(1), y.to(logits.dtype)
            losses = [term["weight"] * self.term(y_hat, y, **term) for term in TERMS]
            return torch.where(wrong, torch.nan, torch.stack(losses).sum()).to(logits.dtype)

    def wrong(self, target: Tensor, y: Tensor) -> Tensor:
        """Return whether a label is no class's, or may be void or the foreground; an error where that costs nothing."""
        classes = y.shape[1]
        if self.guarded and classes > 255:
            raise ValueError(f"with {classes} classes, 255 may be void or a class: say ignore_index, or None")
        void = torch.zeros_like(target, dtype=torch.bool) if self.ignore_index is None else target == self.ignore_index
        wrong = ~(y.any(1) | void).all()
        if self.guarded and classes == 2:
            wrong = wrong | (void.any() & ~(target == 1).any())
        if target.device.type == "cpu" and not torch.compiler.is_compiling() and wrong:
            raise ValueError(
                f"the target holds labels other than 0..{classes - 1} and ignore_index ({self.ignore_index}), or 0 and "
                "255 alone; give (target > 0).long() if 255 is the foreground, or say ignore_index=255"
            )
        return wrong

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
