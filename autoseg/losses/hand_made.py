"""Hand-made losses: those that the paper compares with, and later rivals (JML, DML, focal, Tversky, boundary).

All are multi-class, take (N, C, H, W) logits (C = 1: binary) and (N, H, W) labels, leave void out, and are finite and
connected to the logits on every batch. Libraries have most of them, but torch's cross entropy is NaN on a batch of
void alone, smp's soft cross entropy divides by void pixels too, smp's Lovász fails without valid pixels, and
none can normalise over all processes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from autoseg.errors import InputError, unknown
from autoseg.losses.batch import Loss, precise, ranks
from autoseg.losses.curves import Curve, Piece, as_numbers
from autoseg.losses.formula_loss import FormulaLoss
from autoseg.losses.kernels.similarity import Dissimilarity
from autoseg.losses.labels import Labels
from autoseg.metrics.conventions import Conventions
from autoseg.metrics.counts import IgnoreIndex
from autoseg.metrics.formula import Formula, ratio
from autoseg.metrics.targets import check_count


class _HandMade(Loss):
    """A loss that `of_labels` computes from logits in float32 or float64, and labels in int64, with C for void."""

    def loss(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return the loss; NaN, if it is on a GPU and a label is no class's."""
        classes, flat = logits.shape[1], labels.flattened()
        known = flat.known(classes, self.ignore_index).view(labels.target.shape)
        return flat.poison(self.of_labels(precise(logits), known, labels), classes, self.ignore_index)

    def of_labels(self, logits: Tensor, known: Tensor, labels: Labels) -> Tensor:
        """Return the loss."""
        raise NotImplementedError


class PixelLoss(_HandMade):
    """A loss that is a mean over pixels.

    Args:
        mean_over: "valid": the mean over pixels with a label. "all": the sum over those, divided by the number of all
            pixels, void and padding included, as mmsegmentation does, on which the release is built.
        ignore_index, common: see `autoseg.losses.batch.Loss`.
    """

    def __init__(
        self,
        ignore_index: IgnoreIndex = "auto",
        *,
        mean_over: Literal["valid", "all"] = "valid",
        **common: Any,
    ) -> None:
        super().__init__(ignore_index, **common)
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

    def _scaled_mean(self, pixelwise: Tensor, scale: Tensor, known: Tensor, classes: int) -> Tensor:
        """Return the mean of a loss of pixels, 0 in void, times a scale of each pixel and the weight of its class."""
        valid = known != classes
        if (weights := self.weights_of(classes)) is not None:
            valid = F.pad(weights.to(pixelwise.dtype), (0, 1))[known]
            scale = scale * valid
        return self._mean((pixelwise * scale).sum(), valid.sum(), known.numel())


class CrossEntropyLoss(PixelLoss):
    """Cross entropy; weighted by class if `class_counts` are given (WCE).

    The weights are the inverse frequencies, after U-Net: total / (C count), so that they average 1 over the pixels
    counted; a class never counted gets the greatest weight.
    """

    def __init__(
        self,
        ignore_index: IgnoreIndex = "auto",
        *,
        class_counts: Sequence[int] | None = None,
        mean_over: Literal["valid", "all"] = "valid",
        **common: Any,
    ) -> None:
        super().__init__(ignore_index, mean_over=mean_over, **common)
        self.weight: Tensor | None
        weight = None if class_counts is None else _inverse_frequencies(class_counts)
        self.register_buffer("weight", weight, persistent=False)

    def of_labels(self, logits: Tensor, known: Tensor, labels: Labels) -> Tensor:
        """Return sum w_y CE over valid pixels, divided by their sum of w_y or by the number of all pixels."""
        classes = logits.shape[1]
        weight = self.weights_of(classes)
        if self.weight is not None:
            of_counts = check_count(self.weight, classes, "class_counts")
            weight = of_counts if weight is None else of_counts * weight
        if weight is None:
            total = F.cross_entropy(logits, known, ignore_index=classes, reduction="sum")
            return self._mean(total, (known != classes).sum(), known.numel())
        weight = weight.to(logits.dtype)
        total = F.cross_entropy(logits, known, weight, ignore_index=classes, reduction="sum")
        return self._mean(total, F.pad(weight, (0, 1))[known].sum(), known.numel())


def _inverse_frequencies(class_counts: Sequence[int]) -> Tensor:
    counts = torch.tensor(as_numbers(class_counts, "class_counts"), dtype=torch.float64)
    if not bool(((counts >= 0) & counts.isfinite()).all()) or not counts.sum() > 0:
        expected = "pixel counts, 0 or more, not all 0"
        raise InputError(f"found {list(class_counts)}", where="class_counts", expected=expected)
    present = counts > 0
    weight = counts.sum() / (present.sum() * torch.where(present, counts, torch.ones_like(counts)))
    return torch.where(present, weight, weight[present].max()).float()


