"""A plain training loop with a U-Net of smp, and a published surrogate in the place of cross entropy.

    python examples/own_training_loop.py                  # a minute or two
    python examples/own_training_loop.py --loss ce        # the same with cross entropy

Nothing of autoseg's own training is used: only the loss, the metrics, a network by name, and made-up scenes in place of
your images.
"""

from __future__ import annotations

import argparse

import torch

from autoseg import SegmentationMetrics, build_loss
from autoseg.data.synthetic import CLASSES, scene
from autoseg.training.networks import build_network


def scenes(split: str, count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 3, H, W) and label maps (N, H, W), 255 where a pixel has no label."""
    images, masks = zip(*(scene(size, seed=0, split=split, number=n) for n in range(count)), strict=True)
    pixels = torch.stack([torch.from_numpy(image) for image in images]).permute(0, 3, 1, 2).float()
    return (pixels - 128) / 64, torch.stack([torch.from_numpy(mask).long() for mask in masks])


def main() -> None:
    """Train and score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loss", default="published:mIoU", help="any name that build_loss knows")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--images", type=int, default=80)
    parser.add_argument("--size", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    # `.module` is smp.Unet("resnet18", encoder_weights=None, classes=...); any network of yours may stand here.
    network = build_network("smp:Unet/resnet18", len(CLASSES)).module
    loss = build_loss(args.loss, ignore_index=255)  # "published:mIoU" is SurrogateLoss.published("mIoU")
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
    images, masks = scenes("train", args.images, args.size)
    for step in range(args.steps):
        batch = torch.randint(len(images), (8,))
        value = loss(network(images[batch]), masks[batch])
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        if step % 50 == 0:
            print(f"step {step}: loss {value.item():.3f}")

    network.eval()
    images, masks = scenes("val", args.images // 4, args.size)
    metrics = SegmentationMetrics(num_classes=len(CLASSES), ignore_index=255)
    with torch.no_grad():
        for image, mask in zip(images, masks, strict=True):
            metrics.update(network(image[None]).argmax(1), mask[None])
    print({name: round(score, 3) for name, score in metrics.compute().items()})


if __name__ == "__main__":
    main()
