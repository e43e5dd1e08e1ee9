"""Select the surrogate of a finished search and write it: <folder>/surrogate.json.

With the setting `rescore` the best of the rescored means is taken; without it the sampler's own answer: for PPO2 the
mean of the step with the best average score (the paper's rule), for CMA-ES its mean, for the others their best trial.
"""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "select the surrogate of a finished search"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("folder", help="the search's folder; all its steps must be scored")
    parser.add_argument("--output", help="where to write the surrogate (default: <folder>/surrogate.json)")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.search import Folder, select, total_steps

    folder = Folder(args.folder)
    search = folder.search()
    history = folder.history(total_steps(search))
    chosen = select(search, history, folder.scored("rescore") if search.rescore else None)
    chosen.save(args.output or Path(args.folder) / "surrogate.json")
    print(chosen.source)
