"""docs/training.md: every setting, protocol, network and file is in it as the code has it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autoseg.config import PROTOCOLS, Training
from autoseg.networks import NETWORKS
from autoseg.runs import Scores, Trained

TEXT = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a heading."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line] for line in lines]


def shown(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def test_every_setting_is_there_with_its_default_and_origin():
    table = {row[0]: row[1:] for row in rows("Settings")}
    assert list(table) == [f"`{name}`" for name in Training.model_fields]
    for name, field in Training.model_fields.items():
        default, *what = table[f"`{name}`"]
        assert default == ("" if field.is_required() else f"`{shown(field.default)}`"), name
        assert what[0] == field.description, name
        assert what[1], name


def test_every_protocol_is_there_with_its_settings_and_origin():
    expected = [
        [f"`{name}`", ", ".join(f"`{key}={shown(value)}`" for key, value in changes.items()), origin]
        for name, (changes, origin) in PROTOCOLS.items()
    ]
    assert rows("Protocols") == expected


def test_every_network_is_there():
    assert rows("Networks") == [
        [f"`{name}`", entry.what, f"`{entry.hub}`" if entry.hub else "none"] for name, entry in NETWORKS.items()
    ]


@pytest.mark.parametrize("model", [Trained, Scores])
def test_the_example_of_each_file_is_valid_and_complete(model):
    (example,) = [
        content
        for content in map(json.loads, re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL))
        if content["schema"] == model.model_fields["schema_"].default
    ]
    assert model.model_validate(example).model_dump(by_alias=True) == example
