"""Losses whose operations are Triton's kernels, run by its interpreter, against their formulas in float64.

A program of its own, because Triton learns at import that it is to interpret: TRITON_INTERPRET=1 python
run_interpreted.py. It prints, as JSON, the difference in value and that in the gradient's norm, relative, by case.
"""

from __future__ import annotations

import importlib
import json

import numpy as np
import torch

from autoseg.losses.build import build_loss
from autoseg.losses.kernels import device_boundary, device_labels, device_region, similarity, tables
from autoseg.losses.labels import Labels
from autoseg.losses.surrogate import Surrogate
from autoseg.losses.surrogate_loss import SurrogateLoss
from benchmarks.counting import as_on_a_gpu

OPERATIONS = {  # by the module of its Triton kernel
    "triton_region": (device_region, ("region_sums", "region_gradient")),
    "triton_boundary": (device_boundary, ("soft_edges", "best_match", "edge_gradient", "route")),
    "triton_distance": (device_labels, ("lower_envelope",)),
    "triton_curve": (tables, ("curve_values", "curve_slopes")),
    "triton_blur": (similarity, ("gaussian_blur",)),
}


def batch(shape, void=0.1, seed=0, scale=2.0, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    n, classes, *deep, h, w = shape
    target = rng.integers(0, classes, (n, *deep, -(-h // 3), -(-w // 3))).repeat(3, -2).repeat(3, -1)[..., :h, :w]
    target = np.where(rng.random(target.shape) < void, 255, target)
    return torch.tensor(scale * rng.standard_normal(shape)).to(dtype), torch.tensor(target)


def surrogate(metric, family="bezier", layout=None, truth_table=True, **changes):
    rng = np.random.default_rng(0)
    curves = {"family": family, "layout": layout, "truth_table": truth_table}
    count = len(Surrogate.make(metric, **curves).theta)
    theta = rng.uniform(0.1, 0.9, count) if family == "bezier" else rng.standard_normal(count)
    return SurrogateLoss(metric, theta.tolist(), **curves, **changes)


def value_and_gradient(loss, logits, target):
    x = logits.detach().clone().requires_grad_()
    value = loss(x, target)
    value.backward()
    return value.detach().double(), x.grad.double()


def by_formula(loss, logits, target):
    """The loss in float64, as its formula is written; a hand-made one by its code for a CPU."""
    if not isinstance(loss, SurrogateLoss):
        return value_and_gradient(loss, logits.double(), target)
    return value_and_gradient(lambda x, y: loss._formula_loss(x, Labels(y)), logits.double(), target)


def differences(found, expected) -> tuple[float, float]:
    gradient = (found[1] - expected[1]).norm() / expected[1].norm().clamp(min=1e-30)
    return (found[0] - expected[0]).abs().item(), gradient.item()


def cases():
    """Yield a name, a loss, logits and target."""
    paper = {"layout": "paper", "mask_void": True}
    for name, loss, shape in (
        ("mIoU", surrogate("mIoU", "linear"), (2, 5, 17, 23)),
        ("FWIoU", SurrogateLoss.published("FWIoU"), (1, 4, 33, 35)),
        ("BIoU", SurrogateLoss.published("BIoU"), (2, 5, 17, 23)),  # has steep knots
        ("gAcc", SurrogateLoss.published("gAcc"), (2, 5, 17, 23)),
        ("mAcc, 2 classes", SurrogateLoss.published("mAcc"), (1, 2, 13, 11)),
        ("mIoU, 21 classes", surrogate("mIoU"), (1, 21, 13, 11)),
        ("mIoU, 150 classes", surrogate("mIoU"), (1, 150, 5, 7)),
        ("BF1", SurrogateLoss.published("BF1"), (2, 3, 17, 23)),
        ("BF1, paper's layout, 2 classes", surrogate("BF1", **paper), (1, 2, 13, 11)),
        ("BF1, linear, tolerance of the image", surrogate("BF1", "linear", "paper", tolerance=20), (1, 4, 9, 7)),
        ("BF1, 33 classes", SurrogateLoss.published("BF1"), (1, 33, 5, 7)),
        ("BF1, 150 classes", SurrogateLoss.published("BF1", tolerance=1), (1, 150, 4, 4)),
        ("BF1 without the truth table", surrogate("BF1", truth_table=False), (1, 3, 9, 7)),  # by the formula
        *((name, build_loss(name), (2, 3, 17, 23)) for name in ("dpce", "ssim", "dice-squared")),
        *((f"{name}, volumes", build_loss(name), (1, 3, 3, 7, 5)) for name in ("dpce", "ssim")),
    ):
        yield name, loss, *batch(shape, dtype=torch.float32)
    yield "mIoU, half void", surrogate("mIoU"), *batch((1, 3, 9, 7), void=0.5, dtype=torch.float32)
    for name, theta, scale in (
        ("a jump at 0", [0, 0.7, 0.5, 0.5, 1, 0.5], 2.0),
        ("a jump at 1", [1, 0.5, 0, 0.3, 1, 1], 2.0),
        ("a steep knot and a sure network", [0.3, 0.3, 0.99, 0.3, 0.01, 0.7], 8.0),
    ):
        loss = SurrogateLoss("mIoU", [*theta, *theta])
        yield f"mIoU, {name}", loss, *batch((1, 3, 9, 9), scale=scale, dtype=torch.float32)
    for name, loss in (("mIoU", surrogate("mIoU")), ("BF1", surrogate("BF1"))):
        logits, target = batch((2, 3, 7, 9), dtype=torch.float32)
        yield f"{name}, channels last", loss, logits.contiguous(memory_format=torch.channels_last), target
        yield f"{name}, uint8 labels", loss, logits, target.to(torch.uint8)
        for kind in (torch.float64, torch.float16, torch.bfloat16):
            yield f"{name}, {str(kind).removeprefix('torch.')}", loss, logits.to(kind), target


def main() -> None:
    for module, (home, names) in OPERATIONS.items():
        for name in names:
            setattr(home, name, getattr(importlib.import_module(f"autoseg.losses.kernels.{module}"), name))
    found = {}
    for name, loss, logits, target in cases():
        with as_on_a_gpu():
            by_triton = value_and_gradient(loss, logits, target)
        found[name] = differences(by_triton, by_formula(loss, logits, target))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
