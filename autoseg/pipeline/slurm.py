"""A SLURM cluster: what it lacks for the pipeline, the jobs on it, and the signals it sends.

All information comes from SLURM's own commands. Only `cancel` changes something.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from autoseg.errors import InputError, Problem, unknown
from autoseg.files import read_settings

PROFILE = "slurm/config.yaml"
LONGEST_WAIT = (
    180  # longest time in seconds between two requests for the states of jobs, a constant of the executor plugin
)

# File systems that several machines share.
SHARED = (
    *("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse", "panfs"),
    *("cifs", "smb", "afs", "orangefs", "pvfs", "wekafs"),
)


@dataclass(frozen=True)
class Need:
    """What jobs ask of a partition: the most that any of them asks for."""

    partition: str = ""  # the cluster's default one
    account: str = ""
    gpus: int = 1
    minutes: int = 0
    mem_mb: int = 0


def most(needs: Iterable[Need]) -> list[Need]:
    """Return one need for each partition and account: the most that any job asks of it.

    >>> most([Need("a", gpus=1, minutes=60), Need("a", gpus=4, minutes=30)])
    [Need(partition='a', account='', gpus=4, minutes=60, mem_mb=0)]
    """
    found: dict[tuple[str, str], Need] = {}
    for need in needs:
        place = (need.partition, need.account)
        before = found.get(place, need)
        found[place] = Need(
            *place,
            gpus=max(before.gpus, need.gpus),
            minutes=max(before.minutes, need.minutes),
            mem_mb=max(before.mem_mb, need.mem_mb),
        )
    return list(found.values())


@dataclass(frozen=True)
class Partition:
    """A partition as `sinfo` shows it."""

    name: str
    default: bool
    minutes: float
    gpus: int  # of the node with the most
    mem_mb: int  # of the largest node


def read_profile(folder: str | os.PathLike[str], gpus: int) -> tuple[Need, str | None]:
    """Return what a Snakemake profile says of the cluster: partition and account, and the status command."""
    path = Path(folder) / "config.yaml"
    try:
        profile = read_settings(path) or {}
    except InputError as error:
        cure = error.cure or "give the folder of a Snakemake profile with --profile"
        raise error.replace(cure=cure) from None
    asked = profile.get("default-resources") or {} if isinstance(profile, dict) else None
    if not isinstance(asked, dict):
        raise InputError("'default-resources' is no mapping", where=path, expected="a profile of Snakemake")
    partition, account = (str(asked.get(key) or "") for key in ("slurm_partition", "slurm_account"))
    return Need(partition, account, gpus), profile.get("slurm-status-command")


def check(need: Need, status_command: str | None = None) -> list[Problem]:
    """Return the problems that jobs would have on this cluster, each with the setting to change."""
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        what = "Snakemake's executor for SLURM is not installed"
        return [Problem("snakemake", what, "pip install 'snakemake-executor-plugin-slurm>=2'")]
    if shutil.which("sbatch") is None:
        return [Problem("slurm", "there is no sbatch on this machine", "run it on a login node of the cluster")]
    try:
        known = partitions()
        settings = configuration()
    except InputError as error:
        return [Problem("slurm", f"the cluster does not answer ({error})", "try `sinfo`, and ask its administrators")]
    return [*_check_partition(need, known), *_check_account(need), *_check_status(settings, status_command)]


def _check_partition(need: Need, known: dict[str, Partition]) -> Iterator[Problem]:
    where = f"partition '{need.partition}'"
    place = f"slurm_partition in {PROFILE}"
    if not need.partition:
        default = [partition for partition in known.values() if partition.default]
        if not default:
            names = ", ".join(sorted(known))
            yield Problem("partition", "the cluster has no default one", f"set {place} to one of {names}")
            return
        found, where = default[0], f"partition '{default[0].name}' (the default)"
    elif need.partition not in known:
        error = unknown("partition", need.partition, known)
        yield Problem("partition", error.what, f"set {place}", expected=error.expected)
        return
    else:
        found = known[need.partition]
    if need.gpus > found.gpus:
        others = sorted(partition.name for partition in known.values() if partition.gpus >= need.gpus)
        has = f"no node with {need.gpus} GPUs (at most {found.gpus})" if found.gpus else "no GPUs"
        cure = f"set {place} to one that has ({', '.join(others)}), or " if others else "set "
        yield Problem(where, has, f"{cure}device to 'cpu' or fewer processes in the config")
    if need.minutes > found.minutes:
        cure = f"lower `runtime` under set-resources in {PROFILE} (a job that is cut off goes on where it was)"
        yield Problem(where, f"ends jobs after {found.minutes:.0f} minutes, but {need.minutes} are asked for", cure)
    if need.mem_mb > found.mem_mb:
        cure = f"lower `mem_mb` under set-resources in {PROFILE}"
        yield Problem(where, f"its largest node has {found.mem_mb} MB, but {need.mem_mb} are asked for", cure)


def _check_account(need: Need) -> Iterator[Problem]:
    if not need.account:
        return
    place = f"slurm_account in {PROFILE}"
    user = pwd.getpwuid(os.getuid()).pw_name  # as SLURM knows it, also where USER is not set
    try:
        accounts = _ask("sacctmgr", "-nP", "show", "associations", f"user={user}", "format=account").split()
    except InputError:
        yield Problem("account", "this cluster keeps no accounts", f"leave {place} empty")
        return
    # A cluster may hide the list from its users; then SLURM itself refuses the jobs.
    if accounts and need.account.lower() not in [account.lower() for account in accounts]:
        error = unknown("account", need.account, set(accounts))
        yield Problem("account", error.what, f"set {place}", expected=error.expected)


def _check_status(settings: dict[str, str], command: str | None) -> Iterator[Problem]:
    remembered = int(re.match(r"\d+", settings.get("MinJobAge", "300")).group())  # type: ignore[union-attr]
    accounting = settings.get("AccountingStorageType", "").endswith("slurmdbd")
    place = f"slurm-status-command in {PROFILE}"
    if command == "sacct" and not accounting:
        yield Problem("status", "this cluster keeps no accounting, which sacct would ask", f"set {place} to squeue")
    elif command == "squeue" and remembered <= LONGEST_WAIT:
        what = f"squeue forgets a job {remembered} s after its end, but is asked every {LONGEST_WAIT} s only"
        cure = f"set {place} to sacct" if accounting else "ask the administrators for a MinJobAge of 300 or more"
        yield Problem("status", what, cure)


def check_folder(folder: str | os.PathLike[str]) -> list[Problem]:
    """Return a remark if a folder seems to be on a disk that only this machine has."""
    kind = file_system(folder)
    if kind.startswith(SHARED) or not kind:
        return []
    what = f"is on a file system of kind {kind}, which other machines may not see"
    return [Problem(str(folder), what, "`autoseg doctor slurm` asks a node whether it sees it", "warning")]


def file_system(folder: str | os.PathLike[str]) -> str:
    """Return the kind of file system that a folder is on, such as ext4 or lustre; "" where that is not told."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    mounts = [line.split()[1:3] for line in lines]
    path = Path(os.path.realpath(folder))
    around = [(len(place), kind) for place, kind in mounts if path == Path(place) or Path(place) in path.parents]
    return max(around)[1] if around else ""


