"""A search from Python: `autoseg.search(train, metric="mIoU")`, where `train` is a function and not a path.

The files, the steps and the answer are those of `autoseg search`; only the trials are trained by a function of this
process. Torch is loaded when the first loss is made.
"""

from __future__ import annotations

import functools
import inspect
import logging
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from autoseg.errors import InputError, truth, unknown, whole_number
from autoseg.files import fingerprint, parse
from autoseg.losses.surrogate import Surrogate
from autoseg.metrics.conventions import Conventions
from autoseg.search.early import Watch
from autoseg.search.folder import Folder
from autoseg.search.identity import identity
from autoseg.search.journal import study_of
from autoseg.search.records import Scored, StepName
from autoseg.search.runner import run
from autoseg.search.settings import Search
from autoseg.search.space import search_fingerprint, search_space, surrogate

if TYPE_CHECKING:
    from optuna import Study

    from autoseg.losses.surrogate_loss import SurrogateLoss

_log = logging.getLogger(__name__)

Training = Callable[["SurrogateLoss"], Any]
"""A user's function: it trains with a loss, and returns a score, or scores by the metrics' names; higher is better."""


def search(
    train: Training,
    metric: str,
    *,
    steps: int | None = None,
    trials_per_step: int | None = None,
    preset: str | None = None,
    seed: int = 0,
    workers: int = 1,
    out: str | os.PathLike[str] | None = None,
    loss: Mapping[str, Any] | None = None,
    hours: float | None = None,
    progress: bool = True,
    trials_per_gpu: int = 1,
    **settings: Any,
) -> SearchResult:
    """Search a loss for a metric: train with many losses, and return the one that the search answers with.

    Args:
        train: a function `train(loss)` that trains a network with `loss(logits, target)`, a `SurrogateLoss`, and scores
            it on images that it was not trained on. It returns the score of the metric, higher being better, or a
            mapping of scores by name, as `SegmentationMetrics.compute()` does. A score that is not finite is a training
            that collapsed. Before each call Python's, NumPy's and torch's random numbers are seeded alike, so that
            trials differ by their losses alone; afterwards they are as before.
        metric: the metric to search for: gAcc mAcc mIoU FWIoU BIoU BF1, or a registered one.
        steps, trials_per_step: how many trainings: their product. None: the preset's.
        preset: of the sampler; None: "recommended".
        seed: of the search, and of the trials.
        workers: 1 trains in this process. More train in as many processes, each on a GPU of its own where there are
            some; `train` must then be a function of a module, which they import.
        out: the folder of the search's files. The same call goes on with what is there. None: a temporary folder,
            which is kept, and named, only if the search is stopped.
        loss: arguments of `SurrogateLoss` such as `{"ignore_index": 255, "mode": "binary"}`.
        hours: how long it may take, in place of steps and trials.
        progress: show a bar.
        trials_per_gpu: how many workers may share a GPU.
        settings: any other setting of a search: rescore, sampler, family, pieces, conventions, ...

    >>> def train(loss):  # a training would be here
    ...     return {"mIoU": 1 - sum((x - 0.4) ** 2 for x in loss.surrogate.theta), "BF1": 0.5}
    >>> found = search(train, "mIoU", steps=2, trials_per_step=4, progress=False)
    >>> len(found.trials), found.trials[0].scores["BF1"], found.surrogate.metric
    (8, 0.5, 'mIoU')
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # else it would train beside the search
        what = "a worker process imports the script, and so begins the search anew"
        raise InputError(what, where="autoseg.search", cure="call it below `if __name__ == '__main__':`")
    workers, progress = whole_number(workers, "workers", least=1), truth(progress, "progress")
    if out is not None and not isinstance(out, str | os.PathLike):
        raise InputError(f"found {out!r}", where="out", expected="the path of a folder")
    if preset is None and settings.get("sampler", "ppo2") == "ppo2":
        preset = "recommended"
    given = {"steps": steps, "trials_per_step": trials_per_step, "preset": preset, "seed": seed}
    known = {key: value for key, value in given.items() if value is not None}
    wanted = parse(Search, {"metric": metric, **known, **settings}, "autoseg.search")
    objective = TrainingFunction(_checked(train, workers), wanted.seed, _check_options({} if loss is None else loss))
    objective.loss(surrogate(wanted, search_space(wanted).initial))  # a wrong argument is told before the search begins
    with _folder(out) as folder:
        chosen = run(folder, wanted, objective, workers, progress, trials_per_gpu, hours, here=workers == 1)
        files = Folder(folder)
        used = files.search()
        history = files.history(used.total_steps)
        rescored = files.scored("rescore") if used.rescore else None
    return SearchResult(chosen, used, history, rescored, None if out is None else Path(out))


class TrialResult(NamedTuple):
    """What one trial was and scored; `score` is None if the training collapsed without one."""

    number: int
    step: StepName
    score: float | None
    scores: dict[str, float]
    diverged: bool
    theta: list[float]


@dataclass(frozen=True, repr=False)
class SearchResult:
    """A search that is done: the answer, and all trials.

    `surrogate` is the answer, `loss()` the loss to train with, `trials` what each trial scored, `study` the same as
    an Optuna study (for its plots), and `folder` where the files are, if they are kept.
    """

    surrogate: Surrogate
    search: Search
    history: Sequence[Scored] = field(compare=False)
    rescored: Scored | None = None
    folder: Path | None = None

    def loss(self, **options: Any) -> SurrogateLoss:
        """Return the answer as a loss; the options are those of `SurrogateLoss`, such as `ignore_index`."""
        from autoseg.losses.surrogate_loss import SurrogateLoss

        return SurrogateLoss(self.surrogate, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the answer as `surrogate.json`."""
        self.surrogate.save(path)

    @property
    def trials(self) -> list[TrialResult]:
        """All trials in the order of their numbers; rescored answers come last."""
        steps = [*self.history, *([self.rescored] if self.rescored else [])]
        return [
            TrialResult(trial.number, step.proposals.step, file.score, file.scores, file.diverged, trial.theta)
            for step in steps
            for trial, file in zip(step.proposals.trials, step.files, strict=True)
        ]

    @functools.cached_property
    def study(self) -> Study:
        """The trials of the steps as an Optuna study in memory."""
        return study_of(self.search, self.history)

    def __repr__(self) -> str:
        source = self.surrogate.source.partition(": ")[2].partition(";")[0]
        first, last = self.history[0].average, self.history[-1].average
        trials, steps = sum(len(step.scores) for step in self.history), len(self.history)
        return (
            f"SearchResult({self.search.metric}, {trials} trials in {steps} step{'s' * (steps > 1)}, mean score "
            f"{first:.4g} in the first and {last:.4g} in the last,\n  answer: {source})"
        )


