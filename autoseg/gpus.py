"""Locks on the GPUs of this machine: a GPU belongs to one process at a time, or to several small ones.

A process holds a GPU by a lock (flock) on a file in the folder for temporary files, so the GPU is free again as soon as
its process ends, also by a kill. The GPUs are those of CUDA_VISIBLE_DEVICES, or else of nvidia-smi. No torch here.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from autoseg.errors import InputError

logger = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"
HELD = "AUTOSEG_GPUS"  # set if GPUs were given to this process already, by itself or by a cluster
LOOK_EVERY = 0.2  # seconds, while a process waits

_files: set[int] = set()  # open files whose locks this process holds


def visible() -> list[str]:
    """Return the GPUs that this process may use, by CUDA's names for them: numbers, or UUIDs."""
    chosen = os.environ.get(VISIBLE)
    if chosen is None:
        return list(models())
    names: dict[str, None] = {}
    for name in chosen.split(","):
        if not name.strip().isdecimal() and not name.strip().startswith(("GPU-", "MIG-")):
            break  # CUDA ignores what follows a -1 or a word, such as SLURM's NoDevFiles
        names[name.strip()] = None
    return list(names)


def models() -> dict[str, str]:
    """Return the models of all GPUs of this machine by their numbers, as nvidia-smi lists them."""
    if shutil.which("nvidia-smi") is None:
        return {}
    command = ["nvidia-smi", "--query-gpu=index,name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:  # no driver, or no GPU
        return {}
    rows = (line.partition(",") for line in done.stdout.splitlines() if line.strip())
    return {number.strip(): model.strip() for number, _, model in rows}


@contextmanager
def taken(count: int = 1, sharing: int = 1) -> Iterator[list[str]]:
    """Hold GPUs while the block runs, and let CUDA see no others; wait until they are free.

    Args:
        count: how many; more than there are is an error.
        sharing: how many processes like this one may share a GPU; 1: it belongs to this process alone.

    Nothing is held if there is no GPU, if this process has its GPUs already, and in the processes of torchrun. CUDA
    reads CUDA_VISIBLE_DEVICES when it is first used, so this function must be called before.
    """
    names = visible()
    if not names or HELD in os.environ or "WORLD_SIZE" in os.environ:
        yield []
        return
    if count > len(names):
        what = f"{count} GPUs are asked for, {len(names)} can be used here ({', '.join(names)})"
        raise InputError(what, cure="ask for fewer processes, look at CUDA_VISIBLE_DEVICES, or set device to cpu")
    held = _wait_for(names, count, sharing)
    before = {key: os.environ.get(key) for key in (VISIBLE, HELD, "CUDA_DEVICE_ORDER")}
    if before[VISIBLE] is None:
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's; CUDA's own puts the fastest first
    os.environ[VISIBLE] = os.environ[HELD] = ",".join(held)
    try:
        yield list(held)
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        _close(file for files in held.values() for file in files)


def keep_over_exec() -> None:
    """Let the program that replaces this one keep the GPUs of this process."""
    for file in _files:
        os.set_inheritable(file, True)


def leave_to_cluster() -> None:
    """Take no locks in the jobs of this process: the cluster gave each job its GPUs."""
    os.environ[HELD] = ""


def description(sharing: int = 1) -> str:
    """Return the GPUs that jobs may use here, and how they share them; empty where there is none."""
    names, known = visible(), models()
    if not names:
        return ""
    each = ", ".join(f"{name} ({known[name]})" if name in known else name for name in names)
    rule = "one job at a time" if sharing == 1 else f"one job, or {sharing} trials, at a time"
    return f"{len(names)} GPU{'s' * (len(names) > 1)}: {each}; {rule} on each"


# ---------------------------------------------------------------------------------------------------------------- locks


def _wait_for(names: Sequence[str], count: int, sharing: int) -> dict[str, list[int]]:
    """Return the locks of so many GPUs when all of them are held.

    A waiting process holds no GPU, so two processes cannot wait for each other. Only one process tries at a time, and
    the others form a queue, so that a job for two GPUs does not wait for ever behind jobs for one.
    """
    folder = _folder()
    line = folder / f"line-{zlib.crc32(','.join(sorted(names)).encode()):08x}"
    told = False

    def tell() -> None:
        nonlocal told
        if not told:
            wanted = "a GPU" if count == 1 else f"{count} GPUs"
            logger.warning(f"waits for {wanted}: other jobs hold {', '.join(names)} (locks in {folder}).")
        told = True

    patience = time.monotonic() + 1  # another process may hold the queue only for a moment
    while (first := _lock(line, fcntl.LOCK_EX | fcntl.LOCK_NB)) is None and time.monotonic() < patience:
        time.sleep(0.01)
    if first is None:
        tell()
        first = _lock(line, fcntl.LOCK_EX)
    assert first is not None  # it waited for it
    try:
        while not (held := _try(folder, names, count, sharing)):
            tell()
            time.sleep(LOOK_EVERY)
        return held
    finally:
        _close([first])


def _try(folder: Path, names: Sequence[str], count: int, sharing: int) -> dict[str, list[int]]:
    """Return the locks of so many GPUs, or nothing.

    A GPU's own file is locked by its one process, or by all that share it, of which each also locks a seat.
    """
    held: dict[str, list[int]] = {}
    for seat in range(sharing):  # the first seat on every GPU before the second on any
        for name in names:
            if name in held:
                continue
            whole = fcntl.LOCK_EX if sharing == 1 else fcntl.LOCK_SH
            # Of the folder, too: it tells systemd not to clean up here.
            files = [_lock(folder, fcntl.LOCK_SH), _lock(folder / _file(name), whole | fcntl.LOCK_NB)]
            if sharing > 1:
                files.append(_lock(folder / _file(name, seat), fcntl.LOCK_EX | fcntl.LOCK_NB))
            locked = [file for file in files if file is not None]
            if len(locked) == len(files):
                held[name] = locked
            else:
                _close(locked)
            if len(held) == count:
                return held
    _close(file for files in held.values() for file in files)
    return {}


def _file(name: str, seat: int | None = None) -> str:
    return quote(f"gpu-{name}" if seat is None else f"gpu-{name}-seat-{seat}", safe="")


def _folder() -> Path:
    """Return the folder of the locks: of this machine and user; of a SLURM job, whose GPUs are no other's."""
    job = "".join(f"-{os.environ[key]}" for key in ("SLURM_JOB_ID", "SLURM_STEP_ID") if key in os.environ)
    folder = Path(tempfile.gettempdir()) / f"autoseg-gpus-{os.getuid()}{job}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # it may be another user's
            pass
    except OSError as error:
        cure = "let TMPDIR name a folder of this machine that you may write to"
        raise InputError(f"GPUs cannot be handed out here ({error.strerror})", where=folder, cure=cure) from None
    return folder


def _lock(path: Path, how: int) -> int | None:
    """Return an open, locked file; None if another process has the lock and `how` is not to wait."""
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        os.close(file)
        return None
    _files.add(file)
    return file


def _close(files: Iterator[int] | Sequence[int]) -> None:
    for file in files:
        _files.discard(file)
        os.close(file)


# A lock is held until every copy of its file is closed; processes that load data would hold it after a kill.
os.register_at_fork(after_in_child=lambda: _close(list(_files)))
