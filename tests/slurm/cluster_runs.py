"""Running the pipeline on the test cluster, and watching it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pipeline_runs import ROOT, content, environment, finished_trainings, results
from tests.slurm.cluster import output
from tests.slurm.faults import FOLDER

MEMORY = 1000  # MB of a job's first attempt


def small(name: str = "tiny", trials_per_job: int = 1) -> dict[str, Any]:
    """Return a config with one search of two steps of three trials, and one run with its loss."""
    tiny = content("tiny")
    main = {**tiny["tables"]["main"], "rows": ["searched:mIoU"]}
    search = {**tiny["searches"]["mIoU"], "trials_per_job": trials_per_job}
    return {**tiny, "name": name, "searches": {"mIoU": search}, "tables": {"main": main}, "figures": {}}


@dataclass(frozen=True)
class Job:
    """A job as SLURM remembers it."""

    id: int
    state: str
    limit: str  # of time
    memory: str
    nodes: str
    rule: str  # with its wildcards


class Run:
    """The pipeline in a folder, on the cluster."""

    def __init__(self, folder: Path, config: Path, log: str = "log") -> None:
        self.config, self.log_name = config, log
        self._set_folder(folder)
        for path in (self.results, self.faults):
            path.mkdir(parents=True, exist_ok=True)  # another run may be in this folder
        self.process: subprocess.Popen[str] | None = None
        self.trained: dict[Path, tuple[int, int]] = {}  # by the path below the results
        self.twice: set[Path] = set()
        self._moving = threading.Lock()
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _set_folder(self, folder: Path) -> None:
        self.folder, self.results, self.faults = folder, folder / "results", folder / "faults"

    def move(self, folder: Path) -> None:
        """Rename the folder of the run."""
        with self._moving:
            self.folder.rename(folder)
            self._set_folder(folder)

    def start(
        self,
        *arguments: str,
        more: Sequence[str] = (),
        jobs: int = 6,
        memory: str = f"{MEMORY}*attempt",
        retries: int = 6,
        resources: Sequence[str] = ("slurm_partition=gpu",),
    ) -> None:
        """Start Snakemake with the profile, and with what a test of minutes needs else.

        Of the profile's `default-resources` nothing is left: the notice two minutes before the end is more than these
        jobs have.
        """
        rules = ("prepare_dataset", "cache_dataset", "trials", "train", "evaluate", "figure")
        asked = ["trials:gpu=1", "train:gpu=1", "trials:runtime=60", *more]
        asked += [f"{rule}:mem_mb={memory}" for rule in rules]
        self._start(
            [
                *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")),
                *("--profile", str(ROOT / "slurm"), "--configfile", str(self.config), "--jobs", str(jobs)),
                *("--slurm-init-seconds-before-status-checks", "2", *arguments, "--retries", str(retries)),
                *("--default-resources", *resources, "--set-resources", *asked),
            ]
        )

    def resume(self, *arguments: str) -> None:
        """Start `autoseg resume`."""
        self._start([str(Path(sys.executable).parent / "autoseg"), "resume", *arguments])

    def _start(self, command: list[str]) -> None:
        with open(self.folder / self.log_name, "a") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(),
                stdout=log,
                stderr=log,
                text=True,
                # As in a terminal: what a shell starts in the background ignores Ctrl-C, and so would this.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def environment(self) -> dict[str, str]:
        """Return the environment of the run and of its jobs."""
        return environment(PYTHONPATH=str(ROOT), AUTOSEG_PLUGINS="tests.slurm.faults", **{FOLDER: str(self.faults)})

    def fail(self, *faults: dict[str, Any]) -> None:
        """Say what is to go wrong from now on."""
        new = self.faults / "faults.json.new"
        new.write_text(json.dumps(faults))
        new.replace(self.faults / "faults.json")  # a job reads all of it or none

    def log(self) -> str:
        """Return all that Snakemake has said."""
        return (self.folder / self.log_name).read_text()

    def seen(self, *words: str) -> list[dict[str, Any]]:
        """Return the commands that jobs have run so far, those with all these words."""
        path = self.faults / "seen.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if all(any(word in given for given in line["command"]) for word in words)]

    def jobs(self, *words: str) -> list[Job]:
        """Return all jobs of this folder, those whose rule and wildcards have all these words."""
        lines = output("squeue", "--noheader", "--states=all", "--format=%i|%T|%l|%m|%N|%k|%Z").splitlines()
        mine = [line.split("|") for line in lines if line.endswith(f"|{self.folder}")]
        found = [Job(int(number), *words) for number, *words, _ in mine]
        return sorted((job for job in found if all(word in job.rule for word in words)), key=lambda job: job.id)

    def running(self, *words: str) -> list[Job]:
        """Return the jobs that run now, those whose rule and wildcards have all these words."""
        return [job for job in self.jobs(*words) if job.state == "RUNNING"]

    def outcome(self) -> dict[str, bytes]:
        """Return the results that are compared with those of an unbroken run."""
        return results(self.results, (".json", ".md", ".csv"))

    def trials(self) -> int:
        """Return how many trials were scored, each counted once."""
        return len([path for path in self.trained if path.name.startswith("trial-")])

    def active(self) -> list[Job]:
        """Return the jobs that are not at their end."""
        return [job for job in self.jobs() if job.state in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")]

    def until(self, happened: Callable[[], Any], seconds: float = 900) -> None:
        """Wait for something, while Snakemake is alive."""
        limit = time.monotonic() + seconds
        while not happened():
            assert self.process is None or self.process.poll() is None, f"Snakemake has ended:\n{self.log()[-3000:]}"
            assert time.monotonic() < limit, f"it did not happen within {seconds} s:\n{self.log()[-3000:]}"
            time.sleep(0.2)

    def end(self, seconds: float = 1200) -> int:
        """Wait until Snakemake ends; return its exit code."""
        assert self.process is not None
        return self.process.wait(timeout=seconds)

    def stop(self) -> None:
        """End everything."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if left := [str(job.id) for job in self.active()]:
            subprocess.run(["scancel", *left], check=True)
        self._watching.set()
        self._watcher.join()

    def _watch(self) -> None:
        """Note every finished training, and those that are written a second time."""
        while not self._watching.wait(0.2):
            with self._moving:
                found = {
                    path.relative_to(self.results): seen for path, seen in finished_trainings(self.results).items()
                }
            for path, identity in found.items():
                if self.trained.setdefault(path, identity) != identity:
                    self.twice.add(path)
