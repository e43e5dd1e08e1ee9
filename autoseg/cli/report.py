"""Write the report: one HTML page with tables, figures and the story of each search, from the results so far.

  autoseg report --config workflow/config/demo.yaml --make      writes all tables and figures again, then the page

The pipeline calls it without --make, after its own tables and figures.
"""

from __future__ import annotations

import argparse

from autoseg.cli.parts import add_config_arguments, add_repeated, open_results, read_part

HELP = "write the report of a pipeline"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    add_config_arguments(parser)
    parser.add_argument(
        "--pipeline",
        metavar="JSON",
        help="the whole config as JSON; --config is then not read, only named in the commands on the page",
    )
    given = "a key that Snakemake was given with its own --config, for the commands on the page"
    add_repeated(parser, "--snakemake-config", "KEY=VALUE", given)
    parser.add_argument(
        "--make", action="store_true", help="write all tables and figures first, from the results so far"
    )
    parser.add_argument("--out", metavar="FILE", help="where to write the page (default: report.html in the results)")
    parser.add_argument(
        "--snakemake-logs",
        metavar="DIR",
        default=".snakemake/log",
        help="Snakemake's logs, for what failed (default .snakemake/log)",
    )


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    import sys

    from autoseg.pipeline.expansion import load_pipeline
    from autoseg.report.page import make_all, write_report
    from autoseg.report.results import Results

    if args.pipeline:
        pipeline = load_pipeline(read_part(args.pipeline, "--pipeline"), "--pipeline")
        results = Results(pipeline, args.results, args.config or "", args.snakemake_config)
    else:
        results = open_results(args)
    if args.make:
        for problem in make_all(results):
            print(f"autoseg report: left out {problem}", file=sys.stderr)
    write_report(results, args.out or results.layout.report, args.snakemake_logs)
