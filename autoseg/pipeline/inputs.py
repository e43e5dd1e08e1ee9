"""The files that each job of the pipeline waits for; together with the paths of `Layout` they define the DAG."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from autoseg.data.model import cache_short_side
from autoseg.losses.names import parse_loss, searches_of
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.layout import Layout, step_name
from autoseg.pipeline.outputs import Figure, Run
from autoseg.training.settings import Training


@dataclass(frozen=True)
class Inputs:
    """What the jobs of a config wait for."""

    pipeline: Pipeline
    layout: Layout

    def _data(self, dataset: str, cached: Training | None, split: int | None = None) -> list[str]:
        """Return a data set's split, and the cache for these settings where it does not come with the index."""
        found = [self.layout.split(dataset, split)]
        if cached and cached.short_side != self.pipeline.datasets[dataset].proxy_size:
            found.append(self.layout.cache(dataset, cache_short_side(cached.short_side)))
        return found

    # A search has hundreds of jobs with the same inputs: they are made once.
    @cached_property
    def trials(self) -> dict[str, list[str]]:
        """The data that the trials of a search read, by its name."""
        return {
            name: self._data(plan.dataset, self.pipeline.proxy_training(name), self.pipeline.hold_out_seed(name))
            for name, plan in self.pipeline.searches.items()
        }

    @cached_property
    def _parts(self) -> dict[tuple[str, bool], int]:
        """The number of jobs for the trials of a step of a search, and for its rescored means."""
        found = {}
        for name in self.pipeline.searches:
            search = self.pipeline.search(name)
            found[name, False] = self.pipeline.chunks(name, search.settings.trials_per_step)
            found[name, True] = self.pipeline.chunks(name, search.most_rescored)
        return found

    def step(self, search: str, step: str) -> list[str]:
        """Return the files that are there once all trials of a step are scored; `step` is its folder."""
        parts = self._parts[search, step == "rescore"]
        return [self.layout.chunk(search, step, chunk, parts) for chunk in range(parts)]

    def ask(self, search: str, step: int) -> list[str]:
        """Return what a step waits for: the step before it, which waited for the ones before.

        The first one waits for the search whose trials it starts from, if there is one.
        """
        if step > 1:
            return self.step(search, step_name(step - 1))
        prior = self.pipeline.prior(search)
        return [] if prior is None else self.rescore(prior)

    def rescore(self, search: str) -> list[str]:
        """Return what the rescoring of a search waits for: its last step."""
        return self.step(search, step_name(self.pipeline.search(search).total_steps))

    def select(self, search: str) -> list[str]:
        """Return what the answer of a search waits for: its last step, and the rescored means."""
        rescored = self.step(search, "rescore") if self.pipeline.search(search).rescore else []
        return [*self.rescore(search), *rescored]

    def tune(self, tuning: str) -> list[str]:
        """Return the data that the trials of a tuning read."""
        return self._data(self.pipeline.tunings[tuning].dataset, self.pipeline.tuning_training(tuning))

    def tuned(self, tuning: str) -> list[str]:
        """Return the files that are there once all trials of a tuning are scored."""
        plan = self.pipeline.tunings[tuning]
        parts = -(-plan.trials // plan.trials_per_job)
        return [self.layout.tuning_chunk(tuning, chunk, parts) for chunk in range(parts)]

    def evaluate(self, run: str) -> list[str]:
        """Return the data that a run reads."""
        wanted = self.pipeline.runs[run]
        cached = self.pipeline.retrainings[wanted.retraining].source == "cache"
        settings = self.pipeline.run_training(wanted.retraining, wanted.seed) if cached else None
        return self._data(wanted.dataset, settings)

    def train(self, run: str) -> list[str]:
        """Return the data that a run reads, its tuned learning rate, and the surrogates of its loss.

        Those are searched ones, and files of the user's.
        """
        loss = self.pipeline.runs[run].loss
        tuning = self.pipeline.retrainings[self.pipeline.runs[run].retraining].tuning
        searched = [self.layout.surrogate(search) for search in searches_of(loss)]
        own = [term.name for term in parse_loss(loss) if term.kind == "file"]
        return [*self.evaluate(run), *searched, *own, *([self.layout.tuned(tuning)] if tuning else [])]

    def scores(self, runs: Iterable[Run]) -> list[str]:
        """Return the scores of runs."""
        return [self.layout.scores(run.name) for run in dict.fromkeys(runs)]

    def figure(self, figure: Figure) -> list[str]:
        """Return what a figure is drawn from."""
        searches = [self.layout.surrogate(search) for search in figure.shown_searches]
        table = [self.layout.table(figure.shown_table, ".csv")] if figure.shown_table else []
        return [*searches, *self.scores(figure.runs), *table]
