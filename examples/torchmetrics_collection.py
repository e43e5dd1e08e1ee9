"""torchmetrics: metrics of autoseg beside torchmetrics' own in a MetricCollection, also for Lightning's `log_dict`."""

import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassJaccardIndex

from autoseg import SegmentationMetrics


def make_metrics(num_classes=3):
    ours = SegmentationMetrics(num_classes, ignore_index=255, metrics=["mIoU", "BIoU", "BF1"])
    jaccard = MulticlassJaccardIndex(num_classes, ignore_index=255)
    return MetricCollection({"jaccard": jaccard, "autoseg": ours.as_torchmetrics()}, prefix="val/")


def main():
    torch.manual_seed(0)
    metrics = make_metrics().to("cpu")  # or any device
    for _ in range(4):
        target = torch.randint(0, 3, (2, 8, 8)).repeat_interleave(8, 1).repeat_interleave(8, 2)
        target[:, :4] = 255
        logits = torch.nn.functional.one_hot(target % 3, 3).movedim(-1, 1) + torch.randn(2, 3, 64, 64)
        batch = metrics(logits, target)  # the scores of this batch; logits or label maps
        print({name: round(score.item(), 3) for name, score in batch.items()})
    scores = metrics.compute()  # of all batches, and in distributed training of all processes
    metrics.reset()
    return scores


if __name__ == "__main__":
    print(main())
