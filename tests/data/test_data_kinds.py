"""A kind of data set is one class: the command line, a config and the hold-out follow from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from data_trees import camvid_tree

from autoseg.cli import main
from autoseg.data import folder
from autoseg.data.kinds import KINDS, OnDisk, OwnFolder, Synthetic
from autoseg.data.prepared import Prepared
from autoseg.data.split import hold_out_size
from autoseg.errors import InputError
from autoseg.files import parse
from autoseg.pipeline.sections import Dataset


class CamVid(OnDisk):
    """CamVid, whose class list lies beside the images."""

    HOLD_OUT = 2

    list_name: str = "classes.txt"

    def find(self, made=None, threads=1):
        return folder.find(self.root, Path(self.root) / self.list_name)


def test_a_new_kind_is_known_to_prepare_doctor_and_config_by_its_class_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(KINDS, "camvid", CamVid)
    root = camvid_tree(tmp_path / "set")
    (root / "classes.txt").rename(root / "names.txt")
    own = ["--root", str(root), "--list-name", "names.txt", "--threads", "1"]
    assert main(["doctor", "camvid", *own]) == 0
    assert main(["prepare", "camvid", *own, "--proxy-size", "16", "--out", str(tmp_path / "out")]) == 0
    assert len(Prepared.open(tmp_path / "out").ids("train")) == 4
    dataset = parse(Dataset, {"kind": "camvid", "options": {"root": str(root), "list_name": "names.txt"}})
    dataset.check_hold_out()
    assert hold_out_size(None, "camvid", 4) == 2
    with pytest.raises(SystemExit):
        main(["prepare", "camvid", "--help"])
    assert "CamVid, whose class list lies beside the images" in capsys.readouterr().out


def test_cityscapes_alone_has_no_background():
    assert [name for name, kind in KINDS.items() if not kind.HAS_BACKGROUND] == ["cityscapes"]


@pytest.mark.parametrize(
    ("dataset", "where", "what"),
    [
        ({"kind": "vco"}, "", "unknown kind 'vco'; did you mean 'voc'?"),
        ({"kind": "voc"}, "options: root", "Field required"),
        ({"kind": "folder", "options": {"root": "."}}, "options: classes", "Field required"),
        ({"kind": "voc", "options": {"root": ".", "sdb": "x"}}, "options", "unknown key 'sdb'; did you mean 'sbd'?"),
        ({"kind": "synthetic", "options": {"trian": 9}}, "options", "unknown key 'trian'; did you mean 'train'?"),
        ({"kind": "synthetic", "options": {"train": "12"}}, "options: train", "valid integer (found '12')"),
        ({"kind": "synthetic", "options": {"size": 8}}, "options: size", "greater than or equal to 32 (found 8)"),
        ({"kind": "cityscapes", "options": {"root": ".", "labels": "x"}}, "options: labels", "(found 'x')"),
        ({"kind": "synthetic", "hold_out": "many"}, "hold_out", "'many' is no number"),
        ({"kind": "synthetic", "hold_out": 1.5}, "hold_out", "1.5 is neither a number of images nor a share"),
        ({"kind": "synthetic", "hold_out": 200}, "hold_out", "200 images, but the training set has 200"),
    ],
)
def test_the_options_of_a_config_are_checked_by_the_kind(dataset, where, what):
    with pytest.raises(InputError) as error:
        parse(Dataset, dataset)
    assert error.value.where == where
    assert what in error.value.what


def test_a_hold_out_in_percent_is_a_share_in_a_config_too():
    assert parse(Dataset, {"kind": "synthetic", "hold_out": "25%"}).hold_out == 0.25


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["prepare", "synthetic", "--size", "3", "--out", "out"], "--size: "),
        (["prepare", "cityscapes", "--root", ".", "--labels", "x", "--out", "out"], "--labels: "),
        (["doctor", "folder", "--root", ".", "--classes", "x", "--split", "train"], "--split: 'train' is no pair"),
    ],
)
def test_an_option_is_named_as_it_was_given(arguments, where, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"autoseg {arguments[0]}: {where}")


def test_the_options_of_a_class_are_those_of_its_reader():
    assert Synthetic.own_options() == ["train", "val", "size", "seed"]
    assert OwnFolder.own_options() == ["root", "classes", "split", "mask_suffix", "binary"]


def test_reading_the_kinds_loads_no_reader_and_the_help_loads_no_model():
    for code, forbidden in (
        ("import autoseg.data.kinds, autoseg.data.split", ("numpy", "cv2", "PIL", "torch", "autoseg.data.voc")),
        ("from autoseg.cli import build_parser; build_parser([])", ("pydantic", "cv2", "torch")),
    ):
        test = f"{code}; import sys; print([name for name in {forbidden} if name in sys.modules])"
        shown = subprocess.run([sys.executable, "-c", test], capture_output=True, text=True, check=True)
        assert shown.stdout == "[]\n"
