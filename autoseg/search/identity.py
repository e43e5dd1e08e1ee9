"""What a function is, as far as can be told from it: its code, and the plain values that it uses by name.

So a function that was changed in a notebook is another one, and the same cell run again gives the same one. What the
function calls, and objects that it uses (data, networks), are not seen.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

_PLAIN = (bool, int, float, str, bytes, type(None))


def identity(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the name, the code and the plain values of a function, a partial, a method or an object with `__call__`.

    >>> rate = 0.1
    >>> def train(loss):
    ...     return loss * rate
    >>> identity(train)["values"]
    {'rate': '0.1'}
    """
    values: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        values |= {f"argument {k}": value for k, value in enumerate(function.args)} | function.keywords
        function = function.func
    owner = getattr(function, "__self__", None)
    if not hasattr(function, "__code__") and not inspect.ismethod(function):
        owner, function = function, type(function).__call__
    values |= _attributes(owner)
    function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    if code is not None:
        around = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        values |= {name: around[name] for name in _read(code) if name in around}
        parameters = inspect.signature(function).parameters.values()
        values |= {p.name: p.default for p in parameters if p.default is not p.empty}
    plain = {str(name): repr(value) for name, value in values.items() if isinstance(value, _PLAIN)}
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return {"name": name, "code": [_content(part) for part in _codes(code)] if code else [], "values": plain}


def _attributes(owner: Any) -> Mapping[str, Any]:
    return getattr(owner, "__dict__", {}) if owner is not None and not inspect.ismodule(owner) else {}


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code and those of the functions, lambdas and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _read(code: CodeType) -> list[str]:
    """Return the names outside the function that it uses and does not set itself, as it does with a counter."""
    read, written = {*code.co_freevars}, set[str]()
    for part in _codes(code):
        read.update(part.co_names)
        written.update(i.argval for i in dis.get_instructions(part) if i.opname in ("STORE_GLOBAL", "STORE_DEREF"))
    return sorted(read - written)


def _content(code: CodeType) -> list[Any]:
    """Return what a code does; lines, comments and the file's name are no part of it."""
    constants = [_constant(value) for value in code.co_consts if not isinstance(value, CodeType)]
    return [code.co_code.hex(), list(code.co_names), list(code.co_varnames), constants]


def _constant(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
