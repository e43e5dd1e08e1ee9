"""A user's own modules: importing one registers its metrics."""

from __future__ import annotations

import importlib
import os
import sys

from autoseg.errors import InputError


def load_plugin(module: str) -> None:
    """Import a user's module, which registers formulas; modules of the working directory are found too."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"plugin '{module}': {error}; is it installed, or a file in this directory?") from None
