"""What administrators do to a cluster while a run is on it: the run goes on by itself, with the results of a local one.

Daemons are restarted; nodes are drained, set down and brought back; jobs are held, cancelled one by one and requeued;
and Snakemake itself is stopped for a while.
"""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.pipeline_runs import with_config
from tests.slurm.cluster import NODES, Cluster
from tests.slurm.cluster_runs import Job, Run, small

pytestmark = [pytest.mark.slurm, pytest.mark.long]
FIRST, SECOND = ({"words": ["trials", step], "do": "hold"} for step in ("step-001", "step-002"))
LAST = {"words": ["train", "searched"], "do": "hold"}


@dataclass
class Story:
    """What was seen while the run went on."""

    run: Run
    survived: list[Job] = field(default_factory=list)  # the jobs that ran while the daemons were restarted
    drained: str = ""
    held: list[Job] = field(default_factory=list)
    lost: list[Job] = field(default_factory=list)  # the jobs of a node that was set down
    cancelled: list[Job] = field(default_factory=list)
    not_requeued: str = ""
    requeued: Job | None = None
    while_stopped: int = 0
    exit_code: int = 1
    jobs: dict[int, Job] = field(default_factory=dict)


def scontrol(*words: str) -> str:
    """Change something in SLURM; return what it says if it refuses."""
    done = subprocess.run(["scontrol", *words], capture_output=True, text=True, check=False)
    return (done.stderr or done.stdout).strip() if done.returncode else ""


@pytest.fixture(scope="module")
def story(tmp_path_factory, cluster):
    folder = tmp_path_factory.mktemp("administrators")
    run = Run(folder / "there", Path(with_config(folder, small())[1]))
    seen = Story(run)
    try:
        run.fail(FIRST, SECOND, LAST)
        # Where accounts are kept, the plugin does not use a node again that was down: all jobs must fit on the other.
        run.start(memory="1000")
        restart_daemons(seen, cluster)
        drain(seen, cluster)
        hold(seen, cluster)
        set_down(seen, cluster)
        cancel(seen)
        stop_snakemake(seen)
        requeue(seen)
        seen.exit_code = run.end(300)
        seen.jobs = {job.id: job for job in run.jobs()}
        yield seen
    finally:
        cluster.start_missing_controller()
        cluster.start_missing_nodes()
        for node in NODES:
            cluster.bring_back(node)
        run.stop()


def restart_daemons(seen: Story, cluster: Cluster) -> None:
    """Restart slurmctld and both slurmd under the running jobs of the first step."""
    run = seen.run
    run.until(lambda: len(run.seen("trials", "step-001")) == 3)
    seen.survived = run.running("trials")
    cluster.stop_controller()
    cluster.start_controller()
    for node in NODES:
        cluster.restart_node(node)
        cluster.bring_back(node)


def drain(seen: Story, cluster: Cluster) -> None:
    """Drain both nodes: what runs there ends well, and new jobs wait."""
    run = seen.run
    for node in NODES:
        cluster.set_node(node, "drain")
    run.fail(SECOND, LAST)
    run.until(lambda: len(run.jobs("trials", "step-002")) == 3)
    time.sleep(3)
    seen.drained = " ".join(sorted({job.state for job in run.jobs("trials", "step-002")}))


def hold(seen: Story, cluster: Cluster) -> None:
    """Hold all waiting jobs; with the nodes back they still wait, until they are released."""
    run = seen.run
    waiting = run.jobs("trials", "step-002")
    for job in waiting:
        assert not scontrol("hold", str(job.id))
    for node in NODES:
        cluster.bring_back(node)
    time.sleep(3)
    seen.held = run.jobs("trials", "step-002")
    for job in waiting:
        assert not scontrol("release", str(job.id))
    run.until(lambda: len(run.seen("trials", "step-002")) == 3)


def set_down(seen: Story, cluster: Cluster) -> None:
    """Set each node down under its running jobs, and bring it back."""
    run = seen.run
    for node in NODES:
        lost = [job for job in run.running("trials", "step-002") if job.nodes == node]
        cluster.set_node(node, "down")
        run.until(lambda ids={job.id for job in lost}: not ids & {job.id for job in run.running()})
        cluster.bring_back(node)
        run.until(lambda: len(run.running("trials", "step-002")) == 3)
        seen.lost += lost


def cancel(seen: Story) -> None:
    """Cancel each running job, one after the other."""
    run = seen.run
    for job in run.running("trials", "step-002"):
        subprocess.run(["scancel", str(job.id)], check=True)
        seen.cancelled.append(job)
        run.until(lambda: len(run.running("trials", "step-002")) == 3)


def stop_snakemake(seen: Story) -> None:
    """Stop Snakemake, as Ctrl-Z does, while its jobs come to their end."""
    run = seen.run
    run.process.send_signal(signal.SIGSTOP)
    run.fail(LAST)
    run.until(lambda: not run.running("trials"))
    time.sleep(3)
    seen.while_stopped = len(run.jobs("train"))
    run.process.send_signal(signal.SIGCONT)


def requeue(seen: Story) -> None:
    """Put a running job back into the queue: SLURM refuses, until an administrator changes the job."""
    run = seen.run
    run.until(lambda: run.seen("train", "searched"))
    (job,) = run.running("train")
    seen.not_requeued = scontrol("requeue", str(job.id))
    assert not scontrol("update", f"jobid={job.id}", "requeue=1")
    assert not scontrol("requeue", str(job.id))
    run.until(lambda: run.jobs("train")[-1].state == "PENDING")
    seen.requeued = job
    run.fail()
    assert not scontrol("update", f"jobid={job.id}", "starttime=now")  # it would wait for two minutes


def test_the_run_ends_well_by_itself(story):
    assert story.exit_code == 0, story.run.log()[-5000:]


def test_its_results_are_those_of_an_unbroken_run(story, unbroken):
    assert story.run.outcome() == unbroken


def test_no_finished_trial_or_network_is_trained_twice(story):
    assert story.run.trials() == 2 * 3
    assert not story.run.twice


def test_jobs_outlive_a_restart_of_the_daemons(story):
    assert len(story.survived) == 3
    assert {story.jobs[job.id].state for job in story.survived} == {"COMPLETED"}


def test_jobs_wait_for_a_drained_node_and_while_they_are_held(story):
    assert story.drained == "PENDING"
    assert [job.state for job in story.held] == ["PENDING"] * 3


def test_jobs_of_a_node_that_is_set_down_and_cancelled_ones_are_run_again(story):
    assert {job.nodes for job in story.lost} == set(NODES)
    assert {story.jobs[job.id].state for job in story.lost} == {"NODE_FAIL"}
    assert len(story.cancelled) == 3
    assert {story.jobs[job.id].state for job in story.cancelled} == {"CANCELLED"}
    chunks = {job.rule for job in story.cancelled}
    assert {rule: story.run.jobs(rule)[-1].state for rule in chunks} == dict.fromkeys(chunks, "COMPLETED")


def test_a_stopped_snakemake_goes_on_where_it_was(story):
    assert story.while_stopped == 0


def test_a_requeued_job_runs_again_under_its_own_number(story):
    assert "not permitted" in story.not_requeued.lower() or "disabled" in story.not_requeued.lower()
    assert story.jobs[story.requeued.id].state == "COMPLETED"
