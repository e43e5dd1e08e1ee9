"""Tables of scores in the paper's layout, ours beside the paper's. No torch. All scores here are in percent.

Of our scores, the metrics that a loss aims at are underlined, and scores less than 0.3 below the best of their column
are bold; the paper's are marked as printed.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autoseg.losses.names import Term, parse_loss, searches_of
from autoseg.metrics import formula
from autoseg.pipeline.outputs import Columns, Row, Table
from autoseg.report.comparison import LEVEL, Difference, paired
from autoseg.report.published import Note, Printed, PublishedTable, published_table, same
from autoseg.report.score_files import ReadScores
from autoseg.search.times import search_time

NEAR_BEST = 0.3  # percent points
_CHECKS = {"yes": "✓", "no": "✗"}  # as the paper prints its ablation

# The metrics that the paper underlines for the hand-made losses; it underlines none for Dice.
_AIMS = {"ce": ["gAcc"], "wce": ["mAcc"], "lovasz": ["mIoU"], "dpce": ["BIoU", "BF1"], "ssim": ["BIoU", "BF1"]}


@dataclass(frozen=True)
class Cell:
    """A score in percent: the mean over `seeds` of its runs and, with several, their spread; and the paper's."""

    mean: float | None = None
    spread: float | None = None
    seeds: int = 0
    bold: bool = False
    underlined: bool = False
    paper: Printed | None = None
    notes: tuple[int, ...] = ()
    runs: tuple[str, ...] = ()
    shown: str = ""  # instead of the number
    gain: Difference | None = None  # over the row that the others are compared with, where there are several seeds

    @property
    def mean_text(self) -> str:
        """Our score as shown, without its spread."""
        return self.shown or ("" if self.mean is None else f"{self.mean:.2f}")

    @property
    def spread_text(self) -> str:
        """The spread as shown; empty for a single run."""
        return "" if self.spread is None else f"± {self.spread:.2f}"

    @property
    def text(self) -> str:
        """Our score as shown."""
        return f"{self.mean_text} {self.spread_text}".rstrip()

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        if self.mean is None or self.paper is None or self.paper.value is None:
            return None
        return self.mean - self.paper.value

    @property
    def difference_text(self) -> str:
        """The difference of the two numbers as shown; a zero has no sign."""
        if self.mean is None or self.paper is None or self.paper.value is None:
            return ""
        difference = round(round(self.mean, 2) - self.paper.value, 2)
        return f"{difference:+.2f}".replace("-", "−") if difference else "0.00"


@dataclass(frozen=True)
class FilledRow:
    """A row: a loss, what the `about` columns say of it, the hours of its search, and its cells, a tuple per block."""

    label: str
    loss: str
    about: tuple[str, ...]
    blocks: tuple[tuple[Cell, ...], ...]
    hours: float | None = None
    paper_hours: float | None = None
    paper_says: str = ""  # of a loss that it has no numbers for
    rule_above: bool = False

    @property
    def cells(self) -> list[Cell]:
        """The cells from left to right."""
        return [cell for block in self.blocks for cell in block]

    @property
    def in_paper(self) -> bool:
        """Whether the paper has a number, or words, for this row."""
        return bool(self.paper_says) or any(cell.paper for cell in self.cells)

    @property
    def compared(self) -> bool:
        """Whether the row is compared with another one."""
        return any(cell.gain for cell in self.cells)

    @property
    def left(self) -> list[str]:
        """What stands left of the numbers: the label, or what the `about` columns say."""
        return [_CHECKS.get(text, text) for text in self.about] or [self.label]

    @property
    def hours_text(self) -> str:
        """The hours as shown."""
        if self.hours is None:
            return ""
        return f"{self.hours:.1f}" if self.hours >= 1 else f"{self.hours:.2g}"

    @property
    def paper_hours_text(self) -> str:
        """The paper's hours as printed."""
        return "" if self.paper_hours is None else f"{self.paper_hours:.1f}"


