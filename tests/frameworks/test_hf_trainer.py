"""examples/hf_trainer.py: a tiny SegFormer; a loss accumulated over batches is scaled right."""

from __future__ import annotations

import pytest
import torch
from example_files import example
from plain_scores import mean_iou

pytestmark = pytest.mark.frameworks("transformers", "accelerate")

PLAIN = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "max_steps": 1}
WHOLE = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
PARTS = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}


def weights(run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def trainer_of(module, loss):
    class Fixed(module.SurrogateTrainer):
        """Without dropout and running means, so that one batch equals its parts."""

        def compute_loss(self, model, inputs, return_outputs=False, **more):
            model.eval()
            return super().compute_loss(model, inputs, return_outputs, **more)

        def log(self, logs, *more):
            self.logged = {**getattr(self, "logged", {}), **logs}

    Fixed.loss = loss
    return Fixed


def test_the_scores_are_those_of_the_trained_network(tmp_path):
    run, scores = example("hf_trainer").main(str(tmp_path))
    images = torch.stack([sample["pixel_values"] for sample in run.eval_dataset])
    target = torch.stack([sample["labels"] for sample in run.eval_dataset])
    with torch.inference_mode():
        logits = run.model.eval()(pixel_values=images).logits
    pred = torch.nn.functional.interpolate(logits, target.shape[-2:], mode="bilinear").argmax(1)
    assert scores["eval_mIoU"] == pytest.approx(mean_iou(pred, target, 3), abs=1e-6)


def test_cross_entropy_accumulated_over_four_batches_equals_that_of_one_large_batch(tmp_path):
    from autoseg import build_loss

    module = example("hf_trainer")
    kind = trainer_of(module, build_loss("ce", ignore_index=255))
    whole, _ = module.main(str(tmp_path / "whole"), kind, **PLAIN, **WHOLE)
    parts, _ = module.main(str(tmp_path / "parts"), kind, **PLAIN, **PARTS)
    torch.testing.assert_close(weights(parts), weights(whole), atol=1e-6, rtol=0)
    assert parts.logged["train_loss"] == pytest.approx(whole.logged["train_loss"], abs=1e-5)


def test_an_accumulated_surrogate_is_the_mean_of_its_batches(tmp_path):
    from autoseg import build_loss

    module = example("hf_trainer")
    loss = build_loss("published:mIoU", ignore_index=255)
    seen = []

    class Recording(trainer_of(module, loss)):
        def compute_loss(self, model, inputs, return_outputs=False, **more):
            if not return_outputs:
                seen.append((inputs["pixel_values"], inputs["labels"]))
            return super().compute_loss(model, inputs, return_outputs, **more)

    run, _ = module.main(str(tmp_path / "run"), Recording, **PLAIN, **PARTS)
    assert [len(images) for images, _ in seen] == [2, 2, 2, 2]
    start, _ = module.main(
        str(tmp_path / "start"), trainer_of(module, loss), **{**PLAIN, **PARTS, "learning_rate": 0.0}
    )
    network = start.model.eval()
    values = []
    for images, target in seen:
        logits = network(pixel_values=images).logits
        values.append(loss(torch.nn.functional.interpolate(logits, target.shape[-2:], mode="bilinear"), target))
    gradients = torch.autograd.grad(torch.stack(values).mean(), list(network.parameters()), allow_unused=True)
    flat = torch.cat(
        [
            torch.zeros(p.numel()) if g is None else g.flatten()
            for g, p in zip(gradients, network.parameters(), strict=True)
        ]
    )
    torch.testing.assert_close(weights(run), weights(start) - 0.1 * flat, atol=1e-6, rtol=0)
    assert (weights(run) - weights(start)).norm() > 1e-4
