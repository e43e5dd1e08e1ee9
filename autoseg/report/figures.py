"""The figures of a config, from the searches' files, `scores.json` and tables; no torch, except for galleries.

A figure leaves out what is not computed yet, and names it at its foot.
"""

from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from autoseg.errors import InputError, Problem, collect
from autoseg.files import parse
from autoseg.losses.names import one_surrogate, searches_of
from autoseg.losses.show import curve_title
from autoseg.losses.surrogate import Surrogate
from autoseg.metrics import formula
from autoseg.pipeline.layout import Layout
from autoseg.pipeline.outputs import ClassFigure, CurveFigure, GalleryFigure, ProxyFigure, SearchFigure, SurrogateFigure
from autoseg.pipeline.outputs import Figure as FigureConfig
from autoseg.report import drawing
from autoseg.report.drawing import COLOURS, HATCHES, LINES, MARKERS, SOFT, Array
from autoseg.report.formats import HOURS, LABEL, PAPER_HOURS
from autoseg.report.searches import SearchSoFar, gathered, percent, search_so_far
from autoseg.training.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_FINE = np.linspace(0, 1, 501)
_PAPERS_GPUS = 8  # the paper's hours are those of eight V100 at once


def parse_figure(content: Any) -> FigureConfig:
    """Return a figure's part of a config, checked."""

    class Holder(BaseModel):
        figure: FigureConfig

    return parse(Holder, {"figure": content}, "--figure").figure


def write_figure(
    config: FigureConfig,
    results: str | os.PathLike[str],
    stem: str | os.PathLike[str],
    suffixes: Sequence[str] = ("png", "svg"),
    window: tuple[int, int] | None = None,
    network: str | None = None,
) -> list[Problem]:
    """Draw a figure of a config from its results folder; return what it lacks.

    `window` is the sliding window that a gallery's networks are evaluated with, and `network` names them, if they are
    code of the user's.
    """
    layout = Layout(os.fspath(results))
    with drawing.style():
        if isinstance(config, GalleryFigure):
            from autoseg.report.gallery import gallery_figure

            figure, lacks = gallery_figure(config, layout, window, network)
        else:
            figure, lacks = _DRAW[type(config)](config, layout)
        drawing.remark(figure, [str(lack) for lack in gathered(lacks)])
        if config.title:
            figure.suptitle(config.title, fontsize=10)
        drawing.save(figure, stem, suffixes)
    return lacks


# ---------------------------------------------------------------------------------------------------------- searches


def search_figure(config: SearchFigure, layout: Layout) -> tuple[Figure, list[Problem]]:
    """Draw the best average score up to each step: a line for each group, a band from its worst to its best repeat."""
    figure = drawing.new_figure(5.2, 3.6)
    axes, lacks, metrics = figure.subplots(), [], []
    for number, (label, names) in enumerate(config.lines.items()):
        found = [search_so_far(layout.search(name)) for name in names]
        lacks += [lack for one in found for lack in one.lacks if not (one.steps and one.answer)]
        curves = [one.best_so_far for one in found if one.steps]
        metrics += [one.settings.metric for one in found if one.settings]
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


def story_figure(found: SearchSoFar) -> Figure:
    """Draw one search: every trial's score by step, how the curves of its mean moved, and where they ended."""
    from autoseg.search.space import surrogate
    from autoseg.search.steps import candidates

    assert found.settings is not None
    search, steps = found.settings, found.steps
    shown = [surrogate(search, one.theta) for one in candidates(search, steps)]
    means = shown if found.has_mean else []
    names = list(shown[0].curves)
    figure = drawing.new_figure(3.6 + 2.7 * min(len(names), 3), 3.1 * (1 + (len(names) - 1) // 3))
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[3.4, 2.7 * min(len(names), 3)]).flat
    axes = left.subplots()
    at = np.arange(1, len(steps) + 1)
    trials = [(step, percent(score)) for step, scored in zip(at, steps, strict=True) for score in scored.scores]
    axes.plot(*zip(*trials, strict=True), "o", color="0.7", markersize=3, label="a trial")
    axes.plot(at, found.averages, "s-", color=COLOURS[0], markersize=4, label="average of the step")
    axes.plot(at, found.best_so_far, "--", color=COLOURS[1], label="best average so far")
    axes.set(xlabel="step", ylabel=f"{search.metric} on the hold-out, %")
    drawing.whole_steps(axes)
    axes.legend(loc="best", fontsize=8)
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
            place.plot(_FINE, _g(found.answer, name), color=COLOURS[1], linewidth=1.8)
        drawing.unit_square(place)
        place.set_title(curve_title(name))
    return figure


def _g(loss: Surrogate, name: str) -> Array:
    return loss.space.curve_of(loss.curves[name])(_FINE)


def curve_figure(config: CurveFigure, layout: Layout) -> tuple[Figure, list[Problem]]:
    """Draw the curves of every searched loss against the identity, one square for each search."""
    found = {name: search_so_far(layout.search(name)) for name in config.searches}
    lacks = [lack for one in found.values() if one.answer is None for lack in one.lacks]
    columns = min(len(found), 3)
    rows = -(-len(found) // columns)
    # A curve's colour and line depend on its name alone, so that one legend outside the squares serves them all.
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
                _FINE, _g(answer, curve), color=COLOURS[number], linestyle=LINES[number], label=curve_title(curve)
            )
        drawing.unit_square(place)
        place.set_title(f"{name}" + ("" if answer else " (not finished)"))
        handles |= {str(line.get_label()): line for line in place.lines}
    figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=4, fontsize=8, handlelength=2.6)
    return figure, lacks


