"""Preparing gives the same bytes however it went; what it wrote is what the files hold."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from data_trees import CAMVID, blocks, camvid_tree, digests, picture, save_jpeg, save_list, save_png, voc_tree
from hypothesis import given
from hypothesis import strategies as st

from autoseg.data import folder, voc
from autoseg.data.cache import Cache, cached_size, resize_mask
from autoseg.data.check import check_prepared
from autoseg.data.model import CacheLayout, Index
from autoseg.data.prepare import prepare
from autoseg.data.prepared import Prepared
from autoseg.data.split import make_split
from autoseg.errors import InputError
from autoseg.files import read_json, write_json
from tests.refusals import refused

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A CamVid tree of images large enough that preparing it takes a moment."""
    root = tmp_path_factory.mktemp("camvid")
    camvid_tree(root, counts=(1, 1, 1))
    for number in range(24):
        name = f"big_{number:02d}"
        save_jpeg(root / "train" / f"{name}.jpg", picture(name, 400 + 7 * number, 500))
        save_png(root / "trainannot" / f"{name}.png", blocks((0, number % 11, 11), 400 + 7 * number, 500))
    return root


@pytest.fixture(scope="module")
def finished(tree, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished")
    prepare(find(tree), out, short_side=128)
    return out


def find(tree):
    return folder.find(tree, tree / "classes.txt")


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, "autoseg")
    return caplog


def start(tree, out, *more):
    arguments = ["-m", "autoseg", "prepare", "folder", "--root", tree, "--classes", tree / "classes.txt"]
    command = [sys.executable, *arguments, "--out", out, "--proxy-size", "64", *more]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_any_number_of_threads_gives_the_same_bytes(tree, finished, tmp_path):
    prepare(find(tree), tmp_path, short_side=128, threads=5)
    assert digests(tmp_path) == digests(finished)


def test_preparing_twice_does_nothing_the_second_time(tree, finished, logged):
    before = {path: path.stat().st_mtime_ns for path in finished.iterdir()}  # the lock too: it may be read-only
    prepare(find(tree), finished, short_side=128)
    assert logged.messages == [f"{finished}: already prepared, nothing to do."]
    assert {path: path.stat().st_mtime_ns for path in finished.iterdir()} == before


@pytest.mark.parametrize(
    "lines",
    [["heaven", *CAMVID[1:]], [*reversed(CAMVID[:-1]), "void"], [f"{name} " for name in CAMVID[:-1]] + ["bin"]],
    ids=["renamed", "re-ordered", "void made a class"],
)
def test_a_changed_class_list_gives_the_index_of_a_fresh_start(tree, finished, tmp_path, lines, logged):
    out = shutil.copytree(finished, tmp_path / "out")
    save_list(tmp_path / "classes.txt", lines)
    changed = folder.find(tree, tmp_path / "classes.txt")
    data = prepare(changed, out, short_side=128)
    assert "class list changed" in logged.messages[0]
    assert data.class_names == [line.strip() for line in lines if line != "void"]
    prepare(changed, tmp_path / "fresh", short_side=128)
    assert digests(out) == digests(tmp_path / "fresh")


def test_originals_that_moved_are_found_again(tree, finished, tmp_path, logged):
    out = shutil.copytree(finished, tmp_path / "out")
    before = digests(out)
    moved = shutil.copytree(tree, tmp_path / "moved")  # with the files' times
    prepare(find(moved), out, short_side=128)
    assert "already prepared" in logged.messages[-1]
    assert digests(out) == before
    assert read_json(out / "source.json")["roots"] == {"data": str(moved)}


def truncate(path):
    path.write_bytes(path.read_bytes()[:100])


def rename_a_class(path):
    content = read_json(path)
    content["classes"][0]["name"] = "heaven"
    write_json(path, content)


