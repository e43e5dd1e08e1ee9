"""The zoo: entries are found by name, added, checked, and say what was measured."""

from __future__ import annotations

import json

import pytest
import torch

from autoseg import SurrogateLoss, build_loss
from autoseg.cli import main
from autoseg.losses import zoo
from autoseg.losses.build import loss_content
from autoseg.losses.names import check_loss
from autoseg.losses.published import PUBLISHED
from autoseg.losses.surrogate import Surrogate
from autoseg.report.zoo import describe
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _own(tmp_path, monkeypatch):
    monkeypatch.setenv(zoo.VARIABLE, str(tmp_path / "zoo"))


MEASURED = {"data": "d", "network": "n", "metric": "NSD", "command": "c"}


def an_entry(**changes):
    surrogate = Surrogate.make("NSD", [0.3] * 12, conventions={"tolerance": 2}, source="best of two")
    evidence = {
        "data": "ours",
        "network": "small",
        "metric": "NSD",
        "command": "make it",
        "scores": {"this": {"1": 50.0, "2": 52.0, "3": 51.0}, "ce": {"1": 52.0, "2": 54.5, "3": 53.0}},
    }
    where = {"data": "theirs", "network": "tiny", "trials": 8, "config": {"metric": "NSD"}, "command": "make it"}
    content = {"name": "mine", "surrogate": surrogate.content(), "searched": where, "evidence": [evidence]}
    return zoo.Entry.read({"schema": zoo.Entry.SCHEMA, **content, **changes}, "here")


def test_an_entry_is_added_found_in_any_case_and_used_everywhere(tmp_path, capsys):
    an_entry().save(tmp_path / "mine.json")
    main(["loss", "add", str(tmp_path / "mine.json")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "zoo" / "mine.json")
    loss = SurrogateLoss.load("zoo:MINE")
    assert loss.surrogate.theta == [0.3] * 12
    assert loss.conventions.tolerance == 2
    logits, target = torch.randn(1, 3, 8, 8), torch.randint(0, 3, (1, 8, 8))
    twice = build_loss("2 * zoo:mine")(logits, target)
    assert twice.item() == pytest.approx(2 * loss(logits, target).item())
    main(["loss", "show", "zoo:mine"])
    assert "NSD: bezier curves" in capsys.readouterr().out
    with refused(what="'mine' is there already"):
        zoo.add(tmp_path / "mine.json")
    before = loss_content("zoo:mine")
    an_entry(surrogate=Surrogate.make("NSD").content()).save(tmp_path / "other.json")
    zoo.add(tmp_path / "other.json", replace=True)
    assert loss_content("zoo:mine") != before  # a fingerprint follows the content, not the name


def test_the_conventions_of_an_entry_can_be_other_than_those_it_was_searched_with(tmp_path):
    an_entry().save(tmp_path / "mine.json")
    zoo.add(tmp_path / "mine.json")
    millimetres = {"surface_tolerance": 1.5, "spacing": (3.0, 0.8)}
    for loss in (SurrogateLoss.load("zoo:mine", **millimetres), build_loss("zoo:mine", **millimetres)):
        assert (loss.conventions.distance, loss.conventions.spacing) == (1.5, (3.0, 0.8))
        assert loss.conventions.tolerance == 2
    with refused(what="surface_tolerence"):
        SurrogateLoss.load("zoo:mine", surface_tolerence=1.5)


def test_a_bare_surrogate_is_added_and_says_that_nothing_was_measured(tmp_path):
    Surrogate.make("clDice").save(tmp_path / "surrogate.json")
    zoo.add(tmp_path / "surrogate.json")
    assert zoo.from_zoo("cldice").metric == "clDice"
    text = describe()
    assert "zoo:clDice  for clDice" in text
    assert "nothing was measured" in text


def test_the_list_says_what_was_scored_also_where_it_is_worse(tmp_path, capsys):
    an_entry().save(tmp_path / "mine.json")
    zoo.add(tmp_path / "mine.json")
    main(["loss", "list"])
    text = capsys.readouterr().out
    assert "this loss: 51.00, mean of 3 seeds" in text
    assert "ce: 53.17; this is −2.17 [−2.88, −1.45], 0 of 3: worse" in text
    assert "searched: theirs; tiny; 8 trials; again: make it" in text
    assert "published:mIoU-paper  for mIoU" in text
    assert (
        "the paper's numbers, one run each, not measured here: searched 80.97, cross entropy 78.69, Dice 77.78" in text
    )


def test_published_surrogates_answer_to_their_names_and_unknown_ones_are_answered():
    assert zoo.from_zoo("biou") == Surrogate.make(
        "BIoU", control_points=zoo.from_zoo("BIoU").control_points, source=zoo.from_zoo("BIoU").source
    )
    check_loss("zoo:mIoU + ce")
    with refused(what="unknown loss of the zoo 'mIoUU'"):
        check_loss("zoo:mIoUU")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"name": "../up"}, "name"),
        ({"evidence": [{"data": "d", "network": "n", "metric": "NSD", "command": "c", "scores": {"ce": {}}}]}, "this"),
        ({"evidence": [{**MEASURED, "scores": {"this": {"1": 1.0}, "ce": {}}}]}, "each with scores by seed"),
        ({"evidence": [{**MEASURED, "scores": {"this": {"1" * 5000: 1.0}}}]}, "each with scores by seed"),
        ({"surrogate": {"schema": "autoseg/surrogate/1"}}, "metric"),
        ({"trials": 3}, "trials"),
    ],
)
def test_a_bad_entry_is_refused(changes, what, tmp_path):
    content = {**an_entry().content(), **changes}
    (tmp_path / "bad.json").write_text(json.dumps(content))
    with pytest.raises(zoo.InputError, match=what):
        zoo.add(tmp_path / "bad.json")
    with refused(what="key 'schema' is None"):
        (tmp_path / "none.json").write_text("[]")
        zoo.add(tmp_path / "none.json")


