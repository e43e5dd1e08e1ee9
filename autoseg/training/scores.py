"""`scores.json`: what a run scored, on disk. No torch here."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, FiniteFloat

from autoseg.files import Document

WEIGHTS_FILE = "weights.safetensors"
"""The weights of a run, beside its `run.json`."""


class AboutRun(Document):
    """What both files of a run, `run.json` and `scores.json`, say of it."""

    dataset: str
    network: str
    loss: str | None = Field(description="null: not known, of somebody else's checkpoint")
    seed: int | None = Field(description="null: not known")
    diverged: bool
    weights: str = Field(description="checksum of weights.safetensors, or of the checkpoint")
    fingerprint: str


class Scores(AboutRun):
    """`scores.json`: the metrics of a run on the validation images, in percent."""

    SCHEMA: ClassVar[str] = "autoseg/scores/1"

    run: str
    scores: dict[str, FiniteFloat]
    per_class: dict[str, dict[str, FiniteFloat | None]] = Field(description="metric -> class -> score; null: absent")
