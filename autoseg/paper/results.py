"""What a pipeline has in results/<name> so far, found by its config: for tables, figures and the report."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from autoseg.config import read
from autoseg.errors import InputError, unknown
from autoseg.paper.tables import Filled, Read, fill, read_scores, with_targets
from autoseg.pipeline import Figure, GalleryFigure, Pipeline, Run, Table, load_pipeline, table_runs


class Results:
    """A config and its results.

    `config` is the config's file, where it is one, and `keys` what Snakemake was told beside it, such as `name=mine`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        folder: str | os.PathLike[str] | None = None,
        config: str = "",
        keys: Sequence[str] = (),
    ) -> None:
        self.pipeline, self.config, self.keys = pipeline, config, list(keys)
        self.folder = Path(folder or Path("results") / pipeline.name)

    @classmethod
    def open(cls, config: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> Results:
        """Open the results of a config file."""
        return cls(load_pipeline(read(config), str(config)), folder, str(config))

    @property
    def command(self) -> str:
        """How Snakemake is called with this config; the demo is what it runs without being told."""
        demo = not self.config or Path(self.config).name == "demo.yaml"
        keys = list(self.keys)
        # The results of another name, read with the config's file: the command must make them under that name.
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

    def run(self, run: Run) -> Path:
        """Return the folder of a run."""
        return self.folder / "runs" / run.name

    def search(self, name: str) -> Path:
        """Return the folder of a search."""
        return self.folder / "searches" / name

    def scores(self, runs: Iterable[Run]) -> list[Path]:
        """Return the score files of runs that are there."""
        paths = (self.run(run) / "scores.json" for run in dict.fromkeys(runs))
        return [path for path in paths if path.exists()]

    def window(self, figure: Figure) -> tuple[int, int] | None:
        """Return the sliding window that a figure's networks are evaluated with."""
        return self.pipeline.retrainings[figure.retraining].window if isinstance(figure, GalleryFigure) else None

    def fills(self, target: str) -> str:
        """Return the command that makes a file of the results."""
        # Snakemake knows its files by their paths from the project's folder, wherever this one is.
        folder = Path("results") / self.folder.name if self.folder.parent.name == "results" else self.folder
        return f"{self.command} -- {folder / target}"  # --configfile would take the target for another file

    def filled(self, name: str, strict: bool = False) -> tuple[Filled, Read]:
        """Return a table with the numbers that are there, and what was read for it."""
        table = self.table(name)
        found = self.scores(table_runs(table))
        if strict and (missing := len(dict.fromkeys(table_runs(table))) - len(found)):
            without = "1 run has no scores" if missing == 1 else f"{missing} runs have no scores"
            raise InputError(f"table '{name}': {without} yet; `{self.fills(f'tables/{name}.md')}` fills it.")
        scores = read_scores(table, found, strict)
        command = self.fills(f"tables/{name}.md")
        return fill(table, scores, searches=self.folder / "searches", command=command), scores