def test_a_bad_file_in_the_zoo_keeps_nobody_from_the_other_entries(tmp_path, caplog, capsys):
    an_entry().save(tmp_path / "mine.json")
    zoo.add(tmp_path / "mine.json")
    of_a_plugin = {**an_entry().content(), "surrogate": {**Surrogate.make("NSD").content(), "metric": "of a plugin"}}
    (tmp_path / "zoo" / "Other.json").write_text(json.dumps(of_a_plugin))
    (tmp_path / "zoo" / "torn.json").write_text('{"schema"')
    assert zoo.from_zoo("mine").metric == "NSD"
    assert "Other.json: unknown metric 'of a plugin'" in caplog.text
    assert main(["loss", "list", "zoo:mine", "mDice"]) == 0
    assert "torn.json: not readable as JSON" in capsys.readouterr().err
    with refused(what="unknown metric 'of a plugin'", where="Other.json"):
        zoo.from_zoo("other")
    with refused(what="not readable", where="torn.json"):
        SurrogateLoss.load("zoo:torn")


def test_texts_of_strangers_do_not_steer_the_terminal(tmp_path, capsys):
    surrogate = Surrogate.make("NSD", source="\x1b[2Jgone")
    evidence = [{**MEASURED, "data": "\x1b[31mred", "scores": {"this": {"1": 1.0}, "ce": {"2": 0.5}}}]
    an_entry(surrogate=surrogate.content(), evidence=evidence).save(tmp_path / "mine.json")
    zoo.add(tmp_path / "mine.json")
    for verb in ("list", "show"):
        assert main(["loss", verb, "zoo:mine"]) == 0
        told = capsys.readouterr().out
        assert "\x1b" not in told
        assert "\\x1b[2Jgone" in told


def test_names_that_differ_in_case_are_one_name(tmp_path):
    an_entry(name="NSD-liver").save(tmp_path / "one.json")
    an_entry(name="nsd-LIVER", evidence=[]).save(tmp_path / "two.json")
    zoo.add(tmp_path / "one.json")
    with refused(what="'NSD-liver' is there already", where=str(tmp_path / "zoo" / "NSD-liver.json")):
        zoo.add(tmp_path / "two.json")
    zoo.add(tmp_path / "two.json", replace=True)
    assert [path.name for path in (tmp_path / "zoo").iterdir()] == ["nsd-LIVER.json"]
    assert zoo.from_zoo("NSD-LIVER").metric == "NSD"