@dataclass(frozen=True)
class FilledTable:
    """A table with its numbers, ready to be written in any format."""

    title: str
    columns: tuple[Columns, ...]
    metrics: tuple[str, ...]
    about: tuple[str, ...]
    hours: bool
    rows: tuple[FilledRow, ...]
    caption: tuple[str, ...]
    notes: tuple[str, ...] = ()
    paper: str | None = None
    reference: str = ""  # the label of the row that the others are compared with

    @property
    def gains(self) -> str:
        """What stands above the differences from the reference; empty where there are none."""
        if not any(row.compared for row in self.rows):
            return ""
        return (
            f"Differences from {self.reference}, seed by seed: the mean, its {100 * LEVEL:.0f} % interval by Student's "
            "t, and how many seeds are better."
        )

    @property
    def gain_headings(self) -> list[str]:
        """What stands above the columns of the differences."""
        scores = [f"{block.label} {metric}".strip() for block in self.columns for metric in self.metrics]
        return [*(self.about or ["Loss"]), *scores]

    @property
    def labels(self) -> bool:
        """Whether the blocks of columns have labels above them."""
        return len(self.columns) > 1 and any(block.label for block in self.columns)

    @property
    def left_headings(self) -> list[str]:
        """What stands above the columns left of the scores."""
        return [*(self.about or ["Loss"]), *(["Hours"] if self.hours else [])]

    @property
    def headings(self) -> list[str]:
        """What stands above each column of scores; a single block has its label there, as in "VOC mIoU"."""
        alone = self.columns[0].label if len(self.columns) == 1 else ""
        return [f"{alone} {metric}".strip() for _ in self.columns for metric in self.metrics]


def targets(row: Row, searches: Mapping[str, str] | None = None) -> list[str]:
    """Return the metrics that a row's loss aims at; `searches` has the metric of each search by the search's name.

    >>> targets(Row(loss="naive:mIoU + 0.5 * searched:mine"), {"mine": "BIoU"})
    ['mIoU', 'BIoU']
    """
    if row.target:
        return [formula.get(name).name for name in row.target]
    return list(dict.fromkeys(aim for term in parse_loss(row.loss) for aim in _aims(term, searches or {})))


def _aims(term: Term, searches: Mapping[str, str]) -> list[str]:
    if term.kind == "hand-made":
        return _AIMS.get(term.name.removesuffix("-release"), [])
    if term.kind == "searched":
        return [searches[term.name]] if term.name in searches else []
    return [] if term.kind == "file" else [term.surrogate().metric]


def with_targets(table: Table, searches: Mapping[str, str]) -> Table:
    """Return the table with the targets of every row; `searches` has the metric of each search by its name."""
    rows = []
    for row in table.rows:
        here = row.model_copy(update={"loss": table.columns[0].loss(row)})
        rows.append(row.model_copy(update={"target": targets(here, searches)}))
    return table.model_copy(update={"rows": rows})


def fill(
    table: Table,
    read: ReadScores,
    *,
    searches: str | os.PathLike[str] | None = None,
    command: str = "snakemake --cores all tables",
) -> FilledTable:
    """Return the table with its numbers; what is not computed yet is empty, and the caption says how to fill it.

    Args:
        table: rows, columns, metrics, seeds.
        read: the scores.
        searches: the folder that holds the searches' folders, for the hours.
        command: the command that computes what is missing.
    """
    paper = published_table(table.paper) if table.paper else None
    notes, marks = _notes(table, paper)
    hours, remarks = _hours(table, searches) if table.hours else ({}, [])
    rows = []
    for number, row in enumerate(table.rows):
        printed = paper.row(_label(row)) if paper else None
        rows.append(
            FilledRow(
                label=_label(row),
                loss=row.loss,
                about=tuple(row.about),
                blocks=tuple(
                    tuple(_cell(table, block, row, metric, read, paper, marks) for metric in table.metrics)
                    for block in table.columns
                ),
                hours=hours.get(row.loss),
                paper_hours=printed.hours if printed and table.hours else None,
                paper_says=paper.words(_label(row)) if paper else "",
                rule_above=bool(number and printed and printed.rule_above),
            )
        )
    return FilledTable(
        title=table.title,
        columns=tuple(table.columns),
        metrics=tuple(table.metrics),
        about=tuple(table.about),
        hours=table.hours,
        rows=tuple(_with_bold(rows)),
        caption=tuple(_caption(table, rows, read, remarks, command)),
        notes=tuple(notes),
        paper=table.paper,
        reference=_label(table.reference),
    )


