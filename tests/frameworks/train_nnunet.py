"""Make up a data set of nnU-Net (of "labels" or "regions"), plan, preprocess, train with examples/nnunet_trainer.py.

Prints, as JSON, the loss of a batch, and the losses and weights of its resolutions. nnU-Net reads its folders from the
environment when it is imported, so this is a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from example_files import example
from nnunetv2.experiment_planning import plan_and_preprocess_api as nnunet
from nnunetv2.paths import nnUNet_preprocessed, nnUNet_raw
from SimpleITK import GetImageFromArray, WriteImage

from autoseg import build_loss


def main(kind: str) -> None:
    raw, ready = (Path(folder, "Dataset001_Balls") for folder in (nnUNet_raw, nnUNet_preprocessed))
    for part in ("imagesTr", "labelsTr"):
        (raw / part).mkdir(parents=True)
    for n in range(5):
        distance = np.linalg.norm(np.indices((32, 32, 32)) - 12 - 2 * n, axis=0)
        label = np.uint8(distance < 9) + np.uint8(distance < 5)  # a ball with a core
        WriteImage(GetImageFromArray(np.float32(label) + 1), raw / f"imagesTr/ball{n}_0000.nii.gz")
        label[:6] = 3  # without a label
        WriteImage(GetImageFromArray(label), raw / f"labelsTr/ball{n}.nii.gz")
    names = {"background": 0, "ball": 1 if kind == "labels" else [1, 2], "core": 2, "ignore": 3}
    about = {"channel_names": {"0": "made up"}, "labels": names, "regions_class_order": [1, 2]}
    (raw / "dataset.json").write_text(json.dumps({**about, "numTraining": 5, "file_ending": ".nii.gz"}))
    nnunet.extract_fingerprints([1], num_processes=1)
    nnunet.plan_experiments([1])
    nnunet.preprocess([1], configurations=["3d_fullres"], num_processes=[1])

    plans, dataset = (json.loads((ready / name).read_text()) for name in ("nnUNetPlans.json", "dataset.json"))
    os.environ |= {"nnUNet_n_proc_DA": "0"}  # batches are made in this process
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - nnU-Net draws from it
    trainer_class = example("nnunet_trainer").SurrogateTrainer
    trainer = trainer_class({**plans, "continue_training": False}, "3d_fullres", 0, dataset, torch.device("cpu"))
    trainer.num_epochs, trainer.num_iterations_per_epoch, trainer.num_val_iterations_per_epoch = 2, 4, 2
    trainer.run_training()

    batch = next(trainer.dataloader_val)
    with torch.no_grad():
        outputs = trainer.network(batch["data"])
    if kind == "labels":
        loss, targets = build_loss("published:mIoU + ce", ignore_index=3), batch["target"]
    else:
        loss = build_loss("published:mIoU + ce", mode="multilabel", ignore_index=255)
        targets = [torch.where(t[:, -1:] > 0, 255, t[:, :-1].long()) for t in batch["target"]]
    found = {
        "loss": trainer.loss(outputs, batch["target"]).item(),
        "losses": [loss(x, y).item() for x, y in zip(outputs, targets, strict=True)],
        "weights": [float(weight) for weight in trainer.loss.weight_factors],
        "train_losses": [float(x) for x in trainer.logger.get_value("train_losses", step=None)],
        "checkpoint": Path(trainer.output_folder, "checkpoint_final.pth").exists(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
