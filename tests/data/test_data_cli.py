"""`prepare`, `split` and `doctor` as a user calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from data_trees import camvid_tree, cityscapes_tree, pets_tree, voc_tree

from autoseg.cli import main

ROOT = Path(__file__).parents[2]


def test_from_nothing_to_a_split_on_made_up_data(tmp_path, capsys):
    out = str(tmp_path / "demo")
    options = ["--train", "10", "--val", "2", "--size", "48", "--proxy-size", "24", "--threads", "1"]
    assert main(["prepare", "synthetic", "--out", out, *options]) == 0
    assert "MB of disk" in capsys.readouterr().err
    assert main(["split", out, "--hold-out", "30%", "--seed", "1"]) == 0
    split = json.loads((tmp_path / "demo/split.json").read_text())
    assert [len(split[part]) for part in ("train", "hold_out", "val")] == [7, 3, 2]
    assert main(["doctor", "prepared", out]) == 0
    assert "no problem found" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "demo").iterdir() if not path.name.startswith(".")) == [
        "cache-48.bin",
        "cache-48.json",
        "index.json",
        "source",
        "source.json",
        "split.json",
    ]


@pytest.mark.parametrize("kind", ["voc", "cityscapes", "pets", "folder"])
def test_each_kind_is_examined_prepared_and_split(tmp_path, capsys, kind):
    make = {"voc": voc_tree, "cityscapes": cityscapes_tree, "pets": pets_tree, "folder": camvid_tree}
    root = make[kind](tmp_path / "sets")
    where = ["--root", str(root), "--threads", "2"]
    if kind == "folder":
        where += ["--classes", str(root / "classes.txt")]
    assert main(["doctor", kind, *where]) == 0
    assert main(["prepare", kind, *where, "--out", str(tmp_path / "out")]) == 0
    assert main(["split", str(tmp_path / "out"), "--hold-out", "1", "--out", str(tmp_path / "a/split.json")]) == 0
    assert (tmp_path / "a/split.json").exists()
    capsys.readouterr()
    assert main(["split", str(tmp_path / "out"), "--hold-out", "1500"]) == 2
    assert "hold_out: 1500 images, but the training set has" in capsys.readouterr().err


def test_ctrl_c_ends_in_a_sentence(tmp_path, monkeypatch, capsys):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("autoseg.data.prepare.prepare", stop)
    options = ["--train", "1", "--val", "1", "--size", "32", "--threads", "1"]
    assert main(["prepare", "synthetic", "--out", str(tmp_path / "out"), *options]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "autoseg prepare: stopped; the same command goes on."


def test_a_split_that_replaces_another_says_so_and_no_other_file_is_replaced(tmp_path, capsys):
    root, out = camvid_tree(tmp_path / "set"), str(tmp_path / "out")
    main(["prepare", "folder", "--root", str(root), "--classes", str(root / "classes.txt"), "--out", out])
    assert main(["split", out, "--hold-out", "1"]) == 0
    assert main(["split", out, "--hold-out", "1"]) == 0
    assert "replaces another" not in capsys.readouterr().err
    assert main(["split", out, "--hold-out", "2", "--seed", "7"]) == 0
    assert "split.json: replaces another split (seed 0, 1 held out of 4)." in capsys.readouterr().err
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["split", out, "--hold-out", "1", "--out", str(tmp_path / "thesis.txt")]) == 2
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_doctor_prints_every_problem_with_its_cure_and_returns_2(tmp_path, capsys):
    root = camvid_tree(tmp_path)
    (root / "train/0001TP_train_00000.png").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    (root / "valannot/0001TP_val_00000.png").unlink()
    assert main(["doctor", "folder", "--root", str(root), "--classes", str(root / "classes.txt")]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith("2 problems:\n")
    assert f"{root}/train/0001TP_train_00000.png: this is a Git LFS pointer" in shown
    assert "run `git lfs pull`" in shown
    assert f"{root}/val/0001TP_val_00000.png: the image has no mask" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["prepare", "voc", "--root", "nowhere", "--out", "out"],
        ["prepare", "folder", "--root", ".", "--classes", "none.txt", "--out", "out"],
        ["prepare", "folder", "--root", ".", "--classes", "none.txt", "--split", "train", "--out", "out"],
        [
            "prepare",
            "folder",
            "--root",
            ".",
            "--classes",
            "none.txt",
            "--split",
            "a=b",
            "--split",
            "a=c",
            "--out",
            "out",
        ],
        ["prepare", "cityscapes", "--root", ".", "--labels", "labels", "--out", "out"],
        ["prepare", "synthetic", "--size", "3", "--out", "out"],
        ["prepare", "synthetic", "--proxy-size", "0", "--out", "out"],
        ["prepare", "synthetic", "--train", "1", "--val", "1", "--size", "32", "--out", "file/sub"],
        ["split", "nowhere"],
        ["doctor", "prepared", "nowhere"],
        ["doctor", "voc", "--root", "nowhere"],
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith(f"autoseg {arguments[0]}: ")
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("autoseg.data.prepare", {"torch", "albumentations", "optuna"}),
        ("autoseg.data.split", {"torch", "albumentations"}),
        ("autoseg.data.synthetic", {"torch", "albumentations"}),
        ("autoseg.data.loaders", {"torchvision", "optuna"}),
    ],
)
def test_a_module_imports_only_what_it_needs(module, forbidden):
    code = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not forbidden & set(json.loads(shown.stdout))
