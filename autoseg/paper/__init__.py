"""The paper's tables as data, to the last digit; and ours in the same layout: tables, figures and the report.

`numbers/<name>.yaml` holds what is printed, the marks too: `u 71.87` is underlined, `b 93.33` bold, `ub 92.66` both.
What is known to be wrong, or different in the logs of the authors' release, is a note beside it; the number stays.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from autoseg.config import parse
from autoseg.errors import InputError, unknown

PUBLISHED_TABLES = ("metrics", "main", "datasets", "networks", "constraints", "proxies", "linear")
"""The names of the paper's tables, in its order; all but the first are tables of scores."""

SCORE_TABLES = PUBLISHED_TABLES[1:]

_CELL = re.compile(r"^(?:(?P<marks>u|b|ub) )?(?P<text>\d+\.\d+|Fail)$")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Printed(_Model):
    """A number as the paper prints it."""

    text: str
    bold: bool = False
    underlined: bool = False

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, content: Any) -> Any:
        if not isinstance(content, str):
            return content
        match = _CELL.match(content)
        if match is None:
            raise ValueError(f"'{content}' is no printed number; expected such as 'ub 80.97'")
        marks = match["marks"] or ""
        return {"text": match["text"], "bold": "b" in marks, "underlined": "u" in marks}

    @property
    def value(self) -> float | None:
        """The number, if it is one.

        >>> Printed.model_validate("ub 70.50").value, Printed.model_validate("Fail").value
        (70.5, None)
        """
        return None if self.text == "Fail" else float(self.text)


class PrintedColumns(_Model):
    """A block of columns: what stands above it, and its metrics."""

    label: str
    metrics: list[str] = Field(min_length=1)


class PrintedRow(_Model):
    """A row: its scores, one list for each block of columns."""

    label: str
    about: list[str] = []
    rule_above: bool = False
    hours: float | None = None
    scores: list[list[Printed]]


class Note(_Model):
    """What to know of cells, of a row, or of the whole table; `logged` is what the release's logs say instead."""

    row: str | None = None
    columns: str | None = None
    metrics: list[str] = []
    text: str
    logged: dict[str, float] = {}


class PublishedTable(_Model):
    """A table of scores of the paper."""

    number: int
    title: str
    caption: str
    about: list[str] = []
    columns: list[PrintedColumns]
    rows: list[PrintedRow]
    notes: list[Note] = []

    @model_validator(mode="after")
    def _rectangular(self) -> PublishedTable:
        expected = [len(block.metrics) for block in self.columns]
        for row in self.rows:
            if [len(scores) for scores in row.scores] != expected or len(row.about) != len(self.about):
                raise ValueError(f"row '{row.label}' has other columns than the table")
        return self

    def row(self, label: str) -> PrintedRow | None:
        """Return the row of this label, however it is accented and capitalised."""
        return next((row for row in self.rows if same(row.label, label)), None)

    def block(self, label: str) -> int | None:
        """Return the number of the block of columns under this label; a table's only block needs none."""
        if len(self.columns) == 1:
            return 0
        return next((k for k, block in enumerate(self.columns) if same(block.label, label)), None)

    def cell(self, row: str, block: str, metric: str) -> Printed | None:
        """Return what the paper prints for a loss, below a label and a metric; None: nothing.

        >>> published_table("main").cell("lovasz", "PASCAL VOC", "mIoU").text
        '79.72'
        """
        found, k = self.row(row), self.block(block)
        if found is None or k is None or metric not in self.columns[k].metrics:
            return None
        return found.scores[k][self.columns[k].metrics.index(metric)]


class Definition(_Model):
    """A metric as the paper defines it."""

    metric: str
    type: str
    name: str
    mark: str
    rule_above: bool = False
    formula: str = Field(description="LaTeX, as printed")
    plain: str = Field(description="the same in words")


class PublishedMetrics(_Model):
    """The paper's table of metrics."""

    number: int
    title: str
    caption: str
    rows: list[Definition]
    notes: list[Note] = []


def same(a: str, b: str) -> bool:
    """Whether two labels are the same but for accents, case, spaces and arrows.

    >>> same("Lovàsz", "lovasz"), same("Cityscapes → VOC", "Cityscapes to VOC"), same("WCE", "CE")
    (True, True, False)
    """
    return _plain(a) == _plain(b)


def _plain(label: str) -> str:
    letters = unicodedata.normalize("NFKD", label.replace("→", "to").casefold())
    return "".join(c for c in letters if not unicodedata.combining(c) and not c.isspace())


@cache
def published_table(name: str) -> PublishedTable:
    """Return a table of scores by name.

    >>> published_table("main").rows[6].scores[0][0]
    Printed(text='80.97', bold=True, underlined=True)
    """
    if name not in SCORE_TABLES:
        raise unknown("table of the paper", name, SCORE_TABLES)
    return parse(PublishedTable, _numbers(name), f"autoseg/paper/numbers/{name}.yaml")


@cache
def published_metrics() -> PublishedMetrics:
    """Return the table of metrics."""
    return parse(PublishedMetrics, _numbers("metrics"), "autoseg/paper/numbers/metrics.yaml")


def _numbers(name: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError("the paper's numbers need the package pyyaml: pip install 'autoseg[pipeline]'.") from None
    text = resources.files(__package__).joinpath("numbers", f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=yaml.BaseLoader)  # every scalar as it is written: 70.50 keeps its last digit
