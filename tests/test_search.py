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
from autoseg.config import Search, load_search, parse
from autoseg.errors import InputError
from autoseg.files import read_json, write_json
from autoseg.local_search import load_objective
from autoseg.local_search import run as run_search
from autoseg.sampler import PPO2Sampler, expectation
from autoseg.search import (
    Folder,
    Proposals,
    Scored,
    TrialScore,
    answer,
    ask,
    record,
    rescore,
    search_space,
    select,
    settings_of,
    surrogate,
    total_steps,
    write_journal,
)
from autoseg.surrogate_json import Surrogate, published
from autoseg.times import TrialTime
from tests import toy_objectives

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
    assert settings_of(search).family == ("normal" if search.family == "linear" else "truncated")
    assert ask(search, []).trials[0].theta != list(space.initial)


def test_a_search_can_start_at_published_curves_of_another_metric(tmp_path: Path) -> None:
    space = search_space(Search(metric="FWIoU", initial="published:mIoU"))
    assert list(space.initial) == pytest.approx(published("mIoU").theta)
    published("mIoU").save(tmp_path / "surrogate.json")
    assert search_space(Search(metric="mAcc", initial=str(tmp_path / "surrogate.json"))).initial == space.initial[:6]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"initial": "published:mAcc"}, "has the curves AND, but not 'OR', which mIoU needs"),
        ({"initial": "published:mIoU", "family": "linear"}, "has bezier curves of 2 pieces; this search needs linear"),
        ({"initial": "published:mIuO"}, "did you mean 'mIoU'"),
        ({"initial": "nowhere.json"}, "nowhere.json: no such file"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(changes: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        search_space(make(**changes))


# ------------------------------------------------------------------------------------------------------ ask and select


def test_asking_is_the_optuna_sampler() -> None:
    search = make()
    history = play(search, 3)
    space = search_space(search)
    sampler = PPO2Sampler(
        space.distributions,
        trials_per_step=6,
        steps=4,
        seed=2,
        initial_mean=dict(zip(space.names, space.initial, strict=True)),
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for step in history:
        for trial, score in zip(step.proposals.trials, step.scores, strict=True):
            asked = study.ask(space.distributions)
            assert list(asked.params.values()) == trial.theta
            study.tell(asked, score)
    best, mine = sampler.best_mean(study), answer(search, history)
    assert (list(best.mean.values()), best.score) == (pytest.approx(mine.theta), pytest.approx(mine.score))


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
    if sampler in ("random", "tpe", "gp"):
        assert history[0].proposals.trials[0].theta == list(search_space(search).initial)
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
    assert answer(annealed, history).origin == "mean of step 5"
    assert "not scored" in select(annealed, history).source


def test_the_mean_after_the_last_step_competes_if_one_more_step_is_run() -> None:
    assert total_steps(make(score_last_mean=True)) == 5
    assert total_steps(Search(metric="mIoU", preset="release")) == 12


def test_rescoring_takes_the_identity_the_best_and_the_last_mean_and_selects_the_best_of_them() -> None:
    search = make(rescore=2)
    history = play(search, 4)
    proposals = rescore(search, history)
    assert [t.number for t in proposals.trials] == [1_000_000 + k for k in range(len(proposals.trials))]
    assert proposals.trials[0].theta == list(search_space(search).initial)  # the identity itself
    last = ask(search, history).mu
    assert proposals.trials[-1].theta == pytest.approx(expectation(last, 0.2).tolist())
    scores = [TrialScore(number=t.number, metric="mIoU", score=t.number == 1_000_001) for t in proposals.trials]
    assert select(search, history, record(proposals, scores)).theta == proposals.trials[1].theta
    with pytest.raises(InputError, match="set rescore: 3"):
        rescore(make(), play(make(), 1))


def test_an_untrained_start_is_rescored_as_the_identity_itself_by_the_papers_rule() -> None:
    search = make(preset="paper", rescore=1)
    proposals = rescore(search, play(search, 2))
    assert proposals.trials[0].theta == list(search_space(search).initial)


def test_more_steps_may_be_given_unless_the_clip_was_derived_from_their_number() -> None:
    fixed = {"ppo2": {"clip": 0.2}}
    history = play(make(**fixed), 2)
    assert ask(make(steps=9, **fixed), history) == ask(make(**fixed), history)
    with pytest.raises(InputError, match="made with other settings"):
        ask(make(steps=9), play(make(), 1))


def test_scores_must_be_there_once_each() -> None:
    proposals = ask(make(), [])
    scores = [TrialScore(number=t.number, metric="mIoU", score=0.5) for t in proposals.trials]
    assert record(proposals, scores[::-1]).scores == (0.5,) * 6
    with pytest.raises(InputError, match=r"no score yet for 2 of 6 trials \(0, 3\); run them first"):
        record(proposals, [s for s in scores if s.number not in (0, 3)])
    with pytest.raises(InputError, match="trial 4 of step 1 was scored twice"):
        record(proposals, [*scores, scores[4]])
    with pytest.raises(InputError, match="trial 77 is not a trial of step 1"):
        record(proposals, [*scores, TrialScore(number=77, metric="mIoU", score=0.5)])


# ----------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"metric": "mIoU", "samplr": "tpe"}, "s.yaml: unknown key 'samplr'; did you mean 'sampler'?"),
        ({"metric": "mIuO"}, "s.yaml: metric: unknown metric 'mIuO'; did you mean 'mIoU'?"),
        ({}, "s.yaml: metric: Field required"),
        ({"metric": "mIoU", "trials_per_step": 1}, r"s.yaml: trials_per_step: .* \(found 1\)"),
        ({"metric": "mIoU", "sampler": "cma"}, "s.yaml: sampler: .*'cmaes'"),
        ({"metric": "mIoU", "ppo2": {"sgima": 1}}, "unknown PPO2 setting 'sgima'; did you mean 'sigma'?"),
        ({"metric": "mIoU", "ppo2": {"sigma": -1}}, "sigma must be a positive number, not -1"),
        ({"metric": "mIoU", "ppo2": {"steps": 3}}, "write 'steps' beside 'ppo2'"),
        ({"metric": "mIoU", "preset": "papier"}, "did you mean 'paper'"),
        ({"metric": "mIoU", "sampler": "tpe", "preset": "paper"}, "belong to sampler 'ppo2'"),
        ({"metric": "mIoU", "layout": "release"}, "unknown layout of mIoU"),
        ({"metric": "mIoU", "family": "linear", "truth_table": False}, "softmax"),
        (["metric"], "expected keys and values, found list"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(content: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        parse(Search, content, "s.yaml")


def test_settings_are_read_from_yaml_and_json(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("metric: BIoU\nppo2: {sigma: 0.1}\n")
    (tmp_path / "s.json").write_text('{"metric": "biou", "ppo2": {"sigma": 0.1}}')
    assert load_search(tmp_path / "s.yaml") == load_search(tmp_path / "s.json")
    for name, text, sentence in (("a.yaml", "{", "not readable as YAML"), ("a.json", "{", "not readable as JSON")):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=sentence):
            load_search(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
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
        write_json(path, score.model_dump(by_alias=True))


def test_the_verbs_carry_a_search_from_ask_to_select(config: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "toy"
    for step in (1, 2, 3):
        assert main(["ask", str(folder), "--config", str(config), "--step", str(step)]) == 0
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
    assert "has the steps 1 to 3" in capsys.readouterr().err


def test_bad_score_files_are_refused_and_nothing_is_lost(config: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "toy"
    main(["ask", str(folder), "--config", str(config), "--step", "1"])
    score_step(folder, "step-001")
    trial = folder / "step-001" / "trial-0.json"
    good = trial.read_text()
    for broken, sentence in (
        (good.replace('"number": 0', '"number": 3'), "the name and the number must agree"),
        ('{"number": 0, "metric": "mIoU", "score": NaN, "schema": "autoseg/trial/1"}', "trial-0.json: score: "),
        ("{", "trial-0.json: not readable as JSON"),
        (good.replace('"score":', '"skore":'), "trial-0.json: "),
        (good.replace('"mIoU"', '"BF1"'), "trial-0.json: holds a score of BF1, but this search is for mIoU"),
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
    with pytest.raises(InputError, match="the rescored means are not those of its 3 steps"):
        select(search, history, record(proposals, scores))
    rewritten = Scored(history[0].proposals, tuple(reversed(history[0].scores)))
    with pytest.raises(InputError, match="step 2 does not follow from the scores before it"):
        select(search, [rewritten, *history[1:]])


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
    with pytest.raises(InputError, match="optimise='logit'"):
        parse(Search, {"metric": "mIoU", "family": "linear", "preset": "release"}, "search.yaml")
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_search_is_refused(config: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "toy"
    main(["ask", str(folder), "--config", str(config), "--step", "1"])
    config.write_text(config.read_text() + "seed: 7\n")
    assert main(["ask", str(folder), "--config", str(config), "--step", "1"]) == 2
    assert "started with other settings (seed)" in capsys.readouterr().err
    assert Folder(folder).search().seed == 0


def test_proposals_that_were_scored_are_never_overwritten(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    first = ask(make(), [])
    folder.write(first)
    folder.write(ask(make(seed=8), []))  # nothing was scored yet
    folder.write(first)
    score_step(tmp_path, "step-001")
    with pytest.raises(InputError, match="has scores for other proposals"):
        folder.write(ask(make(seed=8), []))
    assert folder.proposals(1) == first


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
    stored = TrialScore.model_validate(read_json(tmp_path / "straight" / "step-001" / "trial-3.json"))
    assert stored.scores == {"mIoU": 0.5, "BF1": 0.25}
    assert len(stored.fingerprint) == 64

    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setenv("BROKEN", str(broken))
    with pytest.raises(InputError, match="trial 5 failed with MemoryError: out of memory; the scores so far are kept"):
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
    with pytest.raises(InputError, match="every trial of step 1 collapsed without a score"):
        run_search(tmp_path / "b", search, "tests.toy_objectives:always_collapse", progress=False)
    with pytest.raises(ValueError, match="only a trial that diverged can be without a score"):
        TrialScore(number=0, metric="mIoU", score=None)


def test_scores_of_another_objective_are_neither_used_nor_overwritten(tmp_path: Path) -> None:
    search = make(steps=1, trials_per_step=4)
    run_search(tmp_path, search, "tests.toy_objectives:near", progress=False)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.json"))}
    with pytest.raises(InputError, match=r"trial-\d.json: scored by another objective.*search in a new folder"):
        run_search(tmp_path, search, "tests.toy_objectives:report", progress=False)
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.json"))} == before


def test_curves_to_start_from_are_found_beside_the_settings_and_kept_with_the_search(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    (tmp_path / "settings").mkdir()
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "settings" / "search.json"
    write_json(config, {"metric": "mIoU", "steps": 2, "trials_per_step": 4, "initial": "start.json"})
    published("mIoU").save(tmp_path / "settings" / "start.json")
    published("mIoU-paper").save(tmp_path / "start.json")  # where the command runs: not meant
    assert main(["ask", "toy", "--step", "1", "--config", "settings/search.json"]) == 0
    first = read_json("toy/step-001/proposals.json")
    assert first["mu"] == pytest.approx(published("mIoU").theta, abs=1e-3)
    assert read_json("toy/search.json")["initial"] == "initial.json"
    published("mIoU-paper").save(tmp_path / "settings" / "start.json")
    assert main(["ask", "toy", "--step", "1"]) == 0  # the copy counts, from wherever it is asked
    monkeypatch.chdir("/")
    assert main(["ask", str(tmp_path / "toy"), "--step", "1"]) == 0
    assert read_json(tmp_path / "toy/step-001/proposals.json") == first
    assert main(["ask", str(tmp_path / "toy"), "--step", "1", "--config", str(config)]) == 2
    assert "started with other settings (initial)" in capsys.readouterr().err
    assert Surrogate.load(tmp_path / "toy/initial.json").theta == published("mIoU").theta


def test_a_killed_search_continues(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autoseg", "search", str(tmp_path / "toy"), "--config", str(config)]
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
    command = [sys.executable, "-m", "autoseg", "search", str(tmp_path / "toy"), "--config", str(config)]
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
    ("spec", "sentence"),
    [
        ("math", "expected module:function"),
        ("no_such_module:f", "No module named"),
        ("math:nothing", "has no 'nothing'"),
        ("math:pi", "is not a function"),
    ],
)
def test_an_objective_that_cannot_be_found_is_refused(spec: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load_objective(spec)


def test_workers_must_be_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="workers must be a whole number of at least 1, not 0"):
        run_search(tmp_path, make(), "math:hypot", workers=0)


def test_asking_with_a_long_history_is_quick_and_loads_no_torch(tmp_path: Path) -> None:
    folder, search = Folder(tmp_path), Search(metric="mIoU")
    folder.start(search)
    history = play(search, 19)
    for step in history:
        folder.write(step.proposals)
        for trial, score in zip(step.proposals.trials, step.scores, strict=True):
            path = folder.step(step.proposals.step) / f"trial-{trial.number}.json"
            path.write_text(json.dumps({"number": trial.number, "metric": "mIoU", "score": score}))
    code = (
        "import sys, time; from autoseg.cli import main; "
        f"assert main(['ask', {str(tmp_path)!r}, '--step', '20', '--no-journal']) == 0; "
        "assert not {'torch', 'scipy.stats'} & set(sys.modules); print(time.process_time())"
    )
    seconds = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout)
    assert seconds < 4  # about 0.9 on an idle core; the bound only catches an import gone wrong


def test_the_examples_of_the_documentation_are_valid() -> None:
    blocks = (ROOT / "docs" / "searches.md").read_text().split("```json\n")[1:]
    settings, proposals, trial, took = (json.loads(block.split("```")[0]) for block in blocks)
    assert parse(Search, settings, "docs").preset == "paper"
    assert parse(Proposals, proposals, "docs").step == 1
    assert parse(TrialScore, trial, "docs").score == 0.421
    assert parse(TrialTime, took, "docs").number == parse(TrialScore, trial, "docs").number


def test_the_first_trial_of_the_releases_steps_is_mu_itself():
    step = ask(Search(metric="mIoU", preset="release"), [])
    assert step.trials[0].theta == step.mu
    assert all(trial.theta != step.mu for trial in step.trials[1:])
