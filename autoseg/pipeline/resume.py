"""Bring a run of the pipeline back after its Snakemake was killed: what is left of it is ended, then it goes on.

A run notes at its start how it was started (`note_start`). A Snakemake that is killed leaves a lock, half-done marks,
temporary files, and its jobs, on this machine or on a cluster: `resume` deals with each, and starts the same again.
"""

from __future__ import annotations

import logging
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from autoseg.errors import InputError
from autoseg.files import Part, parse, read_json, write_json
from autoseg.pipeline import slurm
from autoseg.pipeline.layout import Layout

_log = logging.getLogger(__name__)

NOTES = Path(".snakemake/autoseg")  # beside the lock


RUN = "AUTOSEG_RUN"  # the environment variable by which a run's processes are known


# Arguments that must not be repeated unseen: they make finished results anew, or lead from here to another folder.
NOT_AGAIN = ("-f", "--force", "-F", "--forceall", "-R", "--forcerun", "-d", "--directory")


class Started(Part):
    """How and where a run was started."""

    name: str = Field(description="of the config")
    arguments: list[str] = Field(description="of the snakemake command")
    host: str
    pid: int
    born: float = Field(description="when the process was, which tells it from a later one with its number")
    slurm: list[str] = Field(description="names of its jobs and of those before it that were not seen to be gone")


def mark_processes(name: str) -> None:
    """Mark this process and all it will start as the run's."""
    os.environ[RUN] = _mark(name)


def note_start(name: str, arguments: Sequence[str], slurm_run: str | None) -> None:
    """Note that a run is starting."""
    import psutil

    me = psutil.Process()
    before = read_note(name)
    runs = [*(before.slurm[-20:] if before else []), *([slurm_run] if slurm_run else [])]
    note = Started(
        name=name,
        arguments=list(arguments),
        host=socket.gethostname(),
        pid=me.pid,
        born=me.create_time(),
        slurm=runs,
    )
    _write(note)


def read_note(name: str) -> Started | None:
    """Return how a run was last started; None if it never was."""
    path = NOTES / f"{name}.json"
    return parse(Started, read_json(path), path) if path.exists() else None


def last_started() -> str | None:
    """Return the name of the run that was started last in this folder."""
    notes = sorted(NOTES.glob("*.json"), key=lambda path: path.stat().st_mtime)
    return notes[-1].stem if notes else None


def prepare(name: str | None, arguments: Sequence[str], *, wait: bool = False, force: bool = False) -> list[str]:
    """End what is left of a run in this folder; return the arguments with which Snakemake goes on.

    Args:
        name: of the config; by default the run that was started last.
        arguments: of the snakemake command; by default those of the last start.
        wait: let jobs that are running on the cluster come to their end, instead of cancelling them.
        force: the machine where it was started is known to be down.
    """
    name = name or last_started()
    note = read_note(name) if name else None
    if note is None and not arguments:
        where = f"no run '{name}' was started" if name else "no run was started"
        raise InputError(f"{where} in {Path.cwd()}; go to its folder, or give Snakemake's arguments after `--`.")
    again = list(arguments or (note.arguments if note else []))
    if not arguments and (found := [word for word in again if word in NOT_AGAIN]):
        raise InputError(
            f"the run was started with {found[0]}, which is not to be repeated; give the other arguments yourself, as "
            f"`autoseg resume -- ...` (all were: {shlex.join(again)})."
        )
    for other in NOTES.glob("*.json"):
        _refuse_alive(parse(Started, read_json(other), other), force)
    if note is not None:
        _end_cluster_jobs(note, wait)
        _end_processes(note.name)
        _remove_leftovers(Path(Layout.named(note.name).folder))
        _write(note.model_copy(update={"slurm": []}))
    return again


def go_on(arguments: Sequence[str]) -> None:
    """Unlock the folder and become Snakemake."""
    command = [sys.executable, "-m", "snakemake", *arguments]
    done = subprocess.run([*command, "--unlock"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"Snakemake cannot unlock the folder:\n{(done.stderr or done.stdout).strip()}")
    _log.info(f"snakemake {shlex.join(arguments)}")
    again = [] if {"--rerun-incomplete", "--ri"} & set(arguments) else ["--rerun-incomplete"]
    os.execv(sys.executable, [*command, *again])


def _refuse_alive(note: Started, force: bool) -> None:
    import psutil

    if note.host != socket.gethostname():
        if not force:
            raise InputError(
                f"run '{note.name}' was started on {note.host} (process {note.pid}); resume it there, or, if that "
                "machine is down or the process is gone, add --force."
            )
        return
    try:
        alive = abs(psutil.Process(note.pid).create_time() - note.born) < 1
    except psutil.NoSuchProcess:
        return
    if alive:
        raise InputError(
            f"run '{note.name}' is still alive (process {note.pid}); nothing is to be resumed. Ctrl-C, or "
            f"`kill -INT {note.pid}`, ends it with its jobs."
        )


def _end_cluster_jobs(note: Started, wait: bool) -> None:
    try:
        left = slurm.jobs(note.slurm)
    except InputError as error:
        raise InputError(f"run '{note.name}' may have left jobs on a cluster, but {error}; resume it there.") from None
    if not left:
        return
    doomed = slurm.jobs(note.slurm, "PENDING") if wait else left
    slurm.cancel(doomed)
    _log.info(f"{len(doomed)} of {len(left)} jobs left on the cluster are cancelled; waiting until all have ended.")
    told = time.monotonic()
    while left := slurm.jobs(note.slurm):
        if time.monotonic() > told + 60:
            told = time.monotonic()
            _log.info(f"still there: {', '.join(left)} (see `squeue`).")
        time.sleep(1)


def _end_processes(name: str) -> None:
    """End what the run still does on this machine; a training that is told to stop writes a checkpoint first."""
    import psutil

    mark, left = _mark(name), []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(RUN) == mark:
                left.append(process)
        except psutil.Error:  # not ours to look into, or just gone
            continue
    for process in left:
        _log.info(f"process {process.pid} of the killed run is ended.")
        process.terminate()
    _, alive = psutil.wait_procs(left, timeout=60)
    for process in alive:
        process.kill()


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of `autoseg.files.atomic` that a kill left."""
    for path in folder.rglob(".*.part"):
        if not path.name.endswith(".bin.part"):  # a cache that is being packed: `prepare` goes on with it
            path.unlink()


def _mark(name: str) -> str:
    return f"{Path.cwd()}#{name}"


def _write(note: Started) -> None:
    write_json(NOTES / f"{note.name}.json", note.model_dump())
