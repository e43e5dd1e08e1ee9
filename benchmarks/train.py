"""`make bench-train`: a whole step of a proxy trial against the bare network, and what surrounds the steps."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import nn

from autoseg.data import voc
from autoseg.data.augment import CenterView
from autoseg.data.loaders import eval_loader
from autoseg.data.model import cache_short_side
from autoseg.data.prepare import prepare
from autoseg.data.split import make_split
from autoseg.losses.surrogate_loss import SurrogateLoss
from autoseg.metrics.formula import METRICS
from autoseg.training.evaluation import score
from autoseg.training.loop import train
from autoseg.training.settings import Task, Training
from autoseg.training.trial import ProxyTask
from benchmarks.data import make_tree
from benchmarks.shared import interleave, table, write_section

NETWORK, BATCH, SIZE, STEPS, WARM_UP = "deeplabv3plus-r50c", 4, 128, 18, 2
BARE = [name for name in METRICS if name not in ("BIoU", "BF1")]


def task(folder: Path, steps: int) -> Task:
    """Return the paper's proxy task on a tree like VOC's (21 classes), with a batch that fits a CPU."""
    if not (folder / "split.json").exists():
        data = prepare(voc.find(make_tree(folder / "tree"), sbd="none"), folder, cache_short_side(SIZE))
        make_split(data.index, 16).save(folder / "split.json")
    settings = Training.of_protocol("paper-proxy", iterations=steps, batch_size=BATCH, device="cpu", loaders=0)
    return Task(data=str(folder), network=NETWORK, training=settings)


class BareStep:
    """Forward, torch's cross entropy on both heads, backward, SGD: on tensors in memory."""

    def __init__(self, proxy: ProxyTask, network: nn.Module) -> None:
        self.network = network.train()
        self.batch = next(iter(proxy.batches(proxy.cache.read, proxy.split.train, 0)))
        self.optimiser = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)

    def __call__(self) -> None:
        """Make one step."""
        images, masks = self.batch
        self.optimiser.zero_grad(set_to_none=True)
        logits, aux = self.network(images)
        loss = F.cross_entropy(logits, masks, ignore_index=255) + 0.4 * F.cross_entropy(aux, masks, ignore_index=255)
        loss.backward()
        self.optimiser.step()


def steps(proxy: ProxyTask) -> tuple[list[float], list[float]]:
    """Return the seconds of whole steps, as `autoseg.training.loop.train` makes them, and of bare ones in between."""
    bare = BareStep(proxy, proxy.network())
    whole_times, bare_times = [], []
    moment = 0.0

    def between(line: object) -> None:
        nonlocal moment
        whole_times.append(time.process_time() - moment)
        start = time.process_time()
        bare()
        moment = time.process_time()
        bare_times.append(moment - start)

    moment = time.process_time()
    train(
        proxy.trained,
        SurrogateLoss.published("mIoU", ignore_index=proxy.data.ignore_index),
        lambda start: proxy.batches(proxy.cache.read, proxy.split.train, start),
        proxy.settings,
        device=proxy.device,
        logs=[between],
    )
    return whole_times[WARM_UP:], bare_times[WARM_UP:]


def peak(kind: str, folder: Path) -> float:
    """Return the peak resident memory, in MB, of a process that makes two steps."""
    code = f"from benchmarks.train import measure_peak; print(measure_peak({kind!r}, {str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure_peak(kind: str, folder: str) -> float:
    """Make two steps and return this process's greatest resident memory so far, in MB."""
    proxy = ProxyTask(task(Path(folder), 2))
    if kind == "whole":
        proxy.train(SurrogateLoss.published("mIoU", ignore_index=proxy.data.ignore_index))
    else:
        bare = BareStep(proxy, proxy.trained)
        bare()
        bare()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def main() -> None:
    torch.set_num_threads(1)
    with TemporaryDirectory() as place:
        folder = Path(place)
        described = task(folder, STEPS)
        began = time.process_time()
        proxy = ProxyTask(described)
        start = time.process_time() - began
        whole, bare = steps(proxy)

        def scored(names: list[str]) -> None:
            loader = eval_loader(proxy.cache.read, proxy.split.hold_out, CenterView(SIZE), batch_size=BATCH)
            score(proxy.trained, loader, proxy.metrics(names), proxy.device, proxy.settings)

        seconds = interleave({"all": lambda: scored(list(METRICS)), "bare": lambda: scored(BARE)}, 5, time.process_time)
        memory = {kind: peak(kind, folder) for kind in ("whole", "bare")}
    step, floor = statistics.median(whole), statistics.median(bare)
    ratios = sorted(a / b for a, b in zip(whole, bare, strict=True))
    quarter = len(ratios) // 4
    images = len(proxy.split.hold_out)
    trial = 1000 * step * 32 / BATCH
    scoring = 1500 * seconds["all"] / images
    rows = [
        ["a whole step of a trial", f"{step:.2f}", f"{step / floor:.3f}x", f"{memory['whole']:.0f}"],
        ["the bare step", f"{floor:.2f}", "1", f"{memory['bare']:.0f}"],
    ]
    write_section(
        "train",
        "## Training\n\n"
        f"`make bench-train`: {NETWORK}, 21 classes, crop {SIZE}, batch {BATCH} (small, for a CPU), one thread, "
        "the loader in the same process; seconds of CPU time, which other work on the machine hardly changes. "
        "A whole step is what `autoseg trials` does: batch from the cache with all augmentation, "
        "network with auxiliary head, published mIoU surrogate on both heads, optimiser. The bare step is forward, "
        "torch's cross entropy on both heads, backward and SGD on tensors in memory, made in turn with it. Medians of "
        f"{len(whole)} steps: **{step / floor:.3f}x** (required < 1.15x, target 1.08x; middle half of the single "
        f"ratios {ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f}).\n\n"
        f"{table(['', 's', 'relative', 'peak memory of the process, MB'], rows)}\n\n"
        f"Scoring takes {images / seconds['all']:.2f} images/s with all six metrics, {images / seconds['bare']:.2f} "
        f"without BIoU and BF1. Of a trial as the paper has it (1000 steps of 32 images, 1500 images scored) at this "
        f"speed, scoring would be {100 * scoring / (trial + scoring):.1f} % and opening data and network "
        f"({start:.1f} s, once a job) {100 * start / (trial + scoring):.3f} %.",
    )


if __name__ == "__main__":
    main()
