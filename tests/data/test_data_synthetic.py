"""The made-up set: the same bytes for the same settings, and the classes it promises."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from data_trees import digests

from autoseg.data import synthetic
from autoseg.data.check import check
from autoseg.data.prepare import prepare
from autoseg.data.synthetic import scene
from autoseg.errors import InputError
from tests.refusals import refused


def test_equal_settings_give_equal_bytes_and_others_do_not(tmp_path):
    for name, threads, seed in (("a", 1, 0), ("b", 3, 0), ("c", 1, 1)):
        source = synthetic.find(tmp_path / name / "source", train=6, val=2, size=48, seed=seed, threads=threads)
        prepare(source, tmp_path / name, short_side=48)
    files = {
        name: {path.name: path.read_bytes() for path in (tmp_path / name / "source").rglob("*.png")} for name in "abc"
    }
    assert len(files["a"]) == 8
    assert files["a"] == files["b"]
    assert files["a"] != files["c"]
    assert digests(tmp_path / "a") == digests(tmp_path / "b") != digests(tmp_path / "c")


def test_more_images_leave_the_first_ones_as_they_are():
    few = [scene(48, 0, "train", number) for number in range(3)]
    again = [scene(48, 0, "train", number) for number in (2, 1, 0)]
    for (image, mask), (other_image, other_mask) in zip(few, reversed(again), strict=True):
        np.testing.assert_array_equal(image, other_image)
        np.testing.assert_array_equal(mask, other_mask)


@pytest.mark.parametrize("size", [64, 96, 160])
def test_it_has_a_frequent_a_rare_a_thin_and_a_small_class_and_void(size):
    masks = [scene(size, 0, "train", number)[1] for number in range(80)]
    counts = np.bincount(np.concatenate([mask.ravel() for mask in masks]), minlength=256)
    share = counts / counts.sum()
    ground, meadow, roof, crate, wire, pebble = share[:6]
    assert ground > 0.4
    assert 0.15 < meadow < 0.45  # frequent
    assert 0.02 < roof < 0.15
    assert 0.002 < crate < 0.02  # rare: in few pictures
    assert 0.1 < np.mean([(mask == 3).any() for mask in masks]) < 0.35
    assert 0.003 < wire < 0.04  # thin
    assert 0.001 < pebble < 0.02  # small
    assert 0.02 < share[255] < 0.2
    assert counts[6:255].sum() == 0


def test_a_void_band_lies_between_all_neighbouring_classes():
    for number in range(10):
        mask = scene(96, 0, "val", number)[1].astype(int)
        for one, other in ((mask[1:], mask[:-1]), (mask[:, 1:], mask[:, :-1])):
            assert ((one == other) | (one == 255) | (other == 255)).all()


def test_colour_alone_does_not_tell_the_classes():
    # The best guess of a class from a pixel's colour alone must stay far from perfect.
    pixels, labels = [], []
    for number in range(40):
        image, mask = scene(96, 0, "train", number)
        pixels.append((image // 32).reshape(-1, 3).astype(int) @ [64, 8, 1])
        labels.append(mask.ravel())
    pixels, labels = np.concatenate(pixels), np.concatenate(labels)
    known = labels != 255
    table = np.zeros((512, 6))
    np.add.at(table, (pixels[known], labels[known]), 1)
    guess = table.argmax(1)[pixels[known]]
    recall = [np.mean(guess[labels[known] == number] == number) for number in range(6)]
    assert np.mean(recall) < 0.4


def test_it_passes_its_own_doctor(tmp_path):
    assert check(synthetic.find(tmp_path, train=20, val=2, size=64)) == []


def test_other_settings_replace_the_files_and_lost_ones_are_drawn_again(tmp_path, caplog):
    caplog.set_level(logging.INFO, "autoseg")
    synthetic.find(tmp_path / "s", train=3, val=1, size=48)
    first = {path.name: path.read_bytes() for path in (tmp_path / "s").rglob("*.png")}
    (tmp_path / "s/images/train-00001.png").unlink()
    (tmp_path / "s/masks/train-00002.png").unlink()
    synthetic.find(tmp_path / "s", train=3, val=1, size=48)
    assert {path.name: path.read_bytes() for path in (tmp_path / "s").rglob("*.png")} == first
    caplog.clear()
    synthetic.find(tmp_path / "s", train=2, val=1, size=64)
    assert caplog.messages[0] == f"{tmp_path}/s: holds scenes of other settings, which are replaced."
    assert len(list((tmp_path / "s").rglob("*.png"))) == 6


def test_a_folder_of_someone_else_s_files_is_not_touched(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with refused(cure="choose another folder"):
        synthetic.find(tmp_path, train=2, val=1)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("settings", [{"train": 0}, {"val": 0}, {"size": 8}, {"seed": -1}])
def test_impossible_settings_are_refused_by_name(tmp_path, settings):
    (name,) = settings
    with pytest.raises(InputError) as error:
        synthetic.find(tmp_path, **settings)
    assert error.value.where == name
    assert error.value.expected.startswith("at least")
