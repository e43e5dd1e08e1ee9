"""`make bench-zoo`: surrogates searched for the further metrics, and what they and the published ones score elsewhere.

A surrogate for each metric is searched on made-up scenes, and some on photographs of pets, where those are
(`make bench-zoo PETS=DIR WEIGHTS=FILE`). Each is then trained with on scenes of other seeds, and on the photographs,
which a search on scenes has not seen; a search on photographs has not seen those that it is scored on. Three seeds,
beside cross entropy, Dice, the naive surrogate and the published curves of mIoU.
Writes `autoseg/losses/entries/<name>.json`, and the evidence of the published surrogates into `published/` below it.
`python -m benchmarks.zoo NSD NSD-pets` makes some entries. What was trained before is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autoseg.data.model import cache_short_side
from autoseg.data.prepare import prepare
from autoseg.data.split import make_split
from autoseg.data.synthetic import SYNTHETIC_VERSION, find
from autoseg.files import fingerprint, read_json, write_json
from autoseg.losses.build import build_loss, loss_content
from autoseg.losses.published import published
from autoseg.losses.surrogate import Surrogate
from autoseg.losses.zoo import MEASURED, SHIPPED, Entry, Evidence, Searched
from autoseg.metrics.conventions import Conventions
from autoseg.metrics.formula import METRICS as SIX
from autoseg.report.comparison import paired
from autoseg.search.runner import run as run_search
from autoseg.search.settings import Search
from autoseg.training.settings import Task, Training
from autoseg.training.trial import ProxyObjective, ProxyTask
from benchmarks.photographs import photographs
from benchmarks.real import places
from benchmarks.shared import table, write_section
from benchmarks.synthetic import IMAGES, NETWORK, SETTINGS, SIZE

CACHE = Path(__file__).parent / ".cache" / "zoo"
METRICS = ("mDice", "mMCC", "BoundaryIoU", "NSD", "clDice")
SEEDS = (1, 2, 3)  # the searches have 0
RIVALS = ("ce", "dice", "naive", "published:mIoU")
# Where a search begins, if not at curves g(p) = p. The first three have the operators of mIoU, AND and OR; those of NSD
# are "matched" and "missed", and what a curve of OR does on pixels of other classes is what one of "missed" does.
BEGIN: dict[str, str | list[float]] = {
    **dict.fromkeys(("mDice", "mMCC", "BoundaryIoU"), "published:mIoU"),
    "NSD": list(published("mIoU").theta or ()),
}
# The possible answers are trained as long as the losses that are measured, before one of them is taken.
SEARCH: dict[str, Any] = {"preset": "recommended", "steps": 4, "trials_per_step": 8, "rescore": 1}


@dataclass(frozen=True)
class Field:
    """Where surrogates are searched and measured."""

    name: str
    searched: str  # the images of a search
    fresh: str  # the images that a loss is measured on
    network: str
    iterations: tuple[int, int]  # of a trial, of a training
    conventions: Conventions
    searches: tuple[str, ...]  # metrics
    measures: tuple[str, ...]  # metrics, also with what was searched elsewhere
    published: tuple[str, ...]  # surrogates that are measured
    task: Callable[[int, int], Task]  # by seed and iterations
    ids: list[str] | None = None  # of the images that a loss is measured on, if they are not those held out

    def settings(self, metric: str) -> Search:
        """Return the settings of a search."""
        name = f"zoo-{metric}" if self.name == "scenes" else f"zoo-{metric}-{self.name}"
        trial, training = self.iterations
        return Search(
            **SEARCH,
            metric=metric,
            name=name,
            initial=BEGIN.get(metric, "identity"),
            rescore_length=training / trial,
            conventions=self.conventions,
        )

    def surrogate(self, metric: str) -> Path:
        """Search for a metric, as far as that was not done, and return the file of what was found."""
        search = self.settings(metric)
        task = self.task(0, self.iterations[0]).model_copy(update={"conventions": search.conventions})
        run_search(CACHE / self.name / metric, search, ProxyObjective(task), here=True)
        return CACHE / self.name / metric / "surrogate.json"

    def scores(self, loss: str, seed: int) -> dict[str, float]:
        """Return what a network scores in percent that is trained with a loss, by metric."""
        task = self.task(seed, self.iterations[1]).model_copy(update={"conventions": self.conventions})
        proxy = ProxyTask(task)
        options: dict[str, Any] = {"ignore_index": proxy.data.ignore_index, "conventions": self.conventions}
        mark = fingerprint([proxy.task_fingerprint, loss_content(loss), self.ids])
        path = CACHE / "scores" / f"{mark[:16]}.json"
        if not path.exists():
            proxy.train(build_loss(loss, **options))
            write_json(path, proxy.score((*SIX, *METRICS), self.ids))
        return {metric: 100 * score for metric, score in read_json(path).items()}

    def evidence(self, metric: str, loss: str, command: str) -> Evidence:
        """Return what a loss and its rivals score on a metric."""
        rivals = {name: f"naive:{metric}" if name == "naive" else name for name in RIVALS}
        losses = {"this": loss, **{rival: rival for rival in rivals.values() if rival != loss}}
        scores = {name: {str(seed): self.scores(spec, seed)[metric] for seed in SEEDS} for name, spec in losses.items()}
        return Evidence(data=self.fresh, network=self.trained, metric=metric, command=command, scores=scores)

    @property
    def trained(self) -> str:
        """What is trained, and for how long."""
        return f"{self.network}, {self.iterations[1]} iterations of {self.task(0, 1).training.batch_size} crops"


def scenes() -> Field:
    """Return the made-up scenes: those of seed 0 are searched on."""
    side = SETTINGS["crop"][0]

    def task(seed: int, iterations: int) -> Task:
        place = CACHE / "scenes" / f"seed-{seed}"
        if not (place / "split.json").exists():
            prepared = prepare(find(place / "source", IMAGES, 1, SIZE, seed), place, cache_short_side(side))
            make_split(prepared.index, 0.2, seed).save(place / "split.json")
        training = Training(**{**SETTINGS, "iterations": iterations, "seed": seed})
        return Task(data=str(place), network=NETWORK, training=training)

    return Field(
        name="scenes",
        searched=f"scenes (version {SYNTHETIC_VERSION}) of seed 0, {IMAGES} images of {SIZE} px",
        fresh=f"scenes (version {SYNTHETIC_VERSION}) of the seeds {', '.join(map(str, SEEDS))}",
        network=NETWORK,
        iterations=(64, SETTINGS["iterations"]),
        conventions=Conventions(tolerance=2),
        searches=METRICS,
        measures=METRICS,
        published=SIX,
        task=task,
    )


def pets() -> Field | None:
    """Return the photographs, with the network and the settings of `make bench-real`, where they are."""
    if not all(place.exists() for place in places()):
        return None
    task, validated = photographs(*places(), CACHE / "pets" / "data", 200)
    return Field(
        name="pets",
        searched="Oxford-IIIT Pet, images of its trainval list",
        fresh=f"Oxford-IIIT Pet, {len(validated)} images of its test list",
        network=task(0, 1).network,
        iterations=(160, 320),
        conventions=Conventions(tolerance=2),
        searches=("NSD",),
        measures=("mDice", "BoundaryIoU", "NSD"),
        published=("mIoU",),
        task=task,
        ids=validated,
    )


def fields() -> list[Field]:
    """Return the places that are here."""
    return [field for field in (scenes(), pets()) if field is not None]


def entry(name: str) -> Entry:
    """Search and measure what is missing for an entry: the metric, and `-pets` if it is searched on photographs."""
    metric, _, where = name.partition("-")
    field = next(one for one in fields() if one.name == (where or "scenes"))
    found, search, command = field.surrogate(metric), field.settings(metric), f"python -m benchmarks.zoo {name}"
    crop = field.task(0, 1).training.crop[0]
    return Entry(
        name=name,
        surrogate=Surrogate.load(found).content(),
        searched=Searched(
            data=field.searched,
            network=f"{field.network}, {field.iterations[0]} iterations of "
            f"{field.task(0, 1).training.batch_size} crops of {crop} px",
            trials=search.total_steps * search.settings.trials_per_step,
            config=search.model_dump(mode="json", exclude_defaults=True),
            command=command,
        ),
        evidence=[one.evidence(metric, str(found), command) for one in fields() if metric in one.measures],
    )


def measured(name: str) -> Entry:
    """Return a published surrogate with what it scores here."""
    command = f"python -m benchmarks.zoo published:{name}"
    there = [field for field in fields() if name in field.published]
    metric = published(name).metric
    return Entry(
        name=name,
        surrogate=published(name).content(),
        evidence=[field.evidence(metric, f"published:{name}", command) for field in there],
    )


def names() -> Iterator[str]:
    """Return all that can be made here."""
    for field in fields():
        yield from (metric if field.name == "scenes" else f"{metric}-{field.name}" for metric in field.searches)
    yield from (f"published:{name}" for name in SIX)


def rows(where: str) -> list[list[str]]:
    """Return a row for each entry that was measured on some data: its mean, and its difference from each rival."""
    found = []
    for path in sorted(SHIPPED.glob("*.json")) + sorted(MEASURED.glob("*.json")):
        one = Entry.load(path)
        for evidence in one.evidence:
            if not evidence.data.startswith(where):
                continue
            by_seed = {loss: {int(k): v for k, v in seeds.items()} for loss, seeds in evidence.scores.items()}
            ours = by_seed["this"]
            rivals = [by_seed.get(f"naive:{evidence.metric}" if name == "naive" else name) for name in RIVALS]
            gains = [paired(ours, theirs) if theirs else None for theirs in rivals]
            name = f"published:{one.name}" if path.parent == MEASURED else f"zoo:{one.name}"
            mean = sum(ours.values()) / len(ours)
            found.append([name, evidence.metric, f"{mean:.1f}", *(gain.text if gain else "" for gain in gains)])
    return found


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or names():
        kind, _, metric = name.partition(":")
        if kind == "published":
            measured(metric).save(MEASURED / f"{metric}.json")
        else:
            entry(name).save(SHIPPED / f"{name}.json")
    head = ["loss", "metric", "score", *(f"against {rival}" for rival in RIVALS)]
    parts = [
        f"On {field.fresh}, {field.trained}:\n\n{table(head, rows(field.fresh.split(' ')[0]))}" for field in fields()
    ]
    write_section(
        "zoo",
        "## The zoo\n\n`make bench-zoo`: surrogates searched for metrics beyond the paper's six, on scenes of seed 0 "
        "(`-pets`: on photographs of pets), with 32 trials each, and the published ones. Scores in percent on images "
        "that no search has seen; differences with 95 % intervals by Student's t over the paired seeds "
        f"{', '.join(map(str, SEEDS))}, and in how many seeds the loss is ahead. All with `tolerance: 2`, so BF1 is "
        "not that of other sections. The trainings are short, and say nothing of longer ones.\n\n" + "\n\n".join(parts),
    )


if __name__ == "__main__":
    main()
