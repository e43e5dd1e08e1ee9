"""JSON and YAML that strangers wrote, read strictly: what is ambiguous, endless or no number is refused with its key.

Both are data alone: no tag, constructor or code of a file is run. Knows texts, no files.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from autoseg.errors import InputError

DEEPEST = 64
"""How many mappings and lists may be nested."""

MOST_VALUES = 20_000_000
"""How many keys and values a JSON text may hold."""

MOST_VALUES_OF_YAML = 200_000
"""How many keys and values a YAML text may hold, with every alias written out: a few lines of aliases make billions."""

LARGEST_INTEGER = 2**63 - 1

_LONGEST_NUMBER = 400
"""How many letters a number in YAML may have: 1:1:1:... (base 60) takes the square of its length to read."""

_MERGE = "tag:yaml.org,2002:merge"


def loads(text: str) -> Any:
    """Return the content of a JSON text; a repeated key, NaN, an endless number or too deep nesting is refused.

    >>> loads('{"seed": 1, "seed": 2}')
    Traceback (most recent call last):
    autoseg.errors.InputError: the key 'seed' occurs twice; keep one of the two.
    """
    try:
        content = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise _too_deep() from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"not readable as JSON ({error})") from None
    check(content, MOST_VALUES)
    return content


def loads_yaml(text: str) -> Any:
    """Return the content of a YAML text; refused is what `loads` refuses, and dates, binary values and circles.

    >>> loads_yaml("lr: .inf")
    Traceback (most recent call last):
    autoseg.errors.InputError: lr: inf is no finite number.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's loader of plain data, which also looks for repeated keys."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            written = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE]
            if (key := _twice(written)) is not None:
                raise InputError(f"the key '{key}' occurs twice", where=_line(node), cure="keep one of the two")
            return super().construct_mapping(node, deep)

        def flatten_mapping(self, node: Any) -> None:
            """Write out what `<<` merges, unless it is too much: a few lines of merges make billions of keys."""
            for key, value in node.value:
                if key.tag == _MERGE:
                    parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
                    parts = [part for part in parts if isinstance(part, yaml.MappingNode)]
                    for part in parts:
                        self.flatten_mapping(part)
                    if sum(len(part.value) for part in parts) > MOST_VALUES_OF_YAML:
                        raise _too_many(MOST_VALUES_OF_YAML)
            super().flatten_mapping(node)

        def construct_scalar(self, node: Any) -> Any:
            if node.tag.endswith((":int", ":float")) and len(node.value) > _LONGEST_NUMBER:
                raise InputError("the number is too long", where=_line(node), expected=f"{_LONGEST_NUMBER} letters")
            return super().construct_scalar(node)

    try:
        content = yaml.load(text, Loader)  # a SafeLoader
    except RecursionError:
        raise _too_deep() from None
    except InputError:
        raise
    except Exception as error:  # PyYAML's constructors raise errors of any class: `!!bool x` is a KeyError
        raise InputError(f"not readable as YAML ({' '.join(str(error).split())})") from None
    check(content, MOST_VALUES_OF_YAML)
    return content


def check(content: Any, most: int = MOST_VALUES, *, one_line: bool = False) -> None:
    """Refuse what cannot be written back as the same JSON, and with `one_line` texts with line breaks, by the key.

    >>> check({"mu": [0.5, float("nan")]})
    Traceback (most recent call last):
    autoseg.errors.InputError: mu.1: nan is no finite number.
    """
    waiting: list[tuple[Any, tuple[Any, ...]]] = [(content, ())]
    seen = 0
    while waiting:
        value, place = waiting.pop()
        inner: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, str):
            if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
                raise InputError(f"{value!a} is no text: half a surrogate pair is in it", where=_key(place))
            if one_line and any(unicodedata.category(letter) in ("Cc", "Zl", "Zp") for letter in value):
                cure = "write it in one line (in YAML, >- instead of > or |)"
                raise InputError(
                    f"the text {value!r} has line breaks or control characters", where=_key(place), cure=cure
                )
        elif isinstance(value, bool) or value is None:
            pass
        elif isinstance(value, int):
            if abs(value) > LARGEST_INTEGER:
                raise InputError("the number is too large", where=_key(place), expected="64 bits at most")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise InputError(f"{value} is no finite number", where=_key(place))
        elif isinstance(value, Mapping):
            inner = value.items()
            for key in value:
                if isinstance(key, bool) or not isinstance(key, str | int):
                    raise InputError(f"the key {key!r} is no name", where=_key(place), cure="write it in quotes")
            seen += len(value)
            waiting += [(key, place) for key in value]
        elif isinstance(value, list):
            inner = enumerate(value)
        else:
            what = f"found {value!r}" if len(repr(value)) < 80 else f"found a {type(value).__name__}"
            raise InputError(what, where=_key(place), expected="text, a number, a list or keys", cure="quote it")
        if inner and len(place) >= DEEPEST:
            raise _too_deep()
        if not isinstance(value, str) and hasattr(value, "__len__"):
            seen += len(value)
            if seen > most:
                raise _too_many(most)
        waiting += [(item, (*place, name)) for name, item in inner]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = _twice(name for name, _ in pairs)
        raise InputError(f"the key {twice!a} occurs twice", cure="keep one of the two")
    return found


def _twice(names: Iterable[str]) -> str | None:
    """Return the first name that was there before."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def _too_many(most: int) -> InputError:
    return InputError("too many values", expected=f"{most:,} at most, with every alias written out")


def _too_deep() -> InputError:
    return InputError("nested too deep", expected=f"{DEEPEST} levels at most")


def _key(place: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in place).encode("utf-8", "backslashreplace").decode()


def _line(node: Any) -> str:
    return f"line {node.start_mark.line + 1}"
