"""What a user or a cluster can cause: the command line turns it into a sentence and exit code 2 or 75.

An error and a finding of `autoseg doctor` have the same four fields: where, what, expected, cure. Code reads the
fields; only people read the sentence.
"""

from __future__ import annotations

import difflib
import operator
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong, or (a warning) one that is handled but should be known.

    >>> print(Problem("val.txt", "the list is empty", cure="write one id per line"))
    val.txt: the list is empty; write one id per line.
    """

    where: str
    what: str
    cure: str = ""
    severity: Literal["error", "warning"] = "error"
    expected: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.expected:
            # A question ("did you mean 'mIoU'?") is a sentence of its own.
            text += f" Expected {self.expected}" if text.endswith("?") else f"; expected {self.expected}"
        if self.cure:
            text += f"; {self.cure}"
        return _brief(text if text.endswith(("?", "!", ".")) else f"{text}.")


LONGEST_LINE, MOST_LINES = 1000, 25


def _brief(text: str) -> str:
    """Return a message without the middle of what is long in it: a file's whole content, or a tensor's."""
    lines = text.split("\n")
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 2], "...", lines[-1]]
    half = LONGEST_LINE // 2
    return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[:half]} ... {line[-half:]}" for line in lines)


class InputError(ValueError):
    """Bad input: what was given, where, what is expected, and what to do.

    >>> error = InputError("'mean' is no number", where="search.yaml: steps", expected="a whole number")
    >>> print(error)
    search.yaml: steps: 'mean' is no number; expected a whole number.
    >>> error.where, error.expected
    ('search.yaml: steps', 'a whole number')
    """

    def __init__(self, what: str, *, where: str | os.PathLike[str] = "", expected: str = "", cure: str = "") -> None:
        self.problem = Problem(os.fspath(where), what.removesuffix("."), cure, expected=expected)
        super().__init__(str(self.problem))

    def __reduce__(self) -> tuple[type[InputError], tuple[str], dict[str, Problem]]:
        return type(self), (self.what,), {"problem": self.problem}  # worker processes send it with all its fields

    def __str__(self) -> str:
        return str(self.problem)

    @property
    def where(self) -> str:
        """The file, key or argument."""
        return self.problem.where

    @property
    def what(self) -> str:
        """What was found there."""
        return self.problem.what

    @property
    def expected(self) -> str:
        """What would have been right."""
        return self.problem.expected

    @property
    def cure(self) -> str:
        """What to do."""
        return self.problem.cure

    def replace(self, **fields: str) -> InputError:
        """Return the same error with other fields.

        >>> print(InputError("is missing", where="root").replace(cure="name it"))
        root: is missing; name it.
        """
        new = replace(self.problem, **fields)  # type: ignore[arg-type]  # `severity` is not one of them
        return InputError(new.what, where=new.where, expected=new.expected, cure=new.cure)

    def at(self, where: str | os.PathLike[str]) -> InputError:
        """Return the same error with a place around its own.

        >>> print(InputError("is missing", where="root").at("datasets.voc"))
        datasets.voc: root: is missing.
        """
        inside = f": {self.where}" if self.where else ""
        return self.replace(where=f"{os.fspath(where)}{inside}")


def shown(text: str) -> str:
    r"""Return a text that a terminal only shows: names that are no UTF-8, or that would steer it, are written out.

    >>> shown("a file called \x1b[2J")
    'a file called \\x1b[2J'
    """
    plain = text.encode("utf-8", "backslashreplace").decode()
    return "".join(
        repr(letter)[1:-1] if unicodedata.category(letter) == "Cc" and letter != "\n" else letter for letter in plain
    )


class Preempted(Exception):
    """The work was told to stop (SIGTERM, SIGUSR1); what is done is on disk, and the same command goes on."""


def whole_number(value: Any, where: str = "", *, least: int | None = 0, unit: str = "") -> int:
    """Return a whole number, Python's or NumPy's, as an int; anything else, or one below `least`, is an InputError.

    >>> print(whole_number(3, "steps", least=1))
    3
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (least is not None and number < least):
        bound = "" if least is None else f", {least} or more"
        raise InputError(f"found {value!r}", where=where, expected=f"a whole number{f' {unit}' if unit else ''}{bound}")
    return number


def truth(value: Any, where: str) -> bool:
    """Return True or False; anything else is an InputError.

    >>> truth(False, "sync")
    False
    """
    if not isinstance(value, bool):
        raise InputError(f"found {value!r}", where=where, expected="true or false")
    return value


def one_of(value: Any, choices: Iterable[str], kind: str, *, where: str = "") -> str:
    """Return a name that is one of those that are known; anything else is an InputError.

    >>> one_of("sum", ["mean", "sum"], "reduction")
    'sum'
    """
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise unknown(kind, str(value), known, where=where)
    return value


