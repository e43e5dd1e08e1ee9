"""`make bench-zoo`: a surrogate searched on scenes for each metric of the zoo, and what it is worth on other scenes.

Writes `autoseg/losses/entries/<metric>.json`: the surrogate, the search that makes it again, and the scores of three
seeds, whose scenes, initial weights and batches the search never saw, beside cross entropy, Dice and the naive one.
`python -m benchmarks.zoo NSD` does so for one metric. A search goes on where it was stopped.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from autoseg.data.model import cache_short_side
from autoseg.data.prepare import prepare
from autoseg.data.split import make_split
from autoseg.data.synthetic import SYNTHETIC_VERSION, find
from autoseg.losses.build import build_loss
from autoseg.losses.surrogate import Surrogate
from autoseg.losses.zoo import SHIPPED, Entry, Evidence, Searched
from autoseg.report.comparison import paired
from autoseg.search.runner import run as run_search
from autoseg.search.settings import Search
from autoseg.training.settings import Task, Training
from autoseg.training.trial import ProxyObjective, ProxyTask
from benchmarks.shared import table, write_section
from benchmarks.synthetic import IMAGES, NETWORK, SETTINGS, SIZE

CACHE = Path(__file__).parent / ".cache" / "zoo"
METRICS = ("mDice", "mMCC", "BoundaryIoU", "NSD", "clDice")
SEEDS = (1, 2, 3)  # the search has 0
RUN = SETTINGS
TRIAL: dict[str, Any] = {**RUN, "iterations": 64}
SEARCH: dict[str, Any] = {"preset": "recommended", "steps": 4, "trials_per_step": 8, "conventions": {"tolerance": 2}}
RIVALS = ("ce", "dice", "naive")


def data(folder: Path, seed: int, images: int = IMAGES) -> Path:
    """Return a folder with scenes of a seed, prepared and split."""
    if not (folder / "split.json").exists():
        short = cache_short_side(TRIAL["short_side"])
        prepared = prepare(find(folder / "source", images, 1, SIZE, seed), folder, short)
        make_split(prepared.index, 0.2, seed).save(folder / "split.json")
    return folder


def searched(metric: str, folder: Path, **changes: Any) -> tuple[Surrogate, Search]:
    """Search a surrogate for a metric on the scenes of seed 0."""
    search = Search(**{**SEARCH, "metric": metric, "name": f"zoo-{metric}", **changes.pop("search", {})})
    settings = Training(**{**TRIAL, **changes.pop("training", {})})
    task = Task(
        data=str(data(folder / "scenes", 0, **changes)),
        network=NETWORK,
        training=settings,
        conventions=search.conventions,
    )
    run_search(folder / "search", search, ProxyObjective(task), progress=False)
    return Surrogate.load(folder / "search" / "surrogate.json"), search


def compared(metric: str, surrogate: Path, seeds: tuple[int, ...] = SEEDS, **changes: Any) -> Evidence:
    """Train with the surrogate and with its rivals on other scenes, and score them on held-out ones."""
    specs = {"this": str(surrogate), "ce": "ce", "dice": "dice", f"naive:{metric}": f"naive:{metric}"}
    scores: dict[str, dict[str, float]] = {loss: {} for loss in specs}
    settings = {**RUN, **changes.pop("training", {})}
    conventions = Search(**{**SEARCH, "metric": metric}).conventions
    for seed in seeds:
        with TemporaryDirectory() as place:
            there = str(data(Path(place), seed, **changes))
            for loss, spec in specs.items():
                training = Training(**{**settings, "seed": seed})
                proxy = ProxyTask(Task(data=there, network=NETWORK, training=training, conventions=conventions))
                proxy.train(build_loss(spec, ignore_index=proxy.data.ignore_index, conventions=conventions))
                scores[loss][str(seed)] = 100 * proxy.score([metric])[metric]
    return Evidence(
        data=f"scenes (version {SYNTHETIC_VERSION}) of the seeds {', '.join(map(str, seeds))}",
        network=f"{NETWORK}, {settings['iterations']} iterations of {settings['batch_size']} crops",
        metric=metric,
        command=f"python -m benchmarks.zoo {metric}",
        scores=scores,
    )


def entry(metric: str) -> Entry:
    """Return the entry of a metric, searched and measured."""
    found, search = searched(metric, CACHE / metric)
    evidence = compared(metric, CACHE / metric / "search" / "surrogate.json")
    trials = search.total_steps * search.settings.trials_per_step
    return Entry(
        name=metric,
        surrogate=found.content(),
        searched=Searched(
            data=f"scenes (version {SYNTHETIC_VERSION}) of seed 0, {IMAGES} images of {SIZE} px",
            network=f"{NETWORK}, {TRIAL['iterations']} iterations of {TRIAL['batch_size']} crops of 64 px",
            trials=trials,
            config=search.model_dump(mode="json", exclude_defaults=True),
            command=f"python -m benchmarks.zoo {metric}",
        ),
        evidence=[evidence],
    )


def rows() -> list[list[str]]:
    """Return a row for each entry that comes with the package: its mean, and its difference from each rival."""
    found = []
    for path in sorted(SHIPPED.glob("*.json")):
        one = Entry.load(path)
        for evidence in one.evidence:
            by_seed = {loss: {int(k): v for k, v in seeds.items()} for loss, seeds in evidence.scores.items()}
            ours = by_seed.pop("this")
            gains = [paired(ours, theirs) for theirs in by_seed.values()]
            mean = sum(ours.values()) / len(ours)
            found.append([one.name, f"{mean:.1f}", *(gain.text if gain else "" for gain in gains)])
    return found


def main() -> None:
    torch.set_num_threads(1)
    for metric in sys.argv[1:] or METRICS:
        entry(metric).save(SHIPPED / f"{metric}.json")
    write_section(
        "zoo",
        f"## The zoo\n\n`make bench-zoo`: surrogates searched on scenes of seed 0, scored in percent on scenes of the "
        f"seeds {', '.join(map(str, SEEDS))}; differences from each rival with 95 % intervals over paired seeds, and "
        "in how many seeds the surrogate is ahead. The trainings are short, and say nothing of longer ones or of "
        "photographs.\n\n" + table(["metric", "score", *(f"against {rival}" for rival in RIVALS)], rows()),
    )


if __name__ == "__main__":
    main()
