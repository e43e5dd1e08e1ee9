"""A search as far as it has come, read from its folder.

The scores in a search's files are shares in [0, 1]; tables, figures and pages show percent (`percent`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autoseg.errors import InputError, Problem, collect
from autoseg.losses.surrogate import Surrogate

if TYPE_CHECKING:
    from autoseg.search.records import Scored
    from autoseg.search.settings import Search
    from autoseg.search.steps import Candidate


def percent(share: float) -> float:
    """Return a score of a search's files, which is a share, in percent.

    >>> percent(0.25)
    25.0
    """
    return 100 * share


@dataclass
class SearchSoFar:
    """A search so far: its settings, the steps that are scored, its answer, and what is missing or broken."""

    settings: Search | None = None
    steps: list[Scored] = field(default_factory=list)
    planned: int = 0
    rescored: Scored | None = None
    answer: Surrogate | None = None
    lacks: list[Problem] = field(default_factory=list)

    @property
    def averages(self) -> list[float]:
        """The average score of each step, in percent."""
        return [percent(step.average) for step in self.steps]

    @property
    def best_so_far(self) -> list[float]:
        """The best average score up to each step, in percent."""
        return list(itertools.accumulate(self.averages, max))

    @property
    def best_trial(self) -> float:
        """The best score of a single trial, in percent."""
        whole = [s for step in self.steps for s, ended in zip(step.scores, step.ended, strict=True) if not ended]
        return percent(max(whole, default=0.0))

    @property
    def ended(self) -> int:
        """How many trials were ended early."""
        return sum(sum(step.ended) for step in self.steps)

    @property
    def trials_per_step(self) -> int:
        """How many trials a step has."""
        return max((len(step.scores) for step in self.steps), default=0)

    @property
    def has_mean(self) -> bool:
        """Whether the sampler moves a mean from step to step."""
        return any(step.proposals.mu is not None for step in self.steps)

    def answers(self) -> list[Candidate]:
        """Return the rescored answers, each with its score and where it comes from; none without rescoring."""
        from autoseg.search.steps import answers

        return (
            [] if self.settings is None or self.rescored is None else answers(self.settings, self.steps, self.rescored)
        )

    def selected(self) -> Candidate | None:
        """Return where the answer comes from; None: there is none, or these steps are not those that led to it."""
        from autoseg.search.steps import selected

        if self.settings is None or self.answer is None or (self.settings.rescore and self.rescored is None):
            return None
        found = selected(self.settings, self.steps, self.rescored)
        same = all(abs(a - b) < 1e-6 for a, b in zip(found.theta, self.answer.theta, strict=False))
        return found if same else None


def search_so_far(folder: str | os.PathLike[str], search: Search | None = None) -> SearchSoFar:
    """Read a search's folder as far as it goes.

    `search` is what its config says. Without it, or if the folder holds another search, the settings are those of its
    proposals, and the number of planned steps is not known (0).
    """
    from autoseg.search.folder import Folder
    from autoseg.search.space import changes

    files, found = Folder(folder), SearchSoFar()
    where = f"search '{files.path.name}'"
    if not (files.step(1) / "proposals.json").exists():
        found.lacks.append(Problem(where, "not begun yet"))
        return found
    with collect(found.lacks):
        found.settings = files.proposals(1).search
        if search is not None and not changes(found.settings, search):
            found.settings, found.planned = search, search.total_steps
        for step in itertools.count(1):
            if 0 < found.planned < step or not (files.step(step) / "proposals.json").exists():
                break
            found.steps.append(files.scored(step))
        if found.settings.rescore and (files.step("rescore") / "proposals.json").exists():
            found.rescored = files.scored("rescore")
    if found.settings and len(found.steps) < found.planned and not found.lacks:
        found.lacks.append(Problem(where, f"{len(found.steps)} of {found.planned} steps done"))
    if (files.path / "surrogate.json").exists():
        with collect(found.lacks):
            found.answer = Surrogate.load(files.path / "surrogate.json")
    elif not found.lacks:
        found.lacks.append(Problem(where, "no surrogate selected yet"))
    return found


def gathered(lacks: Sequence[Problem]) -> list[Problem]:
    """Return what is missing, with the places that lack the same in one problem.

    >>> print(*gathered([Problem("search 'a'", "not begun yet"), Problem("search 'b'", "not begun yet")]))
    search 'a', search 'b': not begun yet.
    """
    places: dict[Problem, list[str]] = {}
    for lack in lacks:
        places.setdefault(replace(lack, where=""), []).append(lack.where)
    return [replace(lack, where=", ".join(dict.fromkeys(where))) for lack, where in places.items()]


def diverged_trials(folder: str | os.PathLike[str]) -> list[int]:
    """Return the numbers of a search's trials whose training diverged; files that cannot be read are left out."""
    from autoseg.search.records import TrialScore

    found = []
    for path in Path(folder).glob("*/trial-*.json"):
        try:
            score = TrialScore.load(path)
        except InputError:  # `search_so_far` names it
            continue
        found += [score.number] if score.diverged else []
    return sorted(found)
