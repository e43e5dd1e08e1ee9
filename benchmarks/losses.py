"""`make bench-losses`: forward + backward of every loss as a multiple of cross entropy's, and peak extra memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.report import interleave, table, write_section
from benchmarks.scenes import blobs

SHAPES = ((8, 21, 128, 128), (4, 19, 256, 256))
REQUIRED = {"mIoU": 4.0, "FWIoU": 4.0, "BIoU": 4.0, "BF1": 13.0, "mAcc": 1.8, "gAcc": 1.8}
TARGET = {"mIoU": 2.5, "FWIoU": 2.5, "BIoU": 2.5, "BF1": 8.0, "mAcc": 1.2, "gAcc": 1.2}


def batch(shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits that lean towards blob-like labels, and those labels, with some void."""
    n, classes, height, width = shape
    target = torch.from_numpy(np.stack([blobs(classes, height, width, seed) for seed in range(n)])).long()
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=generator) + 2 * F.one_hot(target, classes).permute(0, 3, 1, 2)
    target[:, : height // 16] = 255
    return logits.contiguous(), target


def candidates() -> dict:
    """Return every loss by name, made with its own library."""
    from autoseg.surrogates import SurrogateLoss

    losses = {name: SurrogateLoss.published(name) for name in ("mAcc", "gAcc", "mIoU", "FWIoU", "BIoU", "BF1")}
    losses["mIoU, linear"] = SurrogateLoss("mIoU", theta=[0.3, -0.5, 1.0, 0.2, 0.1] * 2, family="linear")
    losses["BF1, paper's layout"] = SurrogateLoss("BF1", layout="paper", theta=[0.3, 0.4, 0.4, 0.3, 0.5, 0.6] * 4)
    return {"CE": lambda x, y: F.cross_entropy(x, y, ignore_index=255)} | losses | _peers()


def _peers() -> dict:
    import autoseg._torchvision  # noqa: F401, I001  # first: lets smp import torchvision beside a CPU-only torch
    from monai.losses import DiceLoss as MonaiDice
    from segmentation_models_pytorch.losses import DiceLoss, LovaszLoss

    monai = MonaiDice(to_onehot_y=True, softmax=True)
    return {
        "smp Dice": DiceLoss("multiclass", ignore_index=255),
        "smp Lovász": LovaszLoss("multiclass", ignore_index=255),
        # MONAI's Dice knows no void: it gets class 0 there, which costs the same.
        "MONAI Dice": lambda x, y: monai(x, torch.where(y == 255, 0, y).unsqueeze(1)),
    }


def step(loss, logits: torch.Tensor, target: torch.Tensor) -> None:
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
    loss = candidates()[name]
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
        rows.append([name, *relative, f"{peak(name):.1f}", REQUIRED.get(name, ""), TARGET.get(name, "")])
    ms = ", ".join(f"{times[shape]['CE'] * 1e3:.1f} ms" for shape in SHAPES)
    write_section(
        "losses",
        "## Losses\n\n`make bench-losses`: forward + backward on one CPU thread, as multiples of "
        f"`torch.nn.functional.cross_entropy` in the same run (CE itself: {ms}); peak extra memory of one step in "
        "multiples of the logits' size (at 8 x 21 x 256 x 256, in a process of its own). Blob-like labels, 6 % void."
        "\n\n"
        + table(
            ["loss", *(" x ".join(map(str, s)) for s in SHAPES), "peak memory", "time, required", "time, target"], rows
        ),
    )


if __name__ == "__main__":
    main()
