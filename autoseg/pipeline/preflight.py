"""Checks before the first job of a pipeline: data, hold-outs, networks, weights, the results' folder, changed searches.

A config is checked whole when it is read, also by a dry run. These checks need the machine on which the jobs will run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from autoseg.data.model import Index
from autoseg.errors import InputError, located
from autoseg.pipeline.arguments import network_arguments
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.layout import Layout
from autoseg.pipeline.outputs import GalleryFigure
from autoseg.pipeline.sections import Proxy, Retraining
from autoseg.search.budget import described
from autoseg.search.folder import Folder
from autoseg.search.space import changes
from autoseg.training.names import kind_of


def check_before_start(
    pipeline: Pipeline,
    layout: Layout,
    datasets: Iterable[str],
    searches: Iterable[str],
    runs: Iterable[str],
    figures: Iterable[str] = (),
    tunings: Iterable[str] = (),
) -> None:
    """Raise an error if something is missing for the data sets, searches, runs and figures that will be made."""
    _check_writable(Path(layout.folder))
    proxies = {pipeline.searches[name].proxy for name in searches}
    proxies |= {pipeline.tunings[name].proxy for name in tunings}
    retrainings = {pipeline.runs[name].retraining for name in runs}
    for name in datasets:
        with located(f"datasets.{name}"):  # finds the images, but reads none
            pipeline.datasets[name].check_hold_out()
    for name in sorted(figures):
        _check_gallery(pipeline, layout, name)
    plans: dict[str, Proxy | Retraining] = {f"proxies.{name}": pipeline.proxies[name] for name in sorted(proxies)}
    plans |= {f"retrainings.{name}": pipeline.retrainings[name] for name in sorted(retrainings)}
    for where, how in plans.items():
        if how.weights and how.weights != "imagenet" and not os.path.exists(how.weights):
            raise InputError(
                f"{how.weights} does not exist",
                where=f"{where}.weights",
                cure="make it, as `autoseg weights --help` shows",
            )
        if how.checkpoint and not os.path.exists(how.checkpoint):
            raise InputError(f"{how.checkpoint} does not exist", where=f"{where}.checkpoint")
    tried: set[str] = set()
    for where, how in plans.items():
        asked = network_arguments(how)
        if kind_of(how.network) != "built-in" and " ".join(asked) not in tried:
            tried.add(" ".join(asked))
            _try_network(where, asked)


def _check_gallery(pipeline: Pipeline, layout: Layout, name: str) -> None:
    """Refuse a gallery of more images than a data set has: by its index or, before that is made, by its files."""
    figure = pipeline.figures[name]
    if isinstance(figure, GalleryFigure):
        index = layout.index(figure.dataset)
        with located(f"figures.{name}"):
            made = len(Index.load(index).splits.get("val", [])) if os.path.exists(index) else None
            figure.check_images(pipeline.datasets[figure.dataset].source.count("val") if made is None else made)


def _try_network(where: str, asked: list[str]) -> None:
    """Let a network that is not this toolkit's be built by a process of its own: this one loads no torch."""
    command = [sys.executable, "-m", "autoseg", "doctor", "network", *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line.strip() for line in (done.stdout or done.stderr).splitlines()]
        raise InputError("; ".join(said[1:] or said).removesuffix("."), where=where)


def searches_begun_anew(pipeline: Pipeline, layout: Layout) -> list[str]:
    """Return a remark on each search whose settings differ from those in the results: it begins again, which costs."""
    remarks = []
    untimed = pipeline.untimed
    for name in (name for name in pipeline.searches if name not in untimed):
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


def plan_in_words(pipeline: Pipeline, name: str) -> str:
    """Return what a search of some hours will do, or that this is not known yet."""
    seconds = pipeline.seconds_of_trial(name)
    if seconds is None:
        return f"search '{name}': a trial is timed first; its steps and trials follow from that."
    return f"search '{name}': {described(pipeline.search(name), seconds)} of one device."


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
