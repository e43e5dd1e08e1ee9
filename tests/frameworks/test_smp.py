"""examples/smp_loop.py: smp's own loop, multiclass and binary; smp is imported before autoseg and after."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from example_files import ROOT, example
from plain_scores import accuracy, mean_iou

pytestmark = pytest.mark.frameworks("segmentation-models-pytorch")


def test_scores_are_those_of_the_trained_networks():
    smp_loop = example("smp_loop")
    torch.manual_seed(0)
    images = torch.randn(4, 3, 8, 8).repeat_interleave(8, 2).repeat_interleave(8, 3)
    (network, several), (binary_network, binary) = smp_loop.main()
    with torch.inference_mode():
        pred, foreground = network(images).argmax(1), binary_network(images)[:, 0] > 0
    assert several["mIoU"] == pytest.approx(mean_iou(pred, images.argmax(1), 3))
    assert binary["mIoU"] == pytest.approx(mean_iou(foreground, images[:, 0] > 0, 2))
    assert binary["gAcc"] == pytest.approx(accuracy(foreground, images[:, 0] > 0))


def test_training_lowers_the_loss():
    smp_loop = example("smp_loop")
    images = torch.randn(4, 3, 8, 8, generator=torch.manual_seed(0)).repeat_interleave(8, 2).repeat_interleave(8, 3)
    masks = (images[:, :1] > 0).float()
    few, many = (smp_loop.train("binary", images, masks, steps)[1]["mIoU"] for steps in (1, 40))
    assert many > few + 0.1


@pytest.mark.parametrize("order", ["autoseg, segmentation_models_pytorch", "segmentation_models_pytorch, autoseg"])
def test_smp_is_imported_before_autoseg_or_after_it(order, tmp_path):
    text = f"import {order}; autoseg.SurrogateLoss; segmentation_models_pytorch.Unet"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
