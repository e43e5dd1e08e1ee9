"""The hand-made losses that the paper compares with, sums of losses, and `build_loss`: every loss by its name.

All are multi-class, take (N, C, H, W) logits (C = 1: binary) and (N, H, W) labels, leave void out everywhere, and are
finite and connected to the logits on every batch. Why not a library's: torch's cross entropy is NaN on an all-void
batch, smp's soft cross entropy divides by void pixels too, smp's Lovász fails without valid pixels, V-Net's Dice
squares its terms while others do not, and none of them can normalise over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoseg import formula
from autoseg.curves import as_numbers
from autoseg.errors import InputError, unknown
from autoseg.loss_names import HAND_MADE, parse_terms, unknown_loss
from autoseg.metrics import check_ignore_index, edges
from autoseg.surrogate_json import Surrogate, parse_conventions, resolve
from autoseg.surrogates import SurrogateLoss, check_batch, ranks

__all__ = [
    "HAND_MADE",
    "CrossEntropy",
    "Dice",
    "DistancePenalisedCE",
    "LossSum",
    "LovaszSoftmax",
    "StructuralSimilarity",
    "build_loss",
    "loss_identity",
    "parse_terms",
]


class _Loss(nn.Module):
    """A loss of checked logits and labels, C for void."""

    def __init__(self, ignore_index: int | None = 255, *, sync: bool = False, group: Any = None) -> None:
        super().__init__()
        self.ignore_index = check_ignore_index(ignore_index)
        self.sync, self.group = sync, group

    def extra_repr(self) -> str:
        """Describe the loss in one line."""
        return f"ignore_index={self.ignore_index}, sync={self.sync}"

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch, computed in float32 (float64, if the logits are)."""
        logits, labels = check_batch(logits, target, self.ignore_index)
        with torch.autocast(logits.device.type, enabled=False):
            return self.loss(logits, labels.long())

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        raise NotImplementedError

    def _mean(self, total: Tensor, count: Tensor) -> Tensor:
        """Return total / count, or 0 where nothing counts; with `sync` the count is that of all ranks.

        Then the sum is scaled by the number of ranks, so that their average is the mean over all pixels of all ranks.
        """
        count = count.to(total.dtype)
        if (world := ranks(self.sync, self.group)) > 1:
            count = count.clone()
            torch.distributed.all_reduce(count, group=self.group)
            total = total * world
        return total / torch.where(count > 0, count, torch.ones_like(count))


class CrossEntropy(_Loss):
    """Cross entropy, the mean over valid pixels; weighted by class if `class_counts` are given (WCE).

    The weights are the inverse frequencies, after U-Net: total / (C count), so that they average 1 over the pixels
    counted; a class never counted gets the greatest weight.
    """

    def __init__(
        self,
        ignore_index: int | None = 255,
        *,
        class_counts: Sequence[int] | None = None,
        sync: bool = False,
        group: Any = None,
    ) -> None:
        super().__init__(ignore_index, sync=sync, group=group)
        self.weight: Tensor | None
        weight = None if class_counts is None else _inverse_frequencies(class_counts)
        self.register_buffer("weight", weight, persistent=False)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return sum w_y CE / sum w_y over valid pixels."""
        classes = logits.shape[1]
        weight = None
        if self.weight is not None:
            if len(self.weight) != classes:
                raise InputError(
                    f"class_counts has {len(self.weight)} numbers; expected one for each of {classes} classes."
                )
            weight = self.weight.to(logits)
        total = F.cross_entropy(logits, labels, weight, ignore_index=classes, reduction="sum")
        areas = torch.bincount(labels.view(-1), minlength=classes + 1)[:classes]
        return self._mean(total, areas.sum() if weight is None else (areas * weight).sum())


def _inverse_frequencies(class_counts: Sequence[int]) -> Tensor:
    counts = torch.tensor(as_numbers(class_counts, "class_counts"), dtype=torch.float64)
    if not bool(((counts >= 0) & counts.isfinite()).all()) or not counts.sum() > 0:
        raise InputError(f"class_counts is {list(class_counts)}; expected pixel counts, 0 or more, not all 0.")
    present = counts > 0
    weight = counts.sum() / (present.sum() * torch.where(present, counts, torch.ones_like(counts)))
    return torch.where(present, weight, weight[present].max()).float()


class DistancePenalisedCE(_Loss):
    """DPCE (Caliva et al. 2019): cross entropy, weighted by 1 + a map that is 1 at class boundaries and falls to 0.

    The map is the distance to the nearest boundary of the target, reverted and scaled by its maximum over the image.
    """

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over valid pixels of (1 + closeness) CE."""
        classes = logits.shape[1]
        pixelwise = F.cross_entropy(logits, labels, ignore_index=classes, reduction="none")
        weight = 1 + closeness_to_boundary(labels, classes).to(logits)
        return self._mean((pixelwise * weight).sum(), (labels != classes).sum())


