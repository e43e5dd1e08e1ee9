"""Searches on JSON files: spaces, asking, recording, selecting, and the verbs a user runs them with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import optuna
import pytest

from autoseg.cli import main
from autoseg.errors import InputError
from autoseg.files import parse, read_json, write_json
from autoseg.losses.published import published
from autoseg.losses.surrogate import Surrogate
from autoseg.search import ppo2
from autoseg.search.folder import Folder
from autoseg.search.journal import write_journal
from autoseg.search.ppo2 import PRESETS, expectation
from autoseg.search.proposers import distributions
from autoseg.search.records import Proposals, Scored, TrialScore
from autoseg.search.runner import load_objective
from autoseg.search.runner import run as run_search
from autoseg.search.sampler import PPO2Sampler
from autoseg.search.settings import Search, load_search
from autoseg.search.space import decisive, search_fingerprint, search_space, surrogate
from autoseg.search.steps import answer, ask, record, rescore, select
from autoseg.search.times import TrialTime
from tests import toy_objectives
from tests.refusals import refused

ROOT = Path(__file__).parents[1]
optuna.logging.set_verbosity(optuna.logging.WARNING)


def make(**changes) -> Search:
    return Search(**{"metric": "mIoU", "steps": 4, "trials_per_step": 6, "seed": 2, **changes})


def play(search: Search, steps: int, history: list[Scored] | None = None) -> list[Scored]:
    """Run some steps in memory."""
    history = list(history or [])
    while len(history) < steps:
        proposals = ask(search, history)
        scores = [
            TrialScore(number=t.number, metric="mIoU", score=toy_objectives.near(surrogate(search, t.theta), t.number))
            for t in proposals.trials
        ]
        history.append(record(proposals, scores))
    return history


# --------------------------------------------------------------------------------------------------------- the spaces


@pytest.mark.parametrize(
    ("changes", "count", "first", "start"),
    [
        ({"metric": "mIoU"}, 12, "AND.u1", 0.25),
        ({"metric": "gAcc"}, 6, "AND.u1", 0.25),
        ({"metric": "bf1"}, 8, "g1.u1", 0.5),
        ({"metric": "BF1", "layout": "paper"}, 24, "edge.AND.u1", 0.25),
        ({"metric": "FWIoU", "family": "linear"}, 10, "AND.z1", 0.0),
        ({"metric": "mIoU", "monotone": False}, 12, "AND.u1", 0.25),
        ({"metric": "mIoU", "truth_table": False}, 16, "AND.u1", 0.25),
    ],
)
def test_a_search_space_starts_at_the_identity(changes: dict, count: int, first: str, start: float) -> None:
    search = Search(**changes)
    space = search_space(search)
    assert (len(space.names), space.names[0], space.initial[0]) == (count, first, start)
    assert surrogate(search, space.initial).control_points == pytest.approx(
        Surrogate.make(
            search.metric,
            family=search.family,
            layout=search.layout,
            monotone=search.monotone,
            truth_table=search.truth_table,
        ).control_points
    )
    assert search.settings.family == ("normal" if search.family == "linear" else "truncated")
    assert ask(search, []).trials[0].theta != list(space.initial)


def test_a_search_can_start_at_published_curves_of_another_metric(tmp_path: Path) -> None:
    space = search_space(Search(metric="FWIoU", initial="published:mIoU"))
    assert list(space.initial) == pytest.approx(published("mIoU").theta)
    published("mIoU").save(tmp_path / "surrogate.json")
    assert search_space(Search(metric="mAcc", initial=str(tmp_path / "surrogate.json"))).initial == space.initial[:6]


@pytest.mark.parametrize(
    ("changes", "where", "expected"),
    [
        ({"initial": "published:mAcc"}, "initial", "the curves of mIoU: AND, OR"),
        (
            {"initial": "published:mIoU", "family": "linear"},
            "initial",
            "linear curves of 5, with the same truth-table constraint",
        ),
        ({"initial": [0.5, 0.5]}, "initial", "12 numbers in [0, 1]"),
        ({"initial": [1.5] * 12}, "initial", "12 numbers in [0, 1]"),
        ({"initial": "nowhere.json"}, "initial: nowhere.json", ""),
    ],
)
def test_a_start_that_does_not_fit_is_refused(changes: dict, where: str, expected: str) -> None:
    with pytest.raises(InputError) as error:
        search_space(make(**changes))
    assert (error.value.where, error.value.expected) == (where, expected)


def test_an_unknown_start_is_refused_with_the_nearest() -> None:
    with refused(where="initial", what="did you mean 'mIoU'?"):
        search_space(make(initial="published:mIuO"))


# ------------------------------------------------------------------------------------------------------ ask and select


STARTS = ("identity", [0.0, 1.0] * 6)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("initial", STARTS, ids=["identity", "edge"])
def test_asking_is_the_optuna_sampler(preset: str, initial: str | list[float]) -> None:
    search = make(preset=preset, initial=initial)
    history = play(search, 3)
    space = search_space(search)
    sampler = PPO2Sampler.preset(
        preset,
        distributions(space),
        trials_per_step=6,
        steps=4,
        seed=2,
        initial_mean=dict(zip(space.names, space.initial, strict=True)),
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for step in history:
        for trial, score in zip(step.proposals.trials, step.scores, strict=True):
            asked = study.ask(distributions(space))
            assert list(asked.params.values()) == trial.theta
            study.tell(asked, score)
    best, mine = sampler.best_mean(study), answer(search.model_copy(update={"answer": "mean"}), history)
    assert (best.step, list(best.mean.values())) == (mine.step, pytest.approx(mine.theta))
    assert best.score == pytest.approx(mine.score)


def test_every_policy_is_computed_once(monkeypatch) -> None:
    search = make(rescore=2, steps=5)
    history = play(search, 5)
    proposals = rescore(search, history)
    rescored = record(proposals, [TrialScore(number=t.number, metric="mIoU", score=0.5) for t in proposals.trials])
    steps: list[int] = []
    original = ppo2.next_policy

    def counted(settings, policy, step, *scored):
        steps.append(step)
        return original(settings, policy, step, *scored)

    monkeypatch.setattr(ppo2, "next_policy", counted)
    for action in (lambda: ask(search, history), lambda: select(search, history, rescored)):
        steps.clear()
        action()
        assert steps == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("sampler", ["ppo2", "random", "tpe", "cmaes", "gp"])
def test_every_sampler_is_a_pure_function_of_the_history_and_of_the_seed(sampler: str) -> None:
    search = make(sampler=sampler, steps=2)
    history = play(search, 2)
    assert ask(search, history) == ask(search, history)
    assert ask(search, history[:1]) == history[1].proposals
    assert ask(make(sampler=sampler, seed=9), []) != ask(search, [])
    thetas = np.array([t.theta for t in ask(search, history).trials])
    assert thetas.shape == (6, 12)
    assert len(np.unique(thetas, axis=0)) == 6
    assert np.all((thetas >= 0) & (thetas <= 1))
    if sampler in ("tpe", "gp"):
        assert history[0].proposals.trials[0].theta == list(search_space(search).initial)
    if sampler in ("random", "tpe", "gp"):
        best = max((s, t.theta) for step in history for s, t in zip(step.scores, step.proposals.trials, strict=True))
        assert list(answer(search, history).theta) == best[1]
    assert select(search, history).theta == list(answer(search, history).theta)


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes", "ppo2"])
def test_every_sampler_searches_linear_curves_without_truncation(sampler: str) -> None:
    search = make(sampler=sampler, family="linear", steps=2)
    history = play(search, 2)
    thetas = np.concatenate([step.thetas for step in history])
    assert thetas.min() < 0 < thetas.max()
    assert select(search, history).family == "linear"


@pytest.mark.filterwarnings("error")
def test_few_trials_of_cmaes_make_no_warning() -> None:
    search = make(sampler="cmaes", trials_per_step=2, steps=2)
    assert np.isfinite(answer(search, play(search, 2)).theta).all()


def test_the_answer_follows_the_rule_of_the_preset() -> None:
    search = make(preset="paper")
    history = play(search, 4)
    best = int(np.argmax([step.average for step in history]))
    assert list(answer(search, history).theta) == history[best].proposals.mu
    own = make()
    history = play(own, 4)
    best = int(np.argmax([step.average for step in history]))
    mu = history[best].proposals.mu
    assert list(answer(own, history).theta) == pytest.approx(expectation(mu, 0.2).tolist())
    annealed = make(preset="annealed")
    history = play(annealed, 4)
    assert answer(annealed, history).step == 5
    assert "not scored" in select(annealed, history).source


def test_random_search_starts_at_random() -> None:
    first = {seed: ask(make(sampler="random", seed=seed), []).trials[0].theta for seed in range(20)}
    assert len({tuple(theta) for theta in first.values()}) == 20
    assert np.mean(list(first.values())) == pytest.approx(0.5, abs=0.1)
    with pytest.raises(InputError) as error:
        parse(Search, {"metric": "mIoU", "sampler": "random", "initial": "published:mIoU"}, "s.yaml")
    assert error.value.where == "s.yaml: initial"


def test_the_mean_after_the_last_step_competes_if_one_more_step_is_run() -> None:
    """Algorithm 1 has it compete, so the preset `paper` runs that step."""
    assert make(score_last_mean=True).total_steps == 5
    assert make().total_steps == make(preset="paper", score_last_mean=False).total_steps == 4
    assert make(preset="paper").total_steps == 5
    assert Search(metric="mIoU", preset="release").total_steps == 12


def test_rescoring_takes_the_identity_the_best_and_the_last_mean_and_selects_the_best_of_them() -> None:
    search = make(rescore=2)
    history = play(search, 4)
    proposals = rescore(search, history)
    assert [t.number for t in proposals.trials] == [1_000_000 + k for k in range(len(proposals.trials))]
    assert proposals.trials[0].theta == list(search_space(search).initial)  # the identity itself
    last = ask(search, history).mu
    assert proposals.trials[-1].theta == pytest.approx(expectation(last, 0.2).tolist())
    scores = [TrialScore(number=t.number, metric="mIoU", score=float(t.number == 1_000_001)) for t in proposals.trials]
    assert select(search, history, record(proposals, scores)).theta == proposals.trials[1].theta
    with refused(where="rescore", cure="rescore: 3"):
        rescore(make(), play(make(), 1))


def test_an_untrained_start_is_rescored_as_the_identity_itself_by_the_papers_rule() -> None:
    search = make(preset="paper", rescore=1)
    proposals = rescore(search, play(search, 2))
    assert proposals.trials[0].theta == list(search_space(search).initial)


def test_more_steps_may_be_given_unless_the_clip_was_derived_from_their_number() -> None:
    fixed = {"ppo2": {"clip": 0.2}}
    history = play(make(**fixed), 2)
    assert ask(make(steps=9, **fixed), history) == ask(make(**fixed), history)
    with refused(where="step 1", what="(clip)"):
        ask(make(steps=9), play(make(), 1))


def test_what_mu_is_used_for_decides_how_far_it_may_go_and_so_the_proposals() -> None:
    """With answer 'mu' it stays in [0, 1]; a search that goes on with another answer would not be the same."""
    with refused(where="step 1", what="(answer)"):
        ask(make(ppo2={"answer": "mu"}), play(make(), 1))


REDUCED = [
    *({"preset": preset} for preset in PRESETS),
    *({"sampler": sampler} for sampler in ("random", "tpe", "cmaes", "gp")),
    {"family": "linear", "preset": "paper"},
    {"metric": "BF1", "layout": "paper", "monotone": False, "conventions": {"tolerance": 2}},
    {"initial": "published:mIoU", "preset": "release"},
    {"initial": [0.0, 1.0] * 6, "ppo2": {"sigma": 0.1, "clip": 0.3}},
]


@pytest.mark.parametrize("changes", REDUCED, ids=lambda changes: "-".join(map(str, changes.values())))
def test_the_settings_in_the_proposals_are_enough_to_propose_the_same(changes: dict) -> None:
    search = make(**{"trials_per_step": 3, **changes})
    first = ask(search, [])
    read = parse(Proposals, json.loads(first.model_dump_json()), "proposals.json")
    assert read == first
    assert first.search == decisive(search) == decisive(read.search)
    assert search_fingerprint(read.search) == search_fingerprint(search)
    history = [Scored(first, (0.3, 0.1, 0.2))]
    assert ask(read.search, history) == ask(search, history)
    assert surrogate(read.search, first.trials[1].theta) == surrogate(search, first.trials[1].theta)


def test_scores_must_be_there_once_each() -> None:
    proposals = ask(make(), [])
    scores = [TrialScore(number=t.number, metric="mIoU", score=0.5) for t in proposals.trials]
    assert record(proposals, scores[::-1]).scores == (0.5,) * 6
    with refused(what="2 of 6 trials (0, 3)"):
        record(proposals, [s for s in scores if s.number not in (0, 3)])
    with refused(what="trial 4 of step 1"):
        record(proposals, [*scores, scores[4]])
    with refused(what="trial 77"):
        record(proposals, [*scores, TrialScore(number=77, metric="mIoU", score=0.5)])


# ----------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("content", "where", "said"),
    [
        ({"metric": "mIoU", "samplr": "tpe"}, "s.yaml", "did you mean 'sampler'?"),
        ({"metric": "mIuO"}, "s.yaml: metric", "did you mean 'mIoU'?"),
        ({}, "s.yaml: metric", "Field required"),
        ({"metric": "mIoU", "trials_per_step": 1}, "s.yaml: trials_per_step", "(found 1)"),
        ({"metric": "mIoU", "sampler": "cma"}, "s.yaml: sampler", "'cmaes'"),
        ({"metric": "mIoU", "ppo2": {"sgima": 1}}, "s.yaml: ppo2", "did you mean 'sigma'?"),
        ({"metric": "mIoU", "ppo2": {"sigma": -1}}, "s.yaml: ppo2: sigma", "found -1"),
        ({"metric": "mIoU", "ppo2": {"steps": 3}}, "s.yaml: ppo2.steps", "is not a setting of its own here"),
        ({"metric": "mIoU", "preset": "papier"}, "s.yaml: preset", "did you mean 'paper'"),
        ({"metric": "mIoU", "sampler": "tpe", "preset": "paper"}, "s.yaml: preset", "belongs to sampler 'ppo2'"),
        ({"metric": "mIoU", "layout": "release"}, "s.yaml", "unknown layout of mIoU"),
        ({"metric": "mIoU", "family": "linear", "truth_table": False}, "s.yaml: truth_table", "softmax"),
        ({"metric": "mIoU", "family": "linear", "preset": "release"}, "s.yaml: ppo2: optimise", "'logit'"),
        (["metric"], "s.yaml", "found list"),
    ],
)
def test_bad_settings_are_refused_with_their_place(content: object, where: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        parse(Search, content, "s.yaml")
    assert error.value.where == where
    assert said in error.value.what


def test_settings_are_read_from_yaml_and_json(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("metric: BIoU\nppo2: {sigma: 0.1}\n")
    (tmp_path / "s.json").write_text('{"metric": "biou", "ppo2": {"sigma": 0.1}}')
    assert load_search(tmp_path / "s.yaml") == load_search(tmp_path / "s.json")
    for kind in ("yaml", "json"):
        (tmp_path / f"a.{kind}").write_text("{")
        with refused(where=f"a.{kind}", what=kind.upper()):
            load_search(tmp_path / f"a.{kind}")
    with refused(where="none.yaml"):
        load_search(tmp_path / "none.yaml")


# ------------------------------------------------------------------------------------------------------- files, verbs


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "search.yaml"
    path.write_text("name: toy\nmetric: mIoU\nsteps: 3\ntrials_per_step: 4\nrescore: 1\n")
    return path


def score_step(folder: Path, step: str) -> None:
    """Write a step's scores as the pipeline does."""
    for trial in read_json(folder / step / "proposals.json")["trials"]:
        score = TrialScore(number=trial["number"], metric="mIoU", score=1 - abs(trial["theta"][0] - 0.6))
        path = folder / step / f"trial-{trial['number']}.json"
        score.save(path)


