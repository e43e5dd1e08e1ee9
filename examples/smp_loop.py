"""segmentation_models_pytorch: its models in a plain training loop, of three classes and binary."""

import segmentation_models_pytorch as smp
import torch

from autoseg import SegmentationMetrics, SurrogateLoss


def train(mode, images, masks, steps=10):
    torch.manual_seed(0)
    classes = 1 if mode == smp.losses.BINARY_MODE else 3
    network = smp.Unet("mobilenet_v2", encoder_weights=None, classes=classes)
    loss = SurrogateLoss.published("mIoU", ignore_index=255, mode=mode)  # instead of smp.losses.DiceLoss(mode)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
    network.train()
    for _ in range(steps):
        optimiser.zero_grad()
        value = loss(network(images), masks)
        value.backward()
        optimiser.step()

    network.eval()
    metrics = SegmentationMetrics(num_classes=max(classes, 2), ignore_index=255)
    with torch.inference_mode():
        logits = network(images)
        metrics.update(logits > 0 if classes == 1 else logits.argmax(1), masks)
    return network, metrics.compute()


def main():
    torch.manual_seed(0)
    images = torch.randn(4, 3, 8, 8).repeat_interleave(8, 2).repeat_interleave(8, 3)
    several = train("multiclass", images, images.argmax(1))
    binary = train("binary", images, (images[:, :1] > 0).float())  # smp's masks: (N, 1, H, W) of 0.0 and 1.0
    return several, binary


if __name__ == "__main__":
    for _, scores in main():
        print({name: round(score, 3) for name, score in scores.items()})
