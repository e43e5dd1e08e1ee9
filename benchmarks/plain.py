"""The paper's formulas in plain torch: one-hot maps, 3x3 min-pooling, max-pooling for tolerance and band, sums.

The yardstick of `make bench-metrics`: what one writes first. Written once, then left alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Return (N, C, H, W) float maps; void is all zeros."""
    return torch.stack([labels == c for c in range(num_classes)], dim=1).float()


def boundary(y: Tensor) -> Tensor:
    """Return y XOR min-pool(y)."""
    return y - (-F.max_pool2d(-y, 3, stride=1, padding=1))


def six_metrics(
    pred: Tensor, target: Tensor, num_classes: int, tolerance: int = 5, radius: int = 5, drop_background: bool = True
) -> dict[str, float]:
    """Return the six metrics of integer label maps (N, H, W); labels outside 0 .. num_classes - 1 are void."""
    y_hat, y = one_hot(pred, num_classes), one_hot(target, num_classes)
    first = 1 if drop_background else 0
    valid = y.sum(1, keepdim=True)
    edge_hat, edge = boundary(y_hat), boundary(y)
    band = F.max_pool2d(edge[:, first:].amax(1, keepdim=True), 2 * radius + 1, stride=1, padding=radius)

    def pixels(x: Tensor) -> Tensor:
        return x.sum((0, 2, 3), dtype=torch.float64)

    inter, union, area = pixels(y_hat * y), pixels((y_hat + y - y_hat * y) * valid), pixels(y)
    band_inter, band_union = pixels(y_hat * y * band), pixels((y_hat + y - y_hat * y) * valid * band)
    near_hat = F.max_pool2d(edge_hat, 2 * tolerance + 1, stride=1, padding=tolerance)
    near = F.max_pool2d(edge, 2 * tolerance + 1, stride=1, padding=tolerance)
    precision = (pixels(edge_hat * near) / pixels(edge_hat)).nan_to_num(0.0)
    recall = pixels(near_hat * edge) / pixels(edge)
    f1 = (2 * precision * recall / (precision + recall)).nan_to_num(0.0)
    iou = inter / union
    return {
        "mIoU": iou.nanmean().item(),
        "FWIoU": (area / area.sum() * iou.nan_to_num(0.0)).sum().item(),
        "BIoU": (band_inter / band_union).nanmean().item(),
        "BF1": f1[first:][pixels(edge)[first:] > 0].mean().item(),
        "mAcc": (inter / area).nanmean().item(),
        "gAcc": (inter.sum() / area.sum()).item(),
    }
