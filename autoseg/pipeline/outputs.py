"""The sections of a config that name results: tables, figures, and the runs that both are made of.

A new kind of figure is one class here, and the function in `autoseg.report.figures` that draws it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Field, field_validator, model_validator

from autoseg.errors import InputError, unknown
from autoseg.files import Part
from autoseg.losses.names import check_loss, parse_loss, searches_of
from autoseg.metrics import formula
from autoseg.metrics.formula import METRICS
from autoseg.training.settings import Decide

Name = str

SCORE_TABLES = ("main", "datasets", "networks", "constraints", "proxies", "linear")
"""The paper's tables of scores, in its order; `autoseg.report.published` has their numbers."""


MOST_RUNS = 100_000
"""How many runs a table may stand for."""


def _or_loss(schema: dict[str, Any]) -> None:
    """Add to the JSON schema that a plain loss stands for a row."""
    row = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string", "description": "a loss"}, row]


class Row(Part):
    """A row of a table: a loss, under a label."""

    model_config = ConfigDict(json_schema_extra=_or_loss)

    loss: str = Field(
        description="see `autoseg.build_loss`; also searched:<search>; {searches} is replaced by that of the columns"
    )
    label: str | None = Field(default=None, description="label of the row; null: the loss")
    retraining: Name | None = Field(default=None, description="one of `retrainings`; null: that of the columns")
    about: list[str] = Field(default=[], description="texts in the `about` columns of the table")
    decide: Decide = Field(
        default="argmax",
        description="how labels follow from the network's probabilities: argmax, or RankSEG for Dice (rankseg) or IoU "
        "(rankseg-iou) of each image; the run is not trained again for it",
    )
    target: list[str] = Field(default=[], description="metrics that the loss aims at; []: derived from its name")

    @model_validator(mode="before")
    @classmethod
    def _plain_loss(cls, content: Any) -> Any:
        return {"loss": content} if isinstance(content, str) else content


class Run(NamedTuple):
    """A run: a loss trained on a data set; `name` is its folder below results/<name>/runs."""

    dataset: Name
    retraining: Name
    loss: str
    seed: int
    decide: Decide = "argmax"

    @property
    def trained(self) -> Run:
        """The run whose network this is: itself, unless it decides otherwise than by argmax."""
        return self._replace(decide="argmax")

    @property
    def name(self) -> str:
        """The run's folder.

        >>> Run("voc", "r101", "published:mIoU + 0.5 * searched:biou", 0).name
        'voc/r101/published-mIoU_0.5xsearched-biou/seed-0'
        """
        plain = re.sub(r"\s*\*\s*", "x", re.sub(r"\s\+\s", "_", self.loss.strip())).replace(":", "-").replace("/", "-")
        decided = "" if self.decide == "argmax" else f"-{self.decide}"
        return f"{self.dataset}/{self.retraining}/{re.sub(r'[^A-Za-z0-9._-]', '-', plain)}/seed-{self.seed}{decided}"


class Columns(Part):
    """Columns of a table: where its losses are trained and scored."""

    dataset: Name = Field(description="one of `datasets`")
    retraining: Name = Field(description="one of `retrainings`")
    label: str = Field(default="", description="heading above the columns")
    searches: str = Field(default="", description="text that replaces {searches} in the losses of the rows")

    def loss(self, row: Row) -> str:
        """Return a row's loss in these columns.

        >>> Columns(dataset="voc", retraining="r101", searches="voc").loss(Row(loss="searched:{searches}-mIoU"))
        'searched:voc-mIoU'
        """
        return row.loss.replace("{searches}", self.searches)

    def run(self, row: Row, seed: int) -> Run:
        """Return the run of a row in these columns."""
        return Run(self.dataset, row.retraining or self.retraining, self.loss(row), seed, row.decide)


_ONE_BLOCK = ("dataset", "retraining", "searches")  # of `Columns`, in a table with a single block of them


def _or_one_block(schema: dict[str, Any]) -> None:
    """Add to the JSON schema that a table with one block of columns has the keys of the block itself."""
    columns = Columns.model_json_schema()["properties"]
    for key in _ONE_BLOCK:
        schema["properties"][key] = {**columns[key], "description": "for a single block of columns"}
    schema["required"] = ["rows"]


