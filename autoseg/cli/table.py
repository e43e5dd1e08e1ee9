"""Write a table as <out>.md, <out>.csv, <out>.tex and <out>.html, or print it in markdown. Needs no torch, no GPU.

autoseg table --config workflow/config/demo.yaml --table main       from what is in results/demo so far
autoseg table --published main                                      a table of the paper itself
autoseg table a/scores.json b/scores.json --table JSON --out STEM   what the pipeline does
"""

from __future__ import annotations

import argparse

from autoseg.cli.parts import add_config_arguments, as_part, open_results
from autoseg.errors import InputError, unknown

HELP = "write a table from score files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("scores", nargs="*", metavar="FILE", help="scores.json files, if the table is given as JSON")
    parser.add_argument("--table", metavar="NAME|JSON", help="name of a table in --config, or the table itself as JSON")
    add_config_arguments(parser)
    parser.add_argument("--published", metavar="NAME", help="instead: name of a table of the paper, such as main")
    parser.add_argument(
        "--searches", metavar="DIR", help="the folder of the searches, for the hours of a table given as JSON"
    )
    parser.add_argument(
        "--out", metavar="STEM", help="the path to write to, without .md, .csv, .tex, .html (default: print)"
    )
    parser.add_argument(
        "--strict", action="store_true", help="a score file that is missing, broken or of another run is an error"
    )


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    import sys
    from pathlib import Path

    from autoseg.errors import Problem
    from autoseg.files import parse
    from autoseg.pipeline.outputs import Table
    from autoseg.report import definitions, formats
    from autoseg.report.published import PUBLISHED_TABLES
    from autoseg.report.score_files import read_scores
    from autoseg.report.tables import fill, paper_table

    if args.published and args.published not in PUBLISHED_TABLES:
        raise unknown("table of the paper", args.published, PUBLISHED_TABLES)
    if args.published and (args.scores or args.table):
        raise InputError("a table of the paper needs no score files and no --table", cure="leave them out")
    if args.published == "metrics":
        if args.out:
            definitions.write(args.out)
        else:
            print(definitions.markdown(), end="")
        return
    problems: dict[Path, Problem] = {}
    if args.published:
        filled = paper_table(args.published)
    elif not args.table:
        raise InputError("no table was named", cure="give --table NAME with --config FILE, or --published NAME")
    elif (table := as_part(args.table, "--table", lambda content: parse(Table, content, "--table"))) is not None:
        read = read_scores(table.runs, args.scores, metrics=table.metrics, strict=args.strict)
        problems = read.problems
        command = f"snakemake --cores all {args.out}.md" if args.out else "snakemake --cores all tables"
        filled = fill(table, read, searches=args.searches, command=command)
    elif args.scores:
        raise InputError(
            "score files were given with a table of --config, which reads those in --results",
            cure="leave them out, or give the table as JSON",
        )
    else:
        filled, read = open_results(args).filled(args.table, args.strict)
        problems = read.problems
    for problem in problems.values():
        print(f"autoseg table: skipped {problem}", file=sys.stderr)
    if args.out:
        formats.write(filled, args.out)
    else:
        print(formats.markdown(filled), end="")
