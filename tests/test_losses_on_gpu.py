"""Losses as they run on a GPU: what they cost there, by counting, and that they equal their formulas.

There is no GPU here. The same code runs on CPU tensors; Triton's kernels run in its interpreter, and are compiled for a
GPU that is not there.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from run_interpreted import OPERATIONS, batch, by_formula, cases, differences, surrogate, value_and_gradient

from autoseg.errors import InputError
from autoseg.losses.build import MeanOfGroupsLoss, build_loss
from autoseg.losses.labels import Labels, LabelWatch
from autoseg.losses.names import HAND_MADE
from autoseg.metrics.formula import METRICS, Formula, ratio, register
from benchmarks.counting import as_on_a_gpu, cost

REGION = ["mIoU", "FWIoU", "BIoU", "mAcc", "gAcc", "mF2", "mDice"]


@pytest.fixture(autouse=True)
def _users_metrics():
    """Two metrics that a user might register, and one that is not linear in the prediction."""

    def f2(s):
        return ratio(5 * s["both"], 4 * s["target"] + s["pred"])

    def dice(s):
        return ratio(2 * s["both"], s["size"])

    register(Formula("mF2", lambda p, y, ops: {"both": ops.AND("AND", p, y), "pred": p, "target": y}, f2))
    register(Formula("mDice", lambda p, y, ops: {"both": ops.AND("AND", p, y), "size": p + y}, dice))
    register(Formula("squared", lambda p, y, ops: {"both": ops.AND("AND", p, y), "size": p * p + y}, dice))


def assert_equal(found, expected, value=1e-6, gradient=1e-5):
    by_value, by_gradient = differences(found, expected)
    assert by_value <= value
    assert by_gradient <= gradient


# ---- Counts --------------------------------------------------------------------------------------------------------

BATCH = batch((2, 21, 64, 64))


@pytest.mark.parametrize("family", ["bezier", "linear"])
@pytest.mark.parametrize("metric", REGION)
def test_a_region_loss_is_few_launches_and_little_memory(metric, family):
    found = cost(surrogate(metric, family), *BATCH)
    assert (found.waits, found.launches <= 75, found.moved <= 8, found.peak <= 1.5) == (0, True, True, True), found


@pytest.mark.parametrize("family", ["bezier", "linear"])
@pytest.mark.parametrize("layout", ["release", "paper"])
def test_bf1_is_one_pass_over_the_batch(layout, family):
    found = cost(surrogate("BF1", family, layout), *BATCH)
    assert (found.waits, found.launches <= 150, found.moved <= 25, found.peak <= 5) == (0, True, True, True), found


def test_a_formula_that_is_not_linear_takes_more():
    found = cost(surrogate("squared"), *BATCH)
    assert (found.waits, found.launches <= 90, found.moved <= 60, found.peak <= 6.5) == (0, True, True, True), found


@pytest.mark.parametrize("name", HAND_MADE)
def test_a_hand_made_loss_makes_nobody_wait(name):
    found = cost(build_loss(name, class_counts=range(1, 22)), *BATCH)
    most = {"ssim": (100, 9), "ssim-release": (100, 9), "lovasz": (70, 6)}.get(name, (70, 5))
    assert (found.waits, found.launches <= most[0], found.peak <= most[1]) == (0, True, True), found


@pytest.mark.parametrize("triton", [True, False])
def test_launches_do_not_grow_with_the_batch(triton):
    for loss in (surrogate("mIoU"), surrogate("BF1"), build_loss("lovasz"), build_loss("ssim")):
        assert cost(loss, *batch((2, 3, 32, 32)), triton)[:2] == cost(loss, *batch((4, 21, 32, 32)), triton)[:2]


@pytest.mark.parametrize("name", [*REGION, "BF1", "squared", *HAND_MADE])
def test_without_triton_nobody_waits_either(name):
    loss = build_loss(name, class_counts=range(1, 22)) if name in HAND_MADE else surrogate(name)
    assert cost(loss, *BATCH, triton=False).waits == 0


def test_the_count_sees_waits_launches_bytes_and_memory():
    x, y = torch.zeros(4, 4), torch.zeros(4, 4, dtype=torch.long)

    def waits(x, y):
        assert not bool(y.sum())  # one
        return x[y == 0].sum() + y.view(-1).bincount().sum()  # two, and one on the way back

    assert cost(waits, x, y).waits == 4
    plain = cost(lambda x, y: x.view(-1).sum(), x, y)  # the sum; a one, which is expanded; a copy of that
    assert (plain.launches, plain.waits, plain.peak) == (3, 0, (1 + 1 + 16) / 16)
    assert plain.moved >= (16 + 1 + 1 + 1 + 1 + 16) / 16
    assert cost(lambda x, y: (x * 2).exp().sum(), x, y).peak >= 2


# ---- Equal to the formulas -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bezier", "linear"])
@pytest.mark.parametrize("metric", [*METRICS, "BF1:paper", "mF2", "mDice", "squared"])
@pytest.mark.parametrize("mask_void", [False, True])
def test_in_torch_alone_they_equal_their_formulas(metric, family, mask_void):
    metric, _, layout = metric.partition(":")
    loss = surrogate(metric, family, layout or None, mask_void=mask_void, tolerance=3)
    for dtype, limits in ((torch.float64, (1e-12, 1e-12)), (torch.float32, (1e-6, 5e-5))):
        logits, target = batch((2, 5, 17, 23), dtype=dtype)
        with as_on_a_gpu(triton=False):
            found = value_and_gradient(loss, logits, target)
        assert_equal(found, by_formula(loss, logits, target), *limits)


@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_losses_are_the_same_on_a_gpu(name, triton):
    loss = build_loss(name, class_counts=range(1, 6))
    for logits, target in (batch((2, 5, 17, 23)), batch((2, 5, 9, 40), void=0.6), batch((1, 5, 4, 4), void=1.0)):
        with as_on_a_gpu(triton):
            found = value_and_gradient(loss, logits, target)
        # Distances to the nearest edge are float32 on a GPU.
        limits = (1e-6, 1e-6) if "dpce" in name or name == "boundary" else (1e-12, 1e-12)
        assert_equal(found, by_formula(loss, logits, target), *limits)


@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize("name", [*HAND_MADE, *(f"published:{metric}" for metric in METRICS)])
def test_a_batch_without_images_has_a_finite_loss(name, triton):
    logits = torch.zeros(0, 3, 4, 4, requires_grad=True)
    with as_on_a_gpu(triton):
        value = build_loss(name, class_counts=range(1, 4))(logits, torch.zeros(0, 4, 4, dtype=torch.long))
        value.backward()
    assert value.isfinite()


@pytest.fixture(scope="module")
def interpreted():
    """What the kernels give in Triton's interpreter, against the formulas."""
    pytest.importorskip("triton")
    program = Path(__file__).with_name("run_interpreted.py")
    path = os.pathsep.join([str(program.parents[1]), *sys.path])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [name for name, *_ in cases()])
