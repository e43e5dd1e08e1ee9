"""Write the report: one self-contained HTML page with tables, figures and each search's story, from what is there.

  autoseg report --config workflow/config/demo.yaml --make      every table and figure anew, and the page, in seconds

The pipeline calls it without --make, after its own tables and figures.
"""

from __future__ import annotations

import argparse

from autoseg.cli.parts import add_config_arguments, as_part, open_results

HELP = "write the report of a pipeline"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    add_config_arguments(parser)
    parser.add_argument("--config-file", metavar="FILE", help="where a config that is given as JSON came from")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="what Snakemake was given with its own --config, for the commands on the page; may be repeated",
    )
    parser.add_argument("--make", action="store_true", help="write all tables and figures first, from what is there")
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

    pipeline = as_part(args.config or "", "--config", lambda content: load_pipeline(content, "--config"))
    if pipeline is None:
        results = open_results(args)
    else:
        results = Results(pipeline, args.results, args.config_file or "", args.set)
    if args.make:
        for problem in make_all(results):
            print(f"autoseg report: left out {problem}", file=sys.stderr)
    write_report(results, args.out or results.layout.report, args.snakemake_logs)
