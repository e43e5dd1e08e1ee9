from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

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
