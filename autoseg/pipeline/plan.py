"""What searches and runs will cost: jobs, trainings, hours of one device, disk.

The numbers of jobs and trainings follow from the settings. The hours follow from the seconds of a step, which are
measured by a few steps on this machine or assumed; the output says which.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from autoseg.errors import InputError
from autoseg.files import to_json

if TYPE_CHECKING:
    from autoseg.pipeline.config import Pipeline
    from autoseg.pipeline.sections import Proxy, Retraining
    from autoseg.search.settings import Search
    from autoseg.training.foreign import Foreign
    from autoseg.training.networks import Network
    from autoseg.training.settings import Task, Training


# Seconds of one V100 for a million parameters and a million pixels of a batch, if nothing is measured. For trials from
# the paper's 8.5 hours on eight V100 for 640 trials with their scoring, for runs from the release's logs: 1.55 s a step
# on four V100.
_SECONDS_OF_TRIALS, _SECONDS_OF_RUNS = 0.0167, 0.0118

# The score file of a trial, with its part of proposals.json and journal.log.
_BYTES_PER_TRIAL = 4096


@dataclass(frozen=True)
class Speed:
    """Seconds of a training step, of scoring an image, and of starting a job; and whether they are measured."""

    step: float
    image: float = 0.0
    start: float = 0.0
    source: str = "assumed"


@dataclass(frozen=True)
class Cost:
    """What something costs; `disk` are bytes that stay, `scratch` more bytes that one training needs while it runs."""

    what: str
    jobs: int
    trainings: int
    hours: float
    disk: int
    scratch: int = 0


def search_cost(
    search: Search, training: Training, speed: Speed, hold_out: int, trials_per_job: int = 1, weights: int = 0
) -> Cost:
    """Return what a search takes: for every step one `ask` and its chunks of trials; then rescoring and selecting.

    `weights` are the bytes of a network: a chained search keeps the best of every step and its answer, and while a step
    is trained all of its networks.

    >>> from autoseg.search.settings import Search
    >>> from autoseg.training.settings import Training
    >>> proxy = Training.of_protocol("paper-proxy")
    >>> cost = search_cost(Search(metric="mIoU", preset="paper"), proxy, Speed(0.9), 1500, 4)
    >>> cost.jobs, cost.trainings, round(cost.hours)
    (190, 672, 168)
    """
    steps, size, rescored = search.total_steps, search.settings.trials_per_step, search.most_rescored
    chunks = steps * math.ceil(size / trials_per_job) + math.ceil(rescored / trials_per_job)
    trainings = steps * size + rescored
    iterations = training.iterations * (steps * size + search.rescored_trainings)
    seconds = iterations * speed.step + trainings * hold_out * speed.image + chunks * speed.start
    jobs = steps + chunks + (1 if rescored else 0) + 1
    disk, scratch = trainings * _BYTES_PER_TRIAL, 0
    if search.chained:
        disk, scratch = disk + (steps + 1) * weights, size * weights
    return Cost(f"search '{search.name}'", jobs, trainings, seconds / 3600, disk, scratch)


def run_cost(runs: int, training: Training, speed: Speed, images: int, weights: int) -> Cost:
    """Return what runs take: `autoseg train` and `autoseg evaluate` on `images` each; `weights` in bytes.

    While it runs, a training keeps two checkpoints and writes a third, each with the weights and their momentum.
    """
    scratch = training.kept_states * weights
    seconds = runs * (training.iterations * speed.step + images * speed.image + 2 * speed.start)
    return Cost(f"{runs} run{'s' * (runs != 1)}", 2 * runs, runs, seconds / 3600, runs * weights, scratch)


def pipeline_costs(pipeline: Pipeline, trial: float | None = None, run: float | None = None) -> list[Cost]:
    """Return what a whole config takes: every search, and the runs of each retraining; nothing is read or trained.

    `trial` and `run` are the seconds of a step; None: by the network's parameters and the pixels of a batch. Hours are
    those of one device: a retraining on four GPUs takes a quarter of them, if they scale.
    """

    def speed(given: float | None, rate: float, how: Proxy | Retraining, settings: Training) -> Speed:
        pixels = settings.batch_size * settings.crop[0] * settings.crop[1]
        return Speed(given or rate * parameters(how.network, how.network_options) * pixels / 1e12, start=10)

    from autoseg.search.budget import planned

    found = []
    for name, plan in pipeline.searches.items():
        search, settings = pipeline.search(name), pipeline.proxy_training(name)
        proxy, held = pipeline.proxies[plan.proxy], pipeline.datasets[plan.dataset].hold_out
        step = speed(trial, _SECONDS_OF_TRIALS, proxy, settings)
        if plan.hours is not None and pipeline.seconds_of_trial(name) is None:
            search = planned(search, 3600 * plan.hours, settings.iterations * step.step)
        images = held if isinstance(held, int) else 0
        size = weight_bytes(proxy.network, 21, proxy.network_options)  # of VOC; the number of classes matters little
        found.append(search_cost(search, settings, step, images, plan.trials_per_job, size))
    for name, tuning in pipeline.tunings.items():
        settings, jobs = pipeline.tuning_training(name), -(-tuning.trials // tuning.trials_per_job) + 1
        step = speed(trial, _SECONDS_OF_TRIALS, pipeline.proxies[tuning.proxy], settings)
        seconds = tuning.trials * settings.iterations * step.step + jobs * step.start
        disk = tuning.trials * _BYTES_PER_TRIAL
        found.append(Cost(f"tuning '{name}'", jobs, tuning.trials, seconds / 3600, disk))
    for retraining, how in pipeline.retrainings.items():
        runs = [one for one in pipeline.runs.values() if one.retraining == retraining and one == one.trained]
        if runs:
            settings = pipeline.run_training(retraining, runs[0].seed)
            size = weight_bytes(how.network, 21, how.network_options)
            step = speed(run, _SECONDS_OF_RUNS, how, settings)
            found.append(replace(run_cost(len(runs), settings, step, 0, size), what=f"{len(runs)} runs '{retraining}'"))
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

    At most `images` are used at once, so that they fit into any memory. The time of a step is scaled up to the whole
    batch; on a GPU, which a small batch does not fill, that is too much.
    """
    imports = _import_seconds()
    from autoseg.data.augment import CenterView, WholeView
    from autoseg.data.loaders import eval_loader
    from autoseg.data.model import cache_short_side
    from autoseg.losses.surrogate_loss import SurrogateLoss
    from autoseg.training.evaluation import score
    from autoseg.training.loop import train
    from autoseg.training.task import OpenTask

    began = time.perf_counter()
    s = task.training
    small = min(images, s.batch_size)
    # With checkpoint_every=1 the host waits for a GPU after every step; no checkpoint is written.
    changes = {"iterations": steps + 1, "batch_size": small, "accumulate": 1, "checkpoint_every": 1}
    opened = OpenTask(task.model_copy(update={"training": s.model_copy(update=changes)}))
    read = opened.data.cache(cache_short_side(s.short_side)).read if source == "cache" else opened.data.read
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
    whole = WholeView(s.scored_at) if s.scored_at else None
    view = CenterView(s.short_side) if source == "cache" else whole
    began = time.perf_counter()
    score(network, eval_loader(read, ids, view), opened.metrics(), opened.device, opened.settings)
    return Speed(
        step=statistics.median(b - a for a, b in pairwise(moments)) * s.batch_size / small,
        image=(time.perf_counter() - began) / len(ids),
        start=start,
        source=f"measured here on {opened.device.type}, {steps} steps of {small} images",
    )


