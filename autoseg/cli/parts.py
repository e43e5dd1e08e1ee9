"""Arguments that `table`, `figure` and `report` share: a part of a config as JSON, or a config and its results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autoseg.errors import InputError

if TYPE_CHECKING:
    from autoseg.report.results import Results


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --config and --results."""
    parser.add_argument("--config", metavar="FILE", help="the pipeline's config")
    parser.add_argument("--results", metavar="DIR", help="its results (default: results/<the config's name>)")


def open_results(args: argparse.Namespace) -> Results:
    """Return the results of --config."""
    from autoseg.report.results import Results

    if not args.config:
        raise InputError("no config was given", cure="give its file with --config, such as workflow/config/demo.yaml")
    return Results.open(args.config, args.results)


def as_part(text: str, option: str, check: Callable[[Any], Any]) -> Any:
    """Return a part of a config that is given as JSON, checked; None: it is a name."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InputError(f"not readable as JSON ({error})", where=option) from None
    return check(content)
