"""Arguments that several verbs share: repeated ones, a config and its results, a part of a config as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autoseg import strict
from autoseg.errors import InputError, located

if TYPE_CHECKING:
    from autoseg.report.results import Results


def add_repeated(parser: argparse._ActionsContainer, flag: str, metavar: str, help: str) -> None:
    """Add an argument that may be given several times; its value is a list."""
    parser.add_argument(flag, action="append", default=[], metavar=metavar, help=f"{help}; may be repeated")


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --config and --results."""
    parser.add_argument("--config", metavar="FILE", help="the config of the pipeline")
    parser.add_argument("--results", metavar="DIR", help="the folder of its results (default: results/<its name>)")


def open_results(args: argparse.Namespace) -> Results:
    """Return the results of --config."""
    from autoseg.report.results import Results

    if not args.config:
        raise InputError("no config was given", cure="give its file with --config, such as workflow/config/demo.yaml")
    return Results.open(args.config, args.results)


def as_part(text: str, option: str, check: Callable[[Any], Any]) -> Any:
    """Return a part of a config that is given as JSON, checked; None: it is a name."""
    return check(read_part(text, option)) if text.lstrip().startswith("{") else None


def read_part(text: str, option: str) -> Any:
    """Return the content of an argument that is JSON."""
    with located(option):
        return strict.loads(text)
