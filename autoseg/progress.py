"""Bars of progress: drawn in place on a terminal and in a notebook, and a line a minute in a log."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from tqdm import tqdm

_SECONDS = 60.0  # between two lines of a log
_COLUMNS = 96  # of a bar in the text of a notebook, which does not tell its width


def bar(name: str | None, unit: str, **options: Any) -> tqdm:
    """Return a bar of progress on standard error; without a name it shows nothing.

    >>> import contextlib, io
    >>> with contextlib.redirect_stderr(io.StringIO()) as log:
    ...     for _ in bar("trials", "trial", iterable=range(3)):
    ...         pass
    >>> log.getvalue().splitlines()[-1][:17]
    'trials: 100%|####'
    """
    options = {"desc": name, "unit": unit, "disable": name is None, "mininterval": 0.2, **options}
    if sys.stderr.isatty():
        return tqdm(dynamic_ncols=True, **options)
    if in_notebook() and name is not None:
        if importlib.util.find_spec("ipywidgets"):
            from tqdm.notebook import tqdm as widget

            return widget(dynamic_ncols=True, **options)
        return tqdm(ncols=_COLUMNS, **options)
    return tqdm(file=_Lines(), ascii=True, **{**options, "mininterval": _SECONDS})


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whose output is no terminal but draws bars in place."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


class _Lines:
    """Standard error with a line for every state of a bar, where tqdm would overwrite the last one."""

    def write(self, text: str) -> None:
        """Write a state of the bar."""
        if text := text.strip():
            print(text, file=sys.stderr)

    def flush(self) -> None:
        """Flush standard error."""
        sys.stderr.flush()