def try_node(need: Need, folder: str | os.PathLike[str], seconds: int = 60) -> list[Problem]:
    """Run a job that looks for a folder and for autoseg; return what it did not find."""
    autoseg = shutil.which("autoseg") or "autoseg"
    with NamedTemporaryFile(prefix=".seen-by-a-node.", dir=folder) as probe:
        script = (
            f'[ -e "{probe.name}" ] && echo folder; "{autoseg}" --version >/dev/null 2>&1 && echo autoseg; hostname'
        )
        command = ["srun", f"--immediate={seconds}", "--ntasks=1", "--time=2", "--chdir=/", "--mem=500"]
        command += [f"--partition={need.partition}"] * bool(need.partition)
        command += [f"--account={need.account}"] * bool(need.account)
        command += [f"--gpus={need.gpus}"] * bool(need.gpus)
        done = subprocess.run([*command, "sh", "-c", script], capture_output=True, text=True, check=False)
    *seen, host = done.stdout.split() or [""]
    if not host:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("srun: ")
        what = f"no job could be started within {seconds} s to look from a node ({said})"
        return [Problem("node", what, "try again later, or with a longer --wait", "warning")]
    problems = []
    if "folder" not in seen:
        cure = "work in a folder that all nodes share (often below your home or scratch)"
        problems.append(Problem(str(folder), f"node {host} does not see it", cure))
    if "autoseg" not in seen:
        problems.append(Problem(autoseg, f"node {host} cannot run it", "install autoseg where all nodes see it"))
    return problems


