"""Select the surrogate of a finished search and write it: <folder>/surrogate.json.

With the setting `rescore` this is the best of the rescored means. Without it, it is the answer of the sampler: for PPO2
the mean of the step with the best average score (the paper's rule), for CMA-ES its mean, for others the best trial.
With `answer: model`, as in the preset `recommended`, it is the best point near that by a model of all trials.
"""

from __future__ import annotations

import argparse

from autoseg.cli.searches import add_settings_argument, search_of

HELP = "select the surrogate of a finished search"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("folder", help="the search's folder; all its steps must be scored")
    add_settings_argument(parser)
    parser.add_argument("--out", metavar="FILE", help="where to write the surrogate (default: <folder>/surrogate.json)")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.search.folder import Folder
    from autoseg.search.steps import select

    folder = Folder(args.folder)
    search = search_of(args, folder)
    history = folder.history(search.total_steps)
    chosen = select(search, history, folder.scored("rescore") if search.rescore else None)
    folder.finish(chosen, history, args.out)
    print(chosen.source)
