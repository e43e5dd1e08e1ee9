"""The figures of a config, from the searches' files, `scores.json` and tables; no torch, but for galleries.

What is not computed yet is left out, and the figure says so.
"""

from __future__ import annotations

import csv
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from autoseg import formula, surrogate_json
from autoseg.config import parse
from autoseg.errors import InputError
from autoseg.loss_names import searches_of
from autoseg.paper import drawing
from autoseg.paper.drawing import COLOURS, HATCHES, LINES, MARKERS, SOFT, Array
from autoseg.pipeline import ClassFigure, CurveFigure, ProxyFigure, SearchFigure, SurrogateFigure
from autoseg.pipeline import Figure as Plan
from autoseg.scores_json import Scores
from autoseg.surrogate_json import Surrogate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from autoseg.config import Search
    from autoseg.search import Scored

_FINE = np.linspace(0, 1, 501)
_PAPERS_GPUS = 8  # the paper's hours are those of eight V100 at once


def parse_figure(content: Any) -> Plan:
    """Return a figure's part of a config, checked."""

    class Holder(BaseModel):
        figure: Plan

    return parse(Holder, {"figure": content}, "--figure").figure


def write_figure(
    plan: Plan,
    results: str | os.PathLike[str],
    stem: str | os.PathLike[str],
    suffixes: Sequence[str] = ("png", "svg"),
    window: tuple[int, int] | None = None,
) -> list[str]:
    """Draw a figure of a config from its results folder; return what it lacks, in sentences.

    `window` is the sliding window that a gallery's networks are evaluated with.
    """
    results = Path(results)
    with drawing.style():
        if isinstance(plan, SearchFigure):
            figure, lacks = search_figure(plan, results / "searches")
        elif isinstance(plan, CurveFigure):
            figure, lacks = curve_figure(plan, results / "searches")
        elif isinstance(plan, SurrogateFigure):
            figure, lacks = loss_figure(plan, results / "searches")
        elif isinstance(plan, ClassFigure):
            figure, lacks = class_figure(plan, results / "runs")
        elif isinstance(plan, ProxyFigure):
            figure, lacks = proxy_figure(plan, results / "tables" / f"{plan.table}.csv")
        else:
            from autoseg.paper.gallery import gallery_figure

            figure, lacks = gallery_figure(plan, results, window)
        drawing.remark(figure, gathered(lacks))
        if plan.title:
            figure.suptitle(plan.title, fontsize=10)
        drawing.save(figure, stem, suffixes)
    return lacks


# ---------------------------------------------------------------------------------------------------------- searches


@dataclass
class Progress:
    """A search so far: its settings, the steps that are scored, its answer, and what is missing or broken."""

    search: Search | None = None
    steps: list[Scored] = field(default_factory=list)
    planned: int = 0
    answer: Surrogate | None = None
    lacks: list[str] = field(default_factory=list)


def progress(folder: str | os.PathLike[str]) -> Progress:
    """Read a search's folder as far as it goes."""
    from autoseg.search import Folder, total_steps

    files, found = Folder(folder), Progress()
    name = files.path.name
    if not (files.path / "search.json").exists():
        found.lacks.append(f"search '{name}' has not begun")
        return found
    try:
        found.search = files.search()
        found.planned = total_steps(found.search)
        for step in range(1, found.planned + 1):
            if not (files.step(step) / "proposals.json").exists():
                break
            found.steps.append(files.scored(step))
    except InputError as error:
        found.lacks.append(str(error).rstrip("."))
    if found.search and len(found.steps) < found.planned and not found.lacks:
        found.lacks.append(f"search '{name}' has done {len(found.steps)} of {found.planned} steps")
    if (files.path / "surrogate.json").exists():
        try:
            found.answer = Surrogate.load(files.path / "surrogate.json")
        except InputError as error:
            found.lacks.append(str(error).rstrip("."))
    elif not found.lacks:
        found.lacks.append(f"search '{name}' has not selected its answer")
    return found


def gathered(lacks: Sequence[str]) -> list[str]:
    """Return what is lacking, with the searches that lack the same in one sentence.

    >>> gathered(["search 'a' has not begun", "search 'b' has not begun", "no scores"])
    ['searches a, b have not begun', 'no scores']
    """
    others: dict[str, list[str]] = {}
    for text in lacks:
        match = re.fullmatch("search '(.+?)' has (.+)", text)
        others.setdefault(match[2] if match else text, []).extend([match[1]] if match else [])
    found = []
    for what, names in others.items():
        if len(names) > 1:
            found.append(f"searches {', '.join(names)} have {what.replace('its answer', 'their answers')}")
        else:
            found.append(f"search '{names[0]}' has {what}" if names else what)
    return found


