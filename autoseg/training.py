"""Training a network: SGD on the poly schedule, on one device or several, resumed exactly after any stop.

Everything random derives from (seed, iteration): the batches (`autoseg.data.loaders`), and the dropout, which is seeded
anew before each step. So a training resumed from a checkpoint goes through the same steps as one that never stopped,
and trainings that differ in the loss alone see the same batches and the same dropout.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autoseg.config import Training
from autoseg.data.loaders import sample_seed
from autoseg.errors import InputError, Preempted
from autoseg.files import atomic, writing
from autoseg.logs import Line, bar
from autoseg.networks import Network

Loader = Callable[[int], Iterable[tuple[Tensor, Tensor]]]  # from which (micro-)batch on -> batches


@dataclass
class Outcome:
    """How a training ended."""

    iterations: int
    diverged: bool = False
    losses: list[float] = field(default_factory=list)


def choose_device(name: str) -> torch.device:
    """Return the device that the settings ask for; a GPU that is asked for and missing is an error."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda', but no GPU is available here; ask for one, or set device to 'cpu'.")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def distributed(device: torch.device) -> Iterator[tuple[int, int]]:
    """Join the other processes that torchrun started, if it did; yield (rank, number of processes)."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield 0, 1
        return
    if dist.is_initialized():  # by a caller, who may have more to do with it: a group cannot be joined twice
        yield dist.get_rank(), dist.get_world_size()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def learning_rate(settings: Training, iteration: int, base: float) -> float:
    """Return base (1 - t/T)^power, not below min_lr: (base - min) (1 - t/T)^power + min."""
    left = 1 - iteration / settings.iterations
    return (base - settings.min_lr) * left**settings.power + settings.min_lr


def train(
    network: Network,
    loss: nn.Module,
    loader: Loader,
    settings: Training,
    *,
    device: torch.device,
    rank: int = 0,
    world: int = 1,
    checkpoint: Checkpoint | None = None,
    logs: Sequence[Callable[[Line], None]] = (),
    progress: str | None = None,
) -> Outcome:
    """Train a network in place.

    Args:
        network: on `device` already.
        loss: of (logits, masks); the auxiliary head has the same.
        loader: gives the batches from a number on; with `accumulate`, a batch is that many of them.
        settings: see `autoseg.config.Training`.
        device, rank, world: see `choose_device` and `distributed`.
        checkpoint: where to save and from where to go on.
        logs: are called every now and then with iteration, loss, lr and images_per_s; see `autoseg.logs`.
        progress: the name of a bar; None: no bar.

    A loss that is not finite ends the training: the outcome is then `diverged`, the weights are those before the step.
    Out of memory is no such end but an error. Told to stop by SIGTERM or SIGUSR1, it saves and raises `Preempted`.
    """
    torch.set_num_threads(settings.threads)
    encoder, heads = network.parameter_groups()
    bases = (settings.lr, settings.lr * settings.head_lr)
    optimiser = torch.optim.SGD(
        [{"params": encoder, "lr": bases[0]}, {"params": heads, "lr": bases[1]}],
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    amp = device.type == "cuda" and settings.precision != "float32"
    scaler = torch.amp.GradScaler(device.type, enabled=amp and settings.precision == "float16")
    start = 0
    if checkpoint is not None:
        start = checkpoint.restore(network, optimiser, scaler, device)
        if _reduced(start, world) != start * world:  # on several nodes: a folder of each, or a file seen too early
            raise InputError(
                f"{checkpoint.path}: the processes found different checkpoints (this one step {start}); the run's "
                "folder must be one that all of them see."
            )
    model: nn.Module = network
    if device.type == "cuda" and settings.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if world > 1:
        if device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = nn.parallel.DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    if settings.compile:
        model = torch.compile(model)  # type: ignore[assignment]
    loss = loss.to(device)
    model.train()
    outcome = Outcome(start)
    batches = iter(loader(start * settings.accumulate))
    shown = bar(progress, "step", total=settings.iterations, initial=start)
    began, images_done = time.perf_counter(), 0
    with shown, _stop_signals() as stop, _plain_errors(settings, world):
        for iteration in range(start, settings.iterations):
            for group, base in zip(optimiser.param_groups, bases, strict=True):
                group["lr"] = learning_rate(settings, iteration, base)
            torch.manual_seed(sample_seed(settings.seed, iteration, rank) >> 1)  # dropout
            optimiser.zero_grad(set_to_none=True)
            value = 0.0
            for part in range(settings.accumulate):
                images, masks = next(batches)
                images, masks = images.to(device, non_blocking=True), masks.to(device, non_blocking=True)
                if device.type == "cuda" and settings.channels_last:
                    images = images.contiguous(memory_format=torch.channels_last)
                last = part == settings.accumulate - 1
                # Gradients are averaged over processes once, with the last part.
                quiet = nullcontext() if last or world == 1 else model.no_sync()  # type: ignore[operator]
                with quiet:
                    with torch.autocast(device.type, getattr(torch, settings.precision), enabled=amp):
                        logits, aux = model(images)
                    logits, aux = logits.float(), aux.float()  # whatever the network's arithmetic, a loss's is float32
                    total = (loss(logits, masks) + settings.aux_weight * loss(aux, masks)) / settings.accumulate
                    scaler.scale(total).backward()
                value += float(total.detach())
                images_done += len(images)
            value = _reduced(value, world) / world  # of the whole batch, and not finite if any process's is not
            if not math.isfinite(value):
                outcome.diverged = True
                break
            if settings.clip_gradient is not None:
                scaler.unscale_(optimiser)
                nn.utils.clip_grad_norm_(network.parameters(), settings.clip_gradient)
            scaler.step(optimiser)
            scaler.update()
            done = outcome.iterations = iteration + 1
            outcome.losses.append(value)
            shown.update()
            if done % max(settings.iterations // 200, 1) == 0:
                lr, speed = optimiser.param_groups[0]["lr"], images_done * world / (time.perf_counter() - began)
                shown.set_postfix(loss=f"{value:.4f}", lr=f"{lr:.2g}", img_s=f"{speed:.1f}", refresh=False)
                for log in logs:
                    log({"iteration": done, "loss": value, "lr": lr, "images_per_s": round(speed, 2)})
            if done == settings.iterations:
                break
            stopping = _reduced(stop.asked, world) > 0  # all must stop after the same step
            if checkpoint is not None and rank == 0 and (stopping or done % settings.checkpoint_every == 0):
                checkpoint.save(network, optimiser, scaler, done)
            if stopping:
                raise Preempted(f"stopped after step {done} of {settings.iterations}")
    return outcome


def _reduced(value: float, world: int) -> float:
    """Return the sum over all processes."""
    if world == 1:
        return value
    total = torch.tensor(value, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(total)
    return total.item()


@contextmanager
def _plain_errors(settings: Training, world: int) -> Iterator[None]:
    """Turn running out of memory, and a batch too small for batch statistics, into a sentence with the cure."""
    images = settings.batch_size // settings.accumulate // world
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        text = str(error)
        if "Expected more than 1 value per channel" in text:
            raise InputError(
                f"{images} image at once is too little for this network's batch statistics; raise batch_size, or lower "
                "accumulate or the number of processes."
            ) from None
        # A GPU has an error of its own for it; the CPU's allocator only says so.
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in text:
            raise
        parts = "" if images % 2 else f"set accumulate to {2 * settings.accumulate} (the batch in more parts), "
        raise InputError(
            f"out of memory with {images} images of {settings.crop[0]} x {settings.crop[1]} at once; {parts}take more "
            f"or larger GPUs, or a smaller network ({text.splitlines()[0] if text else type(error).__name__})."
        ) from None


class _Stop:
    asked = False


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    """Note SIGTERM and SIGUSR1 (a preemption, a walltime about to end) instead of dying of them."""
    stop = _Stop()

    def note(number: int, frame: FrameType | None) -> None:
        stop.asked = True

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGUSR1)}
    except ValueError:  # not in the main thread: signals are somebody else's business
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Checkpoint:
    """A training's state on disk, and the one before it: a kill while writing, or a damaged file, loses one of them.

    Only a state with the same fingerprint is restored: it names everything the training depends on.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: str) -> None:
        self.path = Path(path)
        self.previous = self.path.with_name(self.path.stem + ".previous" + self.path.suffix)
        self.new = self.path.with_suffix(".new")
        self.fingerprint = fingerprint

    def save(self, network: nn.Module, optimiser: torch.optim.Optimizer, scaler: Any, iteration: int) -> None:
        """Write the state after `iteration` steps, keeping the one before."""
        state = {
            "fingerprint": self.fingerprint,
            "iteration": iteration,
            "network": network.state_dict(),
            "optimiser": optimiser.state_dict(),
            "scaler": scaler.state_dict(),
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

    def restore(self, network: nn.Module, optimiser: torch.optim.Optimizer, scaler: Any, device: torch.device) -> int:
        """Put the newest good state in place and return its iteration; 0 if there is none."""
        for path in (self.path, self.previous):
            state = _load(path, device)
            if state is None:
                continue
            if state["fingerprint"] != self.fingerprint:
                print(f"{path}: made with other settings or data; not used.", file=sys.stderr)
                continue
            network.load_state_dict(state["network"])
            optimiser.load_state_dict(state["optimiser"])
            scaler.load_state_dict(state["scaler"])
            return int(state["iteration"])
        return 0


def _load(path: Path, device: torch.device) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        return {key: state[key] for key in ("fingerprint", "iteration", "network", "optimiser", "scaler")}
    except Exception as error:  # a torn or foreign file fails in many ways; the one before it may be good
        print(f"{path}: not readable as a checkpoint ({type(error).__name__}); trying the one before.", file=sys.stderr)
        return None
