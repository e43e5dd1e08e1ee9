"""The hand-made losses that the paper compares with.

All are multi-class, take (N, C, H, W) logits (C = 1: binary) and (N, H, W) labels, leave void out, and are finite and
connected to the logits on every batch. Libraries have most of them, but torch's cross entropy is NaN on a batch of
void alone, smp's soft cross entropy divides by void pixels too, smp's Lovász fails without valid pixels, and
none can normalise over all processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoseg.errors import InputError, unknown
from autoseg.losses.batch import check_batch, ranks, sum_over_ranks
from autoseg.losses.curves import as_numbers
from autoseg.metrics import formula
from autoseg.metrics.counts import check_ignore_index, edges


class _Loss(nn.Module):
    """A loss that `loss` computes from checked logits and labels, in which void is C."""

    def __init__(self, ignore_index: int | None = 255, *, sync: bool = False, group: Any = None) -> None:
        super().__init__()
        self.ignore_index = check_ignore_index(ignore_index)
        self.sync, self.group = sync, group

    def extra_repr(self) -> str:
        """Describe the loss in one line."""
        return f"ignore_index={self.ignore_index}, sync={self.sync}"

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch, computed in float32 (float64, if the logits are)."""
        logits, labels = check_batch(logits, target)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        with torch.autocast(logits.device.type, enabled=False):
            return self.loss(logits, labels.known(logits.shape[1], self.ignore_index))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        raise NotImplementedError


class _PixelLoss(_Loss):
    """A loss that is a mean over pixels.

    Args:
        mean_over: "valid": the mean over pixels with a label. "all": the sum over those, divided by the number of all
            pixels, void and padding included, as mmsegmentation does, on which the release is built.
    """

    def __init__(
        self,
        ignore_index: int | None = 255,
        *,
        mean_over: Literal["valid", "all"] = "valid",
        sync: bool = False,
        group: Any = None,
    ) -> None:
        super().__init__(ignore_index, sync=sync, group=group)
        if mean_over not in ("valid", "all"):
            raise unknown("choice", str(mean_over), ["valid", "all"], where="mean_over")
        self.mean_over = mean_over

    def extra_repr(self) -> str:
        """Describe the loss in one line."""
        return f"{super().extra_repr()}, mean_over={self.mean_over}"

    def _mean(self, total: Tensor, valid: Tensor, pixels: int) -> Tensor:
        """Return the total over its count, `valid` or all `pixels`, or 0 where nothing counts.

        With `sync` the count is that of all ranks, and the total is scaled by the number of ranks, so that the ranks'
        average is the mean over the pixels of all ranks.
        """
        count = valid if self.mean_over == "valid" else torch.full_like(valid, pixels)
        count = count.to(total.dtype)
        if (world := ranks(self.sync, self.group)) > 1:
            count = count.clone()
            torch.distributed.all_reduce(count, group=self.group)
            total = total * world
        return total / torch.where(count > 0, count, torch.ones_like(count))


class CrossEntropyLoss(_PixelLoss):
    """Cross entropy; weighted by class if `class_counts` are given (WCE).

    The weights are the inverse frequencies, after U-Net: total / (C count), so that they average 1 over the pixels
    counted; a class never counted gets the greatest weight.
    """

    def __init__(
        self,
        ignore_index: int | None = 255,
        *,
        class_counts: Sequence[int] | None = None,
        mean_over: Literal["valid", "all"] = "valid",
        sync: bool = False,
        group: Any = None,
    ) -> None:
        super().__init__(ignore_index, mean_over=mean_over, sync=sync, group=group)
        self.weight: Tensor | None
        weight = None if class_counts is None else _inverse_frequencies(class_counts)
        self.register_buffer("weight", weight, persistent=False)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return sum w_y CE over valid pixels, divided by their sum of w_y or by the number of all pixels."""
        classes = logits.shape[1]
        weight = None
        if self.weight is not None:
            if len(self.weight) != classes:
                raise InputError(
                    f"has {len(self.weight)} numbers",
                    where="class_counts",
                    expected=f"one for each of {classes} classes",
                )
            weight = self.weight.to(logits)
        total = F.cross_entropy(logits, labels, weight, ignore_index=classes, reduction="sum")
        areas = torch.bincount(labels.view(-1), minlength=classes + 1)[:classes]
        return self._mean(total, areas.sum() if weight is None else (areas * weight).sum(), labels.numel())


def _inverse_frequencies(class_counts: Sequence[int]) -> Tensor:
    counts = torch.tensor(as_numbers(class_counts, "class_counts"), dtype=torch.float64)
    if not bool(((counts >= 0) & counts.isfinite()).all()) or not counts.sum() > 0:
        expected = "pixel counts, 0 or more, not all 0"
        raise InputError(f"found {list(class_counts)}", where="class_counts", expected=expected)
    present = counts > 0
    weight = counts.sum() / (present.sum() * torch.where(present, counts, torch.ones_like(counts)))
    return torch.where(present, weight, weight[present].max()).float()


class DPCELoss(_PixelLoss):
    """DPCE (Caliva et al. 2019): cross entropy, weighted by 1 + a map that is 1 at class boundaries and falls to 0.

    The map is the distance to the nearest boundary of the target, reverted and scaled by its maximum over the image.
    """

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean of (1 + closeness) CE."""
        classes = logits.shape[1]
        pixelwise = F.cross_entropy(logits, labels, ignore_index=classes, reduction="none")
        weight = 1 + closeness_to_boundary(labels, classes).to(logits)
        return self._mean((pixelwise * weight).sum(), (labels != classes).sum(), labels.numel())


