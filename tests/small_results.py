"""A pipeline's results as if it had run, in a moment: real searches on made-up scores, and made-up scores of runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from autoseg.metrics.formula import METRICS
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.outputs import Run
from autoseg.report.results import Results
from autoseg.search.folder import Folder
from autoseg.search.records import Proposals, TrialScore
from autoseg.search.steps import ask, rescore, select
from autoseg.search.times import write_time


def scores(run: Run, value: float = 50.0, **changes: Any) -> dict[str, Any]:
    """Return what a run's scores.json may hold."""
    return {
        "schema": "autoseg/scores/1",
        "run": run.name,
        "dataset": "synthetic",
        "network": "tiny",
        "loss": run.loss,
        "seed": run.seed,
        "diverged": False,
        "scores": {**dict.fromkeys(METRICS, value), **changes.pop("scores", {})},
        "per_class": {metric: {"sky": value, "sea": value / 2, "land": None} for metric in METRICS},
        "weights": "0" * 64,
        "fingerprint": "f" * 64,
        **changes,
    }


def _score(files: Folder, proposals: Proposals, metric: str) -> None:
    files.write(proposals)
    for trial in proposals.trials:
        value = math.exp(-sum((x - 0.4) ** 2 for x in trial.theta))
        diverged = trial.number == 1
        score = TrialScore(number=trial.number, metric=metric, score=0.0 if diverged else value, diverged=diverged)
        score.save(files.score_path(proposals.step, trial.number))
        write_time(files.step(proposals.step), trial.number, 90.0, "cpu")


def make_search(pipeline: Pipeline, name: str, folder: Path, steps: int | None = None) -> None:
    """Search on made-up scores, for so many steps only."""
    search, files = pipeline.search(name), Folder(folder)
    history: list[Any] = []
    for step in range(1, (search.total_steps if steps is None else steps) + 1):
        _score(files, ask(search, history), search.metric)
        history.append(files.scored(step))
    if steps is None:
        rescored = None
        if search.rescore:
            _score(files, rescore(search, history), search.metric)
            rescored = files.scored("rescore")
        select(search, history, rescored).save(folder / "surrogate.json")


def make_results(config: dict[str, Any], folder: Path) -> Results:
    """Make the results of a config: all its searches, and scores of all its runs; no networks and no data."""
    results = Results(load_pipeline(config, "config.yaml"), folder, "config.yaml")
    for name in results.pipeline.searches:
        make_search(results.pipeline, name, Path(results.layout.search(name)))
    for number, run in enumerate(results.pipeline.runs.values()):
        path = results.scores(run)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(scores(run, 40.0 + 3 * number)))
    return results
