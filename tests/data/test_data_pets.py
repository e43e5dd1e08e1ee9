"""Oxford-IIIT Pet: an animal's class comes from the lists, its border is void, the official lists are the splits."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from data_trees import PETS_TRAINVAL, blocks, pets_tree, save_list, save_png

from autoseg.cli import main
from autoseg.data import pets
from autoseg.data.check import check
from autoseg.data.prepare import prepare
from autoseg.data.prepared import Prepared
from autoseg.errors import errors, warnings

REAL = Path(os.environ.get("AUTOSEG_PETS") or Path(__file__).parents[3] / "shared/data/pets")  # beside the clone in CI


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        ("species", {"Abyssinian_1": 1, "Bengal_3": 1, "beagle_7": 2, "pug_10": 2, "yorkshire_terrier_2": 2}),
        ("breed", {"Abyssinian_1": 1, "Bengal_3": 6, "beagle_7": 5, "pug_10": 26, "yorkshire_terrier_2": 37}),
    ],
)
def test_an_animal_is_of_its_species_or_breed_and_its_border_is_void(tmp_path, task, labels):
    data = prepare(pets.find(pets_tree(tmp_path / "set"), task), tmp_path / "out", 32)
    assert data.ids("train") == ["Abyssinian_1", "Bengal_3", "beagle_7", "pug_10"]
    assert data.ids("val") == ["Abyssinian_9", "yorkshire_terrier_2"]
    assert data.num_classes == {"species": 3, "breed": 38}[task]
    for name, label in labels.items():
        np.testing.assert_array_equal(data.read(name)[1], blocks((0, 255, label, 255, 0), void=False))
        assert set(np.unique(data.cache(32).read(name)[1])) == {0, label, 255}
        if task == "breed":
            assert name.startswith(data.class_names[label])
    assert (
        data.class_names[:3]
        == {"species": ["background", "cat", "dog"], "breed": ["background", *pets.BREEDS[:2]]}[task]
    )


def test_the_task_is_an_option_of_the_command_line(tmp_path, capsys):
    root = pets_tree(tmp_path / "set")
    assert main(["prepare", "pets", "--root", str(root), "--task", "breed", "--out", str(tmp_path / "out")]) == 0
    assert Prepared.open(tmp_path / "out").num_classes == 38
    capsys.readouterr()
    assert main(["doctor", "pets", "--root", str(root), "--task", "fur"]) == 2
    assert capsys.readouterr().err.startswith("autoseg doctor: --task: ")


def test_torchvisions_place_is_found_and_a_part_of_the_set_is_a_remark(tmp_path):
    pets_tree(tmp_path / "oxford-iiit-pet")
    found = check(pets.find(tmp_path))
    assert not errors(found)
    assert [problem.what for problem in warnings(found)] == [
        "train has 4 images, the published set 3,680",
        "val has 2 images, the published set 3,669",
    ]


def test_what_is_wrong_with_lists_and_masks_is_said_with_its_cure(tmp_path):
    root = pets_tree(tmp_path / "set")
    wrong = ["# name breed species", "pug_11", "pug_12 38 2 1", "pug_13 26 dog 1", "../pug_14 26 2 1", "pug_15 26 2 1"]
    save_list(root / "annotations/trainval.txt", [*PETS_TRAINVAL, *wrong, "Abyssinian_9 1 1 1"])
    save_png(root / "annotations/trimaps/beagle_7.png", blocks((1, 2, 4), void=False))
    found = errors(check(pets.find(root)))
    text = "\n".join(f"{problem.where}: {problem.what}" for problem in found)
    for line in (6, 7, 8, 9):
        assert f"trainval.txt:{line}: " in text
    assert "trainval.txt:5" not in text
    assert "Abyssinian_9.jpg: 'Abyssinian_9' is in both train and val: scores would be too high" in text
    assert "pug_15.jpg: the file is missing" in text
    (strange,) = (problem for problem in found if problem.where.endswith("beagle_7.png"))
    assert strange.what == "the mask holds the values 4"
    assert strange.expected == "1-3"


def test_a_folder_without_archives_and_lists_is_answered_whole(tmp_path):
    found = errors(pets.find(tmp_path).problems)
    names = {Path(problem.where).name: problem.cure for problem in found}
    assert set(names) == {"images", "trimaps", "trainval.txt", "test.txt"}
    assert names["images"] == f"unpack images.tar.gz into {tmp_path}"


@pytest.mark.skipif(not REAL.is_dir(), reason="the photographs are not beside this clone")
def test_the_real_photographs_have_no_problem():
    found = pets.find(REAL)
    assert not errors(check(found, threads=2))
    cats = {sample.id for sample in found.samples if sample.encoding == "trimap:1"}
    assert cats == {sample.id for sample in found.samples if sample.id[0].isupper()}
    for sample in pets.find(REAL, "breed").samples:
        number = int(sample.encoding.removeprefix("trimap:"))
        assert sample.id.rpartition("_")[0] == pets.BREEDS[number - 1]
