"""The names of losses: one parser for texts such as "published:mIoU + 0.5 * ce". No torch here."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple, cast

from autoseg.errors import InputError, unknown
from autoseg.losses.published import PUBLISHED, naive, published
from autoseg.losses.surrogate import Surrogate
from autoseg.losses.zoo import from_zoo
from autoseg.metrics import formula

TermKind = Literal["hand-made", "naive", "published", "zoo", "searched", "file"]

HAND_MADE = (
    *("ce", "wce", "dpce", "ssim", "dice", "dice-squared", "lovasz"),
    *("jml", "dml", "focal", "tversky", "boundary"),
    *("ce-release", "wce-release", "dpce-release", "ssim-release", "dice-release"),
)

_TERM = re.compile(r"^(?:(?P<weight>[-+0-9.eE]+)\s*\*\s*)?(?P<name>\S.*)$")


class Term(NamedTuple):
    """One term of a loss: `weight` times the loss of that kind and name (a file's name is its path)."""

    weight: float
    kind: TermKind
    name: str

    @property
    def text(self) -> str:
        """The term as it is written, without its weight."""
        return f"{self.kind}:{self.name}" if self.kind in ("naive", "published", "zoo", "searched") else self.name

    def surrogate(self, searched: Mapping[str, str] | None = None) -> Surrogate:
        """Return the surrogate that is named; `searched` holds the surrogate.json of each search by its name."""
        if self.kind == "published":
            return published(self.name)
        if self.kind == "naive":
            return naive(self.name)
        if self.kind == "zoo":
            return from_zoo(self.name)
        if self.kind == "file":
            return Surrogate.load(self.name)
        if self.kind == "hand-made":
            raise InputError(f"'{self.name}' is a hand-made loss", expected="a surrogate, such as published:mIoU")
        if self.name not in (searched or {}):
            if searched:
                raise unknown("search", self.name, searched)
            cure = f"give the file of that search, such as results/<name>/searches/{self.name}/surrogate.json"
            raise InputError(f"'{self.text}' names a search, but no searches were given here", cure=cure)
        return Surrogate.load((searched or {})[self.name])


def parse_loss(spec: str, *, bare: Literal["hand-made", "published"] = "hand-made") -> list[Term]:
    """Return the terms of a loss; no file is read.

    `bare` says what a name without a kind is, where it is no hand-made loss: an error, or a published surrogate.

    >>> parse_loss("published:mIoU + 0.5 * ce")
    [Term(weight=1.0, kind='published', name='mIoU'), Term(weight=0.5, kind='hand-made', name='ce')]
    """
    if not isinstance(spec, str):
        raise InputError(f"the loss is {spec!r}", expected="a name")
    if any(ord(letter) < 32 for letter in spec):
        raise InputError(f"the loss is {spec!r}", expected="one line")
    terms = []
    for part in re.split(r"\s\+\s", spec.strip()):
        match = _TERM.match(part.strip())
        if match is None:
            raise InputError(f"the loss '{spec}' has an empty term", expected="names joined by ' + '")
        try:
            weight = float(match["weight"] or 1)
        except ValueError:
            weight = math.nan
        if not (math.isfinite(weight) and weight > 0):
            raise InputError(f"the loss '{spec}' has the weight '{match['weight']}'", expected="a positive number")
        terms.append(Term(weight, *_kind_and_name(match["name"].strip(), bare)))
    return terms


def _kind_and_name(text: str, bare: str) -> tuple[TermKind, str]:
    kind, colon, name = text.partition(":")
    if colon and kind.lower() in ("naive", "published", "zoo", "searched"):
        return cast(TermKind, kind.lower()), name
    if text.lower() in HAND_MADE:
        return "hand-made", text.lower()
    if text.endswith(".json"):
        return "file", text
    if "+" in text:
        raise InputError(f"unknown loss '{text}'", cure="write spaces around the plus of a sum: 'ce + dice'")
    if bare == "published" and not colon:
        metric = {one.lower(): one for one in formula.names()}.get(text.lower())
        if metric and metric not in PUBLISHED:
            cure = f"give naive:{metric}, or what `autoseg loss list {metric}` names"
            raise InputError(f"the authors published no surrogate for {metric}", cure=cure)
        return "published", text
    metrics, presets = "|".join(formula.names()), "|".join(PUBLISHED)
    known = [
        *HAND_MADE,
        f"naive:({metrics})",
        f"published:({presets})",
        "zoo:<name>",
        "searched:<search>",
        "<path>.json",
    ]
    raise unknown("loss", text, known)


def searches_of(spec: str) -> list[str]:
    """Return the searches whose surrogates a loss is made of, each once.

    >>> searches_of("searched:mIoU + 0.5 * searched:BIoU + ce")
    ['mIoU', 'BIoU']
    """
    return list(dict.fromkeys(term.name for term in parse_loss(spec) if term.kind == "searched"))


def check_loss(spec: str, searches: Collection[str] | None = None) -> None:
    """Raise an error that says what is wrong with a loss's name, if anything is; no file is read.

    >>> check_loss("naive:mIoU + dicee")
    Traceback (most recent call last):
    autoseg.errors.InputError: unknown loss 'dicee'; did you mean 'dice'? Expected one of ...
    """
    for term in parse_loss(spec):
        if term.kind in ("naive", "published", "zoo"):
            term.surrogate()
        elif term.kind == "searched" and searches is not None and term.name not in searches:
            raise unknown("search", term.name, searches)


def one_surrogate(spec: str) -> Surrogate:
    """Return the surrogate that "published:NAME", "zoo:NAME", "naive:METRIC" or the path of a surrogate.json names.

    >>> one_surrogate("naive:mIoU").control_points
    []
    """
    terms = parse_loss(spec)
    if len(terms) > 1 or terms[0].weight != 1:
        raise InputError(f"'{spec}' is a sum", expected="one surrogate")
    return terms[0].surrogate()
