"""Proxy trials: every proposal trained from the same weights on the same batches and dropout, scored on the hold-out.

So the scores of a search differ by the loss alone, and a trial's score depends on nothing but its parameters: not on
the chunk it is in, nor on the trials before it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autoseg.config import Task
from autoseg.data.augment import Augmentation, CenterView
from autoseg.data.loaders import eval_loader, train_loader
from autoseg.data.prepared import Prepared
from autoseg.data.split import load_split
from autoseg.errors import InputError
from autoseg.evaluation import score
from autoseg.files import checksum, fingerprint, read_json, write_json
from autoseg.metrics import METRICS, SegmentationMetrics
from autoseg.networks import build_network
from autoseg.search import Folder, TrialScore, surrogate
from autoseg.surrogate_json import Surrogate
from autoseg.surrogates import SurrogateLoss
from autoseg.training import VERSION, Outcome, choose_device, train


class Proxy:
    """A proxy task, loaded once: data, initial network, device. Trials are scored on it one after the other."""

    def __init__(self, task: Task) -> None:
        self.task, self.settings = task, task.training
        self.device = choose_device(self.settings.device)
        torch.set_num_threads(self.settings.threads)
        self.data = Prepared.open(task.data)
        self.split = load_split(task.split or Path(task.data) / "split.json", self.data)
        self.cache = self.data.cache(2 * self.settings.short_side)
        torch.manual_seed(self.settings.seed)
        self.network = build_network(task.network, self.data.num_classes, task.weights).to(self.device)
        self.initial = {name: value.clone() for name, value in self.network.state_dict().items()}

    @cached_property
    def fingerprint(self) -> str:
        """What a trial's score depends on, beside its own parameters."""
        weights = self.task.weights
        return fingerprint(
            {
                "version": VERSION,
                "data": self.data.checksum(2 * self.settings.short_side),
                "split": self.split.fingerprint(),
                "network": self.task.network,
                "weights": checksum(weights) if weights and Path(weights).is_file() else weights,
                "training": self.settings.decisive,
                "conventions": self.task.conventions.model_dump(),
                "device": self.device.type,
            }
        )

    def batches(self, start: int) -> Iterable[tuple[Tensor, Tensor]]:
        """Return the training batches from number `start` on: the same for every trial."""
        s = self.settings
        augmentation = Augmentation(s.short_side, s.crop, s.scale, s.max_share, s.flip, s.photometric)
        return train_loader(
            self.cache.read,
            self.split.train,
            augmentation,
            batch_size=s.batch_size // s.accumulate,
            seed=s.seed,
            start=start,
            stop=s.iterations * s.accumulate,
            workers=s.workers,
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

    def train(self, loss: nn.Module, progress: str | None = None) -> Outcome:
        """Train the network with a loss, from the initial weights."""
        self.network.load_state_dict(self.initial)
        return train(self.network, loss, self.batches, self.settings, device=self.device, progress=progress)

    def score(self, names: Iterable[str] = METRICS) -> dict[str, float]:
        """Return the metrics of the network, as it is, on the hold-out images; 0 if its weights are not finite."""
        if not all(bool(value.isfinite().all()) for value in self.network.state_dict().values()):
            return dict.fromkeys(names, 0.0)
        view = CenterView(self.settings.short_side)
        batch = max(self.settings.batch_size // self.settings.accumulate, 1)
        loader = eval_loader(
            self.cache.read, self.split.hold_out, view, batch_size=batch, workers=self.settings.workers
        )
        return score(self.network, loader, self.metrics(names), self.device).compute()

    def trial(self, proposal: Surrogate, progress: str | None = None) -> dict[str, Any]:
        """Train and score one proposal; return what a score file says of it."""
        outcome = self.train(SurrogateLoss(proposal, ignore_index=self.data.ignore_index), progress)
        scores = self.score(dict.fromkeys([*METRICS, proposal.metric]))
        return {"score": scores[proposal.metric], "scores": scores, "diverged": outcome.diverged}


def run_chunk(
    folder: str | os.PathLike[str],
    step: int | str,
    proxy: Proxy,
    chunk: tuple[int, int] = (0, 1),
    *,
    progress: bool = True,
    done: Callable[[int], None] | None = None,
) -> list[Path]:
    """Score part `chunk` = (k, n) of a step's proposals: trials k, k + n, ... Return their score files.

    A trial is scored unless its file is there with the same fingerprint; its file is written as soon as it is scored.
    """
    files = Folder(folder)
    search = files.search()
    proposals = files.proposals(step)  # type: ignore[arg-type]
    k, n = chunk
    if not 0 <= k < n:
        raise InputError(f"chunk {k}/{n}: expected K/N with 0 <= K < N.")
    paths = []
    for trial in proposals.trials[k::n]:
        path = files.step(proposals.step) / f"trial-{trial.number}.json"
        paths.append(path)
        proposal = surrogate(search, trial.theta, f"{search.name}, trial {trial.number}")
        mark = fingerprint({"proxy": proxy.fingerprint, "surrogate": proposal.model_dump(exclude={"source"})})
        if path.exists() and read_json(path).get("fingerprint") == mark:
            continue
        report = proxy.trial(proposal, f"{search.name} trial {trial.number}" if progress else None)
        if not math.isfinite(report["score"]):
            raise InputError(f"trial {trial.number}: the score is {report['score']}.")
        write_json(
            path,
            TrialScore(number=trial.number, metric=proposal.metric, fingerprint=mark, **report).model_dump(
                by_alias=True
            ),
        )
        if done is not None:
            done(trial.number)
    return paths
