"""Changes to Snakemake's SLURM executor: it waits if SLURM does not answer for a while.

A run on a cluster lasts days. In version 2.8 of the executor plugin five things end or hang it, or run a job twice:

- when every status query of a cycle fails (slurmctld is restarted, squeue times out), the executor forgets all active
  jobs, and Snakemake waits for ever;
- when sbatch refuses a job (slurmctld is away, a limit of submitted jobs is reached), the job fails at once;
- when sbatch fails although SLURM has taken the job (the answer came too late), the job is submitted a second time;
- a node that has failed is not used again in the whole run (where sacct answers), until no node is left;
- when SLURM has forgotten a job (it ended while slurmctld was away, and MinJobAge is over), Snakemake waits for it for
  ever.

`make_patient` wraps the executor's own methods; nothing of the plugin is copied. tests/test_patience.py fails when the
plugin changes what is relied on here. tests/slurm/test_slurm_stumbles.py and tests/slurm/test_slurm_administrators.py
run all of it on a real SLURM.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any

from autoseg.errors import InputError
from autoseg.pipeline import slurm

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds between two submissions of a job that SLURM refuses
GIVE_UP = 24 * 3600.0  # seconds after which a refusal is a failure
FORGOTTEN = 900.0  # seconds after which a job that SLURM does not know is taken for lost
EXCLUDED = 3600.0  # seconds for which a node that has failed is not used
FORGOTTEN_VARIABLE = "AUTOSEG_SLURM_FORGOTTEN"  # tests set another number

# What sbatch says when waiting cannot help: the job itself is wrong.
NO_NODE = "requested node configuration is not available"
FINAL = (
    "invalid",
    NO_NODE,
    "requested partition configuration not available",
    "memory specification can not be satisfied",
    "unrecognized option",
    "access/permission denied",
)
PASSING = ("invalid authentication", "invalid user")  # munge or the name service is away


def pauses() -> Iterator[float]:
    """Yield growing pauses, in seconds, until it is time to give up.

    >>> first = pauses(); [next(first) for _ in range(4)]
    [5.0, 10.0, 20.0, 40.0]
    >>> sum(pauses()) >= GIVE_UP
    True
    """
    total, pause = 0.0, FIRST_PAUSE
    while total < GIVE_UP:
        yield pause
        total, pause = total + pause, min(2 * pause, LONGEST_PAUSE)


def make_patient(plugin: Any) -> None:
    """Wrap the executor of the plugin's module; a second call changes nothing."""
    executor = plugin.Executor
    if hasattr(executor, "patience"):
        return
    executor.patience = property(_patience)
    plugin.query_job_status = _remember_answer(plugin.query_job_status)
    executor.check_active_jobs = _keep_jobs(executor.check_active_jobs)
    for name in ("report_job_success", "report_job_error"):
        setattr(executor, name, _note_settled(getattr(executor, name)))
    executor.run_job = _submit_until_taken(executor.run_job, plugin.get_job_wildcards)
    executor._report_job_submission_threadsafe = _note_taken(executor._report_job_submission_threadsafe)
    executor._report_job_error_threadsafe = _hold_back_refusals(executor._report_job_error_threadsafe)
    for name in ("cancel_jobs", "shutdown"):
        setattr(executor, name, _stop_waiting(getattr(executor, name)))


class Patience:
    """What the wrappers of one executor know."""

    def __init__(self) -> None:
        self.settled: set[str] = set()  # SLURM's ids of the jobs that were reported as done or failed
        self.taken: set[str] = set()  # ids of the jobs that were submitted
        self.failed: dict[str, float] = {}  # node -> since when it is not used
        self.missing: dict[str, float] = {}  # id -> since when SLURM answers, but does not know the job
        self.silent_since: float | None = None  # when SLURM began not to answer
        self.of_snakemake: Exception | None = None  # raised by Snakemake when a job's end was reported to it
        self.ending = threading.Event()
        self.forgotten = float(os.environ.get(FORGOTTEN_VARIABLE, FORGOTTEN))


def _patience(executor: Any) -> Patience:
    return executor.__dict__.setdefault("_patience", Patience())


# ------------------------------------------------------------------------------------------------------ status of jobs

_answer: dict[str, str] | None = None  # of the last status query: SLURM's id -> state; None: it did not answer


