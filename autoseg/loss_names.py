"""The names of losses, and sums of them: read and checked without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from autoseg import formula
from autoseg.errors import InputError, unknown
from autoseg.surrogate_json import PUBLISHED, resolve

HAND_MADE = ("ce", "wce", "dpce", "ssim", "dice", "dice-squared", "lovasz")
_TERM = re.compile(r"^(?:(?P<weight>[-+0-9.eE]+)\s*\*\s*)?(?P<name>\S.*)$")


def parse_terms(spec: str) -> list[tuple[float, str]]:
    """Return the weight and the name of each term of a loss.

    >>> parse_terms("published:mIoU + 0.5 * ce")
    [(1.0, 'published:mIoU'), (0.5, 'ce')]
    """
    if not isinstance(spec, str):
        raise InputError(f"the loss is {spec!r}; expected a name.")
    terms = []
    for part in re.split(r"\s\+\s", spec.strip()):
        match = _TERM.match(part.strip())
        if match is None:
            raise InputError(f"the loss '{spec}' has an empty term; expected names joined by ' + '.")
        try:
            weight = float(match["weight"] or 1)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight):
            raise InputError(f"the loss '{spec}' has the weight '{match['weight']}'; expected a number.")
        terms.append((weight, match["name"].strip()))
    return terms


def searches_of(spec: str) -> list[str]:
    """Return the searches whose surrogates a loss is made of, each once.

    >>> searches_of("searched:mIoU + 0.5 * searched:BIoU + ce")
    ['mIoU', 'BIoU']
    """
    names = [name.partition(":") for _, name in parse_terms(spec)]
    return list(dict.fromkeys(rest for kind, _, rest in names if kind.lower() == "searched"))


def check_loss(spec: str, searches: Collection[str] | None = None) -> None:
    """Raise an error that says what is wrong with a loss's name, if anything is; no file is read.

    >>> check_loss("naive:mIoU + dicee")
    Traceback (most recent call last):
    autoseg.errors.InputError: unknown loss 'dicee'; did you mean 'dice'? Known: ...
    """
    for _, name in parse_terms(spec):
        kind, colon, rest = name.partition(":")
        if kind.lower() in ("naive", "published") and colon:
            resolve(name)
        elif kind.lower() == "searched" and colon:
            if searches is not None and rest not in searches:
                raise unknown("search", rest, searches)
        elif name.lower() not in HAND_MADE and not name.endswith(".json"):
            raise unknown_loss(name)


def unknown_loss(name: str) -> InputError:
    """Return the error for a name that is no loss."""
    if "+" in name:
        return InputError(f"unknown loss '{name}'; a sum is written with spaces around the plus: 'ce + dice'.")
    metrics, presets = "|".join(formula.names()), "|".join(PUBLISHED)
    known = [*HAND_MADE, f"naive:({metrics})", f"published:({presets})", "searched:<search>", "<path>.json"]
    return unknown("loss", name, known)