class Table(Part):
    """A table: losses as rows, metrics as columns, once for each data set and retraining it compares."""

    model_config = ConfigDict(json_schema_extra=_or_one_block)

    title: str = ""
    columns: list[Columns] = Field(min_length=1, description="data sets and retrainings, side by side")
    rows: list[Row] = Field(min_length=1, description="losses; a plain name stands for {loss: name}")
    metrics: list[str] = Field(default=list(METRICS), min_length=1, description="which scores to show")
    about: list[str] = Field(default=[], description="columns with texts that describe the rows")
    hours: bool = Field(default=False, description="show the hours of the search behind each row")
    seeds: list[int] = Field(default=[0], min_length=1, description="one run for each; the table shows the mean")
    against: str | None = Field(
        default=None,
        description="loss of the row that the others are compared with over paired seeds, where there are several; "
        "null: ce, or the first row",
    )
    paper: str | None = Field(default=None, description="name of the paper's table to compare with, see docs/tables.md")

    @model_validator(mode="before")
    @classmethod
    def _one_block(cls, content: Any) -> Any:
        """Take `dataset` and `retraining` for a single block of columns."""
        if not isinstance(content, Mapping) or "columns" in content or not {"dataset", "retraining"} & set(content):
            return content
        rest = {key: value for key, value in content.items() if key not in _ONE_BLOCK}
        return {**rest, "columns": [{key: content[key] for key in _ONE_BLOCK if key in content}]}

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, values: list[str]) -> list[str]:
        return [formula.get(value).name for value in values]

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, values: list[int]) -> list[int]:
        if min(values) < 0 or len(set(values)) != len(values):
            raise InputError(f"found {values}", expected="different whole numbers, 0 or more")
        return values

    @model_validator(mode="after")
    def _described(self) -> Table:
        if (count := len(self.columns) * len(self.rows) * len(self.seeds)) > MOST_RUNS:
            raise InputError(f"{count:,} runs", where="columns, rows, seeds", expected=f"{MOST_RUNS:,} at most")
        if self.paper is not None and self.paper not in SCORE_TABLES:
            raise unknown("table of the paper", self.paper, SCORE_TABLES, where="paper")
        if self.against is not None and self.against not in (losses := [row.loss for row in self.rows]):
            raise unknown("row", self.against, losses, where="against")
        for row in self.rows:
            if len(row.about) != len(self.about):
                what = f"the row '{row.label or row.loss}' has {len(row.about)}"
                raise InputError(what, where="rows: about", expected=f"one text for each of {self.about}")
        return self

    @property
    def reference(self) -> Row:
        """The row that the others are compared with."""
        wanted = self.against or "ce"
        return next((row for row in self.rows if row.loss == wanted), self.rows[0])

    @property
    def shown_metrics(self) -> list[str]:
        """The metrics that are shown of each run."""
        return self.metrics

    @property
    def runs(self) -> list[Run]:
        """The runs behind the table, column by column."""
        return [block.run(row, seed) for block in self.columns for row in self.rows for seed in self.seeds]


class _Figure(Part):
    """What all kinds of figures have; a kind names what it is drawn from."""

    title: str = ""
    needs_networks: ClassVar[bool] = False  # the runs' weights, not only their scores

    @property
    def runs(self) -> list[Run]:
        """The runs that are shown."""
        return []

    @property
    def shown_searches(self) -> list[Name]:
        """The searches that are shown."""
        return []

    @property
    def shown_table(self) -> Name | None:
        """The table whose hours are shown."""
        return None

    @property
    def shown_metrics(self) -> list[str]:
        """The metrics that are shown of each run."""
        return []


class SearchFigure(_Figure):
    """The best average score up to each step, one line for each group of searches, its repeats as a band."""

    kind: Literal["searches"]
    lines: dict[str, Annotated[list[Name], Field(min_length=1)]] = Field(
        min_length=1, description="label -> searches, the repeats of one another"
    )

    @property
    def shown_searches(self) -> list[Name]:
        """The searches of all lines."""
        return [search for searches in self.lines.values() for search in searches]


class CurveFigure(_Figure):
    """The curves g of searched losses against the identity."""

    kind: Literal["curves"]
    searches: list[Name] = Field(min_length=1)

    @property
    def shown_searches(self) -> list[Name]:
        """The searches."""
        return self.searches


class SurrogateFigure(_Figure):
    """The curves g of one loss with their control points, and the logic that they make."""

    kind: Literal["surrogate"]
    loss: str = Field(description="published:<name>, naive:<metric> or searched:<search>; no sum")

    @field_validator("loss")
    @classmethod
    def _one_surrogate(cls, value: str) -> str:
        check_loss(value)
        terms = parse_loss(value)
        if len(terms) > 1 or terms[0].kind in ("hand-made", "file"):
            raise InputError(f"found '{value}'", expected="one surrogate, such as published:mIoU")
        return value

    @property
    def shown_searches(self) -> list[Name]:
        """The search of a searched loss."""
        return searches_of(self.loss)


class _RunFigure(_Figure):
    dataset: Name
    retraining: Name
    losses: dict[str, str] = Field(min_length=1, description="label -> loss")
    seed: int = 0

    @property
    def runs(self) -> list[Run]:
        """One run for each loss."""
        return [Run(self.dataset, self.retraining, loss, self.seed) for loss in self.losses.values()]


class GalleryFigure(_RunFigure):
    """Validation images as the networks of several losses see them, beside the ground truth."""

    kind: Literal["gallery"]
    images: int = Field(default=4, ge=1, description="how many, evenly spread over the validation set")
    needs_networks: ClassVar[bool] = True

    def check_images(self, there: int) -> None:
        """Refuse to show more images than there are."""
        if self.images > there:
            what = f"{self.images} of the {there} validation images of '{self.dataset}'"
            raise InputError(what, where="images", expected=f"at most {there}")


class ClassFigure(_RunFigure):
    """A metric's score of every class, one bar for each loss."""

    kind: Literal["classes"]
    metric: str = "mIoU"

    @property
    def shown_metrics(self) -> list[str]:
        """The metric."""
        return [self.metric]

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        return formula.get(value).name


class ProxyFigure(_Figure):
    """What the searches of a table cost, against what their losses reach."""

    kind: Literal["proxies"]
    table: Name = Field(description="a table with `hours`")

    @property
    def shown_table(self) -> Name:
        """The table."""
        return self.table


Figure = Annotated[
    SearchFigure | CurveFigure | SurrogateFigure | GalleryFigure | ClassFigure | ProxyFigure,
    Field(discriminator="kind"),
]
