"""Hugging Face: a SegFormer in the Trainer, with a published loss, accumulated gradients and metrics."""

import torch
from transformers import SegformerConfig, SegformerForSemanticSegmentation, Trainer, TrainingArguments

from autoseg import SegmentationMetrics, build_loss


class SurrogateTrainer(Trainer):
    loss_is_scaled_for_ga = False  # the loss is a mean over a batch: the Trainer divides it by the accumulated batches
    loss = build_loss("published:mIoU", ignore_index=255)

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(pixel_values=inputs["pixel_values"])
        logits = torch.nn.functional.interpolate(outputs.logits, inputs["labels"].shape[-2:], mode="bilinear")
        value = self.loss(logits, inputs["labels"])
        return (value, {"loss": value, "logits": logits.argmax(1)}) if return_outputs else value


def compute_metrics(found):
    metrics = SegmentationMetrics(num_classes=3, ignore_index=255)
    metrics.update(found.predictions, found.label_ids)
    return metrics.compute()


def main(folder="results/hf", trainer=SurrogateTrainer, **options):
    torch.manual_seed(0)
    tiny = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16}
    network = SegformerForSemanticSegmentation(SegformerConfig(num_labels=3, **tiny))  # yours: from_pretrained(...)
    images = torch.randn(16, 3, 8, 8).repeat_interleave(8, 2).repeat_interleave(8, 3)
    data = [{"pixel_values": image, "labels": image.argmax(0)} for image in images]
    accumulated = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 4}
    arguments = TrainingArguments(folder, label_names=["labels"], report_to="none", **{**accumulated, **options})
    run = trainer(network, arguments, train_dataset=data, eval_dataset=data, compute_metrics=compute_metrics)
    run.train()
    return run, run.evaluate()


if __name__ == "__main__":
    print(main()[1])
