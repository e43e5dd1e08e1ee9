"""MONAI in two dimensions: MetaTensors, one-hot masks, a U-Net. Takes seconds: `python examples/monai_2d.py`."""

import numpy as np
import torch
from monai.data import DataLoader, Dataset, create_test_image_2d
from monai.networks.nets import UNet
from monai.transforms import AsDiscreted, Compose, EnsureChannelFirstd, RandFlipd, ScaleIntensityd
from monai.utils import set_determinism

from autoseg import SegmentationMetrics, SurrogateLoss

CLASSES = 4  # the background, and discs of three kinds
set_determinism(0)


def images(seeds: range) -> list[dict[str, np.ndarray]]:
    """Return made-up images."""
    made = [create_test_image_2d(64, 64, 12, 12, 4, 0.1, 3, random_state=np.random.RandomState(n)) for n in seeds]
    return [{"image": image, "label": label} for image, label in made]


prepare = [EnsureChannelFirstd(["image", "label"], channel_dim="no_channel"), ScaleIntensityd("image")]
flip, one_hot = RandFlipd(["image", "label"], prob=0.5), AsDiscreted("label", to_onehot=CLASSES)
training = Dataset(images(range(16)), Compose([*prepare, flip, one_hot]))
network = UNet(spatial_dims=2, in_channels=1, out_channels=CLASSES, channels=(16, 32, 64), strides=(2, 2))
loss = SurrogateLoss.published("mIoU", ignore_index=None)  # None: no label is void
optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
for _ in range(10):
    for batch in DataLoader(training, batch_size=4, shuffle=True):
        optimiser.zero_grad()
        loss(network(batch["image"]), batch["label"]).backward()  # both (N, 4, H, W); the labels are MetaTensors
        optimiser.step()

network.eval()
validation = Dataset(images(range(16, 20)), Compose([*prepare, one_hot]))
metrics = SegmentationMetrics(CLASSES, ignore_index=None)
with torch.no_grad():
    for batch in DataLoader(validation, batch_size=2):
        metrics.update(network(batch["image"]).argmax(1), batch["label"].argmax(1))
print({name: round(score, 3) for name, score in metrics.compute().items()})
