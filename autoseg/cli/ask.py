"""Write what the next step of a search tries: <folder>/step-<step>/proposals.json.

The proposals are a pure function of the settings and of the scores of all earlier steps, so the same bytes are written
whenever and wherever this runs. The scores are also shown in <folder>/journal.log, for optuna-dashboard.
"""

from __future__ import annotations

import argparse

from autoseg.errors import InputError

HELP = "write the proposals of a step of a search"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("folder", help="the search's folder")
    parser.add_argument("--step", type=int, required=True, help="1, 2, ...; every step before it must be scored")
    parser.add_argument("--config", help="the search's settings (YAML or JSON); once is enough")
    parser.add_argument("--no-journal", action="store_true", help="do not update the dashboard's journal")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.config import load_search
    from autoseg.search import Folder, ask, total_steps, write_journal

    folder = Folder(args.folder)
    search = folder.start(load_search(args.config)) if args.config else folder.search()
    if not 1 <= args.step <= total_steps(search):
        raise InputError(f"--step {args.step}: search '{search.name}' has the steps 1 to {total_steps(search)}.")
    history = folder.history(args.step - 1)
    folder.write(ask(search, history))
    if not args.no_journal:
        write_journal(folder, search, history)
