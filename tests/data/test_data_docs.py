"""docs/data.md: its examples are valid, its commands and its program run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from data_trees import voc_tree

from autoseg.cli import main
from autoseg.data.model import CacheLayout, Index, SourcePaths
from autoseg.data.split import Split

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("model", [Index, CacheLayout, Split, SourcePaths])
def test_the_example_of_each_file_is_valid_and_complete(tmp_path, model):
    examples = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    (example,) = [text for text in examples if f'"{model.SCHEMA}"' in text]
    (tmp_path / "example.json").write_text(example)
    assert model.load(tmp_path / "example.json").content() == json.loads(example)


def test_the_commands_run(tmp_path, monkeypatch):
    (block,) = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    voc_tree(tmp_path / "data")
    for command in block.splitlines():
        small = ["--hold-out", "2"] if " split " in command else ["--threads", "1"]
        assert main([*shlex.split(command.replace("--root /data", "--root data"))[1:], *small]) == 0, command
    assert (tmp_path / "results/data/voc/split.json").exists()


def test_the_program_runs_as_it_stands(tmp_path, monkeypatch):
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    options = ["--train", "8", "--val", "2", "--size", "64", "--threads", "1"]
    assert main(["prepare", "synthetic", "--out", "results/data/voc", *options]) == 0
    assert main(["split", "results/data/voc"]) == 0
    names: dict = {}
    exec(re.sub(r"loaders=\d+", "loaders=0", program), names)
    images, masks = next(iter(names["train"]))
    assert images.shape == (32, 3, 128, 128)
    assert len(list(names["score"])) == 1
    assert [tuple(masks.shape) for _, masks in names["final"]] == [(1, 64, 64)] * 2
    assert masks.shape == (32, 128, 128)
