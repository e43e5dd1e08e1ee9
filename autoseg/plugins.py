"""A user's own modules: importing one registers its metrics, or gives an objective of a search."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType

from autoseg.errors import InputError

VARIABLE = "AUTOSEG_PLUGINS"  # environment variable with the same meaning as --plugin


def import_module(module: str, where: str) -> ModuleType:
    """Import a user's module, also from the working directory; `where` is that of the error if it fails."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(str(error), where=where, expected="an installed module, or a file in this directory") from None
    except SyntaxError as error:
        raise InputError(f"not readable as Python ({error})", where=where) from None


def hand_on(modules: Iterable[str]) -> None:
    """Set the environment so that every `autoseg` which this process starts loads these plugins first.

    On a cluster each job of the pipeline reads the Snakefile again, and so calls this again.
    """
    before = os.environ.get(VARIABLE, "").split()
    os.environ[VARIABLE] = " ".join(dict.fromkeys([*before, *modules]))


_registered: dict[str, None] = {}


def load_plugin(module: str) -> None:
    """Import a user's module, which registers formulas."""
    from autoseg.metrics import formula  # not at the top: `autoseg --help` does without numpy and pydantic

    before = set(formula.names())
    import_module(module, f"plugin '{module}'")
    _registered.update(dict.fromkeys(name for name in formula.names() if name not in before))


def metrics() -> list[str]:
    """Return the metrics that a run is scored by: the paper's six, and those of the plugins that were loaded."""
    from autoseg.metrics import formula

    return list(dict.fromkeys([*formula.METRICS, *_registered]))
