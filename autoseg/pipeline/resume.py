"""Continue a run of the pipeline after its Snakemake was killed.

A run writes a note at its start that says how it was started (`note_start`). A killed Snakemake leaves a lock, marks of
incomplete files, temporary files, and jobs on this machine or on a cluster. `prepare` removes and ends these, and
`go_on` starts the same Snakemake again.
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
from autoseg.files import Part, parse, read_json, read_settings, write_json
from autoseg.pipeline import slurm
from autoseg.pipeline.layout import Layout

logger = logging.getLogger(__name__)

ENDING = 0.5
"""Seconds that a process which was just killed may take until it is gone."""

NOTES = Path(".snakemake/autoseg")  # beside the lock
RUN = "AUTOSEG_RUN"  # environment variable that marks the processes of a run

# Arguments that must not be repeated without the user: they make finished results again, or change the folder.
NOT_AGAIN = ("-f", "--force", "-F", "--forceall", "-R", "--forcerun", "-d", "--directory")


class Started(Part):
    """How and where a run was started."""

    name: str = Field(description="of the config")
    arguments: list[str] = Field(description="of the snakemake command")
    host: str
    pid: int
    born: float = Field(description="when the process started, as a later process may have the same number")
    slurm: list[str] = Field(
        description="names of its SLURM jobs, and of jobs of earlier starts that may still be there"
    )


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


def refuse_second(name: str) -> None:
    """Raise an error if a run of this name is alive in this folder, on this machine.

    Snakemake's own lock does not always tell: the end of one run takes away the locks of all others in the folder.
    """
    note = read_note(name)
    if note is not None and note.host == socket.gethostname():
        _refuse_alive(note, force=False)


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
        wait: let running jobs on the cluster end, instead of cancelling them.
        force: the machine on which it was started is known to be down.
    """
    name = name or last_started()
    note = read_note(name) if name else None
    if note is None and not arguments:
        what = f"no run '{name}' was started here" if name else "no run was started here"
        raise InputError(what, where=Path.cwd(), cure="go to its folder, or give Snakemake's arguments after `--`")
    again = list(arguments or (note.arguments if note else []))
    if not arguments and (found := [word for word in again if word in NOT_AGAIN]):
        raise InputError(
            f"it was started with {found[0]}, which must not be repeated",
            where=f"run '{name}'",
            cure=f"give the other arguments as `autoseg resume -- ...` (all were: {shlex.join(again)})",
        )
    for path in _configfiles(again):
        read_settings(path)  # in our words, before Snakemake says it in its own
    for other in NOTES.glob("*.json"):
        _refuse_alive(parse(Started, read_json(other), other), force)
    if note is not None:
        _end_cluster_jobs(note, wait)
        _end_processes(note.name)
        _remove_leftovers(Path(Layout.named(note.name).folder))
        _write(note.model_copy(update={"slurm": []}))
    return again


def _configfiles(arguments: Sequence[str]) -> list[str]:
    """Return the config files among Snakemake's arguments.

    >>> _configfiles(["--configfile", "a.yaml", "b.yaml", "--cores", "2", "--configfiles=c.yaml"])
    ['a.yaml', 'b.yaml', 'c.yaml']
    """
    found: list[str] = []
    option = ""
    for word in arguments:
        if word.startswith("-"):
            option, _, word = word.partition("=")
        if word and option in ("--configfile", "--configfiles"):
            found.append(word)
    return found


def go_on(arguments: Sequence[str]) -> None:
    """Unlock the folder and become Snakemake."""
    command = [sys.executable, "-m", "snakemake", *arguments]
    done = subprocess.run([*command, "--unlock"], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise InputError(f"Snakemake cannot unlock this folder:\n{said}", where=Path.cwd())
    logger.info(f"snakemake {shlex.join(arguments)}")
    again = [] if {"--rerun-incomplete", "--ri"} & set(arguments) else ["--rerun-incomplete"]
    os.execv(sys.executable, [*command, *again])


def _refuse_alive(note: Started, force: bool) -> None:
    import psutil

    if note.host != socket.gethostname():
        if not force:
            raise InputError(
                f"it was started on {note.host} (process {note.pid})",
                where=f"run '{note.name}'",
                cure="resume it there; if that machine is down or the process is gone, add --force",
            )
        return
    try:
        process = psutil.Process(note.pid)
        if abs(process.create_time() - note.born) >= 1:
            return
        process.wait(timeout=ENDING)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        raise InputError(
            f"it is still running (process {note.pid})",
            where=f"run '{note.name}'",
            cure=f"wait for it, or end it and its jobs with Ctrl-C or `kill -INT {note.pid}`",
        ) from None


def _end_cluster_jobs(note: Started, wait: bool) -> None:
    try:
        left = slurm.jobs(note.slurm)
    except InputError as error:
        what = f"it may have left jobs on a cluster, but {error.where}: {error.what}"
        raise InputError(what, where=f"run '{note.name}'", cure="resume it on that cluster") from None
    if not left:
        return
    doomed = slurm.jobs(note.slurm, "PENDING") if wait else left
    slurm.cancel(doomed)
    logger.info(f"{len(doomed)} of {len(left)} jobs left on the cluster are cancelled; waiting until all have ended.")
    told = time.monotonic()
    while left := slurm.jobs(note.slurm):
        if time.monotonic() > told + 60:
            told = time.monotonic()
            logger.info(f"still there: {', '.join(left)} (see `squeue`).")
        time.sleep(1)


def _end_processes(name: str) -> None:
    """End the processes of a run on this machine; a training writes a checkpoint first."""
    import psutil

    mark, left = _mark(name), []
    for process in psutil.process_iter():
        try:
            found = process.environ().get(RUN, "")
            # The folder may have been renamed since the process was marked: what it works in now tells, too.
            here = found == mark or (found.endswith(f"#{name}") and process.cwd() == os.getcwd())
            if here and process.pid != os.getpid():
                left.append(process)
        except psutil.Error:  # of another user, or just ended
            continue
    for process in left:
        logger.info(f"process {process.pid} of the killed run is ended.")
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
