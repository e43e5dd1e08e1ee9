"""A task, opened: data, split, device, batches, metrics. What proxy trials and runs have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autoseg.config import Task
from autoseg.data.augment import Augmentation
from autoseg.data.loaders import Read, train_loader
from autoseg.data.prepared import Prepared
from autoseg.data.split import load_split
from autoseg.files import checksum
from autoseg.metrics import METRICS, SegmentationMetrics
from autoseg.networks import Network, build_network
from autoseg.training import VERSION, choose_device


class OpenTask:
    """A task whose data and device are there; what is missing is an error before anything is trained."""

    def __init__(self, task: Task) -> None:
        self.task, self.settings = task, task.training
        self.device = choose_device(self.settings.device)
        torch.set_num_threads(self.settings.threads)
        self.data = Prepared.open(task.data)
        self.split = load_split(task.split or Path(task.data) / "split.json", self.data)

    def network(self) -> Network:
        """Return the network as every training of this task begins: weights of the encoder, heads from the seed."""
        torch.manual_seed(self.settings.seed)
        return build_network(self.task.network, self.data.num_classes, self.task.weights).to(self.device)

    def batches(
        self, read: Read, ids: Sequence[str], start: int, rank: int = 0, world: int = 1
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """Return the training batches from number `start` on, each one of `accumulate` parts of a step."""
        s = self.settings
        return train_loader(
            read,
            ids,
            Augmentation(s.short_side, s.crop, s.scale, s.max_share, s.flip, s.photometric),
            batch_size=s.batch_size // s.accumulate,
            seed=s.seed,
            start=start,
            stop=s.iterations * s.accumulate,
            workers=s.workers,
            rank=rank,
            world_size=world,
        )

    def metrics(self, names: Iterable[str] = METRICS) -> SegmentationMetrics:
        """Return metrics under the task's conventions."""
        c = self.task.conventions
        return SegmentationMetrics(
            self.data.num_classes,
            self.data.ignore_index,
            c.tolerance,
            c.boundary_radius,
            c.drop_background,
            mask_void=c.mask_void,
            absent=c.absent or "skip",
            metrics=list(names),
        )

    def identity(self) -> dict[str, Any]:
        """Return what every training of this task depends on, for fingerprints; weight files count by content."""
        weights = self.task.weights
        return {
            "version": VERSION,
            "network": self.task.network,
            "weights": checksum(weights) if weights and Path(weights).is_file() else weights,
            "training": self.settings.decisive,
            "conventions": self.task.conventions.model_dump(),
            "device": self.device.type,
        }
