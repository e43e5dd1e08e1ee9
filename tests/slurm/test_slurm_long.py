"""What takes minutes on the cluster: the demo, and a run that is longer than its job may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline_runs import changed, content, results, snakemake, with_config
from tests.slurm.cluster_runs import Run

pytestmark = [pytest.mark.slurm, pytest.mark.long]


@pytest.fixture
def run(tmp_path, cluster):
    """A run on the cluster, not yet started, in a folder beside that of a local one."""
    started = []

    def make(config):
        (tmp_path / "there").mkdir()
        run = Run(tmp_path / "there", Path(with_config(tmp_path, config)[1]))
        started.append(run)
        return run

    yield make
    for run in started:
        run.stop()


def as_here(run: Run) -> bool:
    """Run the same without the cluster; return whether all results are the same bytes."""
    here = run.config.parent / "here"
    here.mkdir()
    done = snakemake(here, "--configfile", str(run.config))
    assert done.returncode == 0, done.stdout
    return results(here / "results") == results(run.results)


def test_the_demo_on_the_cluster_has_the_results_of_a_local_one(run):
    demo = run(content("demo"))
    demo.start(memory=3000)
    assert demo.end(3600) == 0, demo.log()[-5000:]
    assert {job.state for job in demo.jobs()} == {"COMPLETED"}
    assert as_here(demo)


def test_a_run_longer_than_its_job_is_told_in_time_and_goes_on_in_the_next(run):
    config = content("tiny")
    training = {**config["retrainings"]["tiny"]["training"], "iterations": 8000, "checkpoint_every": 100000}
    changed(config, "retrainings", "tiny", "training", training)
    changed(config, "searches", {})
    changed(config, "tables", "main", "rows", ["ce"])
    cut = run(config)
    cut.start(resources=["slurm_partition=gpu", "slurm_extra='--signal=USR1@30'"])  # of a minute, at the first attempt
    assert cut.end(900) == 0, cut.log()[-5000:]
    states = [job.state for job in cut.jobs("train")]
    # Told, it writes its checkpoint and ends by itself: no job came to its limit.
    assert set(states[:-1]) == {"FAILED"}
    assert states[-1] == "COMPLETED"
    assert as_here(cut)
