"""`make bench-dag`: what planning the whole paper takes, and what Snakemake adds to every job."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import table, write_section

ROOT = Path(__file__).parents[1]
JOBS = 200
# As plain as a rule of ours can be: what is measured is Snakemake.
TRIVIAL = """
rule all:
    input: expand("out/{{k}}.txt", k=range({jobs}))
rule one:
    output: "out/{{k}}.txt"
    log: "log/{{k}}.log"
    benchmark: "log/{{k}}.tsv"
    shell: "echo {{wildcards.k}} > {{output}} 2> {{log}}"
"""


def run(folder: Path, *arguments: str) -> tuple[float, float, float, str]:
    """Run Snakemake; return seconds of the clock and of CPU (jobs included), peak memory in MB, and what it said."""
    command = [sys.executable, "-m", "snakemake", *arguments]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu, after.ru_maxrss / 1024, done.stdout + done.stderr


def main() -> None:
    """Measure, and write the section."""
    rows = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        for config in ("tiny", "demo", "paper"):
            path = ROOT / f"workflow/config/{config}.yaml"
            arguments = ("--snakefile", str(ROOT / "Snakefile"), "--configfile", str(path), "--cores", "2")
            _, cpu, memory, text = run(folder, *arguments, "-n", "--quiet", "rules", "--scheduler", "greedy")
            total = next(line.split()[1] for line in text.splitlines() if line.startswith("total"))
            rows.append([f"plan `{config}.yaml`", total, f"{cpu:.1f}", f"{memory:.0f}"])
    plans = table(["", "jobs", "CPU, s", "peak memory, MB"], rows)
    overheads = []
    for scheduler in ("greedy", "ilp"):
        with TemporaryDirectory() as name:
            folder = Path(name)
            seconds = {}
            for jobs in (1, JOBS):
                (folder / "Snakefile").write_text(TRIVIAL.format(jobs=jobs))
                seconds[jobs] = run(folder, "--cores", "2", "--scheduler", scheduler)[:2]
            wall, cpu = (1000 * (seconds[JOBS][k] - seconds[1][k]) / (JOBS - 1) for k in (0, 1))
            overheads.append([scheduler, f"{wall:.0f}", f"{cpu:.0f}"])
    each = table(["scheduler", "clock, ms a job", "CPU, ms a job"], overheads)
    text = f"""## Planning and scheduling

`make bench-dag`

{plans}

A dry run reads no data. What Snakemake adds to a job on this machine ({JOBS} trivial jobs, two at a time, less
the start of Snakemake itself):

{each}

On a cluster each job starts Snakemake once more: `make bench-slurm`."""
    write_section("dag", text)


if __name__ == "__main__":
    main()
