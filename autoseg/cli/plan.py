"""Say what searches and runs will cost before they are started: jobs, trainings, hours of one device, disk.

A few steps are trained to know the time of one; with --seconds-per-step nothing is trained. The task's arguments are
the proxy task's, for the searches; those that begin with --run are for the runs. With --pipeline a whole config is
planned; as its data need not be there, the seconds of a step are assumed: yours, or those of a V100, by the network's
parameters and the pixels of a batch, after the paper's hours and the logs of its authors' code.
"""

from __future__ import annotations

import argparse
import shutil

from autoseg.cli.tasks import add_task_arguments, settings, task_of
from autoseg.errors import InputError

HELP = "say what searches and runs will cost"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument(
        "--search", action="append", default=[], metavar="FILE", help="settings of a search; may be repeated"
    )
    parser.add_argument("--pipeline", metavar="FILE", help="a whole config, such as workflow/config/paper.yaml")
    parser.add_argument("--trials-per-job", type=int, default=1, metavar="N", help="trials in a job (default 1)")
    parser.add_argument("--seconds-per-step", type=float, metavar="S", help="assume this for a trial's step")
    parser.add_argument("--runs", type=int, default=0, metavar="N", help="how many networks are trained afterwards")
    parser.add_argument("--run-network", default="deeplabv3plus-r101c", help="theirs (default deeplabv3plus-r101c)")
    parser.add_argument("--run-protocol", default="paper", help="theirs (default paper)")
    parser.add_argument("--run-set", action="append", default=[], metavar="KEY=VALUE", help="change one of theirs")
    parser.add_argument("--run-seconds-per-step", type=float, metavar="S", help="assume this for a run's step")
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
    if args.pipeline:
        if args.search or args.runs:
            raise InputError("names all searches and runs", where="--pipeline", cure="leave out --search and --runs")
        pipeline = load_pipeline(read_settings(args.pipeline), args.pipeline)
        seconds_of = {"Trials": args.seconds_per_step, "Runs": args.run_seconds_per_step}
        stated = {what: Speed(seconds, start=10) if seconds else None for what, seconds in seconds_of.items()}
        print(report(pipeline_costs(pipeline, *seconds_of.values()), stated))
        return
    if not args.search and not args.runs:
        raise InputError("nothing to plan", cure="give --search FILE, --runs N or --pipeline FILE")
    proxy = task_of(args)
    data = Prepared.open(proxy.data)
    split = load_split(proxy.split or data.folder / "split.json", data)
    costs: list[Cost] = []
    speeds: dict[str, Speed | None] = {}
    if args.search:
        searches = [load_search(path) for path in args.search]
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
