"""A SLURM that does not answer for a while: the run waits, goes on by itself, and has the results of a local one."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from autoseg.pipeline.patience import FORGOTTEN_VARIABLE
from tests.pipeline_runs import results, snakemake, with_config
from tests.slurm.cluster_runs import Run, small

pytestmark = pytest.mark.slurm
HELD = {"words": ["trials", "step-001"], "do": "hold"}

# Fails while <path>.away is there; does what it is asked and then fails once if <path>.late is there (of calls at the
# same time one takes it); leaves out the lines that match <path>.hidden.
COMMAND = """#!/bin/bash
if [ -e "{path}.away" ]; then
    echo "{name}: error: Socket timed out" >&2
    echo >> "{path}.refused"
    exit 1
fi
answer=$("{real}" "$@") || exit
if mv "{path}.late" "{path}.was-late" 2> /dev/null; then
    echo "{name}: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
    exit 1
fi
if [ -e "{path}.hidden" ]; then
    grep -vf "{path}.hidden" <<< "$answer" || true
else
    printf '%s\\n' "$answer"
fi
"""


class Stumbling(Run):
    """A run whose `squeue` and `sbatch` fail while the test says so; otherwise they are SLURM's own."""

    def __init__(self, folder: Path, config: Path) -> None:
        super().__init__(folder, config)
        self.exit_code = 1
        self.local: Future[subprocess.CompletedProcess[str]]  # the same without a cluster
        self.commands = folder / "commands"
        self.commands.mkdir()
        for name in ("squeue", "sbatch"):
            path = self.commands / name
            path.write_text(COMMAND.format(path=path, real=shutil.which(name), name=name))
            path.chmod(0o755)

    def environment(self) -> dict[str, str]:
        """Return an environment in which the test's commands come first."""
        found = super().environment()
        return {**found, "PATH": f"{self.commands}:{found['PATH']}", FORGOTTEN_VARIABLE: "5"}

    def refused(self, name: str) -> int:
        """Return how often a command has failed so far."""
        path = self.commands / f"{name}.refused"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def away(self, name: str, times: int) -> None:
        """Let a command fail so often."""
        mark = self.commands / f"{name}.away"
        before = self.refused(name)
        mark.touch()
        self.until(lambda: self.refused(name) >= before + times)
        mark.unlink()


@pytest.fixture(scope="module")
def run(tmp_path_factory, cluster):
    """Run through all of it.

    slurmctld is away while jobs end; sbatch takes a job and says that it did not; squeue fails; sbatch refuses; a job
    is forgotten.
    """
    folder = tmp_path_factory.mktemp("stumbles")
    run = Stumbling(folder / "there", Path(with_config(folder, small(trials_per_job=2))[1]))
    (folder / "here").mkdir()
    pool = ThreadPoolExecutor(1)
    run.local = pool.submit(snakemake, folder / "here", "--configfile", str(run.config))  # while the cluster waits
    try:
        run.fail(HELD)
        run.start()
        run.until(lambda: run.seen("trials", "step-001"))
        cluster.stop_controller()
        run.until(lambda: "cannot be asked for the state of jobs" in run.log())
        run.fail()  # the held jobs end while slurmctld is away
        run.until(lambda: len(list(run.results.rglob("step-001/trial-*.json"))) == 3)
        (run.commands / "sbatch.late").touch()  # the next job is taken, but sbatch says that it was not
        cluster.start_controller()
        run.until(lambda: run.seen("trials", "step-002"))
        run.away("squeue", times=12)  # some cycles of five queries
        (run.commands / "sbatch.away").touch()
        run.until(lambda: run.refused("sbatch") >= 2)
        (run.commands / "sbatch.away").unlink()
        run.until(lambda: run.jobs("train"))
        lost = run.jobs("train")[-1]
        (run.commands / "squeue.hidden").write_text(f"^{lost.id}|\n")  # as after MinJobAge
        run.exit_code = run.end(300)
        yield run
    finally:
        cluster.start_missing_controller()
        run.stop()
        pool.shutdown()


def test_the_run_ends_well_by_itself(run):
    assert run.exit_code == 0, run.log()[-5000:]
    for sentence in ("SLURM answers again", "is tried again in", "has not known the job"):
        assert sentence in run.log(), run.log()[-5000:]


def test_its_results_are_those_of_a_local_run(run):
    done = run.local.result()
    assert done.returncode == 0, done.stdout
    assert results(run.results) == results(run.folder.parent / "here/results")


def test_nothing_finished_is_trained_again(run):
    assert run.trials() == 2 * 3
    assert not run.twice


def test_a_job_that_was_taken_although_sbatch_failed_is_not_submitted_again(run):
    assert "SLURM has taken the job of rule" in run.log()
    number = run.log().partition("after all, as ")[2].partition(".")[0]
    (taken,) = [job for job in run.jobs() if job.id == int(number)]
    assert [job.id for job in run.jobs(taken.rule)] == [taken.id]
