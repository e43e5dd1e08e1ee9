"""PPO2: its pure functions against slow references, and the sampler as an Optuna user would use and abuse it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.testing import pytest_samplers as conformance
from optuna.trial import TrialState
from scipy.stats import truncnorm

from autoseg.errors import InputError
from autoseg.search.ppo2 import (
    PRESETS,
    REACH_OF_MEAN,
    Adam,
    Policy,
    Settings,
    advantages,
    expectation,
    log_density,
    next_policy,
    objective,
    propose,
)
from autoseg.search.sampler import PPO2Sampler, _Step
from tests.refusals import refused

SPACE = {"a": FloatDistribution(0, 1), "b": FloatDistribution(-5, 5), "c": FloatDistribution(1, 1.5)}
optuna.logging.set_verbosity(optuna.logging.WARNING)


def score(params: dict[str, float]) -> float:
    return -((params["a"] - 0.7) ** 2) - (params["b"] / 10) ** 2 - (params["c"] - 1.1) ** 2


def suggest(trial: optuna.Trial) -> float:
    return score({name: trial.suggest_float(name, d.low, d.high) for name, d in SPACE.items()})


def new_study(sampler: PPO2Sampler, direction: str = "maximize", storage: object = None) -> Study:
    return optuna.create_study(direction=direction, sampler=sampler, storage=storage or InMemoryStorage())  # type: ignore[arg-type]


def parameters(study: Study) -> list[dict[str, float]]:
    return [t.params for t in study.trials]


# ------------------------------------------------------------------------------------------- Optuna's conformance suite

SPACES = {
    "same names, floats": {"x": FloatDistribution(-1, 1), "y": FloatDistribution(0, 10), "z": FloatDistribution(-1, 1)},
    "same names, mixed": {"x": FloatDistribution(-10, 10), "y": IntDistribution(0, 10), "z": FloatDistribution(0, 1)},
    "same names, steps and logs": {
        "x": FloatDistribution(1e-7, 10, log=True),
        "y": FloatDistribution(0, 10, step=0.5),
        "z": IntDistribution(1, 10, log=True),
    },
    "other names": {"theta": FloatDistribution(0, 1)},
}


class TestOptunaConformance(
    conformance.BasicSamplerTestCase, conformance.RelativeSamplerTestCase, conformance.SingleOnlySamplerTestCase
):
    @pytest.fixture(params=SPACES)
    def sampler(self, request: pytest.FixtureRequest) -> Callable[[], PPO2Sampler]:
        return lambda: PPO2Sampler(SPACES[request.param], trials_per_step=3, steps=3, updates=5)


class TestOptunaConformanceOfTheModel(
    conformance.BasicSamplerTestCase, conformance.RelativeSamplerTestCase, conformance.SingleOnlySamplerTestCase
):
    @pytest.fixture
    def sampler(self) -> Callable[[], PPO2Sampler]:
        return lambda: PPO2Sampler.preset("recommended", SPACES["same names, floats"], trials_per_step=3, steps=3)


# ------------------------------------------------------------------------------------------------------ pure functions


@pytest.mark.parametrize("mu", [-0.08, 0.0, 1e-9, 0.03, 0.25, 0.5, 0.9999, 1.0, 1.08])
@pytest.mark.parametrize("sigma", [0.02, 0.2, 3.0])
def test_the_truncated_normal_is_scipys(mu: float, sigma: float) -> None:
    reference = truncnorm(-mu / sigma, (1 - mu) / sigma, loc=mu, scale=sigma)
    theta = np.linspace(0, 1, 11)
    log_p, _ = log_density(theta, np.array([mu]), sigma)
    expected = reference.logpdf(theta)
    assert log_p - log_p[5] == pytest.approx(expected - expected[5], abs=1e-9)
    assert expectation(np.array([mu]), sigma) == pytest.approx(reference.mean(), abs=1e-9)
    # The normaliser too: log p between two means differs by log Z alone at theta = (mu + mu') / 2.
    other = truncnorm(-0.5 / sigma, 0.5 / sigma, loc=0.5, scale=sigma)
    difference = log_p - log_density(theta, np.array([0.5]), sigma)[0]
    assert difference == pytest.approx(expected - other.logpdf(theta), abs=1e-7)
    u = np.random.default_rng([0, 4]).random(1)
    assert propose([mu], 0, 4, sigma=sigma) == pytest.approx(reference.ppf(u), abs=1e-9)


def test_many_proposals_follow_the_truncated_normal() -> None:
    mu, sigma = np.array([0.02, 0.6]), 0.2
    thetas = np.array([propose(mu, 1, number, sigma=sigma) for number in range(4000)])
    assert thetas.min() >= 0
    assert thetas.max() <= 1
    assert thetas.mean(axis=0) == pytest.approx(expectation(mu, sigma), abs=0.01)


def update(mu: ArrayLike, thetas: ArrayLike, scores: ArrayLike, **settings: Any) -> np.ndarray:
    """Return the mean after one update with the default settings, or with others."""
    return next_policy(Settings(**settings), Policy(np.asarray(mu, float)), 1, thetas, scores).mu


def test_mirrored_trials_stand_on_both_sides_of_mu() -> None:
    pair = [propose([0.5, 0.5], 0, number, mirrored=True) for number in (6, 7)]
    assert pair[0] + pair[1] == pytest.approx([1, 1])
    assert not np.allclose(propose([0.5], 0, 8, mirrored=True), propose([0.5], 0, 6, mirrored=True))


def by_autograd(
    settings: Settings, mu: np.ndarray, thetas: np.ndarray, scores: np.ndarray, moments: dict | None = None
) -> np.ndarray:
    """The update written with torch: autograd through the clipped ratio of section 3.3, torch's Adam.

    `moments` is Adam's state, taken over from the call before and left for the next one.
    """
    theta = torch.tensor(thetas, dtype=torch.float64)
    mu_t = torch.tensor(mu, dtype=torch.float64)
    xi = torch.tensor(advantages(mu, thetas, scores, settings.baseline)).unsqueeze(1)
    normal = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)

    def log_p(m: torch.Tensor) -> torch.Tensor:
        value = normal.log_prob((theta - m) / settings.sigma)
        if settings.family == "truncated":
            value = value - torch.log(normal.cdf((1 - m) / settings.sigma) - normal.cdf(-m / settings.sigma))
        return value

    logit = settings.optimise == "logit"
    x = (torch.logit(mu_t) if logit else mu_t.clone()).requires_grad_()
    adam = torch.optim.Adam([x], lr=settings.lr)
    if moments:
        adam.load_state_dict(moments)
    clip = settings.clip_at(1)
    for _ in range(settings.updates):
        log_ratio = log_p(torch.sigmoid(x) if logit else x) - log_p(mu_t)
        r = torch.exp(log_ratio.sum(1, keepdim=True) if settings.ratio == "joint" else log_ratio)
        reward = torch.minimum(r * xi, r.clamp(1 - clip, 1 + clip) * xi)
        adam.zero_grad()
        (-reward.mean(0).sum()).backward()
        adam.step()
        if not logit and settings.family == "truncated":
            with torch.no_grad():
                x.clamp_(*settings.bounds)
    if moments is not None:
        moments.update(adam.state_dict())
    return (torch.sigmoid(x) if logit else x).detach().numpy()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("family", ["truncated", "normal"])
def test_the_update_is_that_of_torch_autograd(preset: str, family: str) -> None:
    if family == "normal" and preset == "release":
        family = "truncated"
    settings = Settings.preset(preset, family=family)
    mu = np.array([0.05, 0.3, 0.5, 0.97])
    thetas = np.array([propose(mu, 3, i, sigma=settings.sigma, family=family) for i in range(32)])
    thetas[0] = mu
    scores = -((thetas - 0.6) ** 2).sum(1) + 0.01 * np.random.default_rng(0).normal(size=32)
    mine = next_policy(settings, Policy(mu), 1, thetas, scores).mu
    assert mine == pytest.approx(by_autograd(settings, mu, thetas, scores), abs=1e-6)
    assert np.linalg.norm(mine - 0.6) < np.linalg.norm(mu - 0.6)


def test_the_release_takes_adams_moments_over_as_torch_does() -> None:
    settings, moments = Settings.preset("release"), {}
    policy = Policy(np.array([0.3, 0.5]))
    for step in (1, 2, 3):
        thetas = np.array([propose(policy.mu, 3, 8 * step + i) for i in range(8)])
        thetas[0] = policy.mu
        scores = -((thetas - 0.6) ** 2).sum(1) + 0.01 * np.random.default_rng(step).normal(size=8)
        reference = by_autograd(settings, policy.mu, thetas, scores, moments)
        forgetful = next_policy(settings, Policy(policy.mu), step, thetas, scores)
        policy = next_policy(settings, policy, step, thetas, scores)
        assert policy.mu == pytest.approx(reference, abs=1e-6)
        assert (step == 1) == (policy.mu == pytest.approx(forgetful.mu, abs=1e-3))


def test_an_answer_comes_near_the_edge_and_mu_stays_in_range_where_it_is_the_answer() -> None:
    mu, edge = np.array([0.3, 0.7]), np.array([0.0, 1.0])
    for settings, nearest in ((Settings(), 0.05), (Settings.preset("paper", ratio="dimension", clip=0.15), 0)):
        policy = Policy(mu)
        for step in range(40):
            thetas = np.array([propose(policy.mu, 0, 32 * step + i) for i in range(32)])
            policy = next_policy(settings, policy, 1, thetas, -((thetas - edge) ** 2).sum(1))
        if settings.answer == "mu":
            assert policy.mu.tolist() == [0, 1]
        else:
            assert np.abs(expectation(policy.mu, settings.sigma) - edge).max() < nearest
            assert np.all(np.abs(policy.mu - 0.5) <= 0.5 + REACH_OF_MEAN * settings.sigma)


def test_huge_scores_update_as_small_ones_do() -> None:
    thetas = np.random.default_rng(0).random((6, 2))
    scores = np.array([-1.7, 1.7, 0.3, -0.2, 1.0, 0.1])
    small = update([0.4, 0.5], thetas, scores / 1.7)
    assert small != pytest.approx([0.4, 0.5], abs=0.01)
    assert update([0.4, 0.5], thetas, scores * 1e308) == pytest.approx(small, abs=1e-6)
    assert update([0.4, 0.5], thetas, scores * 1e155) == pytest.approx(small, abs=1e-6)


@given(st.integers(0, 10**6), st.sampled_from(["joint", "dimension"]), st.sampled_from(["truncated", "normal"]))
def test_the_gradient_is_that_of_finite_differences(seed: int, ratio: str, family: str) -> None:
    rng = np.random.default_rng(seed)
    mu, mu_t, thetas, xi = rng.random(3), rng.random(3), rng.random((6, 3)), rng.normal(size=6)
    log_p_t, _ = log_density(thetas, mu_t, 0.3, family)

    def at(m: np.ndarray) -> float:
        return objective(m, log_p_t, thetas, xi, 0.3, 0.2, ratio, family)[0]

    _, gradient = objective(mu, log_p_t, thetas, xi, 0.3, 0.2, ratio, family)
    for axis, h in enumerate(1e-7 * np.eye(3)):
        left, right = (at(mu) - at(mu - h)) / 1e-7, (at(mu + h) - at(mu)) / 1e-7
        # At a kink of the clip either one-sided slope is right.
        assert min(abs(gradient[axis] - left), abs(gradient[axis] - right)) <= 1e-4 * max(1, abs(left), abs(right))


@given(st.integers(0, 10**6), st.sampled_from([0.5, 1.0]), st.floats(-50, 50), st.integers(0, 3))
def test_the_update_ignores_order_offset_and_stays_in_range(seed: int, clip: float, offset: float, edge: int) -> None:
    rng = np.random.default_rng(seed)
    mu = np.where(np.arange(4) < edge, 1.0, rng.random(4))
    thetas, scores = rng.random((8, 4)), rng.normal(size=8)
    new = update(mu, thetas, scores, clip=clip, updates=10)
    assert np.all((new >= -REACH_OF_MEAN * 0.2) & (new <= 1 + REACH_OF_MEAN * 0.2))
    in_range = update(mu, thetas, scores, clip=clip, updates=10, answer="mu")
    assert np.all((in_range >= 0) & (in_range <= 1))
    assert update(mu, thetas[::-1], scores[::-1], clip=clip, updates=10) == pytest.approx(new, abs=1e-9)
    assert update(mu, thetas, scores + offset, clip=clip, updates=10) == pytest.approx(new, abs=1e-5)


def test_equal_scores_leave_mu_where_it_is() -> None:
    assert update([0.3, 1.0], [[0.1, 0.9], [0.5, 0.4]], [0.25, 0.25]).tolist() == [0.3, 1.0]


def test_scores_that_are_not_finite_update_nothing() -> None:
    with pytest.raises(InputError) as error:
        update([0.3], [[0.1], [0.5]], [1, float("nan")])
    assert error.value.cure == "leave failed trials out"


def test_the_mu_baseline_needs_mus_own_score() -> None:
    with pytest.raises(InputError) as error:
        update([0.3], [[0.1], [0.5]], [1, 2], baseline="mu")
    assert error.value.where == "baseline"


def test_the_release_keeps_adams_moments() -> None:
    settings, thetas, scores = Settings.preset("release"), [[0.5], [0.4], [0.8]], [0.0, 0.1, 0.3]
    first = next_policy(settings, Policy(np.array([0.5])), 1, thetas, scores)
    assert isinstance(first.adam, Adam)
    assert first.adam.ascents == settings.updates
    forgetful = next_policy(settings, Policy(np.array([0.5])), 1, thetas, [0.0, 0.0, 0.0])
    drifting = next_policy(settings, Policy(np.array([0.5]), first.adam), 1, thetas, [0.0, 0.0, 0.0])
    assert forgetful.mu == 0.5
    assert abs(drifting.mu - 0.5) > 0.01


def test_the_default_clip_shares_one_distance_out_over_the_planned_steps() -> None:
    assert [Settings(steps=t).clip_at(1) for t in (20, 5, 1)] == [0.15, 0.6, 0.9]
    annealed = Settings.preset("annealed", steps=20)
    assert [annealed.clip_at(t) for t in (1, 11, 20, 25)] == pytest.approx([0.3, 0.15, 0.015, 0.015])


# ---------------------------------------------------------------------------------------------------------- the sampler

VARIANTS = {
    "default": {},
    "release": PRESETS["release"],
    "annealed": PRESETS["annealed"],
    "recommended": PRESETS["recommended"],
}


def make(variant: str = "default", **changes: object) -> PPO2Sampler:
    return PPO2Sampler(SPACE, **{"trials_per_step": 4, "seed": 5, **VARIANTS[variant], **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_way_of_running_gives_the_same_parameters(variant: str, tmp_path) -> None:
    sequential = new_study(make(variant))
    sequential.optimize(suggest, n_trials=14)

    whole_steps = new_study(make(variant))
    lazily = new_study(make(variant))
    reverse, phases = new_study(make(variant)), new_study(make(variant), storage=journal(tmp_path / "phases.log"))
    for _ in range(4):
        asked = [whole_steps.ask(SPACE) for _ in range(4)]
        for trial in asked:
            whole_steps.tell(trial, score(trial.params))
        asked = [reverse.ask(SPACE) for _ in range(4)]
        for trial in reversed(asked):
            reverse.tell(trial, score(trial.params))
        unsampled = [lazily.ask() for _ in range(4)]
        for trial in unsampled:
            lazily.tell(trial, suggest(trial))
        fresh = optuna.load_study(
            study_name=phases.study_name, storage=journal(tmp_path / "phases.log"), sampler=make(variant)
        )
        numbers = [fresh.ask(SPACE).number for _ in range(4)]
        fresh = optuna.load_study(
            study_name=phases.study_name, storage=journal(tmp_path / "phases.log"), sampler=make(variant)
        )
        for number in reversed(numbers):
            fresh.tell(number, score(fresh.trials[number].params))

    for other in (whole_steps, reverse, lazily, fresh):
        assert parameters(other)[:14] == parameters(sequential)
        assert_policies_are_rederived(other, make(variant))


def journal(path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path)))


def a_storage(kind: str, folder) -> optuna.storages.BaseStorage:
    if kind == "sqlite":
        return optuna.storages.RDBStorage(f"sqlite:///{folder}/study.db")
    return journal(folder / "journal.log") if kind == "journal" else InMemoryStorage()


def rederive(study: Study, sampler: PPO2Sampler) -> list[np.ndarray]:
    """Return mu_1, mu_2, ... from nothing but the trials, the members' numbers and each step's clip."""
    policies, steps = [sampler.initial_policy], []
    for record in sampler.policies(study):
        settings = replace(sampler.settings, clip=record["clip"], anneal=False)
        steps.append(_Step(policies[-1], [study.trials[n] for n in record["members"]], []))
        policies.append(sampler._successor(study, settings, steps))
    return [policy.mu for policy in policies]


def assert_policies_are_rederived(study: Study, sampler: PPO2Sampler) -> int:
    """Check the frozen policies against the trials; return how many there are."""
    frozen, rederived = sampler.policies(study), rederive(study, sampler)
    assert len(rederived) == len(frozen) + 1
    for step, record in enumerate(frozen, start=2):
        assert record["mu"] == rederived[step - 1].tolist()
        assert len(record["members"]) == len(set(record["members"])) == sampler.settings.trials_per_step
        for number in record["members"]:
            assert study.trials[number].state == TrialState.COMPLETE
            assert np.isfinite(study.trials[number].value)
            assert study.trials[number].system_attrs["ppo2:draw"]["step"] == step - 1
    return len(frozen)


def test_the_sampler_is_the_pure_functions() -> None:
    study = new_study(make())
    study.optimize(suggest, n_trials=12)
    sampler = make()
    policy = Policy(np.array([0.5, 0.5, 0.5]))
    for step in range(3):
        numbers = range(4 * step, 4 * step + 4)
        thetas = [propose(policy.mu, 5, number) for number in numbers]
        for theta, number in zip(thetas, numbers, strict=True):
            expected = {"a": theta[0], "b": -5 + 10 * theta[1], "c": 1 + 0.5 * theta[2]}
            assert study.trials[number].params == pytest.approx(expected)
        scores = [study.trials[number].value for number in numbers]
        policy = next_policy(sampler.settings, policy, step + 1, thetas, scores)


def test_minimising_is_maximising_the_negative() -> None:
    up, down = new_study(make()), new_study(make(), "minimize")
    up.optimize(suggest, n_trials=12)
    down.optimize(lambda trial: -suggest(trial), n_trials=12)
    assert parameters(up) == parameters(down)
    best_up, best_down = make().best_mean(up), make().best_mean(down)
    assert best_up.mean == best_down.mean
    assert best_up.score == -best_down.score


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_finite_complete_trials_count_and_nothing_blocks(variant: str) -> None:
    study = new_study(make(variant))
    study.ask(SPACE)  # abandoned: RUNNING for ever (mu's own trial with the release's baseline)
    for index in range(40):
        trial = study.ask(SPACE)
        match index % 5:
            case 0:
                study.tell(trial, state=TrialState.FAIL)
            case 1:
                trial.report(1.0, 0)
                study.tell(trial, state=TrialState.PRUNED)
            case 2:
                study.tell(trial, float("inf") if index % 2 else float("-inf"))
            case 3:
                with pytest.warns(UserWarning, match="nan"):
                    study.tell(trial, float("nan"))
            case 4:
                study.tell(trial, score(trial.params))
    # 8 good trials: two steps of 4; the 8th completes the second, whose successor is frozen at the next ask.
    study.ask(SPACE)
    assert assert_policies_are_rederived(study, make(variant)) == 2
    drawn = [t.params["a"] for t in study.trials if not t.system_attrs["ppo2:draw"]["is_mu"]]
    assert len(set(drawn)) == len(drawn)


def test_more_trials_than_a_step_needs_are_no_trouble() -> None:
    study = new_study(make())
    for trial in [study.ask(SPACE) for _ in range(11)]:
        study.tell(trial, score(trial.params))
    study.ask(SPACE)
    assert make().policies(study)[0]["members"] == [0, 1, 2, 3]
    assert assert_policies_are_rederived(study, make()) == 1


def test_a_policy_written_late_changes_no_step_that_has_a_successor() -> None:
    study = new_study(make())
    study.optimize(suggest, n_trials=9)  # policies of steps 2 and 3 are frozen
    before = make().policies(study)
    late = {**before[0], "mu": [0.1, 0.1, 0.1], "writer": 1}  # by trial 1, which was held up for two steps
    study.set_user_attr("ppo2:policy:2:1", late)
    assert make().policies(study) == before
    # While the newest step is contested, the smallest trial number decides, and other samples do not count.
    study.set_user_attr("ppo2:policy:3:5", {**before[1], "mu": [0.1, 0.1, 0.1], "writer": 5})
    assert make().policies(study)[1]["writer"] == 5
    study.optimize(suggest, n_trials=5)
    assert [t.system_attrs["ppo2:draw"]["mu"] for t in study.trials[9:13]] == [[0.1] * 3] * 4
    assert make().policies(study)[2]["members"] == [9, 10, 11, 12]


def test_threads_share_a_study() -> None:
    study = new_study(make("release"))
    study.optimize(suggest, n_trials=40, n_jobs=4)
    assert assert_policies_are_rederived(study, make("release")) >= 6


def test_enqueued_trials_run_but_are_no_samples() -> None:
    study = new_study(make())
    study.enqueue_trial({"a": 0.9})
    study.enqueue_trial({"foreign": 3})
    study.optimize(lambda trial: suggest(trial) + 0 * trial.suggest_int("foreign", 0, 9), n_trials=6)
    assert study.trials[0].params["a"] == 0.9
    assert study.trials[1].params["foreign"] == 3
    assert study.trials[0].params["b"] == new_params(0)["b"]
    assert make().policies(study)[0]["members"] == [1, 2, 3, 4]


def new_params(number: int) -> dict[str, float]:
    study = new_study(make())
    return [study.ask(SPACE) for _ in range(number + 1)][-1].params


def test_foreign_parameters_are_independent_and_resume_exactly() -> None:
    def mixed(trial: optuna.Trial) -> float:
        kind = trial.suggest_categorical("kind", ["x", "y"])
        return suggest(trial) + 0.01 * trial.suggest_int("depth", 1, 9) + (kind == "x")

    once, resumed = new_study(make()), new_study(make())
    once.optimize(mixed, n_trials=10)
    for _ in range(10):
        resumed.sampler = make()
        resumed.optimize(mixed, n_trials=1)
    assert parameters(once) == parameters(resumed)
    assert len({t.params["depth"] for t in once.trials}) > 3


def test_a_choice_in_the_space_goes_to_the_given_independent_sampler() -> None:
    class Nine(optuna.samplers.RandomSampler):
        def sample_independent(self, study, trial, param_name, param_distribution):
            return 9

    space = {
        **SPACE,
        "depth": CategoricalDistribution([8, 9, 10]),
        "kind": CategoricalDistribution([9]),
        "one": IntDistribution(1, 1),
    }
    study = new_study(PPO2Sampler(space, trials_per_step=2, independent_sampler=Nine()))
    trial = study.ask(space)
    assert trial.params["depth"] == 9
    assert trial.params["a"] != 9


def test_a_parameter_of_another_range_is_left_to_the_independent_sampler_and_counts_for_nothing() -> None:
    study = new_study(PPO2Sampler({"a": FloatDistribution(0, 1)}, trials_per_step=2))
    study.optimize(lambda trial: trial.suggest_float("a", 10, 20), n_trials=5)
    assert all(10 <= t.params["a"] <= 20 for t in study.trials)
    assert not PPO2Sampler.policies(study)


def test_a_hyperband_pruner_shows_the_sampler_a_part_of_the_study_and_steps_advance_all_the_same() -> None:
    study = optuna.create_study(direction="maximize", sampler=make(), pruner=optuna.pruners.HyperbandPruner())
    study.optimize(suggest, n_trials=9)
    assert assert_policies_are_rederived(study, make()) == 2


def test_the_answer_is_the_mean_of_the_best_step_and_the_paper_answers_with_mu() -> None:
    study = new_study(make())
    with refused(where="study", what="0 of 4 trials of step 1"):
        make().best_mean(study)
    study.optimize(suggest, n_trials=30)  # seven steps and two trials of the eighth
    averages = [np.mean([t.value for t in study.trials[4 * s : 4 * s + 4]]) for s in range(7)]
    best = make().best_mean(study)
    assert best.step == int(np.argmax(averages)) + 1
    assert best.score == pytest.approx(max(averages))
    mu = [0.5] * 3 if best.step == 1 else PPO2Sampler.policies(study)[best.step - 2]["mu"]
    expected = expectation(mu, 0.2)
    assert best.mean == pytest.approx({"a": expected[0], "b": -5 + 10 * expected[1], "c": 1 + expected[2] / 2})
    assert best.ignored == {}
    last = make(pick="last").best_mean(study)
    assert (last.step, last.score) == (8, None)

    papers = new_study(make(answer="mu"))
    papers.optimize(suggest, n_trials=8)
    last = make(answer="mu", pick="last").best_mean(papers)
    papers.ask(SPACE)
    mu = PPO2Sampler.policies(papers)[1]["mu"]
    assert last.mean == pytest.approx({"a": mu[0], "b": -5 + 10 * mu[1], "c": 1 + mu[2] / 2})


def test_one_more_step_lets_the_mean_after_the_last_step_compete() -> None:
    def better_and_better(trial: optuna.Trial) -> float:
        return suggest(trial) + trial.number

    study = new_study(make(steps=2))
    study.optimize(better_and_better, n_trials=8)
    assert make(steps=2).best_mean(study).step == 2
    study.optimize(better_and_better, n_trials=4)  # step T + 1 (Algorithm 1, line 9)
    best = make(steps=2).best_mean(study)
    assert best.step == 3
    assert best.score == pytest.approx(np.mean([t.value for t in study.trials[8:]]))


def test_reading_the_answer_writes_nothing() -> None:
    study = new_study(make())
    study.optimize(suggest, n_trials=8)
    before = study.user_attrs
    make().best_mean(study)
    assert study.user_attrs == before


def test_the_normal_family_is_not_truncated_and_keeps_its_own_units() -> None:
    space = {"z0": FloatDistribution(-20, 20), "z1": FloatDistribution(-20, 20)}
    sampler = PPO2Sampler(space, trials_per_step=8, family="normal", sigma=0.2, steps=15)
    study = new_study(sampler)
    study.optimize(lambda t: -((t.suggest_float("z0", -20, 20) - 1) ** 2) - t.suggest_float("z1", -20, 20) ** 2, 120)
    first = np.array([[t.params["z0"], t.params["z1"]] for t in study.trials[:8]])
    assert 0.1 < first.std() < 0.4
    assert first.min() < 0 < first.max()
    assert sampler.best_mean(study).mean["z0"] > 0.5


@pytest.mark.parametrize(
    ("changes", "where", "expected"),
    [
        ({"trials_per_step": 1}, "trials_per_step", "a whole number, 2 or more"),
        ({"sigma": 0}, "sigma", "a positive number"),
        ({"sigma": float("nan")}, "sigma", "a positive number"),
        ({"sigma": None}, "sigma", "a positive number"),
        ({"lr": None}, "lr", "a positive number"),
        ({"clip": -0.1}, "clip", "a positive number"),
        ({"steps": 0}, "steps", "a whole number, 1 or more"),
        ({"updates": 2.5}, "updates", "a whole number, 1 or more"),
        ({"seed": -1}, "seed", "a whole number, 0 or more"),
        ({"ratio": "joined"}, "ratio", "one of dimension, joint"),
        ({"baseline": "median"}, "baseline", "one of mean, mu"),
        ({"initial_mean": {"d": 0.5}}, "initial_mean", "one of a, b, c"),
        ({"initial_mean": {"b": 7}}, "initial_mean: b", "a number in [-5.0, 5.0]"),
        ({"optimise": "logit", "family": "normal"}, "optimise", ""),
    ],
)
def test_bad_settings_are_refused_with_their_place(changes: dict, where: str, expected: str) -> None:
    with pytest.raises(InputError) as error:
        PPO2Sampler(SPACE, **changes)
    assert (error.value.where, error.value.expected) == (where, expected)


def test_all_arguments_but_the_space_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        PPO2Sampler(SPACE, 4)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("space", "where"),
    [
        ({}, "search_space"),
        ({"n": IntDistribution(3, 3)}, "search_space"),
        ({"x": CategoricalDistribution([1, 2])}, "search_space"),
        ({"x": (0, 1)}, "search_space"),
        ({"x": FloatDistribution(0, 1), "y": FloatDistribution(-1.7e308, 1.7e308)}, "search_space: y"),
    ],
)
def test_a_bad_search_space_is_refused(space: dict, where: str) -> None:
    with pytest.raises(InputError) as error:
        PPO2Sampler(space)
    assert error.value.where == where


def test_a_wrong_preset_or_argument_is_told_with_the_nearest() -> None:
    with refused(where="preset", what="did you mean 'paper'?"):
        PPO2Sampler.preset("papier", SPACE)
    with refused(what="did you mean 'sigma'?"):
        Settings.preset("paper", sgima=0.1)
    with refused(what="argument 'sgima'; did you mean 'sigma'?"):
        PPO2Sampler.preset("paper", SPACE, sgima=0.1)


def test_numpys_numbers_are_settings_too() -> None:
    numpys = {"trials_per_step": np.int64(4), "sigma": np.float32(0.25), "seed": np.int64(5), "anneal": np.True_}
    study = new_study(PPO2Sampler(SPACE, **numpys))  # type: ignore[arg-type]
    study.optimize(suggest, n_trials=9)
    plain = PPO2Sampler(SPACE, trials_per_step=4, sigma=0.25, seed=5, anneal=True)
    assert assert_policies_are_rederived(study, plain) == 2
    plain.best_mean(study)


@pytest.mark.parametrize("kind", ["memory", "journal", "sqlite"])
def test_a_study_is_resumed_with_its_space_in_another_order(kind: str, tmp_path) -> None:
    once, resumed = new_study(make()), new_study(make(), storage=a_storage(kind, tmp_path))
    once.optimize(suggest, n_trials=10)
    resumed.optimize(suggest, n_trials=5)
    turned = {name: SPACE[name] for name in ("c", "a", "b")}
    resumed.sampler = PPO2Sampler(turned, trials_per_step=4, seed=5)
    resumed.optimize(suggest, n_trials=5)
    assert parameters(resumed) == parameters(once)
    assert resumed.sampler.best_mean(resumed) == make().best_mean(once)


def test_another_seed_on_resume_is_told() -> None:
    study = new_study(make())
    study.optimize(suggest, n_trials=2)
    study.sampler = make(seed=6)
    with pytest.warns(UserWarning, match="seed 6, but the study began with 5"):
        study.ask(SPACE)


@pytest.mark.parametrize("kind", ["memory", "journal", "sqlite"])
def test_a_refused_sampler_leaves_enqueued_trials_in_the_queue(kind: str, tmp_path) -> None:
    study = new_study(make(), storage=a_storage(kind, tmp_path))
    study.optimize(suggest, n_trials=1)
    study.enqueue_trial({"a": 0.9})
    study.sampler = make(sigma=0.1)
    for _ in range(2):
        with pytest.raises(InputError) as error:
            study.ask(SPACE)
        assert error.value.where == "sigma"
    study.sampler = make()
    assert study.ask(SPACE).params["a"] == 0.9


def test_complete_trials_of_no_use_are_warned_of_once_and_counted() -> None:
    study = new_study(make())
    with pytest.warns(UserWarning, match="trial 0 did not suggest b, c with the distribution") as warned:
        study.optimize(lambda trial: trial.suggest_float("a", 0, 1), n_trials=6)
    assert len([w for w in warned if "did not suggest" in str(w.message)]) == 1
    with pytest.raises(
        InputError, match=r"0 of 4 trials of step 1 are complete; .* 6 without b, c of the search space"
    ):
        make().best_mean(study)
    study.enqueue_trial({"a": 0.9})
    asked = [study.ask(SPACE) for _ in range(7)]
    for trial in asked:
        study.tell(trial, float("inf") if trial.number == 7 else score(trial.params))
    assert make().best_mean(study).ignored == {
        "without b, c of the search space, or with another distribution": 6,
        "enqueued, or not asked from this sampler": 1,
        "not finite": 1,
        "too late for their step": 1,
    }


def is_mu(trial: optuna.Trial) -> bool:
    return trial.study.trials[trial.number].system_attrs["ppo2:draw"]["is_mu"]


@pytest.mark.parametrize("loss", ["fail", "nan", "prune", "inf"])
def test_a_mu_that_is_always_lost_costs_two_trials_per_step_and_the_mean_takes_its_place(loss: str) -> None:
    def fails_at_mu(trial: optuna.Trial) -> float:
        value = suggest(trial)
        if is_mu(trial):
            if loss == "fail":
                raise RuntimeError
            if loss == "prune":
                raise optuna.TrialPruned
            return float(loss)
        return value

    study = new_study(make("release"))
    study.optimize(fails_at_mu, n_trials=37, catch=RuntimeError)  # six steps of 4, each with mu lost twice; and one ask
    mus = [t.number for t in study.trials if t.system_attrs["ppo2:draw"]["is_mu"]]
    assert mus[:4] == [0, 4, 6, 10]  # after the first loss it waits for M - 1 others
    assert assert_policies_are_rederived(study, make("release")) == 6
    assert {record["baseline"] for record in PPO2Sampler.policies(study)} == {"mean"}


def test_a_mu_that_is_lost_once_is_run_again_and_is_the_baseline() -> None:
    study = new_study(make("release"))
    for number in range(6):
        trial = study.ask(SPACE)
        if number == 0:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, score(trial.params))
    assert [t.system_attrs["ppo2:draw"]["is_mu"] for t in study.trials] == [True, False, False, False, True, True]
    assert PPO2Sampler.policies(study)[0]["baseline"] == "mu"
    assert PPO2Sampler.policies(study)[0]["members"] == [1, 2, 3, 4]


def test_workers_that_die_at_mu_do_not_hold_the_search_up() -> None:
    study = new_study(make("release"))
    for _ in range(30):
        trial = study.ask(SPACE)
        if not is_mu(trial):  # mu's worker is gone: RUNNING for ever
            study.tell(trial, score(trial.params))
    assert assert_policies_are_rederived(study, make("release")) == 4


def test_a_study_of_another_search_space_is_refused_and_loses_nothing() -> None:
    study = new_study(make())
    study.optimize(suggest, n_trials=6)
    before = parameters(study), study.user_attrs
    smaller = PPO2Sampler({"a": FloatDistribution(0, 2)}, trials_per_step=4)
    for key, other in (("search_space", smaller), ("sigma", make(sigma=0.1)), ("lr", make(lr=0.5))):
        study.sampler = other
        for attempt in (lambda: study.ask(SPACE), lambda sampler=other: sampler.best_mean(study)):
            with pytest.raises(InputError) as error:
                attempt()
            assert (error.value.where, error.value.cure) == (key, "use the same settings, or a new study")
    assert study.trials[-1].state == TrialState.FAIL
    assert (parameters(study)[:6], study.user_attrs) == before
    study.sampler = make(steps=40)  # a longer plan is welcome: every policy keeps the clip it was made with
    study.optimize(suggest, n_trials=8)
    assert assert_policies_are_rederived(study, make(steps=40)) == 3


def test_several_objectives_are_refused() -> None:
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=make())
    with refused(where="study"):
        study.ask(SPACE)
    assert study.trials[0].state == TrialState.FAIL


def test_settings_are_immutable_and_presets_are_the_papers() -> None:
    paper, release = Settings.preset("paper"), Settings.preset("release")
    assert (paper.steps, paper.trials_per_step, paper.clip, paper.updates, paper.sigma) == (20, 32, 0.1, 100, 0.2)
    assert (paper.ratio, paper.baseline, paper.answer, paper.pick) == ("joint", "mean", "mu", "best")
    assert (release.steps, release.trials_per_step, release.clip, release.updates) == (12, 32, 0.2, 60)
    assert (release.ratio, release.baseline, release.lr, release.keep_adam) == ("dimension", "mu", 0.2, True)
    assert (release.optimise, release.sigma, release.answer, release.pick) == ("logit", 0.2, "mu", "best")
    assert paper.bounds == release.bounds == (0, 1)
    assert replace(paper, ratio="dimension") != paper


@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_a_start_on_the_edge_moves_away_from_it_where_the_logit_is_optimised(edge: float) -> None:
    sampler = PPO2Sampler.preset("release", {"a": FloatDistribution(0, 1)}, initial_mean={"a": edge}, trials_per_step=4)
    study = new_study(sampler)
    study.optimize(lambda trial: -abs(trial.suggest_float("a", 0, 1) - 0.5), n_trials=12)
    assert study.trials[0].params["a"] == pytest.approx(edge, abs=1.1e-3)
    moved = [abs(record["mu"][0] - edge) for record in PPO2Sampler.policies(study)]
    assert 1e-3 < moved[0] < moved[1]


def test_the_first_trial_of_every_release_step_is_mu() -> None:
    study = new_study(make("release"))
    study.optimize(suggest, n_trials=9)
    assert study.trials[0].params == {"a": 0.5, "b": 0.0, "c": 1.25}
    for step in (2, 3):
        mu = PPO2Sampler.policies(study)[step - 2]["mu"]
        assert study.trials[4 * (step - 1)].params["a"] == mu[0]
