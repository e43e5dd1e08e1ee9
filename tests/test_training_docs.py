"""docs/training.md: every setting has an origin, and networks and files are as the code has them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autoseg.training.networks import NETWORKS, build_network
from autoseg.training.run import Trained
from autoseg.training.scores import Scores
from autoseg.training.settings import Training

TEXT = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a heading."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def test_every_setting_has_an_origin():
    named = [name for _, settings in rows("Protocols and settings") for name in settings.replace("`", "").split(", ")]
    assert sorted(named) == sorted(Training.model_fields)


def millions(name: str) -> str:
    """The parameters of a network with 21 classes."""
    return f"{sum(parameter.numel() for parameter in build_network(name, 21).parameters()) / 1e6:.3g}"


def test_every_network_is_there():
    assert rows("Networks") == [
        [f"`{name}`", network.what, f"{millions(name)} M", f"`{network.hub}`" if network.hub else "none"]
        for name, network in NETWORKS.items()
    ]


@pytest.mark.parametrize("model", [Trained, Scores])
def test_the_example_of_each_file_is_valid_and_complete(model):
    (example,) = [
        content
        for content in map(json.loads, re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL))
        if content["schema"] == model.SCHEMA
    ]
    assert model.read(example, "the example").content() == example
