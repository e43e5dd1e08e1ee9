"""Write the means of a finished search as trials of their own: <folder>/rescore/proposals.json.

These are the identity, the start, the means with the best average scores (the setting `rescore` says how many) and the
last mean. `autoseg trials --step rescore` trains them like other trials, and `autoseg select` takes the best of them.
"""

from __future__ import annotations

import argparse

from autoseg.cli.searches import add_settings_argument, search_of

HELP = "write the means of a search as trials of their own"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("folder", help="the search's folder; all its steps must be scored")
    add_settings_argument(parser)


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.search.folder import Folder
    from autoseg.search.steps import rescore

    folder = Folder(args.folder)
    search = search_of(args, folder)
    folder.write(rescore(search, folder.history(search.total_steps)))