def complaints(out):
    try:
        return [str(problem) for problem in check_prepared(Prepared.open(out))]
    except InputError as error:
        return [str(error)]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, truncate) for name in ("index.json", "source.json", "cache-128.json")),
        *((name, Path.unlink) for name in ("index.json", "source.json", "cache-128.bin")),
        ("index.json", rename_a_class),
    ],
)
def test_a_damaged_file_of_ours_is_noticed_by_doctor_and_mended_by_prepare(tree, finished, tmp_path, name, damage):
    out = shutil.copytree(finished, tmp_path / "out")
    damage(out / name)
    found = complaints(out)
    assert found
    for sentence in found:
        assert sentence.startswith(str(out))
        assert sentence.count(f"{out}/") <= 1
        assert "again" in sentence or "first" in sentence
        assert sentence.count("again") <= 1
    prepare(find(tree), out, short_side=128)
    assert digests(out) == digests(finished)
    assert check_prepared(Prepared.open(out)) == []


def test_doctor_reads_the_split_too_and_passes_over_strange_files(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    (out / "cache-old.json").write_text("{}")
    make_split(Prepared.open(out).index, 2).save(out / "split.json")
    assert check_prepared(Prepared.open(out)) == []
    content = read_json(out / "split.json")
    content["train"].pop()
    write_json(out / "split.json", content)
    (problem,) = check_prepared(Prepared.open(out))
    assert problem.where == f"{out}/split.json: checksums.train"
    with refused(what="there: 128"):
        Cache(out, 64)


def test_what_a_kill_left_of_an_atomic_write_is_removed(tree, tmp_path):
    (tmp_path / ".index.json.x1y2.part").write_text("{")
    prepare(find(tree), tmp_path, short_side=32)
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("lines", [1, 9, 20])
def test_killed_in_between_it_goes_on_and_ends_in_the_same_bytes(tree, finished, tmp_path, lines):
    journal = tmp_path / ".cache-128.bin.journal"
    while not journal.exists():  # on a busy machine it may end before we look: then again
        shutil.rmtree(tmp_path)
        process = start(tree, tmp_path, "--threads", "2")
        while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < lines):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "index.json").exists()
    second = start(tree, tmp_path, "--threads", "1")
    said = second.communicate()[1]
    assert second.returncode == 0
    assert "going on after" in said
    assert digests(tmp_path) == digests(finished)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".") and path.name != ".lock"]


