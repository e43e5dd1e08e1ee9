"""What searches and runs will cost before they are started: jobs, trainings, device hours, disk.

The numbers of jobs and trainings follow from the settings; the hours from the seconds of a step, which are measured in
a short warm-up on this machine or assumed, and said to be either.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from autoseg.config import Search, Task, Training
    from autoseg.pipeline import Pipeline

# Of a small file of a search: a trial's score, with its share of proposals and journal.
_BYTES_PER_TRIAL = 4096


@dataclass(frozen=True)
class Speed:
    """Seconds of a training step, of scoring an image, and of starting a job; and where they are from."""

    step: float
    image: float = 0.0
    start: float = 0.0
    source: str = "assumed"


@dataclass(frozen=True)
class Cost:
    """What something takes; `disk` is what stays, `scratch` what one training needs besides while it runs."""

    what: str
    jobs: int
    trainings: int
    hours: float
    disk: int
    scratch: int = 0


def search_cost(search: Search, training: Training, speed: Speed, hold_out: int, trials_per_job: int = 1) -> Cost:
    """Return what a search takes: for every step one `ask` and its chunks of trials; then rescoring and selecting.

    >>> from autoseg.config import Search, training
    >>> cost = search_cost(Search(metric="mIoU", preset="paper"), training("paper-proxy"), Speed(0.9), 1500, 4)
    >>> cost.jobs, cost.trainings, round(cost.hours)
    (181, 640, 160)
    """
    from autoseg.search import most_rescored, settings_of, total_steps

    steps, size = total_steps(search), settings_of(search).trials_per_step
    rescored = most_rescored(search)
    chunks = steps * math.ceil(size / trials_per_job) + math.ceil(rescored / trials_per_job)
    trainings = steps * size + rescored
    seconds = trainings * (training.iterations * speed.step + hold_out * speed.image) + chunks * speed.start
    jobs = steps + chunks + (1 if rescored else 0) + 1
    return Cost(f"search '{search.name}'", jobs, trainings, seconds / 3600, trainings * _BYTES_PER_TRIAL)


def run_cost(runs: int, training: Training, speed: Speed, images: int, weights: int) -> Cost:
    """Return what runs take: `autoseg train` and `autoseg evaluate` on `images` each; `weights` in bytes.

    While it runs, a training keeps two checkpoints and writes a third, each with the weights and their momentum.
    """
    seconds = runs * (training.iterations * speed.step + images * speed.image + 2 * speed.start)
    return Cost(f"{runs} run{'s' * (runs != 1)}", 2 * runs, runs, seconds / 3600, runs * weights, 3 * 2 * weights)


def pipeline_costs(pipeline: Pipeline, trial: Speed, run: Speed) -> list[Cost]:
    """Return what a whole config takes: every search, and the runs of each retraining; nothing is read or trained.

    Hours are those of one device: a retraining on four GPUs takes a quarter of them, if they scale.
    """
    found = []
    for name, plan in pipeline.searches.items():
        search, settings = pipeline.search(name), pipeline.proxy_training(name)
        held = pipeline.datasets[plan.dataset].hold_out
        found.append(search_cost(search, settings, trial, held if isinstance(held, int) else 0, plan.trials_per_job))
    for retraining, how in pipeline.retrainings.items():
        runs = [one for one in pipeline.runs.values() if one.retraining == retraining]
        if runs:
            settings = pipeline.run_training(retraining, runs[0].seed)
            size = weight_bytes(how.network, 21)  # of VOC; the number of classes matters little
            found.append(replace(run_cost(len(runs), settings, run, 0, size), what=f"{len(runs)} runs '{retraining}'"))
    return found


def total(costs: Iterable[Cost]) -> Cost:
    """Return the sum.

    >>> total([Cost("a", 1, 2, 0.5, 10), Cost("b", 2, 0, 0.25, 5, 7)])
    Cost(what='together', jobs=3, trainings=2, hours=0.75, disk=15, scratch=7)
    """
    found = list(costs)
    return Cost(
        "together",
        sum(cost.jobs for cost in found),
        sum(cost.trainings for cost in found),
        sum(cost.hours for cost in found),
        sum(cost.disk for cost in found),
        max((cost.scratch for cost in found), default=0),
    )


def measure(task: Task, source: Literal["files", "cache"], images: int = 4, steps: int = 3) -> Speed:
    """Train a few steps of a task with the published mIoU surrogate, and score a few images; nothing is written.

    No more than `images` are taken at once, so that it fits anywhere, and a step is taken to cost as much more as its
    batch is larger: on a GPU, which a small batch does not fill, less in truth.
    """
    imports = _import_seconds()
    from autoseg.data.augment import CenterView
    from autoseg.data.loaders import eval_loader
    from autoseg.evaluation import score
    from autoseg.surrogates import SurrogateLoss
    from autoseg.tasks import OpenTask
    from autoseg.training import train

    began = time.perf_counter()
    s = task.training
    small = min(images, s.batch_size)
    changes = {"iterations": steps + 1, "batch_size": small, "accumulate": 1}
    opened = OpenTask(task.model_copy(update={"training": s.model_copy(update=changes)}))
    read = opened.data.cache(2 * s.short_side).read if source == "cache" else opened.data.read
    network = opened.network()
    start = imports + time.perf_counter() - began
    moments: list[float] = []
    train(
        network,
        SurrogateLoss.published("mIoU", ignore_index=opened.data.ignore_index),
        lambda first: opened.batches(read, opened.split.train, first),
        opened.settings,
        device=opened.device,
        logs=[lambda line: moments.append(time.perf_counter())],
    )
    ids = (opened.split.hold_out if source == "cache" else opened.split.val)[:images]
    view = CenterView(s.short_side) if source == "cache" else None
    began = time.perf_counter()
    score(network, eval_loader(read, ids, view), opened.metrics(), opened.device)
    return Speed(
        step=statistics.median(b - a for a, b in pairwise(moments)) * s.batch_size / small,
        image=(time.perf_counter() - began) / len(ids),
        start=start,
        source=f"measured here on {opened.device.type}, {steps} steps of {small} images",
    )


@cache
def _import_seconds() -> float:
    """Return how long every job takes to load its libraries; seen once in a process, then remembered."""
    began = time.perf_counter()
    import autoseg.trials  # noqa: F401

    return time.perf_counter() - began


def weight_bytes(network: str, num_classes: int) -> int:
    """Return the size of a network's weights.

    >>> weight_bytes("tiny", 6) // 1000
    107
    """
    from autoseg.networks import build_network

    return sum(
        value.numel() * value.element_size() for value in build_network(network, num_classes).state_dict().values()
    )


def report(costs: Sequence[Cost], speeds: Sequence[tuple[str, Speed]], free: int | None = None) -> str:
    """Return the costs as lines to read."""
    from autoseg.data.prepare import readable

    lines = [f"{'':<28}{'jobs':>8}{'trainings':>11}{'hours':>11}{'disk':>10}"]
    lines += [
        f"{cost.what:<28}{cost.jobs:>8}{cost.trainings:>11}{cost.hours:>11.2f}{readable(cost.disk):>10}"
        for cost in ([*costs, total(costs)] if len(costs) > 1 else costs)
    ]
    if scratch := total(costs).scratch:
        lines.append(f"Every training that runs needs {readable(scratch)} more for its checkpoints.")
    if free is not None:
        lines.append(f"Free on this disk: {readable(free)}.")
    for what, speed in speeds:
        lines.append(
            f"Hours are those of one device. {what}: {speed.step:.3g} s a step, {speed.image:.2g} s an image scored, "
            f"{speed.start:.2g} s to start a job ({speed.source})."
        )
    return "\n".join(lines)
