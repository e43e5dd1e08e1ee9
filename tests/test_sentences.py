"""What a user can cause ends in a sentence: those that no other test comes by."""

from __future__ import annotations

import json
import sys

import pytest

from autoseg.cli import main
from autoseg.errors import MOST_KINDS, InputError, Problem, summary
from autoseg.losses.build import build_loss
from autoseg.losses.surrogate import Surrogate
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.layout import Layout
from autoseg.pipeline.preflight import searches_begun_anew
from autoseg.plugins import import_module
from autoseg.search.folder import Folder
from autoseg.search.records import Proposals
from autoseg.search.settings import Search, load_search
from autoseg.search.steps import ask, candidates
from autoseg.training.settings import Training
from benchmarks import polls, slurm
from tests.pipeline_runs import changed, content
from tests.refusals import refused
from tests.small_results import make_results, scores

FIGURE = json.dumps({"kind": "curves", "searches": ["mIoU"]})


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["figure", "--figure", FIGURE, "--out", "x"], "--results"),
        (["figure", "--figure", "{", "--out", "x"], "--figure: not readable as JSON"),
        (["report"], "--config"),
        (["table"], "--published"),
        (["plan", "--trials-per-job", "0"], "--trials-per-job, --runs: 0 and 0"),
        (
            ["train", "--loss", "ce", "--data", "x", "--out", "y", "--processes", "0"],
            "--processes: found 0; expected 1 or more",
        ),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_command_that_lacks_something_says_what(command, said, capsys):
    assert main(command) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "where", "what"),
    [
        ({"lr": 1e-5, "min_lr": 1e-3}, "min_lr", "0.001 is greater than lr, 1e-05"),
        ({"scale": (2.0, 0.5)}, "scale", "[2.0, 0.5]"),
    ],
)
def test_settings_of_a_training_that_contradict_each_other(changes, where, what):
    with refused(where=where, what=what):
        Training.of_protocol("paper-proxy", **changes)


def tiny(*where_and_value):
    return changed(content("tiny"), *where_and_value)


@pytest.mark.parametrize(
    ("config", "where"),
    [
        (tiny("datasets", "scenes", {"kind": "voc"}), "the config: datasets.scenes: options: root"),
        (tiny("tables", "main", "about", ["Network"]), "the config: tables.main: rows: about"),
        (tiny("tables", "main", "rows", ["naive:mIoU", "naive-mIoU"]), "the config: tables.main: loss 'naive-mIoU'"),
        (tiny("tables", "main", "rows", ["2 * ce", "2*ce"]), "the config"),
        (tiny("searches", "mIoU", "for", {"seed": 1}), "searches.mIoU.for"),
        (tiny("figures", "proxies", "table", "main"), "the config: figures.proxies: table"),
        (tiny("figures", "surrogate", "loss", "ce"), "the config: figures.surrogate.surrogate.loss"),
    ],
)
def test_a_config_that_cannot_be_meant(config, where):
    with pytest.raises(InputError) as error:
        load_pipeline(config, "the config")
    assert error.value.where == where


def test_damaged_proposals_are_said_with_their_cure(tmp_path):
    pipeline = load_pipeline(content("tiny"), "tiny.yaml")
    path = tmp_path / "searches/mIoU/step-001/proposals.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    (said,) = searches_begun_anew(pipeline, Layout(str(tmp_path)))
    assert str(path) in said
    assert Proposals.CURE in said
    path.unlink()
    Folder(tmp_path / "searches/mIoU").write(ask(pipeline.search("mIoU"), []))
    assert searches_begun_anew(pipeline, Layout(str(tmp_path))) == []


def test_a_folder_without_a_search_says_what_to_give(tmp_path):
    with pytest.raises(InputError) as error:
        Folder(tmp_path).search()
    assert (error.value.where, "--settings" in error.value.cure) == (str(tmp_path), True)


def test_proposals_that_contradict_themselves_are_refused():
    trials = [{"number": 0, "theta": [0.1]}, {"number": 0, "theta": [0.2]}]
    with pytest.raises(ValueError, match="two trials have the same number"):
        Proposals(search=Search(metric="mIoU"), step=1, trials=trials)
    trials[1] = {"number": 1, "theta": [0.2, 0.3]}
    with pytest.raises(ValueError, match="thetas of different lengths"):
        Proposals(search=Search(metric="mIoU"), step=1, trials=trials)


