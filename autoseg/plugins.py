"""A user's own modules: importing one registers metrics and networks, or gives what `module:name` names."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from autoseg.errors import InputError, first_line

_CALLABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_EXPECTED = "an installed module, or a file in this directory"
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")

VARIABLE = "AUTOSEG_PLUGINS"  # environment variable with the same meaning as --plugin


def import_module(module: str, where: str) -> ModuleType:
    """Import a user's module, also from the working directory; `where` is that of the error if it fails."""
    if not all(part.isidentifier() for part in module.split(".")):
        raise InputError(f"'{module}' is no module's name", where=where, expected="a name such as my_metrics")
    _look_here()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(str(error), where=where, expected=_EXPECTED) from None
    except SyntaxError as error:
        raise InputError(f"not readable as Python ({error})", where=where) from None
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's code may raise
        raise InputError(f"fails when it is imported: {described(error)}", where=where) from error


def described(error: BaseException) -> str:
    """Return an error of a user's code in a line: what it says, and the last place in that code that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = ([frame for frame in frames if not _is_installed(frame.filename)] or frames)[-1]
    return f"{first_line(error)} ({last.filename}, line {last.lineno})"


def _is_installed(file: str) -> bool:
    places = [Path(__file__).parent, *(Path(sysconfig.get_path(kind)) for kind in _INSTALLED)]
    return file.startswith("<") or any(Path(file).is_relative_to(place) for place in places)


def _look_here() -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def names_callable(spec: str) -> bool:
    """Return whether a text has the form `module:name`; nothing is imported.

    >>> names_callable("my_networks.small:make"), names_callable("my_networks.small")
    (True, False)
    """
    return _CALLABLE.fullmatch(spec) is not None


def import_callable(spec: str, what: str) -> Callable[..., Any]:
    """Return what `module:name` names; `what` begins the sentence if it fails.

    >>> import_callable("math:hypot", "the objective").__name__
    'hypot'
    """
    module, colon, name = spec.partition(":")
    where = f"{what} '{spec}'"
    if not (module and colon and name):
        raise InputError("has no module or no function", where=where, expected="module:function, such as my_task:score")
    found = getattr(import_module(module, where), name, None)
    if found is None:
        raise InputError(f"module {module} has no '{name}'", where=where)
    if not callable(found):
        raise InputError(f"'{name}' is not a function", where=where)
    return found


def source_of(module: str, what: str) -> dict[str, str]:
    """Return the source of a user's module, by its files' names, without importing it.

    A module in a package has all of the package; files and packages beside it that it imports are its source too. Of
    installed packages only the one that is named counts, and autoseg itself never does.
    """
    _look_here()
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise InputError(f"No module named '{top}'", where=what, expected=_EXPECTED)
    places = spec.submodule_search_locations or [spec.origin or ""]
    folder = Path(next(iter(places))).parent
    installed = folder in {Path(sysconfig.get_path(kind)) for kind in _INSTALLED}
    found: dict[str, str] = {}
    waiting = [path for place in places for path in _files(Path(place))]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
        if name in found:
            continue
        found[name] = text = path.read_text(encoding="utf-8", errors="replace")
        if not installed:
            for other in _imported(text) - {"autoseg"}:
                waiting += [*_files(folder / f"{other}.py"), *_files(folder / other)]
    return found


def _files(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from sorted(place.rglob("*.py"))
    elif place.suffix == ".py" and place.is_file():
        yield place


def _imported(text: str) -> set[str]:
    """Return the first part of the name of each module that a file imports.

    >>> sorted(_imported("import a.b, c\\nfrom d import e\\nfrom . import f"))
    ['a', 'c', 'd']
    """
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:  # said when the module is imported
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.partition(".")[0] for name in names}


def hand_on(modules: Iterable[str]) -> None:
    """Set the environment so that every `autoseg` which this process starts loads these plugins first.

    On a cluster each job of the pipeline reads the Snakefile again, and so calls this again.
    """
    before = os.environ.get(VARIABLE, "").split()
    os.environ[VARIABLE] = " ".join(dict.fromkeys([*before, *modules]))


_registered: dict[str, None] = {}


def load_plugin(module: str) -> None:
    """Import a user's module, which registers metrics, or networks."""
    from autoseg.metrics import formula  # not at the top: `autoseg --help` does without numpy and pydantic

    before = {name: formula.get(name) for name in formula.names()}
    import_module(module, f"plugin '{module}'")
    _registered.update(dict.fromkeys(name for name in formula.names() if before.get(name) is not formula.get(name)))


def metrics() -> list[str]:
    """Return the metrics that a run is scored by: the paper's six, and those of the plugins that were loaded."""
    from autoseg.metrics import formula

    return list(dict.fromkeys([*formula.METRICS, *_registered]))
