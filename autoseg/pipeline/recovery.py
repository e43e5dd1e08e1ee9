"""Find lost and damaged files in the results before a run continues, so that the DAG makes them again.

Snakemake only sees whether a declared file exists and when it was written. The scores of trials, packed caches and the
weights of networks are not declared, because Snakemake deletes the declared files of a failed job. It does not notice
either that a file is cut short. So each finished file is compared with the files that it describes. If one is wrong,
the files that mark its jobs as done are removed. Those jobs run again, skip what is finished, and compute
only what is lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from autoseg.data.cache import Cache, cache_paths, cache_sizes
from autoseg.data.model import Index, SourcePaths
from autoseg.data.split import Split
from autoseg.errors import InputError
from autoseg.files import checksum, read_json, writing
from autoseg.losses.surrogate import Surrogate
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.inputs import Inputs
from autoseg.pipeline.layout import Layout, step_name
from autoseg.search.folder import NETWORK, Folder
from autoseg.search.records import ChunkScores, Proposals
from autoseg.search.times import Timing
from autoseg.training.rates import TunedRates
from autoseg.training.scores import WEIGHTS_FILE


@dataclass(frozen=True)
class Damage:
    """A file that is lost or damaged, and the finished files that are made again because of it."""

    where: str
    what: str
    remove: tuple[str, ...]
    aside: bool = False  # the damaged file is renamed, so that no job takes it for a finished one

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; what depends on it is made again, and finished trainings are kept."


def recover(pipeline: Pipeline, layout: Layout, *, remove: bool) -> list[Damage]:
    """Return what is damaged in a pipeline's results; with `remove`, take away what the DAG must make again."""
    found = list(damages(pipeline, layout))
    for damage in found if remove else []:
        for path in damage.remove:
            if os.path.isdir(path):
                _put_aside(Path(path))
            else:
                with writing(path):
                    Path(path).unlink(missing_ok=True)
        if damage.aside:
            _put_aside(Path(damage.where))
    return found


def _put_aside(path: Path) -> None:
    """Rename a damaged file, or a folder in its place."""
    target = path.with_name(f"damaged-{path.name}")
    with writing(path):
        if target.is_dir():  # of an earlier time
            target.rename(target.with_name(f"{target.name}-{time.time_ns()}"))
        path.replace(target)


def damages(pipeline: Pipeline, layout: Layout) -> Iterator[Damage]:
    """Yield the damage in each part of the results; files that were never made are not damaged."""
    inputs = Inputs(pipeline, layout)
    for dataset in pipeline.datasets:
        yield from _in_data(layout, dataset)
    for search in pipeline.searches:
        yield from _in_search(pipeline, layout, inputs, search)
    for tuning in pipeline.tunings:
        chunks = [chunk for chunk in inputs.tuned(tuning) if os.path.exists(chunk)]
        for damage in (damage for chunk in chunks for damage in _in_chunk(chunk)):
            yield replace(damage, remove=(*damage.remove, layout.tuned(tuning)))
        yield from _unreadable(layout.tuned(tuning), TunedRates.load)
    drawn = {
        run.name
        for name, figure in pipeline.figures.items()
        if figure.needs_networks and not os.path.exists(layout.figure(name, ".svg"))
        for run in figure.runs
    }
    for run in pipeline.runs:
        yield from _in_run(layout, run, run in drawn)


def _in_data(layout: Layout, dataset: str) -> Iterator[Damage]:
    index, folder = layout.index(dataset), Path(layout.data(dataset))
    for path in sorted(folder.glob("split*.json")):
        yield from _unreadable(str(path), Split.load)
    if not os.path.exists(index):
        return
    source = str(folder / "source.json")
    if problem := _problem(index, Index.load) or _problem(source, SourcePaths.load):
        yield Damage(index, problem, (index,))
        return
    for side in cache_sizes(folder):
        if problem := _problem(str(folder), partial(Cache, short_side=side)):
            packed, described = cache_paths(folder, side)
            yield Damage(str(packed), problem, (str(described), index))


