"""A pipeline goes on after anything: kills, changed settings, lost files; and does no more than the change asks for."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autoseg.cli import main
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.layout import Layout
from autoseg.pipeline.recovery import recover
from tests.pipeline_runs import (
    ROOT,
    TINY,
    changed,
    command,
    content,
    environment,
    finished_trainings,
    planned,
    results,
    snakemake,
    with_config,
)

# One process makes the finished run that the others look at.
pytestmark = pytest.mark.xdist_group("finished run")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    done = snakemake(folder, "--configfile", str(TINY))
    assert done.returncode == 0, done.stdout
    assert "Done. Open results/tiny/report.html" in done.stdout
    return folder


def copied(finished: Path, folder: Path) -> None:
    """Copy a run, with what Snakemake knows of it."""
    for name in ("results", ".snakemake"):
        shutil.copytree(finished / name, folder / name)


def test_a_finished_run_is_whole_and_has_nothing_to_do(finished):
    assert "| searched:mIoU |" in (finished / "results/tiny/tables/main.md").read_text()
    assert "data:image/svg+xml" in (finished / "results/tiny/report.html").read_text()
    assert "Nothing to be done" in snakemake(finished, "--configfile", str(TINY)).stdout


def test_snakemakes_own_report_is_built_and_has_tables_figures_and_the_page(finished):
    done = snakemake(finished, "--configfile", str(TINY), "--report", "snakemake.html")
    assert done.returncode == 0, done.stdout
    report = (finished / "snakemake.html").read_text()
    for name in ("main.html", "curves.svg", "gallery.svg", "report.html"):
        assert name in report


def lose(path: Path) -> None:
    """Delete a file."""
    path.unlink()


def cut(path: Path) -> None:
    """Leave the first half of a file, as a broken disk may."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit(path: Path) -> None:
    """Change a trial's score by hand."""
    path.write_text(path.read_text().replace('"score": 0.', '"score": 0.9'))


def by_folder(path: Path) -> None:
    """Put a folder with a file in the place of a file."""
    path.unlink()
    (path / "in").mkdir(parents=True)


def by_circle(path: Path) -> None:
    """Put a link to itself in the place of a file."""
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("name", "damage", "removed"),
    [
        # Its chunk, the second step (proposals and two chunks) and the answer; a damaged score is renamed.
        ("searches/mIoU/step-001/trial-0.json", lose, 1 + 3 + 1),
        ("searches/mIoU/step-001/trial-1.json", cut, 1 + 3 + 1 + 1),
        ("searches/mIoU/step-002/trial-4.json", edit, 1 + 1 + 1),
        ("searches/mAcc/rescore/trial-1000000.json", lose, 2),
        ("searches/mIoU/step-001/proposals.json", cut, 7),
        ("searches/mIoU/step-001/chunk-0-of-2.json", cut, 5),
        ("searches/mIoU/surrogate.json", cut, 1),
        ("data/scenes/split.json", cut, 1),
        ("data/scenes/cache-32.bin", lose, 2),
        ("data/scenes/cache-32.bin", cut, 2),
        ("data/scenes/index.json", cut, 1),
        ("data/scenes/source.json", lose, 1),
        ("runs/scenes/tiny/ce/seed-0/scores.json", cut, 1),
        # What stands in the place of a file is renamed, and was none of the files before.
        ("searches/mIoU/step-001/trial-0.json", by_folder, 1 + 3 + 1),
        ("searches/mIoU/step-001/trial-0.json", by_circle, 1 + 3 + 1),
        ("searches/mIoU/step-001/proposals.json", by_folder, 6),
        ("searches/mIoU/step-001/chunk-0-of-2.json", by_folder, 4),
        ("searches/mIoU/surrogate.json", by_folder, 0),
        ("data/scenes/split.json", by_folder, 0),
        ("data/scenes/index.json", by_folder, 0),
        ("data/scenes/source.json", by_folder, 1),
        ("data/scenes/cache-32.bin", by_circle, 2),
        ("data/scenes/cache-32.bin", by_folder, 2),
        ("runs/scenes/tiny/ce/seed-0/scores.json", by_folder, 0),
    ],
)
def test_a_lost_or_damaged_file_is_found_and_what_says_done_of_it_is_removed(
    finished, tmp_path, monkeypatch, name, damage, removed
):
    copied(finished, tmp_path)
    monkeypatch.chdir(tmp_path)
    pipeline = load_pipeline(content("tiny"), "tiny")
    layout = Layout.named("tiny")
    assert recover(pipeline, layout, remove=True) == []
    damage(tmp_path / "results/tiny" / name)
    before = set(results(tmp_path))
    (found,) = recover(pipeline, layout, remove=False)
    assert set(results(tmp_path)) == before
    assert found.where in (f"results/tiny/{name}", "results/tiny/data/scenes/index.json")
    recover(pipeline, layout, remove=True)
    left = {name for name in results(tmp_path) if "damaged-" not in name}
    assert len(before - left) == removed
    assert recover(pipeline, layout, remove=True) == []


