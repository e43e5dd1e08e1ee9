"""Measure a few training steps on some of the images, in processes of their own. No torch in this one."""

from __future__ import annotations

import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from autoseg.data.model import cache_short_side
from autoseg.data.prepare import prepare
from autoseg.data.source import Source
from autoseg.data.split import make_split
from autoseg.errors import InputError
from autoseg.progress import bar
from autoseg.training.measures import Asked, Measured

IMAGES = 48
"""Images that are measured with, evenly from all that are trained on."""

_MOST_AT_ONCE = 8


def few_images(source: Source, place: Path, crop: int, hold_out: float, threads: int) -> Path:
    """Prepare a few images for a crop, if that is not done yet; return their folder."""
    folder = place / str(crop)
    if not (folder / "split.json").exists():
        few = []
        for split, wanted in (("train", IMAGES), ("val", 2)):
            there = [sample for sample in source.samples if sample.split == split]
            few += there[:: max(len(there) // wanted, 1)][:wanted]
        with _quiet():
            data = prepare(replace(source, samples=few, problems=[]), folder, cache_short_side(crop), threads, True)
        make_split(data.index, hold_out).save(folder / "split.json")
    return folder


def measure(asked: Asked, place: Path, at_once: int) -> Measured:
    """Let as many processes measure as jobs will run at once; return the mean of their times."""
    asked.save(place / "asked.json")
    outs = [place / f"measured-{number}.json" for number in range(min(at_once, _MOST_AT_ONCE))]
    command = [sys.executable, "-m", "autoseg.training.probe", str(place / "asked.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = [out.with_suffix(".log") for out in outs]
    started = []
    for number, (out, log) in enumerate(zip(outs, said, strict=True)):
        with open(log, "w") as file:
            lines = subprocess.PIPE if number == 0 else subprocess.DEVNULL
            started.append(
                subprocess.Popen([*command, str(out)], stdout=lines, stderr=file, text=True, env=environment)
            )
    with bar("measuring", "step", total=asked.all_steps) as shown:
        for _ in started[0].stdout or ():
            shown.update()
    for process, log in zip(started, said, strict=True):
        if process.wait():
            words = log.read_text(errors="replace").strip()
            reason = words.splitlines()[-1] if words else f"exit code {process.returncode}"
            own = f"{InputError.__module__}.{InputError.__qualname__}: "
            if reason.startswith(own):
                raise InputError(reason.removeprefix(own).removesuffix("."))
            raise InputError(f"a few steps could not be trained ({reason})", where=f"network {asked.task.network}")
    found = [Measured.load(out) for out in outs]
    means = {key: statistics.fmean(getattr(one, key) for one in found) for key in ("start", "image")}
    step = {loss: statistics.fmean(one.step[loss] for one in found) for loss in asked.losses}
    return found[0].model_copy(update={**means, "step": step})


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the preparation of a few images from saying what is said of all."""
    logger = logging.getLogger("autoseg.data")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
