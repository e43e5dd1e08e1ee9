"""`make bench-dag`: what planning the whole paper takes, and what Snakemake adds to every job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from benchmarks.shared import table, write_section

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
# The paper's jobs with nothing in them: what Snakemake itself needs to plan as many.
BARE = """
def before(w):
    return [f"{w.search}/{int(w.step) - 1}/{k}" for k in range(8)] if int(w.step) > 1 else []
rule all:
    input: expand("{search}/20/{k}", search=range(46), k=range(8))
rule ask:
    input: before
    output: "{search}/{step}/ask"
    shell: "ask {input} > {output}"
rule trials:
    input: "{search}/{step}/ask"
    output: "{search}/{step}/{k}"
    wildcard_constraints: k="[0-9]+"
    shell: "trials {input} > {output}"
"""


def run(folder: Path, *arguments: str) -> tuple[float, float, float, str]:
    """Run Snakemake; return seconds of the clock and of CPU (jobs included), peak memory in MB, and what it said."""
    command = [sys.executable, "-m", "snakemake", *arguments]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    began = time.perf_counter()
    with TemporaryFile("w+") as said:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        said.seek(0)
        text = said.read()
    if status:
        raise SystemExit(text)
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, text


def plan(folder: Path, *arguments: str) -> list[str]:
    """Return the jobs of a dry run, its seconds of CPU, and its peak memory in MB."""
    _, cpu, memory, text = run(folder, *arguments, "-n", "--quiet", "rules", "--scheduler", "greedy")
    total = next(line.split()[1] for line in text.splitlines() if line.startswith("total"))
    return [total, f"{cpu:.1f}", f"{memory:.0f}"]


def main() -> None:
    """Measure, and write the section."""
    rows = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        for config in ("tiny", "demo", "paper"):
            path = ROOT / f"workflow/config/{config}.yaml"
            arguments = ("--snakefile", str(ROOT / "Snakefile"), "--configfile", str(path), "--cores", "2")
            rows.append([f"`{config}.yaml`", *plan(folder, *arguments)])
        profile = ("--snakefile", str(ROOT / "Snakefile"), "--profile", str(ROOT / "slurm"))
        rows.append(["`paper.yaml` by `--profile slurm`", *plan(folder, *profile, "--configfile", str(path))])
        (folder / "Snakefile").write_text(BARE)
        rows.append(["as many jobs with nothing in them", *plan(folder, "--cores", "2")])
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

Dry runs (`-n`), which read no data. The last line is the least that Snakemake needs on this machine.

What Snakemake adds to a job on this machine ({JOBS} trivial jobs, two at a time, less the start of Snakemake itself):

{each}

On a cluster each job starts Snakemake once more: `make bench-slurm`."""
    write_section("dag", text)


if __name__ == "__main__":
    main()