class FocalLoss(PixelLoss):
    """Focal loss (Lin et al. 2017): the mean of -(1 - p_y)^gamma log p_y; their alpha is `class_weights`."""

    def __init__(self, ignore_index: IgnoreIndex = "auto", *, gamma: float = 2.0, **common: Any) -> None:
        super().__init__(ignore_index, **common)
        if not (gamma == 0 or 1 <= gamma <= 100):  # between 0 and 1 the slope is infinite where p_y is 1
            raise InputError(f"found {gamma!r}", where="gamma", expected="0, or 1 to 100")
        self.gamma = float(gamma)

    def of_labels(self, logits: Tensor, known: Tensor, labels: Labels) -> Tensor:
        """Return the mean of (1 - p_y)^gamma CE."""
        classes = logits.shape[1]
        pixelwise = F.cross_entropy(logits, known, ignore_index=classes, reduction="none")
        hard = (-torch.expm1(-pixelwise)).clamp(min=0.0) ** self.gamma
        return self._scaled_mean(pixelwise, hard, known, classes)


class _DistanceLoss(PixelLoss):
    """A loss that is a mean over pixels, with distances in it.

    Args:
        spacing: the size of a pixel (H, W) or voxel (D, H, W), in whose unit the distances are; None: 1.
        ignore_index, mean_over, common: see `PixelLoss`.
    """

    sees_neighbours = True

    def __init__(
        self,
        ignore_index: IgnoreIndex = "auto",
        *,
        spacing: Sequence[float] | None = None,
        mean_over: Literal["valid", "all"] = "valid",
        **common: Any,
    ) -> None:
        super().__init__(ignore_index, mean_over=mean_over, **common)
        self.spacing = Conventions().replace(spacing=spacing).spacing


class DPCELoss(_DistanceLoss):
    """DPCE (Caliva et al. 2019): cross entropy, weighted by 1 + a map that is 1 at class boundaries and falls to 0.

    The map is the distance to the nearest boundary of the target, reverted and scaled by its maximum over the image.
    """

    def of_labels(self, logits: Tensor, known: Tensor, labels: Labels) -> Tensor:
        """Return the mean of (1 + closeness) CE."""
        classes = logits.shape[1]
        pixelwise = F.cross_entropy(logits, known, ignore_index=classes, reduction="none")
        near = 1 + labels.closeness(classes, self.ignore_index, self.spacing).to(logits.dtype)
        return self._scaled_mean(pixelwise, near, known, classes)


class BoundaryLoss(_DistanceLoss):
    """Boundary loss (Kervadec et al. 2019): the mean over pixels and classes of p times the signed distance.

    That is the distance to the nearest pixel of the class, and inside it minus that to the nearest pixel
    of another class, plus 1; 0 all over an image that has none of the class, or nothing else. Void is neither. The
    loss falls below 0. Alone it is least where nothing is predicted, so its authors add it to a loss of regions:
    "dice + 0.01 * boundary".
    """

    def of_labels(self, logits: Tensor, known: Tensor, labels: Labels) -> Tensor:
        """Return the mean of p_c distance_c."""
        classes = logits.shape[1]
        valid = known != classes
        integrand = logits.softmax(1) * labels.signed_distances(classes, self.ignore_index, self.spacing).to(
            logits.dtype
        )
        integrand = integrand * valid.unsqueeze(1)
        weights = self.weights_of(classes)
        if weights is None:
            return self._mean(integrand.sum(), valid.sum() * classes, known.numel() * classes)
        weights = weights.to(logits.dtype)
        total = (integrand.flatten(2).sum((0, 2)) * weights).sum()
        return self._mean(total, valid.sum() * weights.sum(), known.numel() * classes)


class SSIMLoss(PixelLoss):
    """SSIM (after BASNet): 1 - the structural similarity of probabilities and target, the mean over pixels and classes.

    An 11x11 Gaussian window of sigma 1.5 (in volumes 11x11x11, whatever their spacing); void pixels are 0 in both maps
    and left out of the mean. BASNet adds cross entropy and IoU; the paper does not say whether it does: write
    "ce + ssim" for a sum.
    """

    sees_neighbours = True

    def of_labels(self, logits: Tensor, known: Tensor, labels: Labels) -> Tensor:
        """Return 1 - mean SSIM."""
        classes = logits.shape[1]
        weights = self.weights_of(classes)
        with_gradient = logits.requires_grad and torch.is_grad_enabled()
        total = Dissimilarity.apply(logits, known, weights, not labels.eager, with_gradient)
        planes = classes if weights is None else weights.sum()
        return self._mean(total, (known != classes).sum() * planes, known.numel() * classes)