def closeness_to_boundary(labels: Tensor, num_classes: int) -> Tensor:
    """Return 1 - distance to the nearest boundary / the greatest such distance, per image; 0 without a boundary.

    Void makes no boundary and sets no scale: crops are padded with it.
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


class StructuralSimilarity(_Loss):
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
        return self._mean(((1 - ssim) * valid).sum(), valid.sum() * classes)


def _blur(x: Tensor, radius: int = 5, sigma: float = 1.5) -> Tensor:
    offsets = torch.arange(-radius, radius + 1, dtype=x.dtype, device=x.device)
    kernel = torch.exp(-(offsets**2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).view(1, 1, 1, -1)
    planes = x.reshape(-1, 1, *x.shape[2:])
    planes = F.conv2d(planes, kernel, padding=(0, radius))
    return F.conv2d(planes, kernel.transpose(2, 3), padding=(radius, 0)).view_as(x)


class Dice(_Loss):
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
            sums = _sum_over_ranks(sums, self.group)
        inter, size, area = sums
        dice = 2 * inter / (size + area).clamp(min=1e-8)
        present = (area > 0).to(p.dtype)
        return (present * (1 - dice)).sum() / present.sum().clamp(min=1) + 0 * dice.sum()


def _sum_over_ranks(local: Tensor, group: Any) -> Tensor:
    """Return the sum over ranks; the gradient reaches the local part, scaled for averaging over ranks."""
    total = local.detach().clone()
    torch.distributed.all_reduce(total, group=group)
    return total + (local - local.detach()) * torch.distributed.get_world_size(group)


class LovaszSoftmax(_Loss):
    """Lovász-softmax (Berman et al. 2018), over the classes in the batch, all images together.

    It sorts all pixels of a class, so with several ranks each takes its own batch, whatever `sync` says.
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


class LossSum(nn.Module):
    """A weighted sum of losses, such as the paper's "mIoU + BIoU"."""

    def __init__(self, terms: Sequence[tuple[float, nn.Module]]) -> None:
        super().__init__()
        self.weights = [float(weight) for weight, _ in terms]
        self.losses = nn.ModuleList([loss for _, loss in terms])

    def extra_repr(self) -> str:
        """Describe the sum in one line."""
        return f"weights={self.weights}"

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the sum of weight x loss."""
        values = [weight * loss(logits, target) for weight, loss in zip(self.weights, self.losses, strict=True)]
        return torch.stack(values).sum()


def build_loss(
    spec: str,
    *,
    ignore_index: int | None = 255,
    class_counts: Sequence[int] | None = None,
    searched: Mapping[str, str] | None = None,
    sync: bool = False,
    **conventions: Any,
) -> nn.Module:
    """Return a loss by its name, or a sum of losses.

    Args:
        spec: "ce", "wce", "dpce", "ssim", "dice", "dice-squared", "lovasz", "naive:METRIC" (a surrogate without
            parameters), "published:NAME", "searched:SEARCH", the path of a surrogate.json, or a sum of such, with
            weights: "published:mIoU + 0.5 * published:BIoU" (spaces around the plus).
        ignore_index: the label of void pixels.
        class_counts: pixels of each class in the training set, which "wce" needs.
        searched: for "searched:SEARCH", the surrogate.json of each search by its name.
        sync: normalise over the batches of all ranks in distributed training.
        conventions: for "naive:" and "published:", see `autoseg.formula.Conventions`, where VOC's are not wanted. A
            surrogate.json has its own.

    >>> build_loss("dice")(torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long))
    tensor(0.3333)
    """
    parse_conventions(conventions)
    terms = [
        (weight, _one(name, ignore_index, class_counts, searched or {}, sync, conventions))
        for weight, name in parse_terms(spec)
    ]
    return terms[0][1] if len(terms) == 1 and terms[0][0] == 1 else LossSum(terms)


def loss_identity(spec: str, searched: Mapping[str, str] | None = None) -> list[Any]:
    """Return what a loss is, for fingerprints: surrogate files count by their content, not by their place.

    >>> loss_identity("0.5 * ce")
    [[0.5, 'ce']]
    """
    found: list[Any] = []
    for weight, name in parse_terms(spec):
        kind, _, rest = name.partition(":")
        file = name if name.endswith(".json") else None
        if kind.lower() == "searched":
            file = (searched or {}).get(rest)
        found.append([weight, Surrogate.load(file).model_dump(exclude={"source"}) if file else name])
    return found


def _one(
    name: str,
    ignore_index: int | None,
    class_counts: Sequence[int] | None,
    searched: Mapping[str, str],
    sync: bool,
    conventions: Mapping[str, Any],
) -> nn.Module:
    key = name.lower()
    if key == "wce" and class_counts is None:
        raise InputError(
            "the loss 'wce' weighs classes by their frequency; give class_counts, the pixels of each class."
        )
    hand_made = {
        "ce": lambda: CrossEntropy(ignore_index, sync=sync),
        "wce": lambda: CrossEntropy(ignore_index, class_counts=class_counts, sync=sync),
        "dpce": lambda: DistancePenalisedCE(ignore_index, sync=sync),
        "ssim": lambda: StructuralSimilarity(ignore_index, sync=sync),
        "dice": lambda: Dice(ignore_index, sync=sync),
        "dice-squared": lambda: Dice(ignore_index, squared=True, sync=sync),
        "lovasz": lambda: LovaszSoftmax(ignore_index, sync=sync),
    }
    if key in hand_made:
        return hand_made[key]()
    kind, _, rest = name.partition(":")
    kind = kind.lower()
    if kind in ("published", "naive"):
        own = parse_conventions(conventions)
        found = resolve(name).model_copy(update={"conventions": own})
        return SurrogateLoss(found, ignore_index=ignore_index, sync=sync)
    if kind == "searched":
        if not searched:
            raise InputError(f"the loss '{name}' names a search, but no searches were given here.")
        if rest not in searched:
            raise unknown("search", rest, searched)
        return SurrogateLoss.load(searched[rest], ignore_index=ignore_index, sync=sync)
    if name.endswith(".json"):
        return SurrogateLoss.load(name, ignore_index=ignore_index, sync=sync)
    raise unknown_loss(name)
