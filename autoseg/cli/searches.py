"""The settings of a search as an argument, which `ask`, `rescore`, `select` and `search` share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autoseg.cli.parts import as_part

if TYPE_CHECKING:
    from autoseg.search.folder import Folder
    from autoseg.search.settings import Search


def add_settings_argument(parser: argparse.ArgumentParser) -> None:
    """Add --settings."""
    parser.add_argument(
        "--settings",
        metavar="FILE|JSON",
        help="the settings of the search: a YAML or JSON file, which is copied to search.json in the folder and need "
        "not be given again; or the JSON itself, which is not copied",
    )


def search_of(args: argparse.Namespace, folder: Folder, *, remember: bool = True) -> Search:
    """Return the given settings, or those in the folder's search.json."""
    from autoseg.files import parse
    from autoseg.search.settings import Search, load_search

    if args.settings is None:
        return folder.search()
    given = as_part(args.settings, "--settings", lambda content: parse(Search, content, "--settings"))
    if given is None:
        given = load_search(args.settings)
        return folder.start(given) if remember else given
    return given
