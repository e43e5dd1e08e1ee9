"""Checkpoints: a training saved so that it goes on exactly where it was; the last two are kept."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autoseg.files import atomic, writing
from autoseg.training.average import Average

_log = logging.getLogger(__name__)


class Checkpoint:
    """A training's state on disk, and the one before it: a kill while writing, or a damaged file, loses one of them.

    Only a state with the same fingerprint is restored: it names everything the training depends on.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: str) -> None:
        self.path = Path(path)
        self.previous = self.path.with_name(self.path.stem + ".previous" + self.path.suffix)
        self.new = self.path.with_suffix(".new")
        self.fingerprint = fingerprint

    def save(
        self,
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
        scaler: Any,
        iteration: int,
        average: Average | None = None,
    ) -> None:
        """Write the state after `iteration` steps, keeping the one before."""
        state = {
            "fingerprint": self.fingerprint,
            "iteration": iteration,
            "network": network.state_dict(),
            "optimiser": optimiser.state_dict(),
            "scaler": scaler.state_dict(),
            **({} if average is None else {"average": average.state}),
        }
        with writing(self.path):
            self._remove_torn()
            with atomic(self.new, "wb") as file:
                torch.save(state, file)
            if self.path.exists():
                os.replace(self.path, self.previous)
            os.replace(self.new, self.path)

    def remove(self) -> None:
        """Delete both files: the training is done."""
        for path in (self.path, self.previous, self.new):
            path.unlink(missing_ok=True)
        self._remove_torn()

    def _remove_torn(self) -> None:
        """Delete what a kill while writing left: with every preemption that takes too long, it would be one more."""
        for path in self.path.parent.glob(f".{self.new.name}.*.part"):
            path.unlink(missing_ok=True)

    def restore(
        self,
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
        scaler: Any,
        device: torch.device,
        average: Average | None = None,
    ) -> int:
        """Put the newest good state in place and return its iteration; 0 if there is none."""
        for path in (self.path, self.previous):
            state = _load(path, device)
            if state is None:
                continue
            if state["fingerprint"] != self.fingerprint:
                _log.warning("%s: made with other settings or data; not used.", path)
                continue
            network.load_state_dict(state["network"])
            optimiser.load_state_dict(state["optimiser"])
            scaler.load_state_dict(state["scaler"])
            if average is not None:
                average.restore(state["average"])
            return int(state["iteration"])
        return 0


def _load(path: Path, device: torch.device) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        needed = {key: state[key] for key in ("fingerprint", "iteration", "network", "optimiser", "scaler")}
        return {**needed, "average": state.get("average")}
    except Exception as error:  # a torn or foreign file fails in many ways; the one before it may be good
        _log.warning("%s: not readable as a checkpoint (%s); trying the one before.", path, type(error).__name__)
        return None