@pytest.mark.parametrize("damage", [lose, cut])
def test_damaged_weights_are_missed_only_while_something_needs_them(finished, tmp_path, monkeypatch, damage):
    copied(finished, tmp_path)
    monkeypatch.chdir(tmp_path)
    pipeline, layout = load_pipeline(content("tiny"), "tiny"), Layout.named("tiny")
    damage(tmp_path / "results/tiny/runs/scenes/tiny/ce/seed-0/weights.safetensors")
    assert recover(pipeline, layout, remove=False) == []  # it is scored and drawn: deleting it saves room
    lose(tmp_path / "results/tiny/figures/gallery.svg")
    assert len(recover(pipeline, layout, remove=False)) == 1
    damage(tmp_path / "results/tiny/runs/scenes/tiny/naive-mIoU/seed-0/weights.safetensors")
    lose(tmp_path / "results/tiny/runs/scenes/tiny/naive-mIoU/seed-0/scores.json")
    assert len(recover(pipeline, layout, remove=False)) == 2
    searched = tmp_path / "results/tiny/runs/scenes/tiny/searched-mIoU_0.5xsearched-mAcc/seed-0"
    damage(searched / "weights.safetensors")
    cut(searched / "scores.json")  # it must be scored again, so the weights are needed again
    assert len(recover(pipeline, layout, remove=False)) == 4


def test_one_command_brings_results_back_from_any_partial_loss(finished, tmp_path):
    copied(finished, tmp_path)
    out = tmp_path / "results/tiny"
    before = finished_trainings(out)
    trained = {
        "searches/mIoU/step-001/trial-0.json": lose,
        "searches/mIoU/step-001/trial-1.json": cut,
        "searches/mAcc/step-002/trial-4.json": edit,
        "searches/mAcc/rescore/trial-1000000.json": lose,
        "runs/scenes/tiny/ce/seed-0/weights.safetensors": cut,
    }
    made = {
        "data/scenes/cache-32.bin": lose,
        "data/scenes/split.json": cut,
        "searches/mIoU/surrogate.json": lose,
        "runs/scenes/tiny/ce/seed-0/scores.json": lose,
    }
    for name, damage in {**trained, **made}.items():
        damage(out / name)
    done = snakemake(tmp_path, "--configfile", str(TINY))
    assert done.returncode == 0, done.stdout
    after = finished_trainings(out)
    assert {path for path in before if after[path] != before[path]} == {out / name for name in trained}
    found = results(out)
    assert {name for name in found if "damaged-" in name} == {
        "searches/mIoU/step-001/damaged-trial-1.json",
        "searches/mAcc/step-002/damaged-trial-4.json",
    }
    assert {name: text for name, text in found.items() if "damaged-" not in name} == results(finished / "results/tiny")
    assert "Nothing to be done" in snakemake(tmp_path, "--configfile", str(TINY)).stdout


@pytest.mark.parametrize("option", ["-n", "--summary", "--report=page.html", "--unlock"])
def test_what_runs_no_job_removes_no_damaged_file(finished, tmp_path, option):
    copied(finished, tmp_path)
    cut(tmp_path / "results/tiny/searches/mIoU/step-001/trial-1.json")
    before = results(tmp_path / "results")
    done = snakemake(tmp_path, "--configfile", str(TINY), option)
    assert done.returncode == 0, done.stdout
    assert results(tmp_path / "results") == before
    assert ("is not as it was written" in done.stdout) == (option == "-n")


BIOU = {"dataset": "scenes", "proxy": "tiny", "search": {"metric": "BIoU", "steps": 2, "trials_per_step": 3}}
MORE = {"kind": "synthetic", "options": {"train": 8, "val": 2, "size": 48}, "proxy_size": 16, "hold_out": 2}


