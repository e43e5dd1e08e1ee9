"""Tune a learning rate on the proxy task: the same trials as a search's, with one loss and many learning rates."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from autoseg import plugins
from autoseg.errors import InputError
from autoseg.files import fingerprint, writing
from autoseg.losses.build import build_loss, loss_content
from autoseg.metrics import formula
from autoseg.training.rates import RateTrial, at_rate, trial_path
from autoseg.training.settings import Task
from autoseg.training.trial import ProxyTask


def run_rates(
    folder: str | os.PathLike[str],
    task: Task,
    loss: str,
    tried: Sequence[float],
    chunk: tuple[int, int] = (0, 1),
    *,
    metrics: Sequence[str] = (),
    progress: bool = False,
) -> list[Path]:
    """Train and score part `chunk` = (k, n) of the learning rates, numbers k, k + n, ...; return their files.

    A trial that has scores of the same metrics with the same fingerprint is not trained again. Scored are the six
    metrics, those that plugins registered, and `metrics`.
    """
    k, n = chunk
    if not 0 <= k < n:
        raise InputError(f"found {k}/{n}", where="chunk", expected="K/N with 0 <= K < N")
    names = list(dict.fromkeys([*plugins.metrics(), *(formula.get(name).name for name in metrics)]))
    proxy = ProxyTask(task, progress=progress)
    with writing(folder):  # a folder that cannot be made is an error before the first training
        Path(folder).mkdir(parents=True, exist_ok=True)
    done = []
    for number in range(k, len(tried), n):
        path = trial_path(folder, number)
        done.append(path)
        proxy.use(at_rate(task.training, tried[number]))
        made_from = fingerprint({"proxy": proxy.task_fingerprint, "loss": loss_content(loss, None)})
        if _has_scores(path, made_from, names):
            continue
        counts = [
            sum(proxy.data.entry(name).pixels.get(label, 0) for name in proxy.split.train)
            for label in range(proxy.data.num_classes)
        ]
        criterion = build_loss(
            loss,
            ignore_index=proxy.data.ignore_index,
            class_counts=counts,
            conventions=proxy.conventions,
            has_background=proxy.has_background,
            **task.loss_conventions.changes,
        )
        outcome = proxy.train(proxy.in_groups(criterion), f"lr {tried[number]:.3g}" if progress else None)
        scores = proxy.score(names)
        with writing(path):
            RateTrial(
                number=number, lr=tried[number], scores=scores, diverged=outcome.diverged, fingerprint=made_from
            ).save(path)
    return done


def _has_scores(path: Path, made_from: str, names: Sequence[str]) -> bool:
    """Whether a trial is scored already; a file that cannot be read, or is of another task, is written anew."""
    try:
        found = RateTrial.load(path)
        return found.fingerprint == made_from and set(names) <= set(found.scores)
    except InputError:
        return False
