# The config, checked whole before the first job, and what the rules share.

import gc
import inspect
import os
import sys

from autoseg.data.model import crop_of_cache
from autoseg.errors import InputError
from autoseg.files import read_settings
from autoseg.pipeline import snakemake_private as private
from autoseg.pipeline.arguments import Arguments, as_argument, content_of
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.inputs import Inputs
from autoseg.pipeline.layout import Layout
from autoseg.pipeline.preflight import check_before_start, check_place, plan_in_words, searches_begun_anew
from autoseg.pipeline.recovery import recover
from autoseg.pipeline.resume import refuse_second
from autoseg.plugins import hand_on
from autoseg.versions import PREPARE_VERSION, SEARCH_VERSION, TRAINING_VERSION
from snakemake.dag import DAG

try:
    for path in private.given_configfiles(workflow):
        read_settings(path)  # refuses repeated keys, of which Snakemake takes the last
    # A copy: Snakemake's own has keys of --config on the command line beside those of the config.
    P = load_pipeline(dict(config), "the config")
    PATHS = Layout.named(P.name)
    check_place(PATHS.folder)  # Snakemake itself looks into it next
except InputError as error:
    sys.exit(f"autoseg: {error}")

INPUTS = Inputs(P, PATHS)
ARGUMENTS = Arguments(P, PATHS)
SECONDS = {name: P.seconds_of_trial(name) for name, plan in P.searches.items() if plan.hours}
ENV = "../../envs/autoseg.yaml"
GPU = 0 if P.device == "cpu" else 1
WHOLE_GPU = GPU * P.trials_per_gpu  # in shares, of which a trial takes one
hand_on(P.plugins)


def look_at_results(dry_run):
    """Refuse a second run at once; name what is damaged in the results, and remove it so that it is made again."""
    try:
        if not dry_run:
            refuse_second(P.name)
        remove = not dry_run and not private.is_locked(PATHS.folder)
        remarks = [*recover(P, PATHS, remove=remove), *searches_begun_anew(P, PATHS)]
    except InputError as error:
        sys.exit(f"autoseg: {error}")
    plans = (plan_in_words(P, name) for name in SECONDS)
    for remark in (*remarks, *plans):
        print(f"autoseg: {remark}", file=sys.stderr)


private.keep_times_in_order(DAG)
if workflow.is_main_process:
    private.before_jobs(workflow, look_at_results)

# Planning makes thousands of objects and frees none: without garbage collection it takes an eighth less time.
gc.disable()


wildcard_constraints:
    dataset="[A-Za-z0-9._-]+",
    search="[A-Za-z0-9._-]+",
    tuning="[A-Za-z0-9._-]+",
    table="[A-Za-z0-9._-]+",
    figure="[A-Za-z0-9._-]+",
    seed=r"\d+",
    side=r"\d+",
    step=r"\d{3}",
    chunk=r"\d+",
    parts=r"\d+",
    run=r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+/seed-\d+(-rankseg(-iou)?)?",


onstart:
    gc.enable()

    # Not above: a dry run shows the plan also where the data are missing.
    def wanted(rule, wildcard):
        return {getattr(job.wildcards, wildcard) for job in private.jobs_to_run(workflow, rule)}

    try:
        check_before_start(
            P,
            PATHS,
            wanted("prepare_dataset", "dataset"),
            wanted("trials", "search") | wanted("time_trial", "search"),
            wanted("train", "run"),
            wanted("figure", "figure"),
            wanted("tune", "tuning"),
        )
    except InputError as error:
        sys.exit(f"autoseg: {error}")
    check_cluster()
    note_start()


def timed(search):
    """Wait for the time of a trial where the steps of a search, or of the one it starts from, follow from it."""
    global P, INPUTS, ARGUMENTS
    for name in filter(None, (search, P.prior(search))):
        if P.searches[name].hours is None:
            continue
        checkpoints.time_trial.get(search=name)  # raises what has Snakemake look again, unless the time is there
        if P.seconds_of_trial(name) != SECONDS[name]:
            P = load_pipeline(dict(config), "the config")
            INPUTS, ARGUMENTS, SECONDS[name] = Inputs(P, PATHS), Arguments(P, PATHS), P.seconds_of_trial(name)
            print(f"autoseg: {plan_in_words(P, name)}", file=sys.stderr)
    return True


def known(function):
    """Store the signature of a function, which Snakemake reads several times for every job."""
    function.__signature__ = inspect.signature(function)
    return function
