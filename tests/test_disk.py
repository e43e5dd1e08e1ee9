"""What the disk refuses ends in a sentence, nothing is half-written, and no output is an input."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autoseg.cli import main
from autoseg.files import atomic, in_words, read_text, write_json
from autoseg.search.folder import Folder
from autoseg.search.records import TrialScore
from autoseg.search.settings import Search
from autoseg.search.steps import ask
from tests.refusals import refused


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def search(tmp_path: Path) -> Path:
    """A finished search of one step."""
    folder = Folder(tmp_path / "search")
    settings = folder.start(Search(metric="mIoU", sampler="random", steps=1, trials_per_step=2))
    proposals = ask(settings, [])
    folder.write(proposals)
    for trial in proposals.trials:
        score = TrialScore(number=trial.number, metric="mIoU", score=0.1 + 0.001 * trial.number)
        score.save(folder.score_path(1, trial.number))
    return folder.path


PLACES = {
    "a file in the place of a folder": lambda folder: folder / "file" / "out",
    "a folder in the place of a file": lambda folder: folder / "folder",
    "a name too long": lambda folder: folder / ("n" * 300),
    "a path too long": lambda folder: folder / "/".join(["n" * 100] * 50),
    "a link to itself": lambda folder: folder / "link" / "out",
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize(
    "command",
    [
        ["select", "SEARCH", "--out", "OUT"],
        ["loss", "export", "mIoU", "--out", "OUT.json"],
        ["loss", "export", "mIoU", "--out", "OUT.py"],
        ["table", "--published", "main", "--out", "OUT"],
        ["table", "--published", "metrics", "--out", "OUT"],
        ["ask", "OUT", "--step", "1", "--settings", '{"metric": "mIoU"}'],
        ["search", "OUT", "--settings", "SEARCH/search.json", "--objective", "tests.toy_objectives:near", "--quiet"],
        ["prepare", "synthetic", "--train", "4", "--val", "2", "--size", "32", "--proxy-size", "8", "--out", "OUT"],
        ["init", "OUT"],
    ],
    ids=lambda command: "-".join(command[:2]),
)
def test_a_place_that_cannot_be_written_is_named(command, place, search, tmp_path, capsys):
    (tmp_path / "file").write_text("mine\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine\n")
    for suffix in (".json", ".py", ".md"):
        shutil.copytree(tmp_path / "folder", tmp_path / f"folder{suffix}")
    (tmp_path / "link").symlink_to("link")
    out = place(tmp_path)
    if out.name == "folder" and command[0] in ("ask", "search", "prepare", "init"):
        pytest.skip("these write a folder")
    before = tree(tmp_path)
    assert main([word.replace("SEARCH", str(search)).replace("OUT", str(out)) for word in command]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"autoseg {command[0]}: ")
    assert str(tmp_path)[:20] in said
    after = tree(tmp_path)
    assert after == before


def _fill_the_disk(out: Path) -> int:
    """Run `select` in a process whose files may have 64 bytes at most: the system refuses more, as a full disk does."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); from autoseg.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "loss", "export", "mIoU", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert str(out) in done.stderr
    return done.returncode


@pytest.mark.parametrize("name", ["loss.json", "loss.py"])
def test_a_write_that_is_cut_short_leaves_the_old_file(name, tmp_path):
    out = tmp_path / name
    out.write_text("old\n")
    assert _fill_the_disk(out) == 2
    assert tree(tmp_path) == {str(out): b"old\n"}


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (errno.ENOSPC, "no room left"),
        (errno.EDQUOT, "no room left"),
        (errno.EROFS, "cannot be written"),
        (errno.EACCES, "no permission"),
        (errno.EIO, "the system refused"),
    ],
)
def test_an_error_of_the_system_keeps_the_old_file(number, what, tmp_path):
    write_json(tmp_path / "old.json", {"a": 1})
    before = tree(tmp_path)
    with refused(where="old.json", what=what), atomic(tmp_path / "old.json") as file:
        file.write("{")
        raise OSError(number, os.strerror(number))
    assert tree(tmp_path) == before


def test_an_error_without_a_path_is_still_a_sentence():
    assert in_words(OSError("torn")).what == "the system refused (torn)"


@pytest.mark.parametrize("name", ["search.json", "step-001/proposals.json", "step-001/trial-0.json"])
def test_an_output_that_is_an_input_is_refused(name, search, capsys):
    before = tree(search)
    assert main(["select", str(search), "--out", str(search / name)]) == 2
    assert name.rpartition("/")[2] in capsys.readouterr().err
    assert tree(search) == before
    assert main(["select", str(search)]) == 0
    assert main(["select", str(search)]) == 0  # its own output is written again


def test_an_output_that_is_named_as_an_input_is_refused(search, tmp_path, capsys):
    main(["select", str(search)])
    mine = tmp_path / "mine.json"
    shutil.copy(search / "surrogate.json", mine)
    before = mine.read_bytes()
    assert main(["loss", "export", str(mine), "--out", str(tmp_path / "search/../mine.json")]) == 2
    assert "the loss" in capsys.readouterr().err
    assert mine.read_bytes() == before


@pytest.mark.parametrize("mark", ["index.json", "search.json", "Snakefile"])
def test_a_run_is_not_trained_into_the_folder_of_something_else(mark, tmp_path, capsys):
    (tmp_path / mark).write_text("{}")
    assert main(["train", "--loss", "ce", "--data", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert mark in capsys.readouterr().err
    assert tree(tmp_path) == {str(tmp_path / mark): b"{}"}


@pytest.mark.parametrize("out", ["", " ", "a\nb"])
@pytest.mark.parametrize("verb", [["loss", "export", "mIoU"], ["table", "--published", "main"], ["train", "--loss=ce"]])
def test_an_empty_output_is_refused(verb, out, capsys):
    assert main([*verb, "--out", out]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_text_that_is_too_large_is_not_read(tmp_path):
    (tmp_path / "large.json").write_bytes(b" " * 100)
    with refused(where="large.json", what="too large"):
        read_text(tmp_path / "large.json", largest=99)
    with refused(where="/dev/zero", what="too large"):
        read_text("/dev/zero", largest=1000)
