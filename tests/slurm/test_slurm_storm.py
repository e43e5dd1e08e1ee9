"""Ten kills with `autoseg resume` between, a folder that is moved, clocks that differ, runs beside each other."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pipeline_runs import planned, with_config
from tests.slurm.cluster import NODES, output
from tests.slurm.cluster_runs import Run, small

pytestmark = [pytest.mark.slurm, pytest.mark.long]
KILLS = 10


def test_ten_kills_and_a_moved_folder_change_no_byte(tmp_path, cluster, unbroken):
    """A kill comes some seconds after the start of a job, or, every third time, while `autoseg resume` is at work.

    Every other time `autoseg resume` waits for the jobs that still run, instead of cancelling them.
    """
    chance = random.Random(0)
    run = Run(tmp_path / "there", Path(with_config(tmp_path, small())[1]))
    try:
        run.start()
        orphans = 0
        for number in range(1, KILLS + 1):
            if number % 3:
                started = len(run.seen())
                run.until(lambda before=started: len(run.seen()) > before)
            time.sleep(chance.uniform(0, 3))
            run.process.kill()
            run.end()
            orphans += len(run.active())
            if number == KILLS // 2:
                run.move(tmp_path / "elsewhere")  # with the jobs that still run in it
            run.resume(*["--wait"] * (number % 2))
        assert run.end(900) == 0, run.log()[-5000:]
        assert run.outcome() == unbroken
        assert orphans
        assert run.trials() == 2 * 3
        assert not run.twice
        assert not [line for line in output("squeue", "--noheader", "--format=%Z").split() if str(tmp_path) in line]
    finally:
        run.stop()


def test_clocks_that_differ_by_hours_make_nothing_again(tmp_path, cluster, unbroken):
    """One node's clock is an hour ahead, the other's an hour behind, and the files have the times of these clocks."""
    run = Run(tmp_path / "there", Path(with_config(tmp_path, small())[1]))
    try:
        for node, seconds in zip(NODES, (3600, -3600), strict=True):
            cluster.set_clock(node, seconds)
        run.fail({"words": [], "do": "stamp"})
        run.start()
        run.until(lambda: list(run.results.rglob("step-002/trial-*.json")))
        run.process.kill()
        run.end()
        run.resume()
        assert run.end(900) == 0, run.log()[-5000:]
        assert run.outcome() == unbroken
        assert run.trials() == 2 * 3
        assert not run.twice
        now = time.time()
        ahead = {line["node"]: line["clock"] > now for line in run.seen("trials")}
        assert ahead == {"n1": True, "n2": False}
        assert planned(run.folder, "--configfile", str(run.config)) == {}
    finally:
        cluster.set_clocks_right()
        run.stop()


def test_two_runs_in_one_folder_and_one_in_another_do_not_disturb_each_other(tmp_path, cluster, unbroken):
    """One of the two is started twice, and killed; it is brought back when the other has ended.

    In the folder of its own a job fails as often as it is tried. The others go on, and `autoseg resume` makes the rest.
    """
    configs = []
    for name in ("tiny", "other"):
        (tmp_path / name).mkdir()
        configs.append(Path(with_config(tmp_path / name, small(name))[1]))
    both = tmp_path / "both"
    runs = [Run(both, configs[0], "tiny.log"), Run(both, configs[1], "other.log"), Run(tmp_path / "alone", configs[0])]
    first, other, alone = runs
    again = Run(both, configs[0], "again.log")
    resume = [str(Path(sys.executable).parent / "autoseg"), "resume", "--name", "tiny"]
    try:
        alone.fail({"words": ["trials", "step-001", "0/3"], "do": "exit"})
        alone.start(retries=1)
        first.start()
        other.start()
        first.until(lambda: list(both.rglob("results/tiny/**/trial-*.json")))
        again.start()
        assert again.end(60) != 0
        assert "is still running" in again.log()
        first.process.kill()
        first.end()
        early = subprocess.run(resume, cwd=both, env=first.environment(), capture_output=True, text=True, check=False)
        assert "run 'other': it is still running" in early.stderr
        assert other.end(900) == 0, other.log()[-5000:]
        done = subprocess.run(resume, cwd=both, env=first.environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        assert alone.end(900) != 0
        assert [path.name for path in sorted(alone.trained)] == ["trial-1.json", "trial-2.json"]
        assert len(alone.jobs("trials")) == 1 + 1 + 2
        alone.fail()
        alone.resume()
        assert alone.end(900) == 0, alone.log()[-5000:]
        assert alone.outcome() == unbroken
        here = first.outcome()
        for name in ("tiny", "other"):
            mine = {path.removeprefix(f"{name}/"): text for path, text in here.items() if path.startswith(f"{name}/")}
            assert mine == {path.removeprefix("tiny/"): text for path, text in unbroken.items()}
        assert (first.trials(), alone.trials()) == (2 * 2 * 3, 2 * 3)
        assert not any(run.twice for run in runs)
    finally:
        for run in (*runs, again):
            run.stop()
