"""Write the report: one self-contained HTML page with tables, figures and each search's story, from what is there.

  autoseg report --config workflow/config/demo.yaml --make      every table and figure anew, and the page, in seconds

The pipeline calls it without --make, after its own tables and figures.
"""

from __future__ import annotations

import argparse

from autoseg.cli.parts import add_config_arguments, as_part

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
    from autoseg.errors import InputError
    from autoseg.paper.report import make_all, write_report
    from autoseg.paper.results import Results
    from autoseg.pipeline import load_pipeline

    if not args.config:
        raise InputError("give the pipeline's config with --config, such as workflow/config/demo.yaml.")
    pipeline = as_part(args.config, "--config", lambda content: load_pipeline(content, "--config"))
    if pipeline is None:
        results = Results.open(args.config, args.results)
    else:
        results = Results(pipeline, args.results, args.config_file or "", args.set)
    if args.make:
        make_all(results)
    write_report(results, args.out or results.folder / "report.html", args.snakemake_logs)