def test_triton_kernels_equal_the_formulas(name, interpreted):
    limits = {"float16": (1e-6, 1e-3), "bfloat16": (1e-6, 1e-2), "float64": (1e-12, 1e-12)}  # gradients are rounded
    value, gradient = limits.get(name.split(", ")[-1], (1e-6, 1e-5))
    assert interpreted[name][0] <= value
    assert interpreted[name][1] <= gradient


class Compiled:
    """Compiles a kernel for a GPU of the Ampere generation instead of launching it."""

    def __init__(self, kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *arguments, num_warps=4, **constants) -> None:
        import triton
        from triton.backends.compiler import GPUTarget

        kinds = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16", "bool": "i1", "uint8": "u8"}
        signature = dict.fromkeys(constants, "constexpr")
        for name, value in zip(self.kernel.arg_names, arguments, strict=False):
            kind = (
                str(getattr(value, "dtype", "")).removeprefix("torch.").replace("int64", "i64").replace("int32", "i32")
            )
            signature[name] = f"*{kinds.get(kind, kind)}" if kind else "i64" if abs(value) >= 2**31 else "i32"
        source = triton.compiler.ASTSource(self.kernel, signature, constexprs=constants)
        options = {"num_warps": num_warps, "enable_fp_fusion": True}
        assert triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options).asm["cubin"]


