"""From a folder of images to an answer: is a searched loss worth it for these images, this metric, this machine?

  autoseg auto my_images --metric mIoU --hours 1

The folder may hold images/ and masks/, train/ and val/, a.jpg beside a_mask.png, or a public set as it is unpacked; a
class list such as classes.txt is used if there is one. Three minutes (--hours 0.05) are the least on two idle cores.

It finds the images and masks, checks and splits them; measures a few steps; chooses network, crop, batch, iterations
and a learning rate for the time; writes all that to auto.yaml in a folder of its own; and runs it by the pipeline. The
same command goes on after a kill, and keeps an auto.yaml that was changed. At the end there are the verdict (also in
verdict.txt), report.html, the searched surrogate.json and my_loss.py, which needs torch alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from autoseg.cli.tasks import positive
from autoseg.errors import InputError

if TYPE_CHECKING:
    from autoseg.report.results import Results

HELP = "search a loss for a folder of images, and say whether it is worth it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("images", metavar="DIR", help="the folder with your images and masks")
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="what to be better at: mIoU, BF1 (boundaries), mDice, NSD, ...; BF1+mIoU: both (default mIoU)",
    )
    parser.add_argument("--hours", type=float, default=1.0, metavar="H", help="how long it may take (default 1)")
    parser.add_argument("--network", metavar="NAME", help="see `autoseg train --help` (default: by the device)")
    parser.add_argument(
        "--weights",
        metavar="NAME|FILE",
        help="of the encoder: a file, imagenet or none (default: fetched, if possible)",
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to train (default auto)"
    )
    parser.add_argument("--jobs", type=positive, metavar="N", help="jobs at once (default: one for each core or GPU)")
    parser.add_argument("--profile", metavar="DIR", help="a Snakemake profile, such as slurm: jobs go to a cluster")
    parser.add_argument("--out", metavar="DIR", help="the study's folder (default: <DIR>-auto in this folder)")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    began = time.monotonic()
    from autoseg.data.source import directory
    from autoseg.files import read_settings, writing
    from autoseg.pipeline import auto, project, watched
    from autoseg.pipeline.expansion import load_pipeline
    from autoseg.report.results import Results
    from autoseg.training.measures import Measured

    metrics = auto.metrics_of(args.metric) if args.metric else []
    if not 1 / 60 <= args.hours < 10_000:
        raise InputError(f"found {args.hours:g}", where="--hours", expected="a minute at least; 0.05 is three")
    root = directory(args.images, "your images and masks").resolve()
    out = _place(args.out, root)
    profile = _profile(args.profile, project.source())
    weights = args.weights
    if weights not in (None, "none", "imagenet"):
        weights = str(Path(weights).absolute())
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    _bring_along(args)
    os.chdir(out)
    planned = auto.CONFIG.exists()
    wishes = auto.Wishes(str(root), metrics, args.hours, args.network, weights, args.device, args.jobs, args.plugin)
    takes = 0.0 if planned else auto.write_config(wishes, began)
    pipeline = load_pipeline(read_settings(auto.CONFIG), str(auto.CONFIG))
    if planned:
        unlike = auto.unlike(pipeline, wishes)
        not_used = f"Not used of the command: {'; '.join(unlike)}. " if unlike else ""
        print(f"{out / auto.CONFIG} is there: going on with it. {not_used}Remove it to plan anew.", flush=True)
    else:
        trainings = sum(part.count for part in watched.work(pipeline, {}) if part.what != watched.SCORED)
        cost = f"{trainings} trainings, for {takes / 60:.0f} minutes by what was measured"
        print(f"The plan is in {out / auto.CONFIG}: {cost}.", flush=True)
    places = args.jobs or auto.places(pipeline.device)
    where = ["--cores", str(places)]
    if profile:  # which says how many jobs a cluster takes, unless a person does
        where = ["--profile", profile, *(["--jobs", str(args.jobs)] if args.jobs else [])]
    seconds = {}
    if auto.PROBE.exists():
        probed = Measured.load(auto.PROBE)
        step = statistics.fmean(probed.step.values())
        seconds = {**probed.step, "step": step, "start": probed.start, "image": probed.image}
    flags = ["--configfile", str(auto.CONFIG), *where, "--rerun-incomplete", "--scheduler", "greedy"]
    watched.run(pipeline, flags, seconds, places)
    _finish(Results(pipeline, config=str(auto.CONFIG)), out)


def _place(given: str | None, root: Path) -> Path:
    """Return the study's folder, which does not lie among the images."""
    here = Path.cwd()
    beside = root.resolve().parent if here.resolve().is_relative_to(root.resolve()) else here
    out = Path(given).absolute() if given else beside / f"{root.resolve().name}-auto"
    if out.resolve().is_relative_to(root.resolve()):
        raise InputError("lies among the images", where=f"--out {out}", cure="choose a folder elsewhere")
    return out


def _bring_along(args: argparse.Namespace) -> None:
    """Let modules of a person's own be found from the study's folder too, here and in the jobs."""
    from autoseg.plugins import VARIABLE, names_callable

    if args.plugin or names_callable(args.network or ""):
        sys.path.insert(0, os.getcwd())
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), *([known] if known else [])])
    os.environ[VARIABLE] = " ".join(args.plugin)


def _profile(given: str | None, source: Path) -> str | None:
    """Return the folder of a profile: one that is there, or the project's own of this name."""
    if given is None:
        return None
    for place in (Path(given), source / given, source / "workflow/profiles" / given):
        if place.is_dir():
            return str(place.absolute())
    raise InputError(f"there is no folder '{given}'", where="--profile", cure="give slurm, or a profile's folder")


def _finish(results: Results, out: Path) -> None:
    """Write what a person takes away, and print the verdict."""
    import shutil

    from autoseg.files import atomic
    from autoseg.losses.export import as_python
    from autoseg.report.page import write_report
    from autoseg.report.verdict import as_text, verdicts

    pipeline, layout = results.pipeline, results.layout
    surrogates = [layout.surrogate(name) for name in pipeline.searches]
    for name, path in zip(pipeline.searches, surrogates, strict=True):
        shutil.copyfile(path, "surrogate.json" if len(surrogates) == 1 else f"surrogate-{name}.json")
    if surrogates:  # a person may have taken the searches out
        with atomic("my_loss.py") as file:
            file.write(as_python(" + ".join(surrogates)))
    text = as_text(verdicts(results))
    with atomic("verdict.txt") as file:
        file.write(text)
    write_report(results, "report.html")
    beside = "; my_loss.py and the surrogate are beside it" if surrogates else ""
    print(f"\n{text}\nOpen {out / 'report.html'}{beside}.")
