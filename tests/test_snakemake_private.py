"""What the Snakefile takes from Snakemake beside its documented interface is still there, and means the same."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from autoseg.pipeline import snakemake_private as private
from tests.pipeline_runs import ROOT, environment

# `done` is there already; `first` runs, and `second`, which waits for it and asks for more in every attempt.
SNAKEFILE = """
import json
from autoseg.pipeline import snakemake_private as private

private.limit(workflow, "shares", 2)

localrules: all, deep, done, first, second, unwanted
before = []
private.before_jobs(workflow, before.append)
private.before_jobs(workflow, lambda dry: print(f"jobs are planned, dry={dry}", flush=True))

rule all:
    input: "done.txt", "second.txt", "results/mine/first.txt"
rule done:
    output: "done.txt"
    shell: "touch {output}"
rule first:
    output: "first.txt"
    shell: "touch {output}"
rule deep:
    input: "first.txt"
    output: "results/mine/first.txt"
    shell: "touch {output}"
rule second:
    input: "first.txt"
    output: "second.txt"
    resources: runtime=lambda w, attempt: 10 * attempt, gpu=1
    shell: "touch {output}"
rule unwanted:
    output: "unwanted.txt"
    shell: "touch {output}"

onstart:
    (job,) = private.jobs_to_run(workflow, "second")
    found = {
        "files": private.given_configfiles(workflow),
        "keys": private.given_keys(workflow),
        "rules": sorted(job.rule.name for job in private.jobs_to_run(workflow)),
        "planned": [rule for rule in ("done", "first", "unwanted") if private.is_planned(workflow, rule)],
        "third": private.resources(job, 3, "runtime", "gpu", "slurm_account"),
        "after": private.resources(job, job.attempt, "runtime"),
        "attempts": private.attempts(workflow),
        "status": private.slurm_status_command(workflow),
        "run": private.slurm_run(workflow),
        "main": workflow.is_main_process,
        "before": before,
        "locked": [private.is_locked("results/mine"), private.is_locked("results/other")],
        "local": private.is_local(workflow),
        "shares": workflow.scheduler.global_resources["shares"],
    }
    with open("found.json", "w") as file:
        json.dump(found, file)
"""


def found(folder, *arguments):
    (folder / "Snakefile").write_text(SNAKEFILE)
    (folder / "done.txt").touch()
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "1", *arguments],
        cwd=folder,
        env=environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text())


def test_a_plain_run_has_neither_config_nor_cluster(tmp_path):
    assert found(tmp_path) == {
        "files": [],
        "keys": {},
        "rules": ["all", "deep", "first", "second"],
        "planned": ["done", "first"],
        "third": [30, 1, None],
        "after": [10],
        "attempts": 1,
        "status": None,
        "run": None,
        "main": True,
        "before": [False],
        "locked": [True, False],
        "local": True,
        "shares": 2,
    }


@pytest.mark.parametrize("option", ["--summary", "--lint", "--dag", "--unlock", "--list-rules", "--touch", "-n"])
def test_what_runs_no_job_is_told_from_what_does(tmp_path, option):
    """A dry run is told as such; the others are not announced."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    for name in ("done.txt", "first.txt"):
        (tmp_path / name).touch()
    command = [sys.executable, "-m", "snakemake", "--cores", "1", option]
    done = subprocess.run(command, cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True)
    assert ("jobs are planned, dry=True" in done.stdout) == (option == "-n"), done.stdout + done.stderr
    assert "dry=False" not in done.stdout


SKEWED = """
from snakemake.dag import DAG
from autoseg.pipeline import snakemake_private as private
{call}
rule all:
    input: "last"
rule first:
    input: "given"
    output: "first"
    shell: "touch {{output}}"
rule last:
    input: "first"
    output: "last"
    shell: "touch {{output}}"
"""


@pytest.mark.parametrize("call", ["", "private.keep_times_in_order(DAG)"])
def test_an_input_of_a_clock_that_is_ahead_fails_no_job(tmp_path, call):
    (tmp_path / "Snakefile").write_text(SKEWED.format(call=call))
    (tmp_path / "given").touch()
    os.utime(tmp_path / "given", (time.time() + 3600,) * 2)
    command = [sys.executable, "-m", "snakemake", "--cores", "1"]
    options = {"cwd": tmp_path, "env": environment(PYTHONPATH=str(ROOT)), "capture_output": True, "text": True}
    done = subprocess.run(command, **options)
    if not call:
        assert "clock skew" in done.stderr  # without it there would be nothing to mend
        return
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "last").stat().st_mtime >= (tmp_path / "given").stat().st_mtime
    assert "Nothing to be done" in subprocess.run(command, **options).stderr


def test_a_limit_on_the_command_line_is_kept(tmp_path):
    assert found(tmp_path, "--resources", "shares=4")["shares"] == 4


def test_config_files_keys_and_retries_are_those_of_the_command_line(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    seen = found(tmp_path, "--configfile", "mine.yaml", "--config", "name=other", "seed=3", "--retries", "2")
    assert [path.rpartition("/")[2] for path in seen["files"]] == ["mine.yaml"]
    assert (seen["keys"], seen["attempts"]) == ({"name": "other", "seed": 3}, 3)


def test_the_slurm_executor_names_its_run_and_its_status_command(tmp_path):
    """Every job is local, so no cluster is needed."""
    slurm = ("--executor", "slurm", "--jobs", "1", "--slurm-jobname-prefix", "autoseg")
    seen = found(tmp_path, *slurm, "--slurm-status-command", "squeue")
    assert seen["run"].startswith("autoseg_")
    assert seen["status"] == "squeue"
    assert not seen["local"]


def test_the_slurm_executor_starts_the_batch_scripts_snakemake_with_an_executor_of_its_own():
    plugin = importlib.import_module("snakemake_executor_plugin_slurm")
    executor = object.__new__(plugin.Executor)  # a whole one would look for a cluster
    executor.workflow = SimpleNamespace(executor_settings=plugin.ExecutorSettings())
    assert private.is_slurm_batch(executor.additional_general_args().split())
    assert not private.is_slurm_batch(["snakemake", "--cores", "1", "--mode", "remote"])
