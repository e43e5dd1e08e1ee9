"""A whole search on one machine: worker processes, one bar of progress, and a rerun that continues where it stopped.

It writes the files that the pipeline writes, through the same functions; all it adds is who trains the trials.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tqdm import tqdm

from autoseg.config import Search
from autoseg.errors import InputError
from autoseg.files import fingerprint, writing
from autoseg.plugins import import_module
from autoseg.search import (
    Folder,
    Proposals,
    Scored,
    Trial,
    TrialScore,
    ask,
    identity,
    rescore,
    select,
    surrogate,
    total_steps,
    write_journal,
)
from autoseg.surrogate_json import Surrogate


class Objective(Protocol):
    """What scores a trial; it is sent to worker processes, so it is small and loads what it needs when called."""

    def mark(self, search: Search, trial: Trial) -> str:
        """Return the fingerprint of all that the trial's score depends on."""
        ...

    def __call__(self, proposal: Surrogate, number: int) -> Any:
        """Return the score, or a mapping with `score` and, if wanted, `scores` and `diverged`."""
        ...


@dataclass(frozen=True)
class Function:
    """A user's objective, named as "module:function"."""

    spec: str

    def mark(self, search: Search, trial: Trial) -> str:
        """Return the fingerprint of a trial's score; what the function does is known by its name only."""
        return fingerprint({"theta": trial.theta, "search": identity(search), "objective": self.spec})

    def __call__(self, proposal: Surrogate, number: int) -> Any:
        """Call the function."""
        return load_objective(self.spec)(proposal, number)


def load_objective(spec: str) -> Callable[[Surrogate, int], Any]:
    """Return the function that "module:function" names; modules of the working directory are found too.

    >>> load_objective("math:hypot").__name__
    'hypot'
    """
    module, colon, name = spec.partition(":")
    if not (module and colon and name):
        raise InputError(f"objective '{spec}': expected module:function, such as my_task:train_and_score.")
    found = getattr(import_module(module, f"objective '{spec}'"), name, None)
    if found is None:
        raise InputError(f"objective '{spec}': module {module} has no '{name}'.")
    if not callable(found):
        raise InputError(f"objective '{spec}': '{name}' is not a function.")
    return found


def run(
    folder: str | os.PathLike[str], search: Search, objective: str | Objective, workers: int = 1, progress: bool = True
) -> Surrogate:
    """Run a search to its end, or continue it, and write `surrogate.json`.

    Args:
        folder: where the search's files are or will be.
        search: its settings; a folder that was started with others is refused.
        objective: "module:function"; the function gets a `Surrogate` and the trial's number and returns the score on
            the hold-out set, higher being better, or a mapping with `score` and, if wanted, `scores` and `diverged`.
            A score that is not finite is a collapsed training: it is recorded as such and counts as the worst of its
            step. Or an `Objective`, such as `autoseg.trials.ProxyObjective`. A folder with scores of another
            objective, task or settings is refused.
        workers: how many processes score trials at once.
        progress: show a bar.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers must be a whole number of at least 1, not {workers!r}.")
    if isinstance(objective, str):
        load_objective(objective)
        objective = Function(objective)
    files = Folder(folder)
    search = files.start(search)
    steps = total_steps(search)
    history: list[Scored] = []
    bar = tqdm(desc=search.name, unit="trial", disable=not progress, smoothing=0.05)
    # Spawned, so that whatever the objective loads (CUDA above all) starts clean in every worker.
    spawn = multiprocessing.get_context("spawn")
    with bar, ProcessPoolExecutor(workers, mp_context=spawn, initializer=_end_with_parent) as pool:
        for step in range(1, steps + 1):
            proposals = ask(search, history)
            bar.total = steps * len(proposals.trials) + search.rescore
            _score_all(files, search, proposals, objective, pool, bar)
            history.append(files.scored(step))
            write_journal(files, search, history)
            bar.set_postfix_str(f"step {step}/{steps}, best average {max(s.average for s in history):.4g}")
        rescored = None
        if search.rescore:
            proposals = rescore(search, history)
            bar.total = bar.n + len(proposals.trials)
            _score_all(files, search, proposals, objective, pool, bar)
            rescored = files.scored("rescore")
    chosen = select(search, history, rescored)
    chosen.save(files.path / "surrogate.json")
    return chosen


def _score_all(
    files: Folder, search: Search, proposals: Proposals, objective: Objective, pool: ProcessPoolExecutor, bar: tqdm
) -> None:
    """Score the trials of a step that have no score yet; scores of another objective are no step of this search."""
    files.write(proposals)
    proposals = files.proposals(proposals.step)  # another machine's may differ in the last digits, and was scored
    done = {s.number: s.fingerprint for s in files.scores(proposals.step)}
    marks = {t.number: objective.mark(search, t) for t in proposals.trials}
    for number in done.keys() & marks.keys():
        if done[number] != marks[number]:
            raise InputError(
                f"{files.score_path(proposals.step, number)}: scored by another objective, or on another task or with "
                "other settings of it; give them back, or search in a new folder."
            )
    todo = [t for t in proposals.trials if t.number not in done]
    bar.update(len(proposals.trials) - len(todo))
    futures = {}
    for t in todo:
        proposal = surrogate(search, t.theta, f"trial {t.number}")
        job = pool.submit(_score, proposal, t.number, marks[t.number], objective, files, proposals.step)
        futures[job] = t.number
    try:
        for future in as_completed(futures):
            if error := future.exception():
                raise InputError(
                    f"trial {futures[future]} failed with {type(error).__name__}: {error}; the scores so far are kept, "
                    "and the same command continues."
                ) from error
            bar.update()
    finally:
        for future in futures:
            future.cancel()


def _end_with_parent() -> None:
    """Let a worker end when the search is killed: it would otherwise wait for work, and hold its GPU, for ever."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _score(
    proposal: Surrogate, number: int, mark: str, objective: Objective, files: Folder, step: int | Literal["rescore"]
) -> None:
    """Score one trial in a worker and write its file at once: a kill costs the running trials only."""
    result = objective(proposal, number)
    report = dict(result) if isinstance(result, Mapping) else {"score": result}
    if not math.isfinite(report["score"]):
        report |= {"score": None, "diverged": True}
    if "scores" in report:
        report["scores"] = {name: value for name, value in report["scores"].items() if math.isfinite(value)}
    with writing(files.step(step)):
        files.write_score(step, TrialScore(number=number, metric=proposal.metric, fingerprint=mark, **report))
