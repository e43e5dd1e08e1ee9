"""What is in results/<name> so far, found by the config: for tables, figures and the report."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from autoseg.errors import InputError, unknown
from autoseg.files import read_settings
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.layout import Layout
from autoseg.pipeline.outputs import Figure, GalleryFigure, Run, Table
from autoseg.report.score_files import ReadScores, read_scores
from autoseg.report.tables import FilledTable, fill, with_targets
from autoseg.report.templates import count


class Results:
    """A config and its results.

    `config` is the config's file, if it was read from one, and `keys` are the values that Snakemake was given with its
    own `--config`, such as `name=mine`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        folder: str | os.PathLike[str] | None = None,
        config: str = "",
        keys: Sequence[str] = (),
    ) -> None:
        self.pipeline, self.config, self.keys = pipeline, config, list(keys)
        self.folder = Path(folder or Layout.named(pipeline.name).folder)
        self.layout = Layout(str(self.folder))

    @classmethod
    def open(cls, config: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> Results:
        """Open the results of a config file."""
        return cls(load_pipeline(read_settings(config), str(config)), folder, str(config))

    @property
    def command(self) -> str:
        """The Snakemake command of this config; without `--configfile` Snakemake runs the demo."""
        demo = not self.config or Path(self.config).name == "demo.yaml"
        keys = list(self.keys)
        # The folder has another name than the config: the command must write to the same folder.
        if self.folder.parent.name == "results" and self.folder.name != self.pipeline.name:
            keys.append(f"name={self.folder.name}")
        config = "" if demo else f" --configfile {self.config}"
        return "snakemake --cores all" + config + (f" --config {shlex.join(keys)}" if keys else "")

    @cached_property
    def metrics(self) -> dict[str, str]:
        """The metric of every search."""
        return {name: self.pipeline.search(name).metric for name in self.pipeline.searches}

    def table(self, name: str) -> Table:
        """Return a table of the config, with the targets of its losses."""
        if name not in self.pipeline.tables:
            raise unknown("table", name, self.pipeline.tables)
        return with_targets(self.pipeline.tables[name], self.metrics)

    def scores(self, run: Run) -> Path:
        """Return the score file of a run."""
        return Path(self.layout.scores(run.name))

    def read(self, runs: Iterable[Run], metrics: Sequence[str] = (), strict: bool = False) -> ReadScores:
        """Read the score files of runs that are there."""
        wanted = list(dict.fromkeys(runs))
        paths = [path for run in wanted if (path := self.scores(run)).exists()]
        return read_scores(wanted, paths, metrics=metrics, strict=strict)

    def window(self, figure: Figure) -> tuple[int, int] | None:
        """Return the sliding window that a figure's networks are evaluated with."""
        return self.pipeline.retrainings[figure.retraining].window if isinstance(figure, GalleryFigure) else None

    def network(self, figure: Figure) -> str | None:
        """Return the network of a figure's runs, if it shows networks."""
        return self.pipeline.retrainings[figure.retraining].network if isinstance(figure, GalleryFigure) else None

    @property
    def targets(self) -> Layout:
        """The same files as Snakemake names them: from the project's folder, wherever that is."""
        return Layout.named(self.folder.name) if self.folder.parent.name == "results" else self.layout

    def command_for(self, target: str) -> str:
        """Return the command that makes one of `targets`."""
        return f"{self.command} -- {target}"  # without the dashes --configfile would take the target for a config

    def filled(self, name: str, strict: bool = False) -> tuple[FilledTable, ReadScores]:
        """Return a table with the numbers that are there, and what was read for it; if `strict`, all must be there."""
        table = self.table(name)
        runs = list(dict.fromkeys(table.runs))
        read = self.read(runs, table.metrics, strict)
        command = self.command_for(self.targets.table(name, ".md"))
        if strict and (missing := len(runs) - len(read.scores)):
            what = f"{count(missing, 'run')} without scores yet"
            raise InputError(what, where=f"table '{name}'", cure=f"`{command}` fills it")
        return fill(table, read, searches=self.layout.searches, command=command), read
