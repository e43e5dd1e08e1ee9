"""Write the proposals of a step of a search: <folder>/step-<step>/proposals.json.

The proposals depend on the settings and on the scores of all earlier steps, and on nothing else: at any time and on any
machine the same bytes are written. The scores are also written to <folder>/journal.log, for optuna-dashboard.
"""

from __future__ import annotations

import argparse

from autoseg.cli.searches import add_settings_argument, search_of
from autoseg.errors import InputError

HELP = "write the proposals of a step of a search"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("folder", help="the search's folder")
    parser.add_argument(
        "--step", type=int, required=True, metavar="N", help="1, 2, ...; all earlier steps must be scored"
    )
    add_settings_argument(parser)
    parser.add_argument("--no-journal", action="store_true", help="do not update journal.log")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.search.folder import Folder
    from autoseg.search.journal import write_journal
    from autoseg.search.steps import ask

    folder = Folder(args.folder)
    search = search_of(args, folder)
    if not 1 <= args.step <= search.total_steps:
        raise InputError(
            f"found {args.step}",
            where="--step",
            expected=f"one of the steps 1 to {search.total_steps} of search '{search.name}'",
        )
    history = folder.history(args.step - 1)
    prior = Folder(search.prior).as_prior() if search.prior is not None and not history else None
    folder.begin(ask(search, history, prior), history)
    if not args.no_journal:
        write_journal(folder, search, history)
