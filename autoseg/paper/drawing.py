"""How figures look: told apart in grey and by colour-blind eyes, and the same bytes for the same input."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autoseg.curves import Curve, CurveSpace
from autoseg.errors import InputError
from autoseg.files import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

# Okabe and Ito's colours; every series has a line style, a marker and a hatch of its own, too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oooo")
SOFT = "0.55"
_REMARK = "#a03000"

SUFFIXES = ("png", "svg", "pdf")
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "svg.hashsalt": "autoseg",  # else ids are random
    "hatch.linewidth": 0.6,
    "image.interpolation": "nearest",
}
# Without dates and versions.
_METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in the house style, and leave matplotlib as it was."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("figures need matplotlib: pip install 'autoseg[plot]'.") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def picture(figure: Figure, suffix: str) -> bytes:
    """Return a figure as the bytes of a PNG, SVG or PDF file."""
    out = io.BytesIO()
    figure.savefig(out, format=suffix, metadata=_METADATA[suffix])
    return out.getvalue()


def save(figure: Figure, stem: str | os.PathLike[str], suffixes: Sequence[str] = ("png", "svg")) -> None:
    """Write a figure to <stem>.<suffix>, each."""
    for suffix in suffixes:
        content = picture(figure, suffix)
        with atomic(f"{stem}.{suffix}", "wb") as file:
            file.write(content)


def whole_steps(axes: Axes) -> None:
    """Let the x axis count steps."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def remark(figure: Figure, texts: Sequence[str]) -> None:
    """Say at the foot of a figure what it lacks."""
    if texts:
        letters = int(17 * figure.get_figwidth())  # that a line of this size holds
        lines = [line for text in texts for line in textwrap.wrap(text, letters)]
        if figure.legends:  # at the figure's foot too: one would hide the other
            figure.legends[0].set_title("\n".join(lines))
            figure.legends[0].get_title().set(fontsize=7, color=_REMARK)
        else:
            figure.supxlabel("\n".join(lines), fontsize=7, color=_REMARK, x=0.01, ha="left")


def evaluate(curve: Curve, y: Array) -> Array:
    """Return g(y) for y in [0, 1], as `Curve` does, without torch.

    >>> evaluate(CurveSpace("linear", 2).curve_of([0.8]), np.array([0.0, 0.25, 0.5, 1.0])).tolist()
    [0.0, 0.4, 0.8, 1.0]
    """
    value = np.full_like(y, curve.start)
    for piece in curve.pieces:
        here = y >= piece.u0
        x = y[here] - piece.u0
        root = np.sqrt(np.maximum(piece.b**2 + 4 * piece.a * x, 1e-12))
        s = np.minimum(2 * x / (root + piece.b), 1.0)
        value[here] = piece.v0 + s * (piece.c + s * piece.d)
    value[y <= 0], value[y >= 1] = curve.start, curve.end
    return value


def knots(space: CurveSpace, points: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return u and v of a curve's control points, the two ends included.

    >>> knots(CurveSpace("bezier", 1), [0.2, 0.7])
    ([0.0, 0.2, 1.0], [0.0, 0.7, 1.0])
    """
    low, high, inner = (0.0, 1.0, list(points)) if space.truth_table else (points[-2], points[-1], list(points[:-2]))
    if space.family == "bezier":
        return [0.0, *inner[0::2], 1.0], [low, *inner[1::2], high]
    heights = [low, *inner, high]
    return [k / (len(heights) - 1) for k in range(len(heights))], heights


def name_of(curve: str) -> str:
    """Return what a curve is called: by its operator, but for those that have a name of their own.

    >>> name_of("AND"), name_of("g1")
    ('g of AND', 'g1')
    """
    return curve if curve.startswith("g") and curve[1:].isdigit() else f"g of {curve}"


def unit_square(axes: Axes, x: str = "y", y: str = "g(y)") -> None:
    """Set axes up for a curve from [0, 1] to [0, 1]."""
    axes.set(xlabel=x, ylabel=y, aspect="equal", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    ticks = (0, 0.25, 0.5, 0.75, 1)
    axes.set(xticks=ticks, yticks=ticks)


def identity_line(axes: Axes) -> None:
    """Draw g(y) = y."""
    axes.plot([0, 1], [0, 1], color="0.75", linewidth=1, zorder=0, label="identity")
