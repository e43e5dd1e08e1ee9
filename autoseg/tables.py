"""Tables of scores: losses as rows, metrics as columns, as the paper lays them out; from `scores.json` alone, no torch.

The target metric of a loss is underlined, and scores within 0.3 of the best of their column are bold, by rule.
"""

from __future__ import annotations

import csv
import html
import io
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoseg import formula
from autoseg.errors import InputError
from autoseg.files import atomic, read_json
from autoseg.formula import METRICS
from autoseg.loss_names import parse_terms
from autoseg.pipeline import Row, Table

NEAR_BEST = 0.3  # percent points


@dataclass(frozen=True)
class Cell:
    """A score in percent: the mean over seeds and, with several, their spread (standard deviation)."""

    mean: float | None
    spread: float | None = None
    bold: bool = False
    underlined: bool = False

    @property
    def text(self) -> str:
        """The score as printed."""
        if self.mean is None:
            return ""
        return f"{self.mean:.2f}" + (f" ± {self.spread:.2f}" if self.spread is not None else "")


def targets(row: Row) -> list[str]:
    """Return the metrics that a loss aims at.

    >>> targets(Row(loss="naive:mIoU + 0.5 * published:BIoU"))
    ['mIoU', 'BIoU']
    """
    if row.target:
        return [formula.get(name).name for name in row.target]
    found = []
    for _, term in parse_terms(row.loss):
        kind, _, rest = term.partition(":")
        names = {name.lower(): name for name in formula.names()}
        key = rest.split("-")[0].lower()
        if kind in ("naive", "published", "searched") and key in names:
            found.append(names[key])
    known = {"ce": "gAcc", "wce": "mAcc", "lovasz": "mIoU"}
    return found or [known[row.loss]] if row.loss in known else found


def fill(table: Table, scores: Sequence[dict[str, Any]]) -> list[tuple[str, list[Cell]]]:
    """Return the rows of a table with their cells; a loss without scores has empty ones."""
    by_loss: dict[str, list[dict[str, float]]] = {}
    for found in scores:
        by_loss.setdefault(found["loss"], []).append(found["scores"])
    means: dict[str, list[float | None]] = {}
    spreads: dict[str, list[float | None]] = {}
    for row in table.rows:
        runs = by_loss.get(row.loss, [])
        means[row.loss] = [statistics.fmean(run[m] for run in runs) if runs else None for m in METRICS]
        many = len(runs) > 1
        spreads[row.loss] = [statistics.stdev(run[m] for run in runs) if many else None for m in METRICS]
    columns = zip(*means.values(), strict=True)
    best = [max((mean for mean in column if mean is not None), default=None) for column in columns]
    rows = []
    for row in table.rows:
        aims = targets(row)
        cells = []
        for k, metric in enumerate(METRICS):
            mean, top = means[row.loss][k], best[k]
            near = mean is not None and top is not None and top - mean < NEAR_BEST
            cells.append(Cell(mean, spreads[row.loss][k], near, metric in aims))
        rows.append((row.label or row.loss, cells))
    return rows


def markdown(table: Table, rows: Sequence[tuple[str, list[Cell]]]) -> str:
    """Return the table in markdown."""

    def show(cell: Cell) -> str:
        text = f"<u>{cell.text}</u>" if cell.underlined and cell.text else cell.text
        return f"**{text}**" if cell.bold and text else text

    lines = [f"| Loss | {' | '.join(METRICS)} |", "|---|" + "---:|" * len(METRICS)]
    lines += [f"| {label} | {' | '.join(show(cell) for cell in cells)} |" for label, cells in rows]
    return f"### {table.title}\n\n" + "\n".join(lines) + f"\n\n{_caption(table, rows)}\n"


def comma_separated(rows: Sequence[tuple[str, list[Cell]]]) -> str:
    """Return the table as CSV, with full digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["loss", *METRICS, *(f"{m} spread" for m in METRICS)])
    for label, cells in rows:
        writer.writerow([label, *(cell.mean for cell in cells), *(cell.spread for cell in cells)])
    return out.getvalue()


def hypertext(table: Table, rows: Sequence[tuple[str, list[Cell]]]) -> str:
    """Return the table as an HTML element."""

    def show(cell: Cell) -> str:
        text = html.escape(cell.text)
        text = f"<u>{text}</u>" if cell.underlined and text else text
        return f"<td>{f'<b>{text}</b>' if cell.bold and text else text}</td>"

    head = "".join(f"<th>{metric}</th>" for metric in METRICS)
    body = "\n".join(
        f"<tr><th>{html.escape(label)}</th>{''.join(show(cell) for cell in cells)}</tr>" for label, cells in rows
    )
    caption = f"<b>{html.escape(table.title)}</b>. {html.escape(_caption(table, rows))}"
    return (
        f"<table class='scores'><caption>{caption}</caption>"
        f"<thead><tr><th>Loss</th>{head}</tr></thead><tbody>\n{body}\n</tbody></table>\n"
    )


def _caption(table: Table, rows: Sequence[tuple[str, list[Cell]]]) -> str:
    seeds = f"mean and standard deviation of {len(table.seeds)} seeds" if len(table.seeds) > 1 else "one run each"
    text = f"Percent, {seeds}. Underlined: the loss's target. Bold: less than {NEAR_BEST} below the column's best."
    empty = [label for label, cells in rows if all(cell.mean is None for cell in cells)]
    return text + (f" Not computed yet: {', '.join(empty)}; run `snakemake tables`." if empty else "")


def write_table(table: Table, paths: Sequence[str | os.PathLike[str]], stem: str) -> None:
    """Write <stem>.md, <stem>.csv and <stem>.html from score files."""
    scores = []
    for path in paths:
        content = read_json(path)
        if not isinstance(content, dict) or content.get("schema") != "autoseg/scores/1":
            raise InputError(f"{path}: not a scores.json of this autoseg; run `autoseg evaluate` again.")
        scores.append(content)
    rows = fill(table, scores)
    for suffix, text in (
        ("md", markdown(table, rows)),
        ("csv", comma_separated(rows)),
        ("html", hypertext(table, rows)),
    ):
        with atomic(f"{stem}.{suffix}") as file:
            file.write(text)
