"""The examples of docs/frameworks.md, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
LINES = 40


def example(name: str) -> ModuleType:
    """Return examples/<name>.py as a module, made anew; it is short enough to be read at a glance."""
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text().splitlines()) <= LINES, f"{path} has more than {LINES} lines"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
