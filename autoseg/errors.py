"""What a user can cause, and what a cluster can: the CLI turns them into a sentence and exit code 2 or 75."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: the message names what was given, where, what is expected and what to do."""


class Preempted(Exception):
    """The work was told to stop (SIGTERM, SIGUSR1); what is done is on disk, and the same command goes on."""


def unknown(kind: str, given: str, choices: Iterable[str]) -> InputError:
    """Return the error for a name that is not known: the nearest known one first, then all.

    >>> print(unknown("metric", "mIuO", ["mIoU", "mAcc"]))
    unknown metric 'mIuO'; did you mean 'mIoU'? Known: mAcc, mIoU.
    """
    names = sorted(choices)
    known = [name.lower() for name in names]
    begun = [name for name in known if given and name.startswith(given.lower())]
    near = difflib.get_close_matches(given.lower(), known, n=1) or begun[:1]
    hint = next((f"; did you mean '{name}'?" for name in names if near and name.lower() == near[0]), ".")
    return InputError(f"unknown {kind} '{given}'{hint} Known: {', '.join(names)}.")
