"""The cluster that `make test-slurm` has started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pipeline_runs import results, snakemake, with_config
from tests.slurm.cluster import FOLDER, Cluster
from tests.slurm.cluster_runs import small


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    if FOLDER not in os.environ:
        pytest.skip("there is no test cluster; `make test-slurm` starts one where it can")
    return Cluster(Path(os.environ[FOLDER]))


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory) -> dict[str, bytes]:
    """The results of `small` without a cluster, and with nothing going wrong."""
    folder = tmp_path_factory.mktemp("unbroken")
    done = snakemake(folder, *with_config(folder, small()))
    assert done.returncode == 0, done.stdout
    return results(folder / "results", (".json", ".md", ".csv"))
