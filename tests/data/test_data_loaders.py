"""Batches follow from (seed, iteration) alone, and a loader's memory does not grow with the cache."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from data_trees import camvid_tree, voc_tree
from hypothesis import given
from hypothesis import strategies as st

from autoseg.data import folder, voc
from autoseg.data.augment import Augmentation, CenterView
from autoseg.data.loaders import Batches, eval_loader, train_loader
from autoseg.data.prepare import prepare
from autoseg.errors import InputError
from tests.refusals import refused

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = camvid_tree(tmp_path_factory.mktemp("set"), counts=(7, 3, 1))
    return prepare(folder.find(root, root / "classes.txt"), tmp_path_factory.mktemp("out"), short_side=32)


def batches(data, **changes):
    settings = {"batch_size": 4, "seed": 3, "stop": 6, **changes}
    return list(train_loader(data.cache(32).read, data.ids("train"), Augmentation(16, (16, 16)), **settings))


def assert_equal(some, others):
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_batch_is_what_torch_s_losses_take(data):
    images, masks = batches(data)[0]
    assert images.shape == (4, 3, 16, 16)
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    assert masks.shape == (4, 16, 16)
    assert masks.dtype == torch.int64
    assert set(masks.unique().tolist()) <= {0, 3, 10, 255}


@pytest.mark.parametrize("loaders", [1, 2])
def test_the_number_of_loaders_changes_nothing(data, loaders):
    assert_equal(batches(data, loaders=loaders), batches(data))


def test_starting_at_any_iteration_gives_what_an_unbroken_run_has_there(data):
    whole = batches(data)
    for start in (1, 2, 5, 6):
        assert_equal(batches(data, start=start, loaders=start % 2), whole[start:])


def test_another_seed_or_epoch_gives_other_samples(data):
    one, other = batches(data), batches(data, seed=4)
    assert not torch.equal(one[0][0], other[0][0])
    assert len({image.numpy().tobytes() for images, _ in one for image in images}) == 24


def test_loading_leaves_torch_s_own_random_numbers_alone(data):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    batches(data)
    batches(data, loaders=1)
    list(eval_loader(data.cache(32).read, data.ids("val"), CenterView(16)))
    assert torch.equal(torch.get_rng_state(), before)


def test_processes_share_every_batch_among_them(data):
    whole = batches(data)
    shares = [batches(data, rank=rank, world_size=2) for rank in range(2)]
    for all_of_it, first, second in zip(whole, *shares, strict=True):
        assert len(first[0]) == len(second[0])
        for part in range(2):  # in order: groups of neighbours are the same with any number of processes
            assert torch.equal(all_of_it[part], torch.cat([first[part], second[part]]))


def test_accumulated_small_batches_are_the_big_ones(data):
    big, small = batches(data, batch_size=4, stop=3), batches(data, batch_size=2, stop=6)
    for number, (images, _) in enumerate(big):
        assert torch.equal(images, torch.cat([small[2 * number][0], small[2 * number + 1][0]]))


@given(
    size=st.integers(1, 30),
    batch=st.integers(1, 12),
    seed=st.integers(0, 9),
    start=st.integers(0, 40),
    count=st.integers(1, 20),
)
def test_every_epoch_has_every_image_once_and_any_start_fits(size, batch, seed, start, count):
    stream = [key for keys in Batches(size, batch, seed, stop=start + count) for key in keys]
    for epoch in range(len(stream) // size):
        part = stream[epoch * size : (epoch + 1) * size]
        assert sorted(part) == [(epoch, index) for index in range(size)]
    later = [key for keys in Batches(size, batch, seed, stop=start + count, start=start) for key in keys]
    assert later == stream[start * batch :]


def test_starting_late_costs_nothing():
    keys = next(iter(Batches(10_582, 32, 0, stop=10**9 + 1, start=10**9)))
    assert len(keys) == 32


def test_an_empty_set_is_refused():
    with refused(cure="check the split"):
        Batches(0, 4, 0, stop=1)


@pytest.mark.parametrize(
    ("changes", "where", "expected"),
    [
        ({"batch_size": 0}, "batch_size", "at least one image for each of 1 processes"),
        ({"world_size": 5}, "batch_size", "at least one image for each of 5 processes"),
        ({"seed": -1}, "seed", "0 or more"),
    ],
)
def test_impossible_batches_are_refused(changes, where, expected):
    with pytest.raises(InputError) as error:
        Batches(**{"size": 10, "batch_size": 4, "seed": 0, "stop": 1, **changes})
    assert (error.value.where, error.value.expected) == (where, expected)


def test_several_images_of_different_sizes_in_one_batch_are_refused(data):
    with pytest.raises(InputError) as error:
        eval_loader(data.read, data.ids("val"), batch_size=2)
    assert error.value.where == "batch_size"


def test_scoring_at_proxy_size_goes_through_all_images_in_order(data):
    loader = eval_loader(data.cache(32).read, data.ids("train"), CenterView(16), batch_size=3)
    sizes = [images.shape for images, _ in loader]
    assert sizes == [(3, 3, 16, 16), (3, 3, 16, 16), (1, 3, 16, 16)]
    expected = [CenterView(16)(*data.cache(32).read(name))[1] for name in data.ids("train")]
    np.testing.assert_array_equal(torch.cat([masks for _, masks in loader]).numpy(), np.stack(expected))


def test_scoring_at_original_size_reads_the_original_files(tmp_path):
    voc_data = prepare(voc.find(voc_tree(tmp_path / "sets")), tmp_path / "out", short_side=16)
    shapes = []
    for name, (images, masks) in zip(
        voc_data.ids("val"), eval_loader(voc_data.read, voc_data.ids("val"), loaders=1), strict=True
    ):
        np.testing.assert_array_equal(masks[0].numpy(), voc_data.read(name)[1])
        shapes.append(tuple(images.shape))
    assert shapes == [(1, 3, 40, 60)] * 2


def test_retraining_reads_the_original_files_at_its_own_size(data):
    augmentation = Augmentation(36, (32, 40))
    loader = train_loader(data.read, data.ids("train"), augmentation, batch_size=2, seed=0, stop=2, loaders=1)
    assert [tuple(images.shape) for images, _ in loader] == [(2, 3, 32, 40)] * 2


def test_readers_can_be_handed_to_processes_that_are_not_forked(data):
    name = data.ids("train")[0]
    for read in (data.read, data.cache(32).read):
        copy = pickle.loads(pickle.dumps(read))
        for got, expected in zip(copy(name), read(name), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_a_file_broken_after_preparing_is_named_by_the_loader(tmp_path):
    root = camvid_tree(tmp_path / "set")
    own = prepare(folder.find(root, root / "classes.txt"), tmp_path / "out")
    (root / "val/0001TP_val_00001.png").write_bytes(b"")
    for loaders in (0, 1):
        with pytest.raises(InputError) as error:
            list(eval_loader(own.read, own.ids("val"), loaders=loaders))
        assert error.value.where == str(root / "val/0001TP_val_00001.png")
        assert error.value.what == "the file is empty, although it was fine when prepared"
        assert "again" in error.value.cure


def test_scoring_processes_share_the_images(data):
    ids = data.ids("train")
    parts = [list(eval_loader(data.cache(32).read, ids, CenterView(16), rank=rank, world_size=3)) for rank in range(3)]
    assert [len(part) for part in parts] == [3, 2, 2]


MEMORY = """
import json, sys
import psutil, torch
from autoseg.data.augment import Augmentation
from autoseg.data.cache import Cache
from autoseg.data.loaders import train_loader