def _dice_sums(y_hat: Any, y: Any, ops: Any) -> dict[str, Any]:
    return {"inter": y_hat * y, "size": ops.AND("size", y_hat, 1.0), "target": y}


# Functions with names, no lambdas: losses are pickled by whoever saves a module or sends it to a process.
def _dice_score(s: Any) -> Any:
    return ratio(2 * s["inter"], s["size"] + s["target"])


_DICE = Formula("Dice", _dice_sums, _dice_score)


_SQUARE = Curve([Piece(u0=0, v0=0, a=0, b=1, c=0, d=1)], 0.0, 1.0)  # g(p) = p^2


class DiceLoss(FormulaLoss):
    """Dice loss: 1 - the mean over classes in the batch of 2 sum(p y) / (sum p + sum y); squared: sum p^2 (V-Net)."""

    def __init__(self, ignore_index: IgnoreIndex = "auto", *, squared: bool = False, **common: Any) -> None:
        curves = {"square": _SQUARE} if squared else {}
        operands = {"size": ("square" if squared else None, None)}
        super().__init__(_DICE, operands, curves, 1, Conventions(absent="skip"), ignore_index, **common)


def _overlap_sums(y_hat: Any, y: Any, ops: Any) -> dict[str, Any]:
    return {"inter": y_hat * y, "pred": y_hat, "target": y}


def _soft_sums(y_hat: Any, y: Any, ops: Any) -> dict[str, Any]:
    return {"size": y_hat + y, "apart": abs(y_hat - y), "target": y}


def _jaccard_score(s: Any) -> Any:
    return ratio(s["inter"], s["pred"] + s["target"] - s["inter"])


def _soft_jaccard_score(s: Any) -> Any:
    return ratio(s["size"] - s["apart"], s["size"] + s["apart"])


_JACCARD = Formula("Jaccard", _overlap_sums, _jaccard_score)
_SOFT_JACCARD = Formula("SoftJaccard", _soft_sums, _soft_jaccard_score)