def test_an_own_entry_comes_before_one_of_the_package_in_any_case(tmp_path):
    an_entry(name="MDICE").save(tmp_path / "mine.json")
    zoo.add(tmp_path / "mine.json")
    assert zoo.from_zoo("mDice").metric == "NSD"
    an_entry(name="miou").save(tmp_path / "mine.json")
    zoo.add(tmp_path / "mine.json")
    with pytest.raises(zoo.InputError) as answer:
        zoo.from_zoo("x")
    assert str(answer.value).lower().split("one of")[1].count("miou") == 2  # and mIoU-paper


def test_a_bad_name_or_folder_is_answered_in_words(tmp_path, monkeypatch, capsys):
    an_entry().save(tmp_path / "mine.json")
    with refused(what="found 'a/b'", expected="letters, digits"):
        zoo.add(tmp_path / "mine.json", "a/b")
    Surrogate.make("NSD").save(tmp_path / "bare.json")
    assert main(["loss", "add", str(tmp_path / "bare.json"), "--name", "a b"]) == 2
    assert "found 'a b'; expected letters, digits" in capsys.readouterr().err
    monkeypatch.setenv(zoo.VARIABLE, str(tmp_path / "mine.json"))
    assert main(["loss", "add", str(tmp_path / "mine.json")]) == 2
    assert "choose another folder with AUTOSEG_ZOO" in capsys.readouterr().err


def test_a_tilde_in_the_name_of_the_folder_is_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(zoo.VARIABLE, "~/curves")  # as it stands in quotes, or in a file of settings
    assert zoo.own_folder() == tmp_path / "curves"
    monkeypatch.delenv(zoo.VARIABLE)
    assert zoo.own_folder() == tmp_path / ".local" / "share" / "autoseg" / "zoo"


def test_the_list_of_a_metric_without_a_surrogate_says_so(capsys, monkeypatch):
    monkeypatch.setattr(zoo, "entries", dict)
    assert main(["loss", "list", "clDICE", "kappa"]) == 0
    told = capsys.readouterr().out
    assert all(f"No surrogate for {metric} has a name yet. `naive:{metric}`" in told for metric in ("clDice", "kappa"))
    assert main(["loss", "list", "clDicee"]) == 2
    assert "did you mean 'clDice'?" in capsys.readouterr().err


def test_the_list_says_what_makes_an_entry_again_and_that_it_does_not_beat_cross_entropy(tmp_path):
    an_entry().save(tmp_path / "mine.json")
    zoo.add(tmp_path / "mine.json")
    part = describe().split("zoo:mine  for NSD")[1].split("\n\n")[0]
    assert 'config: {"metric": "NSD"}' in part
    assert "answer: best of two" in part
    assert "note: it was not shown to beat cross entropy on NSD on ours" in part
    assert "note" not in describe().split("zoo:mDice  for")[1].split("\n\n")[0]


def test_what_comes_with_the_package_is_readable_and_was_measured_with_three_seeds():
    searched, published = (sorted(folder.glob("*.json")) for folder in (zoo.SHIPPED, zoo.MEASURED))
    for path in (*searched, *published):
        entry = zoo.Entry.load(path)
        assert entry.name == path.stem
        assert bool(entry.searched) == (path in searched)
        assert entry.evidence
        assert all(len(seeds) >= 3 for one in entry.evidence for seeds in one.scores.values())
        assert all({"this", "ce", "dice"} <= set(one.scores) for one in entry.evidence)


def test_a_published_surrogate_also_says_what_it_scored_here():
    text = describe()
    for name in PUBLISHED:
        part = text.split(f"published:{name}  for")[1].split("\n\n")[0]
        assert "the paper's numbers" in part
        for one in zoo.measured(name):
            assert f"on {one.data}, which it was not searched on" in part
    assert any(zoo.measured(name) for name in PUBLISHED)
    assert {entry.name for entry in zoo.entries().values()} & set(PUBLISHED) == set()
