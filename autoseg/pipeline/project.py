"""The files of the pipeline, for a project of its own: Snakefile, rules, configs and the cluster's profile.

A clone has these files at its root; the wheel carries them inside the package (`force-include` in pyproject.toml).
"""

from __future__ import annotations

import os
from pathlib import Path

from autoseg.errors import InputError
from autoseg.files import atomic

PACKAGE = Path(__file__).parents[1]

# `--profile slurm` names the folder `slurm` in the folder where Snakemake is started. A clone has a link to the profile
# there. A project has the profile itself there, and nowhere else, as two copies could differ.
PARTS = {
    "Snakefile": "Snakefile",
    "workflow/rules": "workflow/rules",
    "workflow/config": "workflow/config",
    "workflow/schemas": "workflow/schemas",
    "workflow/report": "workflow/report",
    "workflow/profiles/slurm": "slurm",
    "profiles": "profiles",
    "envs": "envs",
}

IGNORED = "# Made by the pipeline; everything in it can be made again.\nresults/\n.snakemake/\n"


def source() -> Path:
    """Return the folder that holds the pipeline's files: inside an installed package, or the clone around it."""
    for place in (PACKAGE / "_project", PACKAGE.parent):
        if (place / "Snakefile").is_file():
            return place
    raise InputError("the pipeline's files are missing", where=PACKAGE, cure="install the package again")


def files(place: Path | None = None) -> dict[str, Path]:
    """Return every file of a project: its name there, and where its content lies.

    >>> "slurm/config.yaml" in files() and "workflow/config/demo.yaml" in files()
    True
    """
    place = place or source()
    found: dict[str, Path] = {}
    for part, name in PARTS.items():
        origin = place / part
        for path in sorted(origin.rglob("*")) if origin.is_dir() else [origin]:
            # A README links to docs that a project does not have.
            if path.is_file() and path.name != "README.md" and "__pycache__" not in path.parts:
                found[(Path(name) / path.relative_to(origin)).as_posix()] = path
    return found


def write(folder: str | os.PathLike[str]) -> list[Path]:
    """Write a project into a folder; if one of its files exists already, nothing is written."""
    target = Path(folder)
    wanted = files()
    if target.exists() and not target.is_dir():
        raise InputError("this is a file", where=target, expected="a folder for the project")
    if there := sorted(name for name in [*wanted, ".gitignore"] if (target / name).exists()):
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        what = f"{there[0]}{more} would be overwritten"
        raise InputError(what, where=target, cure="choose another folder, or move them away")
    content = {name: path.read_bytes() for name, path in wanted.items()} | {".gitignore": IGNORED.encode()}
    written: list[Path] = []
    try:
        for name, raw in content.items():
            with atomic(target / name, "wb") as file:
                file.write(raw)
            written.append(target / name)
    except BaseException:  # a part of a project is no project, and the same command would refuse to overwrite it
        for path in written:
            path.unlink()
        raise
    return written
