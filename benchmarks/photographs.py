"""The task of `make bench-real` on photographs of pets, for the benchmarks that train on them without its pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from autoseg.data.model import cache_short_side
from autoseg.data.pets import find
from autoseg.data.prepare import prepare
from autoseg.data.split import make_split
from autoseg.training.settings import Task, Training
from benchmarks.real import CONFIG

SIDE = 96  # of a crop, in pixels


def photographs(pets: Path, weights: Path, place: Path, hold_out: int) -> tuple[Callable[[int, int], Task], list[str]]:
    """Return the task by seed and iterations, and the ids of the validation images. `place` keeps what is prepared."""
    how = yaml.safe_load(CONFIG.read_text())["proxies"]["mobile"]
    data = prepare(find(pets), place, cache_short_side(SIDE), leave_out_copies=True)
    make_split(data.index, hold_out, 0).save(place / "split.json")
    settings = {**how["training"], "crop": (SIDE, SIDE), "short_side": SIDE, "loaders": 0, "device": "cpu"}

    def task(seed: int, iterations: int) -> Task:
        return Task(
            data=str(place),
            network=how["network"],
            network_options=how["network_options"],
            weights=str(weights),
            training=Training(**{**settings, "iterations": iterations, "seed": seed}),
        )

    return task, [entry.id for entry in data.index.splits["val"]]
