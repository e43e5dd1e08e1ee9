"""The parameters of a search, the surrogates they make, and what decides a search's proposals. No torch, no Optuna."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from autoseg.errors import InputError, located
from autoseg.files import fingerprint
from autoseg.losses.names import one_surrogate
from autoseg.losses.surrogate import Surrogate
from autoseg.search.settings import Search
from autoseg.versions import SEARCH_VERSION


@dataclass(frozen=True)
class Space:
    """The parameters of a search: their names, the first mean, and whether they are in [0, 1]."""

    names: tuple[str, ...]
    initial: tuple[float, ...]
    bounded: bool


def search_space(search: Search) -> Space:
    """Return the space of a search; it starts at the identity, at a given theta, or at the curves of a surrogate.

    >>> search_space(Search(metric="mAcc")).names
    ('AND.u1', 'AND.v1', 'AND.u2', 'AND.v2', 'AND.u3', 'AND.v3')
    """
    _, layout, curves = search.curves
    names = tuple(f"{curve}.{name}" for curve in layout.curves for name in curves.names)
    if search.initial == "identity":
        theta = list(curves.identity) * len(layout.curves)
    elif isinstance(search.initial, str):
        with located("initial"):
            start = one_surrogate(search.initial)
        theta = _theta_of(search, start)
    else:
        theta = search.initial
        if len(theta) != len(names) or (curves.bounded and not all(0 <= value <= 1 for value in theta)):
            raise InputError(
                f"found {theta}",
                where="initial",
                expected=f"{len(names)} numbers{' in [0, 1]' if curves.bounded else ''}",
            )
    return Space(names, tuple(float(value) for value in theta), curves.bounded)


def _theta_of(search: Search, start: Surrogate) -> list[float]:
    """Return the parameters of a surrogate's curves, which must be of the search's kind."""
    _, layout, curves = search.curves
    if (start.family, start.pieces, start.truth_table) != (curves.family, curves.pieces, curves.truth_table):
        raise InputError(
            f"'{search.initial}' has {start.family} curves of {start.pieces} pieces",
            where="initial",
            expected=f"{curves.family} curves of {curves.pieces}, with the same truth-table constraint",
        )
    if missing := [curve for curve in layout.curves if curve not in start.curves]:
        raise InputError(
            f"'{search.initial}' has the curves {', '.join(start.curves)}, but not '{missing[0]}'",
            where="initial",
            expected=f"the curves of {search.metric}: {', '.join(layout.curves)}",
        )
    return [value for curve in layout.curves for value in curves.theta(start.curves[curve])]


def surrogate(search: Search, theta: Sequence[float], source: str = "") -> Surrogate:
    """Return the surrogate that these parameters make."""
    return Surrogate.make(
        search.metric,
        list(theta),
        family=search.family,
        layout=search.layout,
        pieces=search.pieces,
        monotone=search.monotone,
        truth_table=search.truth_table,
        conventions=search.conventions_in_loss,
        source=source,
    )


# -------------------------------------------------------------------------------------------- what decides proposals


PRIOR = "given"
"""What stands for the folder of another search: its trials are in the first step's proposals."""


def decisive(search: Search) -> Search:
    """Return the search reduced to what its proposals follow from, given the scores, with every setting written out.

    Two searches with the same proposals are equal here, except for their names. Settings that are left out may change
    while a search runs: the number of steps (unless the clip depends on it), and how the answer is picked and rescored.

    >>> decisive(Search(metric="mIoU", preset="paper", steps=4)) == decisive(Search(metric="mIoU", preset="paper"))
    True
    """
    layout, _, curves = search.curves
    settings = search.settings
    ppo2 = {**asdict(settings), "clip": settings.first_clip}
    for key in ("steps", "trials_per_step", "family", "pick"):
        del ppo2[key]
    if ppo2["answer"] == "model":
        ppo2["answer"] = "expectation"  # which proposes the same
    if ppo2["move"] == "model":
        ppo2["clip"] = None  # which has no part in it
    kept = {"name", "metric", "family", "monotone", "truth_table", "conventions", "loss_conventions", "sampler", "seed"}
    return Search(
        **search.model_dump(include=kept),
        layout=layout,
        pieces=curves.pieces,
        initial="identity" if search.sampler == "random" else list(search_space(search).initial),
        ppo2=ppo2 if search.sampler == "ppo2" else {},
        # Chained steps are parts of one training, whose rate falls over all of them.
        steps=settings.steps if settings.anneal or search.chained else None,
        trials_per_step=settings.trials_per_step,
        early=search.early_rule or "off",
        prior=None if search.prior is None else PRIOR,
    )


def search_fingerprint(search: Search) -> str:
    """Return the fingerprint of all that decides a search's proposals, given the scores."""
    content = decisive(search).model_dump(exclude={"name", "rescore_length"})
    for key, unused in (
        ("early", "off"),
        ("prior", None),
    ):  # a search without them has the fingerprint that it always had
        if content[key] == unused:
            del content[key]
    return fingerprint({**content, "version": SEARCH_VERSION})


def changes(before: Search, now: Search) -> list[str]:
    """Return the settings that make a search another one; none, if both propose the same, given the scores.

    >>> changes(Search(metric="mIoU", steps=4), Search(metric="mIoU", steps=5))  # the clip follows from the steps
    ['clip']
    >>> changes(Search(metric="mIoU", steps=4, preset="paper"), Search(metric="mIoU", steps=5, preset="paper"))
    []
    """
    old, new = (decisive(search).model_dump(exclude={"name"}) for search in (before, now))
    for content in (old, new):
        content.update(content.pop("ppo2"))
    return [key for key in {**old, **new} if old.get(key) != new.get(key)]


def self_contained(search: Search) -> Search:
    """Return the search with theta in the place of a file to start from, which may change or disappear later."""
    theta = list(search_space(search).initial)
    return search.model_copy(update={"initial": theta}) if search.starts_from_file else search
