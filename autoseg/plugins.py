"""A user's own modules: importing one registers its metrics, or gives an objective of a search."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from autoseg.errors import InputError


def import_module(module: str, what: str) -> ModuleType:
    """Import a user's module; those of the working directory are found too. `what` begins the sentence if it fails."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"{what}: {error}; is it installed, or a file in this directory?") from None
    except SyntaxError as error:
        raise InputError(f"{what}: not readable as Python ({error}).") from None


def load_plugin(module: str) -> None:
    """Import a user's module, which registers formulas."""
    import_module(module, f"plugin '{module}'")
