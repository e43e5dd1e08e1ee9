"""`make bench-slurm`: a search as large as the paper's through a SLURM cluster, with trials that cost next to nothing.

What is left is what the cluster and Snakemake add. `--steps N` makes it smaller.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from benchmarks.shared import table, write_section

ROOT = Path(__file__).parents[1]
STEPS, TRIALS, PER_JOB = 20, 32, 4  # the paper's search, in the paper's chunks
CLUSTER = "AUTOSEG_TEST_CLUSTER"


def config(steps: int) -> dict:
    """Return a search of the smallest network: one iteration of two images a trial."""
    tiny = yaml.safe_load((ROOT / "workflow/config/tiny.yaml").read_text())
    proxy = {**tiny["proxies"]["tiny"], "training": {"iterations": 1, "batch_size": 2}}
    search = {"metric": "mIoU", "steps": steps, "trials_per_step": TRIALS}
    plan = {"dataset": "scenes", "proxy": "tiny", "trials_per_job": PER_JOB, "search": search}
    tables = {"main": {**tiny["tables"]["main"], "rows": ["searched:mIoU"]}}
    wanted = {"proxies": {"tiny": proxy}, "searches": {"mIoU": plan}, "tables": tables, "figures": {}}
    return {**tiny, "name": "bench", **wanted}


def run(folder: Path, *arguments: str) -> float:
    """Run Snakemake on a folder's config; return the seconds."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), *arguments]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "--configfile", "config.yaml"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return time.perf_counter() - began


def main() -> None:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of {TRIALS} trials each (default {STEPS})")
    steps = parser.parse_args().steps
    if CLUSTER not in os.environ:
        raise SystemExit("There is no test cluster: `make bench-slurm` starts one where it can (root, Debian).")
    jobs = TRIALS // PER_JOB
    memory = [f"{rule}:mem_mb=1000" for rule in ("prepare_dataset", "cache_dataset", "trials")]
    asked = ["trials:gpu=1", *memory]
    profile = [
        "--profile",
        str(ROOT / "slurm"),
        "--default-resources",
        "slurm_partition=gpu",
        "--set-resources",
        *asked,
    ]
    polled = ["--slurm-init-seconds-before-status-checks", "2"]
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(yaml.safe_dump(config(steps)))
        run(folder, *profile, *polled, "prepare", "results/bench/data/scenes/cache-32.json")  # not to be measured
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = run(folder, *profile, *polled, "searches")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        controller = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        tsv = sorted((folder / "results/bench/logs/searches/mIoU").glob("trials-*.tsv"))
        commands = [float(path.read_text().splitlines()[1].split()[0]) for path in tsv]
        (folder / "here").mkdir()
        (folder / "here/config.yaml").write_text(yaml.safe_dump(config(1)))
        here = folder / "here"
        run(here, "--cores", "1", "prepare", "results/bench/data/scenes/cache-32.json")
        run(here, "--cores", "1", "results/bench/searches/mIoU/step-001/proposals.json")
        whole = trials_alone(here, "0/1")
        few = trials_alone(here, f"0/{TRIALS}")
    trial = (whole - few) / (TRIALS - 1)
    count = steps * TRIALS
    rows = [
        ["clock, whole search", f"{wall:.0f} s"],
        ["clock, a step", f"{wall / steps:.1f} s"],
        [
            "clock, a job (all commands one after the other: " + f"{sum(commands):.0f} s)",
            f"{wall / (steps * jobs):.2f} s",
        ],
        ["clock, a trial", f"{wall / count:.2f} s"],
        ["of which the trial itself, in a process that trains all of a step", f"{trial:.2f} s"],
        ["**added to a trial by jobs, cluster and Snakemake**", f"**{wall / count - trial:.2f} s**"],
        ["CPU of the Snakemake that submits, a job", f"{controller / (steps * jobs):.2f} s"],
    ]
    text = f"""## On a cluster

`make bench-slurm`: {count} trials ({steps} steps of {TRIALS}, {PER_JOB} a job, so {jobs} jobs a step) of the smallest
network, one iteration each, on the two-node test cluster on one machine with {os.cpu_count()} cores; Snakemake asks for
the jobs' states 2 s after it submitted them.

{table(["", ""], rows)}

A job starts Python three times (Snakemake on the node, Snakemake in the job step, `autoseg`), and torch once; on a real
cluster all jobs of a step do that at the same time on their own cores. A trial of the paper takes minutes."""
    write_section("slurm", text)


def trials_alone(folder: Path, chunk: str) -> float:
    """Return the seconds of `autoseg trials` on a chunk of the first step, without Snakemake."""
    for path in folder.rglob("trial-*.json"):
        path.unlink()
    data = ["--data", "results/bench/data/scenes", "--network", "tiny", "--set", "loaders=0", "--set", "device=cpu"]
    sizes = ["--set", "iterations=1", "--set", "batch_size=2", "--set", "crop=[16,16]", "--set", "short_side=16"]
    command = [sys.executable, "-m", "autoseg", "trials", "results/bench/searches/mIoU", "--step", "1", "--quiet"]
    began = time.perf_counter()
    subprocess.run(
        [*command, "--chunk", chunk, *data, *sizes], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
