# The config, checked whole before the first job, and what the rules share.

import gc
import inspect
import os
import sys
from functools import cache

from autoseg.errors import InputError
from autoseg.files import checksum, to_json
from autoseg.loss_names import parse_terms, searches_of
from autoseg.pipeline import as_argument, figure_runs, figure_searches, flags, load_pipeline, options, table_runs
from autoseg.plugins import hand_on
from autoseg.preflight import check_before_start, check_place, searches_begun_anew
from autoseg.search import Folder, identity, most_rescored, settings_of, total_steps
from autoseg.versions import PREPARE_VERSION, SEARCH_VERSION, TRAINING_VERSION

try:
    # Keys given by --config on the command line end up beside the config's own.
    P = load_pipeline({key: value for key, value in config.items()}, "the config")
    check_place(f"results/{P.name}")  # Snakemake itself looks into it next
except InputError as error:
    sys.exit(f"autoseg: {error}")

if workflow.is_main_process:
    for remark in searches_begun_anew(P, f"results/{P.name}"):
        print(f"autoseg: {remark}", file=sys.stderr)

# Thousands of jobs are planned, and none of them is garbage: looking for it is an eighth of the time.
gc.disable()

OUT = f"results/{P.name}"
ENV = "../../envs/autoseg.yaml"
hand_on(P.plugins)
# How and where a training runs, which changes no result.
MACHINE = options({"device": P.device, "workers": P.workers})


wildcard_constraints:
    dataset="[A-Za-z0-9._-]+",
    search="[A-Za-z0-9._-]+",
    table="[A-Za-z0-9._-]+",
    figure="[A-Za-z0-9._-]+",
    side=r"\d+",
    step=r"\d{3}",
    chunk=r"\d+",
    parts=r"\d+",
    run=r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+/seed-\d+",


onstart:
    gc.enable()

    # Here and not above: a dry run says what would be done also where the data are not.
    def wanted(rule, wildcard):
        return {getattr(job.wildcards, wildcard) for job in workflow.dag.needrun_jobs() if job.rule.name == rule}

    trained = [P.runs[run] for run in wanted("train", "run")]
    proxies = {P.searches[search].proxy for search in wanted("trials", "search")}
    try:
        check_before_start(
            P, OUT, wanted("prepare_dataset", "dataset"), proxies, {run.retraining for run in trained}
        )
        for name in wanted("ask", "search") | wanted("rescore", "search") | wanted("select", "search"):
            Folder(f"{OUT}/searches/{name}").start(P.search(name), replace=True)
    except InputError as error:
        sys.exit(f"autoseg: {error}")
    check_cluster()
    note_start()


def known(function):
    """Note a function's arguments with it: Snakemake asks for them again and again for every job."""
    function.__signature__ = inspect.signature(function)
    return function


def task_arguments(dataset, network, weights, settings, conventions):
    """Return the arguments that describe a training on a data set, quoted for the shell."""
    decisive = {key: value for key, value in settings.decisive.items() if value is not None}
    return " ".join(
        [
            f"--data {OUT}/data/{dataset}",
            flags({"network": network, "weights": weights}),
            options(decisive),
            options(conventions.model_dump(exclude_none=True), "--convention"),
        ]
    )


def results_folder(w):
    """Return where all results go."""
    return OUT


def searches_folder(w):
    """Return where all searches are."""
    return f"{OUT}/searches"


def search_folder(w):
    """Return a search's folder."""
    return f"{OUT}/searches/{w.search}"


def run_folder(w):
    """Return a run's folder."""
    return f"{OUT}/runs/{w.run}"


def prepare_options(dataset, size):
    """Return the options of `autoseg prepare`, without the number of workers, which changes nothing."""
    own = {key: value for key, value in P.datasets[dataset].options.items() if key != "workers"}
    return flags({**own, "proxy_size": size})


def gpu():
    """Return how many GPUs a training job asks for."""
    return 0 if P.device == "cpu" else 1


def cache_files(dataset, settings):
    """Return what says that a data set's cache for a crop of this size is there; the first comes with the index."""
    if settings.short_side == P.datasets[dataset].proxy_size:
        return []
    return [f"{OUT}/data/{dataset}/cache-{2 * settings.short_side}.json"]


