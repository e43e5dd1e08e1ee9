"""How a run was started is noted, and what must not be resumed is refused in a sentence; no cluster is needed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from autoseg.pipeline import resume, slurm
from tests.refusals import refused


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def noted_by_another(*arguments: str) -> None:
    """Let a process that has ended by now have started a run."""
    code = "import sys; from autoseg.pipeline.resume import note_start; note_start('tiny', sys.argv[1:], None)"
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)


def test_a_run_that_is_alive_is_not_resumed(folder):
    resume.note_start("tiny", ["--cores", "2"], None)
    with refused(where="run 'tiny'", cure=f"kill -INT {os.getpid()}"):
        resume.prepare(None, [])


def test_a_dead_run_is_resumed_as_it_was_started_and_its_leftovers_are_removed(folder):
    noted_by_another("--cores", "2")
    leftover = folder / "results/tiny/searches/.trial-0001.json.x.part"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    assert resume.prepare(None, []) == ["--cores", "2"]
    assert resume.prepare("tiny", ["--cores", "1"]) == ["--cores", "1"]
    assert not leftover.exists()


def test_processes_of_a_killed_run_are_ended_also_when_its_folder_was_renamed(tmp_path, monkeypatch):
    before, after, other = (tmp_path / name for name in ("before", "after", "other"))
    left = []
    for place in (before, other):  # the other has a run of the same name, which is none of this one's business
        place.mkdir()
        monkeypatch.chdir(place)
        noted_by_another("--cores", "2")
        resume.mark_processes("tiny")
        left.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
    monkeypatch.delenv(resume.RUN)
    before.rename(after)
    monkeypatch.chdir(after)
    try:
        assert resume.prepare(None, []) == ["--cores", "2"]
        assert left[0].wait(10) is not None
        assert left[1].poll() is None
    finally:
        for process in left:
            process.kill()
            process.wait()


def test_a_second_run_of_a_name_is_refused_while_the_first_is_alive(folder):
    noted_by_another("--cores", "2")
    resume.refuse_second("tiny")
    resume.note_start("tiny", ["--cores", "2"], None)
    with refused(where="run 'tiny'", what="still running"):
        resume.refuse_second("tiny")
    resume.refuse_second("demo")


def test_a_run_of_another_machine_is_resumed_only_by_force(folder):
    noted_by_another("--cores", "2")
    path = folder / ".snakemake/autoseg/tiny.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "login2"}))
    with refused(where="run 'tiny'", what="login2", cure="--force"):
        resume.prepare(None, [])
    assert resume.prepare(None, [], force=True) == ["--cores", "2"]


def test_a_forced_run_is_not_forced_again(folder):
    noted_by_another("--cores", "2", "--forceall")
    with refused(where="run 'tiny'", what="--forceall", cure="autoseg resume -- "):
        resume.prepare(None, [])
    assert resume.prepare(None, ["--cores", "2"]) == ["--cores", "2"]


def test_where_nothing_was_started_nothing_is_resumed(folder):
    with refused(where=str(folder), cure="`--`"):
        resume.prepare(None, [])
    with refused(where=str(folder), what="'paper'"):
        resume.prepare("paper", [])


def test_a_missing_plugin_and_a_missing_cluster_are_said(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert "run it on a login node" in str(slurm.check(slurm.Need())[0])
    monkeypatch.setitem(sys.modules, "snakemake_executor_plugin_slurm", None)
    assert "pip install 'snakemake-executor-plugin-slurm>=2'" in str(slurm.check(slurm.Need())[0])


def test_a_profile_names_partition_and_account(tmp_path):
    text = "default-resources: {slurm_partition: a100, slurm_account: 123}\nslurm-status-command: sacct\n"
    (tmp_path / "config.yaml").write_text(text)
    assert slurm.read_profile(tmp_path, 4) == (slurm.Need("a100", "123", gpus=4), "sacct")
    with refused(where=str(tmp_path / "other"), cure="--profile"):
        slurm.read_profile(tmp_path / "other", 1)


@pytest.mark.parametrize(
    ("settings", "command", "message"),
    [
        ({"MinJobAge": "300 sec"}, "squeue", None),
        ({"MinJobAge": "60 sec"}, "squeue", "squeue forgets a job 60 s after its end"),
        ({"AccountingStorageType": "accounting_storage/none"}, "sacct", "set slurm-status-command in .* to squeue"),
        ({"AccountingStorageType": "accounting_storage/slurmdbd", "MinJobAge": "60 sec"}, "sacct", None),
    ],
)
def test_a_status_command_that_would_miss_jobs_is_refused(settings, command, message):
    found = [str(problem) for problem in slurm._check_status(settings, command)]
    assert len(found) == bool(message)
    assert all(re.search(message, text) for text in found)
