"""Checks before the first job of a pipeline: data, hold-outs, weights, the folder of results, searches that changed.

A config is checked whole when it is read, also by a dry run. These checks need the machine on which the jobs will run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from autoseg.errors import InputError, located
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.layout import Layout
from autoseg.search.folder import Folder
from autoseg.search.space import changes


def check_before_start(
    pipeline: Pipeline, layout: Layout, datasets: Iterable[str], searches: Iterable[str], runs: Iterable[str]
) -> None:
    """Raise an error if something is missing for the data sets, searches and runs that will be made."""
    _check_writable(Path(layout.folder))
    proxies = {pipeline.searches[name].proxy for name in searches}
    retrainings = {pipeline.runs[name].retraining for name in runs}
    for name in datasets:
        with located(f"datasets.{name}"):  # finds the images, but reads none
            pipeline.datasets[name].check_hold_out()
    for kind, plans in (
        ("proxies", {name: pipeline.proxies[name].weights for name in proxies}),
        ("retrainings", {name: pipeline.retrainings[name].weights for name in retrainings}),
    ):
        for name, weights in plans.items():
            if weights and weights != "imagenet" and not os.path.exists(weights):
                raise InputError(
                    f"{weights} does not exist",
                    where=f"{kind}.{name}.weights",
                    cure="make it, as `autoseg weights --help` shows",
                )


def searches_begun_anew(pipeline: Pipeline, layout: Layout) -> list[str]:
    """Return a remark on each search whose settings differ from those in the results: it begins again, which costs."""
    remarks = []
    for name in pipeline.searches:
        folder = Folder(layout.search(name))
        if not (folder.step(1) / "proposals.json").exists():
            continue
        try:
            changed = changes(folder.proposals(1).search, pipeline.search(name))
        except InputError as error:
            remarks.append(str(error))
            continue
        if changed:
            follows = ", which follows from the number of steps unless ppo2.clip is given" if "clip" in changed else ""
            remarks.append(
                f"search '{name}' has other settings than before ({', '.join(changed)}{follows}): it begins again at "
                "step 1, and only trials with the same parameters keep their scores."
            )
    return remarks


def check_place(out: str | os.PathLike[str]) -> None:
    """Refuse a folder for results if it, or a folder above it, is a file."""
    for place in (Path(out), *Path(out).parents):
        if os.path.lexists(place) and not os.path.isdir(place):
            cure = "move it away, or give the config another name"
            raise InputError("this is not a folder, so results cannot be written there", where=place, cure=cure)


def _check_writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out) as probe:
            probe.write(b"\0" * 4096)
    except OSError as error:
        what, cure = f"cannot be written to ({error.strerror})", "make it writable, or give the config another name"
        raise InputError(what, where=out, cure=cure) from None
