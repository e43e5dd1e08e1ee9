"""Tables of scores in the paper's layout, ours beside the paper's; from `scores.json` alone, no torch.

In our cells the target metrics of a loss are underlined, and scores less than 0.3 below the best of their column are
bold, by rule; the paper's are marked as printed.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autoseg import formula
from autoseg.errors import InputError
from autoseg.loss_names import parse_terms, searches_of
from autoseg.paper import Note, Printed, PublishedTable, published_table, same
from autoseg.pipeline import Columns, Row, Run, Table, table_runs
from autoseg.scores_json import Scores
from autoseg.times import search_time

NEAR_BEST = 0.3  # percent points

# What the paper underlines for the losses that are not made from a metric; it has no target for Dice.
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

    @property
    def text(self) -> str:
        """Our score as printed."""
        if self.mean is None or self.shown:
            return self.shown
        return f"{self.mean:.2f}" + (f" ± {self.spread:.2f}" if self.spread is not None else "")

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        if self.mean is None or self.paper is None or self.paper.value is None:
            return None
        return self.mean - self.paper.value

    @property
    def difference_text(self) -> str:
        """The difference of what is printed; a zero has no sign."""
        if self.mean is None or self.paper is None or self.paper.value is None:
            return ""
        difference = round(round(self.mean, 2) - self.paper.value, 2)
        return f"{difference:+.2f}".replace("-", "−") if difference else "0.00"


@dataclass(frozen=True)
class Line:
    """A row: a loss, what is said about it, the hours of its search, and its cells, one list for each block."""

    label: str
    loss: str
    about: tuple[str, ...]
    blocks: tuple[tuple[Cell, ...], ...]
    hours: float | None = None
    paper_hours: float | None = None
    in_paper: bool = False
    rule_above: bool = False

    @property
    def cells(self) -> list[Cell]:
        """The cells from left to right."""
        return [cell for block in self.blocks for cell in block]

    @property
    def hours_text(self) -> str:
        """The hours as printed."""
        if self.hours is None:
            return ""
        return f"{self.hours:.1f}" if self.hours >= 1 else f"{self.hours:.2g}"


@dataclass(frozen=True)
class Filled:
    """A table with its numbers, ready to be written in any format."""

    title: str
    columns: tuple[Columns, ...]
    metrics: tuple[str, ...]
    about: tuple[str, ...]
    hours: bool
    lines: tuple[Line, ...]
    caption: tuple[str, ...]
    notes: tuple[str, ...] = ()
    paper: str | None = None

    @property
    def labels(self) -> bool:
        """Whether the blocks of columns have labels above them."""
        return len(self.columns) > 1 and any(block.label for block in self.columns)

    @property
    def headings(self) -> list[str]:
        """What stands above each column of scores; a single block has its label there, as in "VOC mIoU"."""
        alone = self.columns[0].label if len(self.columns) == 1 else ""
        return [f"{alone} {metric}".strip() for _ in self.columns for metric in self.metrics]


@dataclass
class Read:
    """The score files of a table: those of its runs, and what is wrong with the others."""

    scores: dict[Run, Scores] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def targets(row: Row) -> list[str]:
    """Return the metrics that a loss aims at; a search is known by the metric in its name.

    >>> targets(Row(loss="naive:mIoU + 0.5 * searched:voc-linear-BIoU"))
    ['mIoU', 'BIoU']
    """
    if row.target:
        return [formula.get(name).name for name in row.target]
    names = {name.lower(): name for name in formula.names()}
    found = []
    for _, term in parse_terms(row.loss):
        kind, colon, rest = term.partition(":")
        if not colon:
            found += _AIMS.get(kind.lower(), [])
        elif kind.lower() in ("naive", "published", "searched"):
            found += [names[part] for part in rest.lower().split("-") if part in names][:1]
    return list(dict.fromkeys(found))


def with_targets(table: Table, metrics: Mapping[str, str]) -> Table:
    """Return the table with the targets of searched losses filled in, from the metric of each search."""
    rows = []
    for row in table.rows:
        aims = [metrics[name] for name in searches_of(table.columns[0].loss(row)) if name in metrics]
        if not row.target and aims:
            others = [term for _, term in parse_terms(row.loss) if not term.lower().startswith("searched:")]
            aims += [aim for term in others for aim in targets(Row(loss=term))]
            row = row.model_copy(update={"target": list(dict.fromkeys(aims))})
        rows.append(row)
    return table.model_copy(update={"rows": rows})


def read_scores(table: Table, paths: Sequence[str | os.PathLike[str]], strict: bool = False) -> Read:
    """Read score files and find the runs of the table that they are of.

    A file that is missing, broken, or of another run is named in `problems`; if `strict`, it is an error.
    """
    runs = {run.name: run for run in table_runs(table)}
    by_loss: dict[tuple[str, int], list[Run]] = {}
    for run in runs.values():
        by_loss.setdefault((run.loss, run.seed), []).append(run)
    read = Read()
    for path in paths:
        try:
            scores = Scores.load(path)
            # A run that was not made by the pipeline has no name of the table's: its loss and seed tell.
            also = by_loss.get((scores.loss, scores.seed), []) if "/" not in scores.run else []
            known = runs.get(scores.run) or (also[0] if len(also) == 1 else None)
            if known is None or known.loss != scores.loss:
                raise InputError(f"{path}: the run '{scores.run}' with the loss '{scores.loss}' is not in this table.")
            # A file that was copied into the folder of another run must not stand for its own.
            if known != runs.get("/".join(Path(path).parts[-5:-1]), known):
                raise InputError(f"{path}: holds the run '{scores.run}', not the one of this folder.")
            if missing := [metric for metric in table.metrics if metric not in scores.scores]:
                raise InputError(f"{path}: has no {', '.join(missing)}; evaluate the run again.")
            if known in read.scores:
                raise InputError(f"{path}: a second file of the run '{known.name}'.")
            read.scores[known] = scores
        except InputError as error:
            if strict:
                raise
            read.problems.append(str(error))
    return read


def fill(
    table: Table,
    read: Read,
    *,
    searches: str | os.PathLike[str] | None = None,
    command: str = "snakemake --cores all tables",
) -> Filled:
    """Return the table with its numbers; what is not computed yet is empty, and the caption says how to fill it.

    Args:
        table: rows, columns, metrics, seeds.
        read: the scores.
        searches: the folder of the searches' folders, for the hours.
        command: what fills the table.
    """
    paper = published_table(table.paper) if table.paper else None
    notes, marks = _notes(table, paper)
    hours, untimed = _hours(table, searches) if table.hours else ({}, [])
    lines = []
    for number, row in enumerate(table.rows):
        printed = paper.row(_label(row)) if paper else None
        blocks = tuple(
            tuple(_cell(table, block, row, metric, read, paper, marks) for metric in table.metrics)
            for block in table.columns
        )
        lines.append(
            Line(
                label=_label(row),
                loss=row.loss,
                about=tuple(row.about),
                blocks=blocks,
                hours=hours.get(row.loss),
                paper_hours=printed.hours if printed and table.hours else None,
                in_paper=any(cell.paper for block in blocks for cell in block),
                rule_above=bool(number and printed and printed.rule_above),
            )
        )
    return Filled(
        title=table.title,
        columns=tuple(table.columns),
        metrics=tuple(table.metrics),
        about=tuple(table.about),
        hours=table.hours,
        lines=tuple(_bold(lines)),
        caption=tuple(_caption(table, lines, read, untimed, command)),
        notes=tuple(notes),
        paper=table.paper,
    )


def _label(row: Row) -> str:
    return row.label or row.loss


def _cell(
    table: Table,
    block: Columns,
    row: Row,
    metric: str,
    read: Read,
    paper: PublishedTable | None,
    marks: Mapping[tuple[str, str, str], tuple[int, ...]],
) -> Cell:
    runs = [Run(block.dataset, block.retraining, block.loss(row), seed) for seed in table.seeds]
    values = [read.scores[run].scores[metric] for run in runs if run in read.scores]
    return Cell(
        mean=statistics.fmean(values) if values else None,
        spread=statistics.stdev(values) if len(values) > 1 else None,
        seeds=len(values),
        underlined=bool(values) and metric in targets(row),
        paper=paper.cell(_label(row), block.label, metric) if paper else None,
        notes=marks.get((_label(row), block.label, metric), ()),
        runs=tuple(run.name for run in runs),
    )


def _bold(lines: Sequence[Line]) -> list[Line]:
    """Mark what is less than 0.3 below the best of its column, as far as the printed digits tell."""
    columns = zip(*(line.cells for line in lines), strict=True)
    best = [max((round(cell.mean, 2) for cell in column if cell.mean is not None), default=0.0) for column in columns]
    marked = []
    for line in lines:
        tops = iter(best)
        blocks = tuple(
            tuple(
                replace(cell, bold=cell.mean is not None and round(top - round(cell.mean, 2), 2) < NEAR_BEST)
                for cell, top in zip(block, tops, strict=False)
            )
            for block in line.blocks
        )
        marked.append(replace(line, blocks=blocks))
    return marked


def _hours(table: Table, searches: str | os.PathLike[str] | None) -> tuple[dict[str, float], list[str]]:
    """Return the device hours of the searches behind each row, and which of these have trials without a time."""
    if searches is None:
        return {}, []
    found, untimed = {}, []
    for row in table.rows:
        names = searches_of(table.columns[0].loss(row))
        times = [search_time(Path(searches) / name) for name in names]
        incomplete = [name for name, time in zip(names, times, strict=True) if time.untimed]
        untimed += incomplete
        if times and not incomplete and all(time.trials for time in times):
            found[row.loss] = sum(time.hours for time in times)
    return found, list(dict.fromkeys(untimed))


def _notes(table: Table, paper: PublishedTable | None) -> tuple[list[str], dict[tuple[str, str, str], tuple[int, ...]]]:
    """Return the notes that belong to what the table shows, and the numbers of those of each cell."""
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
        for key in cells if note.metrics else []:  # a note on a whole row says which row it is
            marks[key] = (*marks.get(key, ()), len(notes))
    return notes, marks


def _is_at(note: Note, paper: PublishedTable, label: str) -> bool:
    k = paper.block(label)
    return k is not None and (note.columns is None or same(paper.columns[k].label, note.columns))


def _caption(table: Table, lines: Sequence[Line], read: Read, untimed: Sequence[str], command: str) -> list[str]:
    seeds = f"mean ± standard deviation of {len(table.seeds)} seeds" if len(table.seeds) > 1 else "one run each"
    found = [f"Percent, {seeds}. Underlined: the loss's target. Bold: less than {NEAR_BEST} below the column's best."]
    if table.paper:
        found[0] += " The paper's numbers are marked as printed; the difference is ours less the paper's."
    if table.hours:
        papers = "; the paper's are those of eight V100 at once" if table.paper else ""
        found.append(f"Hours: of one device, over all trials of the search{papers}.")
    if untimed:
        found.append(f"Trials without a recorded time, so no hours: {', '.join(untimed)}.")
    empty = [line.label for line in lines if any(cell.mean is None for cell in line.cells)]
    if empty:
        found.append(f"Not computed yet: {', '.join(empty)}; `{command}` fills it.")
    few = [line.label for line in lines if any(0 < cell.seeds < len(table.seeds) for cell in line.cells)]
    if few:
        found.append(f"Fewer seeds than {len(table.seeds)} so far: {', '.join(few)}; `{command}` adds the others.")
    diverged = sorted({scores.run for scores in read.scores.values() if scores.diverged})
    if diverged:
        found.append(f"Training diverged, scored as it was left: {', '.join(diverged)}.")
    found += [f"Skipped: {problem}" for problem in read.problems]
    return found + (["What was skipped is made again once it is deleted."] if read.problems else [])


def printed(name: str) -> Filled:
    """Return a table of the paper by itself, as printed."""
    paper = published_table(name)
    rows = [Row(loss="ce", label=row.label, about=row.about) for row in paper.rows]
    columns = [Columns(dataset="", retraining="", label=block.label) for block in paper.columns]
    metrics = paper.columns[0].metrics  # the same in every block
    table = Table(columns=columns, rows=rows, metrics=metrics, about=paper.about, paper=name)
    notes, marks = _notes(table, paper)

    def cell(row: str, block: str, metric: str) -> Cell:
        found = paper.cell(row, block, metric)
        assert found is not None
        marked = marks.get((row, block, metric), ())
        return Cell(found.value, bold=found.bold, underlined=found.underlined, notes=marked, shown=found.text)

    lines = tuple(
        Line(
            label=row.label,
            loss=row.label,
            about=tuple(row.about),
            blocks=tuple(tuple(cell(row.label, block.label, metric) for metric in metrics) for block in columns),
            hours=row.hours,
            rule_above=row.rule_above,
        )
        for row in paper.rows
    )
    return Filled(
        title=f"Table {paper.number} of the paper",
        columns=tuple(columns),
        metrics=tuple(metrics),
        about=tuple(paper.about),
        hours=any(row.hours is not None for row in paper.rows),
        lines=lines,
        caption=(paper.caption,),
        notes=tuple(notes),
    )
