"""Score files: which run each holds the scores of, and what is wrong with those that cannot be used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autoseg.errors import InputError, Problem, located
from autoseg.pipeline.outputs import Run
from autoseg.training.scores import Scores


@dataclass
class ReadScores:
    """The scores of runs, and the problems of the files that could not be used."""

    scores: dict[Run, Scores] = field(default_factory=dict)
    problems: dict[Path, Problem] = field(default_factory=dict)


def read_scores(
    runs: Iterable[Run],
    paths: Sequence[str | os.PathLike[str]],
    *,
    metrics: Sequence[str] = (),
    strict: bool = False,
) -> ReadScores:
    """Read score files, and find the run of each.

    A file that is missing or broken, that holds another run, or that lacks one of the metrics is left out and its
    problem is returned; if `strict`, that is an error.
    """
    by_name = {run.name: run for run in runs}
    read = ReadScores()
    for path in map(Path, paths):
        try:
            scores = Scores.load(path)
            with located(path):
                run = _run_of(scores, path, by_name)
                if missing := [metric for metric in metrics if metric not in scores.scores]:
                    raise InputError(f"has no {', '.join(missing)}", cure="evaluate the run again")
                if run in read.scores:
                    raise InputError(f"is a second file of the run '{run.name}'", cure="give one of them")
            read.scores[run] = scores
        except InputError as error:
            if strict:
                raise
            read.problems[path] = error.problem
    return read


def _run_of(scores: Scores, path: Path, by_name: Mapping[str, Run]) -> Run:
    """Return the run of a score file."""
    here = by_name.get("/".join(path.parts[-5:-1]))
    run = by_name.get(scores.run)
    if "/" not in scores.run:  # not made by the pipeline: its loss and seed tell which run it is
        alike = [one for one in by_name.values() if (one.loss, one.seed) == (scores.loss, scores.seed)]
        run = here or (alike[0] if len(alike) == 1 else None)
    # A file that was copied into another run's folder must not count as that run's.
    if run is None or run.loss != scores.loss or (here or run) != run:
        expected = f"the run '{here.name}' of the loss '{here.loss}'" if here else "a run of the table"
        raise InputError(f"holds the run '{scores.run}' of the loss '{scores.loss}'", expected=expected)
    return run