def best_so_far(steps: Sequence[Scored]) -> Array:
    """Return the best average score up to each step, in percent."""
    return 100 * np.maximum.accumulate(np.array([step.average for step in steps]))


def search_figure(plan: SearchFigure, searches: Path) -> tuple[Figure, list[str]]:
    """Draw the best average score up to each step: a line for each group, from its worst to its best repeat a band."""
    figure = drawing.new_figure(5.2, 3.6)
    axes, lacks, metrics = figure.subplots(), [], []
    for number, (label, names) in enumerate(plan.lines.items()):
        found = [progress(searches / name) for name in names]
        lacks += [text for one in found for text in one.lacks if not (one.steps and one.answer)]
        curves = [best_so_far(one.steps) for one in found if one.steps]
        metrics += [one.search.metric for one in found if one.search]
        if not curves:
            continue
        steps = min(len(curve) for curve in curves)
        values = np.array([curve[:steps] for curve in curves])
        at = np.arange(1, steps + 1)
        repeats = f" ({len(curves)} searches)" if len(curves) > 1 else ""
        axes.plot(
            at,
            values.mean(0),
            color=COLOURS[number % 7],
            linestyle=LINES[number % 7],
            marker=MARKERS[number % 7],
            markersize=4,
            label=label + repeats,
        )
        if len(curves) > 1:
            axes.fill_between(at, values.min(0), values.max(0), color=COLOURS[number % 7], alpha=0.18, linewidth=0)
    what = metrics[0] if len(set(metrics)) == 1 else "score"
    axes.set(xlabel="step t", ylabel=f"best average {what} up to step t, %")
    drawing.whole_steps(axes)
    if axes.lines:
        axes.legend(loc="best")
    return figure, lacks


