"""What takes minutes on the cluster: the demo, and a run that is longer than its job may be."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.pipeline_runs import ROOT, changed, content, results, snakemake, with_config
from tests.slurm.cluster import ACCOUNT, output
from tests.slurm.cluster_runs import Run, small
from tests.test_auto import auto, small_study

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
    demo.start(memory="3000*attempt")
    assert demo.end(3600) == 0, demo.log()[-5000:]
    assert {job.state for job in demo.jobs()} == {"COMPLETED"}
    assert as_here(demo)


def one_run(**training) -> dict:
    """Return a config of a single training."""
    config = content("tiny")
    changed(config, "retrainings", "tiny", "training", {**config["retrainings"]["tiny"]["training"], **training})
    main = {**config["tables"]["main"], "rows": ["ce"]}
    return {**config, "searches": {}, "tables": {"main": main}, "figures": {}}


def test_a_run_longer_than_its_job_is_told_in_time_and_goes_on_in_the_next(run):
    cut = run(one_run(iterations=8000, checkpoint_every=100000))
    notice = ["slurm_partition=gpu", "slurm_extra='--signal=USR1@30'"]
    cut.start(more=["train:runtime=1*attempt"], resources=notice)  # half a minute before the end of one
    assert cut.end(900) == 0, cut.log()[-5000:]
    states = [job.state for job in cut.jobs("train")]
    # Told, it writes its checkpoint and ends by itself: no job came to its limit.
    assert set(states[:-1]) == {"FAILED"}
    assert states[-1] == "COMPLETED"
    assert as_here(cut)


def test_with_accounting_jobs_are_charged_and_their_states_asked_of_sacct(run, cluster):
    if not cluster.accounting:
        pytest.skip("this cluster keeps no accounts; `make test-long` starts one that does")
    charged = run(one_run())
    place = ["slurm_partition=gpu", f"slurm_account={ACCOUNT}"]
    charged.start("--slurm-status-command", "sacct", resources=place)
    assert charged.end(600) == 0, charged.log()[-5000:]
    accounts = output("sacct", "-nPX", "--allusers", "--format=account,state,workdir").splitlines()
    mine = [line for line in accounts if line.endswith(str(charged.folder))]
    assert mine
    assert {line.split("|")[0] for line in mine} == {ACCOUNT}
    assert {line.split("|")[1] for line in mine} == {"COMPLETED"}


def test_accounting_that_is_away_for_a_while_is_waited_for(run, cluster, unbroken):
    if not cluster.accounting:
        pytest.skip("this cluster keeps no accounts; `make test-long` starts one that does")
    away = run(small())
    held = {"words": ["trials", "step-001"], "do": "hold"}
    try:
        away.fail(held)
        away.start("--slurm-status-command", "sacct")
        away.until(lambda: len(away.seen("trials", "step-001")) == 3)
        cluster.stop_accounting()
        away.until(lambda: "cannot be asked for the state of jobs" in away.log())
        away.fail()  # the held jobs end while slurmdbd is away
        away.until(lambda: not away.running("trials"))
        cluster.start_accounting()
        assert away.end(600) == 0, away.log()[-5000:]
    finally:
        cluster.start_accounting()
    assert "SLURM answers again" in away.log()
    assert away.outcome() == unbroken
    assert away.trials() == 2 * 3
    assert not away.twice


def test_a_limit_of_submitted_jobs_and_a_closed_partition_are_waited_out(run, cluster, unbroken):
    """SLURM takes one job at a time, and for a while none."""
    if not cluster.accounting:
        pytest.skip("this cluster keeps no accounts; `make test-long` starts one that does")
    refused = run(small())
    held = {"words": ["trials", "step-001"], "do": "hold"}
    try:
        cluster.limit_submissions(1)
        refused.fail(held)
        refused.start()
        refused.until(lambda: refused.seen("trials", "step-001") and "violates accounting" in refused.log())
        assert len(refused.jobs("trials")) == 1
        cluster.set_partition("inactive")
        refused.fail()
        refused.until(lambda: "partition not available" in refused.log())
        cluster.set_partition("up")
        assert refused.end(900) == 0, refused.log()[-5000:]
    finally:
        cluster.set_partition("up")
        cluster.limit_submissions(-1)
    assert {job.state for job in refused.jobs()} == {"COMPLETED"}
    assert refused.outcome() == unbroken
    assert refused.trials() == 2 * 3
    assert not refused.twice


def test_an_account_that_is_not_there_is_said_before_the_first_job(run, cluster):
    if not cluster.accounting:
        pytest.skip("this cluster keeps no accounts; `make test-long` starts one that does")
    refused = run(one_run())
    refused.start(resources=["slurm_partition=gpu", "slurm_account=lba"])
    assert refused.end(60) != 0
    assert (
        "account: unknown account 'lba'; did you mean 'lab'? Expected one of lab, root; set slurm_account in"
        in refused.log()
    )
    assert not refused.jobs()


def test_auto_sends_its_study_to_the_cluster_with_the_results_of_a_local_one(tmp_path, cluster):
    profile = yaml.safe_load((ROOT / "slurm/config.yaml").read_text())
    profile |= {
        "slurm-init-seconds-before-status-checks": 2,
        "jobs": 6,
        "default-resources": {"slurm_partition": "gpu"},
    }
    profile["set-resources"] = {
        rule: {"mem_mb": 1000}
        for rule in ("prepare_dataset", "cache_dataset", "trials", "tune", "train", "evaluate", "figure")
    }
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab/config.yaml").write_text(yaml.safe_dump(profile))
    studies = {}
    for place, words in {"here": [], "there": ["--profile", str(tmp_path / "lab")]}.items():
        (tmp_path / place).mkdir()
        studies[place] = small_study(tmp_path / place)
        done = auto(tmp_path / place, *words)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    jobs = output("squeue", "--noheader", "--states=all", "--format=%T|%Z").splitlines()
    assert {job.split("|")[0] for job in jobs if job.endswith(str(studies["there"]))} == {"COMPLETED"}
    for name in ("verdict.txt", "surrogate.json", "my_loss.py"):
        assert (studies["here"] / name).read_bytes() == (studies["there"] / name).read_bytes(), name
