"""Run trials: a chunk of a step one after the other, or a whole search in worker processes on this machine.

Both write the same files by the same functions, so that each continues what the other began.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from autoseg import gpus
from autoseg.errors import InputError, whole_number
from autoseg.files import fingerprint, writing
from autoseg.losses.surrogate import Surrogate
from autoseg.plugins import import_callable
from autoseg.progress import bar
from autoseg.search.budget import described, planned, steps_that_fit, waves
from autoseg.search.early import Look, Watch
from autoseg.search.folder import Folder, Link
from autoseg.search.journal import write_journal
from autoseg.search.ppo2 import is_number
from autoseg.search.records import Proposals, Scored, StepName, Trial, TrialScore
from autoseg.search.settings import Search
from autoseg.search.space import search_fingerprint, search_space, surrogate
from autoseg.search.steps import ask, rescore, select
from autoseg.search.times import write_time

_log = logging.getLogger(__name__)

FITS = 4
"""The answer takes at most so many times as long as asking for a step: it fits as many models, without `rescore` 2."""


class Objective(Protocol):
    """What scores a trial. It is sent to worker processes, so it is small and loads what it needs when called."""

    def fingerprint(self, search: Search, proposal: Surrogate) -> str:
        """Return the fingerprint of everything that the proposal's score depends on; it trains nothing."""
        ...

    def __call__(self, proposal: Surrogate, number: int, watch: Watch | None = None) -> Any:
        """Return the score, or a mapping: `score` and, if wanted, `scores`, `diverged` and `device`.

        Where the device is told, the trial's time is written too. `watch` is told the score on the way; where it says
        that the trial is to be ended, what is returned has no score. Where the objective has an attribute `chains` that
        is true, it also takes a `link`: it starts from that network, writes its own, and returns its checksum as
        `weights`. It may have a method `longer`, which returns an objective whose trainings are so many times as long:
        the setting `rescore_length` needs it.
        """
        ...


@dataclass(frozen=True)
class UserFunction:
    """A user's objective, named as "module:function"."""

    spec: str

    def fingerprint(self, search: Search, proposal: Surrogate) -> str:
        """Return the fingerprint of a proposal's score; of the function it holds only the name."""
        return fingerprint({"theta": proposal.theta, "search": search_fingerprint(search), "objective": self.spec})

    def __call__(self, proposal: Surrogate, number: int, watch: Watch | None = None) -> Any:
        """Call the function; if it has a parameter of that name, with `watch`, by which trials can be ended early."""
        function = load_objective(self.spec)
        if "watch" in inspect.signature(function).parameters:
            return function(proposal, number, watch=watch or Watch())
        return function(proposal, number)


def load_objective(spec: str) -> Callable[..., Any]:
    """Return the function that "module:function" names; modules of the working directory are found too.

    >>> load_objective("math:hypot").__name__
    'hypot'
    """
    return import_callable(spec, "objective")


# ---------------------------------------------------------------------------------------------------------- one trial


@dataclass(frozen=True)
class Job:
    """A trial to be scored, and where its score is written."""

    folder: Path
    number: int
    proposal: Surrogate
    fingerprint: str
    looks: tuple[Look, ...] = ()
    link: Link | None = None  # in a chained search

    def run(self, objective: Objective) -> None:
        """Score the trial and write its files at once: a kill costs only the trials that are running."""
        began = time.perf_counter()
        watch = Watch(self.looks)
        given = (watch,) if self.looks else ()
        chained: dict[str, Any] = {"link": self.link} if self.link else {}
        result = objective(self.proposal, self.number, *given, **chained)
        report = dict(result) if isinstance(result, Mapping) else {"score": result}
        device = report.pop("device", None)
        if (look := watch.ended) is not None:
            report = {"score": look.predicted(watch.partial[look.name]), "ended": look.at}
        report["partial"] = watch.partial
        if not math.isfinite(report["score"]):
            report |= {"score": None, "diverged": True}
        if "scores" in report:
            report["scores"] = {name: value for name, value in report["scores"].items() if math.isfinite(value)}
        score = TrialScore(number=self.number, metric=self.proposal.metric, fingerprint=self.fingerprint, **report)
        with writing(self.folder):
            score.save(self.folder / f"trial-{self.number}.json")
            if device is not None:
                trained = watch.ended.at if watch.ended else 1.0
                write_time(self.folder, self.number, time.perf_counter() - began, device, trained)


