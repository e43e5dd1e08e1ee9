"""The arguments that name a data set on the command line, made from the options of its kind."""

from __future__ import annotations

import argparse
import os
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from autoseg.errors import InputError

if TYPE_CHECKING:
    from autoseg.data.kinds import Kind

    Options = TypeVar("Options", bound=Kind)


def add_options(parser: argparse.ArgumentParser, kind: type[Kind], names: Iterable[str]) -> None:
    """Add options of a kind of data set; their defaults stand in the kind alone."""
    for name in names:
        field = kind.model_fields[name]
        how: dict[str, Any] = {"help": (field.description or "").replace("%", "%%"), "default": argparse.SUPPRESS}
        if isinstance(field.default, int) and not isinstance(field.default, bool):
            how["help"] += f" (default {field.default})"
        if field.annotation is bool:
            parser.add_argument(_flag(name), action="store_true", **how)
            continue
        how |= {"required": field.is_required(), "type": int if field.annotation is int else str}
        how["metavar"] = next((word for word in field.metadata if isinstance(word, str)), "NAME")
        if typing.get_origin(field.annotation) is dict:
            how["action"] = "append"
        parser.add_argument(_flag(name), **how)


def read_options(args: argparse.Namespace, kind: type[Options]) -> Options:
    """Return the checked options of a data set."""
    from autoseg.files import parse

    given = {name: getattr(args, name) for name in kind.model_fields if hasattr(args, name)}
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = _pairs(value, _flag(name))
    try:
        return parse(kind, given)
    except InputError as error:
        raise error.replace(where=_flag(error.where)) from None


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add the number of threads, which changes no byte of the result."""
    parser.add_argument(
        "--threads",
        type=int,
        default=cores(),
        metavar="N",
        help="threads that read files (default: one for each core)",
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _pairs(given: list[str], where: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"'{text}' is no pair", where=where, expected="NAME=VALUE")
        if name in pairs:
            raise InputError(f"'{name}' is given twice, as {pairs[name]} and as {value}", where=where, cure="give one")
        pairs[name] = value
    return pairs


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
