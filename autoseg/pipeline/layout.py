"""Every path below results/<name>/, in one place: for the rules, the report, `autoseg resume` and the first checks.

A name may also be a wildcard of Snakemake: `layout.surrogate("{search}")` is the pattern of all paths like
`layout.surrogate("mIoU")`. Therefore paths are text here.
"""

from __future__ import annotations

from dataclasses import dataclass


def step_name(step: int) -> str:
    """Return the folder of a search's step.

    >>> step_name(3)
    'step-003'
    """
    return f"step-{step:03d}"


@dataclass(frozen=True)
class Layout:
    """The results of one config.

    >>> Layout.named("demo").scores("scenes/small/ce/seed-0")
    'results/demo/runs/scenes/small/ce/seed-0/scores.json'
    """

    folder: str

    @classmethod
    def named(cls, name: str) -> Layout:
        """Return where the results of a config of this name are, seen from the project's folder."""
        return cls(f"results/{name}")

    # ------------------------------------------------------------------------------------------------------ data sets

    def data(self, dataset: str) -> str:
        """Return the folder of a prepared data set."""
        return f"{self.folder}/data/{dataset}"

    def index(self, dataset: str) -> str:
        """Return the file that is there once a data set is prepared."""
        return f"{self.data(dataset)}/index.json"

    def cache(self, dataset: str, short_side: int | str) -> str:
        """Return the file that is there once a data set is packed with this short side."""
        return f"{self.data(dataset)}/cache-{short_side}.json"

    def split(self, dataset: str, seed: int | str | None = None) -> str:
        """Return which images are trained on, held out and validated on; with a seed, for searches of that seed."""
        return f"{self.data(dataset)}/split{'' if seed is None else f'-{seed}'}.json"

    # ------------------------------------------------------------------------------------------------------- searches

    @property
    def searches(self) -> str:
        """The folder of all searches."""
        return f"{self.folder}/searches"

    def search(self, search: str) -> str:
        """Return the folder of a search: that of `autoseg.search.folder.Folder`."""
        return f"{self.searches}/{search}"

    def proposals(self, search: str, step: str) -> str:
        """Return the proposals of a step; `step` is its folder: step-001, ..., or rescore."""
        return f"{self.search(search)}/{step}/proposals.json"

    def chunk(self, search: str, step: str, chunk: int | str, parts: int | str) -> str:
        """Return the file that is there once one of a step's jobs has scored its trials."""
        return f"{self.search(search)}/{step}/chunk-{chunk}-of-{parts}.json"

    def timing(self, search: str) -> str:
        """Return the seconds of a trial, which a search of some hours is planned by."""
        return f"{self.search(search)}/timing.json"

    def surrogate(self, search: str) -> str:
        """Return the surrogate that a search selects."""
        return f"{self.search(search)}/surrogate.json"

    def tuning(self, tuning: str) -> str:
        """Return the folder of a tuning: the trials of its learning rates."""
        return f"{self.folder}/tunings/{tuning}"

    def tuning_chunk(self, tuning: str, chunk: int | str, parts: int | str) -> str:
        """Return the file that is there once one of a tuning's jobs has scored its trials."""
        return f"{self.tuning(tuning)}/chunk-{chunk}-of-{parts}.json"

    def tuned(self, tuning: str) -> str:
        """Return the learning rates that a tuning found best."""
        return f"{self.tuning(tuning)}/tuning.json"

    # ----------------------------------------------------------------------------------------------------------- runs

    @property
    def runs(self) -> str:
        """The folder of all runs."""
        return f"{self.folder}/runs"

    def run(self, run: str) -> str:
        """Return the folder of a run; `run` is `autoseg.pipeline.outputs.Run.name`."""
        return f"{self.runs}/{run}"

    def trained(self, run: str) -> str:
        """Return the file that is there once a run is trained."""
        return f"{self.run(run)}/run.json"

    def scores(self, run: str) -> str:
        """Return the scores of a run."""
        return f"{self.run(run)}/scores.json"

    # --------------------------------------------------------------------------------------- tables, figures, the rest

    def table(self, table: str, suffix: str = "") -> str:
        """Return a table's file; without a suffix, what all its files begin with."""
        return f"{self.folder}/tables/{table}{suffix}"

    def figure(self, figure: str, suffix: str = "") -> str:
        """Return a figure's file; without a suffix, what all its files begin with."""
        return f"{self.folder}/figures/{figure}{suffix}"

    @property
    def report(self) -> str:
        """The report."""
        return f"{self.folder}/report.html"

    @property
    def logs(self) -> str:
        """The folder of the logs of all jobs, and of their times and memory."""
        return f"{self.folder}/logs"

    def log(self, job: str) -> str:
        """Return the log of a job's command; the first part of `job` is its stage."""
        return f"{self.logs}/{job}.log"

    def benchmark(self, job: str) -> str:
        """Return the file with the time and memory of a job."""
        return f"{self.logs}/{job}.tsv"