def story_figure(found: Progress) -> Figure:
    """Draw one search: every trial's score by step, how the curves of its mean moved, and where they ended."""
    from autoseg.search import candidates, surrogate

    assert found.search is not None
    search, steps = found.search, found.steps
    answer = found.answer or surrogate(search, candidates(search, steps)[0].theta)
    names = list(answer.curves)
    figure = drawing.new_figure(3.6 + 2.7 * min(len(names), 3), 3.1 * (1 + (len(names) - 1) // 3))
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[3.4, 2.7 * min(len(names), 3)]).flat
    axes = left.subplots()
    at = np.arange(1, len(steps) + 1)
    trials = [(step, 100 * score) for step, scored in zip(at, steps, strict=True) for score in scored.scores]
    axes.plot(*zip(*trials, strict=True), "o", color="0.7", markersize=3, label="a trial")
    axes.plot(at, [100 * s.average for s in steps], "s-", color=COLOURS[0], markersize=4, label="average of the step")
    axes.plot(at, best_so_far(steps), "--", color=COLOURS[1], label="best average so far")
    axes.set(xlabel="step", ylabel=f"{search.metric} on the hold-out, %")
    drawing.whole_steps(axes)
    axes.legend(loc="best", fontsize=8)
    means = []
    if search.sampler in ("ppo2", "cmaes"):
        means = [surrogate(search, c.theta) for c in candidates(search, steps)]
    grid = right.subplots(1 + (len(names) - 1) // 3, min(len(names), 3), squeeze=False)
    for place, name in itertools.zip_longest(grid.flat, names):
        if name is None:
            place.set_axis_off()
            continue
        drawing.identity_line(place)
        for k, mean in enumerate(means):
            grey = 0.85 - 0.55 * k / max(len(means) - 1, 1)  # the later, the darker
            place.plot(_FINE, _g(mean, name), color=str(grey), linewidth=0.8)
        if found.answer:
            place.plot(_FINE, _g(answer, name), color=COLOURS[1], linewidth=1.8)
        drawing.unit_square(place)
        place.set_title(drawing.name_of(name))
    return figure


def _g(loss: Surrogate, name: str) -> Array:
    return drawing.evaluate(loss.space.curve_of(loss.curves[name]), _FINE)


def curve_figure(plan: CurveFigure, searches: Path) -> tuple[Figure, list[str]]:
    """Draw the curves of every searched loss against the identity, one square for each search."""
    found = {name: progress(searches / name) for name in plan.searches}
    lacks = [text for one in found.values() if one.answer is None for text in one.lacks]
    columns = min(len(found), 3)
    rows = -(-len(found) // columns)
    # A curve of one name looks the same in every square, so that one legend, outside of them, hides none.
    names = list(dict.fromkeys(name for one in found.values() if one.answer for name in one.answer.curves))
    figure = drawing.new_figure(2.5 * columns + 0.3, 2.45 * rows + 0.7)
    places = figure.subplots(rows, columns, squeeze=False)
    handles: dict[str, Any] = {}
    for place, name in itertools.zip_longest(places.flat, found):
        if name is None:
            place.set_axis_off()
            continue
        drawing.identity_line(place)
        answer = found[name].answer
        for curve in answer.curves if answer else ():
            assert answer is not None
            number = names.index(curve) % 7
            place.plot(
                _FINE, _g(answer, curve), color=COLOURS[number], linestyle=LINES[number], label=drawing.name_of(curve)
            )
        drawing.unit_square(place)
        place.set_title(f"{name}" + ("" if answer else " (not finished)"))
        handles |= {str(line.get_label()): line for line in place.lines}
    figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=4, fontsize=8, handlelength=2.6)
    return figure, lacks


def loss_figure(plan: SurrogateFigure, searches: Path) -> tuple[Figure, list[str]]:
    """Draw one surrogate by its name."""
    names = searches_of(plan.loss)
    if not names:
        return surrogate_figure(surrogate_json.resolve(plan.loss)), []
    found = progress(searches / names[0])
    if found.answer is None:
        figure = drawing.new_figure(5, 1.5)
        figure.subplots().set_axis_off()
        return figure, found.lacks
    return surrogate_figure(found.answer), []


def surrogate_figure(loss: Surrogate) -> Figure:
    """Draw a surrogate: its curves with their control points, and for each operator the logic that they make."""
    operands = formula.get(loss.metric).layout(loss.layout).operands
    shaped = {name: pair for name, pair in operands.items() if any(pair)}
    columns = max(len(loss.curves), len(shaped))
    figure = drawing.new_figure(2.6 * columns + 0.3, 5.6)
    grid = figure.add_gridspec(2, 2 * columns)  # a square has two columns, so that the shorter row stands in the middle

    def square(row: int, number: int, count: int) -> Axes:
        first = columns - count + 2 * number
        return figure.add_subplot(grid[row, first : first + 2])

    for number, (name, points) in enumerate(loss.curves.items()):
        place, colour = square(0, number, len(loss.curves)), COLOURS[number % 7]
        drawing.identity_line(place)
        u, v = drawing.knots(loss.space, points)
        place.plot(u, v, linestyle=":", color=SOFT, linewidth=0.9)
        place.plot(u[1:-1], v[1:-1], "o", markerfacecolor="white", markeredgecolor=colour, markersize=5)
        place.plot(_FINE, _g(loss, name), color=colour, linewidth=1.8)
        drawing.unit_square(place)
        place.set_title(f"{drawing.name_of(name)}, control points")
    for number, (operator, pair) in enumerate(shaped.items()):
        _surface(square(1, number, len(shaped)), loss, operator, pair)
    return figure


def _surface(axes: Axes, loss: Surrogate, operator: str, pair: tuple[str | None, str | None]) -> None:
    """Draw an operator's value over its two operands, as a map with labelled contours."""
    y = np.linspace(0, 1, 101)
    a, b = (y if name is None else drawing.evaluate(loss.space.curve_of(loss.curves[name]), y) for name in pair)
    a, b = a[None, :], b[:, None]
    value = a + b - a * b if operator.endswith("OR") else a * b
    levels = np.linspace(0, 1, 11)
    shades = [str(shade) for shade in np.linspace(1, 0.5, 10)]  # light enough for black figures on them
    axes.contourf(y, y, value, levels=levels, colors=shades)
    lines = axes.contour(y, y, value, levels=levels[1:-1], colors=COLOURS[0], linewidths=0.8)
    axes.clabel(lines, levels=levels[2:-1:2], fontsize=6.5, fmt="%.2g", colors="black")  # all would not fit
    axes.grid(False)
    # Where each operand has a curve of its own, its axis says which.
    own = [f" ({name})" if name and pair[0] != pair[1] else "" for name in pair]
    drawing.unit_square(axes, f"first operand{own[0]}", f"second operand{own[1]}")
    axes.set(xlim=(0, 1), ylim=(0, 1), title=f"h of {operator}")


# -------------------------------------------------------------------------------------------------------------- runs


def class_figure(plan: ClassFigure, runs: Path) -> tuple[Figure, list[str]]:
    """Draw a metric's score of every class, a bar for each loss."""
    metric = formula.get(plan.metric).name
    found, lacks = {}, []
    for (label, _), run in zip(plan.losses.items(), plan.runs, strict=True):
        path = runs / run.name / "scores.json"
        if not path.exists():
            lacks.append(f"'{label}' has no scores yet")
            continue
        try:
            found[label] = Scores.load(path).per_class[metric]
        except InputError as error:
            lacks.append(str(error).rstrip("."))
        except KeyError:
            lacks.append(f"{path}: has no {metric} of each class")
    classes = list(dict.fromkeys(name for scores in found.values() for name in scores))
    thick = 0.8 / max(len(found), 1)
    figure = drawing.new_figure(6.4, 1.1 + 0.17 * max(len(classes), 3) * (len(found) + 0.6))
    axes = figure.subplots()
    for number, (label, scores) in enumerate(found.items()):
        places = [k + thick * (number - (len(found) - 1) / 2) for k in range(len(classes))]
        # A class that is nowhere in the images has no score, and no bar.
        values = [np.nan if (value := scores.get(name)) is None else value for name in classes]
        bars = axes.barh(places, values, thick, color=COLOURS[number % 7], edgecolor="white", label=label)
        for bar in bars:
            bar.set_hatch(HATCHES[number % 7])
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=6.5)  # tells 0.0 from no score
    axes.set(xlabel=f"{metric} of the class, %", yticks=range(len(classes)), yticklabels=classes)
    axes.set(xlim=(0, 106), xticks=range(0, 101, 20))  # room for the number at a full bar
    axes.set_ylim(len(classes) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    if found:
        figure.legend(loc="outside lower center", ncols=3)
    return figure, lacks


def proxy_figure(plan: ProxyFigure, table: Path) -> tuple[Figure, list[str]]:
    """Draw what the searches of a table cost in device hours against what their losses reach, the paper's too."""
    figure = drawing.new_figure(5.2, 3.6)
    axes, lacks = figure.subplots(), []
    if not table.exists():
        axes.set(xlabel="device hours of the search", ylabel="score, %")
        return figure, [f"table '{plan.table}' is not written yet"]
    with open(table, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0]) if rows else []
    if "hours" not in columns:
        raise InputError(f"{table}: has no column 'hours'; set `hours: true` in the config's table '{plan.table}'.")
    fixed = ("label", "loss", "hours", "paper hours")
    score = next(name for name in columns if name not in fixed and not name.startswith("about "))
    for row in rows:
        if row["hours"] and row[score]:
            _point(axes, float(row["hours"]), float(row[score]), row["label"], filled=True)
        else:
            lacks.append(f"'{row['label']}' has no {'score' if row['hours'] else 'hours'} yet")
        if row.get("paper hours") and row.get(f"{score} paper"):
            _point(axes, _PAPERS_GPUS * float(row["paper hours"]), float(row[f"{score} paper"]), row["label"], False)
    axes.set(xlabel="device hours of the search", ylabel=f"{score} of the loss, %")
    if axes.lines:
        axes.margins(0.15)
        axes.plot([], [], MARKERS[0], color=COLOURS[0], label="ours")
        if any(row.get("paper hours") for row in rows):
            label = f"the paper's ({_PAPERS_GPUS} V100 together)"
            axes.plot([], [], MARKERS[1], color=COLOURS[1], markerfacecolor="white", label=label)
        axes.legend(fontsize=8)
    return figure, lacks


def _point(axes: Axes, hours: float, score: float, label: str, filled: bool) -> None:
    colour, marker = (COLOURS[0], MARKERS[0]) if filled else (COLOURS[1], MARKERS[1])
    axes.plot([hours], [score], marker, color=colour, markerfacecolor=colour if filled else "white")
    # Ours above the point and the paper's below: the two of a row may lie close to each other.
    axes.annotate(label, (hours, score), xytext=(6, 4 if filled else -10), textcoords="offset points", fontsize=7.5)
