"""A surrogate in other forms: as text in a terminal, and as a Python file that needs torch alone. No torch here."""

from __future__ import annotations

from importlib import resources

from autoseg import __version__, formula
from autoseg.curves import STEEP, Curve, CurveSpace
from autoseg.errors import InputError, unknown
from autoseg.loss_names import HAND_MADE, parse_terms, searches_of
from autoseg.surrogate_json import PUBLISHED, Surrogate, published, resolve

Terms = list[tuple[float, Surrogate]]

_WIDTH, _HEIGHT = 41, 17


def find_surrogates(spec: str) -> Terms:
    """Return the surrogates that a loss is a weighted sum of; "mIoU" alone is the published one.

    >>> [(weight, loss.metric) for weight, loss in find_surrogates("mIoU + 0.5 * naive:BIoU")]
    [(1.0, 'mIoU'), (0.5, 'BIoU')]
    """
    found = []
    for weight, name in parse_terms(spec):
        if name.lower() in (known.lower() for known in PUBLISHED):
            found.append((weight, published(name)))
        elif name.lower() in HAND_MADE:
            raise InputError(f"'{name}' is made by hand: it has no curves to show and no parameters to export.")
        elif searches_of(name):
            where = f"results/<name>/searches/{searches_of(name)[0]}/surrogate.json"
            raise InputError(f"'{name}' is a name of a pipeline; expected the file of that search, such as {where}.")
        elif ":" in name or name.endswith(".json"):
            found.append((weight, resolve(name)))
        elif "+" in name:
            raise InputError(f"unknown surrogate '{name}'; a sum has spaces around the plus, as in 'mIoU + BIoU'.")
        else:
            raise unknown("surrogate", name, [*PUBLISHED, "naive:<metric>", "<path>.json"])
    return found


# ---------------------------------------------------------------------------------------------------------- terminal


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
    return "\n\n".join(parts) + "\n"


def _describe_curve(name: str, space: CurveSpace, points: list[float]) -> str:
    import numpy as np

    from autoseg.paper.drawing import evaluate, knots, name_of

    curve = space.curve_of(points)
    u, v = knots(space, points)
    inner = "  ".join(f"({a:.4g}, {b:.4g})" for a, b in list(zip(u, v, strict=True))[1:-1]) or "none"
    at = [k / 10 for k in range(11)]
    values = evaluate(curve, np.array(at))
    return (
        f"{name_of(name)}\n  control points  {inner}\n"
        f"  y     {'  '.join(f'{y:5.1f}' for y in at)}\n  g(y)  {'  '.join(f'{value:5.3f}' for value in values)}\n"
        f"{_plot(curve, u, v)}"
    )


def _plot(curve: Curve, u: list[float], v: list[float]) -> str:
    """Return the curve (#), its control points (o) and the identity (.) as characters."""
    import numpy as np

    from autoseg.paper.drawing import evaluate

    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]

    def put(x: float, y: float, mark: str) -> None:
        row = round((1 - min(max(y, 0.0), 1.0)) * (_HEIGHT - 1))
        grid[row][round(x * (_WIDTH - 1))] = mark

    fine = np.linspace(0, 1, 12 * _WIDTH)
    for x in fine:
        put(x, x, ".")
    for x, y in zip(fine, evaluate(curve, fine), strict=True):
        put(x, y, "#")
    for x, y in zip(u[1:-1], v[1:-1], strict=True):
        put(x, y, "o")
    edge = ["1 |", *["  |"] * (_HEIGHT - 2), "0 |"]
    lines = [f"  {left}{''.join(row)}".rstrip() for left, row in zip(edge, grid, strict=True)]
    foot = f"    +{'-' * _WIDTH}\n     0{' ' * (_WIDTH - 2)}1    # g(y), o control points, . identity"
    return "\n".join([*lines, foot])


# ------------------------------------------------------------------------------------------------------- Python file


def as_python(spec: str) -> str:
    """Return a Python file with the loss, on torch alone: the same value and the same gradient."""
    terms = find_surrogates(spec)
    for _, loss in terms:
        if not formula.has_kernel(formula.get(loss.metric)):
            raise InputError(
                f"{loss.metric} is a metric of your own: its formula is your code, which stays where it is; "
                "export the parameters as JSON and load them with `SurrogateLoss.load`."
            )
    template = resources.files("autoseg").joinpath("export_template.py").read_text(encoding="utf-8")
    about = "\n".join(f"    {weight:g} * {loss.metric}: {_comment(loss.source)}" for weight, loss in terms)
    return (
        template.replace("ABOUT", about)
        .replace("VERSION", __version__)
        .replace("TERMS: list = []", f"TERMS = {_literal([_term(weight, loss) for weight, loss in terms])}")
        .replace("STEEP = 1e-6", f"STEEP = {STEEP!r}")
    )


def _comment(text: str) -> str:
    """Return a text that can stand in a docstring, whatever it is."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split()) or "no source given"


def _literal(value: object, indent: str = "") -> str:
    """Return a value as Python writes it, dictionaries and lists a line for each item.

    >>> print(_literal({"a": [(1, 2)]}))
    {
        "a": [
            (1, 2),
        ],
    }
    """
    deeper = indent + "    "
    if isinstance(value, dict):
        items = [f'{deeper}"{key}": {_literal(item, deeper)},\n' for key, item in value.items()]
        return "{\n" + "".join(items) + indent + "}"
    if isinstance(value, list):
        return "[\n" + "".join(f"{deeper}{_literal(item, deeper)},\n" for item in value) + indent + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value).replace("'", '"')


def _term(weight: float, loss: Surrogate) -> dict[str, object]:
    found, c = formula.get(loss.metric), loss.conventions
    curves = {}
    for name, points in loss.curves.items():
        curve = loss.space.curve_of(points)
        curves[name] = {"start": curve.start, "end": curve.end, "pieces": [tuple(piece) for piece in curve.pieces]}
    return {
        "metric": loss.metric,
        "weight": weight,
        "absent": c.absent or found.absent_in_loss,
        "tolerance": c.tolerance,
        "boundary_radius": c.boundary_radius,
        "drop_background": c.drop_background,
        "mask_void": c.mask_void,
        "operands": {name: tuple(pair) for name, pair in found.layout(loss.layout).operands.items()},
        "curves": curves,
    }
