"""The package away from its clone: wheel and sdist, `autoseg init`, and a pipeline that plans where it was written."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from pages import blocks, commands

from autoseg.cli import main
from autoseg.pipeline import project

ROOT = Path(__file__).parents[1]


def python(*arguments: str, cwd: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """Run Python where the package is the one installed at `path`, and no clone is near."""
    environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
    command = [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("autoseg-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content where an installer puts it."""
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*pip, "--target", str(site), str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site


def test_an_installed_package_writes_a_project_that_plans(installed, tmp_path):
    target = tmp_path / "my project"
    done = python("-m", "autoseg", "init", str(target), cwd=tmp_path, path=installed)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in target.iterdir()} == {
        *("Snakefile", "workflow", "envs", "slurm", "profiles", ".gitignore")
    }
    assert not any(path.is_symlink() for path in target.rglob("*"))
    where = python("-c", "import autoseg; print(autoseg.__file__)", cwd=target, path=installed)
    assert where.stdout.startswith(str(installed))
    plan = python("-m", "snakemake", "-n", "--quiet", "rules", "--cores", "1", cwd=target, path=installed)
    assert plan.returncode == 0, plan.stdout + plan.stderr
    assert "make_report" in plan.stdout


def test_an_installed_package_has_the_papers_numbers_its_curves_and_its_templates(installed, tmp_path):
    for arguments, shown in (
        (["loss", "show", "mIoU"], "release HEAD; its log: 80.78 mIoU"),
        (["table", "--published", "main"], "80.97"),
        (["loss", "export", "mIoU", "--out", "mine.py"], ""),
        (["table", "--published", "main", "--out", "main"], ""),
    ):
        done = python("-m", "autoseg", *arguments, cwd=tmp_path, path=installed)
        assert done.returncode == 0, done.stderr
        assert shown in done.stdout
    assert "class Loss" in (tmp_path / "mine.py").read_text()
    assert "80.97" in (tmp_path / "main.html").read_text()


def test_an_installed_package_searches_with_the_training_code_of_the_page_on_searches(installed, tmp_path):
    page = blocks(ROOT / "docs/searches.md")
    for block in page:
        if block.file:
            few = block.text.replace("steps: 12", "steps: 2").replace("trials_per_step: 16", "trials_per_step: 4")
            (tmp_path / block.file).write_text(few.replace("rescore: 3", "rescore: 1"))
    all_commands = [command for block in page if block.language == "sh" for command in commands(block.text)]
    (command,) = (command for command in all_commands if "my_task:" in command)
    done = python("-m", *shlex.split(command), cwd=tmp_path, path=installed)
    assert done.returncode == 0, done.stderr
    path, _, source = done.stdout.strip().partition(": ")
    found = json.loads((tmp_path / path).read_text())
    assert (found["metric"], found["source"]) == ("mIoU", source)
    scores = {path.name: json.loads(path.read_text())["score"] for path in tmp_path.rglob("trial-*.json")}
    assert len(scores) >= 2 * 4 + 2
    assert len(set(scores.values())) > 1  # the loss makes a difference


def test_a_project_is_the_clones_own_files(tmp_path):
    assert main(["init", str(tmp_path)]) == 0
    for name in (
        "Snakefile",
        "workflow/rules/common.smk",
        "workflow/config/paper.yaml",
        "profiles/default/config.yaml",
    ):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
    assert (tmp_path / "slurm/config.yaml").read_bytes() == (ROOT / "slurm/config.yaml").read_bytes()


def test_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/autoseg.yaml").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert "envs/autoseg.yaml would be overwritten" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["envs"]
    assert (tmp_path / "envs/autoseg.yaml").read_text() == "mine"
    (tmp_path / "file").touch()
    assert main(["init", str(tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err


def test_every_file_that_the_rules_name_is_in_a_project(wheel):
    names = {name.removeprefix("autoseg/_project/") for name in zipfile.ZipFile(wheel).namelist()}
    tracked = subprocess.run(
        ["git", "ls-files", "Snakefile", "workflow", "profiles", "envs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    assert tracked or not (ROOT / ".git").exists()
    assert set(tracked) <= names
    assert {path.relative_to(ROOT).as_posix() for path in project.files(ROOT).values()} <= names


def test_the_sdist_builds_and_holds_what_the_wheel_is_made_of(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("autoseg-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CITATION.cff",
        "Snakefile",
        "tests/conftest.py",
        "docs/data.md",
    }
    assert wanted | {path.relative_to(ROOT).as_posix() for path in project.files().values()} <= names
    assert not [name for name in names if name.startswith((".venv", "results/demo", "site/"))]
    assert not [name for name in names if name.endswith((".whl", ".gz", ".bin", ".log"))]  # strayed into the clone
