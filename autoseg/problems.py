"""What `autoseg doctor` finds: every problem names its place, what was found there, and the cure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from autoseg.errors import InputError


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong, or (a warning) one that is handled but should be known.

    >>> print(Problem("val.txt", "the list is empty", "write one id per line"))
    val.txt: the list is empty; write one id per line.
    """

    where: str
    what: str
    cure: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.cure}."


class ProblemError(InputError):
    """A problem that ends a step; `collect` lets the other steps go on, so that all problems are found at once."""

    def __init__(self, where: str | os.PathLike[str], what: str, cure: str) -> None:
        self.problem = Problem(str(where), what, cure)
        super().__init__(str(self.problem))


@contextmanager
def collect(problems: list[Problem]) -> Iterator[None]:
    """Add the problem that ends the block, if one does, to `problems`.

    >>> found: list[Problem] = []
    >>> with collect(found):
    ...     raise ProblemError("val.txt", "the list is empty", "write one id per line")
    >>> [problem.where for problem in found]
    ['val.txt']
    """
    try:
        yield
    except ProblemError as error:
        problems.append(error.problem)


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that stop the work, in order of their place."""
    return sorted(problem for problem in problems if problem.severity == "error")


def warnings(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that are handled, in order of their place."""
    return sorted(problem for problem in problems if problem.severity == "warning")


def listing(problems: list[Problem], limit: int | None = None) -> str:
    """Return one line per problem; past `limit`, how many more there are."""
    shown = problems if limit is None else problems[:limit]
    lines = [f"  {problem}" for problem in shown]
    if len(shown) < len(problems):
        lines.append(f"  ... and {len(problems) - len(shown)} more; `autoseg doctor` lists them all.")
    return "\n".join(lines)


def refuse(subject: str, problems: Iterable[Problem]) -> None:
    """Raise one InputError for all errors among `problems`, if there is any.

    >>> refuse("the data set", [])
    """
    found = errors(problems)
    if found:
        count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        raise InputError(f"{count} in {subject}:\n{listing(found, limit=20)}")
