"""Say what searches and runs will cost before they are started: jobs, trainings, hours of one device, disk.

A few steps are trained to measure the time of one step; with --seconds-per-step nothing is trained. The arguments of
the task describe the proxy task of the searches; arguments that begin with --run describe the runs. With --config all
searches and runs of a config are planned. Its data need not be there, so the seconds of a step are not measured: they
are those that you give, or those of a V100, estimated from the paper's hours and the logs of the authors' code by the
parameters of the network and the pixels of a batch.
"""

from __future__ import annotations

import argparse
import shutil

from autoseg.cli.parts import add_repeated
from autoseg.cli.tasks import add_task_arguments, settings, task_of
from autoseg.errors import InputError

HELP = "say what searches and runs will cost"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    add_repeated(parser, "--settings", "FILE", "the settings of a search: a YAML or JSON file")
    parser.add_argument("--config", metavar="FILE", help="the config of the pipeline, to plan all of it")
    parser.add_argument("--trials-per-job", type=int, default=1, metavar="N", help="trials in a job (default 1)")
    parser.add_argument(
        "--seconds-per-step", type=float, metavar="S", help="seconds of a trial's step (default: measured)"
    )
    parser.add_argument("--runs", type=int, default=0, metavar="N", help="number of runs after the searches")
    parser.add_argument(
        "--run-network",
        default="deeplabv3plus-r101c",
        metavar="NAME",
        help="network of the runs (default deeplabv3plus-r101c)",
    )
    parser.add_argument("--run-protocol", default="paper", metavar="NAME", help="protocol of the runs (default paper)")
    add_repeated(parser, "--run-set", "KEY=VALUE", "change one training setting of the runs")
    parser.add_argument(
        "--run-seconds-per-step", type=float, metavar="S", help="seconds of a run's step (default: measured)"
    )
    add_task_arguments(parser, "paper-proxy")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.data.prepared import Prepared
    from autoseg.data.split import load_split
    from autoseg.files import read_settings
    from autoseg.pipeline.expansion import load_pipeline
    from autoseg.pipeline.plan import Cost, Speed, measure, pipeline_costs, report, run_cost, search_cost, weight_bytes
    from autoseg.search.settings import load_search
    from autoseg.training.settings import Training

    if args.trials_per_job < 1 or args.runs < 0:
        given = f"{args.trials_per_job} and {args.runs}"
        raise InputError(given, where="--trials-per-job, --runs", expected="at least 1 and at least 0")
    for seconds in (args.seconds_per_step, args.run_seconds_per_step):
        if seconds is not None and not 0 < seconds < float("inf"):
            raise InputError(f"{seconds:g} seconds", where="a step", expected="a positive number")
    if args.config:
        if args.settings or args.runs:
            raise InputError("names all searches and runs", where="--config", cure="leave out --settings and --runs")
        pipeline = load_pipeline(read_settings(args.config), args.config)
        seconds_of = {"Trials": args.seconds_per_step, "Runs": args.run_seconds_per_step}
        stated = {what: Speed(seconds, start=10) if seconds else None for what, seconds in seconds_of.items()}
        print(report(pipeline_costs(pipeline, *seconds_of.values()), stated))
        return
    if not args.settings and not args.runs:
        raise InputError("nothing to plan", cure="give --settings FILE, --runs N or --config FILE")
    proxy = task_of(args)
    data = Prepared.open(proxy.data)
    split = load_split(proxy.split or data.folder / "split.json", data)
    costs: list[Cost] = []
    speeds: dict[str, Speed | None] = {}
    if args.settings:
        searches = [load_search(path) for path in args.settings]
        speed = Speed(args.seconds_per_step) if args.seconds_per_step else measure(proxy, "cache")
        speeds["Trials"] = speed
        costs += [
            search_cost(search, proxy.training, speed, len(split.hold_out), args.trials_per_job) for search in searches
        ]
    if args.runs:
        changes = Training.of_protocol(args.run_protocol, **settings(args.run_set, "--run-set"))
        own = {"network": args.run_network, "network_options": {}, "weights": None, "checkpoint": None}
        task = proxy.model_copy(update={**own, "training": changes})
        size = weight_bytes(args.run_network, data.num_classes)
        speed = Speed(args.run_seconds_per_step) if args.run_seconds_per_step else measure(task, "files", images=2)
        speeds["Runs"] = speed
        costs.append(run_cost(args.runs, changes, speed, len(split.val), size))
    print(report(costs, speeds, shutil.disk_usage(data.folder).free))
