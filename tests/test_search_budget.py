"""Searches within some hours: what is planned, what is said, and how long it takes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from autoseg.errors import InputError
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.plan import pipeline_costs
from autoseg.search.budget import planned, steps_that_fit, total_seconds
from autoseg.search.folder import Folder
from autoseg.search.runner import run
from autoseg.search.settings import Search
from autoseg.search.steps import ask
from autoseg.search.times import Timing
from tests.pipeline_runs import changed, content, snakemake, with_config
from tests.refusals import refused

OPEN = Search(metric="mIoU", preset="recommended", rescore=1)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("trials", [30, 100, 160, 400, 640, 2000])
def test_a_plan_fills_its_hours(trials: int, workers: int) -> None:
    budget = trials * 10.0 / workers
    plan = planned(OPEN, budget, 10.0, workers)
    assert total_seconds(plan, 10.0, workers) == pytest.approx(budget, rel=0.15)
    assert 8 <= plan.settings.trials_per_step <= 40


def test_what_the_settings_say_is_kept() -> None:
    assert planned(OPEN.model_copy(update={"trials_per_step": 10}), 3600, 10).trials_per_step == 10
    assert planned(OPEN.model_copy(update={"steps": 3}), 3600, 10).steps == 3
    both = OPEN.model_copy(update={"steps": 3, "trials_per_step": 10})
    assert planned(both, 60, 10) == both


def test_hours_that_are_too_few_are_refused() -> None:
    with pytest.raises(InputError, match="a trial takes 100 s") as error:
        planned(OPEN, 300, 100)
    assert error.value.where == "hours"


def test_the_steps_follow_from_the_time_they_take_unless_that_makes_another_search() -> None:
    search = OPEN.model_copy(update={"steps": 5, "trials_per_step": 10, "rescore": 0})
    assert steps_that_fit(search, 2, left=60, seconds=2, workers=1) == 5
    assert steps_that_fit(search, 2, left=60, seconds=4, workers=1) == 4
    assert steps_that_fit(search, 2, left=-5, seconds=4, workers=1) == 2
    annealed = search.model_copy(update={"preset": "annealed"})
    assert steps_that_fit(annealed, 2, left=60, seconds=400, workers=1) == 5


def test_a_search_keeps_its_hours_and_goes_on_with_its_plan(tmp_path: Path, caplog) -> None:
    budget = 12.0
    with caplog.at_level(logging.INFO):
        run(tmp_path, OPEN, "tests.toy_objectives:quarter", progress=False, hours=budget / 3600)
    assert "The plan:" in caplog.text
    plan = Folder(tmp_path).search()
    # A trial sleeps for a quarter of a second, so no more fit in; on a loaded machine it takes longer, and fewer do.
    assert 0.2 * budget < total_seconds(plan, 0.25, workers=1) < 1.2 * budget
    assert plan.steps == len(list(tmp_path.glob("step-*")))
    before = (tmp_path / "surrogate.json").read_bytes()
    for hours in (0.1 / 3600, 1):  # done is done, however much time there is
        run(tmp_path, OPEN, "tests.toy_objectives:quarter", progress=False, hours=hours)
        assert Folder(tmp_path).search() == plan
        assert (tmp_path / "surrogate.json").read_bytes() == before


def test_hours_are_a_positive_number(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        run(tmp_path, OPEN, "tests.toy_objectives:near", hours=0)
    assert error.value.where == "hours"


def test_hours_that_timing_a_trial_takes_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with refused(where="hours", cure="give more hours"):
        run(tmp_path, OPEN, "tests.toy_objectives:quarter", progress=False, hours=1e-9)
    assert not list(tmp_path.iterdir())


def test_steps_that_the_settings_say_are_not_more_where_there_is_time(tmp_path: Path) -> None:
    search = OPEN.model_copy(update={"steps": 2, "trials_per_step": 4})
    run(tmp_path, search, "tests.toy_objectives:near", progress=False, hours=1)
    assert len(list(tmp_path.glob("step-*"))) == Folder(tmp_path).search().steps == 2


# -------------------------------------------------------------------------------------------------------- the pipeline

TIMED = Path("results/tiny/searches/mIoU/timing.json")


def of_hours(hours: float, **search: object) -> dict:
    config = content("tiny")
    del config["searches"]["mAcc"], config["tables"]["proxies"], config["figures"]
    config["tables"]["main"]["rows"] = ["searched:mIoU"]
    own = {"metric": "mIoU", "preset": "recommended", "rescore": 1, **search}
    config["searches"]["mIoU"] |= {"hours": hours, "trials_per_job": 4, "search": own}
    return config


def test_a_pipelines_search_of_some_hours_is_planned_once_a_trial_is_timed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_pipeline(of_hours(1.0), "config").untimed == ["mIoU"]
    Timing(first=50, later=10, device="cpu").save(TIMED)
    pipeline = load_pipeline(of_hours(1.0), "config")
    assert pipeline.untimed == []
    plan = pipeline.search("mIoU")
    assert total_seconds(plan, 20.0, 1) == pytest.approx(3600, rel=0.15)  # 50, 10, 10 and 10 s in each job
    more = load_pipeline(of_hours(2.0, trials_per_step=plan.trials_per_step), "config").search("mIoU")
    assert more.total_steps > 1.7 * plan.total_steps
    ask(plan, []).save(TIMED.parent / "step-001/proposals.json")
    begun = load_pipeline(of_hours(0.5), "config").search("mIoU")
    assert begun.trials_per_step == plan.trials_per_step
    assert begun.total_steps < plan.total_steps
    TIMED.write_text("torn")
    assert load_pipeline(of_hours(1.0), "config").untimed == ["mIoU"]


def test_what_a_search_of_some_hours_costs_is_said_before_a_trial_is_timed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    search, *_ = pipeline_costs(load_pipeline(of_hours(3.0), "config"), trial=15.0)
    assert search.hours == pytest.approx(3, rel=0.2)  # with the starts of its jobs


def test_hours_that_say_nothing_or_too_little_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="nothing to plan"):
        load_pipeline(of_hours(1.0, steps=2, trials_per_step=4), "config")
    with pytest.raises(ValueError, match="greater than 0"):
        load_pipeline(changed(of_hours(1.0), "searches", "mIoU", "hours", 0), "config")
    Timing(first=100, later=100, device="cpu").save(TIMED)
    with refused(where="config: searches.mIoU: hours"):
        load_pipeline(of_hours(0.1), "config")


def test_one_command_times_a_trial_says_the_plan_and_searches(tmp_path: Path) -> None:
    config = with_config(tmp_path, of_hours(0.001, steps=1))
    done = snakemake(tmp_path, "searches", *config)
    assert done.returncode == 0, done.stdout
    assert "a trial is timed first" in done.stdout
    said = done.stdout.index("search 'mIoU': 1 step of ")
    assert said < done.stdout.index("rule trials:")
    folder = tmp_path / TIMED.parent
    found = Folder(folder).proposals(1)
    seconds = Timing.load(tmp_path / TIMED).seconds(4)
    wanted = planned(OPEN.model_copy(update={"steps": 1}), 3.6, seconds)
    assert len(found.trials) == wanted.trials_per_step
    assert f"1 step of {wanted.trials_per_step} trials" in done.stdout[said:]
    answer = (folder / "surrogate.json").read_bytes()
    again = snakemake(tmp_path, "searches", *config)
    assert "Nothing to be done" in again.stdout, again.stdout
    (tmp_path / TIMED).write_text("torn")  # it is measured again, and the steps keep their trials
    assert snakemake(tmp_path, "searches", *config).returncode == 0
    assert Timing.load(tmp_path / TIMED).device == "cpu"
    assert (folder / "surrogate.json").read_bytes() == answer