def closeness_to_boundary(labels: Tensor, num_classes: int) -> Tensor:
    """Return 1 - distance to the nearest boundary / the greatest such distance, per image; 0 without a boundary.

    Void, with which crops are padded, makes no boundary and is left out of the greatest distance.
    """
    import numpy as np
    from scipy.ndimage import distance_transform_edt

    void = labels == num_classes
    maps = []
    for edge, valid in zip(edges(labels, num_classes, void).cpu().numpy(), (~void).cpu().numpy(), strict=True):
        distance = distance_transform_edt(~edge) if edge.any() else np.zeros(edge.shape)
        greatest = distance[valid].max(initial=0.0)
        maps.append(np.clip(1 - distance / greatest, 0, 1) if greatest > 0 else edge.astype(float))
    return torch.from_numpy(np.stack(maps)) if maps else torch.zeros(labels.shape)


class SSIMLoss(_PixelLoss):
    """SSIM (after BASNet): 1 - the structural similarity of probabilities and target, the mean over pixels and classes.

    An 11x11 Gaussian window of sigma 1.5; void pixels are 0 in both maps and left out of the mean. BASNet adds cross
    entropy and IoU; the paper does not say whether it does: write "ce + ssim" for a sum.
    """

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 - mean SSIM."""
        classes = logits.shape[1]
        valid = (labels != classes).unsqueeze(1).to(logits.dtype)
        p = logits.softmax(1) * valid
        y = formula.one_hot(labels, classes, None).to(logits.dtype)
        mean_p, mean_y = _blur(p), _blur(y)
        var_p, var_y = _blur(p * p) - mean_p**2, _blur(y * y) - mean_y**2
        covariance = _blur(p * y) - mean_p * mean_y
        c1, c2 = 0.01**2, 0.03**2
        ssim = ((2 * mean_p * mean_y + c1) * (2 * covariance + c2)) / (
            (mean_p**2 + mean_y**2 + c1) * (var_p + var_y + c2)
        )
        return self._mean(((1 - ssim) * valid).sum(), valid.sum() * classes, labels.numel() * classes)


def _blur(x: Tensor, radius: int = 5, sigma: float = 1.5) -> Tensor:
    offsets = torch.arange(-radius, radius + 1, dtype=x.dtype, device=x.device)
    kernel = torch.exp(-(offsets**2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).view(1, 1, 1, -1)
    planes = x.reshape(-1, 1, *x.shape[2:])
    planes = F.conv2d(planes, kernel, padding=(0, radius))
    return F.conv2d(planes, kernel.transpose(2, 3), padding=(radius, 0)).view_as(x)


class DiceLoss(_Loss):
    """Dice loss: 1 - the mean over classes in the batch of 2 sum(p y) / (sum p + sum y); squared: sum p^2 (V-Net)."""

    def __init__(
        self, ignore_index: int | None = 255, *, squared: bool = False, sync: bool = False, group: Any = None
    ) -> None:
        super().__init__(ignore_index, sync=sync, group=group)
        self.squared = squared

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 - mean Dice."""
        classes = logits.shape[1]
        p, void = logits.softmax(1), labels == classes
        p = p * (~void).unsqueeze(1).to(p.dtype)
        true = p.gather(1, labels.masked_fill(void, 0).unsqueeze(1))
        inter = p.new_zeros(classes + 1).index_add(0, labels.view(-1), true.reshape(-1))[:classes]
        size = (p * p if self.squared else p).sum((0, 2, 3))
        area = torch.bincount(labels.view(-1), minlength=classes + 1)[:classes].to(p.dtype)
        sums = torch.stack([inter, size, area])
        if ranks(self.sync, self.group) > 1:
            sums = sum_over_ranks(sums, self.group)
        inter, size, area = sums
        dice = 2 * inter / (size + area).clamp(min=1e-8)
        present = (area > 0).to(p.dtype)
        return (present * (1 - dice)).sum() / present.sum().clamp(min=1) + 0 * dice.sum()


class ReleasedDiceLoss(_Loss):
    """Dice as in the release (mmsegmentation's): the mean over images and all classes, squared terms, smooth 1.

    1 - (2 sum(p y) + 1) / (sum(p^2) + sum(y) + 1). Void is left out of the upper sum only: below, it counts in p, and
    as pixels of the last class in y.
    """

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 - mean Dice."""
        classes = logits.shape[1]
        p, valid = logits.softmax(1), (labels != classes).unsqueeze(1)
        y = F.one_hot(labels.clamp(max=classes - 1), classes).permute(0, 3, 1, 2).to(p.dtype)
        upper = 2 * (p * y * valid).sum((2, 3)) + 1
        return 1 - (upper / ((p * p + y).sum((2, 3)) + 1)).mean() if len(p) else p.sum()


class LovaszLoss(_Loss):
    """Lovász-softmax (Berman et al. 2018), over the classes in the batch, all images together.

    It sorts all pixels of a class. So each process takes its own batch, also with `sync`.
    """

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over present classes of the Lovász extension of the Jaccard loss of the errors."""
        classes = logits.shape[1]
        p = logits.softmax(1).permute(1, 0, 2, 3).reshape(classes, -1)
        flat = labels.view(-1)
        valid = flat != classes
        p, flat = p[:, valid], flat[valid]
        losses = []
        for c in flat.unique().tolist():
            foreground = (flat == c).to(p.dtype)
            errors, order = (foreground - p[c]).abs().sort(descending=True)
            hits = foreground[order]
            missed, extra = hits.cumsum(0), (1 - hits).cumsum(0)
            jaccard = 1 - (hits.sum() - missed) / (hits.sum() + extra)
            losses.append(errors @ torch.cat([jaccard[:1], jaccard.diff()]))
        return torch.stack(losses).mean() if losses else logits[:0].sum()  # 0, but connected