def _in_search(pipeline: Pipeline, layout: Layout, inputs: Inputs, search: str) -> Iterator[Damage]:
    """Yield the damage in the first damaged step of a search; the jobs of all later steps run again."""
    yield from _unreadable(layout.timing(search), Timing.load)
    plan = pipeline.search(search)
    steps = [step_name(step) for step in range(1, plan.total_steps + 1)] + ["rescore"] * bool(plan.rescore)
    done = [[layout.proposals(search, step), *inputs.step(search, step)] for step in steps]
    answer = layout.surrogate(search)
    for number, (proposals, *chunks) in enumerate(done, start=1):
        follows = [*(path for files in done[number:] for path in files), answer]
        if os.path.exists(proposals) and (problem := _problem(proposals, Proposals.load)):
            yield Damage(proposals, problem, (proposals, *chunks, *follows))
            return
        broken = [damage for chunk in chunks if os.path.exists(chunk) for damage in _in_chunk(chunk)]
        yield from (replace(damage, remove=(*damage.remove, *follows)) for damage in broken)
        if broken:
            return
        if plan.chained and (lost := _lost_network(layout.search(search), number, chunks, follows)):
            yield Damage(str(lost), "is missing or not as it was written", (*chunks, *follows))
            return
    yield from _unreadable(answer, Surrogate.load)
    network = Path(layout.search(search)) / NETWORK
    if plan.chained and os.path.exists(answer) and (problem := _problem(str(network), _check_weights)):
        yield Damage(str(network), problem, (answer,))


def _lost_network(search: str, step: int, chunks: list[str], follows: list[str]) -> Path | None:
    """Return the best network of a scored step of a chained search, if it is lost while something still needs it."""
    if not all(map(os.path.exists, chunks)) or all(map(os.path.exists, follows)):
        return None
    folder = Folder(search)
    with suppress(InputError):  # scores that cannot be read are found elsewhere
        scored = folder.scored(step)
        return folder.weights_path(step, scored.best.number) if folder.lost_network(scored) else None
    return None


def _in_chunk(chunk: str) -> Iterator[Damage]:
    """Yield each score of a finished chunk that is not as it was written."""
    try:
        scores = ChunkScores.load(chunk).scores
    except InputError as error:
        yield Damage(chunk, error.what, (chunk,))
        return
    for name, written in scores.items():
        path = os.path.join(os.path.dirname(chunk), name)
        if not os.path.lexists(path):
            yield Damage(path, "is missing", (chunk,))
        elif not os.path.isfile(path) or checksum(path) != written:
            yield Damage(path, "is not as it was written", (chunk,), aside=True)


def _in_run(layout: Layout, run: str, drawn: bool) -> Iterator[Damage]:
    """Yield the damage in a run. Weights may be deleted to save room once they are scored and drawn."""
    trained, scores = layout.trained(run), layout.scores(run)
    unreadable = list(_unreadable(scores, read_json))
    if os.path.exists(trained) and (drawn or unreadable or not os.path.exists(scores)):
        weights = str(Path(layout.run(run)) / WEIGHTS_FILE)
        for path, read in ((trained, read_json), (weights, _check_weights)):
            if problem := _problem(path, read):
                yield Damage(path, problem, (trained,))
                break
    yield from unreadable


def _check_weights(path: str) -> None:
    """Raise an error where a weights file is missing or cut short; its bytes are compared when it is loaded."""
    from safetensors import SafetensorError, safe_open

    if not os.path.exists(path):
        raise InputError("is missing", where=path)
    try:
        with safe_open(path, "numpy"):
            pass
    except SafetensorError as error:
        raise InputError(f"is damaged ({error})", where=path) from None


def _unreadable(path: str, read: Callable[[str], Any]) -> Iterator[Damage]:
    if os.path.exists(path) and (problem := _problem(path, read)):
        yield Damage(path, problem, (path,))


def _problem(path: str, read: Callable[[str], Any]) -> str:
    try:
        read(path)
    except InputError as error:
        return error.what
    return ""
