"""Every verb that writes, on a disk that is full or read-only, in places that are none, and on its own inputs.

Each ends in a sentence and exit code 2, and every file that was there is as it was.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from small_task import Disk, arguments, make_data

from autoseg.cli import VERBS, main
from autoseg.search.folder import Folder
from autoseg.search.records import TrialScore
from autoseg.search.settings import Search
from autoseg.search.steps import ask
from tests.pipeline_runs import content
from tests.small_results import make_results

TASK = arguments(Path("DATA"), iterations=2, batch_size=2)
SETTINGS = '{"metric": "mIoU", "sampler": "random", "steps": 1, "trials_per_step": 2}'
SMALL = ["--train", "4", "--val", "2", "--size", "32", "--proxy-size", "8"]

# By a name: a command that works, with OUT for what it writes; the other words in capitals are folders of `made`.
FILES = {
    "select": ["select", "SEARCH", "--out", "OUT.json"],
    "split": ["split", "DATA", "--out", "OUT.json"],
    "trials": ["trials", "OPEN", "--step", "1", "--chunk", "0/2", "--quiet", "--out", "OUT.json", *TASK],
    "evaluate": ["evaluate", "RUN", "--quiet", "--out", "OUT.json", *TASK],
    "report": ["report", "--config", "CONFIG", "--results", "RESULTS", "--out", "OUT.html"],
    "loss export json": ["loss", "export", "mIoU", "--out", "OUT.json"],
    "loss export python": ["loss", "export", "mIoU", "--out", "OUT.py"],
    "loss show": ["loss", "show", "mIoU", "--out", "OUT.png"],
    "weights": ["weights", "tiny", "--from", "RUN/encoder.safetensors", "--out", "OUT.safetensors"],
    "table": ["table", "--config", "CONFIG", "--results", "RESULTS", "--table", "main", "--out", "OUT"],
    "table of the paper": ["table", "--published", "main", "--out", "OUT"],
    "table of metrics": ["table", "--published", "metrics", "--out", "OUT"],
    "figure": ["figure", "--config", "CONFIG", "--results", "RESULTS", "--figure", "curves", "--out", "OUT"],
}
FOLDERS = {
    "prepare": ["prepare", "synthetic", *SMALL, "--out", "OUT"],
    "train": ["train", "--loss", "ce", "--quiet", "--out", "OUT", *TASK],
    "train with TensorBoard": ["train", "--loss=ce", "--quiet", "--out=NEW", "--tensorboard", "OUT", *TASK],
    "evaluate with predictions": ["evaluate", "RUN", "--quiet", "--out", "NEW", "--predictions", "OUT", *TASK],
    "ask": ["ask", "OUT", "--step", "1", "--settings", SETTINGS],
    "search": ["search", "OUT", "--settings", SETTINGS, "--objective", "tests.toy_objectives:near", "--quiet"],
    "tune": ["tune", "OUT", "--lr", "0.01", "0.1", "--trials", "2", "--quiet", *TASK],
    "init": ["init", "OUT"],
}
# These write beside what they read.
INSIDE = {
    "trials of a search": (["trials", "OPEN", "--step", "1", "--chunk", "0/1", "--quiet", *TASK], "OPEN"),
    "rescore": (["rescore", "SEARCH"], "SEARCH"),
    "select in its folder": (["select", "SEARCH"], "SEARCH"),
    "split in its folder": (["split", "DATA", "--seed", "7"], "DATA"),
    "evaluate in its folder": (["evaluate", "RUN", "--quiet", *TASK], "RUN"),
}
WRITES_NOTHING = {"plan", "doctor"}
WRITES_WHAT_SNAKEMAKE_WRITES = {"resume", "auto"}
WRITES_WHAT_IT_FETCHES = {"fetch"}  # tests/data/test_data_fetch.py has a server for it


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set, a scored search, a search with open trials, a run, and the results of a config."""
    root = tmp_path_factory.mktemp("made")
    make_data(root / "DATA")
    for name, scored in (("SEARCH", True), ("OPEN", False)):
        folder = Folder(root / name)
        settings = folder.start(Search(metric="mIoU", sampler="random", steps=1, trials_per_step=2, rescore=1))
        proposals = ask(settings, [])
        folder.write(proposals)
        for trial in proposals.trials if scored else []:
            score = TrialScore(number=trial.number, metric="mIoU", score=0.1 + 0.01 * trial.number)
            score.save(folder.score_path(1, trial.number))
    shutil.copytree(root / "SEARCH/step-001", root / "SEARCH/rescore")  # for `select`; `rescore` makes it again
    assert main(["rescore", str(root / "SEARCH")]) == 0
    for path in (root / "SEARCH/rescore").glob("trial-*.json"):
        path.unlink()
    for trial in Folder(root / "SEARCH").proposals("rescore").trials:
        score = TrialScore(number=trial.number, metric="mIoU", score=0.2)
        score.save(Folder(root / "SEARCH").score_path("rescore", trial.number))
    assert run(root, ["train", "--loss", "ce", "--quiet", "--out", "RUN", *TASK]) == 0
    write_encoder(root / "RUN/encoder.safetensors")
    make_results(content("tiny"), root / "RESULTS")
    (root / "CONFIG").write_text(yaml.safe_dump(content("tiny")))
    return root


