"""The logs of a training while it runs: JSON lines, and curves for TensorBoard."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoseg.errors import InputError
from autoseg.files import atomic, writing

Line = Mapping[str, Any]  # iteration, loss, lr, images_per_s


class JsonLines:
    """A file with one JSON object a line. A resumed training repeats some steps: their lines are replaced.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
    >>> for iteration in (1, 2, 3):
    ...     JsonLines(path)({"iteration": iteration})
    >>> JsonLines(path)({"iteration": 2})
    >>> path.read_text().split("\\n")
    ['{"iteration": 1}', '{"iteration": 2}', '']
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.begun = False

    def __call__(self, line: Line) -> None:
        """Append a line."""
        with writing(self.path):
            if not self.begun:
                self._keep_before(line["iteration"])
                self.begun = True
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _keep_before(self, iteration: int) -> None:
        before = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        with atomic(self.path) as file:
            file.writelines(line + "\n" for line in before if _iteration(line) < iteration)


def _iteration(line: str) -> float:
    """Return the step of a line; infinity, so that it is dropped, for a line that a kill cut off."""
    try:
        return float(json.loads(line)["iteration"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


class TensorBoard:
    """The same lines as curves for TensorBoard."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(
                "needs the package tensorboard",
                where="--tensorboard",
                cure="install it, or leave the option out: log.jsonl in the run's folder has the same numbers",
            ) from None
        self.make = lambda iteration: SummaryWriter(str(folder), purge_step=iteration)
        self.writer: Any = None

    def __call__(self, line: Line) -> None:
        """Add a point to every curve."""
        if self.writer is None:
            self.writer = self.make(line["iteration"])
        for name, value in line.items():
            if name != "iteration":
                self.writer.add_scalar(name, value, line["iteration"])
        self.writer.flush()
