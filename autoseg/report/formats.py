"""A table in markdown, LaTeX, CSV and HTML: the paper's two header lines, and below each loss the paper's numbers."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from autoseg.files import atomic
from autoseg.report.published import Printed
from autoseg.report.tables import Cell, FilledRow, FilledTable
from autoseg.report.templates import render

LABEL, LOSS, HOURS, PAPER_HOURS = "label", "loss", "hours", "paper hours"
"""Columns of the CSV file; those of the scores follow them."""

_GAIN = ("gain", "gain low", "gain high", "gain seeds better")


@dataclass(frozen=True)
class _Marks:
    """How a format writes text and marks it; each function takes text and returns text."""

    text: Callable[[str], str]
    bold: Callable[[str], str]
    underlined: Callable[[str], str]
    note: Callable[[str], str]
    side: Callable[[str], str]

    def number(self, text: str, marked: Cell | Printed, notes: Iterable[int] = ()) -> str:
        """Return a number with its marks and the numbers of its notes."""
        if not text:
            return ""
        text = self.text(text)
        text = self.underlined(text) if marked.underlined else text
        text = self.bold(text) if marked.bold else text
        numbers = ",".join(map(str, notes))
        return text + (self.note(numbers) if numbers else "")

    def rows(self, table: FilledTable, row: FilledRow) -> list[list[str]]:
        """Return a row's lines: ours and, where the paper has the row, the paper's and the difference.

        Where it has words instead of numbers, they stand in place of these two. Notes stand at the paper's number, or
        at ours where that is the only one.
        """
        ours = [self.number(cell.text, cell, () if cell.paper else cell.notes) for cell in row.cells]
        lines = [[*map(self.text, row.left), *([row.hours_text] if table.hours else []), *ours]]
        if table.paper and row.in_paper:
            blank = [""] * (len(row.left) - 1)
            if row.paper_says:
                empty = [""] * (len(lines[0]) - 1)
                return [*lines, [self.side(f"paper: {self.text(row.paper_says)}"), *empty]]
            paper = [self.number(c.paper.text, c.paper, c.notes) if c.paper else "" for c in row.cells]
            difference = [self.text(cell.difference_text) for cell in row.cells]
            lines.append([self.side("paper"), *blank, *([row.paper_hours_text] if table.hours else []), *paper])
            lines.append([self.side("difference"), *blank, *([""] if table.hours else []), *difference])
        return lines

    def gains(self, table: FilledTable) -> list[list[str]]:
        """Return the rows of differences from the reference."""
        return [
            [*map(self.text, row.left), *(self.text(cell.gain.text) if cell.gain else "" for cell in row.cells)]
            for row in table.rows
            if row.compared
        ]


# ---------------------------------------------------------------------------------------------------------- markdown


def markdown_text(text: str) -> str:
    """Return a text with the characters escaped that mark something in markdown."""
    return text.replace("|", "\\|").replace("*", "\\*")


_MARKDOWN = _Marks(
    text=markdown_text,
    bold=lambda text: f"**{text}**",
    underlined=lambda text: f"<u>{text}</u>",
    note=lambda numbers: f"<sup>{numbers}</sup>",
    side=lambda word: f"_{word}_",
)


def markdown(table: FilledTable) -> str:
    """Return the table in markdown; where columns stand in blocks, the metrics are the first row below the header."""
    left = table.left_headings
    if table.labels:
        blank = [""] * (len(table.metrics) - 1)
        top = [*left, *(text for block in table.columns for text in [block.label, *blank])]
        rows = [["" for _ in left] + [f"**{heading}**" for heading in table.headings]]
    else:
        top, rows = [*left, *table.headings], []
    for row in table.rows:
        rows += _MARKDOWN.rows(table, row)
    words = len(table.about) or 1
    ruler = ["---"] * words + ["---:"] * (len(top) - words)
    text = _rows_of_markdown(top, ruler, *rows)
    gains = ""
    if table.gains:
        ruler = ["---"] * words + ["---:"] * (len(table.gain_headings) - words)
        lines = _rows_of_markdown(table.gain_headings, ruler, *_MARKDOWN.gains(table))
        gains = f"\n{markdown_text(table.gains)}\n\n{lines}\n"
    notes = "".join(f"{number}. {markdown_text(note)}\n" for number, note in enumerate(table.notes, 1))
    title = f"### {markdown_text(table.title)}\n\n" if table.title else ""
    notes = f"\nOf the paper's numbers:\n\n{notes}" if notes else ""
    return f"{title}{text}\n\n{' '.join(table.caption)}\n{gains}{notes}"


def _rows_of_markdown(*rows: Iterable[str]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# --------------------------------------------------------------------------------------------------------------- CSV


def comma_separated(table: FilledTable) -> str:
    """Return the table as CSV: one header line, our scores in percent with all digits, the paper's as printed."""
    as_printed = any(cell.shown for row in table.rows for cell in row.cells)  # a table of the paper by itself
    heads = [LABEL, LOSS, *(f"about {name}" for name in table.about), *([HOURS, PAPER_HOURS] if table.hours else [])]
    for block in table.columns:
        for metric in table.metrics:
            name = f"{block.label} {metric}".strip()
            heads += [name] if as_printed else [name, f"{name} spread", f"{name} seeds"]
            heads += [f"{name} paper", f"{name} difference"] if table.paper else []
            heads += [f"{name} {word}" for word in _GAIN] if table.gains else []
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    for row in table.rows:
        line: list[object] = [row.label, row.loss, *row.about]
        line += [row.hours, row.paper_hours] if table.hours else []
        for cell in row.cells:
            line += [cell.shown] if as_printed else [cell.mean, cell.spread, cell.seeds]
            line += [cell.paper.text if cell.paper else row.paper_says, cell.difference] if table.paper else []
            if table.gains:
                gain = cell.gain
                line += [gain.mean, gain.low, gain.high, gain.better] if gain else [""] * len(_GAIN)
        writer.writerow(line)
    return out.getvalue()


