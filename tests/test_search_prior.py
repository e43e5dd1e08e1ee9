"""The trials of another search as a starting model: trusted as far as the own trials agree, and kept by the search."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from pipeline_runs import changed, content, planned, with_config

from autoseg.cli import main
from autoseg.files import read_json, write_json
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.inputs import Inputs
from autoseg.pipeline.layout import Layout
from autoseg.search.folder import Folder
from autoseg.search.model import _loss, fit
from autoseg.search.records import PriorTrials, Scored, TrialScore
from autoseg.search.runner import run as run_search
from autoseg.search.settings import Search, load_search
from autoseg.search.space import changes, search_space
from autoseg.search.steps import answer, ask, record
from tests.refusals import refused

RNG = np.random.default_rng(4)
NAMES = list(search_space(Search(metric="mIoU")).names)


def make(**given) -> Search:
    settings = {"metric": "mIoU", "preset": "recommended", "steps": 3, "trials_per_step": 8, "early": "off"}
    return Search(**{**settings, "prior": "elsewhere", **given})


def score(theta, optimum: float = 0.8) -> float:
    return -float(((np.asarray(theta) - optimum) ** 2).mean())


def prior(optimum: float | None, count: int = 60) -> PriorTrials:
    """Trials around an optimum; None: scores that are noise."""
    thetas = RNG.random((count, 12))
    scores = RNG.normal(size=count) if optimum is None else [10 * score(theta, optimum) for theta in thetas]
    return PriorTrials(names=NAMES, thetas=thetas.tolist(), scores=list(map(float, scores)))


def play(search: Search, steps: int, given: PriorTrials | None) -> list[Scored]:
    history: list[Scored] = []
    for number in range(steps):
        proposals = ask(search, history, given if number == 0 else None)
        scores = [TrialScore(number=t.number, metric="mIoU", score=score(t.theta)) for t in proposals.trials]
        history.append(record(proposals, scores))
    return history


# ---------------------------------------------------------------------------------------------------------- the model


def test_the_gradients_with_another_model_are_those_of_finite_differences() -> None:
    thetas = RNG.random((30, 4))
    other = fit(thetas, -((thetas - 0.7) ** 2).sum(1), np.full(4, 0.5), 0.2)
    points = RNG.random((20, 4))
    given = {"doubts": np.linspace(0, 0.1, 20), "other": other}
    model = fit(points, -((points - 0.6) ** 2).sum(1), np.full(4, 0.5), 0.2, **given)
    plain, at, h = (points - model.centre) / model.unit, model.parameters + 0.1, 1e-6

    def loss(p: np.ndarray) -> tuple[float, np.ndarray]:
        return _loss(p, plain, model.targets, model.doubts, model._features)

    steps = h * np.eye(len(at))
    assert loss(at)[1] == pytest.approx([(loss(at + e)[0] - loss(at - e)[0]) / (2 * h) for e in steps], abs=1e-5)
    theta, steps = np.full(4, 0.4), h * np.eye(4)
    slope = [(model._negative(theta + e)[0] - model._negative(theta - e)[0]) / (2 * h) for e in steps]
    assert model._negative(theta)[1] == pytest.approx(slope, abs=1e-6)


def test_another_search_is_trusted_as_far_as_the_own_trials_agree() -> None:
    points = RNG.random((40, 12))
    scores = np.array([score(theta) for theta in points])
    trust = {}
    for name, optimum in (("same", 0.8), ("noise", None)):
        given = prior(optimum)
        other = fit(given.thetas, given.scores, np.full(12, 0.5), 0.2)
        trust[name] = fit(points, scores, np.full(12, 0.5), 0.2, other=other)._trust
    assert trust["same"] > 5 * trust["noise"]


def test_doubtful_scores_count_less() -> None:
    points = np.vstack([RNG.random((30, 2)), np.full((5, 2), 0.9)])
    scores = np.append(-((points[:30] - 0.4) ** 2).sum(1), np.full(5, 0.3))  # five that are wrong
    sure = fit(points, scores, [0.5, 0.5], 0.2)
    unsure = fit(points, scores, [0.5, 0.5], 0.2, doubts=[0.0] * 30 + [1.0] * 5)
    assert unsure.mean([0.9, 0.9])[0] < sure.mean([0.9, 0.9])[0] - 0.1


# ---------------------------------------------------------------------------------------------------------- a search


def test_a_search_like_the_other_one_begins_where_that_was_good() -> None:
    helped, alone = (play(make(prior=name), 2, given) for name, given in (("elsewhere", prior(0.8)), (None, None)))
    assert helped[0].average > alone[0].average
    assert helped[1].average > alone[1].average
    assert score(answer(make(), helped).theta) > score(answer(make(prior=None), alone).theta)


@pytest.mark.parametrize("optimum", [0.1, None])
def test_a_search_unlike_the_other_one_loses_little(optimum: float | None) -> None:
    lost = []
    for seed in range(3):
        misled = play(make(seed=seed), 3, prior(optimum))
        alone = play(make(seed=seed, prior=None), 3, None)
        lost.append(
            score(answer(make(seed=seed, prior=None), alone).theta) - score(answer(make(seed=seed), misled).theta)
        )
    assert np.mean(lost) < 0.02  # of about .2 from the start to the optimum


def test_the_first_step_keeps_the_trials_and_later_ones_need_nothing_else() -> None:
    given = prior(0.8)
    history = play(make(), 2, given)
    assert history[0].proposals.prior == given
    assert history[1].proposals.prior is None
    assert "prior" not in history[1].proposals.content()
    assert ask(make(), history) == ask(make(prior="moved"), history)
    assert changes(make(), make(prior="moved")) == []
    assert changes(make(), make(prior=None)) == ["prior"]
    assert ask(make(), [], given).after != ask(make(), [], prior(0.8)).after


def test_a_prior_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use `preset: recommended`"):
        make(preset="annealed")
    with refused(where="search 'search': prior", what="the first step needs"):
        ask(make(), [])
    other = PriorTrials(names=["a", "b"], thetas=[[0.1, 0.2], [0.3, 0.4]], scores=[0.1, 0.2])
    with refused(where="search 'search': prior", what="'elsewhere' searches a, b"):
        ask(make(), [], other)
    with refused(what="there is no search in this folder"):
        Folder(tmp_path).as_prior()


@pytest.mark.parametrize("hours", [None, 1.0])
def test_a_prior_that_does_not_fit_is_refused_before_a_trial_is_timed_and_leaves_nothing(
    tmp_path: Path, hours: float | None, caplog
) -> None:
    run_search(
        tmp_path / "other",
        make(prior=None, metric="mAcc", steps=1, trials_per_step=2),
        "tests.toy_objectives:near",
        progress=False,
    )
    for folder, what in (("other", "searches AND.u1"), ("nowhere", "there is no search in this folder")):
        search = make(prior=str(tmp_path / folder))
        with refused(what=what):
            run_search(tmp_path / "search", search, "tests.toy_objectives:near", progress=False, hours=hours)
        write_json(tmp_path / "settings.json", search.model_dump())
        given = ["--step", "1", "--settings", str(tmp_path / "settings.json")]
        assert main(["ask", str(tmp_path / "search"), *given]) == 2
        assert not (tmp_path / "search").exists()
    assert "The plan" not in caplog.text


def test_a_search_starts_from_a_folder_and_does_not_need_it_again(tmp_path: Path) -> None:
    first = make(prior=None, metric="FWIoU", steps=1)
    run_search(tmp_path / "first", first, "tests.toy_objectives:near", progress=False)
    write_json(tmp_path / "settings.json", {**make(steps=2).model_dump(), "prior": "first"})
    search = load_search(tmp_path / "settings.json")
    run_search(tmp_path / "straight", search, "tests.toy_objectives:near", workers=2, progress=False)
    assert read_json(tmp_path / "straight/step-001/proposals.json")["prior"]["names"] == NAMES
    for step in (1, 2):  # by the verbs, the same
        given = ["--settings", str(tmp_path / "settings.json")]
        assert main(["ask", str(tmp_path / "verbs"), "--step", str(step), *given]) == 0
        for path in (tmp_path / f"straight/step-00{step}").glob("*.json"):
            shutil.copy(path, tmp_path / f"verbs/step-00{step}" / path.name)
    for path in (tmp_path / "straight").rglob("proposals.json"):
        assert path.read_bytes() == (tmp_path / "verbs" / path.relative_to(tmp_path / "straight")).read_bytes()
    shutil.rmtree(tmp_path / "first")
    surrogate = (tmp_path / "straight/surrogate.json").read_bytes()
    run_search(
        tmp_path / "straight", Folder(tmp_path / "straight").search(), "tests.toy_objectives:near", progress=False
    )
    assert (tmp_path / "straight/surrogate.json").read_bytes() == surrogate


# -------------------------------------------------------------------------------------------------------- the pipeline


def two_searches() -> dict:
    config = content("tiny")
    search = {"metric": "FWIoU", "preset": "recommended", "steps": 2, "trials_per_step": 4, "prior": "mIoU"}
    config["searches"]["FWIoU"] = {"dataset": "scenes", "proxy": "tiny", "search": search}
    config["tables"]["main"]["rows"].append("searched:FWIoU")
    return config


def test_in_a_pipeline_a_search_waits_for_the_one_it_starts_from(tmp_path: Path) -> None:
    pipeline = load_pipeline(two_searches(), "config")
    inputs, layout = Inputs(pipeline, Layout.named("tiny")), Layout.named("tiny")
    assert inputs.ask("FWIoU", 1) == inputs.step("mIoU", "step-002")
    assert inputs.ask("mIoU", 1) == []
    assert pipeline.search("FWIoU").prior == layout.search("mIoU")
    assert planned(tmp_path, *with_config(tmp_path, two_searches()))["ask"] == 6


@pytest.mark.parametrize(
    ("where_and_value", "said"),
    [
        (("searches", "FWIoU", "search", "prior", "mIuO"), "mIoU"),
        (("searches", "FWIoU", "search", "prior", "FWIoU"), "none of them can be the first"),
        (("searches", "FWIoU", "search", "prior", "mAcc"), "the same parameters"),
    ],
)
def test_a_prior_that_a_pipeline_cannot_have_is_refused(where_and_value: tuple, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_pipeline(changed(two_searches(), *where_and_value), "config")
