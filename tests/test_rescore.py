"""Answers of a search that are rescored in longer trainings than the trials were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from refusals import refused
from small_task import SETTINGS, arguments, small_task

from autoseg.cli import main
from autoseg.losses.build import build_loss
from autoseg.losses.surrogate_loss import SurrogateLoss
from autoseg.pipeline.plan import Speed, search_cost
from autoseg.search.budget import described, steps_that_fit, total_seconds
from autoseg.search.folder import Folder
from autoseg.search.runner import run
from autoseg.search.settings import Search
from autoseg.search.steps import answers, rescore, select
from autoseg.training.settings import Training
from autoseg.training.trial import ProxyObjective, ProxyTask

SEARCH = Search(metric="mIoU", steps=2, trials_per_step=2, rescore=1, rescore_length=3, initial="published:mIoU")


@pytest.fixture(scope="module")
def searched(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched")
    run(folder, SEARCH, ProxyObjective(small_task(data)), progress=False, here=True)
    return folder


def test_each_answer_scores_what_a_training_of_that_length_scores(searched: Path, data: Path) -> None:
    folder = Folder(searched)
    proposals = folder.proposals("rescore")
    assert proposals.length == 3
    task = ProxyTask(small_task(data, iterations=3 * SETTINGS["iterations"]))
    scores = []
    for loss in (build_loss("naive:mIoU", ignore_index=255), SurrogateLoss.published("mIoU", ignore_index=255)):
        task.train(loss)
        scores.append(task.score()["mIoU"])
    assert [folder.scored("rescore").scores[k] for k in (0, 1)] == scores


def test_the_trials_are_those_of_a_search_without_it(searched: Path, data: Path, tmp_path: Path) -> None:
    plain = SEARCH.model_copy(update={"rescore_length": 1.0})
    run(tmp_path, plain, ProxyObjective(small_task(data)), progress=False, here=True)
    for path in sorted(tmp_path.glob("step-*/*-*.json")):
        if not path.name.startswith("time-"):
            assert path.read_bytes() == (searched / path.relative_to(tmp_path)).read_bytes()
    assert "length" not in json.loads((tmp_path / "rescore/proposals.json").read_text())


def test_the_answer_is_the_best_of_the_long_trainings(searched: Path) -> None:
    folder = Folder(searched)
    found = answers(SEARCH, folder.history(2), folder.scored("rescore"))
    assert [one.origin for one in found[:2]] == ["the identity", "the start, published:mIoU"]
    best = max(found, key=lambda one: one.score or 0.0)
    assert tuple(select(SEARCH, folder.history(2), folder.scored("rescore")).theta) == best.theta


def test_a_length_that_changes_trains_only_the_answers_anew(searched: Path, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "search"
    shutil.copytree(searched, folder)
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("step-*/trial-*.json")}
    longer = SEARCH.model_copy(update={"rescore_length": 2.0})
    with refused(what="not those", cure="autoseg rescore"):
        select(longer, Folder(folder).history(2), Folder(folder).scored("rescore"))
    run(folder, longer, ProxyObjective(small_task(data)), progress=False, here=True)
    assert Folder(folder).proposals("rescore").length == 2
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("step-*/trial-*.json")} == before
    assert len(list((folder / "rescore").glob("stale-trial-*.json"))) == len(
        rescore(SEARCH, Folder(searched).history(2)).trials
    )


def test_chunks_and_workers_train_them_as_long(searched: Path, data: Path, tmp_path: Path) -> None:
    run(tmp_path / "workers", SEARCH, ProxyObjective(small_task(data)), workers=2, progress=False)
    shutil.copytree(searched, tmp_path / "chunks", ignore=shutil.ignore_patterns("trial-100*"))
    for chunk in ("1/2", "0/2"):
        options = ["--step", "rescore", "--chunk", chunk, "--quiet", *arguments(data)]
        assert main(["trials", str(tmp_path / "chunks"), *options]) == 0
    for folder in ("workers", "chunks"):
        for path in sorted(searched.glob("rescore/trial-*.json")):
            assert path.read_bytes() == (tmp_path / folder / "rescore" / path.name).read_bytes()


def test_a_function_of_ones_own_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with refused(where="rescore_length", cure="proxy task"):
        run(tmp_path / "search", SEARCH, "toy_objectives:near", progress=False, here=True)
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize("length", [0.5, 0, -1, float("nan"), 1e9, "two"])
def test_other_lengths_are_refused(length: object) -> None:
    with pytest.raises(ValueError, match="rescore_length"):
        Search.model_validate({**SEARCH.model_dump(), "rescore_length": length})


def test_plans_count_them_by_their_length() -> None:
    answers_ = SEARCH.most_rescored
    assert SEARCH.rescored_trainings == 3 * answers_
    assert total_seconds(SEARCH, 10, 1) == 10 * (2 * 2 + 3 * answers_)
    assert "each 3 times as long" in described(SEARCH, 10)
    settings = SEARCH.model_copy(update={"preset": "recommended"})
    assert steps_that_fit(settings, 1, 10 * (2 * 2 + 3 * answers_), 10, 1) == 3
    training = Training.of_protocol("paper-proxy")
    cost = search_cost(SEARCH, training, Speed(1.0), 0)
    assert cost.hours == pytest.approx(training.iterations * (2 * 2 + 3 * answers_) / 3600)
