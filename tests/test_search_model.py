"""The model of all trials: its fit, its answer, and searches that it guides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, FloatDistribution
from scipy.optimize import approx_fprime

from autoseg.errors import InputError
from autoseg.search import guided, model
from autoseg.search.folder import Folder
from autoseg.search.model import REACH, fit, model_answer
from autoseg.search.ppo2 import Settings
from autoseg.search.proposers import distributions
from autoseg.search.records import Proposals, Scored, TrialScore
from autoseg.search.runner import run as run_search
from autoseg.search.sampler import PPO2Sampler
from autoseg.search.settings import Search
from autoseg.search.space import search_space
from autoseg.search.steps import answer, ask, record, rescore, select, selected
from tests.test_search import make, play

STEPS = np.repeat(np.arange(5), 20)


def trials(dimensions: int = 4, noise: float = 0.01, count: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Return trials around .5 of a bowl whose best point is .6 in every coordinate."""
    rng = np.random.default_rng(1)
    thetas = np.clip(0.5 + 0.2 * rng.normal(size=(count, dimensions)), 0, 1)
    return thetas, -((thetas - 0.6) ** 2).mean(1) + noise * rng.normal(size=count)


def middle(dimensions: int = 4) -> np.ndarray:
    return np.full(dimensions, 0.5)


# ------------------------------------------------------------------------------------------------------------- the fit


def test_the_gradients_are_those_of_finite_differences() -> None:
    thetas, scores = trials(count=40)
    fitted = fit(thetas, scores, middle(), 0.2)
    plain = (thetas - fitted.centre) / fitted.unit
    place = fitted.parameters + 0.1 * np.random.default_rng(0).normal(size=len(fitted.parameters))
    slope = approx_fprime(place, lambda p: model._loss(p, plain, fitted.targets)[0], 1e-6)
    assert model._loss(place, plain, fitted.targets)[1] == pytest.approx(slope, abs=1e-3)
    theta = np.array([0.3, 0.9, 0.5, 0.1])
    slope = approx_fprime(theta, lambda t: fitted._negative(t)[0], 1e-6)
    assert fitted._negative(theta)[1] == pytest.approx(slope, abs=1e-3)


def test_the_posterior_is_that_of_the_textbook() -> None:
    thetas, scores = trials(count=30)
    fitted = fit(thetas, scores, middle(), 0.2)
    p, points = fitted.parameters, np.vstack([thetas, [[0.6, 0.6, 0.6, 0.6], [0.1, 0.2, 0.3, 0.4]]])
    z = (points - 0.5) / (0.2 * 2) * np.exp(p[5:])
    distance = np.linalg.norm(z[:, None] - z, axis=2) * np.sqrt(5) / np.exp(p[1])
    rough = np.exp(2 * p[0]) * (1 + distance + distance**2 / 3) * np.exp(-distance)
    prior = rough + np.exp(2 * p[2]) * (z @ z.T) ** 2 + np.exp(2 * p[3]) * (z @ z.T) + model.LEVEL
    seen = np.linalg.inv(prior[:30, :30] + (np.exp(2 * p[4]) + model.JITTER) * np.eye(30))
    mean = fitted.level + fitted.scale * prior[30:, :30] @ seen @ fitted.targets
    spread = prior[30:, 30:] - prior[30:, :30] @ seen @ prior[:30, 30:]
    assert fitted.mean(points[30:]) == pytest.approx(mean, abs=1e-6)
    assert fitted.covariance(points[30:]) == pytest.approx(spread, abs=1e-5)


def test_a_step_left_out_is_predicted_as_by_a_model_without_it() -> None:
    thetas, scores = trials()
    fitted = fit(thetas, scores, middle(), 0.2)
    missed = known = 0.0
    for step in range(5):
        inside = step == STEPS
        without = model.replace(
            fitted, thetas=thetas[~inside], targets=fitted.targets[~inside], doubts=fitted.doubts[~inside]
        )
        error = fitted.targets[inside] - (without.mean(thetas[inside]) - fitted.level) / fitted.scale
        missed, known = missed + error.var(), known + fitted.targets[inside].var()
    assert fitted.skill(STEPS) == pytest.approx(1 - missed / known, abs=1e-6)
    assert fitted.skill(STEPS) > 0.5


def test_collapses_and_wild_scores_do_not_move_the_answer() -> None:
    thetas, scores = trials(noise=0.003)
    wild = scores.copy()
    wild[::33] += 0.1
    wild[7::25] = -1e6  # as after a training that collapsed
    calm = model_answer(thetas, scores, STEPS, middle(), 0.2)
    assert model_answer(thetas, wild, STEPS, middle(), 0.2).theta == pytest.approx(calm.theta, abs=0.08)


