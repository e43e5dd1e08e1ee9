"""Bars of progress: drawn in place on a terminal, and a line a minute in a log."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

_SECONDS = 60.0  # between two lines of a log


def bar(name: str | None, unit: str, **options: Any) -> tqdm:
    """Return a bar of progress on standard error; without a name it shows nothing.

    >>> import contextlib, io
    >>> with contextlib.redirect_stderr(io.StringIO()) as log:
    ...     for _ in bar("trials", "trial", iterable=range(3)):
    ...         pass
    >>> log.getvalue().splitlines()[-1][:17]
    'trials: 100%|####'
    """
    if sys.stderr.isatty():
        return tqdm(desc=name, unit=unit, disable=name is None, mininterval=0.2, **options)
    return tqdm(desc=name, unit=unit, disable=name is None, mininterval=_SECONDS, file=_Lines(), ascii=True, **options)


class _Lines:
    """Standard error with a line for every state of a bar, where tqdm would overwrite the last one."""

    def write(self, text: str) -> None:
        """Write a state of the bar."""
        if text := text.strip():
            print(text, file=sys.stderr)

    def flush(self) -> None:
        """Flush standard error."""
        sys.stderr.flush()
