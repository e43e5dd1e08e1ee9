"""A search from inside any training code, as a notebook would do it: `python examples/search_in_a_notebook.py`."""

from __future__ import annotations

import argparse

import torch

import autoseg
from autoseg.data.synthetic import CLASSES, scene

pictures = [scene(32, seed=0, split="train", number=n) for n in range(24)]  # yours
images = torch.stack([torch.from_numpy(image) for image, _ in pictures]).permute(0, 3, 1, 2).float() / 64 - 2
masks = torch.stack([torch.from_numpy(mask).long() for _, mask in pictures])


def train(loss: autoseg.SurrogateLoss) -> dict[str, float]:
    """Train a small network with a loss, and score it on images that it has not seen."""
    classes = len(CLASSES)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, padding=2), torch.nn.ReLU(), torch.nn.Conv2d(16, classes, 1)
    )
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.01)
    for _ in range(30):
        optimiser.zero_grad()
        loss(network(images[:16]), masks[:16]).backward()
        optimiser.step()
    metrics = autoseg.SegmentationMetrics(num_classes=classes, ignore_index=255)
    metrics.update(network(images[16:]).argmax(1), masks[16:])
    return metrics.compute()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--trials", type=int, default=8, help="in a step")
    args = parser.parse_args()
    found = autoseg.search(train, metric="mIoU", steps=args.steps, trials_per_step=args.trials, out="search")
    print(found)
    print("all metrics with the searched loss:", train(found.loss()))
