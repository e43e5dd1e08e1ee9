"""A table in markdown, LaTeX, CSV and HTML: the paper's two header lines, and below each loss the paper's numbers."""

from __future__ import annotations

import csv
import html
import io
import os
import re
from collections.abc import Callable, Sequence
from importlib import resources

from autoseg.files import atomic
from autoseg.paper import Printed
from autoseg.paper.tables import Cell, Filled, Line

_CHECKS = {"yes": "✓", "no": "✗"}  # as the paper prints its ablation


def _about(line: Line, table: Filled) -> list[str]:
    """Return what stands left of the numbers: the paper describes ablations in columns of their own, without a name."""
    return [_CHECKS.get(text, text) for text in line.about] if table.about else [line.label]


def _heads(table: Filled) -> list[str]:
    return [*(table.about or ["Loss"]), *(["Hours"] if table.hours else [])]


def _rows_of_paper(table: Filled, line: Line) -> bool:
    return table.paper is not None and line.in_paper


# ---------------------------------------------------------------------------------------------------------- markdown


def markdown(table: Filled) -> str:
    """Return the table in markdown; where columns stand in blocks, the metrics are the first row below the header."""
    heads, metrics = _heads(table), list(table.metrics)
    if table.labels:
        blank = [""] * (len(metrics) - 1)
        top = [*heads, *(cell for block in table.columns for cell in [block.label, *blank])]
        rows = [["" for _ in heads] + [f"**{heading}**" for heading in table.headings]]
    else:
        top, rows = [*heads, *table.headings], []
    for line in table.lines:
        hours = [line.hours_text] if table.hours else []
        rows.append([*map(markdown_text, _about(line, table)), *hours, *(_md_ours(cell) for cell in line.cells)])
        if _rows_of_paper(table, line):
            left = ["_paper_", *[""] * (len(table.about) - 1)]
            paper_hours = ["" if line.paper_hours is None else f"{line.paper_hours:.1f}"] if table.hours else []
            rows.append([*left, *paper_hours, *(_md_paper(cell) for cell in line.cells)])
            left = ["_difference_", *[""] * (len(table.about) - 1), *([""] if table.hours else [])]
            rows.append([*left, *(cell.difference_text for cell in line.cells)])
    words = len(table.about) or 1
    ruler = ["---"] * words + ["---:"] * (len(top) - words)
    text = "\n".join(f"| {' | '.join(row)} |" for row in [top, ruler, *rows])
    notes = "".join(f"{number}. {markdown_text(note)}\n" for number, note in enumerate(table.notes, 1))
    title = f"### {markdown_text(table.title)}\n\n" if table.title else ""
    return f"{title}{text}\n\n{' '.join(table.caption)}\n" + (f"\nOf the paper's numbers:\n\n{notes}" if notes else "")


def markdown_text(text: str) -> str:
    """Return a text with what markdown would take for a mark escaped."""
    return text.replace("|", "\\|").replace("*", "\\*")


def _md_marked(text: str, cell: Cell | Printed) -> str:
    if not text:
        return ""
    text = f"<u>{text}</u>" if cell.underlined else text
    return f"**{text}**" if cell.bold else text


def _md_ours(cell: Cell) -> str:
    return _md_marked(cell.text, cell) + ("" if cell.paper else _sup(cell))


def _md_paper(cell: Cell) -> str:
    return _md_marked(cell.paper.text, cell.paper) + _sup(cell) if cell.paper else ""


def _sup(cell: Cell) -> str:
    """Return the numbers of a cell's notes; they stand at the paper's number, also where that is the only one."""
    return f"<sup>{','.join(map(str, cell.notes))}</sup>" if cell.notes else ""


# --------------------------------------------------------------------------------------------------------------- CSV


def comma_separated(table: Filled) -> str:
    """Return the table as CSV, one header line, our scores with full digits and the paper's as printed."""
    as_printed = any(cell.shown for line in table.lines for cell in line.cells)  # a table of the paper by itself
    heads = ["label", "loss", *(f"about {name}" for name in table.about), *(["hours", "paper hours"] * table.hours)]
    for block in table.columns:
        for metric in table.metrics:
            name = f"{block.label} {metric}".strip()
            heads += [name] if as_printed else [name, f"{name} spread", f"{name} seeds"]
            heads += [f"{name} paper", f"{name} difference"] if table.paper else []
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    for line in table.lines:
        row: list[object] = [line.label, line.loss, *line.about]
        row += [line.hours, line.paper_hours] if table.hours else []
        for cell in line.cells:
            row += [cell.shown] if as_printed else [cell.mean, cell.spread, cell.seeds]
            row += [cell.paper.text if cell.paper else "", cell.difference] if table.paper else []
        writer.writerow(row)
    return out.getvalue()


# ------------------------------------------------------------------------------------------------------------- LaTeX

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"}
_LATEX |= {"±": r"$\pm$", "−": "$-$", "✓": r"$\checkmark$", "✗": r"$\times$", "→": r"$\to$", "×": r"$\times$"}
_MANY_COLUMNS = 8  # from here on the table is scaled to the page's width, as the paper's are


