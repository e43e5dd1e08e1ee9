"""The cluster that `make test-slurm` has started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.slurm.cluster import FOLDER, Cluster


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    if FOLDER not in os.environ:
        pytest.skip("there is no test cluster; `make test-slurm` starts one where it can")
    return Cluster(Path(os.environ[FOLDER]))