@pytest.mark.parametrize("sign", [1, -1])
def test_one_parameter_without_noise_is_followed_to_its_edge(sign: int) -> None:
    sampler = PPO2Sampler.preset("recommended", {"x": FloatDistribution(0, 1)}, trials_per_step=8, steps=8)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(lambda trial: sign * trial.suggest_float("x", 0, 1), n_trials=64)
    assert sampler.answer(study)["x"] == pytest.approx(max(sign, 0), abs=0.05)


def test_coordinates_that_do_not_matter_are_found() -> None:
    thetas, _ = trials(12, count=160)
    scores = -10 * (thetas[:, 3] - 0.6) ** 2 + 0.01 * np.random.default_rng(2).normal(size=160)
    scales = fit(thetas, scores, middle(12), 0.2).parameters[5:]
    assert int(np.argmax(scales)) == 3
    assert scales[3] > np.delete(scales, 3).max() + 1


def test_caution_stays_nearer_to_the_centre() -> None:
    thetas, scores = trials(count=20)
    fitted = fit(thetas, scores, middle(), 0.2)
    low, high = model.region(middle(), 0.2, True)
    bold, careful, timid = (fitted.best(low, high, caution) for caution in (0, 1, 1e6))
    assert np.abs(timid - 0.5).max() < np.abs(careful - 0.5).max() <= np.abs(bold - 0.5).max()
    assert fitted.mean(bold) >= fitted.mean(careful) > fitted.mean(timid)


# ---------------------------------------------------------------------------------------------------------- the answer


def test_the_answer_is_near_the_best_point_and_says_how_sure_it_is() -> None:
    thetas, scores = trials(noise=0.003)
    found = model_answer(thetas, scores, STEPS, middle(), 0.2)
    assert found.theta == pytest.approx(np.full(4, 0.6), abs=0.05)
    assert found.trusted
    assert found.distance == pytest.approx(np.abs(found.theta - 0.5).max())
    assert found.noise == pytest.approx(0.003, rel=0.3)
    assert abs(found.score) < 4 * found.std < 4 * found.noise
    assert found.gain == pytest.approx(0.01, abs=3 * found.gain_std)


def test_the_answer_stays_near_the_mean_and_in_range() -> None:
    thetas, scores = trials()
    low = np.full(4, 0.05)
    found = model_answer(thetas, -scores, STEPS, low, 0.2)
    assert np.all((found.theta >= 0) & (found.theta <= 0.05 + REACH * 0.2))
    beyond = model_answer(thetas - 0.7, scores, STEPS, low, 0.2, bounded=False)  # the best point is at -.1
    assert beyond.theta == pytest.approx(np.full(4, -0.1), abs=0.08)


def test_a_model_of_noise_is_not_trusted_and_leaves_the_mean() -> None:
    thetas, _ = trials()
    distrusted = []
    for seed in range(5):
        found = model_answer(thetas, np.random.default_rng(seed).normal(size=100), STEPS, middle(), 0.2)
        distrusted.append(not found.trusted)
        assert found.trusted or found.theta.tolist() == middle().tolist()
    assert sum(distrusted) >= 4


def test_equal_scores_leave_the_mean_where_it_is() -> None:
    thetas, _ = trials()
    found = model_answer(thetas, np.full(100, 0.3), STEPS, middle(), 0.2)
    assert found.theta.tolist() == middle().tolist()
    assert found.score == pytest.approx(0.3)


@pytest.mark.parametrize("factor", [1e-200, 1e-30, 1e-9, 1e9, 1e200])
def test_the_unit_of_the_scores_does_not_matter(factor: float) -> None:
    thetas, scores = trials()
    plain = model_answer(thetas, scores, STEPS, middle(), 0.2)
    scaled = model_answer(thetas, factor * scores, STEPS, middle(), 0.2)
    assert scaled.theta == pytest.approx(plain.theta, abs=0.01)
    assert scaled.std == pytest.approx(factor * plain.std, rel=0.05)


def test_two_trials_are_enough_for_an_answer() -> None:
    found = model_answer([[0.2, 0.3], [0.6, 0.5]], [0.1, 0.2], [0, 0], [0.4, 0.4], 0.2)
    assert np.all(np.isfinite(found.theta))


