from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from small_task import Disk, make_data

from autoseg.metrics import formula

GOLDEN = Path(__file__).parent / "golden"

# Deterministic, and no deadline: on a loaded machine the first call of an operator can take long.
settings.register_profile("autoseg", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("autoseg")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def golden() -> tuple[dict, dict[str, np.ndarray]]:
    with np.load(GOLDEN / "official.npz") as arrays:
        return json.loads((GOLDEN / "official.json").read_text()), dict(arrays)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared and split synthetic set: 8 + 4 training and 3 validation images of 48 px, proxy size 32."""
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A small disk that a test can fill."""
    small = Disk(tmp_path / "disk")
    yield small
    small.close()


@pytest.fixture(autouse=True)
def _same_metrics_after_each_test():
    """Forget the metrics that a test, or a plugin it loaded, registered."""
    before = dict(formula._REGISTRY)
    yield
    formula._REGISTRY.clear()
    formula._REGISTRY.update(before)
