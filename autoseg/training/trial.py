"""Proxy trials: each proposal is trained from the same weights with the same batches and dropout, and scored.

So the scores of a search differ by the loss alone. The score of a trial depends on its parameters only, not on its
chunk or on the trials before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from autoseg.data.augment import CenterView
from autoseg.data.loaders import eval_loader
from autoseg.data.model import cache_short_side
from autoseg.files import checksum, fingerprint
from autoseg.losses.build import loss_of
from autoseg.losses.surrogate import Surrogate
from autoseg.metrics.formula import METRICS
from autoseg.plugins import load_plugin
from autoseg.search.early import Watch
from autoseg.search.folder import Link
from autoseg.search.settings import Search
from autoseg.training.evaluation import is_finite, score
from autoseg.training.foreign import Foreign
from autoseg.training.loop import Outcome, train
from autoseg.training.networks import Network
from autoseg.training.run import save_weights
from autoseg.training.settings import Task, Training
from autoseg.training.task import OpenTask
from autoseg.training.weights import read


class ProxyTask(OpenTask):
    """A proxy task with its data and device: an objective of `autoseg.search.runner` within one process.

    The network is built when the first trial is trained; fingerprints do not need it.
    """

    chains = True  # it can start from the network of another trial, and keep its own

    def __init__(self, task: Task, *, progress: bool = False) -> None:
        super().__init__(task)
        self.cache = self.data.cache(cache_short_side(self.settings.short_side))
        self.progress = progress  # show a bar for each trial

    @property
    def device_name(self) -> str:
        """The name of the GPU, or cpu."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type

    @cached_property
    def trained(self) -> Network | Foreign:
        """The network that all trials train, each from the initial weights."""
        return self.network()

    @cached_property
    def initial(self) -> dict[str, Tensor]:
        """The weights that every trial starts from."""
        return {name: value.clone() for name, value in self.trained.state_dict().items()}

    @cached_property
    def task_fingerprint(self) -> str:
        """The fingerprint of all that a trial's score depends on, beside its own parameters."""
        data, split = self.data.checksum(cache_short_side(self.settings.short_side)), self.split.checksum()
        return fingerprint({**self.decisive(), "data": data, "split": split})

    def use(self, settings: Training) -> None:
        """Train with other settings from now on, on the same data and from the same weights."""
        self.settings = settings
        self.__dict__.pop("task_fingerprint", None)

    def longer(self, times: float) -> ProxyTask:
        """Return the task with so many times the iterations."""
        return ProxyTask(self.task.longer(times), progress=self.progress)

    def fingerprint(self, search: Search, proposal: Surrogate) -> str:
        """Return the fingerprint of a proposal's score."""
        return fingerprint({"proxy": self.task_fingerprint, "surrogate": proposal.model_dump(exclude={"source"})})

    def train(
        self,
        loss: nn.Module,
        progress: str | None = None,
        looks: Mapping[int, Callable[[], bool]] | None = None,
        link: Link | None = None,
    ) -> Outcome:
        """Train the network with a loss, from the initial weights, on the batches that every trial sees.

        With a `link`, from its network, and as part of a training of as many parts as the search has steps.
        """
        settings, steps = self.settings, None
        if link is not None:
            each = settings.iterations
            settings = settings.model_copy(update={"iterations": link.steps * each})
            steps = ((link.step - 1) * each, link.step * each)
        initial = self.initial  # taken from the network before another one's weights are put into it
        self.trained.load_state_dict(read(link.start) if link and link.start else initial)

        def batches(start: int) -> Iterable[tuple[Tensor, Tensor]]:
            return self.batches(self.cache.read, self.split.train, start, stop=steps[1] if steps else None)

        return train(
            self.trained, loss, batches, settings, device=self.device, progress=progress, looks=looks, steps=steps
        )

    def score(self, names: Iterable[str] = METRICS, ids: Sequence[str] | None = None) -> dict[str, float]:
        """Return the metrics of the network, as it is, on the hold-out images; 0 if its weights are not finite.

        `ids`: on these images only.
        """
        if not is_finite(self.trained):
            return dict.fromkeys(names, 0.0)
        s = self.settings
        loader = eval_loader(
            self.cache.read,
            self.split.hold_out if ids is None else ids,
            CenterView(s.short_side),
            batch_size=s.batch_size // s.accumulate,
            loaders=s.loaders,
        )
        return score(self.trained, loader, self.metrics(names), self.device, s).compute()

    def __call__(
        self, proposal: Surrogate, number: int, watch: Watch | None = None, link: Link | None = None
    ) -> dict[str, Any]:
        """Train and score one proposal; return the content of its score file, and the device.

        A trial that `watch` ends has no score here. With a `link` the network is kept.
        """
        loss = loss_of(proposal, ignore_index=self.data.ignore_index, has_background=self.has_background)
        looks = self._looks(proposal.metric, watch) if watch else None
        outcome = self.train(self.in_groups(loss), proposal.source if self.progress else None, looks, link)
        device = self.device_name
        if outcome.ended:
            return {"score": math.nan, "device": device}
        scores = self.score(dict.fromkeys([*METRICS, proposal.metric]))
        found = {"score": scores[proposal.metric], "scores": scores, "diverged": outcome.diverged, "device": device}
        if link is not None and link.out is not None:
            save_weights(self.trained, link.out, link.fingerprint, outcome)
            found["weights"] = checksum(link.out)
        return found

    def _looks(self, metric: str, watch: Watch) -> dict[int, Callable[[], bool]]:
        """Return what is done after which steps: the network is scored, and `watch` says whether to go on."""

        def look(at: float, images: float) -> bool:
            return watch(at, self.early_score(images, [metric])[metric])

        steps = self.settings.iterations
        return {max(round(one.at * steps), 1): partial(look, one.at, one.images) for one in watch.looks}

    def early_score(self, images: float, names: Iterable[str] = METRICS) -> dict[str, float]:
        """Return the metrics of the network in its training, on a share of the hold-out images.

        Layers that train on statistics of the batch are scored with those too. Their running averages, with which the
        final score is made, lag behind in a short training: with them a score after a quarter of the demo's steps says
        nothing of the final one.
        """
        size = self.settings.batch_size // self.settings.accumulate
        with batch_statistics(self.trained):
            return self.score(names, in_batches(self.split.hold_out, images, size))


