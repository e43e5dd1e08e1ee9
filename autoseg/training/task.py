"""An opened task: its data, split, device, batches and metrics, for proxy trials and for runs.

`check_task` lists everything that is missing for a task, before it is started.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from autoseg import gpus
from autoseg.data.kinds import kind_of
from autoseg.data.loaders import Read, train_loader
from autoseg.data.model import cache_short_side
from autoseg.data.prepare import readable
from autoseg.data.prepared import Prepared
from autoseg.data.split import load_split
from autoseg.errors import Problem, collect
from autoseg.files import checksum
from autoseg.losses.batch import Loss
from autoseg.losses.build import MeanOfGroupsLoss
from autoseg.metrics.formula import METRICS
from autoseg.metrics.segmentation import SegmentationMetrics
from autoseg.training.augmentation import make_augmentation, pipeline_identity, remarks_on_augmentation
from autoseg.training.foreign import Foreign
from autoseg.training.loop import choose_device
from autoseg.training.names import network_identity
from autoseg.training.networks import Network, build_network, has_imagenet
from autoseg.training.rehearsal import rehearse
from autoseg.training.settings import Task
from autoseg.versions import TRAINING_VERSION


class OpenTask:
    """A task with its data and device; if something is missing, opening it is an error."""

    def __init__(self, task: Task) -> None:
        self.task, self.settings = task, task.training
        self.device = choose_device(self.settings.device)
        torch.set_num_threads(self.settings.threads)
        self.data = Prepared.open(task.data)
        self.split = load_split(task.split or Path(task.data) / "split.json", self.data)
        self.conventions = task.conventions.on_data(kind_of(self.data.index.dataset).HAS_BACKGROUND)
        # The metrics say whether class 0 is a background, unless losses are told to drop it all the same.
        self.has_background = self.conventions.drop_background or bool(task.loss_conventions.drop_background)

    def network(self) -> Network | Foreign:
        """Return the network with which all trainings of this task begin: given weights, heads from the seed."""
        torch.manual_seed(self.settings.seed)
        task = self.task
        return build_network(
            task.network,
            self.data.num_classes,
            task.weights,
            checkpoint=task.checkpoint,
            options=task.network_options,
        ).to(self.device)

    def in_groups(self, loss: Loss) -> Loss:
        """Return a loss as the settings want it: of all images at once, or as the mean over groups of them."""
        images = self.settings.loss_batch
        return loss if images is None else MeanOfGroupsLoss(loss, images)

    def batches(
        self, read: Read, ids: Sequence[str], start: int, rank: int = 0, world: int = 1, stop: int | None = None
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """Return the training batches from number `start` on, each one of `accumulate` parts of a step.

        They end after step `stop`, by default the last of the training.
        """
        s = self.settings
        return train_loader(
            read,
            ids,
            make_augmentation(s),
            batch_size=s.batch_size // s.accumulate,
            seed=s.seed,
            start=start,
            stop=(s.iterations if stop is None else stop) * s.accumulate,
            loaders=s.loaders,
            rank=rank,
            world_size=world,
        )

    def metrics(self, names: Iterable[str] = METRICS) -> SegmentationMetrics:
        """Return metrics under the task's conventions."""
        return SegmentationMetrics.preset(
            self.conventions,
            self.data.num_classes,
            ignore_index=self.data.ignore_index,
            metrics=list(names),
            empty=0.0,  # a search can take a 0, not a NaN
        )

    def decisive(self) -> dict[str, Any]:
        """Return what a training of this task depends on, for fingerprints; of a file of weights, its checksum."""
        task, training = self.task, self.settings.decisive
        if self.settings.augmentation is not None:
            training["augmentation"] = pipeline_identity(self.settings.augmentation)
        return {
            "version": TRAINING_VERSION,
            "network": task.network,
            **network_identity(task.network, task.network_options),
            "weights": _content(task.weights),
            **({"checkpoint": _content(task.checkpoint)} if task.checkpoint else {}),
            "training": training,
            "conventions": self.conventions.model_dump(),
            "loss_conventions": self.task.loss_conventions.changes,
            "device": self.device.type,
        }


def _content(file: str | None) -> str | None:
    """Return the checksum of a file; a name that is no file's stays as it is."""
    return checksum(file) if file and Path(file).is_file() else file


def check_gpus(trials_per_gpu: int = 1) -> list[Problem]:
    """Return a remark that names the GPUs and how jobs share them, and whether torch sees them all."""
    if not (found := gpus.description(trials_per_gpu)):
        return []
    sharing = "trials_per_gpu lets small trials share one; CUDA_VISIBLE_DEVICES leaves some to others"
    problems = [Problem("gpus", found, sharing, "warning")]
    if (seen := torch.cuda.device_count()) != len(gpus.visible()):
        cure = "install a torch for this driver, look at CUDA_VISIBLE_DEVICES, or set device to cpu"
        problems.append(Problem("gpus", f"torch sees {seen} of them", cure))
    return problems


def check_task(
    task: Task, out: str | os.PathLike[str] = ".", source: Literal["files", "cache"] = "cache"
) -> list[Problem]:
    """Return all problems of a training that writes to `out`, and remarks.

    Device, network, weights (they are loaded), augmentation, data, split and room for checkpoints are checked
    separately. Trials read images from the cache, so that the cache is opened; runs read the original files, so that
    the first one is read.
    """
    s = task.training
    problems: list[Problem] = []

    def remark(where: str, what: str, cure: str) -> None:
        problems.append(Problem(where, what, cure, "warning"))

    with collect(problems):
        if choose_device(task.training.device).type == "cpu":
            remark("device", "the training runs on the CPU", "use a GPU for networks other than small and tiny")
    if task.training.device != "cpu":
        problems += check_gpus()
    classes = 2
    with collect(problems, "data"):
        data = Prepared.open(task.data)
        classes = data.num_classes
        split = load_split(task.split or data.folder / "split.json", data)
        with collect(problems):
            if source == "cache":
                data.cache(cache_short_side(task.training.short_side))
            else:
                data.read(split.whole_train[0])
    with collect(problems):
        problems += remarks_on_augmentation(s)
    if s.optimiser == "adamw" and s.lr >= 0.01:
        remark("lr", f"{s.lr:g} is a rate for SGD", "AdamW wants about 1e-4, and min_lr below it")
    with collect(problems):
        network = rehearse(task.network, classes, s.crop, options=task.network_options)
        need = s.kept_states * sum(value.numel() * value.element_size() for value in network.state_dict().values())
        there = next(place for place in (Path(out), *Path(out).absolute().parents) if place.exists())
        if (free := shutil.disk_usage(there).free) < need:
            found = f"{readable(free)} free, {readable(need)} are needed for the checkpoints of one training"
            problems.append(Problem(str(out), found, "make room or choose another folder"))
        if task.weights is not None or task.checkpoint is not None:
            build_network(task.network, classes, task.weights, checkpoint=task.checkpoint, options=task.network_options)
        elif has_imagenet(task.network):
            remark("weights", "the encoder starts from random weights", "give --weights imagenet, as in the paper")
    return problems
