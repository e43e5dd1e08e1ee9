"""`make bench-losses`: forward + backward of every loss as a multiple of cross entropy's, and peak extra memory; and
what a GPU would do for it, counted.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.counting import cost
from benchmarks.scenes import blobs
from benchmarks.shared import interleave, table, write_section

SHAPES = ((8, 21, 128, 128), (4, 19, 256, 256))
AIM = {
    "mIoU": "4 (2.5)",
    "FWIoU": "4 (2.5)",
    "BIoU": "4 (2.5)",
    "BF1": "13 (8)",
    "mAcc": "1.8 (1.2)",
    "gAcc": "1.8 (1.2)",
}
COUNTED = ("launches", "waits", "moved", "peak")
MEMORY_AIM = {name: "8 (6)" if name == "BF1" else "4.5 (3.5)" for name in AIM}


def batch(shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits that lean towards blob-like labels, and those labels, with some void."""
    n, classes, height, width = shape
    target = torch.from_numpy(np.stack([blobs(classes, height, width, seed) for seed in range(n)])).long()
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=generator) + 2 * F.one_hot(target, classes).permute(0, 3, 1, 2)
    target[:, : height // 16] = 255
    return logits.contiguous(), target


def candidates(peers: bool = True) -> dict:
    """Return every loss by name, made with its own library."""
    from autoseg import Formula, build_loss, register
    from autoseg.losses.surrogate_loss import SurrogateLoss
    from autoseg.metrics.formula import ratio

    register(
        Formula(
            "mF2",
            sums=lambda y_hat, y, ops: {"both": ops.AND("AND", y_hat, y), "pred": y_hat, "target": y},
            per_class=lambda s: ratio(5 * s["both"], 4 * s["target"] + s["pred"]),
        ),
        replace=True,
    )
    losses: dict[str, nn.Module] = {
        name: SurrogateLoss.published(name) for name in ("mAcc", "gAcc", "mIoU", "FWIoU", "BIoU", "BF1")
    }
    losses["mIoU, linear"] = SurrogateLoss("mIoU", theta=[0.3, -0.5, 1.0, 0.2, 0.1] * 2, family="linear")
    losses["mF2, a user's"] = SurrogateLoss("mF2", theta=[0.3, 0.4, 0.4, 0.3, 0.5, 0.6])
    losses["BF1, paper's layout"] = SurrogateLoss("BF1", layout="paper", theta=[0.3, 0.4, 0.4, 0.3, 0.5, 0.6] * 4)
    further = ("dpce", "dice", "ssim", "lovasz", "jml", "dml", "focal", "tversky", "boundary")
    losses |= {name: build_loss(name) for name in (*further, "naive:NSD", "naive:BoundaryIoU", "naive:clDice")}
    return {"CE": lambda x, y: F.cross_entropy(x, y, ignore_index=255)} | losses | (_peers() if peers else {})


def multilabel(rounds: int = 9) -> None:
    """Write the section of multilabel losses: multiples of binary cross entropy, CPU time."""
    from autoseg import build_loss

    names = ["published:mIoU", "published:FWIoU", "published:mAcc", "published:gAcc", "dice", "jml", "tversky", "ce"]
    losses = {name: build_loss(name, mode="multilabel", ignore_index=255) for name in names}
    rows: dict[str, list[str]] = {name: [name] for name in losses}
    ms = []
    for shape in SHAPES:
        logits, labels = batch(shape)
        maps = F.one_hot(labels.masked_fill(labels == 255, 0), shape[1]).movedim(-1, 1).float().contiguous()
        logits.requires_grad_()
        bce = F.binary_cross_entropy_with_logits
        for target in (maps, maps.byte(), maps.byte().masked_fill((labels == 255).unsqueeze(1), 255)):
            runs = {"BCE": partial(step, bce, logits, maps)}
            runs |= {name: partial(step, loss, logits, target) for name, loss in losses.items()}
            times = interleave(runs, rounds, time.process_time)
            ms.append(times["BCE"] * 1e3)
            for name in losses:
                rows[name].append(f"{times[name] / times['BCE']:.2f}")
    header = [f"{' x '.join(map(str, s))}, {what}" for s in SHAPES for what in ("floats", "bytes", "bytes with void")]
    write_section(
        "multilabel",
        '## Multilabel losses\n\n`make bench-losses`: forward + backward of `mode="multilabel"` on one CPU thread, as '
        "multiples of `torch.nn.functional.binary_cross_entropy_with_logits` on float targets in the same run (itself: "
        f"{min(ms):.1f} to {max(ms):.1f} ms), medians of CPU time; the aim is 3 for metrics of regions.\n\n"
        + table(["loss", *header], list(rows.values())),
    )


def _peers() -> dict:
    """Return the losses of other libraries that are installed."""
    import autoseg.training._torchvision  # noqa: F401  # first: lets smp import torchvision beside a CPU-only torch

    peers: dict[str, Any] = {}
    with contextlib.suppress(ImportError):
        from segmentation_models_pytorch.losses import DiceLoss, LovaszLoss

        peers |= {"smp Dice": DiceLoss("multiclass", ignore_index=255)}
        peers |= {"smp Lovász": LovaszLoss("multiclass", ignore_index=255)}
    with contextlib.suppress(ImportError):
        from monai.losses import DiceLoss as MonaiDice

        monai = MonaiDice(to_onehot_y=True, softmax=True)
        # MONAI's Dice knows no void: it gets class 0 there, which costs the same.
        peers["MONAI Dice"] = lambda x, y: monai(x, torch.where(y == 255, 0, y).unsqueeze(1))
    return peers


def step(loss: Any, logits: torch.Tensor, target: torch.Tensor) -> None:
    """Run one forward and backward pass."""
    logits.grad = None
    loss(logits, target).backward()


def peak(name: str) -> float:
    """Return the peak extra memory of one step, in multiples of the logits, measured in a process of its own."""
    code = f"from benchmarks.losses import measure_peak; print(measure_peak({name!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure_peak(name: str) -> float:
    """Return how far the resident memory rises in one step above what it is before, over the size of the logits."""
    torch.set_num_threads(1)
    loss = candidates(peers="smp" in name or "MONAI" in name)[name]
    small, small_target = batch((1, 21, 32, 32))
    step(loss, small.requires_grad_(), small_target)  # code and buffers that stay
    logits, target = batch((8, 21, 256, 256))
    logits.requires_grad_()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts from here
    before = _memory("VmRSS")
    step(loss, logits, target)
    return (_memory("VmHWM") - before) / (logits.numel() * 4 / 1024)


def _memory(key: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key))


