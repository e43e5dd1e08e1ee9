# The config, checked whole before the first job, and what the rules share.

import json
import os
import sys

from autoseg.errors import InputError
from autoseg.files import to_json
from autoseg.pipeline import flags, load_pipeline, options, searches_of
from autoseg.search import settings_of, total_steps

try:
    # Keys given by --config on the command line end up beside the config's own.
    P = load_pipeline({key: value for key, value in config.items()}, "the config")
except InputError as error:
    sys.exit(f"autoseg: {error}")

OUT = f"results/{P.name}"
ENV = "../../envs/autoseg.yaml"


wildcard_constraints:
    dataset="[A-Za-z0-9._-]+",
    search="[A-Za-z0-9._-]+",
    table="[A-Za-z0-9._-]+",
    step=r"\d{3}",
    chunk=r"\d+",
    run=r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+/seed-\d+",


def task_arguments(dataset, network, weights, settings, conventions):
    """Return the arguments that describe a training on a data set, quoted for the shell."""
    own = conventions.model_dump(exclude_none=True)
    # What a result does not depend on must not re-run it.
    decisive = {key: value for key, value in settings.decisive.items() if value is not None}
    words = [f"--data {OUT}/data/{dataset}", flags({"network": network, "weights": weights})]
    words += [options(decisive), options(own).replace("--set", "--convention")]
    return " ".join(words)


def gpu():
    """Return how many GPUs a training job asks for."""
    return 0 if P.device == "cpu" else 1


def chunk_files(search, step):
    """Return the files that say that all trials of a step are scored."""
    plan = P.search(search)
    # At the end the first mean, the best ones and the last one are trained themselves.
    trials = plan.rescore + 2 if step == "rescore" else settings_of(plan).trials_per_step
    folder = step if step == "rescore" else f"step-{step:03d}"
    count = P.chunks(search, trials)
    return [f"{OUT}/searches/{search}/{folder}/chunk-{k}-of-{count}.json" for k in range(count)]


def earlier(w):
    """Return what step `w.step` waits for."""
    return chunk_files(w.search, int(w.step) - 1) if int(w.step) > 1 else []


def all_steps(w):
    """Return what waits for a whole search."""
    return [path for t in range(1, total_steps(P.search(w.search)) + 1) for path in chunk_files(w.search, t)]


def chunk_task(w):
    """Return the arguments of a search's trainings."""
    plan = P.searches[w.search]
    proxy = P.proxies[plan.proxy]
    conventions = P.datasets[plan.dataset].conventions
    return task_arguments(plan.dataset, proxy.network, proxy.weights, P.proxy_training(w.search), conventions)


def run_plan(w):
    """Return the data set, the retraining, the loss and the seed of a run."""
    return P.runs()[w.run]


def surrogates(w):
    """Return the searched surrogates that a run's loss is made of."""
    return [f"{OUT}/searches/{search}/surrogate.json" for search in searches_of(run_plan(w)[2])]


def searched(w):
    """Return them as arguments."""
    names = searches_of(run_plan(w)[2])
    return " ".join(f"--searched {name}={OUT}/searches/{name}/surrogate.json" for name in dict.fromkeys(names))


def run_task(w):
    """Return the arguments of a run's training."""
    dataset, retraining, _, seed = run_plan(w)
    plan = P.retrainings[retraining]
    settings = P.run_training(retraining, seed)
    return task_arguments(dataset, plan.network, plan.weights, settings, P.datasets[dataset].conventions)


def table_scores(w):
    """Return the scores behind a table."""
    table = P.tables[w.table]
    names = [
        run
        for run, (dataset, retraining, loss, seed) in P.runs().items()
        if (dataset, retraining) == (table.dataset, table.retraining)
        and seed in table.seeds
        and loss in [row.loss for row in table.losses()]
    ]
    return [f"{OUT}/runs/{run}/scores.json" for run in names]
