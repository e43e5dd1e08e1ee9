"""A cluster that lacks what the pipeline needs: a sentence says what to set, before the first job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline_runs import ROOT, TINY, environment, snakemake
from tests.slurm.cluster import output

pytestmark = pytest.mark.slurm
PLACE = "slurm/config.yaml"


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (
            ["slurm_partition=gup"],
            "unknown partition 'gup'; did you mean 'gpu'? Expected one of bare, gpu; set slurm_partition in",
        ),
        (["slurm_partition=bare", "gpu=1"], "partition 'bare': no GPUs; set slurm_partition in"),
        (["slurm_account=mine"], "account: this cluster keeps no accounts; leave slurm_account in"),
        (["slurm_partition=bare"], "ends jobs after 60 minutes, but 1440 are asked for; lower `runtime`"),
        (["mem_mb=100000"], "its largest node has 8000 MB, but"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_not_there_is_said_before_the_first_job(cluster, tmp_path, resources, message):
    rules = ("prepare_dataset", "cache_dataset", "trials", "train", "evaluate")
    gpus = [f"{rule}:gpu=1" for rule in rules if "gpu=1" in resources]
    asked = ["--set-resources", *gpus] if gpus else []
    done = snakemake(
        tmp_path,
        *("--profile", str(ROOT / "slurm"), "--configfile", str(TINY)),
        *("--default-resources", *resources, *asked),
        PYTHONPATH=str(ROOT),
    )
    assert done.returncode != 0
    assert message in done.stdout
    assert PLACE in done.stdout
    assert "Traceback" not in done.stdout
    assert not output("squeue", "--noheader", "--states=all", "--format=%Z").count(str(tmp_path))


def doctor(folder: Path, *before: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autoseg", "doctor", "slurm", "--profile", str(ROOT / "slurm")]
    variables = environment(PYTHONPATH=str(ROOT))
    return subprocess.run([*before, *command], cwd=folder, env=variables, capture_output=True, text=True, check=False)


def test_the_doctor_finds_this_cluster_well(cluster, tmp_path):
    done = doctor(tmp_path)
    assert (done.returncode, done.stdout) == (0, "slurm: no problem found.\n"), done.stderr


def test_the_doctor_lets_a_node_look_for_the_folder(cluster, tmp_path):
    """A file system that is mounted for one process alone is what a disk of the login node's own is to the nodes."""
    alone = 'mount -t tmpfs tmpfs "$0" && cd "$0" && exec "$@"'
    done = doctor(tmp_path, "unshare", "--mount", "sh", "-c", alone, str(tmp_path))
    assert done.returncode == 2
    assert f"{tmp_path}: node" in done.stdout
    assert "does not see it; work in a folder that all nodes share" in done.stdout