# ------------------------------------------------------------------------------------------------------------- LaTeX

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"}
_LATEX |= {"±": r"$\pm$", "−": "$-$", "✓": r"$\checkmark$", "✗": r"$\times$", "→": r"$\to$", "×": r"$\times$"}
_MANY_COLUMNS = 8  # from here on the table is scaled to the page's width, as the paper's are


def tex_text(text: str) -> str:
    """Return a text as LaTeX writes it, with what stands in backticks as code."""
    escaped = "".join(_LATEX.get(c, c) for c in text)
    return re.sub('"(.+?)"', r"``\1''", re.sub("`(.+?)`", r"\\texttt{\1}", escaped))


_TEX = _Marks(
    text=tex_text,
    bold=lambda text: f"\\textbf{{{text}}}",
    underlined=lambda text: f"\\underline{{{text}}}",
    # A note takes no width, so that the digits of a column stay below each other.
    note=lambda numbers: f"\\rlap{{\\textsuperscript{{{numbers}}}}}",
    side=lambda word: f"\\quad\\emph{{{word}}}",
)


def latex(table: FilledTable) -> str:
    r"""Return the table in LaTeX, with booktabs; `\input` it after loading the packages that its first line names."""
    left, metrics = table.left_headings, len(table.metrics)
    words = len(table.about) or 1
    layout = "l" * words + "r" * (len(left) - words) + ("@{\\hspace{2em}}" + "r" * metrics) * len(table.columns)
    lines = [f"\\begin{{tabular}}{{{layout}}}", "\\toprule"]
    if table.labels:
        groups, rules, column = [""] * len(left), [], len(left) + 1
        for block in table.columns:
            groups.append(f"\\multicolumn{{{metrics}}}{{c}}{{{_TEX.bold(tex_text(block.label))}}}")
            rules.append(f"\\cmidrule(lr){{{column}-{column + metrics - 1}}}")
            column += metrics
        lines += [" & ".join(groups) + r" \\", "".join(rules)]
    lines += [" & ".join(_TEX.bold(tex_text(head)) for head in [*left, *table.headings]) + r" \\", "\\midrule"]
    for row in table.rows:
        lines += ["\\midrule"] if row.rule_above else []
        lines += [" & ".join(line) + r" \\" for line in _TEX.rows(table, row)]
    lines += ["\\bottomrule", "\\end{tabular}"]
    tabular = "\n".join(lines)
    if len(left) + metrics * len(table.columns) >= _MANY_COLUMNS:
        tabular = f"\\resizebox{{\\textwidth}}{{!}}{{%\n{tabular}\n}}"
    if table.gains:
        heads = table.gain_headings
        lines = [f"\\begin{{tabular}}{{{'l' * words}{'r' * (len(heads) - words)}}}", "\\toprule"]
        lines += [" & ".join(_TEX.bold(tex_text(head)) for head in heads) + r" \\", "\\midrule"]
        lines += [" & ".join(line) + r" \\" for line in _TEX.gains(table)] + ["\\bottomrule", "\\end{tabular}"]
        small = "\n".join(lines)
        tabular += f"\n\n\\smallskip {tex_text(table.gains)}\n\n"
        tabular += f"\\smallskip\\resizebox{{\\textwidth}}{{!}}{{%\n{small}\n}}"
    notes = "".join(f"\n\\item[{number}.] {tex_text(note)}" for number, note in enumerate(table.notes, 1))
    after = f"\n\\begin{{list}}{{}}{{\\footnotesize\\itemsep0pt\\parsep0pt}}{notes}\n\\end{{list}}" if notes else ""
    caption = f"\\caption{{{tex_text(f'{table.title}. ' if table.title else '')}{tex_text(' '.join(table.caption))}}}"
    return (
        "% \\usepackage{booktabs,amssymb,graphicx}\n"
        f"\\begin{{table}}[tb]\n\\centering\n{caption}\\smallskip\n{tabular}{after}\n\\end{{table}}\n"
    )


# -------------------------------------------------------------------------------------------------------------- HTML


def hypertext(table: FilledTable) -> str:
    """Return the table as a page of its own."""
    return render("table.html", title=table.title or "autoseg", table=table)


FORMATS: dict[str, Callable[[FilledTable], str]] = {
    ".md": markdown,
    ".csv": comma_separated,
    ".tex": latex,
    ".html": hypertext,
}


def write(table: FilledTable, stem: str | os.PathLike[str]) -> None:
    """Write <stem>.md, <stem>.csv, <stem>.tex and <stem>.html."""
    write_texts({suffix: form(table) for suffix, form in FORMATS.items()}, stem)


def write_texts(texts: Mapping[str, str], stem: str | os.PathLike[str]) -> None:
    """Write <stem><suffix> for each suffix."""
    for suffix, text in texts.items():
        with atomic(f"{stem}{suffix}") as file:
            file.write(text)