def test_a_torn_journal_and_lost_bytes_are_noticed(tree, finished, tmp_path):
    # As after a power cut: the journal's last line is cut, and bytes it speaks of never reached the disk.
    source = find(tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autoseg.data.prepare._publish", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare(source, tmp_path, short_side=128)
    journal, part = tmp_path / ".cache-128.bin.journal", tmp_path / ".cache-128.bin.part"
    journal.write_bytes(journal.read_bytes()[:-100])
    with open(part, "r+b") as file:
        file.write(bytes(50_000))
    prepare(source, tmp_path, short_side=128)
    assert digests(tmp_path) == digests(finished)


def test_killed_while_the_files_are_put_in_place_it_ends_in_the_same_bytes(tree, finished, tmp_path, logged):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheLayout, "save", lambda self, path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare(find(tree), tmp_path, short_side=128)
    assert (tmp_path / "cache-128.bin").exists()
    assert not (tmp_path / "index.json").exists()
    prepare(find(tree), tmp_path, short_side=128)
    assert any("going on after 27 of 27" in line for line in logged.messages)
    assert digests(tmp_path) == digests(finished)


def test_after_a_changed_file_the_result_is_that_of_a_fresh_start(tree, tmp_path):
    root = shutil.copytree(tree, tmp_path / "set")
    prepare(find(root), tmp_path / "out", short_side=128)
    before = digests(tmp_path / "out")
    save_png(root / "trainannot/big_03.png", blocks((1, 2), 421, 500))
    prepare(find(root), tmp_path / "out", short_side=128)
    prepare(find(root), tmp_path / "fresh", short_side=128)
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh") != before


def test_a_repaired_file_lets_a_refused_preparation_go_on(tree, tmp_path, logged):
    root = shutil.copytree(tree, tmp_path / "set")
    path = root / "trainannot/big_05.png"
    good = path.read_bytes()
    path.write_bytes(good[:200])
    with pytest.raises(InputError, match=r"big_05.png"):
        prepare(find(root), tmp_path / "out", short_side=128)
    path.write_bytes(good)
    prepare(find(root), tmp_path / "out", short_side=128)
    assert any("going on after 26 of 27" in line for line in logged.messages)


def test_caches_of_several_sizes_live_side_by_side(tree, tmp_path, logged):
    small = prepare(find(tree), tmp_path, short_side=32)
    index = (tmp_path / "index.json").read_bytes()
    data = prepare(find(tree), tmp_path, short_side=64)
    assert (tmp_path / "index.json").read_bytes() == index
    assert small.cache(32).read("train/big_00")[0].shape == (32, 40, 3)
    assert data.cache(64).read("train/big_00")[0].shape == (64, 80, 3)
    assert data.checksum(64) != data.checksum(32)
    with refused(what="there: 32, 64", cure="--proxy-size 50"):
        data.cache(100)
    prepare(find(tree), tmp_path, short_side=32)
    assert "already prepared" in logged.messages[-1]


def overlaps(old, new):
    """Share of each of `old` pixels in each of `new` ones along a line."""
    edges = np.arange(new + 1) * old / new
    pixels = np.arange(old)
    covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.maximum(covered, 0) * new / old


def test_the_cache_holds_the_images_shrunk_by_area_and_the_masks_by_nearest(tree, finished):
    data = Prepared.open(finished)
    image, mask = data.read("train/big_10")
    small, labels = data.cache(128).read("train/big_10")
    assert small.shape == (128, 136, 3)
    assert labels.shape == (128, 136)
    rows, columns = (overlaps(old, new) for old, new in zip(mask.shape, labels.shape, strict=True))
    expected = np.einsum("ry,yxc,sx->rsc", rows, image, columns, optimize=True)
    assert np.abs(small - expected).max() < 1
    assert set(np.unique(labels)) <= set(np.unique(mask))
    tiny, tiny_labels = data.cache(128).read("val/0001TP_val_00000")  # 36 x 48: never upsampled
    np.testing.assert_array_equal(tiny, data.read("val/0001TP_val_00000")[0])
    np.testing.assert_array_equal(tiny_labels, data.read("val/0001TP_val_00000")[1])


@given(height=st.integers(1, 80), width=st.integers(1, 80), short_side=st.integers(1, 60), seed=st.integers(0, 99))
def test_shrinking_keeps_the_ratio_and_makes_up_no_label(height, width, short_side, seed):
    new_height, new_width = cached_size(height, width, short_side)
    assert new_height <= height
    assert new_width <= width
    assert min(new_height, new_width) == min(height, width, short_side)
    mask = np.random.default_rng(seed).choice(np.array([0, 7, 255], np.uint8), (height, width))
    small = resize_mask(mask, new_height, new_width)
    centres = [
        ((np.arange(new) + 0.5) * old / new).astype(int) for old, new in zip(mask.shape, small.shape, strict=True)
    ]
    np.testing.assert_array_equal(small, mask[np.ix_(*centres)])


def test_the_disk_need_is_said_beforehand_and_refused_where_there_is_too_little(tmp_path):
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "autoseg",
            "prepare",
            "synthetic",
            "--size",
            "8192",
            "--train",
            "100000",
            "--out",
            "out",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert process.returncode == 2
    assert re.search(r"out/source: 2685\d.\d\d GB of disk are needed, \d+.\d\d GB are free", process.stderr)
    assert "Traceback" not in process.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_is_said_and_the_work_goes_on_later(tree, finished, tmp_path, monkeypatch, number, logged):
    written = []

    def fill_up(file, content, offset, write=os.pwrite):
        if len(written) == 5:
            raise OSError(number, os.strerror(number))
        written.append(offset)
        return write(file, content, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fill_up)
        with refused(where=str(tmp_path), what=os.strerror(number), cure="same command"):
            prepare(find(tree), tmp_path, short_side=128)
    prepare(find(tree), tmp_path, short_side=128)
    assert any("going on after 5 of 27" in line for line in logged.messages)
    assert digests(tmp_path) == digests(finished)


@pytest.mark.parametrize("number", [errno.EFBIG, errno.EIO, errno.ENAMETOOLONG])
def test_any_other_failure_to_write_is_a_sentence_too(tree, tmp_path, monkeypatch, number):
    def fail(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "ftruncate", fail)
    with refused(where=str(tmp_path / "out"), what=os.strerror(number), cure="--out"):
        prepare(find(tree), tmp_path / "out", short_side=128)


def test_a_name_that_no_file_system_takes_is_a_sentence(tree, tmp_path):
    too_long = tmp_path / ("x" * 300)
    with refused(where=str(too_long), what="too long"):
        prepare(find(tree), too_long)
    with refused(where=str(too_long), what="index.json"):
        Prepared.open(too_long)
    with refused(where=str(too_long)):
        voc.find(too_long)


def test_a_file_system_without_locks_is_remarked_upon(tree, tmp_path, monkeypatch, logged):
    def fail(*args):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    prepare(find(tree), tmp_path, short_side=32)
    assert "has no locks" in logged.messages[0]


def test_two_at_once_in_one_folder_are_kept_apart(tree, tmp_path):
    import fcntl

    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with refused(where=str(tmp_path), cure="wait for it"):
            prepare(find(tree), tmp_path, short_side=128)


def test_a_folder_that_is_taken_is_left_alone(tree, finished, tmp_path):
    before = digests(finished)
    with refused(where=str(finished), what="'folder'", cure="--out"):
        prepare(voc.find(voc_tree(tmp_path / "sets")), finished, short_side=128)
    assert digests(finished) == before
    other = camvid_tree(tmp_path / "other", counts=(2, 1, 1))
    for path in (other / "train").iterdir():  # the same classes, other images
        path.rename(path.with_name(f"other_{path.name}"))
        (other / "trainannot" / path.name).rename(other / "trainannot" / f"other_{path.name}")
    for part in ("val", "valannot", "test", "testannot"):
        for path in (other / part).iterdir():
            path.rename(path.with_name(f"other_{path.name}"))
    with refused(where=str(finished), cure="--out"):
        prepare(find(other), finished, short_side=128)
    save_list(tmp_path / "others.txt", [f"class-{number}" for number in range(12)])  # the same images, other classes
    with refused(where=str(finished), cure="--out"):
        prepare(folder.find(tree, tmp_path / "others.txt"), finished, short_side=128)
    assert digests(finished) == before
    (tmp_path / "file").write_text("mine")
    with refused(where=str(tmp_path / "file"), cure="--out"):
        prepare(find(tree), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_nothing_in_the_index_depends_on_where_the_data_lie(tmp_path):
    shutil.copytree(voc_tree(tmp_path / "here/sets"), tmp_path / "there/sets")
    for place in ("here", "there"):
        prepare(voc.find(tmp_path / place / "sets"), tmp_path / place / "out")
    assert digests(tmp_path / "here/out") == digests(tmp_path / "there/out")
    shutil.move(tmp_path / "here/sets", tmp_path / "moved")
    with pytest.raises(InputError, match=r"2007_000032.jpg: the file is missing"):
        Prepared.open(tmp_path / "here/out").read("2007_000032")
    base = tmp_path / "moved/VOCdevkit"
    data = Prepared.open(tmp_path / "here/out", roots={"voc": base / "VOC2012", "sbd": base / "VOCaug/dataset"})
    assert data.read("2007_000032")[0].shape == (40, 60, 3)


def test_an_original_that_changed_is_never_used(tree, tmp_path):
    root = shutil.copytree(tree, tmp_path / "set")
    data = prepare(find(root), tmp_path / "out", short_side=128)
    save_png(root / "trainannot/big_03.png", blocks((1, 2), 421, 500))
    with refused(where="big_03.png", cure="autoseg prepare"):
        data.read("train/big_03")


def test_doctor_notices_what_changed_after_preparing(tree, tmp_path):
    root = shutil.copytree(tree, tmp_path / "set")
    data = prepare(find(root), tmp_path / "out", short_side=128)
    assert check_prepared(data) == []
    packed = tmp_path / "out/cache-128.bin"
    (slot,) = (slot for slot in data.cache(128).layout.slots if slot.id == "train/big_07")
    with open(packed, "r+b") as file:
        file.seek(slot.offset + slot.nbytes - 1)
        file.write(b"\x07")
    (root / "train/big_08.jpg").write_bytes((root / "train/big_09.jpg").read_bytes())
    (root / "trainannot/big_02.png").unlink()
    found = {problem.where: problem.what for problem in check_prepared(data)}
    assert "'train/big_07' changed" in found.pop(str(packed))
    assert "changed since" in found.pop(str(root / "train/big_08.jpg"))
    assert "missing" in found.pop(str(root / "trainannot/big_02.png"))
    assert found == {}


@pytest.mark.parametrize(
    ("name", "change", "where", "what"),
    [
        ("index.json", lambda c: c.update(schema="autoseg/split/2"), "index.json", "'schema' is 'autoseg/split/2'"),
        (
            "index.json",
            lambda c: c["splits"]["val"][0].update(height=0),
            "index.json: splits.val.0.height",
            "greater than or equal to 1",
        ),
        ("index.json", lambda c: c["splits"]["val"].append(c["splits"]["train"][0]), "index.json", "occurs twice"),
        ("index.json", lambda c: c.update(extra=1), "index.json", "unknown key 'extra'"),
        ("index.json", lambda c: c["splits"].update(test=[]), "index.json: splits.test", "at least 1 item"),
        ("source.json", lambda c: c.pop("roots"), "source.json: roots", "required"),
        ("cache-128.json", lambda c: c.update(index="0" * 64), "cache-128.json", "made with another index.json"),
        ("cache-128.json", lambda c: c["slots"].pop(), "cache-128.bin", "bytes instead of"),
    ],
)
def test_a_damaged_file_of_ours_is_named_with_its_key(finished, tmp_path, name, change, where, what):
    out = shutil.copytree(finished, tmp_path / "out")
    content = read_json(out / name)
    change(content)
    write_json(out / name, content)
    with pytest.raises(InputError) as error:
        Prepared.open(out).cache(128)
    assert error.value.where == f"{out}/{where}"
    assert what in error.value.what
    assert "again" in error.value.cure


def test_files_are_canonical_and_carry_their_schema(finished):
    for name, model in (("index.json", Index), ("cache-128.json", CacheLayout)):
        text = (finished / name).read_text()
        loaded = model.load(finished / name)
        content = json.loads(text)
        assert content["schema"] == model.SCHEMA
        assert json.dumps(loaded.content(), sort_keys=True, indent=2, ensure_ascii=False) + "\n" == text


def test_a_missing_cache_and_an_unprepared_folder_say_what_to_run(finished, tmp_path):
    with refused(where=str(tmp_path), cure="autoseg prepare"):
        Prepared.open(tmp_path)
    out = shutil.copytree(finished, tmp_path / "out")
    (out / "cache-128.bin").unlink()
    with refused(where="cache-128.bin", cure="autoseg prepare"):
        Cache(out, 128)


@pytest.mark.long
def test_a_storm_of_kills_ends_in_the_same_bytes(tree, finished, tmp_path):
    draw = random.Random(0)
    for _ in range(25):
        process = start(tree, tmp_path, "--threads", str(draw.randint(1, 4)))
        try:
            process.communicate(timeout=draw.uniform(0.3, 1.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    assert start(tree, tmp_path).wait() == 0
    assert digests(tmp_path) == digests(finished)
