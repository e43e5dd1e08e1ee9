"""What the README of the benchmarks says of PPO2's answers, checked anew with what is quick enough to run."""

from __future__ import annotations

from statistics import mean, median

import pytest

from benchmarks.search import METHODS, Landscape


def regret(method: str, budget: int, seeds: int) -> float:
    """Return the mean over landscapes of the median regret."""
    run, budgets = METHODS[method]
    medians = []
    for name in Landscape.NAMES:
        for dimensions in (12, 24):
            lands = [Landscape(name, dimensions, seed) for seed in range(seeds)]
            answers = [dict(run(land, budget if budget in budgets else budgets[-1]))[budget] for land in lands]
            medians.append(median(land.regret(answer) for land, answer in zip(lands, answers, strict=True)))
    return mean(medians)


def test_a_landscape_is_best_at_its_optimum() -> None:
    for name in Landscape.NAMES:
        land = Landscape(name, 12, 0)
        assert land.regret(land.optimum) == 0
        assert land.regret(land.start) > 0.01
        assert land.score(land.start, 3) == land.score(land.start, 3) != land.score(land.start, 4)


@pytest.mark.long
@pytest.mark.parametrize("budget", [160, 640])
def test_the_default_is_within_twice_cma_es_and_the_annealed_preset_beats_it(budget: int) -> None:
    default, cma_es = regret("PPO2 default", budget, 10), regret("CMA-ES, population 32", budget, 10)
    assert default < 2 * cma_es
    assert regret("PPO2 annealed", budget, 10) < cma_es
