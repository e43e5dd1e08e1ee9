"""Checkpoints: the state of a training on disk, from which it continues exactly; the last two are kept."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autoseg.files import atomic, writing
from autoseg.training.average import Average
from autoseg.training.weights import fault, load_plain

logger = logging.getLogger(__name__)


class Checkpoint:
    """The state of a training on disk, and the state before it, which is used if the newer file is damaged.

    Only a state with the same fingerprint, that of everything the training depends on, is restored.
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
        """Delete the temporary files that kills during writing left; they would add up."""
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
                logger.warning("%s: made with other settings or data; not used.", path)
                continue
            if what := _misfit(state, network, optimiser):
                logger.warning("%s: not a state of this training (%s); trying the one before.", path, what)
                continue
            network.load_state_dict(state["network"])
            optimiser.load_state_dict(state["optimiser"])
            scaler.load_state_dict(state["scaler"])
            if average is not None:
                average.restore(state["average"])
            return int(state["iteration"])
        return 0


def _misfit(state: dict[str, Any], network: nn.Module, optimiser: torch.optim.Optimizer) -> str:
    """Return why a state cannot be put in place, or nothing; it changes nothing."""
    if type(state["iteration"]) is not int or state["iteration"] < 0:
        return "iteration"
    for part, own in (("network", network.state_dict()), ("optimiser", optimiser.state_dict())):
        given = state[part]
        if not isinstance(given, dict) or given.keys() != own.keys():
            return part
        if part == "optimiser":
            if not isinstance(given["state"], dict) or not all(isinstance(x, dict) for x in given["state"].values()):
                return part
            if _sizes(given["param_groups"]) != _sizes(own["param_groups"]):
                return part
            given = {
                f"{number}.{name}": value
                for number, values in given["state"].items()
                for name, value in values.items()
                if isinstance(value, torch.Tensor)
            }
        for key, value in given.items():
            if not isinstance(value, torch.Tensor) or (part == "network" and value.shape != own[key].shape):
                return f"{part}: '{key}'"
            if (part == "optimiser" or own[key].is_floating_point()) and (what := fault(value)):
                return f"{part}: '{key}' {what}"
    return ""


def _sizes(groups: Any) -> list[int]:
    """Return how many parameters each group has; -1: it is no group."""
    groups = groups if isinstance(groups, list) else [None]
    return [len(group["params"]) if isinstance(group, dict) and "params" in group else -1 for group in groups]


def _load(path: Path, device: torch.device) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        state = load_plain(path, device)
        needed = {key: state[key] for key in ("fingerprint", "iteration", "network", "optimiser", "scaler")}
        return {**needed, "average": state.get("average")}
    except Exception as error:  # a damaged file can raise any error; the one before it may be good
        logger.warning("%s: not readable as a checkpoint (%s); trying the one before.", path, type(error).__name__)
        return None
