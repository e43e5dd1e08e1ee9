"""`autoseg plan` and `autoseg doctor task`: what it will cost, and what stands in the way."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import pytest
from small_task import arguments

from autoseg.cli import main
from autoseg.files import read_settings, write_json
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.plan import Speed, pipeline_costs, run_cost, search_cost
from autoseg.search.records import TrialScore as Score
from autoseg.search.settings import Search
from autoseg.search.steps import ask, record, rescore
from autoseg.training.settings import Training


@pytest.mark.parametrize("changes", [{"rescore": 2}, {"rescore": 5}, {"rescore": 5, "initial": "published:mAcc"}])
def test_a_searchs_cost_counts_what_the_search_will_do(changes):
    search = Search(metric="mAcc", steps=3, trials_per_step=5, **changes)
    history = []
    for step in range(3):
        proposals = ask(search, history)
        scores = [Score(number=t.number, metric="mAcc", score=0.1 * step + 0.01 * t.number) for t in proposals.trials]
        history.append(record(proposals, scores))
    settings = Training.of_protocol("paper-proxy", iterations=100)
    cost = search_cost(search, settings, Speed(step=0.36, image=1.8, start=36.0), hold_out=10, trials_per_job=2)
    rescored = len(rescore(search, history).trials)
    assert 15 + rescored <= cost.trainings <= 15 + rescored + 1  # the last mean may be among the best
    chunks = 3 * 3 + math.ceil((cost.trainings - 15) / 2)
    assert cost.jobs == 3 + chunks + 1 + 1  # asks, chunks, rescore, select
    assert cost.hours == pytest.approx((cost.trainings * (36 + 18) + chunks * 36) / 3600)


def test_a_chained_searchs_cost_holds_the_networks_that_it_keeps():
    search = Search(metric="mIoU", sampler="am-lfs", family="am-lfs", steps=3, trials_per_step=5)
    plain = search.model_copy(update={"sampler": "random"})
    costs = [
        search_cost(one, Training.of_protocol("paper-proxy"), Speed(1.0), 10, weights=1000) for one in (search, plain)
    ]
    assert costs[0].trainings == costs[1].trainings == 15
    assert (costs[0].disk - costs[1].disk, costs[0].scratch, costs[1].scratch) == (4 * 1000, 5 * 1000, 0)


def test_a_runs_cost_holds_its_evaluation_and_its_checkpoints():
    cost = run_cost(
        3, Training.of_protocol("release"), Speed(step=0.36, image=0.18, start=9.0), images=100, weights=1000
    )
    assert (cost.jobs, cost.trainings, cost.disk, cost.scratch) == (6, 3, 3000, 6000)
    assert cost.hours == pytest.approx(3 * (3600 + 18 + 18) / 3600)


def test_a_plan_is_measured_or_assumed_and_says_which(tmp_path, data, capsys):
    write_json(tmp_path / "search.json", {"metric": "mIoU", "name": "toy", "steps": 2, "trials_per_step": 4})
    command = ["plan", "--settings", str(tmp_path / "search.json"), *arguments(data)]
    runs = ["--runs", "2", "--run-network", "tiny", "--run-protocol", "paper-proxy"]
    runs += ["--run-set", "crop=[32,32]", "--run-set", "short_side=32", "--run-set", "loaders=0"]
    assert main([*command, *runs]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"search 'toy' +11 +8 ", shown)
    assert re.search(r"2 runs +4 +2 ", shown)
    assert re.search(r"together +15 +10 ", shown)
    assert "measured here on cpu, 3 steps of 4 images" in shown
    assert main([*command, "--seconds-per-step", "900"]) == 0
    shown = capsys.readouterr().out
    assert "(assumed)" in shown
    assert re.search(r"search 'toy' +11 +8 +8.00", shown)  # 8 trainings of 4 steps
    assert main([*command, "--seconds-per-step", "0"]) == 2
    assert "a step: 0 seconds; expected a positive number" in capsys.readouterr().err
    assert main(["plan", *arguments(data)]) == 2
    assert "nothing to plan" in capsys.readouterr().err


def test_doctor_finds_all_that_a_task_lacks_at_once(tmp_path, data, capsys, monkeypatch):
    assert main(["doctor", "task", *arguments(data)]) == 0
    assert "the training runs on the CPU" in capsys.readouterr().out
    wrong = arguments(data, device="cuda", short_side=64)
    wrong += ["--network", "deeplabv3plus-r18", "--weights", str(tmp_path / "gone.pth"), "--split", "gone.json"]
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 1000})())
    assert main(["doctor", "task", "--out", str(tmp_path), *wrong]) == 2
    shown = capsys.readouterr().out
    assert "4 problems" in shown
    for part in (
        "no GPU is available",
        "gone.pth: no such file",
        "gone.json: no such file",
        "are needed for the check",
    ):
        assert part in shown


def test_doctor_looks_at_what_a_run_reads(tmp_path, data, capsys):
    """A retraining reads the original files at a size that no cache has."""
    large = ["doctor", "task", *arguments(data, short_side=513)]
    assert main(large) == 2
    assert "no cache of this size" in capsys.readouterr().out
    assert main([*large, "--source", "files"]) == 0
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    shutil.rmtree(copy / "source" / "images")
    assert main(["doctor", "task", "--source", "files", *arguments(copy)]) == 2
    assert "source/images/train-" in capsys.readouterr().out


def test_a_whole_config_is_planned_without_its_data(capsys):
    config = str(Path(__file__).parents[1] / "workflow/config/tiny.yaml")
    assert main(["plan", "--config", config, "--seconds-per-step", "3600", "--run-seconds-per-step", "1800"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"search 'mIoU' +7 +6 +12.01", shown)  # 6 trainings of 2 steps, and the start of 4 jobs
    assert re.search(r"search 'mAcc' +10 +10 +20.02", shown)  # and the rescored answers, at most 4
    assert re.search(r"4 runs 'tiny' +8 +4 +6.02", shown)  # 4 trainings of 3 steps
    assert re.search(r"together +25 +20 +38.05", shown)
    assert main(["plan", "--config", config, "--runs", "2"]) == 2
    assert "leave out --settings and --runs" in capsys.readouterr().err


def test_the_study_of_pets_is_planned_for_an_hour_or_two_on_two_cores():
    config = Path(__file__).parents[1] / "workflow/config/pets.yaml"
    pipeline = load_pipeline(read_settings(config), config)
    assert set(pipeline.searches) == {"mIoU", "BF1", "BIoU"}
    assert len({run.trained for run in pipeline.tables["main"].runs}) == 3 * 16
    seconds = 0.15  # a step of one core, as in the recorded trials
    trials, answers, runs = 3 * 32 + 42, 3 * 5, 48  # of the searches, and of the tuning; what searches rescore
    assert 0.5 < (trials * 160 + (answers + runs) * 320) * seconds / 3600 / 2 < 2
    assert sum(cost.trainings for cost in pipeline_costs(pipeline)) == trials + answers + runs


def test_the_papers_own_hours_are_planned_for_its_proxy_tasks():
    """Its table of proxy tasks has the hours of eight V100; the networks' sizes and images make the difference."""
    config = Path(__file__).parents[1] / "workflow/config/paper.yaml"
    costs = {cost.what: cost for cost in pipeline_costs(load_pipeline(read_settings(config), config))}
    for search, hours in {
        "voc-mIoU": 8.5,
        "voc-mIoU-r50-256-1000": 33.0,
        "voc-mIoU-r50-128-2000": 17.1,
        "voc-mIoU-r101-128-1000": 13.3,
    }.items():
        assert costs[f"search '{search}'"].hours == pytest.approx(8 * hours, rel=0.1)
