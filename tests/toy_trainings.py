"""Training functions of a search in Python, which worker processes import."""

from __future__ import annotations

from typing import Any


def train(loss: Any) -> dict[str, float]:
    """Return scores that follow from the loss's curves alone."""
    return {"mIoU": 1 - sum((x - 0.4) ** 2 for x in loss.surrogate.theta), "BF1": 0.5}