@pytest.mark.parametrize(
    ("key", "value", "jobs"),
    [
        ("loaders", 1, ""),
        ("tables.main.title", "Another title", "table 1 make_report 1"),
        ("datasets.more", MORE, "make_report 1"),
        ("searches.BIoU", BIOU, "ask 2 trials 2 select 1 make_report 1"),
        ("retrainings.tiny.training.lr", 0.04, "train 4 evaluate 4 table 2 figure 3 make_report 1"),
        (
            "proxies.tiny.training.lr",
            0.04,
            "ask 2 trials 10 rescore 1 select 2 train 2 evaluate 2 table 2 figure 6 make_report 1",
        ),
        # One step more: the search's clip is stated, so nothing before it changes.
        (
            "searches.mIoU.search.steps",
            3,
            "ask 1 trials 2 select 1 train 2 evaluate 2 table 2 figure 6 make_report 1",
        ),
        # Here it is derived from the number of steps, so that is another search from its first step on.
        (
            "searches.mAcc.search.steps",
            4,
            "ask 4 trials 10 rescore 1 select 1 train 1 evaluate 1 table 1 figure 2 make_report 1",
        ),
        (
            "datasets.scenes.split_seed",
            1,
            "split_dataset 1 ask 2 trials 10 rescore 1 select 2 train 4 evaluate 4 table 2 figure 6 make_report 1",
        ),
    ],
)
def test_a_changed_key_runs_what_follows_from_it_and_nothing_else(finished, key, value, jobs):
    config = changed(content("tiny"), *key.split("."), value)
    assert planned(finished, *with_config(finished, config)) == counts(jobs)


def counts(jobs: str) -> dict[str, int]:
    """Return the number of jobs of each rule, as it is written above."""
    words = jobs.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def test_another_version_of_an_algorithm_makes_its_results_again(finished, tmp_path):
    """A newer package: its training gives other weights."""
    (tmp_path / "sitecustomize.py").write_text("from autoseg import versions\n\nversions.TRAINING_VERSION += 1\n")
    jobs = "ask 2 trials 10 rescore 1 select 2 train 4 evaluate 4 table 2 figure 6 make_report 1"
    assert planned(finished, "--configfile", str(TINY), PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}") == counts(jobs)


def test_lost_weights_are_not_missed_but_a_whole_run_or_search_is(finished, tmp_path):
    copied(finished, tmp_path)
    run, search = (tmp_path / "results/tiny" / name for name in ("runs/scenes/tiny/ce/seed-0", "searches/mAcc"))
    (run / "weights.safetensors").unlink()
    assert planned(tmp_path, "--configfile", str(TINY)) == {}
    shutil.rmtree(run)
    jobs = "train 1 evaluate 1 table 1 figure 2 make_report 1"
    assert planned(tmp_path, "--configfile", str(TINY)) == counts(jobs)
    shutil.rmtree(search)
    jobs = "ask 2 trials 6 rescore 1 select 1 train 2 evaluate 2 table 1 figure 4 make_report 1"
    assert planned(tmp_path, "--configfile", str(TINY)) == counts(jobs)


def test_a_plan_says_which_searches_begin_anew(finished, tmp_path):
    config = content("tiny")
    for name in config["searches"]:
        changed(config, "searches", name, "search", "steps", 5)
    done = snakemake(finished, "-n", "--quiet", "all", *with_config(tmp_path, config))
    said = [line for line in done.stdout.splitlines() if "has other settings than before" in line]
    assert len(said) == 1, done.stdout
    assert "search 'mAcc' has other settings than before (clip, which follows from the number of steps" in said[0]


def test_a_search_begun_anew_comes_to_its_end(finished, tmp_path):
    copied(finished, tmp_path)
    config = changed(content("tiny"), "searches", "mAcc", "search", "steps", 4)
    target = "results/tiny/searches/mAcc/surrogate.json"
    done = snakemake(tmp_path, *with_config(tmp_path, config), "--", target)
    assert done.returncode == 0, done.stdout
    assert len(list((tmp_path / target).parent.glob("step-*/trial-*.json"))) == 4 * 3


def test_a_deleted_result_is_made_again_and_nothing_else(finished):
    path = finished / "results/tiny/runs/scenes/tiny/ce/seed-0/scores.json"
    kept = path.read_bytes()
    path.rename(path.with_suffix(".away"))
    try:
        assert planned(finished, "--configfile", str(TINY)) == {
            "evaluate": 1,
            "table": 1,
            "figure": 2,
            "make_report": 1,
        }
    finally:
        path.with_suffix(".away").rename(path)
    assert path.read_bytes() == kept


def test_the_report_is_made_without_a_configfile_too(finished, tmp_path):
    """As in `make demo`; tiny takes the demo's place, in a project of its own."""
    copied(finished, tmp_path)
    assert main(["init", str(tmp_path)]) == 0
    shutil.copy(TINY, tmp_path / "workflow/config/demo.yaml")
    page = tmp_path / "results/tiny/report.html"
    page.unlink()
    done = snakemake(tmp_path, "--snakefile", "Snakefile")
    assert done.returncode == 0, done.stdout
    assert "snakemake --cores all -- results/tiny/tables/main.md" in page.read_text()