@cache
def _import_seconds() -> float:
    """Return how long a job takes to load its libraries; measured once in a process."""
    began = time.perf_counter()
    import autoseg.training.trial  # noqa: F401

    return time.perf_counter() - began


def weight_bytes(network: str, num_classes: int, options: Mapping[str, Any] | None = None) -> int:
    """Return the size of a network's weights.

    >>> weight_bytes("tiny", 6) // 1000
    107
    """
    state = _shapes(network, num_classes, to_json(options or {})).state_dict()
    return sum(value.numel() * value.element_size() for value in state.values())


def parameters(network: str, options: Mapping[str, Any] | None = None) -> int:
    """Return the number of a network's trainable parameters, with VOC's 21 classes.

    >>> parameters("deeplabv3plus-r50c")
    43591418
    """
    return sum(parameter.numel() for parameter in _shapes(network, 21, to_json(options or {})).parameters())


@cache
def _shapes(network: str, num_classes: int, options: str) -> Network | Foreign:
    """Return a network on torch's meta device: shapes without values, which need no memory."""
    import torch

    from autoseg.training.networks import build_network

    try:
        with torch.device("meta"):
            return build_network(network, num_classes, options=json.loads(options))
    except InputError:  # somebody's own code may look at its numbers
        return build_network(network, num_classes, options=json.loads(options))


def report(costs: Sequence[Cost], speeds: Mapping[str, Speed | None], free: int | None = None) -> str:
    """Return the costs as text; a speed of None was assumed for each network."""
    from autoseg.data.prepare import readable

    lines = [f"{'':<28}{'jobs':>8}{'trainings':>11}{'hours':>11}{'disk':>10}"]
    lines += [
        f"{cost.what:<28}{cost.jobs:>8}{cost.trainings:>11}{cost.hours:>11.2f}{readable(cost.disk):>10}"
        for cost in ([*costs, total(costs)] if len(costs) > 1 else costs)
    ]
    if scratch := total(costs).scratch:
        lines.append(
            f"A running training needs up to {readable(scratch)} more for checkpoints, a chained step for networks."
        )
    if free is not None:
        lines.append(f"Free on this disk: {readable(free)}.")
    lines.append("Hours are those of one device.")
    for what, speed in speeds.items():
        if speed is None:
            source = "the paper's hours and the release's logs, by parameters and pixels"
            lines.append(f"{what}: as long as on a V100, estimated from {source} (assumed).")
            continue
        seconds = f"{speed.step:.3g} s a step, {speed.image:.2g} s an image scored, {speed.start:.2g} s to start a job"
        lines.append(f"{what}: {seconds} ({speed.source}).")
    return "\n".join(lines)