def unscored(files: Folder, step: Proposals, trials: Sequence[Trial], objective: Objective) -> list[Job]:
    """Return the trials of a step that have no score of this objective yet; scores of another one are set aside."""
    search, looks = step.search, step.looks
    proposals = {t.number: surrogate(search, t.theta, f"{search.name} trial {t.number}") for t in trials}
    prints = {number: objective.fingerprint(search, proposal) for number, proposal in proposals.items()}
    if looks:  # the bars decide whether a trial is ended
        watched = [look.model_dump(mode="json") for look in looks]
        prints = {number: fingerprint({"trial": print_, "looks": watched}) for number, print_ in prints.items()}
    link = None
    if search.chained:
        check_chains(objective)
        link = files.link(step)
        place = {"step": link.step, "steps": link.steps, "start": link.weights}
        prints = {number: fingerprint({"trial": print_, **place}) for number, print_ in prints.items()}
    missing = files.unscored(step.step, prints)
    if link and not missing and len(files.scores(step.step)) == len(step.trials):
        scored = files.scored(step.step)
        if scored.best.number in prints and files.lost_network(scored):
            missing = [files.set_aside_lost(scored)]
    if link and missing:
        files.check_start(link)
    jobs = [Job(files.step(step.step), number, proposals[number], prints[number], tuple(looks)) for number in missing]
    if link is None:
        return jobs
    out = {job.number: files.weights_path(step.step, job.number) for job in jobs}
    return [replace(job, link=replace(link, out=out[job.number], fingerprint=job.fingerprint)) for job in jobs]


def check_chains(objective: Objective) -> None:
    """Raise an error if an objective cannot hand networks on."""
    if not getattr(objective, "chains", False):
        raise InputError(
            "'am-lfs' hands networks from step to step, which a function of one's own does not",
            where="sampler",
            cure="search with a proxy task (`autoseg search --data`), or use another sampler",
        )


def at_length(objective: Objective, length: float) -> Objective:
    """Return the objective whose trainings are so many times as long."""
    if length == 1:
        return objective
    longer: Callable[[float], Objective] | None = getattr(objective, "longer", None)
    if longer is None:
        raise InputError(
            f"found {length:g}, but only a proxy task can train for longer than a trial, not a function of one's own",
            where="rescore_length",
            cure="leave it out, or search with a proxy task (`autoseg search --data`)",
        )
    return longer(length)


def run_chunk(
    folder: str | os.PathLike[str], step: StepName, objective: Objective, chunk: tuple[int, int] = (0, 1)
) -> list[Path]:
    """Score part `chunk` = (k, n) of a step's proposals, one after the other: trials k, k + n, ...

    Return their score files. A trial that has a score with the same fingerprint is not scored again.
    """
    k, n = chunk
    if not 0 <= k < n:
        raise InputError(f"found {k}/{n}", where="chunk", expected="K/N with 0 <= K < N")
    files = Folder(folder)
    proposals = files.proposals(step)
    objective = at_length(objective, proposals.length)
    trials = proposals.trials[k::n]
    for job in unscored(files, proposals, trials, objective):
        job.run(objective)
    return [files.score_path(step, trial.number) for trial in trials]


# ------------------------------------------------------------------------------------------------------ a whole search


