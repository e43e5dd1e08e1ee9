"""Proxy trials: every proposal trained from the same weights on the same batches and dropout, scored on the hold-out.

So the scores of a search differ by the loss alone, and a trial's score depends on nothing but its parameters: not on
the chunk it is in, nor on the trials before it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from autoseg.config import Search, Task
from autoseg.data.augment import CenterView
from autoseg.data.loaders import eval_loader
from autoseg.errors import InputError
from autoseg.evaluation import is_finite, score
from autoseg.files import fingerprint, writing
from autoseg.metrics import METRICS
from autoseg.plugins import load_plugin
from autoseg.search import Folder, Trial, TrialScore, surrogate
from autoseg.surrogate_json import Surrogate
from autoseg.surrogates import SurrogateLoss
from autoseg.tasks import OpenTask
from autoseg.times import write_time
from autoseg.training import Outcome, train


class Proxy(OpenTask):
    """A proxy task, loaded once: data, initial network, device. Trials are scored on it one after the other."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.cache = self.data.cache(2 * self.settings.short_side)
        self.trained = self.network()
        self.initial = {name: value.clone() for name, value in self.trained.state_dict().items()}

    @cached_property
    def fingerprint(self) -> str:
        """What a trial's score depends on, beside its own parameters."""
        data, split = self.data.checksum(2 * self.settings.short_side), self.split.fingerprint()
        return fingerprint({**self.identity(), "data": data, "split": split})

    def mark(self, proposal: Surrogate) -> str:
        """Return the fingerprint of a proposal's score."""
        return fingerprint({"proxy": self.fingerprint, "surrogate": proposal.model_dump(exclude={"source"})})

    def train(self, loss: nn.Module, progress: str | None = None) -> Outcome:
        """Train the network with a loss, from the initial weights, on the batches that every trial sees."""
        self.trained.load_state_dict(self.initial)

        def batches(start: int) -> Iterable[tuple[Tensor, Tensor]]:
            return self.batches(self.cache.read, self.split.train, start)

        return train(self.trained, loss, batches, self.settings, device=self.device, progress=progress)

    def score(self, names: Iterable[str] = METRICS) -> dict[str, float]:
        """Return the metrics of the network, as it is, on the hold-out images; 0 if its weights are not finite."""
        if not is_finite(self.trained):
            return dict.fromkeys(names, 0.0)
        s = self.settings
        loader = eval_loader(
            self.cache.read,
            self.split.hold_out,
            CenterView(s.short_side),
            batch_size=s.batch_size // s.accumulate,
            workers=s.workers,
        )
        return score(self.trained, loader, self.metrics(names), self.device).compute()

    def trial(self, proposal: Surrogate, progress: str | None = None) -> dict[str, Any]:
        """Train and score one proposal; return what a score file says of it."""
        outcome = self.train(SurrogateLoss(proposal, ignore_index=self.data.ignore_index), progress)
        scores = self.score(dict.fromkeys([*METRICS, proposal.metric]))
        return {"score": scores[proposal.metric], "scores": scores, "diverged": outcome.diverged}


def run_chunk(
    folder: str | os.PathLike[str],
    step: int | Literal["rescore"],
    proxy: Proxy,
    chunk: tuple[int, int] = (0, 1),
    *,
    progress: bool = True,
) -> list[Path]:
    """Score part `chunk` = (k, n) of a step's proposals: trials k, k + n, ... Return their score files.

    A trial is scored unless its file is there with the same fingerprint; its file is written as soon as it is scored.
    """
    files = Folder(folder)
    search = files.search()
    proposals = files.proposals(step)
    k, n = chunk
    if not 0 <= k < n:
        raise InputError(f"chunk {k}/{n}: expected K/N with 0 <= K < N.")
    done = {score.number: score.fingerprint for score in files.scores(step)}
    paths = []
    for trial in proposals.trials[k::n]:
        proposal = surrogate(search, trial.theta, f"trial {trial.number}")
        mark = proxy.mark(proposal)
        if done.get(trial.number) != mark:
            began = time.perf_counter()
            report = proxy.trial(proposal, f"{search.name} trial {trial.number}" if progress else None)
            with writing(files.step(step)):
                files.write_score(
                    step, TrialScore(number=trial.number, metric=proposal.metric, fingerprint=mark, **report)
                )
                write_time(files.step(step), trial.number, time.perf_counter() - began, _name(proxy.device))
        paths.append(files.score_path(step, trial.number))
    return paths


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@dataclass(frozen=True)
class ProxyObjective:
    """The proxy task as the objective of `autoseg.local_search`: every worker process opens it once."""

    task: Task
    plugins: tuple[str, ...] = ()  # modules that register a user's metrics, in every process

    def mark(self, search: Search, trial: Trial) -> str:
        """Return the fingerprint of a trial's score: the one that `autoseg trials` writes."""
        return _opened(self.task).mark(surrogate(search, trial.theta))

    def __call__(self, proposal: Surrogate, number: int) -> dict[str, Any]:
        """Train and score a proposal."""
        for module in self.plugins:
            load_plugin(module)
        return _opened(self.task).trial(proposal)


@lru_cache(maxsize=1)
def _opened(task: Task) -> Proxy:
    return Proxy(task)
