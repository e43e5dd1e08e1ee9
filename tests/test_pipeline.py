"""The pipeline: its config is checked whole, its DAG follows from the tables, and a finished run has nothing to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autoseg.errors import InputError
from autoseg.pipeline import Run, load_pipeline

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "workflow/config").glob("*.yaml"))


def content(name: str) -> dict:
    return yaml.safe_load((ROOT / f"workflow/config/{name}.yaml").read_text())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_is_valid(path):
    assert load_pipeline(yaml.safe_load(path.read_text()), path.name).tables


def changed(*where_and_value):
    config = content("tiny")
    *where, key, value = where_and_value
    part = config
    for name in where:
        part = part[name]
    part[key] = value
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed("tabels", {}), "unknown key 'tabels'; did you mean 'tables'"),
        (
            changed("searches", "mIoU", "dataset", "scnes"),
            r"searches.mIoU.dataset: unknown name 'scnes'; did you mean 'scenes'",
        ),
        (changed("searches", "mIoU", "search", {"metric": "mIuO"}), "unknown metric 'mIuO'; did you mean 'mIoU'"),
        (
            changed("searches", "mIoU", "search", {"metric": "mIoU", "stpes": 3}),
            "unknown key 'stpes'; did you mean 'steps'",
        ),
        (changed("tables", "main", "rows", ["searched:miou2"]), "unknown search 'miou2'"),
        (changed("tables", "main", "rows", ["cee"]), "unknown loss 'cee'; did you mean 'ce'"),
        (
            changed("proxies", "tiny", "training", {"lr": -1}),
            r"proxies.tiny.training: protocol 'paper-proxy': lr: .*greater than 0",
        ),
        (changed("retrainings", "tiny", "protocol", "papr"), "unknown protocol 'papr'; did you mean 'paper'"),
        (changed("datasets", "sc/enes", {"kind": "synthetic"}), "a name has letters"),
    ],
)
def test_a_wrong_config_is_answered_in_a_sentence(config, message):
    with pytest.raises(InputError, match=message):
        load_pipeline(config, "the config")


def test_names_of_runs_are_safe_and_differ():
    names = {
        Run("d", "r", loss, 0).name
        for loss in ("ce", "naive:mIoU", "searched:a + 0.5 * searched:b", "searched:a + searched:b")
    }
    assert len(names) == 4
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") for name in names)


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "2", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_plans(path, tmp_path):
    done = snakemake(tmp_path, "-n", "--quiet", "all", "--configfile", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_key_stops_the_pipeline_before_its_first_job(tmp_path):
    done = snakemake(tmp_path, "--configfile", str(ROOT / "workflow/config/tiny.yaml"), "--config", "naem=x")
    assert done.returncode != 0
    assert "unknown key 'naem'; did you mean 'name'" in done.stdout + done.stderr
    assert not (tmp_path / "results").exists()


def test_tiny_runs_end_to_end_and_then_has_nothing_to_do(tmp_path):
    tiny = ("--configfile", str(ROOT / "workflow/config/tiny.yaml"))
    done = snakemake(tmp_path, *tiny)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| searched:mIoU |" in (tmp_path / "results/tiny/tables/main.md").read_text()
    assert "<svg" in (tmp_path / "results/tiny/report.html").read_text()
    again = snakemake(tmp_path, *tiny)
    assert "Nothing to be done" in again.stdout + again.stderr
