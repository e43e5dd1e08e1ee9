"""How figures look: readable in grey and for colour-blind readers, and the same bytes for the same input."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autoseg.errors import InputError
from autoseg.files import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Array = NDArray[np.float64]

# Okabe and Ito's colours. A series differs from the others in line style, marker and hatch too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oooo")
SOFT = "0.55"
_REMARK = "#a03000"

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is on every machine
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "svg.hashsalt": "autoseg",  # ids in the file would be random without it
    "hatch.linewidth": 0.6,
    "image.interpolation": "nearest",
    "text.parse_math": False,  # a $ in a title or the name of a class is a $
}

# No dates and no versions in the files.
_METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in this style; afterwards matplotlib's settings are what they were."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("figures need the package matplotlib", cure="pip install 'autoseg[plot]'") from None
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
    """Write a figure to <stem>.<suffix> for each suffix."""
    for suffix in suffixes:
        content = picture(figure, suffix)
        with atomic(f"{stem}.{suffix}", "wb") as file:
            file.write(content)


def whole_steps(axes: Axes) -> None:
    """Put the ticks of the x axis at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def remark(figure: Figure, texts: Sequence[str]) -> None:
    """Write at the foot of a figure what it lacks."""
    if texts:
        letters = int(17 * figure.get_figwidth())  # of a line
        lines = [line for text in texts for line in textwrap.wrap(text, letters)]
        if figure.legends:  # the legend stands at the foot too, so the remark becomes its title
            figure.legends[0].set_title("\n".join(lines))
            figure.legends[0].get_title().set(fontsize=7, color=_REMARK)
        else:
            figure.supxlabel("\n".join(lines), fontsize=7, color=_REMARK, x=0.01, ha="left")


def unit_square(axes: Axes, x: str = "y", y: str = "g(y)") -> None:
    """Set axes up for a curve from [0, 1] to [0, 1]."""
    axes.set(xlabel=x, ylabel=y, aspect="equal", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    ticks = (0, 0.25, 0.5, 0.75, 1)
    axes.set(xticks=ticks, yticks=ticks)


def identity_line(axes: Axes) -> None:
    """Draw g(y) = y."""
    axes.plot([0, 1], [0, 1], color="0.75", linewidth=1, zorder=0, label="identity")
