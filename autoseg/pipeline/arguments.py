"""The arguments of every command that the pipeline runs, quoted for the shell.

A job has only those that its result depends on: Snakemake runs it again when one of them changes.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from pydantic import BaseModel

from autoseg.files import checksum, fingerprint
from autoseg.losses.names import searches_of
from autoseg.metrics.conventions import Conventions
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.layout import Layout
from autoseg.pipeline.outputs import Figure, GalleryFigure, Run
from autoseg.pipeline.sections import Proxy, Retraining
from autoseg.search.space import decisive, self_contained
from autoseg.training.augmentation import pipeline_identity
from autoseg.training.names import kind_of, network_identity
from autoseg.training.settings import Training


def options(pairs: Mapping[str, Any], option: str = "--set") -> str:
    """Return KEY=VALUE settings as quoted arguments, sorted.

    >>> options({"iterations": 2, "crop": (8, 8)})
    "--set 'crop=[8, 8]' --set iterations=2"
    """
    return " ".join(f"{option} {shlex.quote(f'{key}={json.dumps(value)}')}" for key, value in sorted(pairs.items()))


def flags(pairs: Mapping[str, Any]) -> str:
    """Return options of a command as quoted arguments: true is the bare flag, and a list repeats it.

    >>> flags({"train": 10, "leave_out_copies": True, "root": "my data"})
    "--leave-out-copies --root 'my data' --train 10"
    >>> flags({"split": {"train": "a.txt", "val": "b.txt"}})
    '--split train=a.txt --split val=b.txt'
    """
    words: list[str] = []
    for key, value in sorted(pairs.items()):
        flag = "--" + key.replace("_", "-")
        if isinstance(value, Mapping):
            value = [f"{name}={place}" for name, place in value.items()]
        if value is True:
            words.append(flag)
        elif value is not False and value is not None:
            for item in value if isinstance(value, list) else [value]:
                words += [flag, str(item)]
    return shlex.join(words)


def as_argument(part: BaseModel, **options: Any) -> str:
    """Return a part of a config as JSON for a command, in the config's own order: that of a figure's columns.

    >>> from autoseg.pipeline.outputs import Row
    >>> as_argument(Row(loss="ce", label="CE"), exclude_defaults=True)
    '{"loss": "ce", "label": "CE"}'
    """
    return json.dumps(part.model_dump(mode="json", **options), ensure_ascii=False)


def content_of(how: Proxy | Retraining) -> str | None:
    """Return what stands behind the names that a training is told: a name may come to mean another file.

    Those are weights, a checkpoint, somebody's own network (its source) and augmentation. None: all is in the names.
    """
    files = [_checksum(path) for path in (how.weights, how.checkpoint)]
    network = network_identity(how.network)
    augmentation = how.training.model_dump().get("augmentation")
    others = [fingerprint(network) if network else None]
    others += [fingerprint(pipeline_identity(augmentation)) if augmentation else None]
    return " ".join(part for part in (*files, *others) if part) or None


def network_arguments(how: Proxy | Retraining) -> list[str]:
    """Return what names a network and its weights, as the words of a command."""
    words = flags({"network": how.network, "weights": how.weights})
    return shlex.split(f"{words} {options(how.network_options, '--network-option')}")


@cache
def _checksum(path: str | None) -> str | None:
    return checksum(path) if path and os.path.isfile(path) else None


@dataclass(frozen=True)
class Arguments:
    """The arguments of the jobs of a config."""

    pipeline: Pipeline
    layout: Layout

    @cached_property
    def machine(self) -> str:
        """How a training uses the machine, which changes no result."""
        return options({"device": self.pipeline.device, "loaders": self.pipeline.loaders})

    @cached_property
    def machine_of_trials(self) -> str:
        """How and where trials run, which changes no result."""
        return f"{self.machine} {flags({'trials_per_gpu': self.pipeline.trials_per_gpu})}"

    def prepare(self, dataset: str, crop: int) -> str:
        """Return the arguments of `autoseg prepare` for a cache of this crop."""
        plan = self.pipeline.datasets[dataset]
        return f"{plan.kind} {flags({**plan.options, 'proxy_size': crop})}"

    def split(self, dataset: str, seed: int | None = None) -> str:
        """Return the arguments of `autoseg split`; with a seed, for searches of that seed."""
        seed = self.pipeline.split_seed(dataset) if seed is None else seed
        return flags({"hold_out": self.pipeline.datasets[dataset].hold_out, "seed": seed})

    # A search has hundreds of jobs with the same arguments: they are made once.
    @cached_property
    def search(self) -> dict[str, str]:
        """The settings of a search as JSON, by its name."""
        found = {name: self_contained(self.pipeline.search(name)) for name in self.pipeline.searches}
        return {name: as_argument(search, exclude_defaults=True) for name, search in found.items()}

    @cached_property
    def ask(self) -> dict[str, str]:
        """The settings that decide the proposals of a search, by its name; the number of steps often does not."""
        return {name: as_argument(decisive(self.pipeline.search(name))) for name in self.pipeline.searches}

    @cached_property
    def trials(self) -> dict[str, dict[str, str | None]]:
        """The arguments of the trials of a search, by its name, and what stands behind the names in them."""
        found: dict[str, dict[str, str | None]] = {}
        for name, content in self.timing.items():
            found[name] = {**content, "arguments": f"{shlex.quote(self.layout.search(name))} {content['arguments']}"}
        return found

    @cached_property
    def timing(self) -> dict[str, dict[str, str | None]]:
        """The task of the trials of a search, by its name, and what stands behind the names in it."""
        found: dict[str, dict[str, str | None]] = {}
        for name, plan in self.pipeline.searches.items():
            proxy, settings = self.pipeline.proxies[plan.proxy], self.pipeline.proxy_training(name)
            task = self._task(plan.dataset, proxy, settings, self.pipeline.search(name).conventions)
            if proxy.checkpoint:
                task += f" {flags({'checkpoint': proxy.checkpoint})}"
            if in_loss := options(self.pipeline.search(name).loss_conventions.changes, "--loss-convention"):
                task += f" {in_loss}"
            if (seed := self.pipeline.hold_out_seed(name)) is not None:
                task += f" {flags({'split': self.layout.split(plan.dataset, seed)})}"
            found[name] = {"arguments": task, "weights": content_of(proxy)}
        return found

    def tuned(self, tuning: str) -> str:
        """Return what decides which learning rates a tuning tries."""
        plan = self.pipeline.tunings[tuning]
        words = flags({"loss": plan.loss, "trials": plan.trials})
        return f"{shlex.quote(self.layout.tuning(tuning))} --lr {plan.lr[0]!r} {plan.lr[1]!r} {words}"

    def tune(self, tuning: str) -> dict[str, str | None]:
        """Return the arguments of a tuning's trials, and what stands behind the names in them."""
        plan = self.pipeline.tunings[tuning]
        proxy, dataset = self.pipeline.proxies[plan.proxy], self.pipeline.datasets[plan.dataset]
        task = self._task(plan.dataset, proxy, self.pipeline.tuning_training(tuning), dataset.metric_conventions)
        more = [options(dataset.loss_conventions.changes, "--loss-convention"), flags({"checkpoint": proxy.checkpoint})]
        if metrics := self.pipeline.metrics_of_tuning(tuning):
            more.append(shlex.join(["--metrics", *metrics]))
        arguments = " ".join([self.tuned(tuning), task, *filter(None, more)])
        return {"arguments": arguments, "weights": content_of(proxy)}

    def train(self, run: str) -> str:
        """Return the arguments of `autoseg train`: its loss, and what it trains on."""
        wanted = self.pipeline.runs[run]
        searched = {name: self.layout.surrogate(name) for name in searches_of(wanted.loss)}
        how = self.pipeline.retrainings[wanted.retraining]
        own = {"loss": wanted.loss, "searched": searched, "source": how.source, "checkpoint": how.checkpoint}
        if how.tuning is not None:
            own |= {"tuning": self.layout.tuned(how.tuning), "tuned_for": how.tuned_for}
        return f"{flags(own)} {self._run_task(wanted)}"

    def evaluate(self, run: str) -> str:
        """Return the arguments of `autoseg evaluate`."""
        wanted = self.pipeline.runs[run]
        further = shlex.join(["--metrics", *more]) if (more := self.pipeline.further_metrics(run)) else ""
        decide = "" if wanted.decide == "argmax" else f"--decide {wanted.decide}"
        return " ".join(filter(None, [self._window(wanted.retraining), further, decide, self._run_task(wanted)]))

    def figure(self, figure: Figure) -> str:
        """Return the arguments of `autoseg figure`."""
        more = ""
        if isinstance(figure, GalleryFigure):
            network = self.pipeline.retrainings[figure.retraining].network
            own = f"--network {shlex.quote(network)}" if kind_of(network) == "own" else ""
            more = f"{self._window(figure.retraining)} {own}"
        return f"--figure {shlex.quote(as_argument(figure))} {more}".rstrip()

    def report(self, configfiles: Sequence[str | os.PathLike[str]], keys: Mapping[str, Any]) -> str:
        """Return the config files and keys that Snakemake was given, for the commands that the report shows."""
        files = " ".join(os.path.relpath(path) for path in configfiles)
        return flags({"config": files or None, "snakemake_config": dict(keys)})

    def _run_task(self, run: Run) -> str:
        settings = self.pipeline.run_training(run.retraining, run.seed)
        how, dataset = self.pipeline.retrainings[run.retraining], self.pipeline.datasets[run.dataset]
        task = self._task(run.dataset, how, settings, dataset.metric_conventions)
        # Trained weights do not depend on the scale of the test, but `run.json` says it, and scores do.
        scale = {} if settings.test_scale == "training" else {"test_scale": settings.test_scale}
        more = [options(scale), options(dataset.loss_conventions.changes, "--loss-convention")]
        return " ".join([task, *filter(None, more)])

    def _task(self, dataset: str, how: Proxy | Retraining, settings: Training, conventions: Conventions) -> str:
        """Return what describes a training on a data set."""
        return " ".join(
            [
                flags({"data": self.layout.data(dataset), "network": how.network, "weights": how.weights}),
                *([options(how.network_options, "--network-option")] if how.network_options else []),
                options(settings.decisive),
                options(conventions.model_dump(exclude_none=True), "--convention"),
            ]
        )

    def _window(self, retraining: str) -> str:
        """Return the sliding window of an evaluation."""
        size = self.pipeline.retrainings[retraining].window
        return f"--window {size[0]} {size[1]}" if size else ""
