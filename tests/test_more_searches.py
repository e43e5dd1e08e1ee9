"""The metrics beyond the six in searches, runs, tables and on the command line."""

from __future__ import annotations

import json
import sys

import pytest
import torch
import yaml
from small_task import arguments, small_task

from autoseg.cli import main
from autoseg.losses.surrogate import Surrogate
from autoseg.metrics.formula import METRICS
from autoseg.metrics.more import MORE
from autoseg.pipeline.arguments import Arguments
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.layout import Layout
from autoseg.search.runner import run as run_search
from autoseg.search.settings import Search
from autoseg.training.evaluation import decision
from autoseg.training.run import evaluate_run, train_run
from autoseg.training.trial import ProxyObjective
from tests.pages import ROOT
from tests.refusals import refused


@pytest.mark.parametrize("metric", MORE)
def test_a_search_on_each_of_them_runs(metric, data, tmp_path):
    search = Search(metric=metric.lower(), steps=1, trials_per_step=2, conventions={"tolerance": 2})
    task = small_task(data, iterations=1)
    chosen = run_search(tmp_path, search, ProxyObjective(task), progress=False)
    assert Surrogate.load(tmp_path / "surrogate.json").metric == metric == chosen.metric
    score = json.loads(min(tmp_path.rglob("trial-*.json")).read_text())
    assert list(score["scores"]) == sorted([*METRICS, metric])
    assert score["score"] == score["scores"][metric]


@pytest.mark.parametrize("sampler", ["ppo2", "cmaes"])
def test_a_search_of_splines_runs(sampler, data, tmp_path):
    search = Search(metric="mIoU", family="spline", sampler=sampler, steps=2, trials_per_step=4)
    run_search(tmp_path, search, ProxyObjective(small_task(data, iterations=1)), progress=False)
    found = Surrogate.load(tmp_path / "surrogate.json")
    assert (found.family, found.pieces, len(found.theta)) == ("spline", 4, 10)
    tried = [json.loads(path.read_text())["trials"] for path in tmp_path.rglob("proposals.json")]
    assert len({tuple(trial["theta"]) for trials in tried for trial in trials}) == 8


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train_run(small_task(data, iterations=2), "naive:NSD", folder, progress=False)
    return folder


def test_evaluate_scores_further_metrics_after_the_six(run, data, tmp_path):
    six = evaluate_run(small_task(data), run, tmp_path / "six.json", progress=False)
    main(["evaluate", str(run), "--out", str(tmp_path / "more.json"), "--metrics", "nsd", "mMCC", *arguments(data)])
    found = json.loads((tmp_path / "more.json").read_text())
    assert set(found["scores"]) == {*METRICS, "NSD", "mMCC"}
    assert {name: found["scores"][name] for name in METRICS} == six.scores
    assert found["fingerprint"] != six.fingerprint


def test_a_table_asks_for_what_it_shows_and_for_nothing_else():
    config = yaml.safe_load((ROOT / "workflow/config/tiny.yaml").read_text())
    before = Pipeline.model_validate(config)
    name = next(iter(before.runs))
    assert "--metrics" not in Arguments(before, Layout("tiny")).evaluate(name)
    config["tables"]["main"]["metrics"] = ["mIoU", "nsd", "mDice"]
    after = Pipeline.model_validate(config)
    assert "--metrics mDice NSD" in Arguments(after, Layout("tiny")).evaluate(name)


def test_rankseg_decides_otherwise_on_the_same_weights(run, data, tmp_path):
    pytest.importorskip("rankseg")
    argmax = evaluate_run(small_task(data), run, tmp_path / "argmax.json", metrics=["mDice"], progress=False)
    found = {}
    for decide in ("rankseg", "rankseg-iou"):
        out = str(tmp_path / f"{decide}.json")
        main(["evaluate", str(run), "--out", out, "--decide", decide, "--metrics", "mDice", *arguments(data)])
        found[decide] = json.loads((tmp_path / f"{decide}.json").read_text())
        assert found[decide]["weights"] == argmax.weights
        assert found[decide]["fingerprint"] != argmax.fingerprint
    assert found["rankseg"]["scores"] != argmax.scores


def test_rankseg_is_the_packages_own_map():
    rankseg = pytest.importorskip("rankseg")
    torch.manual_seed(0)
    logits = torch.randn(2, 4, 9, 7)
    expected = rankseg.RankSEG(metric="dice")(logits.softmax(1))
    assert torch.equal(decision("rankseg")(logits), expected)
    assert not torch.equal(expected, logits.argmax(1))
    assert torch.equal(decision("argmax")(logits), logits.argmax(1))


def test_without_the_package_rankseg_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "rankseg", None)
    with refused(where="decide", what="needs the package rankseg"):
        decision("rankseg")


def test_a_row_with_another_decision_shares_the_training():
    config = yaml.safe_load((ROOT / "workflow/config/tiny.yaml").read_text())
    config["tables"]["main"]["rows"] = ["ce", {"loss": "ce", "label": "CE, RankSEG", "decide": "rankseg"}]
    pipeline = Pipeline.model_validate(config)
    ce, decided = pipeline.tables["main"].runs
    assert decided.name == f"{ce.name}-rankseg"
    assert decided.trained == ce
    written = Arguments(pipeline, Layout("tiny"))
    assert "--decide rankseg" in written.evaluate(decided.name)
    assert "--decide" not in written.evaluate(ce.name)
    # A table of such a row alone has the training behind it all the same.
    config["tables"]["main"]["rows"] = config["tables"]["main"]["rows"][1:]
    assert {ce.name, decided.name} <= set(Pipeline.model_validate(config).runs)
