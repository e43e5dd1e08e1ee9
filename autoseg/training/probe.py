"""Measure a few steps of a task on this machine, and find a learning rate by a short range test with cross entropy.

A process of its own, `python -m autoseg.training.probe ASKED.json MEASURED.json`, so that the time that a job takes to
start is measured too, and several can run at once, as the jobs will.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable

import psutil
import torch

from autoseg.losses.batch import Loss
from autoseg.losses.build import build_loss
from autoseg.losses.labels import Labels
from autoseg.plugins import VARIABLE, load_plugin
from autoseg.training.loop import train
from autoseg.training.measures import UNMEASURED, Asked, Measured
from autoseg.training.optimiser import make_optimiser
from autoseg.training.rates import at_rate, rates
from autoseg.training.trial import ProxyTask

LOWEST, HIGHEST = 1e-6, 0.3
"""The learning rates of a range test: SGD wants the highest, AdamW on trained weights the lowest."""

_HOPELESS = 3.0  # times the lowest loss: larger steps make it only worse
_SCORED = 8  # images


def measure(asked: Asked, step_done: Callable[[], None] = lambda: None) -> Measured:
    """Train a few steps of a task with each loss, and score a few images; nothing is written."""
    s = asked.task.training
    few = s.model_copy(update={"iterations": asked.steps + UNMEASURED, "checkpoint_every": 1, "warmup": 0})
    proxy = ProxyTask(asked.task)
    proxy.use(few)
    initial = {name: value.clone() for name, value in proxy.initial.items()}
    start = time.time() - psutil.Process().create_time()
    step = {}
    moments: list[float] = []
    for name in asked.losses:
        proxy.trained.load_state_dict(initial)
        moments.clear()
        train(
            proxy.trained,
            _loss(proxy, name),
            lambda first: proxy.batches(proxy.cache.read, proxy.split.train, first),
            few,
            device=proxy.device,
            logs=[lambda line: moments.append(time.perf_counter()), lambda line: step_done()],
        )
        step[name] = statistics.median(b - a for a, b in itertools.pairwise(moments[1:]))
    ids = proxy.split.hold_out[:_SCORED]
    proxy.score(ids=ids)  # the first compiles kernels
    began = time.perf_counter()
    proxy.score(ids=ids)
    image = (time.perf_counter() - began) / len(ids)
    tried, losses = range_test(proxy, asked.range_steps, step_done) if asked.range_steps else ([], [])
    return Measured(step=step, image=image, start=start, rates=tried, losses=losses)


def _loss(proxy: ProxyTask, name: str) -> Loss:
    loss = build_loss(
        name,
        ignore_index=proxy.data.ignore_index,
        conventions=proxy.conventions,
        has_background=proxy.has_background,
        **proxy.task.loss_conventions.changes,
    )
    return proxy.in_groups(loss)


def range_test(
    proxy: ProxyTask, steps: int, step_done: Callable[[], None] = lambda: None
) -> tuple[list[float], list[float]]:
    """Train with cross entropy while the learning rate grows from step to step; return the rates and the losses."""
    tried = rates(LOWEST, HIGHEST, steps)
    settings = at_rate(proxy.task.training, tried[0]).model_copy(update={"iterations": steps, "accumulate": 1})
    proxy.use(settings)
    network = proxy.network().train()
    optimiser, bases = make_optimiser(network, settings)
    loss = _loss(proxy, "ce").to(proxy.device)
    losses: list[float] = []
    batches = proxy.batches(proxy.cache.read, proxy.split.train, 0)
    for lr, (images, masks) in zip(tried, batches, strict=False):
        for group, base in zip(optimiser.param_groups, bases, strict=True):
            group["lr"] = base * lr / settings.lr
        optimiser.zero_grad(set_to_none=True)
        value = loss(network(images.to(proxy.device))[0].float(), Labels(masks.to(proxy.device)))
        found = value.item()
        if not math.isfinite(found) or (losses and found > _HOPELESS * min(losses)):
            break
        losses.append(found)
        value.backward()
        optimiser.step()
        step_done()
    return tried[: len(losses)], losses


def main(asked: str, out: str) -> None:
    """Measure what a file asks, and write the answer to another; each step that is done is a line of output."""
    torch.set_num_threads(1)
    for module in os.environ.get(VARIABLE, "").split():
        load_plugin(module)
    measure(Asked.load(asked), lambda: print(flush=True)).save(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
