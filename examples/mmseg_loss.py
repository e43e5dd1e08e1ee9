"""mmsegmentation: a loss of the registry, built from a config, in a decode head. `python examples/mmseg_loss.py`."""

import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from autoseg import build_loss

CONFIG = """
model:
  type: EncoderDecoder
  data_preprocessor: {type: mmseg.SegDataPreProcessor, mean: [128, 128, 128], std: [64, 64, 64], size: [64, 64]}
  backbone: {type: ResNetV1c, depth: 18}
  decode_head: {type: FCNHead, in_channels: 128, in_index: 1, channels: 32, num_convs: 1, num_classes: 3,
                loss_decode: {type: AutosegLoss, name: "published:mIoU", loss_weight: 1.0}}
"""


@MODELS.register_module()
class AutosegLoss(torch.nn.Module):
    def __init__(self, name: str, loss_weight: float = 1.0, loss_name: str = "loss_autoseg", **options) -> None:
        super().__init__()
        self.loss, self.weight, self.loss_name = build_loss(name, **options), loss_weight, loss_name

    def forward(self, logits, target, weight=None, ignore_index=255):
        return self.weight * self.loss(logits, target)


masks = torch.arange(3).repeat_interleave(32).unfold(0, 64, 16)[:, None, None].repeat(1, 1, 64, 1)  # stripes
images = (masks * 100 + 20 * torch.randn(3, 3, 64, 64)).clamp(0, 255).byte()
samples = [SegDataSample(gt_sem_seg=PixelData(data=mask)) for mask in masks]
model = MODELS.build(Config.fromstring(CONFIG, ".yaml").model)
optimiser = OptimWrapper(torch.optim.AdamW(model.parameters(), lr=1e-3))
for _ in range(20):
    log = model.train_step({"inputs": list(images), "data_samples": samples}, optimiser)
print({name: round(value.item(), 3) for name, value in log.items()})