def loss_figure(config: SurrogateFigure, layout: Layout) -> tuple[Figure, list[Problem]]:
    """Draw one surrogate by its name."""
    names = searches_of(config.loss)
    if not names:
        return surrogate_figure(one_surrogate(config.loss)), []
    found = search_so_far(layout.search(names[0]))
    if found.answer is None:
        figure = drawing.new_figure(5, 1.5)
        figure.subplots().set_axis_off()
        return figure, found.lacks
    return surrogate_figure(found.answer), []


def surrogate_figure(loss: Surrogate) -> Figure:
    """Draw a surrogate: its curves with their control points, and for each operator the logic that they make."""
    shaped = {name: pair for name, pair in loss.operands.items() if any(pair)}
    columns = max(len(loss.curves), len(shaped))
    figure = drawing.new_figure(2.6 * columns + 0.3, 5.6)
    grid = figure.add_gridspec(2, 2 * columns)  # a square has two columns, so that the shorter row stands in the middle

    def square(row: int, number: int, count: int) -> Axes:
        first = columns - count + 2 * number
        return figure.add_subplot(grid[row, first : first + 2])

    for number, (name, points) in enumerate(loss.curves.items()):
        place, colour = square(0, number, len(loss.curves)), COLOURS[number % 7]
        drawing.identity_line(place)
        u, v = loss.space.knots(points)
        place.plot(u, v, linestyle=":", color=SOFT, linewidth=0.9)
        place.plot(u[1:-1], v[1:-1], "o", markerfacecolor="white", markeredgecolor=colour, markersize=5)
        place.plot(_FINE, _g(loss, name), color=colour, linewidth=1.8)
        drawing.unit_square(place)
        place.set_title(f"{curve_title(name)}, control points")
    for number, (operator, pair) in enumerate(shaped.items()):
        _surface(square(1, number, len(shaped)), loss, operator, pair)
    return figure


def _surface(axes: Axes, loss: Surrogate, operator: str, pair: tuple[str | None, str | None]) -> None:
    """Draw an operator's value over its two operands, as a map with labelled contours."""
    y = np.linspace(0, 1, 101)
    a, b = (y if name is None else loss.space.curve_of(loss.curves[name])(y) for name in pair)
    a, b = a[None, :], b[:, None]
    value = a + b - a * b if formula.get(loss.metric).operators[operator] == "OR" else a * b
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


def class_figure(config: ClassFigure, layout: Layout) -> tuple[Figure, list[Problem]]:
    """Draw a metric's score of every class, in percent, a bar for each loss."""
    metric = formula.get(config.metric).name
    found, lacks = {}, []
    for (label, _), run in zip(config.losses.items(), config.runs, strict=True):
        path = Path(layout.scores(run.name))
        if not path.exists():
            lacks.append(Problem(f"'{label}'", "no scores yet"))
            continue
        with collect(lacks):
            per_class = Scores.load(path).per_class
            if metric not in per_class:
                raise InputError(f"has no {metric} of each class", where=path)
            found[label] = per_class[metric]
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


def proxy_figure(config: ProxyFigure, layout: Layout) -> tuple[Figure, list[Problem]]:
    """Draw the device hours of a table's searches against the scores of their losses, the paper's too."""
    figure = drawing.new_figure(5.2, 3.6)
    axes, lacks = figure.subplots(), []
    path = Path(layout.table(config.table, ".csv"))
    if not path.exists():
        axes.set(xlabel="device hours of the search", ylabel="score, %")
        return figure, [Problem(f"table '{config.table}'", "not written yet")]
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        columns, rows = list(reader.fieldnames or []), list(reader)
    if HOURS not in columns:
        raise InputError("has no column of hours", where=path, cure=f"set tables.{config.table}.hours: true")
    score = columns[columns.index(PAPER_HOURS) + 1]  # the hours stand left of all scores
    for row in rows:
        if row[HOURS] and row[score]:
            _point(axes, float(row[HOURS]), float(row[score]), row[LABEL], filled=True)
        else:
            lacks.append(Problem(f"'{row[LABEL]}'", f"no {'score' if row[HOURS] else 'hours'} yet"))
    printed = [row for row in rows if row[PAPER_HOURS] and row.get(f"{score} paper")]
    for row in printed:
        hours = _PAPERS_GPUS * float(row[PAPER_HOURS])
        _point(axes, hours, float(row[f"{score} paper"]), row[LABEL], filled=False)
    axes.set(xlabel="device hours of the search", ylabel=f"{score} of the loss, %")
    if axes.lines:
        axes.margins(0.15)
        axes.plot([], [], MARKERS[0], color=COLOURS[0], label="ours")
        if printed:
            label = f"the paper's ({_PAPERS_GPUS} V100 together)"
            axes.plot([], [], MARKERS[1], color=COLOURS[1], markerfacecolor="white", label=label)
        axes.legend(fontsize=8)
    return figure, lacks


def _point(axes: Axes, hours: float, score: float, label: str, filled: bool) -> None:
    colour, marker = (COLOURS[0], MARKERS[0]) if filled else (COLOURS[1], MARKERS[1])
    axes.plot([hours], [score], marker, color=colour, markerfacecolor=colour if filled else "white")
    # Ours above the point and the paper's below: the two of a row may lie close to each other.
    axes.annotate(label, (hours, score), xytext=(6, 4 if filled else -10), textcoords="offset points", fontsize=7.5)


_DRAW: dict[type, Callable[[Any, Layout], tuple[Figure, list[Problem]]]] = {
    SearchFigure: search_figure,
    CurveFigure: curve_figure,
    SurrogateFigure: loss_figure,
    ClassFigure: class_figure,
    ProxyFigure: proxy_figure,
}