def partitions() -> dict[str, Partition]:
    """Return the cluster's partitions by name."""
    found: dict[str, Partition] = {}
    for line in _ask("sinfo", "--noheader", "--format=%P|%l|%G|%m").splitlines():  # one line for each kind of node
        name, limit, gres, memory = line.split("|")
        default, name = name.endswith("*"), name.removesuffix("*")
        gpus = sum(int(count) for count in re.findall(r"gpu(?::[A-Za-z][^:,()]*)?:(\d+)", gres))
        mem_mb = int(re.sub(r"\D", "", memory))
        before = found.get(name, Partition(name, default, minutes(limit), 0, 0))
        most = max(before.gpus, gpus), max(before.mem_mb, mem_mb)
        found[name] = Partition(name, default, before.minutes, *most)
    return found


def minutes(limit: str) -> float:
    """Return a time limit as SLURM writes it, in minutes.

    >>> minutes("1-12:30:00"), minutes("30:00"), minutes("infinite")
    (2190.0, 30.0, inf)
    """
    if not limit[:1].isdigit():
        return float("inf")
    days, _, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    hours, minute, second = ([0] * (3 - len(parts)) + parts)[-3:]
    return int(days or 0) * 1440 + hours * 60 + minute + second / 60


def configuration() -> dict[str, str]:
    """Return the cluster's settings."""
    lines = (line.partition("=") for line in _ask("scontrol", "show", "config").splitlines())
    return {key.strip(): value.strip() for key, sign, value in lines if sign}


def jobs(runs: Iterable[str], states: str = "") -> list[str]:
    """Return the ids of jobs in the queue, by the names of Snakemake's runs, which all jobs of a run have."""
    names = ",".join(runs)
    if not names:
        return []
    only = [f"--states={states}"] * bool(states)
    return _ask("squeue", "--noheader", "--format=%i", f"--name={names}", *only).split()


def comments(run: str) -> dict[str, str]:
    """Return the comment of each job of a Snakemake's run that SLURM knows, also of those that have ended."""
    lines = _ask("squeue", "--noheader", "--states=all", "--format=%i|%k", f"--name={run}").splitlines()
    return {number: comment for number, _, comment in (line.partition("|") for line in lines)}


def cancel(ids: Iterable[str]) -> None:
    """Cancel jobs."""
    if ids := list(ids):
        _ask("scancel", *ids)


def _ask(*command: str) -> str:
    """Return what a command of SLURM prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        raise InputError("this command is not on this machine", where=command[0]) from None
    except subprocess.TimeoutExpired:
        raise InputError("gives no answer within a minute", where=command[0]) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise InputError(said[-1] if said else f"exit code {done.returncode}", where=command[0])
    return done.stdout


def pass_on_signals() -> None:
    """In a job, pass SIGTERM and SIGUSR1 on to the command of the job, as SIGTERM.

    SLURM sends these signals to the first process of a job when it is cancelled or its time is nearly over, but not to
    the children of that process. The first process is Snakemake, which does not pass them on. Snakemake sets its own
    handler for SIGTERM later; therefore this function uses no handler, but a pipe that gets the number of each signal.
    """
    import psutil

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def listen() -> None:
        while number := os.read(reading, 1):
            if number[0] in (signal.SIGTERM, signal.SIGUSR1):
                for child in psutil.Process().children():
                    with suppress(psutil.NoSuchProcess):  # it has just ended
                        child.terminate()

    threading.Thread(target=listen, daemon=True).start()
