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