def test_scores_that_are_not_finite_are_refused() -> None:
    with pytest.raises(InputError, match="not finite"):
        fit([[0.1], [0.2]], [0.1, np.nan], [0.2], 0.2)


def test_the_same_640_trials_in_24_dimensions_give_the_same_answer() -> None:
    rng = np.random.default_rng(0)
    thetas = rng.random((640, 24))
    told = thetas, -((thetas - 0.4) ** 2).mean(1) + 0.01 * rng.normal(size=640), np.arange(640) // 32
    once = model_answer(*told, np.full(24, 0.5), 0.2)
    assert model_answer(*told, np.full(24, 0.5), 0.2).theta.tolist() == once.theta.tolist()


# --------------------------------------------------------------------------------------------- steps that it guides


def test_guided_trials_differ_are_in_range_and_follow_from_the_seed_and_the_step() -> None:
    settings = Settings.preset("recommended", trials_per_step=8)
    told = trials()
    mu, fitted = guided.moved(settings, middle(), *told)
    chosen = guided.chosen(settings, fitted, mu, 0, 2)
    assert np.all(np.abs(mu - 0.5) <= REACH * 0.2 + 1e-9)
    assert chosen.shape == (8, 4)
    assert len(np.unique(chosen, axis=0)) == 8
    assert np.all((chosen >= 0) & (chosen <= 1))
    assert np.array_equal(chosen, guided.chosen(settings, fitted, mu, 0, 2))
    for seed, step in ((1, 2), (0, 3)):
        assert not np.array_equal(chosen, guided.chosen(settings, fitted, mu, seed, step))
    # They are better than plain samples of the policy, by what the model cannot know: the true score.
    plain = np.array([guided.propose(mu, 9, n, sigma=0.2) for n in range(200)])
    assert ((chosen - 0.6) ** 2).mean() < ((plain - 0.6) ** 2).mean()


