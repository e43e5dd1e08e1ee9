"""MONAI and nnU-Net: their examples run, and their numbers are those of a second calculation."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from example_files import ROOT, example

from autoseg import SegmentationMetrics, SurrogateLoss, build_loss


@pytest.mark.frameworks("monai")
@pytest.mark.parametrize("name", ["monai_2d", "monai_3d"])
def test_scores_are_those_of_monai(name):
    from monai.data import DataLoader
    from monai.inferers import sliding_window_inference
    from monai.metrics import compute_dice, get_confusion_matrix
    from monai.networks import one_hot

    ran = example("monai_2d") if name == "monai_2d" else example("monai_3d")
    whole, confusion, dices = (64, 64), torch.zeros(ran.CLASSES, 4), []
    size = getattr(ran, "PATCH", whole)
    per_image = SegmentationMetrics(ran.CLASSES, None, volumes=len(size) == 3, metrics=["mIoU"])
    for batch in DataLoader(ran.validation):
        with torch.no_grad():
            logits = sliding_window_inference(batch["image"], size, 4, ran.network)
        target = batch["label"] if batch["label"].shape[1] > 1 else one_hot(batch["label"], ran.CLASSES)
        found = one_hot(logits.argmax(1, keepdim=True), ran.CLASSES)
        confusion += get_confusion_matrix(found, target).sum(0)
        per_image.reset()
        per_image.update(found.argmax(1), target.argmax(1))
        iou = torch.from_numpy(per_image.per_class()["mIoU"])
        dices.append((2 * iou / (1 + iou) - compute_dice(found, target)[0]).nan_to_num(0).abs().max())
    hit, false_alarm, _, missed = confusion.unbind(1)
    ious = hit / (hit + false_alarm + missed)
    assert ran.metrics.compute()["mIoU"] == pytest.approx(ious.mean().item(), abs=1e-6)
    assert ran.metrics.compute()["mIoU"] > 0.4  # it has learned
    assert max(dices) < 1e-6


@pytest.mark.frameworks("monai")
@pytest.mark.parametrize("size", [(12, 13), (6, 7, 8)])
def test_metatensors_one_hot_maps_and_labels_with_a_channel_are_one_target(size):
    from monai.data import MetaTensor
    from monai.networks import one_hot

    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, *size), torch.randint(3, (2, 1, *size))
    for metric in ("mIoU", "BIoU", "BF1"):
        loss = SurrogateLoss.published(metric)
        plain = logits.clone().requires_grad_()
        expected = loss(plain, labels[:, 0])
        (slope,) = torch.autograd.grad(expected, plain)
        for target in (MetaTensor(labels.float()), MetaTensor(one_hot(labels, 3)), one_hot(labels, 3).bool()):
            given = MetaTensor(logits).requires_grad_()
            value = loss(given, target)
            assert type(value) is torch.Tensor
            torch.testing.assert_close(value, expected)
            torch.testing.assert_close(torch.autograd.grad(value, given)[0].as_subclass(torch.Tensor), slope)


@pytest.mark.frameworks("nnunetv2")
def test_regions_of_nnunet_may_have_voxels_without_a_label():
    torch.manual_seed(0)
    loss = example("nnunet_trainer").RegionLoss("published:mIoU + ce")
    logits, regions = torch.randn(2, 2, 5, 6, 7), torch.rand(2, 2, 5, 6, 7) < 0.5
    void = torch.rand(2, 1, 5, 6, 7) < 0.3
    alone = build_loss("published:mIoU + ce", mode="multilabel", ignore_index=None)
    torch.testing.assert_close(loss(logits, regions), alone(logits, regions))
    # Voxels without a label count for nothing: the loss is that of the others, laid out as a volume of their own.
    kept = [x.movedim(1, -1)[~void[:, 0]].T[None, :, None, None] for x in (logits, regions)]
    torch.testing.assert_close(loss(logits, torch.cat([regions, void], 1)), alone(*kept))


@pytest.mark.frameworks("nnunetv2")
@pytest.mark.parametrize("kind", ["labels", "regions"])
def test_nnunet_plans_prepares_and_trains_with_a_surrogate_at_every_resolution(kind, tmp_path):
    folders = {f"nnUNet_{part}": str(tmp_path / part) for part in ("raw", "preprocessed", "results")}
    script = ROOT / "tests/frameworks/train_nnunet.py"
    done = subprocess.run(
        [sys.executable, str(script), kind],
        cwd=tmp_path,
        env={**os.environ, **folders, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["weights"]) > 2
    assert sum(found["weights"]) == pytest.approx(1)
    assert found["loss"] == pytest.approx(np.dot(found["weights"], found["losses"]), rel=1e-5)
    assert found["train_losses"][-1] < found["train_losses"][0]
    assert found["checkpoint"]
