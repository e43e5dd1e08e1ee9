"""The pipeline's config: which tables are wanted, and the data sets, searches and runs that stand behind them.

You name tables; tables name runs (a network trained with a loss); losses name searches; searches name data sets. This
module checks a config whole and derives everything the rules need: paths, jobs, and the arguments of each command. It
knows nothing of Snakemake, and imports no torch.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from autoseg import formula
from autoseg.config import NETWORK_NAMES, Search, Training, parse, training
from autoseg.errors import InputError, unknown
from autoseg.files import to_json
from autoseg.formula import METRICS
from autoseg.loss_names import check_loss, parse_terms, searches_of
from autoseg.paper import SCORE_TABLES
from autoseg.plugins import load_plugin
from autoseg.surrogate_json import SurrogateConventions, resolve

Name = str
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Dataset(_Model):
    """A data set to prepare, and its hold-out."""

    kind: Literal["voc", "cityscapes", "folder", "synthetic"] = Field(description="see `autoseg prepare --help`")
    options: dict[str, Any] = Field(default={}, description="options of `autoseg prepare KIND`, such as root or train")
    proxy_size: int = Field(default=128, ge=8, description="crop of the proxy task, pixels")
    hold_out: int | float | None = Field(
        default=None,
        gt=0,
        description="images held out: a number, or a share below 1; null: voc 1500, cityscapes 500",
    )
    split_seed: int = Field(default=0, ge=0, description="another seed, another hold-out")
    conventions: SurrogateConventions = Field(default=SurrogateConventions(), description="of the metrics")

    def check(self, where: str) -> None:
        """Refuse what can be seen to be wrong without the data."""
        if self.kind != "synthetic" and "root" not in self.options:
            raise InputError(f"{where}.options.root is missing; give the folder where the data set lies.")
        if isinstance(self.hold_out, float) and self.hold_out >= 1:
            raise InputError(
                f"{where}.hold_out is {self.hold_out}; write a share below 1, or a whole number of images."
            )
        if self.kind == "synthetic":
            for key, value in self.options.items():
                if key not in _SYNTHETIC:
                    raise InputError(f"{where}.options: {unknown('option', key, _SYNTHETIC)}")
                if isinstance(value, bool) or not isinstance(value, int):
                    raise InputError(f"{where}.options.{key} is {value!r}; expected a whole number.")
            images = self.options.get("train", 200)
            if self.hold_out is not None and self.hold_out >= images:
                raise InputError(f"{where}.hold_out is {self.hold_out}, but there are only {images} training images.")


_SYNTHETIC = ("train", "val", "size", "seed", "workers")


class Proxy(_Model):
    """What a search trains: a network and its settings."""

    network: str = Field(description="see `autoseg.networks.NETWORKS`")
    weights: str | None = Field(default=None, description="imagenet, a file, or null")
    protocol: str = Field(default="{preset}-proxy", description="training settings by name; {preset}: as above")
    size: int | None = Field(default=None, ge=8, description="crop, pixels; null: the data set's proxy_size")
    training: dict[str, Any] = Field(default={}, description="changes to the protocol, see Training")


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
    protocol: str = Field(default="{preset}", description="training settings by name; {preset}: the preset's, or paper")
    training: dict[str, Any] = Field(default={}, description="changes to the protocol, see Training")
    source: Literal["files", "cache"] = Field(default="files", description="read original files, or the proxy's cache")
    window: tuple[int, int] | None = Field(default=None, description="sliding window of the evaluation; null: whole")
    processes: int = Field(default=1, ge=1, description="GPUs (on a CPU: processes) that train together")


class Row(_Model):
    """A row of a table: a loss, under a label."""

    loss: str = Field(
        description="see `autoseg.losses.build_loss`; also searched:<search>, where {searches} is the column's own"
    )
    label: str | None = Field(default=None, description="how the row is called; null: the loss")
    about: list[str] = Field(default=[], description="what stands in the table's `about` columns")
    target: list[str] = Field(default=[], description="the metrics that the loss aims at; [] : derived from its name")


class Columns(_Model):
    """Columns of a table: where its losses are trained and scored."""

    dataset: Name = Field(description="one of `datasets`")
    retraining: Name = Field(description="one of `retrainings`")
    label: str = Field(default="", description="what stands above the columns")
    searches: str = Field(default="", description="what {searches} in a row's loss stands for here")

    def loss(self, row: Row) -> str:
        """Return a row's loss in these columns.

        >>> Columns(dataset="voc", retraining="r101", searches="voc").loss(Row(loss="searched:{searches}-mIoU"))
        'searched:voc-mIoU'
        """
        return row.loss.replace("{searches}", self.searches)


class Table(_Model):
    """A table: losses as rows, metrics as columns, once for each data set and retraining it compares."""

    title: str = ""
    columns: list[Columns] = Field(min_length=1, description="data sets and retrainings, side by side")
    rows: list[Row] = Field(min_length=1, description="losses; a plain name stands for {loss: name}")
    metrics: list[str] = Field(default=list(METRICS), min_length=1, description="which scores to show")
    about: list[str] = Field(default=[], description="columns that describe the rows, in words")
    hours: bool = Field(default=False, description="show the hours that the search behind each row took")
    seeds: list[int] = Field(default=[0], min_length=1, description="one run for each; the table shows the mean")
    paper: str | None = Field(default=None, description="the paper's table to set beside, see autoseg/paper")

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, content: Any) -> Any:
        """Take plain losses as rows, and `dataset` and `retraining` for a single block of columns."""
        if not isinstance(content, Mapping):
            return content
        content = dict(content)
        if isinstance(content.get("rows"), list):
            content["rows"] = [{"loss": row} if isinstance(row, str) else row for row in content["rows"]]
        if "columns" not in content and {"dataset", "retraining"} & set(content):
            keys = [key for key in ("dataset", "retraining", "searches") if key in content]
            content["columns"] = [{key: content.pop(key) for key in keys}]
        return content

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, values: list[str]) -> list[str]:
        return [formula.get(value).name for value in values]

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, values: list[int]) -> list[int]:
        if min(values) < 0 or len(set(values)) != len(values):
            raise InputError(f"seeds are {values}; expected different whole numbers, 0 or more.")
        return values

    @model_validator(mode="after")
    def _described(self) -> Table:
        if self.paper is not None and self.paper not in SCORE_TABLES:
            raise unknown("table of the paper", self.paper, SCORE_TABLES)
        for row in self.rows:
            if len(row.about) != len(self.about):
                raise InputError(f"the row '{row.label or row.loss}' has {len(row.about)} words for {self.about}.")
        return self


class Run(NamedTuple):
    """A run: a loss trained on a data set; `name` is its folder below results/<name>/runs."""

    dataset: Name
    retraining: Name
    loss: str
    seed: int

    @property
    def name(self) -> str:
        """The run's folder.

        >>> Run("voc", "r101", "published:mIoU + 0.5 * searched:biou", 0).name
        'voc/r101/published-mIoU_0.5xsearched-biou/seed-0'
        """
        plain = re.sub(r"\s*\*\s*", "x", re.sub(r"\s\+\s", "_", self.loss.strip())).replace(":", "-").replace("/", "-")
        return f"{self.dataset}/{self.retraining}/{re.sub(r'[^A-Za-z0-9._-]', '-', plain)}/seed-{self.seed}"


class SearchFigure(_Model):
    """The best average score up to each step, one line for each group of searches, its repeats as a band."""

    kind: Literal["searches"]
    title: str = ""
    lines: dict[str, list[Name]] = Field(min_length=1, description="label -> searches, the repeats of one another")


class CurveFigure(_Model):
    """The curves g of searched losses against the identity."""

    kind: Literal["curves"]
    title: str = ""
    searches: list[Name] = Field(min_length=1)


class SurrogateFigure(_Model):
    """The curves g of one loss with their control points, and the logic that they make."""

    kind: Literal["surrogate"]
    title: str = ""
    loss: str = Field(description="published:<name>, naive:<metric> or searched:<search>; no sum")


class _RunFigure(_Model):
    title: str = ""
    dataset: Name
    retraining: Name
    losses: dict[str, str] = Field(min_length=1, description="label -> loss")
    seed: int = 0

    @property
    def runs(self) -> list[Run]:
        """The runs behind the figure."""
        return [Run(self.dataset, self.retraining, loss, self.seed) for loss in self.losses.values()]


class GalleryFigure(_RunFigure):
    """Validation images as the networks of several losses see them, beside the ground truth."""

    kind: Literal["gallery"]
    images: int = Field(default=4, ge=1, description="how many, evenly spread over the validation set")


class ClassFigure(_RunFigure):
    """A metric's score of every class, one bar for each loss."""

    kind: Literal["classes"]
    metric: str = "mIoU"

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        return formula.get(value).name