def main() -> None:
    torch.set_num_threads(1)
    losses = candidates()
    times = {}
    for shape in SHAPES:
        logits, target = batch(shape)
        logits.requires_grad_()
        runs = {name: (lambda loss=loss: step(loss, logits, target)) for name, loss in losses.items()}  # noqa: B023
        times[shape] = interleave(runs, rounds=9)
    rows = []
    for name in losses:
        relative = [f"{times[shape][name] / times[shape]['CE']:.2f}" for shape in SHAPES]
        rows.append([name, *relative, AIM.get(name, ""), f"{peak(name):.1f}", MEMORY_AIM.get(name, "")])
    logits, target = batch(SHAPES[0])
    counts = []
    for name, loss in losses.items():
        found, without = (cost(loss, logits, target, triton) for triton in (True, False))
        numbers = [found.launches, found.waits, f"{found.moved:.1f}", f"{found.peak:.1f}"]
        counts.append([name, *numbers, without.launches, without.waits, f"{without.moved:.0f}", f"{without.peak:.1f}"])
    ms = ", ".join(f"{times[shape]['CE'] * 1e3:.1f} ms" for shape in SHAPES)
    write_section(
        "losses",
        "## Losses\n\n`make bench-losses`: forward + backward on one CPU thread, as multiples of "
        f"`torch.nn.functional.cross_entropy` in the same run (CE itself: {ms}); peak extra memory of one step in "
        "multiples of the logits' size (at 8 x 21 x 256 x 256, in a process of its own). Blob-like labels, 6 % void."
        "\n\n"
        + table(
            [
                "loss",
                *(" x ".join(map(str, s)) for s in SHAPES),
                "aim, at most (better)",
                "peak memory",
                "aim, at most (better)",
            ],
            rows,
        )
        + "\n\nWhat a GPU would do for it, counted, not measured (`benchmarks/counting.py`: the code of a GPU on CPU "
        f"tensors, {' x '.join(map(str, SHAPES[0]))}): launches, waits of the host, bytes read and written and peak "
        "extra memory in multiples of the logits' size; with Triton's kernels, and in torch alone.\n\n"
        + table(["loss", *COUNTED, *(f"{what}, torch alone" for what in COUNTED)], counts),
    )
    multilabel()


if __name__ == "__main__":
    main()
