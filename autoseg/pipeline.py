"""The pipeline's config: which tables are wanted, and the data sets, searches and runs that stand behind them.

You name tables; tables name runs (a network trained with a loss); losses name searches; searches name data sets. This
module checks a config whole and derives everything the rules need: paths, jobs, and the arguments of each command. It
knows nothing of Snakemake, and imports no torch.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from autoseg.config import Search, Training, parse, training
from autoseg.errors import InputError, unknown
from autoseg.surrogate_json import PUBLISHED, SurrogateConventions

Name = str
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Dataset(_Model):
    """A data set to prepare, and its hold-out."""

    kind: Literal["voc", "cityscapes", "folder", "synthetic"] = Field(description="see `autoseg prepare --help`")
    options: dict[str, Any] = Field(default={}, description="options of `autoseg prepare KIND`, such as root or train")
    proxy_size: int = Field(default=128, ge=8, description="crop of the proxy task, pixels")
    hold_out: int | float | None = Field(default=None, description="images held out of training: a number or a share")
    split_seed: int = Field(default=0, ge=0, description="another seed, another hold-out")
    conventions: SurrogateConventions = Field(default=SurrogateConventions(), description="of the metrics")


class Proxy(_Model):
    """What a search trains: a network and its settings."""

    network: str = Field(description="see `autoseg.networks.NETWORKS`")
    weights: str | None = Field(default=None, description="imagenet, a file, or null")
    protocol: str = Field(default="paper-proxy", description="training settings by name")
    training: dict[str, Any] = Field(default={}, description="changes to the protocol")


class SearchPlan(_Model):
    """A search of the pipeline: where, what, how, and how its trials are shared out over jobs."""

    dataset: Name = Field(description="one of `datasets`")
    proxy: Name = Field(description="one of `proxies`")
    trials_per_job: int = Field(default=4, ge=1, description="trials that one job trains, one after the other")
    search: dict[str, Any] = Field(description="see `autoseg.config.Search`: metric, steps, trials_per_step, ...")


class Retraining(_Model):
    """How a run is trained and evaluated."""

    network: str = Field(description="see `autoseg.networks.NETWORKS`")
    weights: str | None = Field(default=None, description="imagenet, a file, or null")
    protocol: str = Field(default="paper", description="training settings by name")
    training: dict[str, Any] = Field(default={}, description="changes to the protocol")
    source: Literal["files", "cache"] = Field(default="files", description="read original files, or the proxy's cache")
    window: tuple[int, int] | None = Field(default=None, description="sliding window of the evaluation; null: whole")
    processes: int = Field(default=1, ge=1, description="GPUs that train together")


class Row(_Model):
    """A row of a table: a loss, under a label."""

    loss: str = Field(description="see `autoseg.losses.build_loss`; also searched:<search>")
    label: str | None = Field(default=None, description="how the row is called; null: the loss")
    target: list[str] = Field(default=[], description="the metrics that the loss aims at; [] : derived from its name")


class Table(_Model):
    """A table: losses as rows, metrics as columns, on a data set."""

    title: str = ""
    dataset: Name = Field(description="one of `datasets`")
    retraining: Name = Field(description="one of `retrainings`")
    rows: list[Row | str] = Field(min_length=1)
    seeds: list[int] = Field(default=[0], min_length=1, description="one run for each; the table shows the mean")

    def losses(self) -> list[Row]:
        """Return the rows, those given as a plain loss too."""
        return [row if isinstance(row, Row) else Row(loss=row) for row in self.rows]


class Pipeline(_Model):
    """A whole config."""

    name: Name = Field(description="results go to results/<name>/")
    plugins: list[str] = Field(default=[], description="modules to import first: they register metrics")
    datasets: dict[Name, Dataset]
    proxies: dict[Name, Proxy] = {}
    searches: dict[Name, SearchPlan] = {}
    retrainings: dict[Name, Retraining]
    tables: dict[Name, Table] = Field(min_length=1)
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where trainings run")
    threads: int = Field(default=1, ge=1, description="CPU threads of a training; another number, other last digits")
    workers: int = Field(default=2, ge=0, description="processes that load data for a training")

    @model_validator(mode="after")
    def _consistent(self) -> Pipeline:
        for kind in ("datasets", "proxies", "searches", "retrainings", "tables"):
            for name in getattr(self, kind):
                if not _NAME.match(name):
                    raise InputError(f"{kind}.{name}: a name has letters, digits, dots, dashes and underscores only.")
        for name, plan in self.searches.items():
            _known(plan.dataset, self.datasets, f"searches.{name}.dataset")
            _known(plan.proxy, self.proxies, f"searches.{name}.proxy")
            self.search(name)
            self.proxy_training(name)
        for name, table in self.tables.items():
            _known(table.dataset, self.datasets, f"tables.{name}.dataset")
            _known(table.retraining, self.retrainings, f"tables.{name}.retraining")
            for row in table.losses():
                for search in searches_of(row.loss):
                    _known(search, self.searches, f"tables.{name}: loss '{row.loss}'")
                _check_terms(row.loss, f"tables.{name}")
            for seed in table.seeds:
                self.run_training(table.retraining, seed)
        return self

    def search(self, name: Name) -> Search:
        """Return the settings of a search."""
        plan = self.searches[name]
        given = {"conventions": self.datasets[plan.dataset].conventions.model_dump(), **plan.search, "name": name}
        return parse(Search, given, f"searches.{name}.search")

    def proxy_training(self, name: Name) -> Training:
        """Return the training settings of a search's trials."""
        plan = self.searches[name]
        proxy, size = self.proxies[plan.proxy], self.datasets[plan.dataset].proxy_size
        machine = {"device": self.device, "threads": self.threads, "workers": self.workers}
        fitting = {"crop": (size, size), "short_side": size}
        return training(proxy.protocol, **{**machine, **fitting, **proxy.training})

    def run_training(self, retraining: Name, seed: int) -> Training:
        """Return the training settings of a run."""
        plan = self.retrainings[retraining]
        machine = {"device": self.device, "threads": self.threads, "workers": self.workers, "seed": seed}
        return training(plan.protocol, **{**machine, **plan.training})

    def runs(self) -> dict[str, tuple[Name, Name, str, int]]:
        """Return every run behind the tables: its name -> (data set, retraining, loss, seed)."""
        found: dict[str, tuple[Name, Name, str, int]] = {}
        for table in self.tables.values():
            for row in table.losses():
                for seed in table.seeds:
                    key = (table.dataset, table.retraining, row.loss, seed)
                    found[run_name(*key)] = key
        return found

    def chunks(self, name: Name, trials: int) -> int:
        """Return into how many jobs so many trials of a search are shared out."""
        return -(-trials // self.searches[name].trials_per_job)


def _known(name: str, among: Mapping[str, Any], where: str) -> None:
    if name not in among:
        raise InputError(f"{where}: {unknown('name', name, among)}")


def terms(loss: str) -> list[str]:
    """Return the terms of a loss, without weights.

    >>> terms("searched:a + 0.5 * published:BIoU")
    ['searched:a', 'published:BIoU']
    """
    return [part.split("*")[-1].strip() for part in re.split(r"\s\+\s", loss.strip())]


def searches_of(loss: str) -> list[str]:
    """Return the searches that a loss needs."""
    return [term.partition(":")[2] for term in terms(loss) if term.startswith("searched:")]


def _check_terms(loss: str, where: str) -> None:
    from autoseg import formula

    plain = ("ce", "wce", "dpce", "ssim", "dice", "dice-squared", "lovasz")
    for term in terms(loss):
        kind, _, rest = term.partition(":")
        if kind == "naive":
            formula.get(rest)
        elif kind == "published":
            if rest.lower() not in [name.lower() for name in PUBLISHED]:
                raise InputError(f"{where}: {unknown('published surrogate', rest, PUBLISHED)}")
        elif kind != "searched" and term.lower() not in plain and not term.endswith(".json"):
            raise InputError(f"{where}: {unknown('loss', term, [*plain, 'naive:', 'published:', 'searched:'])}")


def run_name(dataset: Name, retraining: Name, loss: str, seed: int) -> str:
    """Return the folder of a run below results/<name>/runs.

    >>> run_name("voc", "r101", "published:mIoU + 0.5 * searched:biou", 0)
    'voc/r101/published-mIoU_0.5xsearched-biou/seed-0'
    """
    plain = re.sub(r"\s*\*\s*", "x", re.sub(r"\s\+\s", "_", loss.strip())).replace(":", "-").replace("/", "-")
    return f"{dataset}/{retraining}/{re.sub(r'[^A-Za-z0-9._-]', '-', plain)}/seed-{seed}"


def options(pairs: Mapping[str, Any]) -> str:
    """Return KEY=VALUE settings as quoted `--set` arguments, sorted.

    >>> options({"iterations": 2, "crop": (8, 8)})
    "--set 'crop=[8, 8]' --set iterations=2"
    """
    import json

    return " ".join(f"--set {shlex.quote(f'{key}={json.dumps(value)}')}" for key, value in sorted(pairs.items()))


def flags(pairs: Mapping[str, Any]) -> str:
    """Return options of a command as quoted arguments: true is the bare flag.

    >>> flags({"train": 10, "leave_out_copies": True, "root": "my data"})
    "--leave-out-copies --root 'my data' --train 10"
    """
    words: list[str] = []
    for key, value in sorted(pairs.items()):
        if value is False or value is None:
            continue
        words.append("--" + key.replace("_", "-"))
        if value is not True:
            values: Sequence[Any] = value if isinstance(value, list) else [value]
            words += [str(item) for item in values]
    return shlex.join(words)


def load_pipeline(content: Any, where: str) -> Pipeline:
    """Return a checked config."""
    import importlib

    for module in (content or {}).get("plugins", []) if isinstance(content, Mapping) else []:
        importlib.import_module(module)
    return parse(Pipeline, content, where)