torch.set_num_threads(1)
cache = Cache(sys.argv[1], 512)
ids = [slot.id for slot in cache.layout.slots]
loader = train_loader(cache.read, ids, Augmentation(64, (64, 64)), batch_size=8, seed=0, stop=len(ids) // 8, loaders=2)
me, seen = psutil.Process(), {}
for number, batch in enumerate(loader):
    if number % 10 == 0:
        for process in (me, *me.children(recursive=True)):
            memory = process.memory_full_info()
            seen.setdefault(process.pid, []).append((memory.rss, memory.uss))
print(json.dumps([[max(values) - values[0] for values in zip(*samples)] for samples in seen.values()]))
"""


def test_memory_stays_flat_over_a_cache_of_gigabytes(tmp_path):
    # 3 GB on paper: a sparse file takes no disk, but reading it maps its pages all the same.
    slots = [
        {"id": str(n), "offset": n * 4 * 1024 * 1024, "height": 1024, "width": 1024, "checksum": "0" * 64}
        for n in range(768)
    ]
    layout = {"schema": "autoseg/cache/2", "short_side": 512, "index": "0" * 64, "slots": slots}
    (tmp_path / "cache-512.json").write_text(json.dumps(layout))
    with open(tmp_path / "cache-512.bin", "wb") as file:
        file.truncate(768 * 4 * 1024 * 1024)
    shown = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path], capture_output=True, text=True, check=True, cwd=ROOT
    )
    growth = json.loads(shown.stdout)
    assert len(growth) == 3  # the training process and two loaders
    for resident, private in growth:
        assert resident < 64e6
        assert private < 64e6