class ProxyFigure(_Model):
    """What the searches of a table cost, against what their losses reach."""

    kind: Literal["proxies"]
    title: str = ""
    table: Name = Field(description="a table with `hours`")


Figure = Annotated[
    SearchFigure | CurveFigure | SurrogateFigure | GalleryFigure | ClassFigure | ProxyFigure,
    Field(discriminator="kind"),
]


class Pipeline(_Model):
    """A whole config."""

    name: Name = Field(description="results go to results/<name>/")
    preset: Literal["paper", "release"] | None = Field(
        default=None, description="whose settings searches, proxies and retrainings have where they name none"
    )
    seed: int = Field(default=0, ge=0, description="of splits, synthetic images, searches and runs that name none")
    plugins: list[str] = Field(default=[], description="modules to import first: they register metrics")
    datasets: dict[Name, Dataset] = Field(description="images, and which of them are held out")
    proxies: dict[Name, Proxy] = Field(default={}, description="what searches train")
    searches: dict[Name, SearchPlan] = Field(default={}, description="losses to search")
    retrainings: dict[Name, Retraining] = Field(description="how networks are trained with the losses")
    tables: dict[Name, Table] = Field(min_length=1, description="what is wanted; all else follows")
    figures: dict[Name, Figure] = Field(default={}, description="what is wanted to look at")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where trainings run")
    threads: int = Field(default=1, ge=1, description="CPU threads of a training; another number, other last digits")
    workers: int = Field(default=2, ge=0, description="processes that load data for a training")

    @model_validator(mode="after")
    def _consistent(self) -> Pipeline:
        for kind in ("datasets", "proxies", "searches", "retrainings", "tables", "figures"):
            for name in getattr(self, kind):
                if not _NAME.match(name):
                    raise InputError(f"{kind}.{name}: a name has letters, digits, dots, dashes and underscores only.")
        if not _NAME.match(self.name):
            raise InputError(f"name is '{self.name}'; a name has letters, digits, dots, dashes and underscores only.")
        for name, dataset in self.datasets.items():
            dataset.check(f"datasets.{name}")
        for kind, plans in (("proxies", self.proxies), ("retrainings", self.retrainings)):
            for name, how in plans.items():
                if how.network not in NETWORK_NAMES:
                    raise InputError(f"{kind}.{name}: {unknown('network', how.network, NETWORK_NAMES)}")
        for name, retraining in self.retrainings.items():
            self._check_retraining(name, retraining)
        for name, plan in self.searches.items():
            _known(plan.dataset, self.datasets, f"searches.{name}.dataset")
            _known(plan.proxy, self.proxies, f"searches.{name}.proxy")
            self.search(name)
            self.proxy_training(name)
        self._check_searches()
        for name, table in self.tables.items():
            for block in table.columns:
                self._check_runs(f"tables.{name}", block.dataset, block.retraining, map(block.loss, table.rows))
        for name, figure in self.figures.items():
            where = f"figures.{name}"
            if isinstance(figure, ProxyFigure):
                _known(figure.table, self.tables, f"{where}.table")
                if not self.tables[figure.table].hours:
                    raise InputError(
                        f"{where}: the table '{figure.table}' has no hours to show; set `hours: true` in it."
                    )
            elif isinstance(figure, SurrogateFigure):
                self._check_loss(where, figure.loss)
                if len(parse_terms(figure.loss)) > 1 or ":" not in figure.loss:
                    raise InputError(
                        f"{where}.loss is '{figure.loss}'; expected one surrogate, such as published:mIoU."
                    )
            elif isinstance(figure, GalleryFigure | ClassFigure):
                self._check_runs(where, figure.dataset, figure.retraining, figure.losses.values())
            else:
                for search in figure_searches(figure):
                    _known(search, self.searches, where)
        self._check_names()
        return self

    def _check_retraining(self, name: Name, plan: Retraining) -> None:
        where = f"retrainings.{name}"
        if "seed" in plan.training:
            raise InputError(f"{where}.training.seed: a run's seed is that of its table; set `seeds` there.")
        if plan.window is not None and min(plan.window) < 32:
            raise InputError(f"{where}.window is {list(plan.window)}; expected at least 32 x 32 pixels.")
        settings = self.run_training(name, 0)
        if settings.batch_size % (plan.processes * settings.accumulate):
            raise InputError(
                f"{where}: batch_size {settings.batch_size} cannot be shared by {plan.processes} processes in "
                f"{settings.accumulate} parts each."
            )

    def _check_searches(self) -> None:
        """Refuse curves to start from that are not there, and two searches that are one."""
        seen: dict[str, Name] = {}
        for name, plan in self.searches.items():
            search = self.search(name)
            if search.initial != "identity":
                try:
                    resolve(search.initial)
                except InputError as error:
                    raise InputError(f"searches.{name}.search.initial: {error}") from None
            key = to_json([plan.dataset, plan.proxy, search.model_dump(exclude={"name"})])
            if seen.setdefault(key, name) != name:
                raise InputError(f"searches.{seen[key]} and searches.{name} are the same search; change a seed, say.")

    def _check_runs(self, where: str, dataset: Name, retraining: Name, losses: Iterable[str]) -> None:
        _known(dataset, self.datasets, f"{where}: dataset")
        _known(retraining, self.retrainings, f"{where}: retraining")
        self.run_training(retraining, 0)
        for loss in losses:
            self._check_loss(where, loss)

    def _check_loss(self, where: str, loss: str) -> None:
        try:
            check_loss(loss, self.searches)
        except InputError as error:
            raise InputError(f"{where}: loss '{loss}': {error}") from None

    def _check_names(self) -> None:
        """Refuse two runs that would share a folder."""
        seen: dict[str, Run] = {}
        for run in self._all_runs():
            if seen.setdefault(run.name, run) != run:
                raise InputError(f"the losses '{run.loss}' and '{seen[run.name].loss}' are the same; write them alike.")

    def search(self, name: Name) -> Search:
        """Return the settings of a search."""
        return self._searches[name]

    @cached_property
    def _searches(self) -> dict[Name, Search]:
        found = {}
        for name, plan in self.searches.items():
            where = f"searches.{name}.search"
            if "name" in plan.search:
                raise InputError(f"{where}.name: a search is called by its key, '{name}'; leave it out.")
            own = plan.search.get("conventions", {})
            shared = self.datasets[plan.dataset].conventions.model_dump()
            given = {**plan.search, "conventions": {**shared, **own} if isinstance(own, Mapping) else own, "name": name}
            found[name] = parse(Search, {**self._preset_settings(given), **given}, where)
        return found

    def _preset_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the preset says of a search: its PPO2, as many trials for other samplers, and BF1's curves."""
        if self.preset is None:
            return {}
        # The release has a curve for each operand of BF1's edges; the paper one for each operator, as in all metrics.
        layout = {"layout": "paper"} if self.preset == "paper" else {}
        if given.get("sampler", "ppo2") == "ppo2":
            return {"preset": self.preset, **layout}
        from autoseg.sampler import Settings  # not at the top: whoever reads a config need not load Optuna

        sizes = Settings.preset(self.preset)
        return {"steps": sizes.steps, "trials_per_step": sizes.trials_per_step, **layout}

    def proxy_training(self, name: Name) -> Training:
        """Return the training settings of a search's trials."""
        plan = self.searches[name]
        proxy = self.proxies[plan.proxy]
        size = proxy.size or self.datasets[plan.dataset].proxy_size
        fitting = {"crop": (size, size), "short_side": size}
        protocol = proxy.protocol.replace("{preset}", self.preset or "paper")
        return self._training(protocol, {**fitting, **proxy.training}, f"proxies.{plan.proxy}.training")

    def run_training(self, retraining: Name, seed: int) -> Training:
        """Return the training settings of a run."""
        plan = self.retrainings[retraining]
        changes = {**plan.training, "seed": seed}
        protocol = plan.protocol.replace("{preset}", self.preset or "paper")
        return self._training(protocol, changes, f"retrainings.{retraining}.training")

    def _training(self, protocol: str, changes: Mapping[str, Any], where: str) -> Training:
        machine = {"device": self.device, "threads": self.threads, "workers": self.workers}
        for key in ("device", "workers"):
            if key in changes:
                raise InputError(f"{where}.{key}: this is one for all trainings; set '{key}' at the top of the config.")
        try:
            return training(protocol, **{**machine, **changes})
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Every run behind the tables and figures, by its folder."""
        return {run.name: run for run in self._all_runs()}

    def _all_runs(self) -> Iterator[Run]:
        for table in self.tables.values():
            yield from table_runs(table)
        for figure in self.figures.values():
            yield from figure_runs(figure)

    def chunks(self, name: Name, trials: int) -> int:
        """Return into how many jobs so many trials of a search are shared out."""
        return -(-trials // self.searches[name].trials_per_job)


def table_runs(table: Table) -> list[Run]:
    """Return the runs behind a table, column by column."""
    return [
        Run(block.dataset, block.retraining, block.loss(row), seed)
        for block in table.columns
        for row in table.rows
        for seed in table.seeds
    ]


def figure_searches(figure: Figure) -> list[Name]:
    """Return the searches that a figure shows."""
    if isinstance(figure, SearchFigure):
        return [search for searches in figure.lines.values() for search in searches]
    if isinstance(figure, SurrogateFigure):
        return searches_of(figure.loss)
    return list(figure.searches) if isinstance(figure, CurveFigure) else []


def figure_runs(figure: Figure) -> list[Run]:
    """Return the runs that a figure shows."""
    return figure.runs if isinstance(figure, GalleryFigure | ClassFigure) else []


def _known(name: str, among: Mapping[str, Any], where: str) -> None:
    if name not in among:
        raise InputError(f"{where}: {unknown('name', name, among)}")


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

    >>> as_argument(Row(loss="ce", label="CE"), exclude_defaults=True)
    '{"loss": "ce", "label": "CE"}'
    """
    return json.dumps(part.model_dump(mode="json", **options), ensure_ascii=False)


