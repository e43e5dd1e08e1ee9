"""A search inside Lightning: `train` is all that is added to a LightningModule. Takes seconds on a CPU."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import autoseg

images = torch.randn(16, 3, 32, 32, generator=torch.manual_seed(0))
loader, hold_out = (DataLoader(TensorDataset(x, x.argmax(1)), batch_size=4) for x in images.split(8))


class Segmenter(lightning.LightningModule):
    def __init__(self, loss):
        super().__init__()
        self.network, self.loss = torch.nn.Conv2d(3, 3, 3, padding=1), loss
        self.metrics = autoseg.SegmentationMetrics(num_classes=3, ignore_index=255)

    def training_step(self, batch):
        return self.loss(self.network(batch[0]), batch[1])

    def validation_step(self, batch):
        self.metrics.update(self.network(batch[0]).argmax(1), batch[1])

    def on_validation_epoch_end(self):
        self.log_dict(self.metrics.compute())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def train(loss):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    module, trainer = Segmenter(loss), lightning.Trainer(accelerator="cpu", max_epochs=3, **quiet)
    trainer.fit(module, loader)
    return trainer.validate(module, hold_out, verbose=False)[0]  # all metrics by name; the search looks at its own


if __name__ == "__main__":
    print(autoseg.search(train, metric="mIoU", steps=2, trials_per_step=4, loss={"ignore_index": 255}))
