"""Searches within some hours: what is planned, what is said, and how long it takes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from autoseg.errors import InputError
from autoseg.search.budget import planned, steps_that_fit, total_seconds
from autoseg.search.folder import Folder
from autoseg.search.runner import run
from autoseg.search.settings import Search

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
