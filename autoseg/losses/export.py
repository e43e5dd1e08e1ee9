"""`autoseg loss export`: a loss as a Python file that needs torch alone, assembled from the sources of this package."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import resources
from typing import Any

from autoseg import __version__
from autoseg.errors import InputError
from autoseg.losses import curves
from autoseg.losses.am_lfs import FAMILY as AM_LFS
from autoseg.losses.curves import Curve
from autoseg.losses.show import find_surrogates
from autoseg.losses.surrogate import Surrogate
from autoseg.metrics import formula, more
from autoseg.metrics.conventions import Conventions, fitting, reach
from autoseg.metrics.formula import Formula

IMPORTS = """\
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple
"""

NAMES = f"""\
Array = Sums = CurvePair = Any
Conventions = SimpleNamespace
STEEP = {curves.STEEP!r}  # the least divisor of a slope


"""

# What kernels and searches need of these classes, and an exported loss does not.
_LEFT_OUT = {
    Curve: {"jumps_at_0", "jumps_at_1", "delicate"},
    Formula: {
        "absent_in_loss",
        "drop_background_in_loss",
        "loss_conventions",
        "layouts",
        "__reduce__",
        "has_kernel",
        "built_in",
        "operators",
        "layout",
        "evaluate",
        "count",
    },
}


def as_python(spec: str) -> str:
    """Return a Python file with the loss, on torch alone: the same value and the same gradient."""
    from autoseg.metrics.targets import stripped  # not at the top: it imports torch

    terms = find_surrogates(spec)
    found = {loss.metric: formula.get(loss.metric) for _, loss in terms}
    for name, metric in found.items():
        if not metric.built_in:
            raise InputError(
                f"{name} is a metric of your own, whose formula is not exported",
                cure="export the parameters as JSON and load them with `SurrogateLoss.load`",
            )
    own = [getattr(metric, part) for metric in found.values() for part in ("sums", "per_class", "weight")]
    parts: list[Any] = [
        *(curves.Piece, Curve, curves.evaluate_piece, curves.library, curves._affine, curves._constant),
        *(curves.refuse_second_derivative, curves._with_autograd, stripped, fitting, reach),
        *(formula.Ops, formula._max_pool, formula.ratio, Formula),
        *dict.fromkeys(part for part in own if part is not None),
    ]
    names = NAMES
    if any(metric in more.REGIONS for metric in found.values()):
        parts += [more._weighted, more._fbeta_weights, more._chance, more._without_rest]
    if any(metric in more.SHAPES for metric in found.values()):
        names = "import torch.nn.functional as F\n\n" + names
        parts += [more.ShapeOps, *_shape_functions()]
    sources = names + "\n\n".join(map(_source, dict.fromkeys(parts)))
    literal = _literal([_term(weight, loss, found[loss.metric]) for weight, loss in terms])
    template = resources.files("autoseg.losses").joinpath("export_template.py").read_text(encoding="utf-8")
    lines = [line for line in template.splitlines(keepends=True) if not line.startswith("from autoseg")]
    about = "\n".join(f"    {weight:g} * {loss.metric}: {_comment(loss.source)}" for weight, loss in terms)
    return (
        "".join(lines)
        .replace("ABOUT", about)
        .replace("VERSION", __version__)
        .replace("from typing import Any, Literal\n", IMPORTS)
        .replace("\n\n# SOURCES\n", f"\n{sources}\n")
        .replace("TERMS: list[dict[str, Any]] = []", f"TERMS: list[dict[str, Any]] = {literal}")
    )


def _shape_functions() -> list[Any]:
    """Return what `ShapeOps` uses of `shapes`."""
    from autoseg.metrics import shapes  # not at the top: it imports torch

    return [
        *(shapes.pixels_wide, shapes.ball, shapes._offsets, shapes.bordered, shapes.rim),
        *(shapes.surface, shapes.near, shapes.skeleton, shapes._filled, shapes._kept, shapes._least, shapes._moved),
    ]


def _source(part: Any) -> str:
    """Return the source of a function or class; where members are left out, the class's docstring is one line."""
    source = inspect.getsource(part)
    if part is more.ShapeOps:  # one file is one module
        source = source.replace("        from autoseg.metrics import shapes\n\n", "").replace("shapes.", "")
    if part not in _LEFT_OUT:
        return source
    lines = source.splitlines(keepends=True)
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    docstring, *members = node.body
    cut = set(range(docstring.lineno + 1, (docstring.end_lineno or 0) + 1))
    lines[docstring.lineno - 1] = lines[docstring.lineno - 1].rstrip() + '"""\n'
    for member in members:
        name = getattr(member, "name", getattr(getattr(member, "target", None), "id", None))
        if name in _LEFT_OUT[part]:
            first = min([member.lineno, *(d.lineno for d in getattr(member, "decorator_list", []))])
            cut.update(range(first, (member.end_lineno or first) + 1))
    kept = "".join(line for number, line in enumerate(lines, 1) if number not in cut).rstrip() + "\n"
    # A data class with annotations as text must be in sys.modules, and whoever loads the file may not put it there.
    kept = re.sub(r"^@dataclass.*\nclass (\w+):", r"class \1(NamedTuple):", kept)
    return re.sub(r"\n{3,}", "\n\n", kept)


def _comment(text: str) -> str:
    """Return a text that can stand in a docstring, whatever it contains."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)  # no NUL, which Python does not read
    return " ".join(plain.replace("\\", "/").replace('"', "'").split()) or "no source given"


class _Code(str):
    """A text that is written as code, not as a string."""


def _literal(value: object, indent: str = "") -> str:
    """Return a value as Python writes it, dictionaries and lists with a line for each item.

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
    if isinstance(value, _Code):
        return str(value)
    return f'"{value}"' if isinstance(value, str) else repr(value).replace("'", '"')


def _term(weight: float, loss: Surrogate, metric: Formula) -> dict[str, object]:
    if loss.family == AM_LFS:
        cure = "build it with `autoseg.build_loss`, which takes its surrogate.json"
        raise InputError("a loss of AM-LFS is not exported to Python", where="loss", cure=cure)
    conventions = loss.conventions.model_copy(update={"absent": loss.conventions.absent or metric.absent_in_loss})
    weighting = metric.weight.__name__ if metric.weight else None
    needed: Any = {**conventions.model_dump(), "spacing": None}
    if metric in (*more.REGIONS, *more.SHAPES):
        needed = Conventions.model_fields
    chosen = ", ".join(
        f"{name}={getattr(conventions, name)!r}" for name in [*needed, *["distance"] * ("beta" in needed)]
    )
    shapes = {name: loss.space.curve_of(points) for name, points in loss.curves.items()}
    return {
        "metric": loss.metric,
        "weight": weight,
        "formula": _Code(
            f'Formula("{metric.name}", {metric.sums.__name__}, {metric.per_class.__name__}, {weighting}, '
            f'"{metric.void}", {metric.drops_background}{", ShapeOps" * (metric in more.SHAPES)})'
        ),
        "conventions": _Code(f"Conventions({chosen})".replace("'", '"')),
        "operators": {name: tuple(pair) for name, pair in loss.operands.items()},
        "curves": {
            name: {
                "pieces": [_Code(f"Piece{tuple(piece)}") for piece in curve.pieces],
                "start": curve.start,
                "end": curve.end,
            }
            for name, curve in shapes.items()
        },
    }
