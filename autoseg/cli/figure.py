"""Draw a figure as <out>.png and <out>.svg. Results that are missing are left out, and the figure names them.

autoseg figure --config workflow/config/demo.yaml --figure curves --out curves   from what is in results/demo so far
autoseg figure --figure JSON --results results/demo --out STEM                   what the pipeline does
"""

from __future__ import annotations

import argparse

from autoseg.cli.parts import add_config_arguments, as_part, open_results
from autoseg.errors import InputError

HELP = "draw a figure from searches, scores or trained networks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument(
        "--figure",
        required=True,
        metavar="NAME|JSON",
        help="name of a figure in --config, or the figure itself as JSON",
    )
    add_config_arguments(parser)
    parser.add_argument("--out", required=True, metavar="STEM", help="the path to write to, without .png, .svg, .pdf")
    parser.add_argument(
        "--format",
        nargs="+",
        default=["png", "svg"],
        choices=("png", "svg", "pdf"),
        help="file formats (default png svg)",
    )
    parser.add_argument(
        "--window", type=int, nargs=2, metavar=("H", "W"), help="for a gallery: size of the sliding window"
    )
    parser.add_argument(
        "--network",
        metavar="MODULE:CALLABLE",
        help="for a gallery of networks that are code of yours: their name (default: that of --config)",
    )


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    import sys

    from autoseg.errors import unknown
    from autoseg.report.figures import parse_figure, write_figure

    plan = as_part(args.figure, "--figure", parse_figure)
    results, window, network = args.results, tuple(args.window) if args.window else None, args.network
    if plan is not None and results is None:
        raise InputError("a figure given as JSON needs the folder of results", cure="give it with --results")
    if plan is None:
        opened = open_results(args)
        results = opened.folder
        if args.figure not in opened.pipeline.figures:
            raise unknown("figure", args.figure, opened.pipeline.figures)
        plan = opened.pipeline.figures[args.figure]
        window, network = window or opened.window(plan), network or opened.network(plan)
    for text in write_figure(plan, results, args.out, args.format, window=window, network=network):
        print(f"autoseg figure: {text}", file=sys.stderr)
