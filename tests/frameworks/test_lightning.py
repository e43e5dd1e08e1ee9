"""examples/lightning_module.py: validation in inference mode, bf16-mixed, one process and two."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest
import torch
from example_files import ROOT, example
from plain_scores import accuracy, mean_iou

import autoseg

pytestmark = pytest.mark.frameworks("lightning", "torchmetrics")

DRIVER = """
from example_files import example
trainer = example("lightning_module").main(devices={devices}, precision="{precision}")
scores = {{name: score.item() for name, score in trainer.callback_metrics.items()}}
weights = trainer.lightning_module.network.weight.flatten().tolist()
print("RESULT", (trainer.global_rank, scores, weights))
"""


def in_processes(folder, devices: int, precision: str) -> dict:
    """Return scores and weights by rank; Lightning starts the second process as a script of its own."""
    script = folder / f"run{devices}.py"
    script.write_text(DRIVER.format(devices=devices, precision=precision))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/frameworks'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [ast.literal_eval(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return {rank: (scores, weights) for rank, scores, weights in found}


def test_scores_in_bf16_are_those_of_the_trained_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lightning_module = example("lightning_module")
    trainer = lightning_module.main(devices=1, precision="bf16-mixed")
    images, target = trainer.val_dataloaders.dataset.tensors
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        pred = trainer.lightning_module.network(images).argmax(1)
    scores = trainer.callback_metrics
    assert scores["mIoU"].item() == pytest.approx(mean_iou(pred, target, 3), abs=1e-6)
    assert scores["gAcc"].item() == pytest.approx(accuracy(pred, target), abs=1e-6)
    assert scores["mIoU"] > 0.5  # it has learned


def test_two_processes_train_and_score_as_one_does(tmp_path):
    one = in_processes(tmp_path, 1, "32-true")
    two = in_processes(tmp_path, 2, "32-true")
    assert sorted(one) == [0]
    assert sorted(two) == [0, 1]
    for scores, weights in two.values():
        assert weights == pytest.approx(one[0][1], abs=1e-5)
        assert scores == pytest.approx(one[0][0], abs=1e-3)  # a pixel or two may tip


def test_metrics_survive_inference_mode_and_count_on_outside_of_it():
    from autoseg import SegmentationMetrics

    metrics = SegmentationMetrics(3, ignore_index=255)
    pred, target = torch.randint(0, 3, (2, 2, 16, 16), generator=torch.manual_seed(0))
    with torch.inference_mode():
        metrics(pred, target)
        metrics.update(pred, target)
    metrics.update(pred, target)
    assert metrics.compute()["mIoU"] == pytest.approx(mean_iou(pred, target, 3))
    metrics.reset()
    metrics.to(torch.float16)
    assert metrics.counts["confusion"].dtype == torch.int64


def test_a_collection_of_torchmetrics_is_logged_by_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    from autoseg import SegmentationMetrics

    class Logged(example("lightning_module").Segmenter):
        def __init__(self):
            super().__init__()
            self.metrics = SegmentationMetrics(3, ignore_index=255).as_torchmetrics()

        def validation_step(self, batch):
            self.metrics.update(self.network(batch[0]), batch[1])
            self.log_dict(self.metrics, on_epoch=True)

        def on_validation_epoch_end(self):
            pass

    images = torch.randn(6, 3, 16, 16, generator=torch.manual_seed(0))
    loader = DataLoader(TensorDataset(images, images.argmax(1)), batch_size=2)
    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    model = Logged()
    for _ in range(2):  # the second round has forgotten the first
        (scores,) = trainer.validate(model, loader)
        with torch.inference_mode():
            pred = model.network(images).argmax(1)
        assert scores["mIoU"] == pytest.approx(mean_iou(pred, images.argmax(1), 3), abs=1e-6)


def test_a_search_inside_lightning_gives_the_same_trials_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train = example("search_in_lightning").train
    settings = {"metric": "mIoU", "steps": 1, "trials_per_step": 3, "progress": False, "loss": {"ignore_index": 255}}
    first, again = (autoseg.search(train, **settings) for _ in range(2))
    assert [trial.scores for trial in first.trials] == [trial.scores for trial in again.trials]
    assert len({trial.score for trial in first.trials}) > 1
    assert all(0 < trial.scores[name] <= 1 for trial in first.trials for name in ("mIoU", "gAcc"))
    assert not list(tmp_path.iterdir())  # no logs, no checkpoints
