"""`make bench-polls`: what one run asks of SLURM, and the memory of its Snakemake, with as many jobs as the paper.

Snakemake runs with the profile's own settings. Both nodes are drained first: 64 jobs are submitted, and wait. Then the
nodes come back, and the jobs run. The commands of SLURM are counted by scripts that stand before them in PATH.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import yaml

from benchmarks.shared import table, write_section
from benchmarks.slurm import CLUSTER, ROOT, config, run

SEARCHES, STEPS, JOBS = 46, 20, 64
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "sinfo")
COUNTED = '#!/bin/sh\necho "{name} $(date +%s)" >> "{log}"\nexec {real} "$@"\n'


def large() -> dict:
    """Return a config of as many searches as the paper's, of one cheap network."""
    small = config(STEPS)
    plan = small["searches"]["mIoU"]
    settings = [{**plan["search"], "ppo2": {"sigma": 0.2 + 0.001 * number}} for number in range(SEARCHES)]
    searches = {f"s{number}": {**plan, "search": search} for number, search in enumerate(settings)}
    tables = {"main": {**small["tables"]["main"], "rows": [f"searched:{name}" for name in searches]}}
    return {**small, "searches": searches, "tables": tables}


def count(log: Path, since: float) -> dict[str, float]:
    """Return the calls of each command in a minute, since a time."""
    lines = [line.split() for line in log.read_text().splitlines()]
    minutes = (time.time() - since) / 60
    return {name: sum(word == name and float(at) >= since for word, at in lines) / minutes for name in COMMANDS}


def watch(process: psutil.Process, log: Path, minutes: float) -> tuple[dict[str, float], float, float]:
    """Return the calls a minute, the memory in MB and the share of a core of a process, over some minutes."""
    since, used, most = time.time(), sum(process.cpu_times()[:2]), 0.0
    while time.time() < since + 60 * minutes:
        time.sleep(2)
        most = max(most, process.memory_info().rss / 1e6)
    share = (sum(process.cpu_times()[:2]) - used) / (time.time() - since)
    return count(log, since), most, 100 * share


def jobs(state: str) -> int:
    """Return how many jobs are in a state."""
    done = subprocess.run(["squeue", "--noheader", f"--states={state}"], capture_output=True, text=True, check=True)
    return len(done.stdout.splitlines())


def drain(state: str) -> None:
    """Drain both nodes, or let them take jobs."""
    subprocess.run(["scontrol", "update", "nodename=n[1-2]", f"state={state}", "reason=benchmark"], check=True)


def main() -> None:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=4, help="of waiting, and of running (default 4)")
    minutes = parser.parse_args().minutes
    if CLUSTER not in os.environ:
        raise SystemExit("There is no test cluster: `make bench-polls` starts one where it can (root, Debian).")
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(yaml.safe_dump(large()))
        run(folder, "--cores", "2", "prepare", "results/bench/data/scenes/cache-32.json")  # not to be measured
        commands, log = folder / "commands", folder / "calls"
        commands.mkdir()
        log.touch()
        for word in COMMANDS:
            (commands / word).write_text(COUNTED.format(name=word, log=log, real=shutil.which(word)))
            (commands / word).chmod(0o755)
        path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        rules = ("prepare_dataset", "cache_dataset", "trials", "train", "evaluate")
        asked = ["trials:gpu=1", *(f"{rule}:mem_mb=1000" for rule in rules)]
        profile = ["--profile", str(ROOT / "slurm"), "--jobs", str(JOBS), "--default-resources", "slurm_partition=gpu"]
        drain("drain")
        with open(folder / "log", "w") as said:
            snakemake = subprocess.Popen(
                [
                    *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), *profile),
                    *("--configfile", "config.yaml", "--set-resources", *asked, "--", "all"),
                ],
                cwd=folder,
                env={**os.environ, "PATH": path},
                stdout=said,
                stderr=said,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        try:
            while jobs("PENDING") < JOBS:
                if snakemake.poll() is not None:
                    raise SystemExit((folder / "log").read_text()[-5000:])
                time.sleep(2)
            seen = psutil.Process(snakemake.pid)
            waiting = watch(seen, log, minutes)
            drain("resume")
            running = watch(seen, log, minutes)
            planned = next(line for line in (folder / "log").read_text().splitlines() if line.startswith("total"))
        finally:
            snakemake.send_signal(signal.SIGINT)
            snakemake.wait(120)
    total = int(planned.split()[1])
    rows = [[f"`{word}`", f"{waiting[0][word]:.1f}", f"{running[0][word]:.1f}"] for word in COMMANDS]
    rows.append(["memory of Snakemake, MB", f"{waiting[1]:.0f}", f"{running[1]:.0f}"])
    rows.append(["CPU of Snakemake, % of a core", f"{waiting[2]:.1f}", f"{running[2]:.1f}"])
    text = f"""## What a run asks of SLURM

`make bench-polls`: {total} jobs ({SEARCHES} searches of the paper's size with the smallest network), {JOBS} of them
in the queue, with the profile's settings, on the two-node test cluster. Calls a minute, over {minutes:g} minutes in
which all wait and {minutes:g} in which up to eight run at once:

{table(["", f"{JOBS} jobs wait", "jobs run"], rows)}

One `squeue` asks for all jobs of a run, so their number does not matter; `scontrol` is asked for `MinJobAge` with it,
and by the Snakemake of each job when it starts. While no job ends, the pauses grow from 20 s to 180 s. The memory is
that of the one Snakemake on the login node."""
    write_section("polls", text)


if __name__ == "__main__":
    main()
