"""The paper's tables as data, as printed, to the last digit. All scores are in percent.

`numbers/<name>.yaml` holds the numbers with their marks: `u 71.87` is underlined, `b 93.33` bold, `ub 92.66` both.
A number that is known to be wrong, or that differs from the logs of the authors' release, has a note and stays.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from importlib import resources
from typing import Any

from pydantic import Field, model_validator

from autoseg.errors import InputError, unknown
from autoseg.files import Part, parse
from autoseg.pipeline.outputs import SCORE_TABLES

PUBLISHED_TABLES = ("metrics", *SCORE_TABLES)
"""The paper's tables, in its order."""

_CELL = re.compile(r"^(?:(?P<marks>u|b|ub) )?(?P<text>\d+\.\d+|Fail)$")


class Printed(Part):
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
            raise InputError(f"'{content}' is no printed number", expected="such as 'ub 80.97'")
        marks = match["marks"] or ""
        return {"text": match["text"], "bold": "b" in marks, "underlined": "u" in marks}

    @property
    def value(self) -> float | None:
        """The number, if it is one.

        >>> Printed.model_validate("ub 70.50").value, Printed.model_validate("Fail").value
        (70.5, None)
        """
        return None if self.text == "Fail" else float(self.text)


class PrintedColumns(Part):
    """A block of columns: what stands above it, and its metrics."""

    label: str
    metrics: list[str] = Field(min_length=1)


class PrintedRow(Part):
    """A row: its scores, one list for each block of columns."""

    label: str
    about: list[str] = Field(default=[])
    rule_above: bool = False
    hours: float | None = None
    scores: list[list[Printed]]


class Note(Part):
    """A note on cells, on a row or on the whole table; `logged` has the scores in the release's logs, in percent."""

    row: str | None = None
    columns: str | None = None
    metrics: list[str] = Field(default=[])
    text: str
    logged: dict[str, float] = Field(default={})


class PublishedTable(Part):
    """A table of scores of the paper."""

    number: int
    title: str
    caption: str
    about: list[str] = Field(default=[])
    columns: list[PrintedColumns]
    rows: list[PrintedRow]
    notes: list[Note] = Field(default=[])
    said: dict[str, str] = Field(default={}, description="what the paper says of a loss that it has no row for")

    @model_validator(mode="after")
    def _rectangular(self) -> PublishedTable:
        expected = [len(block.metrics) for block in self.columns]
        for row in self.rows:
            if [len(scores) for scores in row.scores] != expected or len(row.about) != len(self.about):
                raise InputError("has other columns than the table", where=f"row '{row.label}'")
        return self

    def row(self, label: str) -> PrintedRow | None:
        """Return the row of this label; see `same`."""
        return next((row for row in self.rows if same(row.label, label)), None)

    def words(self, label: str) -> str:
        """Return what the paper says of a loss instead of numbers; empty: nothing.

        >>> published_table("main").words("AM-LFS")
        'no reasonable result'
        """
        return next((words for name, words in self.said.items() if same(name, label)), "")

    def block(self, label: str) -> int | None:
        """Return the number of the block of columns under this label; a table's only block needs none."""
        if len(self.columns) == 1:
            return 0
        return next((k for k, block in enumerate(self.columns) if same(block.label, label)), None)

    def cell(self, row: str, block: str, metric: str) -> Printed | None:
        """Return what the paper prints in a row, in the column of a block and a metric; None: nothing.

        >>> published_table("main").cell("lovasz", "PASCAL VOC", "mIoU").text
        '79.72'
        """
        found, k = self.row(row), self.block(block)
        if found is None or k is None or metric not in self.columns[k].metrics:
            return None
        return found.scores[k][self.columns[k].metrics.index(metric)]


class Definition(Part):
    """A metric as the paper defines it."""

    metric: str
    type: str
    name: str
    mark: str
    rule_above: bool = False
    formula: str = Field(description="LaTeX, as printed")
    plain: str = Field(description="the same in words")


class PublishedMetrics(Part):
    """The paper's table of metrics."""

    number: int
    title: str
    caption: str
    rows: list[Definition]
    notes: list[Note] = Field(default=[])


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
    return parse(PublishedTable, _numbers(name), f"autoseg/report/numbers/{name}.yaml")


@cache
def published_metrics() -> PublishedMetrics:
    """Return the table of metrics."""
    return parse(PublishedMetrics, _numbers("metrics"), "autoseg/report/numbers/metrics.yaml")


def _numbers(name: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError(
            "the paper's numbers need the package pyyaml", cure="pip install 'autoseg[pipeline]'"
        ) from None
    text = resources.files(__package__).joinpath("numbers", f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=yaml.BaseLoader)  # every scalar as it is written: 70.50 keeps its last digit
