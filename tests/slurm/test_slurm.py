"""`tiny` on a real SLURM of two nodes, through every failure that a cluster brings; its results are a local run's."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.pipeline_runs import command, content, environment, results, with_config
from tests.slurm.cluster_runs import MEMORY, Job, Run

pytestmark = pytest.mark.slurm
LIMITS = ["prepare_dataset:runtime=1*attempt"]  # minutes
FAULTS = [{"words": ["prepare"], "do": "hang"}, {"words": ["trials", "mAcc", "rescore"], "do": "eat"}]


def config() -> dict:
    """Return `tiny` in fewer jobs, with a training by two processes and one that diverges."""
    tiny = content("tiny")
    for search in tiny["searches"].values():
        search["trials_per_job"] = 3
    one = tiny["retrainings"]["tiny"]
    longer = {**one["training"], "iterations": 400, "checkpoint_every": 1000}
    tiny["retrainings"]["pair"] = {**one, "processes": 2, "training": longer}
    tiny["retrainings"]["wild"] = {**one, "training": {**one["training"], "lr": 1e30}}
    for name in ("pair", "wild"):
        tiny["tables"][name] = {"dataset": "scenes", "retraining": name, "rows": ["ce"]}
    return {**tiny, "figures": {"gallery": tiny["figures"]["gallery"]}}


@dataclass
class Story:
    """What was seen while the run went on."""

    run: Run
    local: Path  # the folder of the same run without a cluster
    interrupted: int = 0
    left_by_interrupt: list[Job] = field(default_factory=list)
    orphans: list[Job] = field(default_factory=list)
    first_line: str = ""  # of the preempted training's log
    checkpoint: bool = False
    on_full_disk: list[Job] = field(default_factory=list)
    exit_code: int = 1
    jobs: list[Job] = field(default_factory=list)


@pytest.fixture(scope="module")
def story(tmp_path_factory, cluster):
    there, here = tmp_path_factory.mktemp("cluster"), tmp_path_factory.mktemp("local")
    with ExitStack() as ending:  # every part of it, whatever happens
        run = Run(there, Path(with_config(there, config())[1]))
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", run.results], check=True)
        ending.callback(subprocess.run, ["umount", "--lazy", run.results], check=True)
        ending.callback(cluster.start_missing_nodes)
        ending.callback(run.stop)
        log = ending.enter_context(open(here / "log", "w"))
        ours = command(*with_config(here, config()))
        local = subprocess.Popen(ours, cwd=here, env=environment(), stdout=log, stderr=log)  # at the same time
        ending.callback(local.kill)
        seen = Story(run, here)
        run.fail(*FAULTS, {"words": ["trials", "step-002"], "do": "hold"})
        interrupt(seen)
        kill(seen)
        run.resume()
        preempt(seen)
        lose_node(seen, cluster)
        fill_disk(seen)
        seen.exit_code = run.end()
        seen.jobs = run.jobs()
        assert local.wait(1200) == 0, (here / "log").read_text()
        yield seen


def interrupt(seen: Story) -> None:
    """Press Ctrl-C while trials are running."""
    run = seen.run
    run.start(jobs=2, more=LIMITS)
    run.until(lambda: run.seen("trials"))
    run.process.send_signal(signal.SIGINT)
    seen.interrupted = run.end(60)
    time.sleep(1)
    left, limit = run.active(), time.monotonic() + 30  # a busy machine takes seconds to end what was cancelled
    while any(job.state == "COMPLETING" for job in run.jobs()) and time.monotonic() < limit:
        time.sleep(0.2)
    still = {job.id for job in run.active()}
    seen.left_by_interrupt = [job for job in left if job.state != "COMPLETING" or job.id in still]


def kill(seen: Story) -> None:
    """Kill Snakemake while trials are running, at least one of them scored."""
    run = seen.run
    run.start(more=LIMITS)
    run.until(lambda: list(run.results.rglob("trial-*.json")))
    run.process.kill()
    run.end()
    seen.orphans = run.active()


def preempt(seen: Story) -> None:
    """Tell the training by two processes that its time is nearly over, as `--signal` of sbatch does."""
    run = seen.run
    folder = run.results / "tiny/runs/scenes/pair/ce/seed-0"
    run.until(lambda: (folder / "log.jsonl").exists() and (folder / "log.jsonl").read_text().count("\n") > 5)
    job = run.jobs("train", "pair")[-1]
    subprocess.run(["scancel", "--signal=USR1", str(job.id)], check=True)
    run.until(lambda: run.jobs("train", "pair")[-1].id > job.id)
    seen.first_line = (folder / "log.jsonl").read_text().partition("\n")[0]
    seen.checkpoint = (folder / "checkpoint.pt").exists()


def lose_node(seen: Story, cluster) -> None:
    """Cut the power of a node under a running chunk, and bring it back when its jobs are known to be lost.

    Chunks of the second step are held until here: otherwise a fast machine has run them all before.
    """
    run = seen.run

    def running() -> list[Job]:
        return [job for job in run.jobs("trials", "step-002") if job.state == "RUNNING"]

    run.until(running)
    node = running()[0].nodes
    cluster.kill_node(node)
    run.until(lambda: [job for job in run.jobs() if job.state == "NODE_FAIL"])
    cluster.start_node(node)
    run.fail(*FAULTS)


def fill_disk(seen: Story) -> None:
    """Leave no room for results until a job has failed of it."""
    run = seen.run
    run.until(lambda: run.seen("train", "searched:mAcc"))  # the last training of all
    failed = {job.id for job in run.jobs() if job.state == "FAILED"}
    filler = run.results / "filler"
    with open(filler, "wb", buffering=0) as file, suppress(OSError):  # that is the aim
        while True:
            file.write(bytes(1 << 16))
    try:
        run.until(lambda: {job.id for job in run.jobs() if job.state == "FAILED"} - failed)
    finally:
        filler.unlink()
    seen.on_full_disk = [job for job in run.jobs() if job.state == "FAILED" and job.id not in failed]


def later(seen: Story, job: Job) -> list[Job]:
    """Return the jobs that did a job's work again."""
    return [other for other in seen.jobs if other.rule == job.rule and other.id > job.id]