def test_the_optuna_sampler_and_the_files_answer_alike() -> None:
    search = make(preset="recommended", trials_per_step=8)
    history = play(search, 3)
    space = search_space(search)
    start = dict(zip(space.names, space.initial, strict=True))
    sampler = PPO2Sampler.preset(
        "recommended", distributions(space), trials_per_step=8, steps=4, seed=2, initial_mean=start
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for step in history:
        for trial, score in zip(step.proposals.trials, step.scores, strict=True):
            asked = study.ask(distributions(space))
            assert list(asked.params.values()) == trial.theta
            study.tell(asked, score)
    found = sampler.answer(study)
    assert list(found) == list(space.names)
    assert list(found.values()) == list(answer(search, history).theta)
    assert sampler.best_mean(study).mean != found
    plain = PPO2Sampler(distributions(space), trials_per_step=8, steps=4, seed=2, initial_mean=start)
    study = optuna.create_study(direction="maximize", sampler=plain)
    study.optimize(lambda t: t.suggest_float(space.names[0], 0, 1) + 0 * len(_rest(t, space.names)), n_trials=16)
    assert plain.answer(study) == plain.best_mean(study).mean


def test_an_answer_fits_the_last_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    space: dict[str, BaseDistribution] = {name: FloatDistribution(0, 1) for name in "xy"}
    sampler = PPO2Sampler.preset("recommended", space, trials_per_step=8, steps=2)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(lambda t: -((t.suggest_float("x", 0, 1) - 0.7) ** 2) - t.suggest_float("y", 0, 1) ** 2, n_trials=16)
    fits: list[int] = []

    def counted(*told: Any) -> Any:
        fits.append(len(told[-1]))
        return guided.guided_policy(*told)

    monkeypatch.setattr("autoseg.search.sampler.guided_policy", counted)
    kept = study.user_attrs
    assert sampler.answer(study) == sampler.answer(study)
    assert fits == [16, 16]  # once for each call; the second step is full and has no successor yet
    assert study.user_attrs == kept


def test_selecting_among_rescored_answers_asks_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    search = make(preset="recommended", trials_per_step=8, rescore=1)
    history = play(search, 3)
    proposals = rescore(search, history)
    scores = [TrialScore(number=t.number, metric=search.metric, score=0.1 + t.number % 7) for t in proposals.trials]
    asked: list[int] = []

    def counted(*told: Any, **more: Any) -> Any:
        asked.append(len(told[1]))
        return model_answer(*told, **more)

    monkeypatch.setattr("autoseg.search.steps.model_answer", counted)
    assert selected(search, history, record(proposals, scores)).score is not None
    assert asked == [24]


def _rest(trial: optuna.Trial, names: tuple[str, ...]) -> list[float]:
    return [trial.suggest_float(name, 0, 1) for name in names[1:]]


@pytest.mark.parametrize("changes", [{"preset": "annealed"}, {"sampler": "cmaes"}, {"sampler": "random"}])
def test_any_search_can_answer_with_the_model_and_needs_no_new_trials_for_it(changes: dict) -> None:
    search = make(**changes, trials_per_step=16)
    history = play(search, 4)
    own, better = answer(search, history), answer(search.model_copy(update={"answer": "model"}), history)
    assert own.model is None
    assert better.model is not None
    assert np.abs(np.subtract(own.theta, better.theta)).max() <= REACH * 0.2 + 1e-9
    source = select(search.model_copy(update={"answer": "model"}), history).source
    assert "the model's answer near" in source
    assert "posterior std" in source


def test_a_model_that_is_not_believed_is_said_to_be_so() -> None:
    search, history = make(answer="model", trials_per_step=16), []
    for _ in range(2):
        proposals = ask(search, history)
        scores = [TrialScore(number=t.number, metric=search.metric, score=0.5) for t in proposals.trials]
        history.append(record(proposals, scores))
    found = answer(search, history)
    assert found.theta == answer(search.model_copy(update={"answer": "mean"}), history).theta
    source = select(search, history).source
    assert "the model is not believed: of steps left out it knows 0% of the differences" in source
    assert "posterior" not in source
    assert "model" not in select(search.model_copy(update={"answer": "mean"}), history).source


def test_the_mean_of_the_recommended_preset_can_be_asked_for() -> None:
    search = make(preset="recommended", answer="mean")
    assert not search.answers_with_model
    assert list(answer(search, play(search, 2)).theta) == ask(search, play(search, 2)).mu


def test_the_models_answer_is_always_rescored(tmp_path: Path) -> None:
    search = make(rescore=1, trials_per_step=16)
    history = play(search, 4)
    proposals = rescore(search, history)
    modelled = answer(search.model_copy(update={"answer": "model"}), history)
    assert proposals.trials[-1].theta == list(modelled.theta)
    assert len(proposals.trials) <= search.most_rescored
    best = proposals.trials[-1].number
    scores = [TrialScore(number=t.number, metric="mIoU", score=float(t.number == best)) for t in proposals.trials]
    assert selected(search, history, record(proposals, scores)).origin == modelled.origin


def test_proposals_of_a_model_agree_if_they_follow_from_the_same_scores(tmp_path: Path) -> None:
    """On another machine a fit may end a little elsewhere, and other trials come out: those that are there hold."""
    search = make(preset="recommended")
    history = play(search, 2)
    here = ask(search, history)
    elsewhere = here.model_copy(deep=True)
    elsewhere.trials[0].theta[0] += 1e-3
    assert here.agrees_with(elsewhere)
    files = Folder(tmp_path)
    files.write(here)
    files.write(elsewhere)
    assert files.proposals(3) == here
    other = [history[0], Scored(history[1].proposals, tuple(score + 1 for score in history[1].scores))]
    assert not here.agrees_with(ask(search, other))
    with pytest.raises(InputError, match="step 3: it does not follow from the scores before it"):
        ask(search, [*other, Scored(here, history[0].scores)])


def test_a_guided_search_may_be_given_more_steps() -> None:
    history = play(make(preset="recommended"), 2)
    assert ask(make(preset="recommended", steps=9), history) == ask(make(preset="recommended"), history)


def test_a_guided_search_of_linear_curves_is_not_truncated() -> None:
    search = make(preset="recommended", family="linear")
    history = play(search, 3)
    assert np.concatenate([step.thetas for step in history]).min() < 0
    assert select(search, history).family == "linear"


def test_the_recommended_search_gives_the_same_bytes_with_any_number_of_workers(tmp_path: Path) -> None:
    search = Search(metric="mIoU", preset="recommended", steps=3, trials_per_step=6, rescore=1)
    for name, workers in (("one", 1), ("two", 2)):
        run_search(tmp_path / name, search, "tests.toy_objectives:near", workers, progress=False)
    for path in (tmp_path / "one").rglob("*.json"):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_old_proposals_without_the_new_key_can_be_read() -> None:
    content = json.loads(ask(make(), []).model_dump_json())
    del content["after"]
    assert Proposals.model_validate(content).after is None


def test_baseline_mu_and_moves_by_a_model_exclude_each_other() -> None:
    with pytest.raises(InputError) as error:
        Settings.preset("recommended", baseline="mu")
    assert error.value.where == "baseline"
