"""Running the pipeline in tests: Snakemake as a user starts it, in a folder of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "workflow/config").glob("*.yaml"))
TARGETS = ("all", "prepare", "searches", "runs", "tables", "figures", "report")
TINY = ROOT / "workflow/config/tiny.yaml"


def content(name: str) -> dict[str, Any]:
    """Return one of the configs."""
    return yaml.safe_load((ROOT / f"workflow/config/{name}.yaml").read_text())


def changed(config: dict[str, Any], *where_and_value: Any) -> dict[str, Any]:
    """Change one key of a config, named by its path, and return the config."""
    *where, key, value = where_and_value
    part = config
    for name in where:
        part = part[name]
    part[key] = value
    return config


def environment(**more: str) -> dict[str, str]:
    """Return an environment where `autoseg` is the one under test."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **more}


def command(*arguments: str) -> list[str]:
    """Return Snakemake's command line on the project's Snakefile."""
    return [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "2", *arguments]


def snakemake(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Snakemake in a folder."""
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def with_config(folder: Path, config: dict[str, Any]) -> tuple[str, str]:
    """Write a config beside the results and return the arguments that name it."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return "--configfile", str(path)


def planned(folder: Path, *arguments: str, **variables: str) -> dict[str, int]:
    """Return how many jobs of each rule would run."""
    done = snakemake(folder, "-n", "--quiet", "rules", *arguments, **variables)
    assert done.returncode == 0, done.stdout
    _, _, table = done.stdout.partition("Job stats:\n")
    rows = (line.split() for line in table.partition("\n\n")[0].splitlines()[2:])
    return {words[0]: int(words[1]) for words in rows if words[0] not in ("total", *TARGETS)}


def results(folder: Path, suffixes: Iterable[str] = (".json",)) -> dict[str, bytes]:
    """Return the files that must not depend on when and where they were made."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in suffixes and path.is_file() and not path.name.startswith(("time-", "source"))
    }


def finished_trainings(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return what tells a file from one that was written again, for every scored trial and trained network."""
    found = [*folder.rglob("trial-*.json"), *folder.rglob("weights.safetensors")]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}
