"""Every script of examples/ runs, with tiny settings; those on docs/frameworks.md run in tests/frameworks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks

ROOT = Path(__file__).parents[1]
TINY = {
    "own_training_loop.py": (["--steps", "2", "--images", "8", "--size", "32"], "'mIoU'"),
    "sampler_in_optuna.py": (["--steps", "2"], "ppo2: 32 trials, true score of the answer"),
    "search_in_a_notebook.py": (["--steps", "1", "--trials", "3"], "SearchResult(mIoU, 3 trials in 1 step"),
    "search_own_folder.py": (
        ["--images", "8", "--steps", "1", "--trials", "2", "--iterations", "2", "--workers", "1"],
        "surrogate.json",
    ),
}


def test_no_example_is_forgotten():
    frameworks = [block.file for block in blocks(ROOT / "docs/frameworks.md") if block.language == "python"]
    assert sorted([*TINY, *frameworks]) == sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    tests = "".join(path.read_text() for path in (ROOT / "tests/frameworks").glob("test_*.py"))
    assert not [name for name in frameworks if f'example("{Path(name).stem}")' not in tests]


@pytest.mark.parametrize("name", TINY)
def test_an_example_runs(name, tmp_path):
    options, shown = TINY[name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