def expand(plans: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return plans with each `for` written out: one plan for every combination, its {names} filled in.

    >>> expand({"{m}-{s}": {"for": {"m": ["mIoU"], "s": [1, 2]}, "seed": "{s}"}}, "searches")
    {'mIoU-1': {'seed': 1}, 'mIoU-2': {'seed': 2}}
    """
    found: dict[str, Any] = {}
    for name, plan in plans.items():
        ranges = plan.get("for", {}) if isinstance(plan, Mapping) else {}
        if not (isinstance(ranges, Mapping) and all(isinstance(values, list) for values in ranges.values())):
            raise InputError(f"{where}.{name}.for: expected names with lists of values, such as {{seed: [1, 2]}}.")
        rest = {key: value for key, value in plan.items() if key != "for"} if ranges else plan
        for values in itertools.product(*ranges.values()):
            chosen = dict(zip(ranges, values, strict=True))
            filled = _fill(name, chosen)
            if filled in found:
                raise InputError(f"{where}.{name}: gives '{filled}' twice; its name needs every name of its 'for'.")
            found[filled] = _fill(rest, chosen)
    return found


def _fill(content: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(content, Mapping):
        return {key: _fill(value, values) for key, value in content.items()}
    if isinstance(content, list):
        return [_fill(value, values) for value in content]
    if not isinstance(content, str):
        return content
    for name, value in values.items():
        if content == f"{{{name}}}":
            return value  # a number stays a number
        content = content.replace(f"{{{name}}}", str(value))
    return content


def load_pipeline(content: Any, where: str) -> Pipeline:
    """Return a checked config, after loading its plugins and writing out every `for`."""
    if isinstance(content, Mapping):
        content = dict(content)
        plugins = content.get("plugins") or []
        if not (isinstance(plugins, list) and all(isinstance(module, str) for module in plugins)):
            raise InputError(f"{where}: plugins is {plugins!r}; expected a list of modules, such as [my_metrics].")
        for module in plugins:
            load_plugin(module)
        if isinstance(content.get("searches"), Mapping):
            content["searches"] = expand(content["searches"], "searches")
        content = _with_seed(content)
    return parse(Pipeline, content, where)


def _with_seed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with its seed wherever none is given."""
    seed = content.get("seed", 0)
    found = copy.deepcopy(dict(content))
    for kind, of, path, value in (
        ("datasets", (), ["split_seed"], seed),
        ("datasets", ("synthetic",), ["options", "seed"], seed),
        ("proxies", (), ["training", "seed"], seed),
        ("searches", (), ["search", "seed"], seed),
        ("tables", (), ["seeds"], [seed]),
        ("figures", ("gallery", "classes"), ["seed"], seed),
    ):
        plans = found.get(kind)
        for plan in plans.values() if isinstance(plans, dict) else ():
            if isinstance(plan, dict) and (not of or plan.get("kind") in of):
                *inside, key = path
                for name in inside:
                    plan = plan.setdefault(name, {})
                if isinstance(plan, dict):  # what should be a mapping and is not is refused later, in a sentence
                    plan.setdefault(key, value)
    return found
