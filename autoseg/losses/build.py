"""`build_loss`: every loss by its name, and sums of losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from autoseg.errors import InputError
from autoseg.losses.am_lfs import FAMILY as AM_LFS
from autoseg.losses.am_lfs_loss import AMLFSLoss
from autoseg.losses.batch import Loss
from autoseg.losses.hand_made import (
    BoundaryLoss,
    CrossEntropyLoss,
    DiceLoss,
    DMLLoss,
    DPCELoss,
    FocalLoss,
    JMLLoss,
    LovaszLoss,
    ReleasedDiceLoss,
    SSIMLoss,
    TverskyLoss,
)
from autoseg.losses.labels import Labels
from autoseg.losses.names import parse_loss
from autoseg.losses.surrogate import Surrogate
from autoseg.losses.surrogate_loss import SurrogateLoss
from autoseg.metrics import formula
from autoseg.metrics.conventions import Conventions
from autoseg.metrics.counts import IgnoreIndex
from autoseg.metrics.targets import Mode


def _as(loss: Loss) -> dict[str, Any]:
    """Return the arguments with which a loss made of others reads the same targets as they do."""
    void = "auto" if loss.guarded else loss.ignore_index
    return {"ignore_index": void, "mode": loss.mode, "class_weights": loss.class_weights}


class WeightedSumLoss(Loss):
    """A weighted sum of losses, such as the paper's "mIoU + BIoU"; what they derive from the labels is made once."""

    def __init__(self, terms: Sequence[tuple[float, Loss]]) -> None:
        check = any(loss.check_labels for _, loss in terms)
        super().__init__(**_as(terms[0][1]), check_labels=check)
        self.sees_neighbours = any(loss.sees_neighbours for _, loss in terms)
        self.weights = [float(weight) for weight, _ in terms]
        self.losses = nn.ModuleList([loss for _, loss in terms])

    def extra_repr(self) -> str:
        """Describe the sum in one line."""
        return f"weights={self.weights}"

    def terms(self) -> list[tuple[float, Loss]]:
        """Return each loss and its weight."""
        return [(weight, cast(Loss, loss)) for weight, loss in zip(self.weights, self.losses, strict=True)]

    def loss(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return the sum of weight x loss."""
        return torch.stack([weight * loss.of_batch(logits, labels) for weight, loss in self.terms()]).sum()

    def of_channels(self, logits: Tensor, channels: Tensor) -> Tensor:
        """Return the sum of weight x loss of a multilabel batch."""
        return torch.stack([weight * loss.of_channels(logits, channels) for weight, loss in self.terms()]).sum()

    def of_soft(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the sum of weight x loss of a target of probabilities."""
        return torch.stack([weight * loss.of_soft(logits, target) for weight, loss in self.terms()]).sum()


class MeanOfGroupsLoss(Loss):
    """The mean of a loss over groups of so many images, as if each group were on a GPU of its own.

    A surrogate is no mean over images: its sums run over a group, and the number of images in it matters.
    """

    def __init__(self, loss: Loss, images: int) -> None:
        super().__init__(**_as(loss), check_labels=loss.check_labels)
        self.sees_neighbours = loss.sees_neighbours
        self.of_group, self.images = loss, images

    def extra_repr(self) -> str:
        """Describe the groups in one line."""
        return f"images={self.images}"

    def loss(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return the mean of the groups' losses."""
        groups = zip(logits.split(self.images), labels.split(self.images), strict=True)
        return torch.stack([self.of_group.of_batch(*group) for group in groups]).mean()


_AS_RELEASED = {"mean_over": "all"}
_HAND_MADE: Mapping[str, tuple[Callable[..., Loss], dict[str, Any]]] = {
    "ce": (CrossEntropyLoss, {}),
    "wce": (CrossEntropyLoss, {}),
    "dpce": (DPCELoss, {}),
    "ssim": (SSIMLoss, {}),
    "dice": (DiceLoss, {}),
    "dice-squared": (DiceLoss, {"squared": True}),
    "lovasz": (LovaszLoss, {}),
    "jml": (JMLLoss, {}),
    "dml": (DMLLoss, {}),
    "focal": (FocalLoss, {}),
    "tversky": (TverskyLoss, {}),
    "boundary": (BoundaryLoss, {}),
    "ce-release": (CrossEntropyLoss, _AS_RELEASED),
    "wce-release": (CrossEntropyLoss, _AS_RELEASED),
    "dpce-release": (DPCELoss, _AS_RELEASED),
    "ssim-release": (SSIMLoss, _AS_RELEASED),
    "dice-release": (ReleasedDiceLoss, {}),
}


def build_loss(
    spec: str,
    *,
    ignore_index: IgnoreIndex = "auto",
    class_counts: Sequence[int] | None = None,
    searched: Mapping[str, str] | None = None,
    conventions: Conventions | None = None,
    has_background: bool = True,
    mode: Mode | None = None,
    class_weights: Sequence[float] | None = None,
    sync: bool = False,
    check_labels: bool = False,
    **changes: Any,
) -> Loss:
    """Return a loss by its name, or a sum of losses.

    Args:
        spec: "ce", "wce", "dpce", "ssim", "dice", "dice-squared", "lovasz", "jml", "dml", "focal", "tversky",
            "boundary"; "ce-release", "wce-release", "dpce-release", "ssim-release" (divided by the number of all
            pixels, void too) and "dice-release", as the authors' code computes them; "naive:METRIC" (a surrogate
            without parameters), "published:NAME", "zoo:NAME" (see `autoseg.losses.zoo`), "searched:SEARCH", the path
            of a surrogate.json; or a sum of such, with weights: "published:mIoU + 0.5 * published:BIoU" (spaces around
            the plus).
        ignore_index: the label of void pixels, see `autoseg.losses.batch.Loss`.
        class_counts: pixels of each class in the training set, which "wce" and "wce-release" need.
        searched: for "searched:SEARCH", the surrogate.json of each search by its name.
        conventions: of the metrics, from which those of "naive:METRIC" are made; None: VOC's.
        has_background: whether class 0 of the data is a background. If not, no surrogate leaves it out.
        mode, class_weights: see `autoseg.losses.batch.Loss`.
        sync: normalise over the batches of all ranks in distributed training.
        check_labels: check the labels of every batch on a GPU too, see `autoseg.losses.batch.Loss`.
        changes: of the conventions of "naive:", "published:" and "zoo:", such as tolerance=2 or spacing=(2, 1), see
            `autoseg.metrics.conventions.Conventions`. A surrogate.json has its own. "dpce" and "boundary" take the
            spacing.

    >>> build_loss("dice")(torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long))
    tensor(0.3333)
    """
    Conventions().replace(**changes)  # refuses misspelt ones also where no term takes them
    common: dict[str, Any] = {
        "ignore_index": ignore_index,
        "mode": mode,
        "class_weights": class_weights,
        "sync": sync,
        "check_labels": check_labels,
    }
    terms: list[tuple[float, Loss]] = []
    for term in parse_loss(spec):
        if term.kind == "hand-made":
            terms.append((term.weight, _hand_made(term.name, class_counts, changes.get("spacing"), common)))
            continue
        surrogate = term.surrogate(searched)
        own = surrogate.conventions
        if term.kind == "naive":
            own = formula.get(surrogate.metric).loss_conventions(conventions, **changes)
        elif term.kind in ("published", "zoo"):
            own = own.replace(**changes)
        surrogate = surrogate.model_copy(update={"conventions": own})
        terms.append((term.weight, loss_of(surrogate, has_background=has_background, **common)))
    return terms[0][1] if len(terms) == 1 and terms[0][0] == 1 else WeightedSumLoss(terms)


def loss_of(surrogate: Surrogate, *, has_background: bool = True, **common: Any) -> Loss:
    """Return the loss of a surrogate of any family; that of AM-LFS has no metric in it."""
    if surrogate.family == AM_LFS:
        return AMLFSLoss(surrogate, **common)
    return SurrogateLoss(surrogate, has_background=has_background, **common)


def _hand_made(
    name: str,
    class_counts: Sequence[int] | None,
    spacing: Sequence[float] | None,
    common: Mapping[str, Any],
) -> Loss:
    if name.startswith("wce") and class_counts is None:
        raise InputError(
            f"the loss '{name}' weighs classes by their frequency", cure="give class_counts, the pixels of each class"
        )
    kind, options = _HAND_MADE[name]
    if name.startswith("wce"):
        options = {**options, "class_counts": class_counts}
    if kind in (BoundaryLoss, DPCELoss):
        options = {**options, "spacing": spacing}
    return kind(**options, **common)


def loss_content(spec: str, searched: Mapping[str, str] | None = None) -> list[Any]:
    """Return what a loss consists of, for fingerprints: a surrogate file counts by its content, not by its path.

    >>> loss_content("0.5 * ce")
    [[0.5, 'ce']]
    """
    return [
        [term.weight, term.surrogate(searched).model_dump(exclude={"source"})]
        if term.kind in ("searched", "file", "zoo")
        else [term.weight, term.text]
        for term in parse_loss(spec)
    ]