def _label(row: Row) -> str:
    return row.label or row.loss


def _cell(
    table: Table,
    block: Columns,
    row: Row,
    metric: str,
    read: ReadScores,
    paper: PublishedTable | None,
    marks: Mapping[tuple[str, str, str], tuple[int, ...]],
) -> Cell:
    runs = [block.run(row, seed) for seed in table.seeds]
    by_seed = {run.seed: read.scores[run].scores[metric] for run in runs if run in read.scores}
    values = list(by_seed.values())
    rivals = [block.run(table.reference, seed) for seed in table.seeds if row != table.reference]
    return Cell(
        mean=statistics.fmean(values) if values else None,
        spread=statistics.stdev(values) if len(values) > 1 else None,
        seeds=len(values),
        underlined=bool(values) and metric in targets(row),
        paper=paper.cell(_label(row), block.label, metric) if paper else None,
        notes=marks.get((_label(row), block.label, metric), ()),
        runs=tuple(run.name for run in runs),
        gain=paired(by_seed, {run.seed: read.scores[run].scores[metric] for run in rivals if run in read.scores}),
    )


def _with_bold(rows: Sequence[FilledRow]) -> list[FilledRow]:
    """Mark the scores that are, as shown, less than 0.3 below the best of their column."""

    def marked(cell: Cell, block: int, column: int) -> Cell:
        means = [row.blocks[block][column].mean for row in rows]
        best = max((round(mean, 2) for mean in means if mean is not None), default=0.0)
        return replace(cell, bold=cell.mean is not None and round(best - round(cell.mean, 2), 2) < NEAR_BEST)

    return [
        replace(
            row,
            blocks=tuple(
                tuple(marked(cell, b, k) for k, cell in enumerate(block)) for b, block in enumerate(row.blocks)
            ),
        )
        for row in rows
    ]


def _hours(table: Table, searches: str | os.PathLike[str] | None) -> tuple[dict[str, float], list[str]]:
    """Return the device hours of each row's searches, by the row's loss; and remarks on their trials."""
    if searches is None:
        return {}, []
    found: dict[str, float] = {}
    ended: dict[str, tuple[int, int]] = {}
    untimed: list[str] = []
    for row in table.rows:
        names = searches_of(table.columns[0].loss(row))
        times = [search_time(Path(searches) / name) for name in names]
        incomplete = [name for name, time in zip(names, times, strict=True) if time.untimed]
        untimed += incomplete
        ended |= {name: (time.ended, time.trials) for name, time in zip(names, times, strict=True) if time.ended}
        if times and not incomplete and all(time.trials for time in times):
            found[row.loss] = sum(time.hours for time in times)
    remarks = [f"Trials without a recorded time, so no hours: {', '.join(dict.fromkeys(untimed))}."] if untimed else []
    if ended:
        shown = ", ".join(f"{count} of {trials} ({name})" for name, (count, trials) in ended.items())
        remarks.append(f"Trials that were ended early: {shown}.")
    return found, remarks


