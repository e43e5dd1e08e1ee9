"""A proxy task and runs so small that a test can train them, in this process or another."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autoseg.data.prepare import prepare
from autoseg.data.split import make_split
from autoseg.data.synthetic import find
from autoseg.training.settings import Task, Training

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"
THEIRS: dict[str, Any] = json.loads((GOLDEN / "networks.json").read_text())
"""The tensors of the authors' networks: name -> shape."""
SETTINGS: dict[str, Any] = {
    "iterations": 4,
    "batch_size": 4,
    "crop": [32, 32],
    "short_side": 32,
    "lr": 0.05,
    "head_lr": 1.0,
    "loaders": 0,
    "device": "cpu",
}


def make_data(folder: Path, train: int = 12, val: int = 3, size: int = 48, seed: int = 0) -> Path:
    data = prepare(find(folder / "source", train, val, size, seed), folder, 64)
    make_split(data.index, 4).save(folder / "split.json")
    return folder


def small_task(data: Path, network: str = "tiny", weights: str | None = None, split: str | None = None, **changes: Any):
    return Task(
        data=str(data), split=split, network=network, weights=weights, training=Training(**{**SETTINGS, **changes})
    )


def arguments(data: Path, network: str = "tiny", **changes: Any) -> list[str]:
    """The same task on the command line."""
    sets = [f"--set={key}={json.dumps(value)}" for key, value in {**SETTINGS, **changes}.items()]
    return ["--data", str(data), "--network", network, "--protocol", "paper-proxy", *sets]


def start(*command: str, module: str | None = "autoseg", **options: Any) -> subprocess.Popen[str]:
    """Start a module, or, if it is None, the code that comes first in `command`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    return subprocess.Popen(
        [sys.executable, *(["-c"] if module is None else ["-m", module]), *command],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


class Disk:
    """A disk of 1 MB that can be filled or made read-only: root ignores permissions, but not the end of a tmpfs.

    Where mounting is not permitted, the greatest size of a file stands in for the end of the disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
        self.mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        if not self.mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, self.limits[1]))
            return
        free = shutil.disk_usage(self.path).free
        (self.path / "filler").write_bytes(b"0" * free)

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)
        self.protect(False)
        (self.path / "filler").unlink(missing_ok=True)

    def protect(self, on: bool = True) -> None:
        """Make the disk read-only, or writable again: by its permissions where it is no disk of its own."""
        if self.mounted:
            subprocess.run(["mount", "-o", f"remount,{'ro' if on else 'rw'}", str(self.path)], check=True)
        else:
            self.path.chmod(0o555 if on else 0o755)

    @property
    def can_be_protected(self) -> bool:
        return self.mounted or os.geteuid() != 0

    def close(self) -> None:
        self.free()
        if self.mounted:
            subprocess.run(["umount", str(self.path)], check=True)


def made_from_its_name(name: str, shape: list[int]) -> torch.Tensor:
    """The golden values' rule for the weights."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith("running_var"):
        values = 1 + 0.2 * abs(values)
    elif len(shape) == 4:
        values = values * np.sqrt(1.5 / np.prod(shape[1:]))
    elif name.endswith("weight"):
        values = 1 + 0.1 * values
    else:
        values = 0.1 * values
    return torch.from_numpy(values.astype(np.float32))


def their_weights(name: str) -> dict[str, torch.Tensor]:
    """A whole checkpoint's tensors under the names of the authors' code."""
    return {
        key: torch.tensor(7) if key.endswith("num_batches_tracked") else made_from_its_name(key, shape)
        for key, shape in THEIRS[name].items()
    }


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
