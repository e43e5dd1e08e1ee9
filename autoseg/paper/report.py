"""The report: one self-contained HTML page with tables and each search's story. No torch."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autoseg.curves import CurveSpace
from autoseg.files import atomic
from autoseg.search import Folder, Scored, total_steps
from autoseg.surrogate_json import Surrogate

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}
caption{text-align:left;padding:.3rem 0}
th,td{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:right}
tr>:first-child{text-align:left}thead th{border-bottom:2px solid #222}
svg{max-width:100%;height:auto}pre{background:#f6f6f6;padding:1rem;overflow-x:auto;font-size:13px}
"""


def write_report(
    title: str, tables: Sequence[str], searches: Sequence[str], config: str, out: str | os.PathLike[str]
) -> None:
    """Write the report from tables (HTML elements), the folders of searches and the config's text."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += [Path(path).read_text(encoding="utf-8") for path in tables]
    if searches:
        parts.append("<h2>Searches</h2>")
    parts += [_story(folder) for folder in searches]
    parts.append(f"<h2>What was run</h2><pre>{html.escape(config)}</pre>")
    head = (
        f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{html.escape(title)}</title>"
    )
    head += f"<style>{STYLE}</style>"
    page = f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"
    with atomic(out) as file:
        file.write(page)


def _story(path: str) -> str:
    folder = Folder(path)
    search = folder.search()
    history = folder.history(total_steps(search))
    chosen = Surrogate.load(Path(path) / "surrogate.json")
    return (
        f"<h3>{html.escape(search.name)}</h3><p>{html.escape(chosen.source)}</p>"
        f"{_figure(search.metric, history, chosen)}"
    )


def _figure(metric: str, history: Sequence[Scored], chosen: Surrogate) -> str:
    """Return an SVG: the trials' scores by step with the best average so far, and the chosen curves."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "autoseg"  # the same figure, the same bytes
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    steps = np.arange(1, len(history) + 1)
    for step, scored in zip(steps, history, strict=True):
        left.plot([step] * len(scored.scores), 100 * np.array(scored.scores), "o", color="0.6", markersize=3)
    averages = 100 * np.array([scored.average for scored in history])
    left.plot(steps, averages, "-", color="#0072b2", label="average of the step")
    left.plot(steps, np.maximum.accumulate(averages), "--", color="#d55e00", label="best average so far")
    left.set(xlabel="step", ylabel=f"{metric} on the hold-out, %", xticks=steps)
    left.legend(frameon=False)
    y = np.linspace(0, 1, 201)
    right.plot(y, y, ":", color="0.5", label="identity")
    for (name, points), style in zip(chosen.curves.items(), ("-", "--", "-.", ":"), strict=False):
        right.plot(y, _curve(chosen.space, points, y), style, label=f"g of {name}")
    right.set(xlabel="y", ylabel="g(y)", aspect="equal")
    right.legend(frameon=False)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _curve(space: CurveSpace, points: Sequence[float], y: np.ndarray) -> np.ndarray:
    """Return g(y) drawn from its control points, without torch: each piece as the polyline of its parameter s."""
    if space.family == "linear":
        heights = [0.0, *points, 1.0] if space.truth_table else [points[-2], *points[:-2], points[-1]]
        return np.interp(y, np.linspace(0, 1, len(heights)), heights)
    inner, ends = (points, (0.0, 1.0)) if space.truth_table else (points[:-2], (points[-2], points[-1]))
    u, v = [0.0, *inner[0::2], 1.0], [ends[0], *inner[1::2], ends[1]]
    s = np.linspace(0, 1, 200)
    weights = (1 - s) ** 2, 2 * s * (1 - s), s**2
    xs = np.concatenate(
        [sum(w * c for w, c in zip(weights, u[k : k + 3], strict=True)) for k in range(0, len(u) - 2, 2)]
    )
    ys = np.concatenate(
        [sum(w * c for w, c in zip(weights, v[k : k + 3], strict=True)) for k in range(0, len(v) - 2, 2)]
    )
    return np.interp(y, xs, ys)
