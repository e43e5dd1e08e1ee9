"""nnU-Net v2: a surrogate at every resolution of deep supervision, for labels and for regions.

Put this file into nnunetv2/training/nnUNetTrainer, then `nnUNetv2_train DATASET 3d_fullres 0 -tr SurrogateTrainer`.
"""

import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from autoseg import build_loss


class RegionLoss(torch.nn.Module):
    """A loss of regions that overlap; where some voxels have no label, nnU-Net adds a channel that marks them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.loss = build_loss(name, mode="multilabel", ignore_index=255)

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss of logits (N, C, ...) and regions (N, C or C + 1, ...)."""
        regions, void = target.bool().tensor_split([logits.shape[1]], dim=1)
        return self.loss(logits, regions.byte().masked_fill(void.any(1, keepdim=True), 255))


class SurrogateTrainer(nnUNetTrainer):
    """nnU-Net's trainer with the published surrogate of mIoU, and cross entropy."""

    def _build_loss(self) -> torch.nn.Module:
        name, labels = "published:mIoU + ce", self.label_manager
        loss = RegionLoss(name) if labels.has_regions else build_loss(name, ignore_index=labels.ignore_label)
        if not self.enable_deep_supervision:
            return loss
        supervised = super()._build_loss()  # a DeepSupervisionWrapper; its weights of the resolutions stay nnU-Net's
        supervised.loss = loss
        return supervised
