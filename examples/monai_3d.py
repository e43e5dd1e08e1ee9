"""MONAI in three dimensions: patches, a 3-D U-Net, sliding windows. Takes seconds: `python examples/monai_3d.py`."""

import numpy as np
import torch
from monai.data import DataLoader, Dataset, create_test_image_3d
from monai.inferers import sliding_window_inference
from monai.networks.nets import UNet
from monai.transforms import Compose, EnsureChannelFirstd, RandCropByPosNegLabeld, ScaleIntensityd
from monai.utils import set_determinism

from autoseg import SegmentationMetrics, SurrogateLoss

CLASSES, PATCH = 3, (32, 32, 32)  # the background, and balls of two kinds
set_determinism(0)


def volumes(seeds: range) -> list[dict[str, np.ndarray]]:
    """Return made-up volumes."""
    made = [create_test_image_3d(48, 48, 48, 8, 12, 4, 0.1, 2, random_state=np.random.RandomState(n)) for n in seeds]
    return [{"image": image, "label": label} for image, label in made]


prepare = Compose([EnsureChannelFirstd(["image", "label"], channel_dim="no_channel"), ScaleIntensityd("image")])
crop = RandCropByPosNegLabeld(["image", "label"], "label", PATCH, num_samples=2)
training, validation = Dataset(volumes(range(4)), Compose([prepare, crop])), Dataset(volumes(range(4, 6)), prepare)
network = UNet(spatial_dims=3, in_channels=1, out_channels=CLASSES, channels=(8, 16, 32), strides=(2, 2))
loss = SurrogateLoss.published("mIoU", ignore_index=None)  # None: no label is void
optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
for _ in range(10):
    for batch in DataLoader(training, batch_size=2):
        optimiser.zero_grad()
        loss(network(batch["image"]), batch["label"]).backward()  # (N, 3, D, H, W); float labels (N, 1, D, H, W)
        optimiser.step()

network.eval()
metrics = SegmentationMetrics(CLASSES, ignore_index=None, volumes=True)
with torch.no_grad():
    for batch in DataLoader(validation):
        metrics.update(sliding_window_inference(batch["image"], PATCH, 4, network).argmax(1), batch["label"])
print({name: round(score, 3) for name, score in metrics.compute().items()})