def write_encoder(path: Path) -> None:
    from safetensors.torch import save_file

    from autoseg.training.networks import build_network

    encoder = build_network("tiny", 2).encoder
    assert encoder is not None
    save_file({name: value.clone() for name, value in encoder.state_dict().items()}, path)


def run(made: Path, command: list[str], **places: Path) -> int:
    """Run a command with the words in capitals filled in."""
    there = {name: made / name for name in ("DATA", "SEARCH", "OPEN", "RUN", "RESULTS", "CONFIG")} | places
    words = []
    for word in command:
        for name, place in there.items():
            if word == name or word.startswith((f"{name}/", f"{name}.")) or word.endswith(f"={name}"):
                word = word.replace(name, str(place))
        words.append(word)
    return main(words)


def tree(folder: Path) -> dict[str, bytes]:
    """Return all files but those of the disk itself."""
    return {
        str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "filler"
    }


@contextmanager
def refused_without_a_trace(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> Iterator[list[int]]:
    """Expect exit code 2, one sentence, and every file below the folder as it was."""
    before = tree(folder)
    codes: list[int] = []
    yield codes
    said = capsys.readouterr().err.strip().splitlines()
    assert codes == [2], said
    assert said[-1].startswith(f"autoseg {verb}: "), said
    assert not any("Traceback" in line for line in said)
    assert tree(folder) == before


def test_every_verb_that_writes_is_tried():
    tried = {command[0] for command in [*FILES.values(), *FOLDERS.values(), *(pair[0] for pair in INSIDE.values())]}
    assert tried == set(VERBS) - WRITES_NOTHING - WRITES_WHAT_SNAKEMAKE_WRITES - WRITES_WHAT_IT_FETCHES


# --------------------------------------------------------------------------------------------- places that are none

PLACES = {
    "below a file": lambda root: root / "file" / "out",
    "a name too long": lambda root: root / ("n" * 300),
    "a path too long": lambda root: root / "/".join(["n" * 100] * 50),
    "below a link to itself": lambda root: root / "link" / "out",
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_a_place_that_cannot_be_written_is_named_before_the_work(name, place, made, tmp_path, capsys):
    command = {**FILES, **FOLDERS}[name]
    (tmp_path / "file").write_text("mine\n")
    (tmp_path / "link").symlink_to("link")
    with (
        refused_without_a_trace(tmp_path, capsys, command[0]) as codes,
        unchanged(made),
    ):
        codes.append(run(made, command, OUT=place(tmp_path), NEW=tmp_path / "new"))


@contextmanager
def unchanged(made: Path) -> Iterator[None]:
    before = tree(made)
    yield
    assert tree(made) == before


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_a_folder_for_a_file_and_a_file_for_a_folder_are_named(name, made, tmp_path, capsys):
    command = {**FILES, **FOLDERS}[name]
    out = tmp_path / "out"
    if name in FOLDERS:
        out.write_text("mine\n")
    for suffix in ("", ".json", ".py", ".html", ".png", ".svg", ".md", ".safetensors") if name in FILES else ():
        (tmp_path / f"out{suffix}").mkdir()
        (tmp_path / f"out{suffix}/mine").write_text("mine\n")
    with refused_without_a_trace(tmp_path, capsys, command[0]) as codes, unchanged(made):
        codes.append(run(made, command, OUT=out, NEW=tmp_path / "new"))


# ------------------------------------------------------------------------------------------- disks that take nothing


def fill_in(made: Path, disk: Disk, command: list[str]) -> None:
    """Run a command once, so that old content is there; then change it, so that new content is another."""
    assert run(made, command, OUT=disk.path / "out", NEW=disk.path / "new") == 0
    for path in disk.path.rglob("*"):
        if path.is_file():
            path.write_bytes(b"old\n")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_takes_nothing_keeps_the_old_file(fault, name, made, disk, tmp_path, capsys):
    command = FILES[name]
    mine = tmp_path / "made"
    shutil.copytree(made, mine)
    fill_in(mine, disk, command)
    if name == "split":
        next(disk.path.iterdir()).unlink()  # an old file that is no split is refused for that reason
    capsys.readouterr()
    with refused_without_a_trace(disk.path, capsys, command[0]) as codes:
        spoil(disk, fault)
        codes.append(run(mine, command, OUT=disk.path / "out", NEW=disk.path / "new"))
        disk.free()


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_takes_nothing_gets_no_half_folder(fault, name, made, disk, tmp_path, capsys):
    command = FOLDERS[name]
    with refused_without_a_trace(disk.path, capsys, command[0]) as codes, unchanged(made):
        spoil(disk, fault)
        codes.append(run(made, command, OUT=disk.path / "out", NEW=tmp_path / "new"))
        disk.free()


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_takes_nothing_keeps_what_is_beside_the_inputs(fault, name, made, disk, capsys):
    command, folder = INSIDE[name]
    place = disk.path / folder
    shutil.copytree(
        made / folder, place, ignore=shutil.ignore_patterns("source", "rescore" if "rescore" in name else "")
    )
    (made / folder / "source").exists() and (place / "source").symlink_to(made / folder / "source")
    with refused_without_a_trace(disk.path, capsys, command[0]) as codes:
        spoil(disk, fault)
        codes.append(run(made, command, **{folder: place}))
        disk.free()


def spoil(disk: Disk, fault: str) -> None:
    if fault == "full":
        disk.fill()
    elif disk.can_be_protected:
        disk.protect()
    else:
        pytest.skip("root may write everywhere but on a disk that is mounted read-only, and mounting is not permitted")


# --------------------------------------------------------------------------------------------- inputs and permissions


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own is closed to others."""
    import tempfile

    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may read everything; so be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


UNREADABLE = {
    "search.json": ["ask", "SEARCH", "--step", "1"],
    "step-001/proposals.json": ["select", "SEARCH"],
    "step-001/trial-0.json": ["select", "SEARCH"],
    "CONFIG": ["plan", "--config", "CONFIG"],
    "RUN/run.json": ["evaluate", "RUN", "--quiet", *TASK],
    "RUN/weights.safetensors": ["evaluate", "RUN", "--quiet", *TASK],
    "RUN/encoder.safetensors": ["weights", "tiny", "--from", "RUN/encoder.safetensors", "--out", "OUT.safetensors"],
    "DATA/index.json": ["split", "DATA"],
    "DATA/split.json": ["train", "--loss", "ce", "--quiet", "--out", "OUT", *TASK],
    "SEARCH/surrogate.json": ["loss", "show", "SEARCH/surrogate.json"],
}


@pytest.mark.parametrize("how", ["no permission", "a folder", "a pipe"])
@pytest.mark.parametrize("name", UNREADABLE)
def test_an_input_that_cannot_be_read_is_named(name, how, made, open_folder, capsys):
    mine = open_folder / "made"
    shutil.copytree(made, mine)
    if name == "SEARCH/surrogate.json":
        assert run(mine, ["select", "SEARCH"]) == 0
    for path in (mine, *mine.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    command = UNREADABLE[name]
    path = mine / name if (mine / name).exists() else mine / "SEARCH" / name
    if how == "no permission":
        path.chmod(0o000)
    else:
        path.unlink()
        os.mkfifo(path) if how == "a pipe" else path.mkdir()
    capsys.readouterr()
    with without_privileges():
        code = run(mine, command, OUT=mine / "out")
    said = capsys.readouterr().err
    assert code == 2, said
    assert "Traceback" not in said
    assert path.name in said or str(path.parent) in said


ITSELF = {
    "select": ["select", "SEARCH", "--out", "SEARCH/search.json"],
    "split": ["split", "DATA", "--out", "DATA/index.json"],
    "trials": ["trials", "OPEN", "--step", "1", "--chunk", "0/1", "--out", "OPEN/step-001/proposals.json", *TASK],
    "train into a data set": ["train", "--loss", "ce", "--out", "DATA", *TASK],
    "train into a search": ["train", "--loss", "ce", "--out", "SEARCH", *TASK],
    "evaluate over its run": ["evaluate", "RUN", "--out", "RUN/run.json", *TASK],
    "evaluate over its weights": ["evaluate", "RUN", "--out", "RUN/weights.safetensors", *TASK],
    "evaluate over the index": ["evaluate", "RUN", "--out", "DATA/index.json", *TASK],
    "predictions into the data set": ["evaluate", "RUN", "--predictions", "DATA", *TASK],
    "report": ["report", "--config", "CONFIG", "--results", "RESULTS", "--out", "CONFIG"],
    "weights": ["weights", "tiny", "--from", "RUN/encoder.safetensors", "--out", "RUN/encoder.safetensors"],
    "weights over a run's": [
        "weights",
        "tiny",
        "--from",
        "RUN/weights.safetensors",
        "--out",
        "RUN/weights.safetensors",
    ],
    "prepare into a search": ["prepare", "synthetic", *SMALL, "--out", "SEARCH"],
    "search in a data set": ["search", "DATA", "--settings", SETTINGS, "--objective", "tests.toy_objectives:near"],
    "ask in a data set": ["ask", "DATA", "--step", "1", "--settings", SETTINGS],
    "a loss over a split": ["loss", "export", "mIoU", "--out", "DATA/split.json"],
}


@pytest.mark.parametrize("name", ITSELF)
def test_an_output_that_is_an_input_is_refused(name, made, capsys):
    with refused_without_a_trace(made, capsys, ITSELF[name][0]) as codes:
        codes.append(run(made, ITSELF[name]))


def test_predictions_do_not_replace_the_images(made, capsys):
    entry = json.loads((made / "DATA/index.json").read_text())["splits"]["val"][0]
    images = made / "DATA" / entry["image"].replace("synthetic/", "source/", 1)
    folder = next(path.parent for path in (made / "DATA/source").rglob("*.png") if path.name == Path(images).name)
    with refused_without_a_trace(made, capsys, "evaluate") as codes:
        codes.append(
            run(
                made,
                ["evaluate", "RUN", "--quiet", "--out", "NEW", "--predictions", "OUT", *TASK],
                OUT=folder,
                NEW=made / "never.json",
            )
        )


@pytest.mark.parametrize("out", ["", " ", "a\nb", "\0"])
@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_an_empty_output_is_refused(name, out, made, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = {**FILES, **FOLDERS}[name]
    words = [out if word.startswith("OUT") else word for word in command]
    with refused_without_a_trace(made, capsys, command[0]) as codes:
        codes.append(run(made, words, NEW=tmp_path / "new"))
    assert not list(tmp_path.iterdir())
