"""What is checked before a pipeline's first job: data, hold-outs, weights, where results go, what a change costs.

A config is checked whole when it is read, also by a dry run; this needs the machine on which the jobs will run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path

from autoseg.cli.sources import add_source_arguments, find_source
from autoseg.data.split import hold_out_size
from autoseg.errors import InputError
from autoseg.pipeline import Dataset, Pipeline, flags
from autoseg.search import Folder, changes


def check_before_start(
    pipeline: Pipeline,
    out: str | os.PathLike[str],
    datasets: Iterable[str],
    proxies: Iterable[str],
    retrainings: Iterable[str],
) -> None:
    """Raise an error that says what is missing for what will be prepared, searched and trained, if anything is."""
    _check_writable(Path(out))
    for name in datasets:
        if pipeline.datasets[name].kind != "synthetic":
            _check_dataset(pipeline.datasets[name], f"datasets.{name}")
    for kind, plans in (
        ("proxies", {name: pipeline.proxies[name].weights for name in proxies}),
        ("retrainings", {name: pipeline.retrainings[name].weights for name in retrainings}),
    ):
        for name, weights in plans.items():
            if weights and weights != "imagenet" and not os.path.exists(weights):
                raise InputError(
                    f"{kind}.{name}.weights: {weights} does not exist; `autoseg weights --help` says how to get one."
                )


def searches_begun_anew(pipeline: Pipeline, out: str | os.PathLike[str]) -> list[str]:
    """Return a remark on each search that is another one than that in the results: it costs more than it may seem."""
    remarks = []
    for name in pipeline.searches:
        folder = Folder(Path(out) / "searches" / name)
        if not (folder.path / "search.json").exists():
            continue
        try:
            changed = changes(folder.search(), pipeline.search(name))
        except InputError as error:
            remarks.append(f"{error} It is written anew.")
            continue
        if changed:
            follows = "; it follows from the number of steps where ppo2.clip is not stated" if "clip" in changed else ""
            remarks.append(
                f"search '{name}' is another one than before ({', '.join(changed)}{follows}): its steps are asked for "
                "again from the first on, and only trials that stay the same keep their scores."
            )
    return remarks


def check_place(out: str | os.PathLike[str]) -> None:
    """Refuse a place for results that is taken by something else."""
    for place in (Path(out), *Path(out).parents):
        if os.path.lexists(place) and not os.path.isdir(place):
            raise InputError(f"{place}: this is not a folder, so results cannot go there; move it, or choose another.")


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
