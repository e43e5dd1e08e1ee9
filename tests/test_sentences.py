"""What a user can cause ends in a sentence: those that no other test comes by."""

from __future__ import annotations

import json
import sys

import pytest

from autoseg.cli import main
from autoseg.config import training
from autoseg.errors import InputError
from autoseg.losses import build_loss
from autoseg.paper.results import Results
from autoseg.paper.tables import read_scores
from autoseg.pipeline import load_pipeline
from autoseg.plugins import import_module
from autoseg.preflight import searches_begun_anew
from autoseg.problems import Problem, listing
from autoseg.search import Folder, Proposals, candidates, load_search
from autoseg.surrogate_json import Surrogate
from benchmarks import slurm
from tests.pipeline_runs import changed, content
from tests.small_results import make_results, scores

FIGURE = json.dumps({"kind": "curves", "searches": ["mIoU"]})


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["figure", "--figure", FIGURE, "--out", "x"], "a figure given as JSON needs --results"),
        (["figure", "--figure", "{", "--out", "x"], "--figure: not readable as JSON"),
        (["report"], "give the pipeline's config with --config"),
        (["table"], "which table? Give --table NAME with --config FILE, or --published NAME."),
        (["plan", "--trials-per-job", "0"], "--trials-per-job is at least 1"),
        (
            ["train", "--loss", "ce", "--data", "x", "--out", "y", "--processes", "0"],
            "--processes 0: expected 1 or more",
        ),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_command_that_lacks_something_says_what(command, said, capsys):
    assert main(command) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lr": 1e-5, "min_lr": 1e-3}, "min_lr 0.001 is greater than lr 1e-05"),
        ({"scale": (2.0, 0.5)}, r"scale is \[2.0, 0.5\]; expected two positive numbers"),
    ],
)
def test_settings_of_a_training_that_contradict_each_other(changes, said):
    with pytest.raises(InputError, match=said):
        training("paper-proxy", **changes)


def tiny(*where_and_value):
    return changed(content("tiny"), *where_and_value)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (tiny("datasets", "scenes", {"kind": "voc"}), "datasets.scenes.options.root is missing"),
        (tiny("tables", "main", "about", ["Network"]), r"the row 'ce' has 0 words for \['Network'\]"),
        (tiny("tables", "main", "rows", ["naive:mIoU", "naive:miou", "naive-mIoU"]), "unknown loss 'naive-mIoU'"),
        (tiny("tables", "main", "rows", ["2 * ce", "2*ce"]), "are the same; write them alike"),
        (tiny("searches", "mIoU", "for", {"seed": 1}), "searches.mIoU.for: expected names with lists of values"),
        (tiny("figures", "proxies", "table", "main"), "the table 'main' has no hours to show; set `hours: true`"),
        (tiny("figures", "surrogate", "loss", "ce"), "loss is 'ce'; expected one surrogate, such as published:mIoU"),
    ],
)
def test_a_config_that_cannot_be_meant(config, said):
    with pytest.raises(InputError, match=said):
        load_pipeline(config, "the config")


def test_a_searchs_damaged_settings_are_said_and_written_anew(tmp_path):
    pipeline = load_pipeline(content("tiny"), "tiny.yaml")
    path = tmp_path / "searches/mIoU/search.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    (said,) = searches_begun_anew(pipeline, tmp_path)
    assert str(path) in said
    assert said.endswith("It is written anew.")
    Folder(path.parent).start(pipeline.search("mIoU"), replace=True)
    assert searches_begun_anew(pipeline, tmp_path) == []


def test_a_folder_without_a_search_says_what_to_run(tmp_path):
    with pytest.raises(InputError, match=r"no search\.json in it; run `autoseg ask"):
        Folder(tmp_path).search()


def test_proposals_that_contradict_themselves_are_refused():
    trials = [{"number": 0, "theta": [0.1]}, {"number": 0, "theta": [0.2]}]
    with pytest.raises(ValueError, match="two trials have the same number"):
        Proposals(search="s", settings="x", step=1, trials=trials)
    trials[1] = {"number": 1, "theta": [0.2, 0.3]}
    with pytest.raises(ValueError, match="thetas of different lengths"):
        Proposals(search="s", settings="x", step=1, trials=trials)


def test_nothing_is_selected_from_nothing(tmp_path):
    (tmp_path / "search.yaml").write_text("metric: mIoU\n")
    with pytest.raises(InputError, match="has no finished step to select from"):
        candidates(load_search(tmp_path / "search.yaml"), [])


@pytest.mark.parametrize(("text", "said"), [("[]", "expected a JSON object"), ("{}", "key 'schema' is missing")])
def test_a_file_that_is_no_surrogate(text, said, tmp_path):
    (tmp_path / "surrogate.json").write_text(text)
    with pytest.raises(InputError, match=said):
        Surrogate.load(tmp_path / "surrogate.json")


def test_a_searched_loss_that_is_not_given():
    with pytest.raises(InputError, match="unknown search 'mIuO'; did you mean 'mIoU'"):
        build_loss("searched:mIuO", searched={"mIoU": "surrogate.json"})


def test_a_plugin_that_is_no_python(tmp_path, monkeypatch):
    (tmp_path / "no_python_here.py").write_text("def (")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(InputError, match="the plugin: not readable as Python"):
        import_module("no_python_here", "the plugin")


def test_a_long_list_of_problems_is_cut_and_says_so():
    problems = [Problem(f"{k}.png", "is torn", "copy it again") for k in range(5)]
    assert listing(problems, 2).endswith("... and 3 more; `autoseg doctor` lists them all.")


def test_a_table_lacks_a_run_a_metric_or_is_not_there(tmp_path):
    results = make_results({**content("tiny"), "figures": {}}, tmp_path / "tiny")
    with pytest.raises(InputError, match="unknown table 'mian'; did you mean 'main'"):
        results.table("mian")
    run = next(iter(results.pipeline.runs.values()))
    path = results.run(run) / "scores.json"
    without = scores(run)
    del without["scores"]["BF1"]
    path.write_text(json.dumps(without))
    assert "has no BF1; evaluate the run again" in read_scores(results.table("main"), [path]).problems[0]
    path.unlink()
    with pytest.raises(InputError, match="1 run has no scores yet"):
        Results(results.pipeline, results.folder).filled("main", strict=True)


def test_the_benchmark_on_a_cluster_has_a_config_that_is_one():
    assert list(load_pipeline(slurm.config(1), "bench").searches) == ["mIoU"]