def run(
    folder: str | os.PathLike[str],
    search: Search,
    objective: str | Objective,
    workers: int = 1,
    progress: bool = True,
    trials_per_gpu: int = 1,
    hours: float | None = None,
    here: bool = False,
) -> Surrogate:
    """Run a search to its end, or continue it, and write `surrogate.json`.

    Args:
        folder: where the search's files are or will be.
        search: its settings; a folder that was started with others is refused.
        objective: "module:function"; the function gets a `Surrogate` and the trial's number and returns the score on
            the hold-out set, higher being better, or a mapping with `score` and, if wanted, `scores` and `diverged`.
            A score that is not finite is a collapsed training: it is recorded as such and counts as the worst of its
            step. Or an `Objective`, such as `autoseg.training.trial.ProxyObjective`. Scores of another objective, task
            or setting are set aside, and their trials scored anew.
        workers: how many processes score trials at once. Where there are GPUs, each takes one (`autoseg.gpus`), and no
            more are started than these have room for.
        progress: show a bar.
        trials_per_gpu: how many workers may share a GPU; 0: they take none, as trials train on the CPU.
        hours: how long it may take. A new search is planned for it: a trial is timed first, and what the settings do
            not say of steps and trials follows. After every step the number of steps follows from the time that the
            steps took, unless another number would make it another search; steps that the settings say are the most.
            Continued, the hours are for what is left of its plan.
        here: score the trials in this process, one after the other, and start no worker.
    """
    if hours is not None and not (is_number(hours) and hours > 0):
        raise InputError(f"found {hours!r}", where="hours", expected="a positive number")
    workers = whole_number(workers, "workers", least=1)
    trials_per_gpu = whole_number(trials_per_gpu, "trials_per_gpu")
    if isinstance(objective, str):
        load_objective(objective)
        objective = UserFunction(objective)
    if search.rescore:
        at_length(objective, search.rescore_length)  # an error at once, and not after hours
    files = Folder(folder)
    continued = (files.path / "search.json").exists()
    if hours is not None and continued:
        search = _with_plan_of(files.search(), search)
    elif hours is None:
        search = files.start(search)
    room = len(gpus.visible()) * trials_per_gpu
    if 0 < room < workers and not here:
        _log.info(f"{room} of {workers} workers are started, as many as the GPUs have room for (see trials_per_gpu).")
        workers = room
    prior = files.prior(search)
    most = math.inf  # steps that are done at most: what the settings say, and what was done, is kept
    began = time.perf_counter()
    history: list[Scored] = []
    shown = bar(search.name if progress else None, "trial", smoothing=0.05)
    with shown, _workers(0 if here else workers, trials_per_gpu) as pool:
        if hours is not None:
            plan = search if continued else _plan(search, objective, pool, workers, 3600 * hours)
            most = plan.total_steps if continued or search.steps else math.inf
            search = files.start(plan)
        steps, step, spent = search.total_steps, 0, 0.0
        while step < steps:
            step, from_here = step + 1, time.perf_counter()
            proposals = ask(search, history, prior)
            asking = time.perf_counter() - from_here
            shown.total = steps * len(proposals.trials) + search.most_rescored
            trained = _score_all(files, proposals, history, objective, pool, shown)
            history.append(files.scored(step))
            write_journal(files, search, history)
            if (
                hours is not None and trained
            ):  # a step that was scored before costs nothing, and says nothing of the time
                spent = max(time.perf_counter() - from_here, spent)
                left = 3600 * hours - (time.perf_counter() - began) - FITS * asking
                pace = spent / waves(len(proposals.trials), workers)
                steps = int(min(steps_that_fit(search, step, left, pace, workers), most))
            shown.set_postfix_str(f"step {step}/{steps}, best average {max(s.average for s in history):.4g}")
        if steps != search.total_steps:
            search = files.start(search.model_copy(update={"steps": steps}))
        rescored = None
        if search.rescore:
            proposals = rescore(search, history)
            shown.total = shown.n + len(proposals.trials)
            _score_all(files, proposals, history, objective, pool, shown)
            rescored = files.scored("rescore")
    chosen = select(search, history, rescored)
    files.finish(chosen, history)
    return chosen


def _with_plan_of(known: Search, given: Search) -> Search:
    """Return the settings with the steps and trials that the search was started with, where they say none."""
    keys = ("steps", "trials_per_step")
    return given.model_copy(update={key: getattr(known, key) for key in keys if getattr(given, key) is None})


@contextmanager
def _workers(count: int, trials_per_gpu: int) -> Iterator[ProcessPoolExecutor | None]:
    """Start worker processes; none, if this process is to do their work.

    An interrupt ends them at once: what they are training is lost, what is scored is on disk.
    """
    if not count:
        yield None
        return
    # Spawned, so that whatever the objective loads (CUDA above all) starts clean in every worker.
    spawn = multiprocessing.get_context("spawn")
    start = functools.partial(_start_worker, trials_per_gpu)
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=start) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise


def _plan(
    search: Search, objective: Objective, pool: ProcessPoolExecutor | None, workers: int, budget: float
) -> Search:
    """Return the search with what fits into a budget of seconds, and say so."""
    start = surrogate(search, search_space(search).initial, f"{search.name}: how long a trial takes")
    began = time.perf_counter()
    if pool is None:
        seconds = _seconds(objective, start)
    else:
        seconds = max(pool.map(_seconds, [objective] * workers, [start] * workers))
    took = time.perf_counter() - began
    if took >= budget:
        raise InputError(
            f"timing a trial took {took:.3g} s, and {budget / 3600:.3g} h are {budget:.3g} s",
            where="hours",
            cure="give more hours, or a shorter proxy training",
        )
    plan = planned(search, budget - took, seconds, workers)
    _log.warning(f"The plan: {described(plan, seconds, workers)}.")
    return plan


def time_trial(search: Search, objective: Objective) -> tuple[float, float]:
    """Return how long the first trial of a process takes, which loads much, and how long each later one does."""
    start = surrogate(search, search_space(search).initial, f"{search.name}: how long a trial takes")
    return _once(objective, start), _once(objective, start)


def _seconds(objective: Objective, start: Surrogate) -> float:
    """Return how long a trial takes in a worker that has loaded all it needs."""
    _once(objective, start)
    return _once(objective, start)


def _once(objective: Objective, start: Surrogate) -> float:
    began = time.perf_counter()
    objective(start, 0)
    return max(time.perf_counter() - began, 1e-6)


def _score_all(
    files: Folder,
    proposals: Proposals,
    history: Sequence[Scored],
    objective: Objective,
    pool: ProcessPoolExecutor | None,
    shown: tqdm,
) -> int:
    """Write a step's proposals and score those that have no score yet; return how many these were."""
    files.begin(proposals, history)
    proposals = files.proposals(proposals.step)  # those on disk, which may differ in the last digits
    objective = at_length(objective, proposals.length)
    jobs = unscored(files, proposals, proposals.trials, objective)
    shown.update(len(proposals.trials) - len(jobs))
    outcomes = _run_here(jobs, objective) if pool is None else _run_in(pool, jobs, objective)
    with closing(outcomes):
        for number, error in outcomes:
            if error is not None:
                raise _failed(number, error) from error
            shown.update()
    return len(jobs)


Outcomes = Generator[tuple[int, BaseException | None], None, None]


def _run_here(jobs: Sequence[Job], objective: Objective) -> Outcomes:
    """Run jobs one after the other; yield each one's number, and its error if it failed."""
    for job in jobs:
        failed = None
        try:
            job.run(objective)
        except Exception as error:
            failed = error
        yield job.number, failed


def _run_in(pool: ProcessPoolExecutor, jobs: Sequence[Job], objective: Objective) -> Outcomes:
    """Run jobs in worker processes; yield as `_run_here` does. Those that have not begun when it is closed do not."""
    futures = {pool.submit(job.run, objective): job.number for job in jobs}
    try:
        for future in as_completed(futures):
            yield futures[future], future.exception()
    finally:
        for future in futures:
            future.cancel()


def _failed(number: int, error: BaseException) -> InputError:
    if isinstance(error, InputError):
        return error.at(f"trial {number}")
    what, cure = (
        f"failed with {type(error).__name__}: {error}",
        "the scores so far are kept, and the same command continues",
    )
    if isinstance(error, BrokenProcessPool):
        what = "its worker process ended suddenly"
        cure = (
            "if a script calls the search, do so below `if __name__ == '__main__':`; else look above for the reason, "
            f"such as too little memory; {cure}"
        )
    return InputError(what, where=f"trial {number}", cure=cure)


_worker = ExitStack()  # what a worker process holds until it ends


def _start_worker(trials_per_gpu: int) -> None:
    """Take a GPU, and end the worker when the search is killed; else it would wait, and keep its GPU, for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C goes to all processes of a terminal; the search ends these
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
    if trials_per_gpu:
        _worker.enter_context(gpus.taken(sharing=trials_per_gpu))