def run_again(seen: Story, state: str) -> bool:
    """Return whether there were jobs that ended so, and all were run again with success."""
    ended = [job for job in seen.jobs if job.state == state]
    return bool(ended) and all(later(seen, job)[-1].state == "COMPLETED" for job in ended)


def test_the_run_ends_well_with_the_results_of_a_local_run(story):
    assert story.exit_code == 0, story.run.log()[-5000:]
    assert "Done. Open results/tiny/report.html" in story.run.log()
    there, here = results(story.run.results), results(story.local / "results")
    assert set(there) == set(here)
    assert not [(name, there[name], here[name]) for name in here if there[name] != here[name]]


def test_jobs_run_on_both_nodes_with_a_gpu_each(story):
    trainings = [line for line in story.run.seen() if line["command"][0] in ("trials", "train")]
    assert {line["node"] for line in trainings} == {"n1", "n2"}
    assert all(line["gpus"] for line in trainings)


def test_no_finished_trial_or_network_is_trained_twice(story):
    assert len([path for path in story.run.trained if path.name.startswith("trial-")]) == 2 * 2 * 3 + 3
    assert not story.run.twice


def test_no_orphan_is_left(story):
    assert not story.run.active()
    mark = f"{story.run.folder}#tiny"
    assert not [p.pid for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("AUTOSEG_RUN") == mark]
    assert not list(story.run.results.rglob(".*.part"))


def test_ctrl_c_cancels_the_jobs(story):
    assert story.interrupted != 0
    assert not story.left_by_interrupt


def test_one_command_brings_a_killed_run_back(story):
    assert story.orphans
    ended = {job.id: job.state for job in story.jobs}
    assert {ended[job.id] for job in story.orphans} <= {"CANCELLED", "COMPLETED"}
    assert "jobs left on the cluster are cancelled" in story.run.log()


def test_a_preempted_training_goes_on_from_its_checkpoint(story):
    assert story.checkpoint
    log = story.run.results / "tiny/runs/scenes/pair/ce/seed-0/log.jsonl"
    assert log.read_text().partition("\n")[0] == story.first_line  # its speed too: that step was not made again
    assert run_again(story, "FAILED")


def test_the_jobs_of_a_lost_node_are_run_again(story):
    assert run_again(story, "NODE_FAIL")


def test_a_job_over_its_time_limit_gets_more_time(story):
    cut, again = (job for job in story.jobs if "prepare_dataset" in job.rule)
    assert (cut.state, cut.limit) == ("TIMEOUT", "1:00")
    assert (again.state, again.limit) == ("COMPLETED", "2:00")


def test_a_job_out_of_memory_gets_more_memory(story, cluster):
    if not cluster.confined:
        pytest.skip("this machine has no memory cgroups of version 1, so no job can run out of its memory")
    logs = sorted(story.run.folder.glob(".snakemake/slurm_logs/rule_trials/mAcc_rescore_*/*.log"))
    killed = [int(path.stem) for path in logs if "oom-kill" in path.read_text()]
    assert killed
    for job in story.jobs:
        if job.id in killed:
            assert job.memory == f"{MEMORY}M"
            assert later(story, job)[0].memory == f"{2 * MEMORY}M"
            assert later(story, job)[-1].state == "COMPLETED"


def test_jobs_that_found_no_room_on_the_disk_are_run_again(story):
    assert story.on_full_disk
    assert all(later(story, job)[-1].state == "COMPLETED" for job in story.on_full_disk)


def test_a_diverged_training_is_a_result(story):
    found = json.loads((story.run.results / "tiny/runs/scenes/wild/ce/seed-0/run.json").read_text())
    assert found["diverged"]
