"""`scores.json`: what a run scored, on disk. No torch here."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from autoseg.config import parse
from autoseg.errors import InputError
from autoseg.files import read_json


class Scores(BaseModel):
    """`scores.json`: the metrics of a run on the validation images, in percent."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal["autoseg/scores/1"] = Field(default="autoseg/scores/1", alias="schema")
    run: str
    dataset: str
    network: str
    loss: str
    seed: int
    diverged: bool
    scores: dict[str, FiniteFloat]
    per_class: dict[str, dict[str, FiniteFloat | None]] = Field(description="metric -> class -> score; null: absent")
    weights: str
    fingerprint: str

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Scores:
        """Read a score file; one that is broken, or of another kind, is named."""
        content = read_json(path)
        if not isinstance(content, dict) or content.get("schema") != "autoseg/scores/1":
            raise InputError(f"{path}: not a file of scores; expected one that `autoseg evaluate` wrote.")
        return parse(cls, content, path)
