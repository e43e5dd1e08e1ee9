"""Which parameters PPO2 searches, how they lie in its box, and what it says of all that it does not search."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from autoseg.search.box import Box, Number, coordinate, value_at
from autoseg.search.sampler import PPO2Sampler
from tests.refusals import refused

optuna.logging.set_verbosity(optuna.logging.WARNING)

KINDS: dict[str, Number] = {
    "rate": FloatDistribution(1e-5, 1e-1, log=True),
    "share": FloatDistribution(0, 1, step=0.25),
    "depth": IntDistribution(2, 7),
    "width": IntDistribution(8, 64, step=8),
    "units": IntDistribution(1, 1000, log=True),
    "plain": FloatDistribution(-5, 5),
}


def suggest_all(trial: optuna.Trial) -> dict[str, float]:
    return {name: trial._suggest(name, d) for name, d in KINDS.items()}


def sampler(space: dict[str, BaseDistribution] | None = None, **options: Any) -> PPO2Sampler:
    return PPO2Sampler({**KINDS} if space is None else space, **{"trials_per_step": 4, "steps": 3, **options})


# ---------------------------------------------------------------------------------------------------------- the mapping

numbers = st.one_of(
    st.builds(lambda a, w: FloatDistribution(a, a + w), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)),
    st.builds(lambda a, f: FloatDistribution(a, a * f, log=True), st.floats(1e-12, 1e6), st.floats(1.01, 1e9)),
    st.builds(
        lambda a, step, n: FloatDistribution(a, a + n * step, step=step),
        st.floats(-1000, 1000),
        st.floats(1e-3, 10),
        st.integers(1, 10_000),
    ),
    st.builds(
        lambda a, step, n: IntDistribution(a, a + n * step, step=step),
        st.integers(-(10**6), 10**6),
        st.integers(1, 100),
        st.integers(1, 10**6),
    ),
    st.builds(lambda a, n: IntDistribution(a, a + n, log=True), st.integers(1, 10**6), st.integers(1, 10**9)),
)


@given(numbers, st.floats(0, 1))
def test_a_value_keeps_its_place_and_comes_back_from_it(d: Number, place: float) -> None:
    assume(not d.single())
    value = value_at(d, place)
    assert d._contains(d.to_internal_repr(value))
    assert isinstance(value, int) == isinstance(d, IntDistribution)
    again = value_at(d, coordinate(d, value))
    if isinstance(d, IntDistribution) or d.step is not None:
        assert again == value
    else:
        assert again == pytest.approx(value, rel=1e-9, abs=1e-9 * (d.high - d.low))
        assert coordinate(d, value) == pytest.approx(place, abs=1e-6)


@given(numbers)
def test_the_ends_of_the_box_are_the_lowest_and_the_highest_value(d: Number) -> None:
    assume(not d.single())
    assert (value_at(d, 0.0), value_at(d, 1.0)) == (d.low, d.high)
    assert value_at(d, coordinate(d, d.low)) == d.low
    assert value_at(d, coordinate(d, d.high)) == d.high
    assert 0 <= coordinate(d, d.low) < coordinate(d, d.high) <= 1


@given(numbers, st.floats(0, 1), st.floats(0, 1))
def test_the_order_of_values_is_the_order_of_places(d: Number, a: float, b: float) -> None:
    assume(not d.single())
    assert (value_at(d, a) <= value_at(d, b)) or a > b


@pytest.mark.parametrize(
    "d", [IntDistribution(-3, 4), IntDistribution(0, 21, step=3), FloatDistribution(0, 0.7, step=0.1)]
)
def test_all_values_with_steps_have_bins_of_the_same_width(d: Number) -> None:
    places = (np.arange(8000) + 0.5) / 8000
    found = [value_at(d, place) for place in places.tolist()]
    assert [found.count(value) for value in sorted(set(found))] == [1000] * 8
    assert sorted(set(found)) == pytest.approx([d.low + k * (d.step or 1) for k in range(8)])


def test_the_values_of_a_log_int_have_bins_as_wide_as_their_logarithms_are_apart() -> None:
    d = IntDistribution(1, 100, log=True)
    places = (np.arange(100_000) + 0.5) / 100_000
    found = [value_at(d, place) for place in places.tolist()]
    for value in (1, 2, 10, 100):
        width = math.log((value + 0.5) / (value - 0.5)) / math.log(100.5 / 0.5)
        assert found.count(value) / 100_000 == pytest.approx(width, abs=2e-5)


def test_the_middle_of_the_box_is_the_start_unless_a_mean_is_given() -> None:
    box = Box.of(KINDS, "truncated")
    assert box.initial({}).tolist() == [0.5] * len(KINDS)
    assert box.params(box.initial({"depth": 2, "rate": 1e-4})) == pytest.approx(
        {"rate": 1e-4, "share": 0.5, "depth": 2, "width": 40, "units": 22, "plain": 0.0}
    )


# ----------------------------------------------------------------------------------------------------------- the search


@pytest.mark.parametrize("preset", ["default", "release", "recommended"])
def test_logs_steps_and_ints_are_searched_without_a_word(preset: str) -> None:
    goal = {"rate": 0.7, "share": 0.125, "depth": 0.9, "width": 0.2, "units": 0.3, "plain": 0.6}
    mine = PPO2Sampler.preset(preset, KINDS, trials_per_step=16, steps=20)
    study = optuna.create_study(direction="maximize", sampler=mine)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        study.optimize(
            lambda trial: -sum((coordinate(KINDS[n], v) - goal[n]) ** 2 for n, v in suggest_all(trial).items()),
            n_trials=16 * (6 if preset == "recommended" else 12),
        )
    for trial in study.trials:
        assert trial.params == trial.system_attrs["ppo2:draw"]["params"]
    answer = mine.answer(study)
    assert {name for name, d in KINDS.items() if isinstance(d, IntDistribution)} == {
        name for name, value in answer.items() if isinstance(value, int)
    }
    first = np.mean([t.value for t in study.trials[:16]])
    far = sum((coordinate(KINDS[name], value) - goal[name]) ** 2 for name, value in answer.items())
    assert far < -first / 3


def test_a_study_goes_on_with_the_same_ints_and_refuses_other_ones(tmp_path) -> None:
    def objective(trial: optuna.Trial) -> float:
        return sum(coordinate(KINDS[name], value) for name, value in suggest_all(trial).items())

    storage = f"sqlite:///{tmp_path}/study.db"
    once = optuna.create_study(direction="maximize", sampler=sampler())
    once.optimize(objective, n_trials=10)
    for _ in range(5):
        study = optuna.create_study(
            storage=storage, study_name="s", direction="maximize", sampler=sampler(), load_if_exists=True
        )
        study.optimize(objective, n_trials=2)
    assert [t.params for t in study.trials] == [t.params for t in once.trials]
    for name, other in (
        ("depth", IntDistribution(2, 7, step=5)),
        ("rate", FloatDistribution(1e-5, 1e-1)),
        ("units", IntDistribution(1, 1000)),
    ):
        study.sampler = sampler({**KINDS, name: other})
        with refused(where="search_space", cure="a new study"):
            study.ask()
    study.sampler = sampler(initial_mean={"width": 8})
    with refused(where="initial_mean"):
        study.ask()


def test_a_normal_family_searches_plain_floats_alone() -> None:
    space = {"z": FloatDistribution(-20, 20), "n": IntDistribution(0, 5)}
    mine = sampler(space, family="normal")
    assert list(mine.search_space) == ["z"]
    study = optuna.create_study(sampler=mine)
    with pytest.warns(UserWarning, match="'n': family \"normal\" has plain floats alone"):
        study.ask(space)
    with refused(where="search_space", what="plain float"):
        sampler({"n": IntDistribution(0, 5)}, family="normal")


# ------------------------------------------------------------------------------------------------ what is not searched


def said(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in caught if str(w.message).startswith("PPO2")]


def test_what_is_not_searched_is_said_once_a_study() -> None:
    space = {**KINDS, "kind": CategoricalDistribution(["a", "b"]), "one": IntDistribution(3, 3)}

    def objective(trial: optuna.Trial) -> float:
        values = suggest_all(trial)
        if trial.suggest_categorical("kind", ["a", "b"]) == "a":
            return values["plain"] + trial.suggest_float("only sometimes", 0, 1) + trial.suggest_int("other", 0, 1)
        return trial.suggest_int("one", 3, 3)

    mine = sampler(space)
    for _ in range(2):
        study = optuna.create_study(sampler=mine)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            study.optimize(objective, n_trials=12)
        words = said(caught)
        assert len(words) == 2
        assert "'kind': it is a choice; 'one': it has one value" in words[0]
        assert "TPESampler" in words[0]
        assert "'only sometimes' is not in the search space" in words[1]


def test_what_is_not_searched_is_tpes_by_default_and_learns() -> None:
    study = optuna.create_study(direction="maximize", sampler=sampler(seed=3))

    def objective(trial: optuna.Trial) -> float:
        suggest_all(trial)
        return float(trial.suggest_categorical("kind", list("abcdefgh")) == "c")

    with pytest.warns(UserWarning, match="TPESampler"):
        study.optimize(objective, n_trials=80)
    late = [t.params["kind"] for t in study.trials[40:]]
    assert late.count("c") > 20  # 5 by chance


def test_a_given_independent_sampler_takes_its_place() -> None:
    class Last(optuna.samplers.RandomSampler):
        def sample_independent(self, study, trial, param_name, param_distribution):
            return param_distribution.choices[-1]

    study = optuna.create_study(sampler=sampler(independent_sampler=Last()))
    with pytest.warns(UserWarning, match="left to Last"):
        trial = study.ask({**KINDS, "kind": CategoricalDistribution(["a", "b"])})
    assert trial.params["kind"] == "b"


# ------------------------------------------------------------------------------------------- pruned trials, constraints


def test_pruned_trials_are_counted_and_said_and_another_trial_takes_their_place() -> None:
    study = optuna.create_study(direction="maximize", sampler=sampler(), pruner=optuna.pruners.NopPruner())

    def objective(trial: optuna.Trial) -> float:
        score = suggest_all(trial)["plain"]
        trial.report(score, 0)
        if trial.number % 3 == 1:
            raise optuna.TrialPruned
        return score

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study.optimize(objective, n_trials=13)
    assert len([word for word in said(caught) if "was pruned" in word]) == 1
    assert sampler().policies(study)[0]["members"] == [0, 2, 3, 5]
    assert sampler().best_mean(study).ignored == {"pruned": 4}


@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.PRUNED])
def test_constraints_are_refused_in_a_sentence(state: TrialState) -> None:
    study = optuna.create_study(sampler=sampler())
    trial = study.ask(KINDS)
    trial.set_constraint("memory", 1.0)
    with refused(where="trial 0", what="knows no constraints", cure="low score") as error:
        study.tell(trial, 1.0 if state == TrialState.COMPLETE else None, state=state)
    assert isinstance(error.value, ValueError)  # as Optuna's own refusals are
    assert study.trials[0].state == state
