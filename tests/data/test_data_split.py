"""The hold-out is seeded, recorded, and shares no image with training or validation."""

from __future__ import annotations

import shutil

import pytest
from data_trees import camvid_tree, voc_tree
from hypothesis import given
from hypothesis import strategies as st

from autoseg.data import folder, voc
from autoseg.data.model import ClassInfo, Index, IndexEntry, MaskValues
from autoseg.data.prepare import prepare
from autoseg.data.split import Split, load_split, make_split, parse_hold_out
from autoseg.errors import InputError
from autoseg.files import read_json, write_json
from tests.refusals import refused


def index_of(contents: list[int], val: list[int], dataset: str = "folder") -> Index:
    """An index whose images are told apart by a number; equal numbers are copies."""

    def entry(name: str, content: int) -> IndexEntry:
        checksum = f"{content:064x}"
        fields = {"image": "a", "mask": "b", "encoding": "index", "height": 1, "width": 1, "pixels": {0: 1}}
        checksums = dict.fromkeys(("image_checksum", "mask_checksum", "decoded_checksum"), checksum)
        return IndexEntry(id=name, **checksums, **fields)

    splits = {
        "train": [entry(f"t{place}", content) for place, content in enumerate(contents)],
        "val": [entry(f"v{place}", content) for place, content in enumerate(val)],
    }
    classes = [ClassInfo(name=name, color=(0, 0, 0)) for name in "ab"]
    return Index(dataset=dataset, classes=classes, labels=MaskValues(), splits=splits)


@given(
    contents=st.lists(st.integers(0, 30), min_size=2, max_size=40),
    hold_out=st.integers(1, 40),
    seed=st.integers(0, 2**40),
)
def test_any_split_is_disjoint_by_content_and_complete_or_refused(contents, hold_out, seed):
    index = index_of(contents, val=[99, 98])
    unique = sum(contents.count(content) == 1 for content in contents)
    if hold_out > unique or hold_out >= len(contents):
        with pytest.raises(InputError) as error:
            make_split(index, hold_out, seed)
        assert error.value.where == "hold_out"
        return
    split = make_split(index, hold_out, seed)
    content = {entry.id: entry.decoded_checksum for entry in index.entries()}
    assert len(split.hold_out) == hold_out
    assert split.whole_train == sorted(f"t{place}" for place in range(len(contents)))
    assert not {content[name] for name in split.train} & {content[name] for name in split.hold_out}
    assert make_split(index, hold_out, seed) == split


def test_the_paper_s_numbers_are_the_default():
    assert len(make_split(index_of(list(range(2000)), [9999], "voc")).hold_out) == 1500
    assert len(make_split(index_of(list(range(600)), [9999], "cityscapes")).hold_out) == 500
    assert len(make_split(index_of(list(range(50)), [9999])).hold_out) == 10
    assert len(make_split(index_of(list(range(50)), [9999]), 0.5).hold_out) == 25


def test_another_seed_holds_out_others_and_one_more_image_moves_nobody_else():
    index = index_of(list(range(100)), [999])
    assert set(make_split(index, 20, 0).hold_out) != set(make_split(index, 20, 1).hold_out)
    assert set(make_split(index, 20, 0).hold_out) < set(make_split(index, 21, 0).hold_out)


@pytest.mark.parametrize(
    ("hold_out", "what"),
    [
        (4, "4 images, but the training set has 4"),
        (1500, "1500 images, but the training set has 4"),
        *((given, f"{given} is neither a number of images nor a share") for given in (0, -3, 1.5, 0.0, "100%", "1.0")),
    ],
)
def test_a_hold_out_that_does_not_fit_is_refused(hold_out, what):
    with pytest.raises(InputError) as error:
        make_split(index_of([1, 2, 3, 4], [9]), hold_out)
    assert (error.value.where, error.value.what) == ("hold_out", what)


def test_a_validation_image_in_the_training_set_is_never_split(tmp_path):
    with refused(what="'t1' of train and 'v0' of val"):
        make_split(index_of([1, 2, 3, 4], val=[2]), 2)


@pytest.mark.parametrize("text", ["many", "1e3", "", "12%%", "0,2"])
def test_a_hold_out_that_is_no_number_is_refused(text):
    with pytest.raises(InputError) as error:
        parse_hold_out(text)
    assert error.value.what == f"'{text}' is no number"


@pytest.fixture
def data(tmp_path):
    root = camvid_tree(tmp_path / "set")
    return prepare(folder.find(root, root / "classes.txt"), tmp_path / "out")


def test_a_split_is_read_back_and_checked(data, tmp_path):
    path = tmp_path / "split.json"
    split = make_split(data.index, 1, seed=5)
    split.save(path)
    assert load_split(path, data) == split
    assert read_json(path)["schema"] == "autoseg/split/2"


@pytest.mark.parametrize(
    ("change", "key", "what"),
    [
        (lambda c: c["train"].append(c["hold_out"][0]), "", "is in both train and hold_out"),
        (lambda c: c["val"].append(c["train"].pop()), ": checksums.train", "does not fit the images"),
        (lambda c: c["train"].append("nobody"), ": train", "'nobody' is not in"),
        (lambda c: c.update(hold_out=[]), ": hold_out", "at least 1 item"),
        (lambda c: c.update(index="0" * 64), ": index", "made for another index"),
        (lambda c: c.pop("seed"), ": seed", "required"),
    ],
)
def test_an_edited_split_is_refused_with_file_and_key(data, tmp_path, change, key, what):
    path = tmp_path / "split.json"
    make_split(data.index, 1).save(path)
    content = read_json(path)
    change(content)
    write_json(path, content)
    with pytest.raises(InputError) as error:
        load_split(path, data)
    assert error.value.where == f"{path}{key}"
    assert what in error.value.what
    assert error.value.cure == "run `autoseg split` again"


def test_a_split_of_other_data_is_refused(data, tmp_path):
    other = prepare(voc.find(voc_tree(tmp_path / "voc")), tmp_path / "other")
    make_split(other.index, 1).save(tmp_path / "split.json")
    with refused(where="split.json: index", cure="autoseg split"):
        load_split(tmp_path / "split.json", data)


def test_copies_within_the_training_set_are_kept_on_its_side(tmp_path):
    root = camvid_tree(tmp_path / "set")
    for part in ("", "annot"):
        shutil.copy(root / f"train{part}/0001TP_train_00000.png", root / f"train{part}/again.png")
    data = prepare(folder.find(root, root / "classes.txt"), tmp_path / "out")
    for seed in range(8):
        split = make_split(data.index, 3, seed)
        assert {"train/again", "train/0001TP_train_00000"} <= set(split.train)
    assert isinstance(split, Split)
    with refused(where="hold_out", what="only 3 training images"):
        make_split(data.index, 4)
