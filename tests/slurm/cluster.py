"""A real SLURM of two nodes with four GPUs each on this one machine, for tests, from Debian's packages.

    python tests/slurm/cluster.py run COMMAND...    start it, run the command, stop it: `make test-slurm`
    python tests/slurm/cluster.py run-with-accounts COMMAND...      the same, with an accounting database
    python tests/slurm/cluster.py start DIR         start it in a folder of its own
    python tests/slurm/cluster.py stop DIR          stop it, and remove all it wrote

SLURM wants its configuration in /etc/slurm. It is written only where there is none, and removed at the end; one that
is not marked as this tool's is never touched. The GPUs are only counted: their device files are those of /dev/null.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

ETC = Path("/etc/slurm")
FILES = ("slurm.conf", "gres.conf", "cgroup.conf", "slurmdbd.conf")
MARK = "# Written by autoseg's tests/slurm/cluster.py, and removed by it."
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "squeue", "munged")
FOR_ACCOUNTS = ("slurmdbd", "mariadb-server"), ("slurmdbd", "mariadbd")
ACCOUNT = "lab"
NODES = ("n1", "n2")
FOLDER = "AUTOSEG_TEST_CLUSTER"  # the environment variable that tells the tests where the cluster's folder is
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


class CannotError(Exception):
    """The cluster cannot be had here; one line says why."""


CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
SlurmctldPort=16817
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmdParameters=config_overrides
{confinement}
MpiDefault=none
ReturnToService=2
JobRequeue=1
TaskProlog={folder}/task-prolog
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
{accounting}
GresTypes=gpu
MinJobAge=3600
SlurmdTimeout=5
KillWait=10
NodeName=DEFAULT CPUs=4 RealMemory=8000 Gres=gpu:4 State=UNKNOWN
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=17001
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=17002
NodeName=n3 NodeHostname={host} NodeAddr=127.0.0.1 Port=17003 Gres= State=DOWN
PartitionName=gpu Nodes=n1,n2 Default=YES MaxTime=1-0 DefMemPerCPU=500 LLN=YES State=UP
PartitionName=bare Nodes=n3 MaxTime=60 State=UP
"""
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort=16819
AccountingStorageEnforce=limits"""
DATABASE = """\
DbdHost=localhost
DbdPort=16819
SlurmUser=root
AuthType=auth/munge
PidFile={folder}/run/slurmdbd.pid
LogFile={folder}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=16836
StorageUser=root
StorageLoc=slurm
"""
TASK_PROLOG = """\
#!/bin/sh
cat "{folder}/clock-$SLURMD_NODENAME" 2>/dev/null || true
"""
CONFINED = "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup"  # memory limits are enforced
FREE = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none"


class Cluster:
    """The cluster in a folder."""

    def __init__(self, folder: Path, accounting: bool = False) -> None:
        self.folder = folder
        self.accounting = accounting or (folder / "run/slurmdbd.pid").exists()
        # Version 2 of cgroups needs systemd, which a container has not.
        self.confined = Path("/sys/fs/cgroup/memory").is_dir()

    def start(self) -> None:
        """Install what is missing, write the configuration, start the daemons and wait for both nodes."""
        if os.geteuid() != 0:
            raise CannotError("a test cluster needs root.")
        check_configuration()
        install(PACKAGES, PROGRAMS)
        if self.accounting:
            install(*FOR_ACCOUNTS)
        self._write()
        self._start_munge()
        if self.accounting:
            self._start_database()
        self._daemon(["slurmctld"], "slurmctld")
        for node in NODES:
            self.start_node(node)
        if self.accounting:
            self.wait(lambda: "lab" in output("sacctmgr", "-nP", "show", "cluster"), "the cluster is known", 30)
            for words in (["account", ACCOUNT], ["user", "root", f"account={ACCOUNT}"]):
                self._run(["sacctmgr", "-i", "add", *words])
        self.wait(lambda: self.states() == dict.fromkeys(NODES, "idle"), "both nodes are idle", 30)

    def stop(self) -> None:
        """Cancel all jobs, stop the daemons and remove what was written."""
        if (self.folder / "run/slurmctld.pid").exists():
            subprocess.run(["scancel", "--user=root"], check=False, capture_output=True)
            limit = time.monotonic() + 30
            while output("squeue", "--noheader", "--states=RUNNING,COMPLETING") and time.monotonic() < limit:
                time.sleep(0.2)
        for name in (*(f"slurmd-{node}" for node in NODES), "slurmctld", "slurmdbd", "mariadbd", "munged"):
            end(self.pid(name))
        slurm = ETC / FILES[0]
        if slurm.exists() and f"={self.folder}/" in slurm.read_text():
            for name in FILES:
                (ETC / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_node(self, node: str) -> None:
        """Start a node's daemon."""
        self._daemon(["slurmd", "-N", node], f"slurmd-{node}")

    def start_missing_nodes(self) -> None:
        """Bring back the nodes that a test killed."""
        for node in NODES:
            if not self.pid(f"slurmd-{node}"):
                self.start_node(node)

    def stop_controller(self) -> None:
        """Let slurmctld go away: jobs run on, and no command of SLURM is answered."""
        end(self.pid("slurmctld"))
        (self.folder / "run/slurmctld.pid").unlink(missing_ok=True)

    def start_controller(self) -> None:
        """Bring slurmctld back, as a restart does: it reads its saved state."""
        self._daemon(["slurmctld"], "slurmctld")

    def start_missing_controller(self) -> None:
        """Bring slurmctld back where a test has ended without it."""
        if not self.pid("slurmctld"):
            self.start_controller()

    def restart_node(self, node: str) -> None:
        """Restart a node's daemon, as after an update: what runs on the node runs on."""
        end(self.pid(f"slurmd-{node}"))
        (self.folder / f"run/slurmd-{node}.pid").unlink(missing_ok=True)
        self.start_node(node)

    def set_node(self, node: str, state: str) -> None:
        """Change a node's state, as an administrator does: drain, down."""
        self._run(["scontrol", "update", f"nodename={node}", f"state={state}", "reason=test"])

    def bring_back(self, node: str) -> None:
        """Let a node that was drained or set down take jobs again; one that is down may have done so by itself."""
        if self.states()[node].startswith(("dr", "down")):
            output("scontrol", "update", f"nodename={node}", "state=resume")
        self.wait(lambda: self.states()[node] in ("idle", "mix", "alloc"), f"{node} is back", 30)

    def set_clock(self, node: str, seconds: int) -> None:
        """Let the processes of all jobs that start on a node from now on have a clock that is wrong."""
        install(("faketime",), ("faketime",))
        (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
        lines = (f"LD_PRELOAD={library}", f"FAKETIME={seconds:+d}", "NO_FAKE_STAT=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")
        (self.folder / f"clock-{node}").write_text("".join(f"export {line}\n" for line in lines))

    def set_clocks_right(self) -> None:
        """Let all nodes have the same clock again."""
        for node in NODES:
            (self.folder / f"clock-{node}").unlink(missing_ok=True)

    def limit_submissions(self, most: int) -> None:
        """Let sbatch refuse more jobs of the user than so many at once; -1: as many as there are."""
        self._run(["sacctmgr", "-i", "modify", "user", "root", "set", f"MaxSubmitJobs={most}"])

    def set_partition(self, state: str) -> None:
        """Open or close the partition, as an administrator does: up, inactive (sbatch refuses every job)."""
        self._run(["scontrol", "update", "partitionname=gpu", f"state={state}"])

    def stop_accounting(self) -> None:
        """Let slurmdbd go away: sacct is not answered, and slurmctld keeps what it would be told."""
        end(self.pid("slurmdbd"))
        (self.folder / "run/slurmdbd.pid").unlink(missing_ok=True)

    def start_accounting(self) -> None:
        """Bring slurmdbd back."""
        if not self.pid("slurmdbd"):
            self._daemon(["slurmdbd"], "slurmdbd")

    def kill_node(self, node: str) -> None:
        """Let a node vanish as if its power were cut: its daemon and all that runs on it are killed at once."""
        jobs = output("squeue", "--noheader", "--states=RUNNING", f"--nodelist={node}", "--format=%i").split()
        doomed = [self.pid(f"slurmd-{node}"), *(pid for job in jobs for pid in processes_of(job))]
        for pid in doomed:
            kill(pid, signal.SIGKILL)
        (self.folder / f"run/slurmd-{node}.pid").unlink(missing_ok=True)

    def states(self) -> dict[str, str]:
        """Return each node's state."""
        lines = output("sinfo", "--noheader", "--Node", "--partition=gpu", "--format=%N %t").splitlines()
        return dict(line.split() for line in lines)

    def pid(self, name: str) -> int:
        """Return a daemon's process id; 0 if it was not started here."""
        path = self.folder / f"run/{name}.pid"
        return int(path.read_text() or 0) if path.exists() else 0  # empty: it is just being written

    def wait(self, happened: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait until something has happened."""
        end = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > end:
                raise CannotError(f"waited {seconds:.0f} s in vain until {what}.")
            time.sleep(0.2)

    def _write(self) -> None:
        for sub in ("run", "log", "state", "dev", *(f"spool/{node}" for node in NODES)):
            (self.folder / sub).mkdir(parents=True, exist_ok=True)
        for number in range(4):
            os.mknod(self.folder / f"dev/gpu{number}", 0o666 | 0o020000, os.makedev(1, 3))
        host = socket.gethostname().partition(".")[0]
        confinement = CONFINED if self.confined else FREE
        ETC.mkdir(exist_ok=True)
        accounting = ACCOUNTING if self.accounting else "AccountingStorageType=accounting_storage/none"
        slurm = CONFIGURATION.format(host=host, folder=self.folder, confinement=confinement, accounting=accounting)
        gres = f"NodeName=n[1-2] Name=gpu File={self.folder}/dev/gpu[0-3]\n"
        cgroup = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=no\n"
        prolog = self.folder / "task-prolog"
        prolog.write_text(TASK_PROLOG.format(folder=self.folder))
        prolog.chmod(0o755)
        database = DATABASE.format(folder=self.folder)
        for name, text in zip(FILES, (slurm, gres, cgroup, database), strict=True):
            (ETC / name).write_text(f"{MARK}\n{text}")
            (ETC / name).chmod(0o600 if text is database else 0o644)  # slurmdbd insists

    def _start_munge(self) -> None:
        if Path("/run/munge/munge.socket.2").exists() and output("sh", "-c", "munge -n >/dev/null && echo yes"):
            return  # the machine's own: used, and left alone
        subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "-m", "755", "/run/munge"], check=True)
        self._run(["runuser", "-u", "munge", "--", "/usr/sbin/munged", "--force"])
        (self.folder / "run/munged.pid").write_text(Path("/run/munge/munged.pid").read_text())

    def _start_database(self) -> None:
        data, socket_ = self.folder / "database", self.folder / "run/database"
        self._run(["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db"])
        options = [f"--datadir={data}", f"--socket={socket_}", f"--pid-file={self.folder}/run/mariadbd.pid"]
        options += ["--user=root", "--port=16836", "--bind-address=127.0.0.1", "--skip-grant-tables"]
        with open(self.folder / "log/mariadbd.log", "w") as log:
            command = ["setsid", "--fork", "mariadbd", "--no-defaults", *options]  # it makes no daemon of itself
            subprocess.run(command, stdout=log, stderr=log, check=True, env={**os.environ, "PATH": PATH})
        self.wait(socket_.exists, f"the database has started ({self.folder}/log)", 30)
        self._daemon(["slurmdbd"], "slurmdbd")
        # slurmctld gives up at once where nobody answers yet.
        self.wait(lambda: answers(16819), f"slurmdbd answers ({self.folder}/log)", 30)

    def _daemon(self, command: list[str], name: str) -> None:
        self._run(command)
        self.wait(lambda: self.pid(name) > 0, f"{name} has started ({self.folder}/log)", 10)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": PATH})
        if done.returncode:
            raise CannotError(f"{command[0]} does not start: {(done.stderr or done.stdout).strip()}")


def check_configuration() -> None:
    """Refuse to go on where there is a SLURM configuration of somebody else's, or of a test cluster that is alive."""
    for name in FILES:
        path = ETC / name
        if path.exists() and not path.read_text().startswith(MARK):
            raise CannotError(f"{path} is not this tool's; it is left alone.")
    if (ETC / FILES[0]).exists():
        lines = dict(line.partition("=")[::2] for line in (ETC / FILES[0]).read_text().splitlines())
        number = Path(lines["SlurmctldPidFile"])
        if number.exists() and kill(int(number.read_text() or 0), 0):
            raise CannotError(f"another test cluster is running in {number.parents[1]}.")


def install(packages: Sequence[str], programs: Sequence[str]) -> None:
    """Install Debian's packages, if their programs are not there."""
    if all(shutil.which(program, path=PATH) for program in programs):
        return
    if not shutil.which("apt-get"):
        raise CannotError(f"SLURM is not installed, and there is no apt-get to install {', '.join(packages)}.")
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for attempt in (1, 2):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode == 0:
            return
        if attempt == 1:  # the lists of packages may be missing or old
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False)
    reason = (done.stderr or done.stdout).strip().splitlines()
    raise CannotError(f"apt-get cannot install {', '.join(packages)}: {reason[-1] if reason else 'no reason given'}")


def answers(port: int) -> bool:
    """Return whether a server of this machine takes connections at a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def output(*command: str) -> str:
    """Return what a command prints; nothing if it fails."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def processes_of(job: str) -> list[int]:
    """Return the processes of a job: those that know its id, and the daemons that watch over its steps."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            title = (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if f"SLURM_JOB_ID={job}".encode() in environment or title.startswith(f"slurmstepd: [{job}.".encode()):
            found.append(int(folder.name))
    return found


def kill(pid: int, number: int) -> bool:
    """Send a signal; return whether the process was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def end(pid: int) -> None:
    """End a process: kindly, and after ten seconds not."""
    for number, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        if not pid or not kill(pid, number):
            return
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and kill(pid, 0):
            time.sleep(0.05)


@contextmanager
def alone(seconds: float = 900) -> Iterator[None]:
    """Wait for the machine's other test clusters: there is one /etc/slurm."""
    with open("/run/lock/autoseg-test-cluster", "w") as file:
        limit = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise CannotError("another test cluster is running on this machine.") from None
                time.sleep(1)
        yield


def run(command: list[str], accounting: bool = False) -> int:
    """Start a cluster, run a command that is told of it, stop it. Where there can be none the command runs without."""
    environment = {name: value for name, value in os.environ.items() if name != FOLDER}
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # it leaves no daemon either
    with ExitStack() as ending:
        try:
            if os.geteuid() != 0:
                raise CannotError("a test cluster needs root.")
            ending.enter_context(alone())
            cluster = Cluster(Path(tempfile.mkdtemp(prefix="autoseg-slurm-")), accounting)
            ending.callback(cluster.stop)
            cluster.start()
            environment[FOLDER] = str(cluster.folder)
        except CannotError as reason:
            print(f"No test cluster here: {reason}", file=sys.stderr)
        return subprocess.run(command, env=environment, check=False).returncode


def main(arguments: list[str]) -> int:
    """Run the command line."""
    match arguments:
        case ["run" | "run-with-accounts", _, *_]:
            return run(arguments[1:], accounting=arguments[0] != "run")
        case ["start", folder]:
            Cluster(Path(folder).absolute()).start()
        case ["stop", folder]:
            Cluster(Path(folder).absolute()).stop()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except CannotError as reason:
        sys.exit(f"No test cluster here: {reason}")
