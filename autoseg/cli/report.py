"""Write the report: one self-contained HTML page with the tables and each search's story."""

from __future__ import annotations

import argparse

HELP = "write the report of a pipeline"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("--title", required=True, help="the page's title")
    parser.add_argument(
        "--tables", nargs="*", default=[], metavar="FILE", help="tables as `autoseg table` writes them, .html"
    )
    parser.add_argument("--searches", nargs="*", default=[], metavar="DIR", help="folders of finished searches")
    parser.add_argument("--config", default="", metavar="TEXT", help="what was run, to be shown")
    parser.add_argument("--out", required=True, metavar="FILE", help="where to write the page")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.report import write_report

    write_report(args.title, args.tables, args.searches, args.config, args.out)
