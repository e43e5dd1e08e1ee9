"""The paper's table of metrics in markdown, LaTeX, CSV and HTML: formulas, where the other tables have scores."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable

from autoseg.report.formats import markdown_text, tex_text, write_texts
from autoseg.report.published import published_metrics
from autoseg.report.templates import render

_MARKS = {"†": r"$^\dag$", "*": r"$^\ast$"}


def markdown() -> str:
    """Return the table in markdown, the formulas in words."""
    table = published_metrics()
    rows = [["Type", "Name", "Formula"], ["---"] * 3]
    rows += [[row.type, f"{row.name}{markdown_text(row.mark)}", f"{row.metric} = {row.plain}"] for row in table.rows]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    notes = "".join(f"- {note.row}: {note.text}\n" for note in table.notes)
    return f"### Table {table.number} of the paper\n\n{text}\n\n{markdown_text(table.caption)}\n\n{notes}"


def comma_separated() -> str:
    """Return the table as CSV, the formulas in LaTeX and in words."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["type", "name", "mark", "metric", "formula", "in words"])
    writer.writerows([r.type, r.name, r.mark, r.metric, r.formula, r.plain] for r in published_metrics().rows)
    return out.getvalue()


def latex() -> str:
    """Return the table in LaTeX, the formulas as printed."""
    table = published_metrics()
    lines, last = [], ""
    for row in table.rows:
        if row.rule_above:
            lines.append("\\midrule")
        formula = f"$\\begin{{gathered}}{row.formula}\\end{{gathered}}$"
        cells = [row.type if row.type != last else "", row.name + _MARKS[row.mark], formula]
        lines.append(" & ".join(cells) + r" \\[3ex]")
        last = row.type
    caption = tex_text(table.caption)
    for mark, printed in _MARKS.items():
        caption = caption.replace(mark, printed.replace("^", ""))
    notes = "".join(f"\n\\item[] {note.row}: {tex_text(note.text)}" for note in table.notes)
    return (
        "% \\usepackage{booktabs,amsmath,graphicx}\n\\begin{table}[tb]\n\\centering\n"
        f"\\caption{{{caption}}}\\smallskip\n\\resizebox{{\\textwidth}}{{!}}{{%\n\\begin{{tabular}}{{lll}}\n\\toprule\n"
        "\\textbf{Type} & \\textbf{Name} & \\textbf{Formula} \\\\\n\\midrule\n"
        + "\n".join(lines)
        + "\n\\bottomrule\n\\end{tabular}\n}"
        + f"\n\\begin{{list}}{{}}{{\\footnotesize\\itemsep0pt\\parsep0pt}}{notes}\n\\end{{list}}\n\\end{{table}}\n"
    )


def hypertext() -> str:
    """Return the table as a page of its own, the formulas in words."""
    metrics = published_metrics()
    return render("metrics.html", title=f"Table {metrics.number} of the paper", metrics=metrics)


FORMATS: dict[str, Callable[[], str]] = {".md": markdown, ".csv": comma_separated, ".tex": latex, ".html": hypertext}


def write(stem: str | os.PathLike[str]) -> None:
    """Write <stem>.md, <stem>.csv, <stem>.tex and <stem>.html."""
    write_texts({suffix: form() for suffix, form in FORMATS.items()}, stem)
