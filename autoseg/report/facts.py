"""Facts that no result depends on: versions, machine, commit, times, failures. Only the report shows them."""

from __future__ import annotations

import csv
import math
import os
import platform
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from autoseg import __version__

_PACKAGES = (
    *("torch", "torchvision", "numpy", "scipy", "optuna", "snakemake"),
    *("segmentation-models-pytorch", "matplotlib"),
)

_STAGES = ("prepare", "split", "searches", "runs", "tables", "figures", "report")


def _versions() -> dict[str, str]:
    """Return the versions of autoseg, Python and the packages that results may depend on."""
    found = {"autoseg": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Facts:
    """What made the results: versions by package, the commit of the sources if they are a clone's, the machine."""

    versions: dict[str, str]
    commit: str
    changed: bool
    machine: str


def read_facts() -> Facts:
    """Return the facts of this machine and these sources."""
    commit, changed = _commit()
    return Facts(_versions(), commit, changed, _machine())


def _commit() -> tuple[str, bool]:
    """Return the commit of the sources, "" if they are no clone, and whether files were changed since."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return "", False

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return "", False


def _machine() -> str:
    """Return system, processor, cores and memory of this machine."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", info.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        processor = match[1] if match else processor
    parts = [f"{platform.system()} {platform.release()}", processor, f"{os.cpu_count()} cores"]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        parts.append(f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB of memory")
    return ", ".join(parts)


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline: its number of jobs, their hours together, and the most memory that one of them took."""

    name: str
    jobs: int
    hours: float
    memory: float  # GB


def stages(logs: Path) -> list[Stage]:
    """Return the time and memory of each stage's jobs, from Snakemake's benchmark files; a job's last run counts."""
    found: dict[str, list[tuple[float, float]]] = {}
    for path in sorted(logs.rglob("*.tsv")):
        try:
            with open(path, encoding="utf-8", errors="replace", newline="") as file:
                rows = list(csv.DictReader(file, delimiter="\t"))
        except (OSError, csv.Error):  # a page is not lost for a damaged log
            continue
        values = [(_number(row.get("s")), _number(row.get("max_rss"))) for row in rows]
        if values:
            found.setdefault(path.relative_to(logs).parts[0].removesuffix(".tsv"), []).extend(values)
    return [
        Stage(name, len(rows), sum(s for s, _ in rows) / 3600, max(rss for _, rss in rows) / 1024)
        for name, rows in sorted(found.items(), key=lambda item: _STAGES.index(item[0]) if item[0] in _STAGES else -1)
    ]


def _number(text: str | None) -> float:
    """Return a number of a benchmark file; 0 for jobs that were too short to be measured."""
    try:
        number = float(text or 0)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


@dataclass(frozen=True)
class Failure:
    """A job that failed: its rule, the file it had to make, and how many times it failed."""

    rule: str
    output: str
    times: int


def failures(logs: Path, name: str) -> tuple[list[Failure], int]:
    """Return the jobs of results/<name> that failed, and the number of retries, from Snakemake's logs."""
    counts: Counter[tuple[str, str]] = Counter()
    retries = 0
    for path in sorted(logs.glob("*.log")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if f"results/{name}/" not in text:
            continue
        for match in re.finditer(r"^Error in rule (\w+):\n((?:^ +.*\n)+)", text, re.MULTILINE):
            output = re.search(r"^ +output: (.+)$", match[2], re.MULTILINE)
            counts[match[1], output[1] if output else ""] += 1
        retries += len(re.findall(r"^Trying to restart job", text, re.MULTILINE))
    return [Failure(rule, output, times) for (rule, output), times in sorted(counts.items())], retries
