"""What is checked when a pipeline starts, before its first job: data, hold-outs, weights, and where results go.

A config is checked whole when it is read, also by a dry run; this needs the machine on which the jobs will run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from pathlib import Path

from autoseg.cli.sources import add_source_arguments, find_source
from autoseg.data.split import hold_out_size
from autoseg.errors import InputError
from autoseg.pipeline import Dataset, Pipeline, flags


def check_before_start(pipeline: Pipeline, out: str | os.PathLike[str]) -> None:
    """Raise an error that says what is missing, if anything is."""
    _check_writable(Path(out))
    for name, dataset in pipeline.datasets.items():
        if dataset.kind != "synthetic" and not (Path(out) / "data" / name / "split.json").exists():
            _check_dataset(dataset, f"datasets.{name}")
    for kind, plans in (("proxies", pipeline.proxies), ("retrainings", pipeline.retrainings)):
        for name, plan in plans.items():
            weights = plan.weights
            if weights and weights != "imagenet" and not os.path.exists(weights):
                raise InputError(
                    f"{kind}.{name}.weights: {weights} does not exist; `autoseg weights --help` says how to get one."
                )


def check_place(out: str | os.PathLike[str]) -> None:
    """Refuse a place for results that is taken by something else."""
    if os.path.lexists(out) and not os.path.isdir(out):
        raise InputError(f"{out}: this is not a folder, so results cannot go there; move it, or choose another name.")


def _check_writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out) as probe:
            probe.write(b"\0" * 4096)
    except OSError as error:
        raise InputError(f"{out}: cannot be written to ({error.strerror}); free it or choose another.") from None


def _check_dataset(dataset: Dataset, where: str) -> None:
    """Find a data set on disk, without reading an image, and see that the hold-out fits into its training set."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    add_source_arguments(parser, dataset.kind)
    # Options of `prepare` itself are checked by it.
    own = {key: value for key, value in dataset.options.items() if key not in ("workers", "leave_out_copies")}
    args, rest = parser.parse_known_args(shlex.split(flags(own)))
    if rest:
        raise InputError(f"{where}.options: {' '.join(rest)} is no option of `autoseg prepare {dataset.kind}`.")
    try:
        source = find_source(args, dataset.kind, lambda line: None)
        train = sum(sample.split == "train" for sample in source.samples)
        hold_out_size(dataset.hold_out, source.dataset, train)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