def _remember_answer(query: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(query)
    async def remembered(*arguments: Any, **keywords: Any) -> Any:
        global _answer
        answer = await query(*arguments, **keywords)
        _answer = answer[0]
        return answer

    return remembered


def _note_settled(report: Callable[..., None]) -> Callable[..., None]:
    @wraps(report)
    def noted(executor: Any, job: Any, *arguments: Any, **keywords: Any) -> None:
        executor.patience.settled.add(job.external_jobid)
        try:
            report(executor, job, *arguments, **keywords)
        except Exception as error:
            executor.patience.of_snakemake = error
            raise

    return noted


def _keep_jobs(check: Callable[..., Any]) -> Callable[..., Any]:
    """Make `check_active_jobs` hand back every job that it neither reported nor handed back itself."""

    @wraps(check)
    async def kept(executor: Any, active_jobs: list[Any]) -> AsyncIterator[Any]:
        global _answer
        patience: Patience = executor.patience
        _answer = None
        waiting = {job.external_jobid: job for job in active_jobs}
        reason = "it does not answer"
        try:
            async for job in check(executor, active_jobs):
                if _lost(patience, job):
                    message = f"SLURM has not known the job '{job.external_jobid}' for {patience.forgotten:.0f} s."
                    executor.report_job_error(job, msg=message)
                else:
                    del waiting[job.external_jobid]
                    yield job
        except Exception as error:  # it would end the thread that watches the jobs, and with it the run
            if error is patience.of_snakemake:
                raise
            reason = str(error)
        _tell(executor, patience, reason if active_jobs and _answer is None else "")
        for number, job in waiting.items():
            if number not in patience.settled:
                yield job

    return kept


def _lost(patience: Patience, job: Any) -> bool:
    """Return whether SLURM has answered for long enough without knowing a job."""
    number = job.external_jobid
    if _answer is None or number in _answer:
        patience.missing.pop(number, None)
        return False
    return time.monotonic() - patience.missing.setdefault(number, time.monotonic()) > patience.forgotten


def _tell(executor: Any, patience: Patience, silence: str) -> None:
    """Say once that SLURM does not answer, and once that it does again."""
    if silence and patience.silent_since is None:
        patience.silent_since = time.monotonic()
        executor.logger.warning(f"autoseg: SLURM cannot be asked for the state of jobs ({silence}); waiting for it.")
    elif not silence and patience.silent_since is not None:
        seconds = time.monotonic() - patience.silent_since
        patience.silent_since = None
        executor.logger.warning(f"autoseg: SLURM answers again, after {seconds:.0f} s.")


# ---------------------------------------------------------------------------------------------------------- submission

_submission = threading.local()  # of this thread: what SLURM refused, while `run_job` runs


def _hold_back_refusals(report: Callable[..., None]) -> Callable[..., None]:
    @wraps(report)
    def held(executor: Any, job: Any, msg: str) -> None:
        refusals = getattr(_submission, "refusals", None)
        if refusals is None:
            report(executor, job, msg)
        else:
            refusals.append((job, msg))

    return held


def _note_taken(report: Callable[..., None]) -> Callable[..., None]:
    @wraps(report)
    def noted(executor: Any, info: Any) -> None:
        executor.patience.taken.add(info.external_jobid)
        report(executor, info)

    return noted


def _submit_until_taken(run_job: Callable[..., None], wildcards_of: Callable[[Any], str]) -> Callable[..., None]:
    @wraps(run_job)
    def submitted(executor: Any, job: Any) -> None:
        patience: Patience = executor.patience
        waits = pauses()
        while not patience.ending.is_set():
            _use_failed_nodes(executor, after=EXCLUDED)
            refusals: list[tuple[Any, str]] = []
            _submission.refusals = refusals
            try:
                run_job(executor, job)
            finally:
                _submission.refusals = None
            if not refusals:
                return
            info, message = refusals[0]
            wildcards = wildcards_of(job)
            number = _wait(executor, job, wildcards, message, waits)
            if number is None:
                executor._report_job_error_threadsafe(info, message)
                return
            if number:
                executor.logger.warning(f"autoseg: SLURM has taken the job of rule {job.name} after all, as {number}.")
                log = executor.slurm_logdir / f"rule_{job.name}" / wildcards / f"{number}.log"
                taken = replace(info, external_jobid=number, aux={"slurm_logfile": log})
                executor._report_job_submission_threadsafe(taken)
                return

    return submitted


def _wait(executor: Any, job: Any, wildcards: str, message: str, waits: Iterator[float]) -> str | None:
    """Wait after a refusal until SLURM answers; return the job's id, if SLURM has it after all.

    "": it is to be submitted again; None: waiting cannot help, or has not helped. All jobs of a run have the run's
    name, and their rule and wildcards as a comment. An earlier attempt has the same comment, but its id is known.
    """
    patience: Patience = executor.patience
    # Behind it the plugin writes the whole call, in which any word can be.
    reason = " ".join(message.partition("sbatch call:")[0].split())
    refusal = reason.lower()
    if NO_NODE in refusal and _use_failed_nodes(executor, after=0.0):
        return ""
    if any(word in refusal for word in FINAL) and not any(word in refusal for word in PASSING):
        return None
    comment = f"rule_{job.name}_wildcards_{wildcards}" if wildcards else f"rule_{job.name}"
    told = False
    for pause in waits:
        if not told:
            executor.logger.warning(f"autoseg: {reason} The job of rule {job.name} is tried again in {pause:.0f} s.")
            told = True
        if patience.ending.wait(pause):
            return ""
        try:
            found = slurm.comments(executor.run_uuid)
        except InputError:  # it does not answer, but may have the job
            continue
        return next((id for id, text in found.items() if text == comment and id not in patience.taken), "")
    return None


def _use_failed_nodes(executor: Any, after: float) -> bool:
    """Let nodes be used again that have failed so long ago; return whether there are any.

    SLURM itself uses no node that is down. The nodes that the user has excluded stay excluded.
    """
    failed: dict[str, float] = executor.patience.failed
    given = executor.workflow.executor_settings.exclude_failed_nodes or ""
    for node in executor._failed_nodes - {name.strip() for name in given.split(",")}:
        failed.setdefault(node, time.monotonic())
    again = {node for node, since in list(failed.items()) if time.monotonic() - since >= after}
    for node in again:
        del failed[node]
    executor._failed_nodes -= again
    if again:
        executor.logger.warning(f"autoseg: {', '.join(sorted(again))} failed before, and may be used again.")
    return bool(again)


def _stop_waiting(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def stopped(executor: Any, *arguments: Any) -> Any:
        executor.patience.ending.set()
        return method(executor, *arguments)

    return stopped