# ------------------------------------------------------------------------------------------------------- the function


@dataclass(frozen=True)
class TrainingFunction:
    """A user's training as an `Objective` of a search."""

    train: Training
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def fingerprint(self, search: Search, proposal: Surrogate) -> str:
        """Return the fingerprint of a proposal's score; of the training it has the code, but not what that calls."""
        options = {name: repr(value) for name, value in self.options.items()}
        content = {"theta": proposal.theta, "search": search_fingerprint(search), "loss": options}
        return fingerprint({**content, "training": identity(self.train)})

    def loss(self, proposal: Surrogate) -> SurrogateLoss:
        """Return the loss that a trial trains with."""
        from autoseg.losses.surrogate_loss import SurrogateLoss

        return SurrogateLoss(proposal, **self.options)

    def __call__(self, proposal: Surrogate, number: int, watch: Watch | None = None) -> dict[str, Any]:
        """Train to the end, and return the score and all scores."""
        with _seeded(self.seed):
            found = self.train(self.loss(proposal))
        return _report(found, proposal.metric)


def _checked(train: Training, workers: int) -> Training:
    """Return the function, if it can be called with a loss, and in worker processes where there are some."""
    if not callable(train):
        raise InputError(
            f"found {train!r}", where="train", expected="a function train(loss) that trains, and returns a score"
        )
    try:
        inspect.signature(train).bind(None)
    except TypeError as error:
        raise InputError(
            f"cannot be called with a loss alone ({error})", where="train", expected="train(loss)"
        ) from None
    except ValueError:
        return train  # some functions in C do not tell their arguments
    if workers > 1 and (why := _stays_here(train)):
        raise InputError(
            f"{why}, so worker processes cannot import it",
            where="train",
            cure="write it into a file, such as my_task.py, and import it from there; or train with workers=1",
        )
    return train


