"""The sampler as OptunaHub's users meet it."""

from __future__ import annotations

from typing import Any

import optuna
import optunahub
import pytest

SPACE = {name: optuna.distributions.FloatDistribution(0, 1) for name in ("x", "y")}


def sampler(**options: object) -> Any:
    """Return a sampler of the local package."""
    return optunahub.load_local_module(package="samplers/ppo2", registry_root="package").PPO2Sampler(SPACE, **options)


def study_of(sampler: Any, trials: int) -> optuna.Study:
    """Return a study of a hill with its top at (.7, .4)."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(
        lambda t: -((t.suggest_float("x", 0, 1) - 0.7) ** 2) - (t.suggest_float("y", 0, 1) - 0.4) ** 2, n_trials=trials
    )
    return study


def test_the_mean_climbs_the_hill() -> None:
    mine = sampler(trials_per_step=8, steps=20)
    answer = mine.best_mean(study_of(mine, 8 * 20)).mean
    assert answer["x"] == pytest.approx(0.7, abs=0.1)
    assert answer["y"] == pytest.approx(0.4, abs=0.1)


def test_the_same_seed_gives_the_same_trials() -> None:
    first, second = (study_of(sampler(trials_per_step=4, steps=3, seed=5), 12) for _ in range(2))
    assert [trial.params for trial in first.trials] == [trial.params for trial in second.trials]


def test_a_fresh_sampler_goes_on_where_another_stopped() -> None:
    whole = study_of(sampler(trials_per_step=4, steps=3), 12)
    study = study_of(sampler(trials_per_step=4, steps=3), 6)
    study.sampler = sampler(trials_per_step=4, steps=3)
    study.optimize(
        lambda t: -((t.suggest_float("x", 0, 1) - 0.7) ** 2) - (t.suggest_float("y", 0, 1) - 0.4) ** 2, n_trials=6
    )
    assert [trial.params for trial in study.trials] == [trial.params for trial in whole.trials]
