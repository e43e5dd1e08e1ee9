"""Early rejection: bars from earlier steps alone, ended trials that count as what they would have scored."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pipeline_runs import content
from small_task import arguments, small_task

from autoseg.cli import main
from autoseg.files import parse, read_json, write_json
from autoseg.pipeline.expansion import load_pipeline
from autoseg.search.early import Early, Look, Seen, Watch, looks
from autoseg.search.folder import Folder
from autoseg.search.records import Scored, TrialScore
from autoseg.search.runner import run as run_search
from autoseg.search.runner import run_chunk
from autoseg.search.settings import Search, load_search
from autoseg.search.space import changes, search_fingerprint, surrogate
from autoseg.search.steps import answer, ask, candidates, record, rescore, select
from autoseg.search.times import search_time
from autoseg.training.trial import ProxyTask
from tests import toy_objectives
from tests.refusals import refused

ROOT = Path(__file__).parents[1]
RULE = {"at": [0.25, 0.5], "good": 0.25, "lost": 0}
SAVING = {"at": [0.25, 0.5], "save": 0.42}
OBJECTIVE = "tests.toy_objectives:watched"


def make(**changed) -> Search:
    given = {"metric": "mIoU", "preset": "recommended", "steps": 3, "trials_per_step": 10, "rescore": 1}
    return Search(**{**given, **changed})


def play(search: Search, steps: int) -> list[Scored]:
    """Run some steps in memory, with trials that are watched."""
    history: list[Scored] = []
    while len(history) < steps:
        proposals, scores = ask(search, history), []
        for trial in proposals.trials:
            watch, proposal = Watch(proposals.looks), surrogate(search, trial.theta)
            score = toy_objectives.watched(proposal, trial.number, watch)
            if watch.ended:
                score = watch.ended.predicted(watch.partial[watch.ended.name])
            ended = watch.ended.at if watch.ended else None
            given = {"score": score, "partial": watch.partial, "ended": ended}
            scores.append(TrialScore(number=trial.number, metric="mIoU", **given))
        history.append(record(proposals, scores))
    return history


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.json"))}


# ----------------------------------------------------------------------------------------------------------- the rule


def test_the_bar_is_what_nearly_all_good_trials_had() -> None:
    seen = [Seen({"0.5": n / 100}, n / 50) for n in range(40)]
    exact = looks(Early(at=[0.5], good=0.25, lost=0), seen)[0]
    assert exact.bar == 0.30
    assert exact.ends(0.299)
    assert not exact.ends(0.30)
    assert looks(Early(at=[0.5], good=0.25, lost=0.2), seen)[0].bar == 0.31


def test_scores_that_say_nothing_of_the_end_end_hardly_a_trial() -> None:
    rng = np.random.default_rng(0)
    partial, final = rng.random((2, 128))
    found = looks(
        Early(at=[0.5], good=0.25, lost=0), [Seen({"0.5": a}, b) for a, b in zip(partial, final, strict=True)]
    )
    assert found[0].bar is None
    assert not any(found[0].ends(p) for p in rng.random(1000))


def test_whether_scores_tell_is_judged_before_trials_are_chosen_by_them() -> None:
    rng = np.random.default_rng(2)
    rule = Early(at=[0.5], good=0.25, lost=0)
    first = [Seen({"0.5": f + rng.normal(0, 0.1)}, f) for f in rng.random(32)]
    among_good = [Seen({"0.5": p}, f) for p, f in rng.uniform(0.8, 1, (64, 2))]  # here they tell nothing
    assert looks(rule, [*first, Seen({"0.5": 0.0}, 0.1, ended="0.5"), *among_good])[0].bar is not None
    assert looks(rule, [*among_good, *first])[0].bar is not None
    assert looks(rule, among_good)[0].bar is None
    assert looks(rule, [Seen({"0.5": 0.5}, n) for n in range(16)])[0].bar is None  # all alike


def test_nothing_is_ended_before_enough_is_known() -> None:
    rule = Early(at=[0.5])
    assert [look.bar for look in looks(rule, [])] == [None]
    few = [Seen({"0.5": n / 10}, n / 10) for n in range(7)]
    assert looks(rule, few)[0].bar is None
    assert looks(rule, [*few, Seen({"0.5": 0.9}, 0.9)])[0].bar is not None
    assert looks(rule, [*few, Seen({}, 0.9)])[0].bar is None  # collapsed before it was scored
    ended = [Seen({"0.5": 0.0}, 0.0, ended="0.5")] * 100
    assert looks(rule, [*few, *ended])[0].bar is None  # what was ended was never seen to be good or bad


def test_what_is_expected_of_an_ended_trial_rises_with_its_score_and_was_scored_before() -> None:
    rng = np.random.default_rng(1)
    final = rng.random(60)
    seen = [Seen({"0.5": f + rng.normal(0, 0.1)}, f) for f in final]
    found = looks(Early(at=[0.5]), seen)[0]
    expected = [found.predicted(p) for p in np.linspace(-1, 2, 50)]
    assert expected == sorted(expected)
    assert final.min() <= expected[0] < 0.2
    assert 0.8 < expected[-1] <= final.max()
    errors = [found.predicted(trial.partial["0.5"]) - trial.final for trial in seen]
    assert abs(np.mean(errors)) < 0.02
    assert np.std(errors) < 0.1


def test_a_rule_with_save_ends_as_many_as_that_needs_also_where_all_score_better_than_before() -> None:
    rng = np.random.default_rng(3)
    thetas = rng.random((32, 3)) * 0.2 + 0.4
    seen = [Seen({"0.5": p}, 2 * p) for p in thetas.sum(axis=1) + rng.normal(0, 0.02, 32)]
    rule = Early(at=[0.5], save=0.25)  # of each step half of its trials are to lose half of theirs
    for shift in (0.0, 0.1):
        ahead = rng.random((32, 3)) * 0.2 + 0.4 + shift
        look = looks(rule, seen, thetas, ahead)[0]
        assert 0.3 <= np.mean([look.ends(p) for p in ahead.sum(axis=1) + rng.normal(0, 0.02, 32)]) <= 0.7
    # What was saved before counts: bars fall after a step that saved more, and rise after one that saved nothing.
    half = [Seen(trial.partial, trial.final, ended="0.5") for trial in seen]
    bars = [looks(rule, [*seen, *then], [*thetas, *thetas], thetas)[0].bar for then in (seen, half)]
    assert bars[0] is not None
    assert bars[1] is None
    assert bars[0] > looks(rule, seen, thetas, thetas)[0].bar
    assert [look.bar for look in looks(rule, [], [], thetas)] == [None]  # nothing is known in the first step


def test_a_watch_notes_scores_and_says_when_to_end() -> None:
    watch = Watch([Look(at=0.25, images=1, bar=None), Look(at=0.5, images=1, bar=0.3, partial=[0.1], expected=[0.2])])
    assert watch.shares == (0.25, 0.5)
    assert not watch(0.25, 0.0)
    assert not watch(0.5, float("nan"))
    assert watch(0.5, 0.2)
    assert watch.ended is not None
    assert watch.ended.predicted(0.2) == 0.2
    assert watch.partial == {"0.25": 0.0, "0.5": 0.2}
    with refused(where="watch: share", expected="one of 0.25, 0.5"):
        watch(0.75, 0.1)


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("wild", "early"),
        ({"at": [0.5, 0.25]}, "at"),
        ({"at": [1.0]}, "at"),
        ({"at": []}, "at"),
        ({"lost": 1}, "lost"),
        ({"save": 1}, "save"),
    ],
)
def test_bad_rules_are_refused(given: object, where: str) -> None:
    with pytest.raises(ValueError, match=where):
        Search(metric="mIoU", early=given)


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"at": [0.5, 0.25]}, {"where": "early: at", "what": "[0.5, 0.25]", "expected": "rising order"}),
        ({"aat": [0.5]}, {"where": "early", "what": "'aat'", "expected": "images"}),
        (0.5, {"where": "early", "what": "0.5", "expected": "mild"}),
    ],
)
def test_a_bad_rule_is_refused_in_the_words_of_its_key(given: object, fields: dict[str, str]) -> None:
    with refused(**fields):
        parse(Search, {"metric": "mIoU", "early": given})


def test_off_needs_no_quotes_in_yaml(tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_text("{metric: mIoU, early: off}")  # which is false to YAML
    assert load_search(tmp_path / "search.yaml") == Search(metric="mIoU")
    config = content("tiny")
    config["searches"]["mIoU"]["search"]["early"] = False
    assert load_pipeline(config, "config").search("mIoU").early == "off"


def test_trials_are_ended_only_where_the_settings_say_so() -> None:
    for preset in ("default", "paper", "release", "annealed", "recommended"):
        assert Search(metric="mIoU", preset=preset).early_rule is None
        assert Search(metric="mIoU", preset=preset, early="mild").early_rule == Early()
    assert changes(make(early="mild"), make()) == ["early"]
    assert changes(make(early="mild"), make(early=Early())) == []
    assert changes(make(early="hard"), make(early=Early(save=0.42))) == []


def test_a_search_without_it_has_the_files_and_fingerprints_that_it_always_had() -> None:
    search = Search(metric="mIoU", trials_per_step=4)
    assert "looks" not in ask(search, []).content()
    assert not {"partial", "ended"} & set(TrialScore(number=0, metric="mIoU", score=0.5).content())
    assert search_fingerprint(search) == "a40124f3501204915a106b0b07be8de87d45ce666231e7e6f2368cf5c2bf65ca"


# ---------------------------------------------------------------------------------------------------------- a search


@pytest.mark.parametrize("rule", [RULE, SAVING, "hard"])
def test_the_bars_follow_from_earlier_steps_alone(rule: dict | str) -> None:
    search = make(early=rule)
    history = play(search, 2)
    assert [look.bar for look in history[0].proposals.looks] == [None, None]
    step = ask(search, history[:1])
    assert step.looks == history[1].proposals.looks
    assert all(look.bar is not None for look in step.looks)
    assert sum(history[1].ended) > 0


@pytest.mark.parametrize("rule", [RULE, SAVING])
@pytest.mark.parametrize("changed", [{"preset": "default", "sampler": "tpe"}, {"preset": "default"}, {}])
def test_ended_trials_are_no_answer(changed: dict, rule: dict) -> None:
    search = make(early=rule, **changed)
    history = play(search, 3)
    ended = {tuple(t.theta) for s in history for t, e in zip(s.proposals.trials, s.ended, strict=True) if e}
    assert ended
    assert not {c.theta for c in candidates(search, history)} & ended
    assert answer(search, history).theta not in ended
    assert not {tuple(t.theta) for t in rescore(search, history).trials} & ended
    assert not rescore(search, history).looks  # answers are trained to their end
    select(search.model_copy(update={"rescore": 0}), history)


@pytest.mark.parametrize("changed", [{"early": RULE}, {"early": "hard"}, {"early": "hard", "preset": "annealed"}])
def test_a_search_that_ends_trials_gives_the_same_bytes_with_any_number_of_workers(
    tmp_path: Path, changed: dict
) -> None:
    search = make(**changed)
    for name, workers in (("one", 1), ("three", 3)):
        run_search(tmp_path / name, search, OBJECTIVE, workers, progress=False)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "three")
    ended = [score for step in (1, 2, 3) for score in Folder(tmp_path / "one").scores(step) if score.ended]
    assert len(ended) > 3
    assert all(score.partial and not score.scores for score in ended)


@pytest.mark.parametrize("rule", [RULE, "hard"])
def test_a_storm_of_kills_gives_the_same_bytes(tmp_path: Path, rule: dict | str) -> None:
    write_json(tmp_path / "settings.json", make(early=rule).model_dump())
    command = [sys.executable, "-m", "autoseg", "search", str(tmp_path / "stormy"), "--workers", "2", "--quiet"]
    command += ["--settings", str(tmp_path / "settings.json"), "--objective", OBJECTIVE]
    rng, kills = random.Random(0), 0
    while True:
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)
        before = len(list((tmp_path / "stormy").rglob("trial-*.json")))
        more = rng.randrange(1, 12)
        while process.poll() is None:
            if len(list((tmp_path / "stormy").rglob("trial-*.json"))) >= before + more and kills < 4:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.01)
        _, shown = process.communicate(timeout=60)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, shown
    assert kills >= 2
    run_search(tmp_path / "calm", make(early=rule), OBJECTIVE, progress=False)
    assert files_of(tmp_path / "stormy") == files_of(tmp_path / "calm")


def test_a_function_that_is_not_watched_ends_no_trial(tmp_path: Path) -> None:
    search = make(early=RULE, steps=2, rescore=0)
    run_search(tmp_path / "a", search, "tests.toy_objectives:near", progress=False)
    scores = Folder(tmp_path / "a").scores(2)
    assert len(scores) == 10
    assert not any(score.ended or score.partial for score in scores)


# ------------------------------------------------------------------------------------------------------ the proxy task


def trained_search(path: Path, proxy: ProxyTask, parts: int, rule: dict) -> None:
    """Run two steps in chunks; the second one ends trials."""
    search = Search(metric="mIoU", steps=2, trials_per_step=8, early={"at": [0.5], "images": 0.5, **rule})
    folder = Folder(path)
    for step in (1, 2):
        folder.write(ask(search, folder.history(step - 1)))
        for part in range(parts):
            run_chunk(path, step, proxy, (part, parts))


@pytest.mark.parametrize("rule", [{"good": 1, "lost": 0.9}, {"save": 0.42}])
def test_trials_of_the_proxy_task_are_ended_alike_in_chunks_of_any_size(tmp_path: Path, data, rule: dict) -> None:
    proxy = ProxyTask(small_task(data, iterations=4))
    for parts in (1, 3):
        trained_search(tmp_path / str(parts), proxy, parts, rule)
    one, three = ({k: v for k, v in files_of(tmp_path / n).items() if "time-" not in k} for n in ("1", "3"))
    assert one == three
    second = Folder(tmp_path / "1").scored(2)
    assert sum(second.ended) > 0
    assert search_time(tmp_path / "1").ended == sum(second.ended)


def test_looking_changes_no_final_score(tmp_path: Path, data) -> None:
    proxy = ProxyTask(small_task(data, iterations=4))
    proposal = surrogate(Search(metric="mIoU"), [0.3] * 12)
    plain = proxy(proposal, 0)
    watch = Watch([Look(at=0.25, images=0.5, bar=None), Look(at=0.75, images=1.0, bar=None)])
    assert proxy(proposal, 0, watch) == plain
    assert set(watch.partial) == {"0.25", "0.75"}


def test_an_ended_trial_stops_there_and_writes_its_time(tmp_path: Path, data) -> None:
    proxy = ProxyTask(small_task(data, iterations=4))
    watch = Watch([Look(at=0.5, images=0.5, bar=2.0, partial=[0.0], expected=[0.1])])
    steps: list[int] = []
    found = proxy.train

    def counted(*args, **kwargs):
        outcome = found(*args, **kwargs)
        steps.append(outcome.iterations)
        return outcome

    proxy.train = counted  # type: ignore[method-assign]
    proxy(surrogate(Search(metric="mIoU"), [0.3] * 12), 0, watch)
    assert steps == [2]
    assert watch.ended is not None


def test_the_verbs_end_trials_too(tmp_path: Path, data) -> None:
    rule = {"at": [0.5], "good": 1, "lost": 0.9}
    write_json(tmp_path / "s.json", Search(metric="mIoU", steps=2, trials_per_step=8, early=rule).model_dump())
    command = ["search", str(tmp_path / "toy"), "--settings", str(tmp_path / "s.json"), "--quiet"]
    assert main([*command, *arguments(data)]) == 0
    assert any(read_json(path).get("ended") == 0.5 for path in (tmp_path / "toy").glob("step-002/trial-*.json"))
