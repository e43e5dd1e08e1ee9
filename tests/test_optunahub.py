"""The sampler's package for OptunaHub: complete, loaded as the hub loads it, and running without autoseg or torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
# The hub's own loader: a package's folder is imported under a name below `optunahub_registry`.
HUB = """
import importlib.util, sys

sys.modules["autoseg"] = sys.modules["torch"] = None  # must not be needed


def load_local_module(package, *, registry_root):
    name = "optunahub_registry.package." + package.replace("/", ".")
    spec = importlib.util.spec_from_file_location(name, f"{registry_root}/{package}/__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_module(package):
    return load_local_module(package, registry_root="package")
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hub")
    subprocess.run([sys.executable, "hub/assemble.py", str(out)], cwd=ROOT, check=True, capture_output=True)
    (out / "stand_in").mkdir()
    (out / "stand_in/optunahub.py").write_text(HUB)
    return out


def run(registry: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(registry / "stand_in")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=registry, env=environment, capture_output=True, text=True, check=False
    )


def test_it_has_all_that_the_hub_asks_for(registry):
    package = registry / "package/samplers/ppo2"
    _, front, text = (package / "README.md").read_text().split("---\n", 2)
    matter = yaml.safe_load(front)
    assert set(matter) == {"author", "title", "description", "tags", "optuna_versions", "license"}
    assert "sampler" in matter["tags"]
    pins = (ROOT / "envs/constraints.txt").read_text().split()
    assert [f"optuna=={version}" for version in matter["optuna_versions"]] == [
        pin for pin in pins if pin.startswith("optuna==")
    ]
    assert matter["license"] == "MIT License"
    assert "PPO2Sampler" in text.split("## Class or Function Names")[1].split("##")[0]
    assert (package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_it_passes_the_lint_of_the_registry(registry):
    options = ["--no-cache", "--config", str(ROOT / "hub/registry-ruff.toml"), "package"]
    assert run(registry, "-m", "ruff", "check", *options).returncode == 0
    assert run(registry, "-m", "ruff", "format", "--check", *options).returncode == 0
    settings = ["--config-file", str(ROOT / "hub/registry-mypy.ini")]
    done = run(registry, "-m", "mypy", *settings, "--cache-dir", str(registry / "mypy"), "package/samplers/ppo2")
    assert done.returncode == 0, done.stdout


def test_its_example_runs_without_autoseg(registry):
    done = run(registry, "package/samplers/ppo2/example.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("answer:")


def test_the_readmes_example_runs_without_autoseg(registry):
    text = (registry / "package/samplers/ppo2/README.md").read_text()
    done = run(registry, "-c", text.split("```python\n")[1].split("```")[0])
    assert done.stdout.startswith("BestMean("), done.stderr


def test_its_own_tests_pass_without_autoseg(registry):
    done = run(registry, "-m", "pytest", "-q", "-p", "no:cacheprovider", "package/samplers/ppo2/tests")
    assert done.returncode == 0, done.stdout
