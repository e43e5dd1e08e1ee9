"""docs/fidelity.md: the presets against what the paper and the release say, and how the code was read for it."""

from __future__ import annotations

import copy
import json

import pytest

from autoseg.cli import main
from autoseg.metrics.formula import METRICS
from autoseg.report.published import published_table
from autoseg.training.settings import Training
from docs.fidelity import PRESETS, ROWS, values
from docs.presets import Preset
from tests.data.data_trees import cityscapes_tree, voc_tree
from tests.pipeline_runs import ROOT, changed, content

HERE = [dict(found) for found in values()]
NAMED = [pytest.param(row, here, id=f"{row.part}: {row.setting}") for row, here in zip(ROWS, HERE, strict=True)]


@pytest.mark.parametrize(("row", "here"), NAMED)
def test_a_preset_does_what_its_source_says_and_else_what_the_release_does_or_the_row_says_why(row, here):
    """`release` is the release; `paper` differs from it only where the paper's text does."""
    wanted = {"release": row.release, "paper": row.paper or row.release}
    differs = [name for name in PRESETS if wanted[name] is not None and here[name] != wanted[name].value]
    unsaid = here["paper"] != here["release"] and (row.paper is None or row.release is None)
    assert bool(row.why) == bool(differs or unsaid or (row.paper is None and row.release is None)), (here, differs)


def test_the_release_is_followed_but_for_these():
    """A new difference belongs into this list, and its reason into the table."""
    differs = {
        (row.part.split(",")[0], row.setting)
        for row, here in zip(ROWS, HERE, strict=True)
        if row.release and here["release"] != row.release.value
    }
    assert differs == {
        ("proxy", "images are shrunk"),
        ("proxy", "labels are taken"),
        ("proxy", "images that score trials"),
        ("proxy", "seeds of a search and its repeats"),
        ("proxy", "encoder's initial weights"),
        ("proxy", "precision"),
        ("retraining", "encoder's initial weights"),
        ("retraining", "precision"),
        ("retraining", "seed"),
    }


def retrained(**training) -> list[str]:
    """The rows of VOC's retraining and evaluation, with changes to its settings."""
    config = changed(content("paper"), "retrainings", "r101", "training", training)
    seed = training.pop("seed", 0)
    for table in config["tables"].values():
        table["seeds"] = [seed]
    preset = Preset("release", config)
    return [row.here(preset) for row in ROWS if row.part in ("retraining, VOC", "evaluation")]


OTHERS = {
    "iterations": 7,
    "batch_size": 64,
    "crop": [64, 64],
    "short_side": 100,
    "scale": [1, 2],
    "max_share": 0.5,
    "flip": 0.1,
    "photometric": False,
    "augmentation": "my_pipelines:make",
    "test_scale": "original",
    "optimiser": "adamw",
    "lr": 0.5,
    "schedule": "cosine",
    "warmup": 10,
    "min_lr": 0.01,
    "power": 0.5,
    "momentum": 0.1,
    "weight_decay": 0.1,
    "decay_norms": False,
    "head_lr": 2.0,
    "freeze_encoder": True,
    "freeze_batch_norm": True,
    "ema": 0.99,
    "aux_weight": 0.1,
    "loss_batch": 4,
    "clip_gradient": 1.0,
    "precision": "bfloat16",
    "tf32": False,
}
MACHINE = {"threads", "accumulate", "device", "loaders", "channels_last", "compile", "checkpoint_every", "seed"}


def test_the_table_tells_of_every_setting_of_a_training():
    """Read from the code: whatever is changed in the config changes a value of the table."""
    assert set(OTHERS) | MACHINE | {"betas"} == set(Training.model_fields)
    before = retrained()
    assert before == [
        here["release"] for row, here in zip(ROWS, HERE, strict=True) if row.part in ("retraining, VOC", "evaluation")
    ]
    for key, value in OTHERS.items():
        assert retrained(**{key: copy.copy(value)}) != before, key
    assert retrained(optimiser="adamw", betas=[0.5, 0.9]) != retrained(optimiser="adamw")  # SGD has none


