"""A surrogate as text in a terminal: what it is, its control points, and its curves as characters. No torch here."""

from __future__ import annotations

import numpy as np

from autoseg.errors import shown
from autoseg.losses.curves import Curve, CurveSpace
from autoseg.losses.names import parse_loss
from autoseg.losses.surrogate import Surrogate

Terms = list[tuple[float, Surrogate]]
_WIDTH, _HEIGHT = 41, 17


def find_surrogates(spec: str) -> Terms:
    """Return the surrogates that a loss is a weighted sum of; "mIoU" alone is the published one.

    >>> [(weight, loss.metric) for weight, loss in find_surrogates("mIoU + 0.5 * naive:BIoU")]
    [(1.0, 'mIoU'), (0.5, 'BIoU')]
    """
    return [(term.weight, term.surrogate()) for term in parse_loss(spec, bare="published")]


def describe(spec: str) -> str:
    """Return what a loss is, in words, numbers and plots of characters."""
    parts = []
    terms = find_surrogates(spec)
    for weight, loss in terms:
        times = f"{weight:g} * " if len(terms) > 1 else ""
        kind = f"{loss.family} curves of {loss.pieces} piece{'s' * (loss.pieces > 1)}, layout '{loss.layout}'"
        parts.append(f"{times}{loss.metric}: {kind}\n{loss.source or 'no source given'}")
        settings = {key: value for key, value in loss.conventions.model_dump().items() if value is not None}
        parts.append("conventions: " + ", ".join(f"{key} {value}" for key, value in settings.items()))
        parts += [_describe_curve(name, loss.space, points) for name, points in loss.curves.items()]
    return shown("\n\n".join(parts)) + "\n"


def curve_title(name: str) -> str:
    """Return what a curve is called: "g of" its operator, or its own name.

    >>> curve_title("AND"), curve_title("g1")
    ('g of AND', 'g1')
    """
    return name if name.startswith("g") and name[1:].isdigit() else f"g of {name}"


def _describe_curve(name: str, space: CurveSpace, points: list[float]) -> str:
    curve = space.curve_of(points)
    u, v = space.knots(points)
    inner = "  ".join(f"({a:.4g}, {b:.4g})" for a, b in list(zip(u, v, strict=True))[1:-1]) or "none"
    at = np.linspace(0, 1, 11)
    return (
        f"{curve_title(name)}\n  control points  {inner}\n"
        f"  y     {'  '.join(f'{y:5.1f}' for y in at)}\n  g(y)  {'  '.join(f'{g:5.3f}' for g in curve(at))}\n"
        f"{_plot(curve, u, v)}"
    )


def _plot(curve: Curve, u: list[float], v: list[float]) -> str:
    """Return the curve (#), its control points (o) and the identity (.) as characters."""
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]

    def put(x: float, y: float, mark: str) -> None:
        row = round((1 - min(max(y, 0.0), 1.0)) * (_HEIGHT - 1))
        grid[row][round(x * (_WIDTH - 1))] = mark

    fine = np.linspace(0, 1, 12 * _WIDTH)
    for x in fine:
        put(x, x, ".")
    for x, y in zip(fine, curve(fine), strict=True):
        put(x, y, "#")
    for x, y in zip(u[1:-1], v[1:-1], strict=True):
        put(x, y, "o")
    edge = ["1 |", *["  |"] * (_HEIGHT - 2), "0 |"]
    lines = [f"  {left}{''.join(row)}".rstrip() for left, row in zip(edge, grid, strict=True)]
    foot = f"    +{'-' * _WIDTH}\n     0{' ' * (_WIDTH - 2)}1    # g(y), o control points, . identity"
    return "\n".join([*lines, foot])