class JMLLoss(FormulaLoss):
    """Jaccard metric loss (Wang, Ning, Blaschko 2023), the mean over classes in the batch, all images together.

    1 - (|p| + |y| - |p - y|) / (|p| + |y| + |p - y|), in sums over pixels: with labels this is the soft Jaccard loss,
    1 - sum(p y) / sum(p + y - p y). With a target of probabilities it is least where both are the same, which the soft
    Jaccard loss is not.
    """

    def __init__(self, ignore_index: IgnoreIndex = "auto", **common: Any) -> None:
        super().__init__(_JACCARD, {}, {}, 1, Conventions(absent="skip"), ignore_index, **common)
        self.of_maps = FormulaLoss(_SOFT_JACCARD, {}, {}, 1, Conventions(absent="skip"), ignore_index, **common)

    def of_soft(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a target of probabilities."""
        return self.of_maps.of_soft(logits, target)


def _soft_dice_score(s: Any) -> Any:
    return ratio(s["size"] - s["apart"], s["size"])


_SOFT_DICE = Formula("SoftDice", _soft_sums, _soft_dice_score)


class DMLLoss(DiceLoss):
    """Dice metric loss (Wang et al. 2023, "Dice Semimetric Losses"), the mean over classes in the batch.

    1 - (|p| + |y| - |p - y|) / (|p| + |y|), in sums over pixels: with labels this is the Dice loss. With a target of
    probabilities it is least where both are the same, which the Dice loss is not.
    """

    def __init__(self, ignore_index: IgnoreIndex = "auto", **common: Any) -> None:
        super().__init__(ignore_index, **common)
        self.of_maps = FormulaLoss(_SOFT_DICE, {}, {}, 1, Conventions(absent="skip"), ignore_index, **common)

    def of_soft(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a target of probabilities."""
        return self.of_maps.of_soft(logits, target)


def _tversky_score(s: Any, *, alpha: float, beta: float) -> Any:
    wrong = alpha * (s["pred"] - s["inter"]) + beta * (s["target"] - s["inter"])
    return ratio(s["inter"], s["inter"] + wrong)


class TverskyLoss(FormulaLoss):
    """Tversky loss (Salehi et al. 2017): 1 - the mean over classes in the batch of TP / (TP + alpha FP + beta FN).

    TP = sum(p y), FP = sum(p (1 - y)), FN = sum((1 - p) y). The paper's best are alpha .3 and beta .7; with both .5 it
    is the Dice loss.
    """

    def __init__(
        self, ignore_index: IgnoreIndex = "auto", *, alpha: float = 0.3, beta: float = 0.7, **common: Any
    ) -> None:
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not 0 < value <= 100:
                raise InputError(f"found {value!r}", where=name, expected="a number above 0, 100 at most")
        score = functools.partial(_tversky_score, alpha=float(alpha), beta=float(beta))
        index = Formula("Tversky", _overlap_sums, score)
        super().__init__(index, {}, {}, 1, Conventions(absent="skip"), ignore_index, **common)
        self.alpha, self.beta = float(alpha), float(beta)


class ReleasedDiceLoss(_HandMade):
    """Dice as in the release (mmsegmentation's): the mean over images and all classes, squared terms, smooth 1.

    1 - (2 sum(p y) + 1) / (sum(p^2) + sum(y) + 1). Void is left out of the upper sum only: below, it counts in p, and
    as pixels of the last class in y.
    """

    def of_labels(self, logits: Tensor, known: Tensor, labels: Labels) -> Tensor:
        """Return 1 - mean Dice."""
        classes = logits.shape[1]
        p, label = logits.softmax(1), known.unsqueeze(1)
        numbers = torch.arange(classes, device=known.device).view(1, -1, 1, 1)
        upper = 2 * torch.where(label == numbers, p, 0.0).sum((2, 3)) + 1
        lower = (p * p).sum((2, 3)) + (label.clamp(max=classes - 1) == numbers).sum((2, 3)) + 1
        if not len(p):
            return p.sum()
        weights = self.weights_of(classes)
        dice = (upper / lower).mean(0)
        return 1 - (dice.mean() if weights is None else (dice * weights.to(dice)).sum() / weights.to(dice).sum())


class LovaszLoss(_HandMade):
    """Lovász-softmax (Berman et al. 2018), over the classes in the batch, all images together.

    It sorts all pixels of a class. So each process takes its own batch, also with `sync`.
    """

    def of_labels(self, logits: Tensor, known: Tensor, labels: Labels) -> Tensor:
        """Return the mean over present classes of the Lovász extension of the Jaccard loss of the errors |y - p|."""
        classes = logits.shape[1]
        numbers = torch.arange(classes, device=known.device)
        if labels.eager:
            numbers = numbers[torch.bincount(known.view(-1), minlength=classes + 1)[:classes] > 0]
        p = logits.softmax(1)
        p = p[:, numbers] if labels.eager else p
        weights = self.weights_of(classes)
        weights = p.new_ones(len(numbers)) if weights is None else weights.to(p)[numbers]
        slopes, constant, present = _lovasz_slopes(p.detach(), known, numbers, classes, weights.detach())
        return ((p * slopes).sum() + constant) / torch.where(present > 0, present, 1.0)


def _lovasz_slopes(
    p: Tensor, known: Tensor, numbers: Tensor, void: int, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the derivatives of the sum of Lovász extensions, which is linear where the order of errors stays the same;
    what is constant in it; and the weight of the classes present. `numbers` and `weights` are of the classes of p.
    """
    flat, shape = known.view(-1), (p.shape[1], len(p), *p.shape[2:])
    y = flat == numbers.unsqueeze(1)
    errors = p.transpose(0, 1).reshape(y.shape)
    errors = torch.where(y, 1 - errors, errors).masked_fill_(flat == void, -1.0)  # void comes last
    order = errors.sort(1, descending=True).indices
    del errors
    hits, area = y.gather(1, order), y.sum(1, keepdim=True)
    # Along the order: `left` is how many hits are left. The union of those and of all errors so far is k + left.
    left = hits.cumsum(1, dtype=torch.int32).neg_().add_(area)
    k = torch.arange(1, len(flat) + 1, dtype=left.dtype, device=p.device)
    # The Jaccard loss, 1 - left / union, rises by 1 / union with a hit, else by left / (union (union - 1)).
    rise = (left + (k - 1).to(p.dtype)).clamp_(min=1)
    rise = torch.div(left, rise, out=rise).masked_fill_(hits, 1.0).div_(left.add_(k))
    del hits, left
    slopes = torch.empty_like(rise).scatter_(1, order, rise)
    del rise, order
    present = (area > 0).to(p.dtype) * weights.view(-1, 1)
    slopes.mul_(present).masked_fill_(flat == void, 0.0)
    constant = torch.where(y, slopes, 0.0).sum()
    slopes = torch.where(y, -slopes, slopes)
    return slopes.view(shape).transpose(0, 1), constant, present.sum()
