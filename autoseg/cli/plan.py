"""Say what searches and runs will cost before they are started: jobs, trainings, hours of one device, disk.

A few steps are trained to measure the time of one step; with --seconds-per-step nothing is trained. The arguments of
the task describe the proxy task of the searches; arguments that begin with --run describe the runs. With --config all
searches and runs of a config are planned. Its data need not be there, so the seconds of a step are not measured: they
are those that you give, or those of a V100, estimated from the paper's hours and the logs of the authors' code by the
parameters of the network and the pixels of a batch.

With --hours a search is planned to fill so many hours of one device: two trials are trained and timed, as the first one
of a job loads much, and the steps and trials that the settings leave open follow.
"""

from __future__ import annotations

import argparse
import shutil
from typing import TYPE_CHECKING

from autoseg.cli.parts import add_repeated, as_part
from autoseg.cli.tasks import add_sharing_argument, add_task_arguments, on_gpus, settings, task_of, task_of_search
from autoseg.errors import InputError

if TYPE_CHECKING:
    from autoseg.search.settings import Search

HELP = "say what searches and runs will cost"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    add_repeated(parser, "--settings", "FILE|JSON", "the settings of a search: a YAML or JSON file, or the JSON itself")
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
    parser.add_argument("--hours", type=float, metavar="H", help="plan one search to take so many hours of one device")
    parser.add_argument("--out", metavar="FILE", help="with --hours: a file to write the seconds of a trial to")
    add_sharing_argument(parser)
    add_task_arguments(parser, "paper-proxy")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from autoseg.data.prepared import Prepared
    from autoseg.data.split import load_split
    from autoseg.files import read_settings
    from autoseg.pipeline.expansion import load_pipeline
    from autoseg.pipeline.plan import Cost, Speed, measure, pipeline_costs, report, run_cost, search_cost, weight_bytes
    from autoseg.training.settings import Training

    if args.trials_per_job < 1 or args.runs < 0:
        given = f"{args.trials_per_job} and {args.runs}"
        raise InputError(given, where="--trials-per-job, --runs", expected="at least 1 and at least 0")
    for seconds in (args.seconds_per_step, args.run_seconds_per_step):
        if seconds is not None and not 0 < seconds < float("inf"):
            raise InputError(f"{seconds:g} seconds", where="a step", expected="a positive number")
    if args.hours is not None:
        _plan_for_hours(args)
        return
    if args.out:
        raise InputError("belongs to --hours", where="--out", cure="leave it out, or give --hours")
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
        searches = [_search(given) for given in args.settings]
        speed = Speed(args.seconds_per_step) if args.seconds_per_step else measure(proxy, "cache")
        speeds["Trials"] = speed
        size = weight_bytes(proxy.network, data.num_classes, proxy.network_options)
        costs += [
            search_cost(search, proxy.training, speed, len(split.hold_out), args.trials_per_job, size)
            for search in searches
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


def _search(given: str) -> Search:
    """Return the settings in a file, or given as JSON."""
    from autoseg.files import parse
    from autoseg.search.settings import Search, load_search

    found: Search | None = as_part(given, "--settings", lambda content: parse(Search, content, "--settings"))
    return load_search(given) if found is None else found


def _plan_for_hours(args: argparse.Namespace) -> None:
    """Time a trial, say which steps and trials fill the hours, and write the time."""
    from autoseg.search.budget import described, planned
    from autoseg.search.runner import time_trial
    from autoseg.search.times import Timing
    from autoseg.training.trial import ProxyTask

    if not 0 < args.hours < float("inf"):
        raise InputError(f"found {args.hours:g}", where="--hours", expected="a positive number")
    if len(args.settings) != 1 or args.config or args.runs:
        raise InputError("plans one search", where="--hours", cure="give --settings once, without --config and --runs")
    search = _search(args.settings[0])
    task = task_of_search(args, search)
    with on_gpus(task, sharing=args.trials_per_gpu):
        proxy = ProxyTask(task)
        first, later = time_trial(search, proxy)
    timing = Timing(first=first, later=later, device=proxy.device_name)
    seconds = timing.seconds(args.trials_per_job)
    plan = planned(search, 3600 * args.hours, seconds)
    print(f"search '{search.name}': {described(plan, seconds)} of one device.")
    if args.out:
        timing.save(args.out)