def test_tables_alone_need_no_torch_and_leave_the_report_alone(finished, tmp_path):
    """A module named torch that cannot be imported stands before the real one."""
    copied(finished, tmp_path)
    poison = tmp_path / "poison"
    poison.mkdir()
    (poison / "torch.py").write_text("raise ImportError('no torch here')\n")
    made = tmp_path / "results/tiny/tables/main.md"
    before = made.read_bytes()
    made.unlink()
    done = snakemake(tmp_path, "tables", "--configfile", str(TINY), PYTHONPATH=str(poison))
    assert done.returncode == 0, done.stdout
    assert made.read_bytes() == before
    assert "Open results/tiny/report.html" not in done.stdout


def test_more_trials_in_a_step_keep_those_that_are_scored(finished, tmp_path):
    copied(finished, tmp_path)
    first = tmp_path / "results/tiny/searches/mIoU/step-001"
    before = {path.name: path.stat().st_mtime_ns for path in first.glob("trial-*.json")}
    config = changed(content("tiny"), "searches", "mIoU", "search", "trials_per_step", 4)
    done = snakemake(tmp_path, *with_config(tmp_path, config), "--", *_chunks("mIoU", 1, 2))
    assert done.returncode == 0, done.stdout
    after = {path.name: path.stat().st_mtime_ns for path in first.glob("trial-*.json")}
    assert len(before) == 3
    assert len(after) == 4
    assert {name: after[name] for name in before} == before


def _chunks(search: str, step: int, count: int) -> list[str]:
    return [f"results/tiny/searches/{search}/step-{step:03d}/chunk-{k}-of-{count}.json" for k in range(count)]


def storm(
    folder: Path, arguments: tuple[str, ...], kills: int, seed: int, pause: float, timeout: float
) -> dict[Path, tuple[int, int]]:
    """Run the pipeline, and kill -9 it and all its jobs `kills` times; return the trainings finished before a kill.

    A kill comes up to `pause` seconds after some job has ended: in the middle of the next ones.
    """
    chance = random.Random(seed)
    seen: dict[Path, tuple[int, int]] = {}
    for _ in range(kills):
        snakemake(folder, *arguments, "--unlock")
        process = subprocess.Popen(
            command(*arguments, "--rerun-incomplete"),
            cwd=folder,
            env=environment(),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        progress = len(list(folder.rglob("*.tsv"))) + chance.randint(1, 3)  # one for each finished job
        deadline = time.monotonic() + timeout
        while len(list(folder.rglob("*.tsv"))) < progress:
            assert time.monotonic() < deadline, "no job finished"
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.05)
        time.sleep(chance.uniform(0, pause))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for path, identity in finished_trainings(folder).items():
            assert seen.setdefault(path, identity) == identity, f"{path} was trained again"
    return seen


def test_one_command_brings_a_killed_run_back(finished, tmp_path):
    """Snakemake alone is killed: its jobs live on, and it leaves a lock."""
    process = subprocess.Popen(
        command("--configfile", str(TINY)),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("trial-*.json")):
        assert time.monotonic() < deadline, "no trial was scored"
        time.sleep(0.05)
    resume = [str(Path(sys.executable).parent / "autoseg"), "resume"]
    early = subprocess.run(resume, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    for lock in tmp_path.glob(".snakemake/locks/*"):  # as the end of another run in this folder does
        lock.unlink()
    second = snakemake(tmp_path, "--configfile", str(TINY))
    process.kill()
    process.wait()
    seen = finished_trainings(tmp_path)
    done = subprocess.run(resume, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (early.returncode, "is still running" in early.stderr) == (2, True)
    assert (second.returncode, "is still running" in second.stdout) == (1, True)
    assert done.returncode == 0, done.stderr
    assert {path: finished_trainings(tmp_path)[path] for path in seen} == seen
    assert results(tmp_path / "results") == results(finished / "results")


def check_storm(folder: Path, unbroken: Path, arguments: tuple[str, ...], *, pause: float) -> None:
    """Kill a run ten times, let it come to its end, and compare it with an unbroken one."""
    seen = storm(folder, arguments, kills=10, seed=0, pause=pause, timeout=600)
    snakemake(folder, *arguments, "--unlock")
    done = snakemake(folder, *arguments, "--rerun-incomplete")
    assert done.returncode == 0, done.stdout
    assert len(seen) > 5
    after = finished_trainings(folder)
    assert {path: after[path] for path in seen} == seen
    assert results(folder / "results") == results(unbroken / "results")


def test_ten_kills_change_no_byte_and_nothing_finished_is_trained_again(finished, tmp_path):
    check_storm(tmp_path, finished, ("--configfile", str(TINY)), pause=2)


@pytest.mark.long
def test_ten_kills_of_the_demo_change_no_byte_either(tmp_path):
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    unbroken.mkdir()
    killed.mkdir()
    done = snakemake(unbroken)
    assert done.returncode == 0, done.stdout
    check_storm(killed, unbroken, (), pause=10)
