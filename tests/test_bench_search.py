"""What the README of the benchmarks says of PPO2's answers, checked anew with what is quick enough to run."""

from __future__ import annotations

from statistics import mean, median

import numpy as np
import pytest

from benchmarks.search import BUDGETS, EDGE_LANDS, LANDS, METHODS, Landscape, ppo2, recommended
from benchmarks.search_landscapes import FAMILIES
from benchmarks.search_recorded import RECORDED, Record, Replayed


def regret(method: str, budget: int, seeds: int, landscapes: list[tuple[str, int]] = LANDS) -> float:
    """Return the mean over landscapes of the median regret."""
    run, budgets = METHODS[method]
    medians = []
    for name, dimensions in landscapes:
        lands = [Landscape(name, dimensions, seed) for seed in range(seeds)]
        answers = [dict(run(land, budget if budget in budgets else budgets[-1]))[budget] for land in lands]
        medians.append(median(land.regret(answer) for land, answer in zip(lands, answers, strict=True)))
    return mean(medians)


def test_a_landscape_is_best_at_its_optimum() -> None:
    for name in FAMILIES:
        land = Landscape(name, 12, 0)
        assert land.regret(land.optimum) == 0
        assert land.regret(land.start) > 0.01
        near = land.optimum + 0.02 * np.random.default_rng(0).normal(size=(50, 12))
        assert all(land.regret(theta) > 0 for theta in near)
        assert land.score(land.start, 3) == land.score(land.start, 3) != land.score(land.start, 4)


def test_optima_lie_at_the_edges_where_the_table_says_so() -> None:
    inside, anywhere = Landscape("valley", 12, 3), Landscape("valley@anywhere", 12, 3)
    assert np.array_equal(inside.metric, anywhere.metric)
    assert anywhere.optimum.min() < 0.15 <= inside.optimum.min()
    for name, edges in (("mIoU", 3), ("mIoU-paper", 4)):
        optimum = Landscape(f"bowl@{name}", 12, 3).optimum
        assert np.sum(np.minimum(optimum, 1 - optimum) < 0.04) == edges


def test_the_default_answers_nearer_to_the_edges_than_its_mean_in_range_could() -> None:
    land = Landscape("bowl@mIoU", 12, 0)
    answer = dict(METHODS["PPO2 default"][0](land, 640))[640]
    at_edge = np.minimum(land.optimum, 1 - land.optimum) < 0.04
    assert np.abs(answer - land.optimum)[at_edge].mean() < 0.1  # 0.15 with mu kept in [0, 1]


@pytest.mark.long
@pytest.mark.parametrize("where", EDGE_LANDS)
def test_with_optima_at_edges_the_default_is_within_twice_cma_es_too(where: str) -> None:
    lands = EDGE_LANDS[where]
    assert regret("PPO2 default", 640, 5, lands) < 2 * regret("CMA-ES, population 32", 640, 5, lands)


@pytest.mark.long
@pytest.mark.parametrize("budget", [160, 640])
def test_the_default_is_within_twice_cma_es_and_the_annealed_preset_beats_it(budget: int) -> None:
    default, cma_es = regret("PPO2 default", budget, 10), regret("CMA-ES, population 32", budget, 10)
    assert default < 2 * cma_es
    assert regret("PPO2 annealed", budget, 10) < cma_es


def test_the_recommended_preset_has_half_the_regret_of_the_annealed_one_after_few_trials() -> None:
    """One landscape of each kind of the quadratic ones; `make bench-search-answers` has them all."""
    seeds, ours, theirs = range(3), [], []
    for name in ("plateau", "bowl@anywhere", "curved"):
        for land in (Landscape(name, 12, seed) for seed in seeds):
            ours.append(land.regret(dict(recommended(land, BUDGETS[0]))[BUDGETS[0]]))
            theirs.append(land.regret(dict(ppo2(land, BUDGETS[0], "annealed"))[BUDGETS[0]]))
    assert mean(ours) < 0.5 * mean(theirs)


@pytest.mark.parametrize("name", ["scenes", "pets"])
def test_recorded_trials_are_replayed_with_their_noise(name: str) -> None:
    record = Record(RECORDED / f"{name}.json")
    land = Replayed(record, 3)
    assert record.held_out() > 0.5
    assert 0 < record.noise < record.scores.std()
    assert land.regret(land.optimum) == 0 < land.regret(land.start)
    assert land.score(land.start, 7) == Replayed(record, 3).score(land.start, 7) != land.score(land.start, 8)
    assert len(land.scores) == 2
