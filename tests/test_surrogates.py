"""Surrogates: equal to the release, equal to their formulas, finite on every batch, and good to train with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoseg.errors import InputError
from autoseg.losses.build import build_loss
from autoseg.losses.curves import CurveSpace
from autoseg.losses.published import PUBLISHED
from autoseg.losses.surrogate import Surrogate
from autoseg.losses.surrogate_loss import SurrogateLoss
from autoseg.losses.targets import check_batch
from autoseg.metrics import formula
from autoseg.metrics.formula import METRICS, Formula, ratio
from autoseg.metrics.segmentation import SegmentationMetrics

GOLDEN = json.loads((Path(__file__).parent / "golden" / "official.json").read_text())["surrogates"]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: c["grad"])
def test_values_and_gradients_equal_the_release(case, golden):
    logits = torch.tensor(golden[1][f"s{case['case']}_logits"], requires_grad=True)
    target = torch.tensor(golden[1][f"s{case['case']}_labels"])
    changes = {}
    if case["tolerance"] is not None:
        radius = "tolerance" if case["metric"] == "BF1" else "boundary_radius"
        changes = {radius: case["tolerance"], "drop_background": case["drop_background"]}
    loss = SurrogateLoss(case["metric"], control_points=case["control_points"], **changes)
    value = loss(logits, target)
    value.backward()
    assert value.item() == pytest.approx(case["loss"], abs=1e-6)
    expected = torch.tensor(golden[1][case["grad"]])
    assert (logits.grad - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert (logits.grad - expected).norm() <= 1e-5 * expected.norm()


def test_bf1s_loss_keeps_the_background_and_bious_drops_it_as_in_the_release(golden):
    for case in GOLDEN:
        given = {"BF1": ("tolerance", 2), "BIoU": ("boundary_radius", 5)}.get(case["metric"])
        if case["theta_kind"] != "published" or given is None or case["tolerance"] != given[1]:
            continue
        logits, target = (torch.tensor(golden[1][f"s{case['case']}_{what}"]) for what in ("logits", "labels"))
        changes = dict([given])
        for loss in (
            SurrogateLoss.published(case["metric"], **changes),
            SurrogateLoss(case["metric"], control_points=case["control_points"], **changes),
            build_loss(f"published:{case['metric']}", **changes),
        ):
            assert loss(logits, target).item() == pytest.approx(case["loss"], abs=1e-6)
    metric = SegmentationMetrics(3).conventions
    assert (metric.drop_background, SurrogateLoss("BF1").conventions.drop_background) == (True, False)
    assert build_loss("naive:BF1", conventions=metric).conventions.drop_background is False
    assert build_loss("naive:BF1", conventions=metric, drop_background=True).conventions.drop_background is True


@pytest.mark.parametrize("metric", ["BIoU", "BF1"])
def test_a_loss_drops_class_0_only_where_that_is_a_background(metric, tmp_path):
    path = tmp_path / "surrogate.json"
    Surrogate.make(metric, conventions={"drop_background": True, "tolerance": 3, "boundary_radius": 0}).save(path)
    logits, target = random_batch(np.random.default_rng(0), 4, 2, 12, 12, 0.1, 2.0)
    kept, dropped = (
        SurrogateLoss(metric, drop_background=drop, tolerance=3, boundary_radius=0)(logits, target)
        for drop in (False, True)
    )
    assert kept != dropped
    for has_background, expected in ((True, dropped), (False, kept)):
        loss = SurrogateLoss.load(path, has_background=has_background)
        assert loss(logits, target) == expected
        assert build_loss(str(path), has_background=has_background)(logits, target) == expected
        assert loss.surrogate.conventions.drop_background  # a property of the loss, which a file keeps
        assert loss.conventions.tolerance == 3


def test_a_file_that_does_not_say_whether_to_drop_the_background_means_the_releases_loss(tmp_path):
    path = tmp_path / "surrogate.json"
    for metric, expected in (("BF1", False), ("BIoU", True)):
        content = Surrogate.make(metric).content()
        path.write_text(json.dumps({**content, "conventions": {"tolerance": 2}}))
        found = Surrogate.load(path).conventions
        assert (found.tolerance, found.drop_background) == (2, expected)


# ---- Kernels equal formulas ----------------------------------------------------------------------------------------


def random_batch(rng, classes, n, h, w, void, scale, dtype=torch.float64):
    coarse = rng.integers(0, classes, (n, -(-h // 3), -(-w // 3)))
    target = np.repeat(np.repeat(coarse, 3, 1), 3, 2)[:, :h, :w]
    target = np.where(rng.random((n, h, w)) < void, 255, target)
    logits = torch.tensor(scale * rng.standard_normal((n, classes, h, w)), dtype=dtype)
    return logits.requires_grad_(), torch.tensor(target)


def both_ways(loss, logits, target):
    """Return value and gradient by the kernel and by the formula with autograd."""
    results = []
    for by_kernel in (True, False):
        x = logits.detach().clone().requires_grad_()
        checked, labels = check_batch(x, target, 255)
        value = loss(x, target) if by_kernel else loss._formula_loss(checked, labels)
        value.backward()
        results.append((value.detach(), x.grad))
    return results


@st.composite
def surrogate_cases(draw):
    metric = draw(st.sampled_from(METRICS))
    family = draw(st.sampled_from(["bezier", "linear", "spline"]))
    layout = draw(st.sampled_from(["release", "paper"])) if metric == "BF1" else None
    seed = draw(st.integers(0, 2**32 - 1))
    size = draw(st.integers(1, 11)), draw(st.integers(1, 11))
    shape = draw(st.integers(2, 6)), draw(st.integers(1, 3)), *size
    changes = {
        "tolerance": draw(st.integers(0, 6)),
        "boundary_radius": draw(st.integers(0, 6)),
        "drop_background": draw(st.booleans()),
        "mask_void": draw(st.booleans()),
        "absent": draw(st.sampled_from([None, "skip", "zero"])),
    }
    extreme = draw(st.booleans())  # control points on, or very near, 0 and 1
    return metric, family, layout, seed, shape, changes, draw(st.sampled_from([0.0, 0.2, 1.0])), extreme


@settings(max_examples=150)
@given(surrogate_cases())
def test_kernels_equal_formulas_in_value_and_gradient(case):
    metric, family, layout, seed, (classes, n, h, w), changes, void, extreme = case
    rng = np.random.default_rng(seed)
    surrogate = Surrogate.make(metric, family=family, layout=layout)
    theta = rng.uniform(0.05, 0.95, len(surrogate.theta))
    if family == "linear":
        theta = rng.standard_normal(len(theta))
    elif extreme:
        theta = np.where(rng.random(len(theta)) < 0.3, rng.choice([0, 1, 1e-7, 1 - 1e-7], len(theta)), theta)
    loss = SurrogateLoss(metric, theta, family, ignore_index=255, layout=layout, **changes)
    (fast, fast_gradient), (slow, slow_gradient) = both_ways(loss, *random_batch(rng, classes, n, h, w, void, 1.5))
    scale = max(slow_gradient.abs().max().item(), 1.0)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-8, abs=1e-8)
    torch.testing.assert_close(fast_gradient, slow_gradient, rtol=1e-6, atol=1e-9 * scale)


@pytest.mark.parametrize("jump", ["at 0", "at 1"])
@pytest.mark.parametrize("metric", ["mIoU", "mAcc", "BF1"])
def test_where_a_curve_jumps_at_its_ends_hard_predictions_still_give_the_metric(metric, jump):
    one = [0.0, 0.5, 0.0, 0.5, 0.5, 0.5] if jump == "at 0" else [0.5, 0.2, 1.0, 0.4, 1.0, 0.9]
    layout = "paper" if metric == "BF1" else None
    count = len(formula.get(metric).layout(layout).curves)
    loss = SurrogateLoss(metric, one * count, layout=layout, tolerance=1, drop_background=True)
    rng = np.random.default_rng(3)
    target = rng.integers(0, 3, (1, 4, 4)).repeat(3, 1).repeat(3, 2)
    pred = np.where(rng.random(target.shape) < 0.85, target, rng.integers(0, 3, target.shape))
    target[:, :2] = 255
    metrics = SegmentationMetrics(3, tolerance=1)
    metrics.update(pred, target)
    hard = 1e4 * torch.nn.functional.one_hot(torch.tensor(pred), 3).permute(0, 3, 1, 2).float()
    assert 1 - loss(hard, torch.tensor(target)).item() == pytest.approx(metrics.compute()[metric], abs=1e-6)


@pytest.mark.parametrize("scale", [1.0, 4.0, 15.0])
@pytest.mark.parametrize("metric", ["mAcc", "gAcc", "mIoU"])
def test_float32_gradients_keep_four_digits_where_the_network_is_sure_and_the_curve_steep(metric, scale):
    curve = [0.94307, 0.48251, 0.99864, 0.62292, 0.01205, 0.6888]  # steep near 1
    theta = curve if metric != "mIoU" else [*curve, 0.3, 0.4, 0.4, 0.3, 0.5, 0.6]
    rng = np.random.default_rng(0)
    logits, target = random_batch(rng, 5, 2, 24, 24, 0.1, scale, torch.float32)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        x = logits.detach().to(dtype).requires_grad_()
        SurrogateLoss(metric, theta)(x, target).backward()
        gradients.append(x.grad.double())
    assert (gradients[0] - gradients[1]).abs().max() <= 1e-4 * gradients[1].abs().max()


@pytest.mark.parametrize("name", [*PUBLISHED, "formula"])
def test_logits_that_are_not_finite_give_a_loss_that_is_not(name):
    loss = SurrogateLoss("mIoU", [0.5] * 16, monotone=False, truth_table=False) if name == "formula" else None
    loss = loss or SurrogateLoss.published(name)
    target = torch.zeros(1, 8, 8, dtype=torch.long)
    target[:, :, 4:] = 1
    for bad in (float("nan"), float("inf")):
        logits = torch.randn(1, 2, 8, 8)
        logits[0, 0, 2, 3] = bad
        assert loss(logits, target).isnan()


@pytest.mark.parametrize("layout", ["release", "paper"])
def test_bf1_stays_between_0_and_1_whatever_its_curves(layout):
    rng = np.random.default_rng(0)
    logits, target = random_batch(rng, 3, 1, 9, 9, 0.1, 1.0)
    for _ in range(60):
        theta = rng.random(len(Surrogate.make("BF1", layout=layout).theta))
        assert 0 <= SurrogateLoss("BF1", theta, layout=layout, tolerance=1)(logits, target) <= 1


@pytest.mark.parametrize("exponent", [2, 4, 6])
def test_control_points_next_to_the_end_give_finite_gradients(exponent):
    target = torch.zeros(1, 8, 8, dtype=torch.long)
    target[:, :, 4:] = 1
    for scale in (1, 20, 1e4):
        x = (scale * torch.nn.functional.one_hot(target, 2).permute(0, 3, 1, 2)).float().requires_grad_()
        SurrogateLoss("BF1", control_points=[1 - 10.0**-exponent, 0.5] * 4, tolerance=1)(x, target).backward()
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("classes", [33, 70])
def test_the_boundary_kernel_knows_more_classes_than_bits(classes):
    rng = np.random.default_rng(classes)
    loss = SurrogateLoss.published("BF1", tolerance=1)
    (fast, fast_gradient), (slow, slow_gradient) = both_ways(loss, *random_batch(rng, classes, 2, 9, 9, 0.1, 2.0))
    assert fast.item() == pytest.approx(slow.item(), abs=1e-9)
    torch.testing.assert_close(fast_gradient, slow_gradient, rtol=1e-6, atol=1e-10)


def test_a_map_larger_than_the_working_chunk_gives_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    logits, target = random_batch(rng, 5, 3, 20, 17, 0.1, 2.0)
    for metric in METRICS:
        loss = SurrogateLoss.published(metric)
        whole = both_ways(loss, logits, target)[0]
        monkeypatch.setattr("autoseg.losses.kernels.planes.CHUNK", 700)
        parts = both_ways(loss, logits, target)[0]
        monkeypatch.undo()
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("family", ["bezier", "linear", "spline"])
@pytest.mark.parametrize("metric", [*METRICS, "BF1:paper"])
def test_gradcheck_in_float64(metric, family):
    metric, _, layout = metric.partition(":")
    rng = np.random.default_rng(7)
    theta = rng.uniform(0.2, 0.8, len(Surrogate.make(metric, family=family, layout=layout or None).theta))
    loss = SurrogateLoss(metric, theta, family, layout=layout or None, tolerance=1, boundary_radius=2)
    logits, target = random_batch(rng, 3, 2, 5, 4, 0.1, 1.0)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), (logits,), eps=1e-7, atol=1e-5, fast_mode=True)


def test_without_the_truth_table_the_formula_itself_is_used():
    space = CurveSpace("bezier", 2, monotone=False, truth_table=False)
    theta = np.random.default_rng(0).uniform(0.1, 0.9, 2 * len(space.names))
    loss = SurrogateLoss("mIoU", theta, monotone=False, truth_table=False)
    logits, target = random_batch(np.random.default_rng(1), 4, 2, 6, 6, 0.1, 1.0)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), (logits,), eps=1e-7, atol=1e-5, fast_mode=True)
    full = SurrogateLoss("mIoU", theta=[*theta[:6], *theta[8:14]], monotone=False)
    assert full(logits, target) != loss(logits, target)


@pytest.mark.parametrize("metric", METRICS)
def test_on_hard_predictions_a_surrogate_is_its_metric(metric):
    rng = np.random.default_rng(3)
    target = rng.integers(0, 4, (2, 6, 6)).repeat(3, 1).repeat(3, 2)
    pred = np.where(rng.random(target.shape) < 0.85, target, rng.integers(0, 4, target.shape))
    target[:, :2] = 255
    hard = 1e4 * torch.nn.functional.one_hot(torch.tensor(pred), 4).permute(0, 3, 1, 2).float()
    metrics = SegmentationMetrics(4, tolerance=1, boundary_radius=2)
    metrics.update(pred, target)
    for loss in (
        SurrogateLoss.published(metric, tolerance=1, boundary_radius=2, drop_background=True),
        SurrogateLoss(metric, tolerance=1, boundary_radius=2, drop_background=True),
    ):
        assert 1 - loss(hard, torch.tensor(target)).item() == pytest.approx(metrics.compute()[metric], abs=1e-6)


# ---- Never NaN -----------------------------------------------------------------------------------------------------


def awkward_batches():
    one = torch.zeros(2, 8, 8, dtype=torch.long)
    spot = one.clone()
    spot[0, 3, 3] = 2
    yield "all void", torch.randn(2, 4, 8, 8), torch.full_like(one, 255)
    yield "no edge", torch.randn(2, 4, 8, 8), one
    yield "absent classes", torch.randn(2, 9, 8, 8), spot
    yield "saturated right", 1e6 * torch.nn.functional.one_hot(spot, 4).permute(0, 3, 1, 2).float(), spot
    yield "saturated wrong", -1e6 * torch.nn.functional.one_hot(spot, 4).permute(0, 3, 1, 2).float(), spot
    yield "equal logits", torch.zeros(2, 4, 8, 8), spot
    yield "binary, one class", torch.randn(2, 1, 8, 8), one
    yield "one pixel", torch.randn(1, 3, 1, 1), torch.ones(1, 1, 1, dtype=torch.long)
    yield "one row", torch.randn(2, 3, 1, 9), torch.ones(2, 1, 9, dtype=torch.long)
    yield "one column", torch.randn(2, 3, 9, 1), torch.arange(18).view(2, 9, 1) % 3


@pytest.mark.parametrize("batch", list(awkward_batches()), ids=lambda b: b[0])
@pytest.mark.parametrize("name", [*PUBLISHED, "naive", "linear", "BF1 paper", "jump", "no truth table"])
def test_every_batch_has_a_finite_value_connected_to_the_logits(name, batch):
    _, logits, target = batch
    loss = {
        "naive": lambda: SurrogateLoss("mIoU"),
        "linear": lambda: SurrogateLoss("FWIoU", [9.0, -9, 0, 1, 2] * 2, "linear"),
        "BF1 paper": lambda: SurrogateLoss("BF1", [0.9, 0.1, 0.5, 0.9, 0.1, 0.1] * 4, layout="paper"),
        "jump": lambda: SurrogateLoss("mIoU", [0.0, 1.0, 0.0, 0.5, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]),
        "no truth table": lambda: SurrogateLoss("mIoU", [0.5] * 16, monotone=False, truth_table=False),
    }.get(name, lambda: SurrogateLoss.published(name))()
    x = logits.clone().requires_grad_()
    value = loss(x, target)
    value.backward()
    assert value.ndim == 0
    assert value.isfinite()
    assert x.grad.isfinite().all()


def test_void_pixels_have_no_gradient_and_no_influence():
    rng = np.random.default_rng(0)
    logits, target = random_batch(rng, 4, 2, 9, 9, 0.3, 1.0)
    for metric in METRICS:
        loss = SurrogateLoss.published(metric, mask_void=True)
        x = logits.detach().clone().requires_grad_()
        value = loss(x, target)
        value.backward()
        void = (target == 255).unsqueeze(1)
        assert (x.grad * void).abs().max() == 0
        other = torch.where(void, torch.randn_like(x), x.detach())
        assert loss(other, target).item() == pytest.approx(value.item(), abs=1e-12)


# ---- Use -----------------------------------------------------------------------------------------------------------


def test_binary_is_the_two_class_loss_of_zero_and_the_logit():
    z = torch.randn(2, 1, 7, 7, requires_grad=True)
    target = torch.randint(0, 2, (2, 7, 7))
    for name in PUBLISHED:
        loss = SurrogateLoss.published(name)
        two = loss(torch.cat([torch.zeros_like(z), z], 1), target)
        assert loss(z, target).item() == pytest.approx(two.item(), abs=1e-7)
        (gradient,) = torch.autograd.grad(loss(z, target), z)
        assert gradient.shape == z.shape


def test_computes_in_float32_under_autocast():
    logits, target = torch.randn(1, 5, 16, 16), torch.randint(0, 5, (1, 16, 16))
    for name in ("mIoU", "BF1"):
        loss = SurrogateLoss.published(name)
        half = logits.bfloat16().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(half, target)
        value.backward()
        assert value.dtype == torch.float32
        assert half.grad.dtype == torch.bfloat16
        assert value.item() == pytest.approx(loss(half.detach().float(), target).item(), abs=1e-7)


def test_labels_and_logits_may_lie_in_memory_as_they_like():
    logits, target = torch.randn(2, 3, 5, 7), torch.randint(0, 3, (2, 7, 5)).transpose(1, 2)
    for name in PUBLISHED:
        loss = SurrogateLoss.published(name)
        expected = loss(logits, target.contiguous()).item()
        strided = logits.transpose(2, 3).contiguous().transpose(2, 3)
        assert loss(strided, target).item() == pytest.approx(expected, abs=1e-6)
        assert loss(logits, target.to(torch.uint16)).item() == pytest.approx(expected, abs=1e-6)
        assert loss(logits[:0], target[:0]).isfinite()


def test_scaling_retaining_and_no_grad_work_as_for_any_loss():
    loss = SurrogateLoss.published("mIoU")
    logits, target = torch.randn(1, 3, 8, 8, requires_grad=True), torch.randint(0, 3, (1, 8, 8))
    (one,) = torch.autograd.grad(loss(logits, target), logits)
    value = 3 * loss(logits, target)
    for _ in range(2):
        (three,) = torch.autograd.grad(value, logits, retain_graph=True)
        torch.testing.assert_close(three, 3 * one)
    with torch.no_grad():
        assert not loss(logits, target).requires_grad
    last = logits.detach().contiguous(memory_format=torch.channels_last)
    assert loss(last, target).item() == pytest.approx(loss(logits, target).item(), abs=1e-7)


def test_a_new_metric_is_evaluated_gets_parameters_and_trains():
    formula.register(
        Formula(
            "mDice",
            sums=lambda y_hat, y, ops: {"both": ops.AND("AND", y_hat, y), "size": y_hat + y},
            per_class=lambda s: ratio(2 * s["both"], s["size"]),
        )
    )
    assert len(SurrogateLoss("mDice").surrogate.theta) == 6
    loss = SurrogateLoss("mDice", theta=[0.3, 0.6, 0.4, 0.4, 0.5, 0.5])
    torch.manual_seed(0)
    image = torch.randn(2, 3, 12, 12)
    target = (image[:, 0] > 0).long() + (image[:, 1] > 0.5).long()
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 3, 1))
    optimiser = torch.optim.Adam(network.parameters(), 0.02)
    values = []
    for _ in range(40):
        value = loss(network(image), target)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        values.append(value.item())
    assert values[-1] < 0.5 * values[0]
    metrics = SegmentationMetrics(3, metrics=["mDice"])
    metrics.update(network(image).argmax(1), target)
    assert metrics.compute()["mDice"] > 0.8


# ---- Distributed ---------------------------------------------------------------------------------------------------


SYNCED = ("mIoU", "BF1", "no truth table")


def test_synced_over_two_ranks_equals_one_rank_with_the_whole_batch(tmp_path):
    torch.multiprocessing.spawn(_rank, args=(tmp_path,), nprocs=2)
    for name in SYNCED:
        logits, target, loss = _distributed_case(name, sync=False)
        value = loss(logits, target)
        value.backward()
        for rank in range(2):
            part = torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True)
            assert part["value"].item() == pytest.approx(value.item(), abs=1e-12)
            # DistributedDataParallel averages over ranks: half of each part's gradient is the whole's.
            torch.testing.assert_close(part["gradient"] / 2, logits.grad[rank : rank + 1])


def _distributed_case(name, sync):
    logits, target = random_batch(np.random.default_rng(5), 4, 2, 12, 12, 0.1, 1.5)
    if name == "no truth table":
        return logits, target, SurrogateLoss("mIoU", [0.5] * 16, monotone=False, truth_table=False, sync=sync)
    return logits, target, SurrogateLoss.published(name, sync=sync)


def _rank(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for name in SYNCED:
        logits, target, loss = _distributed_case(name, sync=True)
        mine = logits.detach()[rank : rank + 1].requires_grad_()
        value = loss(mine, target[rank : rank + 1])
        value.backward()
        torch.save({"value": value.detach(), "gradient": mine.grad}, folder / f"{name}-{rank}.pt")
    torch.distributed.destroy_process_group()


# ---- surrogate.json ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_surrogates_survive_a_round_trip(name, tmp_path):
    loss = SurrogateLoss.published(name.upper())
    loss.save(tmp_path / "surrogate.json")
    again = SurrogateLoss.load(tmp_path / "surrogate.json")
    assert again.surrogate == loss.surrogate
    assert json.loads((tmp_path / "surrogate.json").read_text())["schema"] == "autoseg/surrogate/1"
    logits, target = torch.randn(1, 3, 9, 9), torch.randint(0, 3, (1, 9, 9))
    assert torch.equal(again(logits, target), loss(logits, target))


def test_theta_and_control_points_describe_the_same_loss():
    published = SurrogateLoss.published("FWIoU").surrogate
    by_theta = SurrogateLoss("FWIoU", published.theta).surrogate
    np.testing.assert_allclose(by_theta.control_points, published.control_points, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        ({"metric": "mIuO"}, "", "unknown metric 'mIuO'; did you mean 'mIoU'"),
        ({"theta": [0.5] * 11}, "theta for mIoU", "11 numbers"),
        ({"theta": [2.0] * 12}, "theta of a bezier curve", "holds 2.0"),
        ({"theta": "abc"}, "theta", "list"),
        ({"control_points": [0.1] * 12}, "", "key 'control_points' does not belong to key 'theta'"),
        ({"schema": "autoseg/surrogate/9"}, "", "key 'schema'"),
        ({"pieces": "2"}, "pieces", "'2'"),
        ({"pieces": 10**9}, "pieces", "1000000000"),
        ({"colour": "red"}, "", "unknown key 'colour'"),
        ({"conventions": {"tolerance": -1}}, "conventions.tolerance", "-1"),
        ({"layout": "release"}, "", "unknown layout of mIoU 'release'"),
        ({"metric": None}, "metric", "None"),
    ],
)
def test_a_broken_file_is_named_with_its_key(change, where, what, tmp_path):
    path = tmp_path / "surrogate.json"
    SurrogateLoss.published("mIoU").save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError) as error:
        SurrogateLoss.load(path)
    assert error.value.where.startswith(f"{path}: {where}" if where else str(path))
    assert what in error.value.what


LOGITS, TARGET = torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4).long()


@pytest.mark.parametrize(
    ("call", "where", "what"),
    [
        (lambda: SurrogateLoss.published("mIuO"), "", "unknown published surrogate 'mIuO'; did you mean 'mIoU'"),
        (lambda: SurrogateLoss.published("mIoU", tol=3), "", "unknown key 'tol'; did you mean 'tolerance'"),
        (lambda: SurrogateLoss.published(None), "", "unknown published surrogate 'None'"),
        (lambda: SurrogateLoss(3), "", "unknown metric '3'"),
        (lambda: SurrogateLoss("mIoU", ignore_index="void"), "ignore_index", "'void'"),
        (lambda: SurrogateLoss(Surrogate.make("mIoU"), [0.5] * 12), "", "has its own parameters"),
        (lambda: SurrogateLoss("mIoU", theta=[0.5] * 6), "theta for mIoU", "6 numbers"),
        (lambda: SurrogateLoss("mIoU", [0.5] * 12, control_points=[0.5] * 12), "", "both theta and control_points"),
        (lambda: SurrogateLoss("mIoU", tolerance=-2), "tolerance", "-2"),
        (lambda: SurrogateLoss("mIoU", absent="maybe"), "absent", "'maybe'"),
        (lambda: SurrogateLoss("mIoU")(torch.zeros(2, 3, 4), torch.zeros(2, 4)), "logits", "(2, 3, 4)"),
        (lambda: SurrogateLoss("mIoU")(LOGITS, TARGET + 0.5), "target", "no whole number"),
        (lambda: SurrogateLoss("mIoU")(LOGITS.long(), TARGET), "logits", "torch.int64"),
        (lambda: SurrogateLoss("mIoU")(LOGITS, torch.zeros(1, 4, 5).long()), "target", "(1, 4, 5)"),
        (lambda: SurrogateLoss("mIoU")(LOGITS, TARGET + 3), "target", "labels 3"),
        (lambda: SurrogateLoss("mIoU")(LOGITS[:, :1], TARGET + 2), "target", "labels 2"),
        (lambda: SurrogateLoss.load("nowhere.json"), "nowhere.json", "no such file"),
    ],
)
def test_bad_input_is_named(call, where, what):
    with pytest.raises(InputError) as error:
        call()
    assert error.value.where == where
    assert what in error.value.what
