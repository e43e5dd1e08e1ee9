"""The logs of a training while it runs: JSON lines, and curves for TensorBoard."""

from __future__ import annotations

import json
import os
import tempfile
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
        text = json.dumps(line) + "\n"
        with writing(self.path):
            if self.begun:
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write(text)
            else:
                self._begin(line["iteration"], text)
                self.begun = True

    def _begin(self, iteration: int, text: str) -> None:
        """Write the first line, after those of earlier iterations."""
        before = self.path.read_text(encoding="utf-8", errors="replace").splitlines() if self.path.exists() else []
        with atomic(self.path) as file:
            file.writelines(line + "\n" for line in before if _iteration(line) < iteration)
            file.write(text)


def _iteration(line: str) -> float:
    """Return the step of a line; infinity, so that it is dropped, for a line that a kill cut off."""
    try:
        return float(json.loads(line)["iteration"])
    except (ValueError, KeyError, TypeError, RecursionError):
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
        with writing(folder):  # TensorBoard writes in a thread, which ends in a traceback on a full disk
            Path(folder).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(b"\0" * 4096)
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
