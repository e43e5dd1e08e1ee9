"""`make bench-report`: the time to write every table, every figure and the report of the demo again.

After `make demo` it uses the demo's results, and measures the verb and Snakemake. Otherwise it makes up results of the
same size: made-up searches and scores, and networks trained for one step, which take as long to read and to draw.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from autoseg.cli import main as autoseg
from autoseg.pipeline.arguments import flags
from autoseg.pipeline.outputs import GalleryFigure
from autoseg.report.results import Results
from autoseg.training.run import train_run
from autoseg.training.settings import Task
from benchmarks.shared import table, write_section
from tests.small_results import make_results

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "workflow/config/demo.yaml"
ROUNDS = 3


def stand_in(folder: Path) -> Results:
    """Make results of the demo's size without running it."""
    results = make_results(yaml.safe_load(CONFIG.read_text()), folder)
    pipeline = results.pipeline
    for name, dataset in pipeline.datasets.items():
        options = flags({**dataset.options, "proxy_size": dataset.proxy_size}).split()
        data = folder / "data" / name
        autoseg(["prepare", dataset.kind, *options, "--out", str(data)])
        autoseg(["split", str(data), *flags({"hold_out": dataset.hold_out}).split(), "--out", str(data / "split.json")])
    for plan in pipeline.figures.values():
        for run in plan.runs if isinstance(plan, GalleryFigure) else []:
            training = pipeline.run_training(run.retraining, run.seed).model_copy(update={"iterations": 1})
            network = pipeline.retrainings[run.retraining].network
            task = Task(data=str(folder / "data" / run.dataset), network=network, training=training)
            train_run(task, "ce", results.layout.run(run.name), source="cache", progress=False)
    return results


def measure(command: list[str]) -> tuple[float, float]:
    """Return the median seconds that a command takes, by the clock and of CPU."""
    times = []
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for _ in range(ROUNDS):
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        times.append((time.perf_counter() - began, cpu))
    return statistics.median(wall for wall, _ in times), statistics.median(cpu for _, cpu in times)


def main() -> None:
    real = ROOT / "results/demo"
    with TemporaryDirectory() as place:
        finished = (real / "report.html").exists()
        results = Results.open(CONFIG, real) if finished else stand_in(Path(place) / "demo")
        copy = Path(place) / "copy"
        shutil.copytree(results.folder, copy)
        verb = [sys.executable, "-m", "autoseg", "report", "--config", str(CONFIG), "--results", str(copy), "--make"]
        rows = [["`autoseg report --make`, one process", *(f"{t:.1f}" for t in measure(verb))]]
        if finished:
            forced = ["--forcerun", "table", "figure", "make_report", "--scheduler", "greedy"]
            dag = [sys.executable, "-m", "snakemake", "--cores", "2", *forced]
            rows.append(["`snakemake --cores 2`, a job for each", *(f"{t:.1f}" for t in measure(dag))])
        tables, figures = len(results.pipeline.tables), len(results.pipeline.figures)
        counts = f"{tables} table{'s' * (tables > 1)} in four formats, {figures} figures in two"
        trials = sum(1 for _ in copy.glob("searches/*/*/trial-*.json"))
    origin = "the demo's own results" if finished else "made-up results of the demo's size"
    write_section(
        "report",
        "## Tables, figures, report\n\n"
        f"`make bench-report`: {counts}, and the report, from {origin} ({trials} trials); one CPU thread, medians of "
        f"{ROUNDS}. The aim: under 20 s.\n\n" + table(["", "s", "s of CPU"], rows),
    )


if __name__ == "__main__":
    main()
