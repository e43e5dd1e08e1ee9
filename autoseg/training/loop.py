"""Training a network: the loop over its steps, on one device or several, resumed exactly after any stop.

Everything random derives from (seed, iteration): the batches (`autoseg.data.loaders`), and the dropout, which is seeded
anew before each step. So a training resumed from a checkpoint goes through the same steps as one that never stopped,
and trainings that differ in the loss alone see the same batches and the same dropout.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autoseg import gpus
from autoseg.data.loaders import sample_seed
from autoseg.data.model import VOID
from autoseg.errors import InputError, Preempted
from autoseg.losses.batch import Loss
from autoseg.losses.labels import Labels, LabelWatch
from autoseg.progress import bar
from autoseg.training.arithmetic import autocast, cudnn_settings
from autoseg.training.average import Average
from autoseg.training.checkpoint import Checkpoint
from autoseg.training.foreign import Foreign
from autoseg.training.logs import Line
from autoseg.training.networks import Network
from autoseg.training.optimiser import freeze_parameters, freeze_statistics, learning_rate, make_optimiser
from autoseg.training.settings import Training
from autoseg.training.watch import LOOK_EVERY, Watch, reduced, works_behind

logger = logging.getLogger(__name__)

BatchesFrom = Callable[[int], Iterable[tuple[Tensor, Tensor]]]  # the number of a (micro-)batch -> batches from it on


@dataclass
class Outcome:
    """How a training ended."""

    iterations: int
    diverged: bool = False
    ended: bool = False  # early, because a look said so
    losses: list[float] = field(default_factory=list)


def choose_device(name: str) -> torch.device:
    """Return the device that the settings ask for; a GPU that is asked for and missing is an error."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "is 'cuda', but no GPU is available here", where="device", cure="ask for one, or set it to 'cpu'"
        )
    if name == "cpu" or not torch.cuda.is_available():
        if name == "auto" and (held := os.environ.get(gpus.HELD)):
            logger.warning(f"torch sees no GPU, though this process may use {held}: it trains on the CPU.")
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def distributed(device: torch.device) -> Iterator[tuple[int, int]]:
    """Join the other processes that torchrun started, if it did; yield (rank, number of processes)."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield 0, 1
        return
    if dist.is_initialized():  # the caller has joined already, and a group cannot be joined twice
        yield dist.get_rank(), dist.get_world_size()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def train(
    network: Network | Foreign,
    loss: nn.Module,
    loader: BatchesFrom,
    settings: Training,
    *,
    device: torch.device,
    rank: int = 0,
    world: int = 1,
    checkpoint: Checkpoint | None = None,
    logs: Sequence[Callable[[Line], None]] = (),
    progress: str | None = None,
    looks: Mapping[int, Callable[[], bool]] | None = None,
    steps: tuple[int, int] | None = None,
) -> Outcome:
    """Train a network in place.

    Args:
        network: on `device` already.
        loss: of (logits, masks); the auxiliary head has the same.
        loader: gives the batches from a number on; with `accumulate`, a batch is that many of them.
        settings: see `autoseg.training.settings.Training`.
        device, rank, world: see `choose_device` and `distributed`.
        checkpoint: where the state is saved, and from which the training continues.
        logs: called 200 times in a training with iteration, loss, lr and images_per_s; see `autoseg.training.logs`.
        progress: the name of a bar; None: no bar.
        looks: called after so many steps, with the network as it is; true ends the training there.
        steps: train from one step to another alone, with the batches and the learning rates that the whole has there.

    A loss that is not finite ends the training: the outcome is `diverged`, and the weights are those before that step.
    On a GPU this is noticed up to `LOOK_EVERY` steps later; batch statistics then include the batches of those steps.
    Out of memory is an error instead. On SIGTERM or SIGUSR1 the training saves its state and raises `Preempted`.
    """
    torch.set_num_threads(settings.threads)
    freeze_parameters(network, settings)
    # The fused kernel skips a step without asking the host.
    optimiser, bases = make_optimiser(network, settings, fused=works_behind(device))
    average = Average(network, settings.ema) if settings.ema is not None else None
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda" and settings.precision == "float16")
    start, end = steps or (0, settings.iterations)
    if checkpoint is not None:
        start = checkpoint.restore(network, optimiser, scaler, device, average)
        found = torch.tensor(start, dtype=torch.float64, device=device)
        if (
            reduced(found, world) != start * world
        ):  # nodes with different folders, or a node that sees the newest file late
            raise InputError(
                f"the processes found different checkpoints (this one that of step {start})",
                where=checkpoint.path,
                cure="use a folder that all of them see",
            )
    model: nn.Module = network
    if device.type == "cuda" and settings.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if world > 1:
        if device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            find_unused_parameters=isinstance(network, Foreign),  # others' may have parts that they do not use
        )
    if works_behind(device) and settings.optimiser == "sgd":
        for group in optimiser.param_groups:  # torch would leave them uninitialised if the first step is skipped
            for parameter in group["params"]:
                optimiser.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
    if settings.compile:
        model = torch.compile(model)  # type: ignore[assignment]
    loss = loss.to(device)
    model.train()
    freeze_statistics(network, settings)
    outcome = Outcome(start)
    batches = iter(loader(start * settings.accumulate))
    shown = bar(progress, "step", total=end, initial=start)
    began, images_done = time.perf_counter(), 0
    watch, labels_seen = Watch(device, world), LabelWatch(VOID)
    look_every = LOOK_EVERY if works_behind(device) else 1
    cudnn_set = cudnn_settings(settings, device, fixed_shape=True)
    with shown, cudnn_set, _stop_signals() as stop, _plain_errors(settings, world):
        for iteration in range(start, end):
            for group, base in zip(optimiser.param_groups, bases, strict=True):
                group["lr"] = learning_rate(settings, iteration, base)
            torch.manual_seed(sample_seed(settings.seed, iteration, rank) >> 1)  # dropout
            optimiser.zero_grad(set_to_none=True)
            for part in range(settings.accumulate):
                images, masks = next(batches)
                images, masks = images.to(device, non_blocking=True), masks.to(device, non_blocking=True)
                if device.type == "cuda" and settings.channels_last:
                    images = images.contiguous(memory_format=torch.channels_last)
                last = part == settings.accumulate - 1
                # Gradients are averaged over processes once, with the last part.
                quiet = nullcontext() if last or world == 1 else model.no_sync()  # type: ignore[operator]
                with quiet:
                    with autocast(settings, device):
                        logits, *auxiliary = model(images)
                    # What losses derive from labels is made once for both heads.
                    target = Labels(masks) if isinstance(loss, Loss) else masks
                    total = loss(logits.float(), target)  # in float32, whatever the network's arithmetic
                    for other in auxiliary:
                        total = total + settings.aux_weight * loss(other.float(), target)
                    scaler.scale(watch.passed(total / settings.accumulate)).backward()
                if works_behind(device):
                    labels_seen.see(masks, logits.shape[1])
                images_done += len(images)
            skip = watch.end_step(stop.asked)
            done, stopping = iteration + 1, False
            due = done % look_every == 0 or done % settings.checkpoint_every == 0 or done == end
            # Several processes look at the same steps, so that all stop after the same one.
            if due or (stop.asked and world == 1):
                speed = images_done * world / (time.perf_counter() - began)
                seen = watch.look()
                stopping = seen[-1][1]
                for value, _ in seen:
                    if not math.isfinite(value):
                        labels_seen.check()  # on a GPU a label that is no class's makes the loss NaN
                        outcome.diverged = True
                        if average is not None:
                            average.put_into(network)
                        return outcome
                    outcome.losses.append(value)
                    number = outcome.iterations = outcome.iterations + 1
                    if number % max(settings.iterations // 200, 1) == 0:
                        lr = learning_rate(settings, number - 1, bases[0])
                        shown.set_postfix(loss=f"{value:.4f}", lr=f"{lr:.2g}", img_s=f"{speed:.1f}", refresh=False)
                        for log in logs:
                            log({"iteration": number, "loss": value, "lr": lr, "images_per_s": round(speed, 2)})
            if settings.clip_gradient is not None:
                scaler.unscale_(optimiser)
                nn.utils.clip_grad_norm_(network.parameters(), settings.clip_gradient)
            if works_behind(device) and not scaler.is_enabled():  # the scaler finds a gradient of NaN by itself
                optimiser.found_inf = skip  # type: ignore[attr-defined]
            scaler.step(optimiser)
            scaler.update()
            if average is not None:
                average.update(network, done)
            shown.update()
            if done == end:
                break
            if looks and done in looks:
                if looks[done]():
                    outcome.ended = True
                    return outcome
                model.train()
                freeze_statistics(network, settings)
            if checkpoint is not None and rank == 0 and (stopping or done % settings.checkpoint_every == 0):
                checkpoint.save(network, optimiser, scaler, done, average)
            if stopping:
                raise Preempted(f"stopped after step {done} of {settings.iterations}")
    if average is not None:
        average.put_into(network)
    return outcome


@contextmanager
def _plain_errors(settings: Training, world: int) -> Iterator[None]:
    """Turn two errors of torch, out of memory and a batch too small for batch statistics, into an InputError."""
    images = settings.batch_size // settings.accumulate // world
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        text = str(error)
        if "Expected more than 1 value per channel" in text:
            raise InputError(
                f"{images} image at once is too few for the batch statistics of this network",
                where="batch_size",
                cure="raise it, or lower accumulate or the number of processes",
            ) from None
        # A GPU raises an error of its own class; for a CPU only the text says that there is no memory.
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in text:
            raise
        parts = "" if images % 2 else f"set accumulate to {2 * settings.accumulate} (the batch in more parts), "
        size, said = " x ".join(map(str, settings.crop)), text.splitlines()[0] if text else type(error).__name__
        raise InputError(
            f"out of memory with {images} images of {size} at once ({said})",
            where="training",
            cure=f"{parts}use more or larger GPUs, or a smaller network",
        ) from None


class _Stop:
    asked = False


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    """Remember SIGTERM and SIGUSR1 (a preemption, or the time limit is near) instead of ending at once."""
    stop = _Stop()

    def note(number: int, frame: FrameType | None) -> None:
        stop.asked = True

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGUSR1)}
    except ValueError:  # only the main thread can handle signals
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
