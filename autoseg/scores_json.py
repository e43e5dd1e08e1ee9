"""`scores.json`: what a run scored, on disk. No torch here."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from autoseg.config import parse
from autoseg.errors import InputError
from autoseg.files import read_json


class AboutRun(BaseModel):
    """What both files of a run, `run.json` and `scores.json`, say of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    dataset: str
    network: str
    loss: str
    seed: int
    diverged: bool
    weights: str = Field(description="checksum of weights.safetensors")
    fingerprint: str


class Scores(AboutRun):
    """`scores.json`: the metrics of a run on the validation images, in percent."""

    schema_: Literal["autoseg/scores/1"] = Field(default="autoseg/scores/1", alias="schema")
    run: str
    scores: dict[str, FiniteFloat]
    per_class: dict[str, dict[str, FiniteFloat | None]] = Field(description="metric -> class -> score; null: absent")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Scores:
        """Read a score file; one that is broken, or of another kind, is named."""
        content = read_json(path)
        if not isinstance(content, dict) or content.get("schema") != "autoseg/scores/1":
            raise InputError(f"{path}: not a file of scores; expected one that `autoseg evaluate` wrote.")
        return parse(cls, content, path)
