"""A network of a user's own, in twenty lines, as docs/training.md says it may be."""

from torch import nn


class Mine(nn.Module):
    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Conv2d(width, num_classes, 1)
        self.side = nn.Conv2d(width, num_classes, 1)

    def forward(self, images):
        features = self.encoder(images)
        logits = self.head(features)  # at half the size of the images
        return (logits, self.side(features)) if self.training else logits


def make(num_classes: int, width: int = 8) -> nn.Module:
    return Mine(num_classes, width)


def make_with_a_spare(num_classes: int) -> nn.Module:
    """A network with a part that it does not use, as many of other libraries have."""
    network = Mine(num_classes, 8)
    network.spare = nn.Linear(2, 2)
    return network