@cache
def weights_of(path):
    """Return what tells a file of weights from another under its name."""
    return checksum(path) if path and os.path.isfile(path) else None


# ---------------------------------------------------------------------------------------------------------- searches


# A search has hundreds of jobs with the same arguments: they are made once.
@cache
def proposing(search):
    """Return what decides a search's proposals."""
    return identity(P.search(search))


@cache
def jobs(search, rescoring=False):
    """Return into how many jobs the trials of a step are shared out."""
    plan = P.search(search)
    # At the end the first mean, the best ones and the last one are trained themselves.
    return P.chunks(search, most_rescored(plan) if rescoring else settings_of(plan).trials_per_step)


def chunk_files(search, step):
    """Return the files that say that all trials of a step are scored."""
    count = jobs(search, step == "rescore")
    return [f"{OUT}/searches/{search}/{step}/chunk-{k}-of-{count}.json" for k in range(count)]


def earlier(w):
    """Return what step `w.step` waits for: the step before it, which waited for the ones before."""
    return chunk_files(w.search, f"step-{int(w.step) - 1:03d}") if int(w.step) > 1 else []


def last_step(w):
    """Return what waits for a whole search."""
    return chunk_files(w.search, f"step-{total_steps(P.search(w.search)):03d}")


@cache
def trial_data(search):
    """Return the data that a search's trials read."""
    dataset = P.searches[search].dataset
    return [f"{OUT}/data/{dataset}/split.json", *cache_files(dataset, P.proxy_training(search))]


@cache
def trial_task(search):
    """Return a search's folder, the arguments of its trainings, and what tells their initial weights from others."""
    plan = P.searches[search]
    proxy = P.proxies[plan.proxy]
    settings, conventions = P.proxy_training(search), P.search(search).conventions
    return {
        "folder": f"{OUT}/searches/{search}",
        "task": task_arguments(plan.dataset, proxy.network, proxy.weights, settings, conventions),
        "weights": weights_of(proxy.weights),
    }


# -------------------------------------------------------------------------------------------------------------- runs


def run_data(w):
    """Return the data that a run reads."""
    run = P.runs[w.run]
    split = f"{OUT}/data/{run.dataset}/split.json"
    if P.retrainings[run.retraining].source == "files":
        return [split]
    return [split, *cache_files(run.dataset, P.run_training(run.retraining, run.seed))]


def surrogates(w):
    """Return the surrogates that a run's loss is made of: searched ones, and files of the user's."""
    loss = P.runs[w.run].loss
    own = [name for _, name in parse_terms(loss) if name.endswith(".json")]
    return [*(f"{OUT}/searches/{search}/surrogate.json" for search in searches_of(loss)), *own]


def searched(w):
    """Return them as arguments."""
    names = searches_of(P.runs[w.run].loss)
    return " ".join(f"--searched {name}={OUT}/searches/{name}/surrogate.json" for name in names)


def run_task(w):
    """Return the arguments of a run's training."""
    run = P.runs[w.run]
    plan = P.retrainings[run.retraining]
    settings, conventions = P.run_training(run.retraining, run.seed), P.datasets[run.dataset].conventions
    return task_arguments(run.dataset, plan.network, plan.weights, settings, conventions)


def window(w):
    """Return the sliding window of a run's evaluation as arguments."""
    size = P.retrainings[P.runs[w.run].retraining].window
    return f"--window {size[0]} {size[1]}" if size else ""


# ------------------------------------------------------------------------------------------------- tables and figures


def scores(runs):
    """Return the scores of runs."""
    return [f"{OUT}/runs/{run.name}/scores.json" for run in dict.fromkeys(runs)]


def figure_inputs(w):
    """Return what a figure is drawn from."""
    figure = P.figures[w.figure]
    found = [f"{OUT}/searches/{search}/surrogate.json" for search in figure_searches(figure)]
    found += scores(figure_runs(figure))
    return found + ([f"{OUT}/tables/{figure.table}.csv"] if figure.kind == "proxies" else [])


def figure_window(figure):
    """Return the sliding window of a gallery's networks as arguments."""
    size = P.retrainings[figure.retraining].window if figure.kind == "gallery" else None
    return f"--window {size[0]} {size[1]}" if size else ""