def unknown(kind: str, given: str, choices: Iterable[str], *, where: str = "") -> InputError:
    """Return the error for a name that is not known, with the nearest known one.

    >>> print(unknown("metric", "mIuO", ["mIoU", "mAcc"]))
    unknown metric 'mIuO'; did you mean 'mIoU'? Expected one of mAcc, mIoU.
    """
    names = sorted(choices)
    known = [name.lower() for name in names]
    begun = [name for name in known if given and name.startswith(given.lower())]
    near = difflib.get_close_matches(given.lower(), known, n=1) or begun[:1]
    hint = next((f"; did you mean '{name}'?" for name in names if near and name.lower() == near[0]), "")
    return InputError(f"unknown {kind} '{given}'{hint}", where=where, expected=f"one of {', '.join(names)}")


def first_line(error: BaseException) -> str:
    """Return an error of somebody else's code in a line.

    >>> first_line(KeyError("state"))
    "KeyError: 'state'"
    """
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


@contextmanager
def located(where: str | os.PathLike[str]) -> Iterator[None]:
    """Put a place around the place of an error that the block raises.

    >>> with located("search.yaml"):
    ...     raise unknown("sampler", "tpee", ["tpe"])
    Traceback (most recent call last):
    autoseg.errors.InputError: search.yaml: unknown sampler 'tpee'; did you mean 'tpe'? Expected one of tpe.
    """
    try:
        yield
    except InputError as error:
        raise error.at(where) from None


@contextmanager
def collect(problems: list[Problem], where: str = "") -> Iterator[None]:
    """Add the error that ends the block, if one does, to `problems`, so that all problems are found at once.

    >>> found: list[Problem] = []
    >>> with collect(found):
    ...     raise InputError("the list is empty", where="val.txt", cure="write one id per line")
    >>> [problem.where for problem in found]
    ['val.txt']
    """
    try:
        yield
    except InputError as error:
        problems.append(error.at(where).problem if where else error.problem)


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that stop the work, in order of their place."""
    return sorted(problem for problem in problems if problem.severity == "error")


def warnings(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that are handled, in order of their place."""
    return sorted(problem for problem in problems if problem.severity == "warning")


def listing(problems: Iterable[Problem]) -> str:
    """Return one line per problem."""
    return "\n".join(f"  {problem}" for problem in problems)


MOST_KINDS = 10
"""How many kinds of problems are shown, so that they fit on a screen."""

_EXAMPLES = 3


def summary(problems: Iterable[Problem], listed: str = "") -> str:
    """Return one line per kind of problem: how many there are, one of them in words, the cure, and three places.

    The most frequent kinds come first. `listed`: a file that has a line for each problem.

    >>> found = [Problem(f"masks/{name}.png", "the mask holds the values 11", "add a line `void`") for name in "abcd"]
    >>> print(summary(found))
      4 of: the mask holds the values 11; add a line `void`. For example, in masks: a.png, b.png, c.png.
    """
    kinds: dict[tuple[str, str, str], list[Problem]] = {}
    for problem in problems:
        key = (problem.severity, _kind(problem.what), _kind(problem.cure))
        kinds.setdefault(key, []).append(problem)
    ordered = sorted(kinds.values(), key=lambda alike: -len(alike) if len(alike) >= _EXAMPLES else 0)
    lines = [line for alike in ordered for line in _of_a_kind(alike)]
    if (more := len(lines) - MOST_KINDS) > 0:
        said = f"... and {more} more kind{'s' * (more > 1)}; {listed or '`autoseg doctor --all`'} lists all."
        lines = [*lines[:MOST_KINDS], f"  {said}"]
    elif listed and len(lines) < sum(map(len, ordered)):
        lines.append(f"  {listed} lists all.")
    return "\n".join(lines)


def _kind(text: str) -> str:
    """Return a text without what differs between problems of a kind: quotations, paths, names of files, numbers.

    >>> _kind("the mask holds the values 3, 4, 5, ...") == _kind("the mask holds the values 7")
    True
    """
    plain = re.sub(r"'[^']*'|\S*/\S*|\S+\.\w{2,5}\b|#?\b[0-9a-fx]*\d[0-9a-fx]*\b", "*", text)
    return re.sub(r"\*(, (\*|\.\.\.))+", "*", plain)  # lists of any length


def _of_a_kind(alike: list[Problem]) -> list[str]:
    if len(alike) < _EXAMPLES:
        return [f"  {problem}" for problem in alike]
    first = alike[0]
    places = list(dict.fromkeys(problem.where for problem in alike if problem.where))
    said = replace(first, where="")
    if not places:
        return [f"  {len(alike)} of: {said}"]
    folder = os.path.commonpath([os.path.dirname(place) for place in places]) if "/" in places[0] else ""
    shown = [os.path.relpath(place, folder) if folder else place for place in places[:_EXAMPLES]]
    return [f"  {len(alike)} of: {said} For example{f', in {folder}' if folder else ''}: {', '.join(shown)}."]


def refuse(subject: str, problems: Iterable[Problem], listed: str = "") -> None:
    """Raise one InputError for all errors among `problems`, if there is any; `listed`: see `summary`.

    >>> refuse("the data set", [])
    """
    found = errors(problems)
    if found:
        count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        raise InputError(f"{count} in {subject}:\n{summary(found, listed)}")
