"""GPUs handed out: which job gets which, never two over the limit, and a killed job frees its own.

There is no GPU here: CUDA_VISIBLE_DEVICES, or an nvidia-smi of the test's own, says which there are.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from small_task import arguments, start, wait_for

from autoseg import gpus
from autoseg.cli import main
from autoseg.errors import InputError
from autoseg.pipeline.layout import Layout
from tests.pipeline_runs import changed, content, snakemake, with_config

HOLD = """
import logging, os, sys
from autoseg import gpus
logging.basicConfig(format="%(message)s")
with gpus.taken(int(sys.argv[1]), int(sys.argv[2])) as mine:
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.read()
"""

FORK = """
    if os.fork() == 0:
        import time
        os.closerange(0, 3)
        time.sleep(60)
        os._exit(0)
"""


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine with two GPUs, of which no other test knows."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(gpus.tempfile, "tempdir", None)
    monkeypatch.setenv(gpus.VISIBLE, "0,1")
    for name in (gpus.HELD, "WORLD_SIZE", "SLURM_JOB_ID", "SLURM_STEP_ID", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    yield monkeypatch
    monkeypatch.undo()
    gpus.tempfile.tempdir = None


class Job:
    """A process that asks for GPUs and holds them until it is ended."""

    def __init__(self, count: int = 1, sharing: int = 1, code: str = HOLD) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = start(code, str(count), str(sharing), module=None, **pipes)

    def got(self) -> str:
        """Which GPUs it has; waits for them."""
        return self.process.stdout.readline().strip()

    def has_nothing_yet(self) -> bool:
        """Whether it waits on, after some looks."""
        return not select.select([self.process.stdout], [], [], 3 * gpus.LOOK_EVERY)[0]

    def waits(self) -> str:
        """What it says when it has to wait."""
        return self.process.stderr.readline().strip()

    def end(self) -> None:
        self.process.communicate("")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def job():
    jobs: list[Job] = []

    def begin(*args, **options) -> Job:
        jobs.append(Job(*args, **options))
        return jobs[-1]

    yield begin
    for one in jobs:
        if one.process.poll() is None:
            one.kill()


# ---- Which GPUs there are --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("2,3", ["2", "3"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("GPU-ab, 1", ["GPU-ab", "1"]),
        ("MIG-ab,MIG-cd", ["MIG-ab", "MIG-cd"]),
        ("NoDevFiles", []),  # SLURM's word in a job without GPUs
        ("0,none,1", ["0"]),
        ("0,0", ["0"]),
    ],
)
def test_the_gpus_that_a_user_leaves_visible_are_those_that_are_used(monkeypatch, variable, names):
    monkeypatch.setenv(gpus.VISIBLE, variable)
    assert gpus.visible() == names


def with_nvidia_smi(folder: Path, monkeypatch, text: str) -> None:
    tool = folder / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.delenv(gpus.VISIBLE)


def test_without_the_variable_nvidia_smi_lists_them_and_its_numbers_are_cudas(tmp_path, monkeypatch):
    with_nvidia_smi(tmp_path, monkeypatch, "echo '0, NVIDIA A100-SXM4-40GB'; echo '1, NVIDIA T400'")
    assert gpus.visible() == ["0", "1"]
    assert "0 (NVIDIA A100-SXM4-40GB), 1 (NVIDIA T400); one job at a time on each" in gpus.description()
    assert "one job, or 3 trials, at a time" in gpus.description(3)
    with gpus.taken(2):
        assert (os.environ[gpus.VISIBLE], os.environ["CUDA_DEVICE_ORDER"]) == ("0,1", "PCI_BUS_ID")
    assert gpus.VISIBLE not in os.environ
    assert "CUDA_DEVICE_ORDER" not in os.environ


def test_a_driver_that_does_not_answer_means_no_gpu(tmp_path, monkeypatch):
    with_nvidia_smi(tmp_path, monkeypatch, "echo 'has failed because it could not communicate'; exit 9")
    assert gpus.visible() == []
    assert gpus.description() == ""
    with gpus.taken(3) as mine:
        assert mine == []


# ---- Which job gets which --------------------------------------------------------------------------------------------


def test_each_job_has_a_gpu_of_its_own_and_the_next_one_waits_with_one_line(job):
    first, second = job(), job()
    freed = first.got()
    assert {freed, second.got()} == {"0", "1"}
    third = job()
    assert third.waits().startswith("waits for a GPU: other jobs hold 0, 1")
    first.end()
    assert third.got() == freed
    assert third.process.communicate("")[1] == ""  # no second line


@pytest.mark.parametrize("how", ["kill", "end"])
def test_a_job_that_ends_or_is_killed_frees_its_gpu_at_once(job, how):
    first, second = job(), job()
    mine = {first.got(): first, second.got(): second}
    third = job()
    third.waits()
    getattr(mine["1"], how)()
    began = time.monotonic()
    assert third.got() == "1"
    assert time.monotonic() - began < 3


def test_processes_that_a_job_forked_do_not_hold_its_gpu_after_a_kill(job, tmp_path):
    """As those that load data: they live on for seconds."""
    first = job(2, code=HOLD.replace("    print", FORK + "    print", 1))
    assert first.got() == "0,1"
    (child,) = psutil.Process(first.process.pid).children()
    first.kill()
    assert job(2).got() == "0,1"
    assert child.is_running()
    child.kill()


def test_a_program_that_replaces_the_process_holds_its_gpus(job):
    code = HOLD.replace("sys.stdin.read()", "gpus.keep_over_exec(); os.execvp('cat', ['cat'])")
    first = job(2, code=code)
    assert first.got() == "0,1"
    wait_for(lambda: psutil.Process(first.process.pid).name() == "cat", first.process)
    second = job()
    second.waits()
    first.kill()
    assert second.got() == "0"


def test_a_job_for_two_gpus_is_not_passed_over_by_those_for_one(job):
    first, second = job(), job()
    mine = {first.got(): first, second.got(): second}
    both = job(2)
    assert both.waits().startswith("waits for 2 GPUs")
    later = job()
    later.waits()
    mine["0"].end()
    assert later.has_nothing_yet()  # a GPU is free, but it is not its turn
    mine["1"].end()
    assert both.got() == "0,1"
    both.end()
    assert later.got() == "0"


def test_more_gpus_than_there_are_is_an_error_not_a_wait():
    with pytest.raises(InputError, match="3 GPUs are asked for, 2 can be used"), gpus.taken(3):
        pass


STORM = """
import os, random, sys, time
from autoseg import gpus
random.seed(sys.argv[3])
log = os.open(sys.argv[4], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for _ in range(3):
    count = random.choice([1, 1, 2])
    sharing = int(sys.argv[2]) if count == 1 else 1
    with gpus.taken(count, sharing) as mine:
        for gpu in mine:
            os.write(log, f"+{gpu} {sharing}\\n".encode())
        time.sleep(random.random() / 20)
        for gpu in mine:
            os.write(log, f"-{gpu} {sharing}\\n".encode())
        if random.random() < 0.2:
            os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("sharing", [1, 2])
def test_a_crowd_of_jobs_for_one_and_for_two_never_goes_over_the_limit_nor_stands_still(machine, tmp_path, sharing):
    machine.setenv(gpus.VISIBLE, "0,1,2")
    machine.setattr(gpus, "LOOK_EVERY", 0.01)
    code = STORM.replace("random.seed", "gpus.LOOK_EVERY = 0.01\nrandom.seed")
    log = tmp_path / "log"
    crowd = [start(code, "1", str(sharing), str(seed), str(log), module=None) for seed in range(8)]
    for one in crowd:
        one.communicate(timeout=60)
    events = log.read_text().split("\n")[:-1]
    assert len(events) > 30
    on_it: dict[str, Counter] = {"0": Counter(), "1": Counter(), "2": Counter()}
    most = 0
    for event in events:
        gpu, kind = event[1:].split()
        on_it[gpu][int(kind)] += 1 if event[0] == "+" else -1
        whole, shared = (on_it[gpu][1], on_it[gpu][2])
        assert (whole, shared) in ((0, 0), (1, 0), (0, 1), (0, 2)), events
        most = max(most, sum(sum(each.values()) for each in on_it.values()))
    assert most >= 3  # all GPUs are used
    assert all(not +each for each in on_it.values())


# ---- Sharing ---------------------------------------------------------------------------------------------------------


def test_small_trials_share_gpus_one_on_each_before_two_on_any(job):
    trials = []
    for expected in ("0", "1", "0", "1"):
        trials.append(job(1, 2))
        assert trials[-1].got() == expected
    fifth = job(1, 2)
    fifth.waits()
    trials[0].kill()
    assert fifth.got() == "0"
    whole = job()
    whole.waits()
    for trial in (trials[1], trials[2]):
        trial.end()
    assert whole.has_nothing_yet()
    trials[3].end()  # now no trial is on GPU 1
    assert whole.got() == "1"


# ---- Where nothing is handed out -------------------------------------------------------------------------------------


def test_the_jobs_of_a_cluster_have_the_gpus_that_it_gave_them(machine, job):
    machine.setenv(gpus.VISIBLE, "0")  # SLURM numbers the GPUs of every job from 0
    for number in ("7", "8"):
        machine.setenv("SLURM_JOB_ID", number)
        assert job().got() == "0"
    second_in_8 = job()
    assert second_in_8.waits()
    machine.delenv("SLURM_JOB_ID")
    gpus.leave_to_cluster()
    machine.setenv(gpus.VISIBLE, "0,1")
    with gpus.taken() as mine:
        assert (mine, os.environ[gpus.VISIBLE]) == ([], "0,1")
    machine.delenv(gpus.HELD)


def test_a_process_that_a_job_starts_has_the_jobs_gpus(machine):
    with gpus.taken() as mine, gpus.taken() as inner:
        assert (mine, inner, os.environ[gpus.VISIBLE]) == (["0"], [], "0")
    assert (os.environ[gpus.VISIBLE], gpus.HELD in os.environ) == ("0,1", False)
    machine.setenv("WORLD_SIZE", "2")  # torchrun's
    with gpus.taken() as mine:
        assert mine == []


def test_a_folder_that_cannot_be_written_is_named(machine, tmp_path):
    machine.setenv("TMPDIR", str(tmp_path))
    (tmp_path / f"autoseg-gpus-{os.getuid()}").touch()
    with pytest.raises(InputError) as error, gpus.taken():
        pass
    assert "TMPDIR" in error.value.cure


# ---- The commands ----------------------------------------------------------------------------------------------------

SEARCH = {"metric": "mIoU", "steps": 2, "trials_per_step": 6}


def search(folder: Path, *words: str) -> subprocess.Popen[str]:
    return start("search", str(folder), "--settings", json.dumps(SEARCH), "--quiet", *words)


@pytest.mark.parametrize(
    ("words", "devices", "pids"),
    [(["--workers", "auto"], 2, 2), (["--workers", "9", "--trials-per-gpu", "2"], 2, 4)],
)
def test_a_search_has_one_worker_a_gpu_or_as_many_as_may_share_it(machine, tmp_path, words, devices, pids):
    seen = tmp_path / "seen"
    seen.mkdir()
    machine.setenv("WHO", str(seen))
    machine.setenv("WORKERS", str(pids))
    process = search(tmp_path / "search", "--objective", "toy_objectives:on_its_gpu", *words)
    said = process.communicate(timeout=100)[1]
    assert process.returncode == 0, said
    found = [path.read_text().split() for path in seen.iterdir()]
    by_worker = dict(found)
    assert len(found) == 12
    assert len(by_worker) == len({tuple(pair) for pair in found}) == pids  # a worker keeps its GPU
    assert Counter(by_worker.values()) == {str(gpu): pids // devices for gpu in range(devices)}
    assert ("2 workers (1 for each of the GPUs 0, 1)" if pids == 2 else "4 of 9 workers are started") in said


def test_a_killed_search_frees_the_gpus_of_its_workers(machine, job, tmp_path):
    machine.setenv("WHO", str(tmp_path / "who"))
    process = search(tmp_path / "search", "--objective", "toy_objectives:hang", "--workers", "auto")
    wait_for((tmp_path / "who").exists, process)
    both = job(2)
    both.waits()
    process.kill()
    assert both.got() == "0,1"
    process.communicate()


def test_without_a_gpu_auto_is_as_many_workers_as_the_cores_are_enough_for(machine, tmp_path):
    machine.setenv(gpus.VISIBLE, "")
    process = search(tmp_path / "search", "--objective", "toy_objectives:near", "--workers", "auto")
    said = process.communicate(timeout=100)[1]
    cores = len(os.sched_getaffinity(0))
    assert f"{cores} worker" in said
    assert f"({cores} core" in said
    assert process.returncode == 0, said


@pytest.mark.parametrize("text", ["0", "-1", "many"])
def test_a_wrong_number_of_workers_is_refused(text, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["search", str(tmp_path), "--workers", text])
    assert "at least 1" in capsys.readouterr().err


def test_a_training_on_two_gpus_holds_both_and_killed_leaves_no_process_on_them(job, data, tmp_path):
    out = tmp_path / "run"
    task = arguments(data, iterations=100000, device="auto")
    process = start("train", "--loss", "ce", "--out", str(out), "--processes", "2", "--quiet", *task)
    wait_for((out / "log.jsonl").exists, process)
    ranks = psutil.Process(process.pid).children(recursive=True)
    assert {rank.environ()[gpus.VISIBLE] for rank in ranks} == {"0,1"}
    other = job()
    other.waits()
    process.kill()
    assert other.got() == "0"
    gone, alive = psutil.wait_procs(ranks, timeout=10)
    assert not alive
    assert len(gone) >= 2
    process.communicate()


def test_a_training_waits_for_its_gpu_and_says_so(job, data, tmp_path):
    both = job(2)
    both.got()
    task = arguments(data, device="auto")
    process = start("train", "--loss", "ce", "--out", str(tmp_path / "run"), "--quiet", *task)
    assert "autoseg train: waits for a GPU: other jobs hold 0, 1" in process.stderr.readline()
    both.kill()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    assert "torch sees no GPU, though this process may use 0" in said


def test_on_a_cpu_no_gpu_is_held(job, data, tmp_path):
    job(2).got()
    task = arguments(data, device="cpu")
    assert main(["train", "--loss", "ce", "--out", str(tmp_path / "run"), "--quiet", *task]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--quiet", *task]) == 0


def test_the_doctor_names_the_gpus_how_they_are_shared_and_those_that_torch_does_not_see(capsys):
    assert main(["doctor", "gpus", "--trials-per-gpu", "3"]) == 2
    said = capsys.readouterr().out
    assert "2 GPUs: 0, 1; one job, or 3 trials, at a time on each" in said
    assert "torch sees 0 of them" in said


# ---- The pipeline ----------------------------------------------------------------------------------------------------


def test_the_pipeline_runs_one_job_a_gpu_without_any_flag(tmp_path):
    layout = Layout.named("tiny")
    chunks = [layout.chunk(search, "step-001", k, 2) for search in ("mIoU", "mAcc") for k in range(2)]
    config = changed(content("tiny"), "device", "auto")
    done = snakemake(tmp_path, "--cores", "8", *chunks, *with_config(tmp_path, config))
    assert done.returncode == 0, done.stdout
    logs = [path.read_text() for path in tmp_path.glob("results/tiny/logs/searches/*/trials-*.log")]
    assert len(logs) == 4
    for gpu in ("0", "1"):
        assert sum(f"this process may use {gpu}:" in text for text in logs) > 0
    assert not any("waits for" in text for text in logs)  # Snakemake starts no job that would have to


def test_a_trial_takes_a_share_of_a_gpu_and_a_run_whole_ones(tmp_path):
    config = changed(changed(content("tiny"), "device", "auto"), "trials_per_gpu", 3)
    changed(config, "retrainings", "tiny", "processes", 2)
    done = snakemake(tmp_path, "-n", "-p", "runs", *with_config(tmp_path, config))
    assert done.returncode == 0, done.stdout
    asked = dict(re.findall(r"^rule (trials|train|evaluate):.*?gpu_shares=(\d+)", done.stdout, re.M | re.S))
    assert asked == {"trials": "1", "train": "6", "evaluate": "3"}
    assert "--trials-per-gpu 3" in done.stdout


def test_a_retraining_on_more_gpus_than_there_are_is_refused_before_the_first_job(machine, tmp_path):
    machine.setenv(gpus.VISIBLE, "0")
    config = changed(changed(content("tiny"), "device", "auto"), "retrainings", "tiny", "processes", 2)
    done = snakemake(tmp_path, "runs", *with_config(tmp_path, config))
    assert done.returncode != 0
    assert "retrainings.tiny: processes: asks for 2 GPUs, and 1 can be used here (0)" in done.stdout
    assert not (tmp_path / "results/tiny/data/scenes/index.json").exists()