@contextmanager
def batch_statistics(network: nn.Module) -> Iterator[None]:
    """Let layers in training mode use the statistics of the batch in evaluation mode, too."""
    layers = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    running = [(layer, layer.running_mean, layer.running_var) for layer in layers]
    try:
        for layer in layers:
            layer.running_mean = layer.running_var = None
        yield
    finally:
        for layer, mean, variance in running:
            layer.running_mean, layer.running_var = mean, variance


def in_batches(ids: Sequence[str], share: float, size: int) -> list[str]:
    """Return a share of the images, taken evenly from all of them, in whole batches: at least one, where they suffice.

    >>> in_batches(["a", "b", "c", "d", "e"], 0.6, 2)
    ['a', 'e']
    """
    count = min(max(int(share * len(ids)) // size, 1) * size, len(ids))
    return [ids[k * (len(ids) - 1) // max(count - 1, 1)] for k in range(count)]


@dataclass(frozen=True)
class ProxyObjective:
    """A proxy task as an objective for worker processes: each of them opens it once."""

    task: Task
    plugins: tuple[str, ...] = ()  # modules that register a user's metrics, in every process
    chains: ClassVar[bool] = True

    @cached_property
    def _here(self) -> ProxyTask:
        return ProxyTask(self.task)

    def __reduce__(self) -> tuple[type[ProxyObjective], tuple[Task, tuple[str, ...]]]:
        return type(self), (self.task, self.plugins)  # a worker opens the task itself

    def longer(self, times: float) -> ProxyObjective:
        """Return the objective with so many times the iterations."""
        return replace(self, task=self.task.longer(times))

    def fingerprint(self, search: Search, proposal: Surrogate) -> str:
        """Return the fingerprint of a proposal's score; the task is opened, but no network is built."""
        return self._here.fingerprint(search, proposal)

    def __call__(
        self, proposal: Surrogate, number: int, watch: Watch | None = None, link: Link | None = None
    ) -> dict[str, Any]:
        """Train and score a proposal."""
        for module in self.plugins:
            load_plugin(module)
        return _opened(self.task.model_dump_json())(proposal, number, watch, link)


@lru_cache(maxsize=1)
def _opened(task: str) -> ProxyTask:
    return ProxyTask(Task.model_validate_json(task))