def test_other_networks_conventions_and_losses_change_the_table():
    def table(*where_and_value) -> list[str]:
        preset = Preset("release", changed(content("paper"), *where_and_value))
        return [row.here(preset) for row in ROWS]

    before = table("name", "paper")
    config = content("paper")
    plain = [{**row, "loss": "ce"} if row["loss"] == "ce-release" else row for row in config["tables"]["main"]["rows"]]
    for change in (
        ("retrainings", "r101", "network", "deeplabv3plus-r101"),  # the stem
        ("retrainings", "r101", "processes", 2),
        ("proxies", "r50-128-1000", "network", "deeplabv3plus-r50"),
        ("proxies", "r50-128-1000", "weights", None),
        ("datasets", "voc", "conventions", {"drop_background": False}),
        ("datasets", "voc", "loss_conventions", {"drop_background": True}),
        ("datasets", "voc", "loss_conventions", {"tolerance": 3}),
        ("datasets", "voc", "loss_conventions", {"absent": "skip"}),
        ("datasets", "voc", "hold_out", 100),
        ("tables", "main", "rows", plain),
    ):
        assert table(*change) != before, change


def test_the_numbers_of_parameters_are_those_of_the_authors_networks():
    theirs = json.loads((ROOT / "tests/golden/networks.json").read_text())
    facts = [row.release.value for row in ROWS if row.setting == "parameters"]
    assert facts == [f"{theirs[f'deeplabv3plus-{encoder}#parameters']:,}" for encoder in ("r50c", "r101c")]


LOGS = {  # the release's, in the order of METRICS; mIoU's is that of its first commit
    "Searched mIoU": "80.97 92.09 73.44 68.86 88.23 95.68",
    "Searched FWIoU": "80.00 91.93 75.14 65.67 89.36 95.44",
    "Searched BIoU": "48.97 69.89 79.27 38.99 62.64 81.28",
    "Searched BF1": "1.93 0.96 7.39 74.83 6.51 2.66",
    "Searched mAcc": "73.00 87.70 74.11 40.24 92.95 92.58",
    "Searched gAcc": "79.00 91.45 73.61 62.95 88.80 95.22",
}


def test_where_the_papers_rows_differ_from_the_releases_logs_a_note_says_so():
    table = published_table("main")
    differing = {}
    for label, log in LOGS.items():
        logged = dict(zip(METRICS, map(float, log.split()), strict=True))
        printed = {metric: float(table.cell(label, "PASCAL VOC", metric).text) for metric in METRICS}
        differing[label] = {metric: logged[metric] for metric in METRICS if logged[metric] != printed[metric]}
    assert {label: len(found) for label, found in differing.items() if found} == {
        "Searched FWIoU": 1,
        "Searched BIoU": 2,
        "Searched mAcc": 6,
        "Searched gAcc": 6,
    }
    notes = {note.row: note.logged for note in table.notes if note.logged and note.row != "Searched mIoU"}
    assert notes == {label: found for label, found in differing.items() if found}


@pytest.mark.parametrize(
    ("kind", "tree", "scale"), [("voc", voc_tree, (2048, 512)), ("cityscapes", cityscapes_tree, (4096, 1024))]
)
def test_a_checkpoint_is_scored_at_the_releases_scale_for_its_data(tmp_path, monkeypatch, kind, tree, scale):
    root, out, seen = tree(tmp_path / "sets"), tmp_path / "out", []
    assert main(["prepare", kind, "--root", str(root), "--out", str(out), "--threads", "1"]) == 0
    monkeypatch.setattr("autoseg.training.run.evaluate_checkpoint", lambda task, *_, **__: seen.append(task))
    assert main(["evaluate", "--checkpoint", "theirs.pth", "--data", str(out)]) == 0
    assert main(["evaluate", "--checkpoint", "theirs.pth", "--data", str(out), "--protocol", "paper"]) == 0
    assert [task.training.scored_at for task in seen] == [scale, (2052, 513)]
