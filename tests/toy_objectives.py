"""Objectives for searches in tests; workers import them by name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from autoseg.files import atomic
from autoseg.losses.surrogate import Surrogate
from autoseg.search.early import Watch


def near(surrogate: Surrogate, number: int) -> float:
    """A smooth score: the closer every theta is to .6, the better."""
    return 1 - sum((x - 0.6) ** 2 for x in surrogate.theta) / len(surrogate.theta)


def report(surrogate: Surrogate, number: int) -> dict[str, Any]:
    return {"score": near(surrogate, number), "scores": {"mIoU": 0.5, "BF1": 0.25}, "diverged": False}


def collapse(surrogate: Surrogate, number: int) -> Any:
    """A negative score; trial 2 has none."""
    score = float("nan") if number == 2 else near(surrogate, number) - 2
    return {"score": score, "scores": {"mIoU": score}}


def always_collapse(surrogate: Surrogate, number: int) -> float:
    return float("inf")


def once_broken(surrogate: Surrogate, number: int) -> float:
    """Fail on trial 5 as long as the file named by BROKEN is there."""
    if number == 5 and Path(os.environ["BROKEN"]).exists():
        raise MemoryError("out of memory")
    return near(surrogate, number)


def slow(surrogate: Surrogate, number: int) -> float:
    time.sleep(0.05)
    return near(surrogate, number)


def hang(surrogate: Surrogate, number: int) -> float:
    """Say who works, in the file named by WHO, and never end."""
    Path(os.environ["WHO"]).write_text(str(os.getpid()))
    time.sleep(600)
    return 0.0


def on_its_gpu(surrogate: Surrogate, number: int) -> float:
    """Say which process works on which GPU, in a file in the folder named by WHO; wait until all of WORKERS have."""
    folder = Path(os.environ["WHO"])
    with atomic(folder / str(number)) as file:
        file.write(f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}")
    while len({path.read_text().split()[0] for path in folder.glob("[0-9]*")}) < int(os.environ["WORKERS"]):
        time.sleep(0.01)
    return near(surrogate, number)


def quarter(surrogate: Surrogate, number: int) -> float:
    """Take a quarter of a second."""
    time.sleep(0.25)
    return near(surrogate, number)


def watched(surrogate: Surrogate, number: int, watch: Watch) -> float:
    """Tell the score on the way, which is the final one seen through some noise; end when told so."""
    score = near(surrogate, number)
    for share in watch.shares:
        if watch(share, share * score + 0.01 * (number * 0.618 % 1)):
            return 0.0
    return score
