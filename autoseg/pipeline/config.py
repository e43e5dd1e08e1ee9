"""The pipeline's config: which tables are wanted, and the data sets, searches and runs that stand behind them.

You name tables; tables name runs (a network trained with a loss); losses name searches; searches name data sets. This
module checks that the sections fit together, and adds what they leave out. It does not know Snakemake, and imports
neither torch nor optuna.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from autoseg.data.kinds import OnDisk
from autoseg.errors import InputError, located, unknown
from autoseg.files import Part, parse, to_json
from autoseg.losses.am_lfs import FAMILY as AM_LFS
from autoseg.losses.names import check_loss, parse_loss
from autoseg.metrics import formula
from autoseg.metrics.formula import METRICS
from autoseg.metrics.more import MORE
from autoseg.pipeline.layout import Layout, step_name
from autoseg.pipeline.outputs import Figure, GalleryFigure, Name, Run, Table
from autoseg.pipeline.sections import Dataset, Proxy, Retraining, SearchPlan, Tuning
from autoseg.search.budget import planned
from autoseg.search.records import Proposals
from autoseg.search.settings import Search
from autoseg.search.space import search_space
from autoseg.search.times import Timing
from autoseg.training.settings import Training

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LONGEST_FOLDER = 200  # bytes, of the 255 that a file system takes


class Pipeline(Part):
    """A whole config."""

    name: Name = Field(description="results go to results/<name>/")
    preset: Literal["paper", "release"] | None = Field(
        default=None,
        description="settings of searches, proxies and retrainings that give none: the paper's or the release's",
    )
    seed: int = Field(default=0, ge=0, description="seed of splits, synthetic images, searches and runs that give none")
    plugins: list[str] = Field(default=[], description="modules to import first, which register metrics")
    datasets: dict[Name, Dataset] = Field(description="images, and which of them are held out")
    proxies: dict[Name, Proxy] = Field(default={}, description="what searches train")
    searches: dict[Name, SearchPlan] = Field(default={}, description="losses to search")
    tunings: dict[Name, Tuning] = Field(default={}, description="learning rates to tune, as rivals of the searches")
    retrainings: dict[Name, Retraining] = Field(description="how networks are trained with the losses")
    tables: dict[Name, Table] = Field(min_length=1, description="tables to make; everything else follows from them")
    figures: dict[Name, Figure] = Field(default={}, description="figures to draw")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where trainings run")
    threads: int = Field(
        default=1, ge=1, description="CPU threads of a training; the last digits of results depend on their number"
    )
    loaders: int = Field(
        default=2, ge=0, description="processes that load data for a training; their number changes no result"
    )
    trials_per_gpu: int = Field(
        default=1,
        ge=1,
        description="jobs with trials that may share a GPU of this machine; on a cluster the cluster decides this",
    )

    # --------------------------------------------------------------------------------------------------------- checks

    @model_validator(mode="after")
    def _consistent(self) -> Pipeline:
        self._check_names()
        for name in self.retrainings:
            self._check_batch(name)
        for name, plan in self.searches.items():
            with located(f"searches.{name}"):
                _known("dataset", plan.dataset, self.datasets)
                _known("proxy", plan.proxy, self.proxies)
        for name in self.searches:
            self.proxy_training(name)
        for name, tuning in self.tunings.items():
            with located(f"tunings.{name}"):
                _known("dataset", tuning.dataset, self.datasets)
                _known("proxy", tuning.proxy, self.proxies)
            self.tuning_training(name)
        for name, how in self.retrainings.items():
            if how.tuning is not None:
                with located(f"retrainings.{name}"):
                    _known("tuning", how.tuning, self.tunings)
        self._check_searches()
        for name, table in self.tables.items():
            with located(f"tables.{name}"):
                self._check_runs(table.runs)
        for name, figure in self.figures.items():
            with located(f"figures.{name}"):
                self._check_figure(figure)
        self._check_folders()
        return self

    def _check_names(self) -> None:
        names = [("name", self.name)]
        for kind in ("datasets", "proxies", "searches", "tunings", "retrainings", "tables", "figures"):
            names += [(kind, name) for name in getattr(self, kind)]
        for where, name in names:
            if not _NAME.fullmatch(name):
                expected = "letters, digits, dots, dashes and underscores only, 100 at most"
                raise InputError(f"the name {name!r}", where=where, expected=expected)

    def _check_batch(self, retraining: Name) -> None:
        settings = self.run_training(retraining, 0)
        with located(f"retrainings.{retraining}"):
            settings.check_shares(self.retrainings[retraining].processes)

    def _check_searches(self) -> None:
        """Refuse a start whose curves do not exist or do not fit, and two searches with the same settings."""
        seen: dict[str, Name] = {}
        for name in self.searches:
            self._check_prior(name)
        for name, plan in self.searches.items():
            search = self.search(name)
            with located(f"searches.{name}.search"):
                search_space(search)
            key = to_json([plan.dataset, plan.proxy, search.model_dump(exclude={"name"})])
            if seen.setdefault(key, name) != name:
                what = f"the same search as '{seen[key]}'"
                raise InputError(what, where=f"searches.{name}", cure="leave one out, or change a seed")

    def _check_prior(self, name: Name) -> None:
        """Refuse a prior that is no search of this config, has other parameters, or needs this search itself first."""
        before, prior = [name], self.prior(name)
        with located(f"searches.{name}.search"):
            while prior is not None:
                _known("prior", prior, self.searches)
                if prior in before:
                    what = f"{' needs '.join([*before, prior])}: none of them can be the first"
                    raise InputError(what, where="prior", cure="leave one of them out")
                before.append(prior)
                prior = self.prior(prior)
            if len(before) > 1:
                own, other = (search_space(self.search(one)).names for one in before[:2])
                if own != other:
                    what = f"'{before[1]}' searches {', '.join(other)}"
                    raise InputError(what, where="prior", expected=f"the same parameters: {', '.join(own)}")

    def _check_runs(self, runs: list[Run]) -> None:
        for run in runs:
            _known("dataset", run.dataset, self.datasets)
            _known("retraining", run.retraining, self.retrainings)
            with located(f"loss '{run.loss}'"):
                check_loss(run.loss, self.searches)
                for term in parse_loss(run.loss):
                    if term.kind == "file":
                        term.surrogate()

    def _check_figure(self, figure: Figure) -> None:
        self._check_runs(figure.runs)
        if isinstance(figure, GalleryFigure):
            source = self.datasets[figure.dataset].source
            if not isinstance(source, OnDisk):  # files on disk are counted before the first job starts
                figure.check_images(source.count("val"))
        for search in figure.shown_searches:
            _known("search", search, self.searches)
        if figure.shown_table is not None:
            _known("table", figure.shown_table, self.tables)
            if not self.tables[figure.shown_table].hours:
                what = f"the table '{figure.shown_table}' has no hours to show"
                raise InputError(what, where="table", cure="set `hours: true` in it")

    def _check_folders(self) -> None:
        """Refuse two runs that would share a folder."""
        seen: dict[str, Run] = {}
        for run in self._all_runs():
            if max(map(len, run.name.split("/"))) > _LONGEST_FOLDER:
                what = f"the loss '{run.loss}' is too long for the name of a folder"
                raise InputError(what, expected=f"{_LONGEST_FOLDER} letters at most")
            if seen.setdefault(run.name, run) != run:
                what = f"the losses '{run.loss}' and '{seen[run.name].loss}' are the same"
                raise InputError(what, cure="write both in the same way")

    # ------------------------------------------------------------------------------------------- what is filled in

    def search(self, name: Name) -> Search:
        """Return the settings of a search."""
        return self._searches[name]

    def prior(self, name: Name) -> Name | None:
        """Return the search whose trials a search starts from, if it is given one."""
        found: Name | None = self.searches[name].search.model_dump().get("prior")
        return found

    @cached_property
    def _searches(self) -> dict[Name, Search]:
        found = {}
        for name, plan in self.searches.items():
            given = plan.search.model_dump()
            dataset = self.datasets[plan.dataset]
            conventions = {**dataset.metric_conventions.model_dump(), **given.get("conventions", {})}
            in_loss = {**dataset.loss_conventions.changes, **given.get("loss_conventions", {})}
            own = {"conventions": conventions, "loss_conventions": in_loss, "name": name}
            if (prior := given.get("prior")) is not None:
                own["prior"] = Layout.named(self.name).search(prior)
            content = {**self._preset_settings(given), **given, **own}
            search = parse(Search, content, f"searches.{name}.search")
            if plan.hours is not None and (seconds := self.seconds_of_trial(name)) is not None:
                size = search.trials_per_step or self._trials_in_first_step(name)
                with located(f"searches.{name}"):
                    search = planned(search.model_copy(update={"trials_per_step": size}), 3600 * plan.hours, seconds)
            found[name] = search
        return found

    def seconds_of_trial(self, name: Name) -> float | None:
        """Return the seconds of a trial as they were measured for a search of some hours; None: not yet."""
        try:
            return Timing.load(Layout.named(self.name).timing(name)).seconds(self.searches[name].trials_per_job)
        except InputError:  # missing or damaged: it is measured again
            return None

    def _trials_in_first_step(self, name: Name) -> int | None:
        """Return the trials of a step of a search that was begun: given more hours, or timed again, it keeps them."""
        try:
            first = Layout.named(self.name).proposals(name, step_name(1))
            return Proposals.load(first).search.trials_per_step
        except InputError:
            return None

    @property
    def untimed(self) -> list[Name]:
        """The searches of some hours whose steps and trials are not known yet, as no trial was timed."""
        return [name for name, plan in self.searches.items() if plan.hours and self.seconds_of_trial(name) is None]

    def _preset_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the preset says of a search: its PPO2, as many trials for other samplers, and BF1's curves."""
        if self.preset is None:
            return {}
        # For BF1 the release has a curve for each operand, the paper one for each operator. A search that names its own
        # preset has the layout of that preset: a search of linear curves names the paper's, as none were released.
        # AM-LFS has but one layout.
        of_paper = given.get("preset", self.preset) == "paper" and given.get("family") != AM_LFS
        layout = {"layout": "paper"} if of_paper else {}
        if given.get("sampler", "ppo2") == "ppo2":
            return {"preset": self.preset, **layout}
        ppo2 = Search(metric="mIoU", preset=self.preset)
        return {"steps": ppo2.total_steps, "trials_per_step": ppo2.settings.trials_per_step, **layout}

    def proxy_training(self, search: Name) -> Training:
        """Return the training settings of a search's trials."""
        return self._on_proxy(self.searches[search], self.search(search).seed)

    def tuning_training(self, tuning: Name) -> Training:
        """Return the training settings of a tuning's trials, but for their learning rates."""
        return self._on_proxy(self.tunings[tuning], self.seed)

    def _on_proxy(self, plan: SearchPlan | Tuning, seed: int) -> Training:
        size = self.proxies[plan.proxy].size or self.datasets[plan.dataset].proxy_size
        with located(f"proxies.{plan.proxy}"):
            return self._training(self.proxies[plan.proxy], crop=(size, size), short_side=size, seed=seed)

    def split_seed(self, dataset: Name) -> int:
        """Return the seed of a data set's split."""
        stated = self.datasets[dataset].split_seed
        return self.seed if stated is None else stated

    def hold_out_seed(self, search: Name) -> int | None:
        """Return the seed of a search's own hold-out; None: it is that of the data set's split."""
        seed = self.search(search).seed
        shared = self.datasets[self.searches[search].dataset].split_seed is not None or seed == self.seed
        return None if shared else seed

    def run_training(self, retraining: Name, seed: int) -> Training:
        """Return the training settings of a run."""
        with located(f"retrainings.{retraining}"):
            return self._training(self.retrainings[retraining], seed=seed)

    def _training(self, how: Proxy | Retraining, **fitting: Any) -> Training:
        protocol = how.protocol.replace("{preset}", self.preset or "paper")
        machine = {"device": self.device, "threads": self.threads, "loaders": self.loaders}
        return Training.of_protocol(protocol, **{**machine, **fitting, **how.training.model_dump()})

    # ----------------------------------------------------------------------------------------------------------- runs

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Every run behind the tables and figures, by its folder."""
        return {run.name: run for run in self._all_runs()}

    def _all_runs(self) -> Iterator[Run]:
        for output in (*self.tables.values(), *self.figures.values()):
            for run in output.runs:
                yield from dict.fromkeys([run.trained, run])

    def metrics_of_tuning(self, tuning: Name) -> list[str]:
        """Return the metrics beyond the six for which a tuning's learning rate is wanted."""
        wanted = [formula.get(how.tuned_for).name for how in self.retrainings.values() if how.tuning == tuning]
        return [name for name in dict.fromkeys(wanted) if name not in METRICS]

    def further_metrics(self, run: Name) -> list[str]:
        """Return the metrics beyond the six that outputs show of a run; those of plugins are always scored."""
        shown: set[str] = set()
        for output in (*self.tables.values(), *self.figures.values()):
            if any(run == one.name for one in output.runs):
                shown.update(output.shown_metrics)
        return [name for name in MORE if name in shown]

    def chunks(self, name: Name, trials: int) -> int:
        """Return the number of jobs for this number of trials of a search."""
        return -(-trials // self.searches[name].trials_per_job)


def _known(where: str, name: str, among: Mapping[str, Any]) -> None:
    if name not in among:
        raise unknown("name", name, among, where=where)
