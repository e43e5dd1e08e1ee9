"""Say what searches and runs will cost before they are started: jobs, trainings, hours of one device, disk.

A few steps are trained to know the time of one; with --seconds-per-step nothing is trained. The task's arguments are
the proxy task's, for the searches; those that begin with --run are for the runs. With --pipeline a whole config is
planned; as its data need not be there, the seconds of a step are assumed: yours, or 0.25 for trials and 1 for runs.
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
    parser.add_argument("--run-network", default="deeplabv3plus-r101", help="theirs (default deeplabv3plus-r101)")
    parser.add_argument("--run-protocol", default="paper", help="theirs (default paper)")
    parser.add_argument("--run-set", action="append", default=[], metavar="KEY=VALUE", help="change one of theirs")
    parser.add_argument("--run-seconds-per-step", type=float, metavar="S", help="assume this for a run's step")
    add_task_arguments(parser, "paper-proxy")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.config import load_search, read, training
    from autoseg.data.prepared import Prepared
    from autoseg.data.split import load_split
    from autoseg.pipeline import load_pipeline
    from autoseg.plan import Cost, Speed, measure, pipeline_costs, report, run_cost, search_cost, weight_bytes

    if args.trials_per_job < 1 or args.runs < 0:
        raise InputError("--trials-per-job is at least 1, and --runs at least 0.")
    for seconds in (args.seconds_per_step, args.run_seconds_per_step):
        if seconds is not None and not 0 < seconds < float("inf"):
            raise InputError(f"a step of {seconds:g} seconds; expected a positive number.")
    if args.pipeline:
        if args.search or args.runs:
            raise InputError("--pipeline names all searches and runs; leave out --search and --runs.")
        pipeline = load_pipeline(read(args.pipeline), args.pipeline)
        speeds = [
            ("Trials", Speed(args.seconds_per_step or 0.25, image=0.01, start=10)),
            ("Runs", Speed(args.run_seconds_per_step or 1.0, image=0.2, start=10)),
        ]
        print(report(pipeline_costs(pipeline, *(speed for _, speed in speeds)), speeds))
        return
    if not args.search and not args.runs:
        raise InputError("nothing to plan: give --search FILE, --runs N, --pipeline FILE.")
    proxy = task_of(args)
    data = Prepared.open(proxy.data)
    split = load_split(proxy.split or data.folder / "split.json", data)
    costs: list[Cost] = []
    speeds = []
    if args.search:
        searches = [load_search(path) for path in args.search]
        speed = Speed(args.seconds_per_step) if args.seconds_per_step else measure(proxy, "cache")
        speeds.append(("Trials", speed))
        costs += [
            search_cost(search, proxy.training, speed, len(split.hold_out), args.trials_per_job) for search in searches
        ]
    if args.runs:
        changes = training(args.run_protocol, **settings(args.run_set, "--run-set"))
        task = proxy.model_copy(update={"network": args.run_network, "training": changes, "weights": None})
        size = weight_bytes(args.run_network, data.num_classes)
        speed = Speed(args.run_seconds_per_step) if args.run_seconds_per_step else measure(task, "files", images=2)
        speeds.append(("Runs", speed))
        costs.append(run_cost(args.runs, changes, speed, len(split.val), size))
    print(report(costs, speeds, shutil.disk_usage(data.folder).free))