def latex(table: Filled) -> str:
    """Return the table in LaTeX, with booktabs; `\\input` it after loading the packages that its first line names."""
    heads, metrics = [f"\\textbf{{{tex_text(head)}}}" for head in _heads(table)], list(table.metrics)
    count = len(heads) + len(metrics) * len(table.columns)
    words = len(table.about) or 1
    layout = "l" * words + "r" * (len(heads) - words) + ("@{\\hspace{2em}}" + "r" * len(metrics)) * len(table.columns)
    lines = [f"\\begin{{tabular}}{{{layout}}}", "\\toprule"]
    if table.labels:
        groups, rules, column = [""] * len(heads), [], len(heads) + 1
        for block in table.columns:
            groups.append(f"\\multicolumn{{{len(metrics)}}}{{c}}{{\\textbf{{{tex_text(block.label)}}}}}")
            rules.append(f"\\cmidrule(lr){{{column}-{column + len(metrics) - 1}}}")
            column += len(metrics)
        lines += [" & ".join(groups) + r" \\", "".join(rules)]
    lines += [
        " & ".join([*heads, *(f"\\textbf{{{tex_text(heading)}}}" for heading in table.headings)]) + r" \\",
        "\\midrule",
    ]
    for line in table.lines:
        if line.rule_above:
            lines.append("\\midrule")
        lines += [" & ".join(row) + r" \\" for row in _tex_rows(table, line)]
    lines += ["\\bottomrule", "\\end{tabular}"]
    tabular = "\n".join(lines)
    if count >= _MANY_COLUMNS:
        tabular = f"\\resizebox{{\\textwidth}}{{!}}{{%\n{tabular}\n}}"
    notes = "".join(f"\n\\item[{number}.] {tex_text(note)}" for number, note in enumerate(table.notes, 1))
    after = f"\n\\begin{{list}}{{}}{{\\footnotesize\\itemsep0pt\\parsep0pt}}{notes}\n\\end{{list}}" if notes else ""
    caption = f"\\caption{{{tex_text(f'{table.title}. ' if table.title else '')}{tex_text(' '.join(table.caption))}}}"
    return (
        "% \\usepackage{booktabs,amssymb,graphicx}\n"
        f"\\begin{{table}}[tb]\n\\centering\n{caption}\\smallskip\n{tabular}{after}\n\\end{{table}}\n"
    )


def _tex_rows(table: Filled, line: Line) -> list[list[str]]:
    hours = [line.hours_text] if table.hours else []
    rows = [[*map(tex_text, _about(line, table)), *hours, *(_tex_ours(cell) for cell in line.cells)]]
    if _rows_of_paper(table, line):
        blank = [""] * (len(table.about) - 1)
        paper_hours = ["" if line.paper_hours is None else f"{line.paper_hours:.1f}"] if table.hours else []
        rows.append([r"\quad\emph{paper}", *blank, *paper_hours, *(_tex_paper(cell) for cell in line.cells)])
        empty = [""] if table.hours else []
        rows.append([r"\quad\emph{difference}", *blank, *empty, *(tex_text(c.difference_text) for c in line.cells)])
    return rows


def tex_text(text: str) -> str:
    """Return a text as LaTeX writes it, with what stands in backticks as code."""
    escaped = "".join(_LATEX.get(c, c) for c in text)
    return re.sub('"(.+?)"', r"``\1''", re.sub("`(.+?)`", r"\\texttt{\1}", escaped))


def _tex_marked(text: str, cell: Cell | Printed) -> str:
    text = tex_text(text)
    text = f"\\textbf{{{text}}}" if cell.bold and text else text
    return f"\\underline{{{text}}}" if cell.underlined and text else text


def _tex_ours(cell: Cell) -> str:
    return _tex_marked(cell.text, cell) + ("" if cell.paper else _tex_notes(cell))


def _tex_paper(cell: Cell) -> str:
    return _tex_marked(cell.paper.text, cell.paper) + _tex_notes(cell) if cell.paper else ""


def _tex_notes(cell: Cell) -> str:
    # Without a width of its own: the digits of a column stay below each other.
    return f"\\rlap{{\\textsuperscript{{{','.join(map(str, cell.notes))}}}}}" if cell.notes else ""


# -------------------------------------------------------------------------------------------------------------- HTML


def asset(name: str) -> str:
    """Return a style sheet or a script of the pages."""
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def page(title: str, body: str, scripts: Sequence[str] = ("sort.js",)) -> str:
    """Return a self-contained page: it asks nothing of the network."""
    # An empty icon, or the browser would ask for one.
    head = (
        "<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<link rel='icon' href='data:,'><title>{html.escape(title)}</title><style>\n{asset('style.css')}</style>"
    )
    code = "".join(f"<script>\n{asset(name)}</script>\n" for name in scripts)
    return f"<!doctype html>\n<html lang='en'>\n<head>{head}</head>\n<body>\n{body}\n{code}</body>\n</html>\n"