def test_nothing_is_selected_from_nothing(tmp_path):
    (tmp_path / "search.yaml").write_text("metric: mIoU\n")
    with pytest.raises(InputError) as error:
        candidates(load_search(tmp_path / "search.yaml"), [])
    assert error.value.where == "search 'search'"


@pytest.mark.parametrize("text", ["[]", "{}"])
def test_a_file_that_is_no_surrogate(text, tmp_path):
    (tmp_path / "surrogate.json").write_text(text)
    with pytest.raises(InputError) as error:
        Surrogate.load(tmp_path / "surrogate.json")
    assert error.value.where == str(tmp_path / "surrogate.json")
    assert "autoseg/surrogate/" in error.value.expected


def test_a_searched_loss_that_is_not_given():
    with refused(what="did you mean 'mIoU'?"):
        build_loss("searched:mIuO", searched={"mIoU": "surrogate.json"})


def test_a_plugin_that_is_no_python(tmp_path, monkeypatch):
    (tmp_path / "no_python_here.py").write_text("def (")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with refused(where="the plugin", what="not readable as Python"):
        import_module("no_python_here", "the plugin")


def test_problems_of_a_kind_are_one_line_with_their_number_three_examples_and_the_cure():
    torn = [Problem(f"/data/masks/{k}.png", f"is torn after {k} bytes", "copy it again") for k in range(701)]
    sizes = [Problem(f"/data/{k}.png", f"the mask is {k}x3, its image {k}.jpg is 3x{k}", "look") for k in (4, 5, 60)]
    lines = summary([*torn, *sizes, Problem("classes.txt", "the list is empty")]).splitlines()
    assert len(lines) == 3
    assert lines[0].strip().startswith("701 of: is torn after 0 bytes; copy it again.")
    assert lines[0].endswith("For example, in /data/masks: 0.png, 1.png, 2.png.")
    assert lines[1].strip().startswith("3 of: the mask is 4x3")
    assert lines[2].strip() == "classes.txt: the list is empty."


def test_many_kinds_of_problems_are_cut_and_say_so():
    kinds = "abcdefghijklmnop"
    lines = summary(
        [Problem(f"{k}.png", f"is of the kind {letter}") for k in range(9) for letter in kinds]
    ).splitlines()
    assert len(lines) == MOST_KINDS + 1
    assert lines[-1].endswith("... and 6 more kinds; `autoseg doctor --all` lists all.")


def test_the_most_frequent_kinds_are_shown_and_a_file_that_lists_all_is_named():
    rare = [Problem(f"{k}.png", f"is of the kind {letter}") for k in range(3) for letter in "abcdefghijklmn"]
    lines = summary([*rare, *(Problem(f"z/{k}.png", "is torn") for k in range(9))], "all.txt").splitlines()
    assert lines[0].strip().startswith("9 of: is torn")
    assert lines[-1].endswith("... and 5 more kinds; all.txt lists all.")
    few = summary([Problem(f"{k}.png", "is torn") for k in range(4)], "all.txt").splitlines()
    assert few[-1].strip() == "all.txt lists all."


def test_a_table_lacks_a_run_a_metric_or_is_not_there(tmp_path):
    results = make_results({**content("tiny"), "figures": {}}, tmp_path / "tiny")
    with pytest.raises(InputError) as error:
        results.table("mian")
    assert error.value.expected == "one of main, proxies"
    run = next(iter(results.pipeline.runs.values()))
    path = results.scores(run)
    without = scores(run)
    del without["scores"]["BF1"]
    path.write_text(json.dumps(without))
    problem = results.filled("main")[1].problems[path]
    assert (problem.where, problem.what, problem.cure) == (str(path), "has no BF1", "evaluate the run again")
    path.unlink()
    with pytest.raises(InputError) as error:
        results.filled("main", strict=True)
    assert (error.value.where, error.value.what) == ("table 'main'", "1 run without scores yet")


def test_the_benchmark_on_a_cluster_has_a_config_that_is_one():
    assert list(load_pipeline(slurm.config(1), "bench").searches) == ["mIoU"]
    assert len(load_pipeline(polls.large(), "bench").searches) == polls.SEARCHES