def _stays_here(train: Training) -> str:
    """Return why a function cannot be sent to a process that starts anew; nothing, if it can."""
    try:
        pickle.dumps(train)
    except Exception as error:  # whatever the objects that it holds raise
        name = getattr(train, "__qualname__", "")
        kind = "it is a lambda" if "<lambda>" in name else "it is made inside another function"
        return kind if "<" in name else f"it cannot be pickled ({error})"
    function = train.func if isinstance(train, functools.partial) else train
    module = getattr(function, "__module__", None) or type(function).__module__
    if module == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        return "it is defined in this notebook or prompt"
    return ""


def _check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse arguments that `SurrogateLoss` does not have, or that the search itself decides."""
    from autoseg.losses.surrogate_loss import SurrogateLoss

    if not isinstance(options, Mapping):
        raise InputError(f"found {options!r}", where="loss", expected="arguments of SurrogateLoss by name")
    own = ("theta", "family", "control_points", "layout", "pieces", "monotone", "truth_table", "source")
    named = {*inspect.signature(SurrogateLoss).parameters, *Conventions.model_fields}
    known = named - {"metric", "others", *own}
    for name in options:
        if name not in known:
            raise unknown("argument of a loss", str(name), known, where="loss")
    return dict(options)


def _report(found: Any, metric: str) -> dict[str, Any]:
    """Return what a training returned as a report of a trial: the score, and all scores that are numbers."""
    if not isinstance(found, Mapping):
        return {"score": _number(found, metric)}
    named = {str(name): value for name, value in found.items()}
    own = next((name for name in named if name.casefold() == metric.casefold()), None)
    if own is None:
        raise InputError(
            f"the training returned {', '.join(named) or 'nothing'}", where="train", expected=f"a score of {metric}"
        )
    scores = {metric if name == own else name: value for name, value in named.items()}
    numbers = {name: float(value) for name, value in scores.items() if _is_number(value)}
    return {"score": _number(scores[metric], metric), "scores": numbers}


def _is_number(value: Any) -> bool:
    """Whether a value is one number: Python's, NumPy's or a tensor's."""
    if isinstance(value, bool | str | bytes) or value is None:
        return False
    return isinstance(value, Real) or getattr(value, "shape", None) == ()


def _number(value: Any, metric: str) -> float:
    if not _is_number(value):
        raise InputError(
            f"the training returned {type(value).__name__}",
            where="train",
            expected=f"the score of {metric}, or a mapping of scores by name",
        )
    return float(value)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed all random numbers, so that every trial begins alike, and set them back afterwards."""
    import numpy as np
    import torch

    old = np.random.mtrand._rand  # NumPy's old random numbers, which many trainings still use
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    before = random.getstate(), old.get_state(), torch.get_rng_state()
    random.seed(seed)
    old.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        old.set_state(before[1])
        torch.set_rng_state(before[2])
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)


@contextmanager
def _folder(out: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Give the folder of the files; a temporary one is kept only if the search is stopped with scores in it."""
    if out is not None:
        yield Path(out)
        return
    folder = Path(tempfile.mkdtemp(prefix="autoseg-search-"))
    try:
        yield folder
    except BaseException:
        if scored := len(list(folder.glob("*/trial-*.json"))):
            _log.warning(f"The scores of {scored} trials are kept: the same call with out='{folder}' goes on.")
        else:
            shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)