def test_every_kernel_compiles_for_sm_80_without_a_device(monkeypatch, tmp_path):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    modules = {name: importlib.import_module(f"autoseg.losses.kernels.{name}") for name in OPERATIONS}
    for module in modules.values():
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            monkeypatch.setattr(module, name, Compiled(getattr(module, name)))
    logits, target = batch((1, 21, 40, 40), dtype=torch.bfloat16)
    tables, p, seen = surrogate("mIoU").tables, logits.float(), target != 255
    region, boundary = modules["triton_region"], modules["triton_boundary"]
    region.region_sums(logits, target, tables, 1, 255, False)
    region.region_gradient(logits, target, tables, torch.zeros(2, 3, 21), 1, 255, False)
    near, which = torch.zeros(1, 1, 40, 40, dtype=torch.int32), [0, 0, 1, 1, 0]
    boundary.soft_edges(p, near, seen, tables, which)
    boundary.best_match(p, target, seen, tables, 0, 5)
    boundary.edge_gradient(p, p, near, None, tables, which, torch.zeros(2, 21))
    boundary.route(p, p, p, p.to(torch.uint8), seen)
    modules["triton_curve"].curve_values(tables[0], p)
    modules["triton_curve"].curve_slopes(tables[0], p)
    modules["triton_distance"].lower_envelope(p[:, 0])
    modules["triton_blur"].gaussian_blur(p)


# ---- Labels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize("name", [*REGION, "BF1", "squared", *HAND_MADE])
@pytest.mark.parametrize("bad", [5, -1, 300])
def test_a_label_that_is_no_classs_makes_the_loss_nan_on_a_gpu(name, triton, bad):
    loss = build_loss(name, class_counts=range(1, 6)) if name in HAND_MADE else surrogate(name)
    logits, target = batch((1, 5, 12, 12), void=0)
    logits.requires_grad_()
    with as_on_a_gpu(triton):
        assert loss(logits, target).isfinite()
        target[0, 3, 3] = bad
        value = loss(logits, target)
    assert value.isnan()
    value.backward()  # nothing is read or written out of bounds
    with pytest.raises(InputError, match=f"holds labels {bad}"):
        loss(logits, target)


@pytest.mark.parametrize("name", ["published:mIoU", "published:BF1", "ce", "ce + published:BIoU"])
def test_check_labels_says_at_once_which_label_is_bad(name):
    loss = build_loss(name, check_labels=True)
    logits, target = batch((1, 5, 12, 12), void=0)
    with as_on_a_gpu():
        assert loss(logits, target).isfinite()
        target[0, 3, 3] = 7
        with pytest.raises(InputError, match=r"target: holds labels 7; expected 0\.\.4 or 255"):
            loss(logits, target)


def test_a_watch_on_labels_says_later_which_was_bad():
    watch = LabelWatch()
    watch.check()
    watch.see(torch.tensor([[[0, 4, 255]]], dtype=torch.uint8), num_classes=5)
    watch.check()
    for bad in (9, -2):
        watch.see(torch.tensor([[[0, 4, bad]]]), num_classes=5)
        watch.see(torch.tensor([[[0, 255]]]), num_classes=5)
    with pytest.raises(InputError, match=r"target: holds labels -2, 9"):
        watch.check()


@pytest.mark.parametrize("name", ["published:BIoU", "published:BF1", "dpce"])
def test_a_main_and_an_auxiliary_head_share_the_work_on_labels(name):
    loss = build_loss(name)
    logits, target = BATCH

    def two_heads(x, y):
        return loss(x, y) + 0.4 * loss(x, y)

    apart = cost(two_heads, logits, target)
    together = cost(lambda x, y: two_heads(x, Labels(y)), logits, target)
    assert together.launches <= apart.launches - 20
    with as_on_a_gpu():
        assert two_heads(logits, target) == two_heads(logits, Labels(target))


def test_groups_of_images_share_the_work_on_labels_between_heads():
    loss = MeanOfGroupsLoss(build_loss("published:BIoU"), images=1)
    logits, target = BATCH
    labels = Labels(target)
    once = cost(lambda x, y: loss(x, labels), logits, target).launches
    assert cost(lambda x, y: loss(x, labels), logits, target).launches <= once - 20


def test_a_sum_of_losses_shares_the_work_on_labels():
    names = ["published:BIoU", "published:BF1", "dpce"]
    alone = [cost(build_loss(name), *BATCH).launches for name in names]
    assert cost(build_loss(" + ".join(names)), *BATCH).launches <= sum(alone) - 20
