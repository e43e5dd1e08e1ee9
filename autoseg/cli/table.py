"""Write a table from score files: <out>.md, <out>.csv and <out>.html. Needs neither torch nor a GPU."""

from __future__ import annotations

import argparse
import json

from autoseg.errors import InputError

HELP = "write a table from score files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument(
        "scores", nargs="*", metavar="FILE", help="scores.json files, as `autoseg evaluate` writes them"
    )
    parser.add_argument("--table", required=True, metavar="JSON", help="the table's part of the config, as JSON")
    parser.add_argument("--out", required=True, metavar="STEM", help="where to write, without .md, .csv, .html")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.config import parse
    from autoseg.pipeline import Table
    from autoseg.tables import write_table

    try:
        content = json.loads(args.table)
    except ValueError as error:
        raise InputError(f"--table: not readable as JSON ({error}).") from None
    write_table(parse(Table, content, "--table"), args.scores, args.out)