def test_the_verbs_carry_a_search_from_ask_to_select(config: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "toy"
    for step in (1, 2, 3):
        assert main(["ask", str(folder), "--settings", str(config), "--step", str(step)]) == 0
        before = (folder / f"step-00{step}" / "proposals.json").read_bytes()
        assert main(["ask", str(folder), "--step", str(step)]) == 0
        assert (folder / f"step-00{step}" / "proposals.json").read_bytes() == before
        score_step(folder, f"step-00{step}")
    assert main(["select", str(folder)]) == 2
    assert "rescore/proposals.json: no such file" in capsys.readouterr().err
    assert main(["rescore", str(folder)]) == 0
    score_step(folder, "rescore")
    assert main(["select", str(folder)]) == 0
    assert "best of" in capsys.readouterr().out
    assert Surrogate.load(folder / "surrogate.json").metric == "mIoU"
    assert main(["ask", str(folder), "--step", "4"]) == 2
    assert "expected one of the steps 1 to 3" in capsys.readouterr().err


def test_bad_score_files_are_refused_and_nothing_is_lost(config: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "toy"
    main(["ask", str(folder), "--settings", str(config), "--step", "1"])
    score_step(folder, "step-001")
    trial = folder / "step-001" / "trial-0.json"
    good = trial.read_text()
    for broken, sentence in (
        (good.replace('"number": 0', '"number": 3'), "expected the number in the file's name"),
        ('{"number": 0, "metric": "mIoU", "score": NaN, "schema": "autoseg/trial/1"}', "trial-0.json: score: "),
        ("{", "trial-0.json: not readable as JSON"),
        (good.replace('"score":', '"skore":'), "trial-0.json: "),
        (good.replace('"mIoU"', '"BF1"'), "trial 0 has a score of BF1; expected mIoU"),
    ):
        trial.write_text(broken)
        assert main(["ask", str(folder), "--step", "2"]) == 2
        assert sentence in capsys.readouterr().err
    trial.write_text(good)
    assert main(["ask", str(folder), "--step", "2"]) == 0
    assert len(list((folder / "step-001").glob("trial-*.json"))) == 4


def test_select_refuses_rescored_means_of_other_steps_and_scores_that_changed_under_later_steps() -> None:
    search = make(rescore=1)
    history = play(search, 3)
    proposals = rescore(search, history[:2])
    scores = [TrialScore(number=t.number, metric="mIoU", score=0.5) for t in proposals.trials]
    with refused(what="3 steps", cure="autoseg rescore"):
        select(search, history, record(proposals, scores))
    rewritten = Scored(history[0].proposals, tuple(reversed(history[0].scores)))
    with pytest.raises(InputError) as error:
        select(search, [rewritten, *history[1:]])
    assert error.value.where == "search 'search': step 2"


def test_a_search_given_more_steps_rescores_anew_and_sets_old_scores_aside(tmp_path: Path) -> None:
    search, folder = make(rescore=1), Folder(tmp_path)
    history = play(search, 3)
    folder.write(rescore(search, history[:2]))
    score_step(tmp_path, "rescore")
    old = len(list((tmp_path / "rescore").glob("trial-*.json")))
    folder.write(rescore(search, history))
    kept = list((tmp_path / "rescore").glob("trial-*.json"))
    assert len(kept) + len(list((tmp_path / "rescore").glob("stale-trial-*.json"))) == old
    assert folder.proposals("rescore").agrees_with(rescore(search, history))


def test_a_score_of_zero_is_a_score() -> None:
    search = make(sampler="random")
    first = ask(search, [])
    scores = [0.0 if t.number == 3 else -1.0 for t in first.trials]
    assert select(search, [Scored(first, tuple(scores))]).theta == first.trials[3].theta


def test_settings_that_cannot_be_searched_are_not_written(tmp_path: Path) -> None:
    with refused(where="initial", what="'OR'"):
        Folder(tmp_path).start(make(initial="published:mAcc"))
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_search_is_refused(config: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "toy"
    main(["ask", str(folder), "--settings", str(config), "--step", "1"])
    config.write_text(config.read_text() + "seed: 7\n")
    assert main(["ask", str(folder), "--settings", str(config), "--step", "1"]) == 2
    assert "started with other settings (seed)" in capsys.readouterr().err
    assert Folder(folder).search().seed == 0


def test_scores_of_proposals_that_changed_are_set_aside_and_not_lost(tmp_path: Path, caplog) -> None:
    folder = Folder(tmp_path)
    first, other = ask(make(), []), ask(make(seed=8), [])
    folder.write(first)
    score_step(tmp_path, "step-001")
    before = {score.checksum() for score in folder.scores(1)}
    folder.write(other)
    assert folder.proposals(1) == other
    assert not folder.scores(1)
    assert {TrialScore.load(path).checksum() for path in (tmp_path / "step-001").glob("stale-*")} == before
    assert f"{tmp_path}/step-001/trial-0.json is set aside" in caplog.text


def test_the_journal_shows_the_search_and_is_made_anew_when_it_is_torn(tmp_path: Path) -> None:
    folder, search = Folder(tmp_path), make()
    history = play(search, 3)

    def shown() -> list[float]:
        storage = optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal.log"))
        )
        return [t.value for t in optuna.load_study(study_name="search", storage=storage).trials]

    write_journal(folder, search, history[:2])
    write_journal(folder, search, history)
    expected = [score for step in history for score in step.scores]
    assert shown() == expected
    write_journal(folder, search, history[:1])
    assert shown() == expected
    text = (tmp_path / "journal.log").read_text()
    for torn in (text[: len(text) // 2], "rubbish\n"):
        (tmp_path / "journal.log").write_text(torn)
        write_journal(folder, search, history)
        assert shown() == expected


def test_a_whole_search_runs_resumes_and_gives_the_same_bytes(tmp_path: Path, monkeypatch) -> None:
    search = make(steps=2, trials_per_step=4, rescore=1, preset="annealed")
    chosen = run_search(tmp_path / "straight", search, "tests.toy_objectives:report", progress=False)
    assert chosen.source.startswith("search 'search': mean of step")
    stored = TrialScore.load(tmp_path / "straight" / "step-001" / "trial-3.json")
    assert stored.scores == {"mIoU": 0.5, "BF1": 0.25}
    assert len(stored.fingerprint) == 64

    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setenv("BROKEN", str(broken))
    with refused(where="trial 5", what="MemoryError"):
        run_search(tmp_path / "resumed", search, "tests.toy_objectives:once_broken", workers=2, progress=False)
    first = tmp_path / "resumed" / "step-001" / "trial-0.json"
    written = first.stat().st_mtime_ns
    broken.unlink()
    run_search(tmp_path / "resumed", search, "tests.toy_objectives:once_broken", workers=2, progress=False)
    assert first.stat().st_mtime_ns == written
    for name in ("surrogate.json", "step-002/proposals.json", "rescore/proposals.json"):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes()


def test_a_collapsed_training_is_a_low_score_whatever_the_scale(tmp_path: Path) -> None:
    """Scores may be negative, where 0 would be the best: it counts as the worst of its step."""
    search = make(steps=1, trials_per_step=4)
    run_search(tmp_path / "a", search, "tests.toy_objectives:collapse", progress=False)
    stored = read_json(tmp_path / "a" / "step-001" / "trial-2.json")
    assert (stored["score"], stored["scores"], stored["diverged"]) == (None, {}, True)
    scores = Folder(tmp_path / "a").scored(1).scores
    assert scores[2] == min(scores) < max(scores) < 0
    with refused(what="every trial of step 1"):
        run_search(tmp_path / "b", search, "tests.toy_objectives:always_collapse", progress=False)
    with pytest.raises(ValueError, match="has not diverged"):
        TrialScore(number=0, metric="mIoU", score=None)


def test_scores_of_another_objective_are_set_aside_and_taken_back_when_it_returns(tmp_path: Path, caplog) -> None:
    def run(objective: str) -> dict[str, tuple[int, int]]:
        caplog.clear()
        run_search(tmp_path, make(steps=2, trials_per_step=2), f"tests.toy_objectives:{objective}", progress=False)
        found = sorted(tmp_path.glob("step-*/trial-*.json"))
        assert len(found) == 4
        return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}

    first = run("near")
    assert not caplog.messages
    second = run("report")
    assert len([line for line in caplog.messages if "is set aside" in line]) == 4
    assert not set(first.values()) & set(second.values())
    assert run("near") == first  # nothing was scored again
    assert run("report") == second


def test_curves_to_start_from_are_found_beside_the_settings_and_kept_with_the_search(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    (tmp_path / "settings").mkdir()
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "settings" / "search.json"
    write_json(config, {"metric": "mIoU", "steps": 2, "trials_per_step": 4, "initial": "start.json"})
    published("mIoU").save(tmp_path / "settings" / "start.json")
    published("mIoU-paper").save(tmp_path / "start.json")  # where the command runs: not meant
    assert main(["ask", "toy", "--step", "1", "--settings", "settings/search.json"]) == 0
    first = read_json("toy/step-001/proposals.json")
    assert first["mu"] == pytest.approx(published("mIoU").theta, abs=1e-3)
    assert read_json("toy/search.json")["initial"] == published("mIoU").theta
    published("mIoU-paper").save(tmp_path / "settings" / "start.json")
    assert main(["ask", "toy", "--step", "1"]) == 0  # the copy counts, from wherever it is asked
    monkeypatch.chdir("/")
    assert main(["ask", str(tmp_path / "toy"), "--step", "1"]) == 0
    assert read_json(tmp_path / "toy/step-001/proposals.json") == first
    assert main(["ask", str(tmp_path / "toy"), "--step", "1", "--settings", str(config)]) == 2
    assert "started with other settings (initial)" in capsys.readouterr().err


def test_a_killed_search_continues(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autoseg", "search", str(tmp_path / "toy"), "--settings", str(config)]
    command += ["--objective", "tests.toy_objectives:slow", "--quiet"]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    while not list((tmp_path / "toy").rglob("trial-5.json")):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    straight = run_search(tmp_path / "straight", load_search(config), "tests.toy_objectives:slow", progress=False)
    assert Surrogate.load(tmp_path / "toy" / "surrogate.json") == straight


def test_workers_end_with_a_search_that_is_killed(config: Path, tmp_path: Path) -> None:
    who = tmp_path / "who"
    command = [sys.executable, "-m", "autoseg", "search", str(tmp_path / "toy"), "--settings", str(config)]
    command += ["--objective", "tests.toy_objectives:hang", "--quiet"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "WHO": str(who)})
    while not (who.exists() and who.read_text()):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    worker = int(who.read_text())
    deadline = time.monotonic() + 20
    while alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"  # a zombie is gone


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ("math", {"expected": "module:function"}),
        ("no_such_module:f", {"what": "no_such_module"}),
        ("math:nothing", {"what": "'nothing'"}),
        ("math:pi", {"what": "'pi'"}),
    ],
)
def test_an_objective_that_cannot_be_found_is_refused(spec: str, fields: dict[str, str]) -> None:
    with refused(where=f"objective '{spec}'", **fields):
        load_objective(spec)


def test_workers_must_be_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        run_search(tmp_path, make(), "math:hypot", workers=0)
    assert error.value.where == "workers"


def test_asking_with_a_long_history_is_quick_and_loads_no_torch(tmp_path: Path) -> None:
    folder, search = Folder(tmp_path), Search(metric="mIoU")
    folder.start(search)
    history = play(search, 19)
    for step in history:
        folder.write(step.proposals)
        for trial, score in zip(step.proposals.trials, step.scores, strict=True):
            made = TrialScore(number=trial.number, metric="mIoU", score=score)
            made.save(folder.score_path(step.proposals.step, trial.number))
    code = (
        "import sys, time; from autoseg.cli import main; "
        f"assert main(['ask', {str(tmp_path)!r}, '--step', '20', '--no-journal']) == 0; "
        "assert not {'torch', 'optuna', 'scipy.stats'} & set(sys.modules); print(time.process_time())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    seconds = float(done.stdout)
    assert seconds < 4  # about 0.9 on an idle core; the bound only catches an import gone wrong


def test_the_examples_of_the_documentation_are_valid() -> None:
    blocks = (ROOT / "docs" / "searches.md").read_text().split("```json\n")[1:]
    settings, proposals, trial, took = (json.loads(block.split("```")[0]) for block in blocks)
    assert parse(Search, settings, "docs").preset == "paper"
    assert Proposals.read(proposals, "docs").step == 1
    assert TrialScore.read(trial, "docs").score == 0.421
    assert TrialTime.read(took, "docs").number == TrialScore.read(trial, "docs").number


def test_the_first_trial_of_the_releases_steps_is_mu_itself():
    step = ask(Search(metric="mIoU", preset="release"), [])
    assert step.trials[0].theta == step.mu
    assert all(trial.theta != step.mu for trial in step.trials[1:])