def hypertext(table: Filled) -> str:
    """Return the table as a page of its own."""
    return page(table.title or "autoseg", f"<main>\n{element(table)}\n</main>")


def element(table: Filled, link: Callable[[str], str] | None = None) -> str:
    """Return the table as an HTML element: our score, the paper's below it, and the difference; its columns sort.

    `link` gives the address of a run's account, if the page has one.
    """
    metrics, heads = list(table.metrics), _heads(table)
    spans = "<td></td>" * len(heads)
    groups = "".join(
        f"<th colspan='{len(metrics)}' scope='colgroup'>{html.escape(block.label)}</th>" for block in table.columns
    )
    sortable = "".join(
        _sortable(name, k, "block" if _starts_block(table, k) else "")
        for k, name in enumerate([*heads, *table.headings])
    )
    top = f"<tr class='groups'>{spans}{groups}</tr>\n" if table.labels else ""
    body = "\n".join(_html_row(table, line, link) for line in table.lines)
    caption = "".join(f"<p>{prose(text)}</p>" for text in table.caption)
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    legend = (
        "<p class='legend'>In each cell: <span class='ours'>ours</span>, <span class='paper'>the paper's</span>, "
        "<span class='difference'>the difference</span>.</p>"
        if table.paper
        else ""
    )
    return (
        f"<section class='table'><h3>{html.escape(table.title)}</h3>{legend}\n"
        f"<div class='scroll' tabindex='0'><table class='scores{' with-paper' if table.paper else ''}'>"
        f"<thead>{top}<tr>{sortable}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
        f"<div class='caption'>{caption}</div>"
        + (f"<details><summary>Notes on the paper's numbers</summary><ol>{notes}</ol></details>" if notes else "")
        + "</section>"
    )


def prose(text: str) -> str:
    """Return a sentence in HTML, with what stands in backticks as code."""
    return re.sub("`(.+?)`", r"<code>\1</code>", html.escape(text))


def _starts_block(table: Filled, column: int) -> bool:
    left = len(_heads(table))
    return column >= left and (column - left) % len(table.metrics) == 0


def _sortable(name: str, column: int, style: str) -> str:
    class_ = f" class='{style}'" if style else ""
    return f"<th scope='col'{class_}><button type='button' data-column='{column}'>{html.escape(name)}</button></th>"


def _html_row(table: Filled, line: Line, link: Callable[[str], str] | None) -> str:
    about = _about(line, table)
    first = f"<th scope='row' title='{html.escape(line.loss, quote=True)}'>{html.escape(about[0])}</th>"
    rest = "".join(f"<td class='about'>{html.escape(text)}</td>" for text in about[1:])
    hours = ""
    if table.hours:
        paper = "" if line.paper_hours is None else f"<span class='paper'>{line.paper_hours:.1f}</span>"
        value = "" if line.hours is None else f" data-value='{line.hours!r}'"
        hours = f"<td{value}><span class='ours'>{line.hours_text or '&nbsp;'}</span>{paper}</td>"
    cells = "".join(_html_cell(table, cell, k % len(table.metrics) == 0, link) for k, cell in enumerate(line.cells))
    return f"<tr{' class=rule' if line.rule_above else ''}>{first}{rest}{hours}{cells}</tr>"


def _html_cell(table: Filled, cell: Cell, starts_block: bool, link: Callable[[str], str] | None) -> str:
    value = f" data-value='{cell.mean!r}'" if cell.mean is not None else ""
    ours = _html_marked(cell.text, cell) + ("" if cell.paper else _sup(cell)) or "&nbsp;"
    ours = re.sub(r" (± [0-9.]+)", r" <span class='spread'>\1</span>", ours)  # smaller: twelve columns fit a screen
    if link and cell.runs and cell.text:
        ours = f"<a href='{html.escape(link(cell.runs[0]), quote=True)}'>{ours}</a>"
    parts = [f"<span class='ours'>{ours}</span>"]
    if table.paper:
        printed = _html_marked(cell.paper.text, cell.paper) if cell.paper else ""
        parts.append(f"<span class='paper'>{printed}{_sup(cell)}</span>" if printed else "")
        parts.append(f"<span class='difference'>{cell.difference_text}</span>" if cell.difference_text else "")
        if cell.paper and cell.paper.value is not None:
            value += f" data-paper='{cell.paper.value!r}'"
    return f"<td{' class=block' if starts_block else ''}{value}>{''.join(parts)}</td>"


def _html_marked(text: str, cell: Cell | Printed) -> str:
    text = html.escape(text)
    text = f"<u>{text}</u>" if cell.underlined and text else text
    return f"<b>{text}</b>" if cell.bold and text else text


FORMATS: dict[str, Callable[[Filled], str]] = {
    ".md": markdown,
    ".csv": comma_separated,
    ".tex": latex,
    ".html": hypertext,
}


def write(table: Filled, stem: str | os.PathLike[str]) -> None:
    """Write <stem>.md, <stem>.csv, <stem>.tex and <stem>.html."""
    for suffix, form in FORMATS.items():
        with atomic(f"{stem}{suffix}") as file:
            file.write(form(table))