def _notes(table: Table, paper: PublishedTable | None) -> tuple[list[str], dict[tuple[str, str, str], tuple[int, ...]]]:
    """Return the notes on what the table shows; and the numbers of a cell's notes, by row, block and metric."""
    notes: list[str] = []
    marks: dict[tuple[str, str, str], tuple[int, ...]] = {}
    if paper is None:
        return notes, marks
    shown = {_label(row): paper.row(_label(row)) for row in table.rows}
    for note in paper.notes:
        rows = [label for label, printed in shown.items() if note.row and printed and same(printed.label, note.row)]
        blocks = [block.label for block in table.columns if _is_at(note, paper, block.label)]
        metrics = [metric for metric in table.metrics if metric in note.metrics or not note.metrics]
        if note.row and not (rows and blocks and metrics):
            continue
        logged = ", ".join(f"{name} {value:.2f}" for name, value in note.logged.items())
        text = f"{note.text} In the release's log: {logged}." if logged else note.text
        where = f"{note.row}{f', {note.columns}' if note.columns and len(table.columns) > 1 else ''}: "
        notes.append((where if note.row else "") + text)
        cells = [(row, block, metric) for row in rows for block in blocks for metric in metrics]
        for key in cells if note.metrics else []:  # a note on a whole row names the row instead
            marks[key] = (*marks.get(key, ()), len(notes))
    return notes, marks


def _is_at(note: Note, paper: PublishedTable, label: str) -> bool:
    k = paper.block(label)
    return k is not None and (note.columns is None or same(paper.columns[k].label, note.columns))


def _caption(
    table: Table, rows: Sequence[FilledRow], read: ReadScores, remarks: Sequence[str], command: str
) -> list[str]:
    seeds = f"mean ± standard deviation of {len(table.seeds)} seeds" if len(table.seeds) > 1 else "one run each"
    found = [
        f"Percent, {seeds}. Underlined: the metrics that the loss aims at. "
        f"Bold: less than {NEAR_BEST} below the best of the column."
    ]
    if table.paper:
        found[0] += " The paper's numbers are marked as printed; the difference is ours less the paper's."
    if table.hours:
        papers = "; the paper's are those of eight V100 at once" if table.paper else ""
        found.append(f"Hours: of one device, over all trials of the search{papers}.")
    found += remarks
    if empty := [row.label for row in rows if any(cell.mean is None for cell in row.cells)]:
        found.append(f"Not computed yet: {', '.join(empty)}; `{command}` computes it.")
    if few := [row.label for row in rows if any(0 < cell.seeds < len(table.seeds) for cell in row.cells)]:
        found.append(f"Fewer seeds than {len(table.seeds)} so far: {', '.join(few)}; `{command}` adds the others.")
    if diverged := sorted({scores.run for scores in read.scores.values() if scores.diverged}):
        found.append(f"Training diverged; scored with the weights it left: {', '.join(diverged)}.")
    found += [f"Skipped: {problem}" for problem in read.problems.values()]
    return found + (["Delete a skipped file to have it made again."] if read.problems else [])


def paper_table(name: str) -> FilledTable:
    """Return a table of the paper by itself, as printed."""
    paper = published_table(name)
    table = Table(
        title=f"Table {paper.number} of the paper",
        columns=[Columns(dataset="", retraining="", label=block.label) for block in paper.columns],
        rows=[Row(loss=row.label, label=row.label, about=row.about) for row in paper.rows],
        metrics=paper.columns[0].metrics,  # the same in every block
        about=paper.about,
        hours=any(row.hours is not None for row in paper.rows),
        paper=name,
    )
    filled = fill(table, ReadScores())
    rows = [
        replace(
            row,
            hours=row.paper_hours,
            paper_hours=None,
            blocks=tuple(tuple(_as_printed(cell) for cell in block) for block in row.blocks),
        )
        for row in filled.rows
    ]
    return replace(filled, rows=tuple(rows), caption=(paper.caption,), paper=None)


def _as_printed(cell: Cell) -> Cell:
    """Return the paper's number of a cell in the place of ours."""
    paper = cell.paper
    assert paper is not None
    return Cell(paper.value, bold=paper.bold, underlined=paper.underlined, notes=cell.notes, shown=paper.text)
