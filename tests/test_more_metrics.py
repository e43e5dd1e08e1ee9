"""The metrics beyond the six: formula, fast count and surrogate agree, and the numbers are those of the definitions."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_loss_verb import assert_same, batch, export
from test_surrogates import awkward_batches, both_ways, random_batch

from autoseg import SurrogateLoss, build_loss
from autoseg.errors import InputError
from autoseg.losses.surrogate import Surrogate
from autoseg.metrics import formula, more, shapes
from autoseg.metrics.conventions import Conventions
from autoseg.metrics.formula import METRICS, Formula, ratio
from autoseg.metrics.more import MORE
from autoseg.metrics.segmentation import SegmentationMetrics
from tests.refusals import refused

REGIONS, SHAPES = MORE[:5], MORE[5:]


@st.composite
def label_maps(draw, dims=(2, 3)):
    dimensions = draw(st.sampled_from(dims))
    classes = draw(st.sampled_from([2, 3, 9, 35]))
    sides = [draw(st.integers(1, 13 if dimensions == 2 else 6)) for _ in range(dimensions)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    there = rng.integers(0, classes, draw(st.integers(1, classes)))  # the others are absent
    target = there[rng.integers(0, len(there), (2, *sides))]
    if draw(st.booleans()):  # blobs
        for axis in range(1, dimensions + 1):
            target = np.repeat(target, 2, axis)
    pred = np.where(rng.random(target.shape) < draw(st.sampled_from([0.5, 0.9, 1.0])), target, rng.permutation(target))
    target = np.where(rng.random(target.shape) < draw(st.sampled_from([0.0, 0.1, 1.0])), 255, target)
    pred = np.where(rng.random(target.shape) < draw(st.sampled_from([0.0, 0.1])), 255, pred)
    return torch.tensor(pred), torch.tensor(target), classes


conventions = st.fixed_dictionaries(
    {
        "tolerance": st.integers(0, 3),
        "drop_background": st.booleans(),
        "absent": st.sampled_from(["skip", "zero"]),
        "beta": st.sampled_from([0.5, 1.0, 2.0]),
        "tversky": st.sampled_from([(0.3, 0.7), (1.0, 1.0), (0.0, 1.0)]),
        "band_width": st.sampled_from([0.02, 0.2, 1, 3]),
        "surface_tolerance": st.sampled_from([None, 0.0, 1.0, 1.5, 2.9]),
        "spacing": st.sampled_from([None, (1.0, 1.0), (0.7, 1.3), (2.0, 1.0, 0.5)]),
        "skeleton_steps": st.integers(0, 4),
    }
)


@given(label_maps(), conventions)
def test_fast_counts_equal_formulas(maps, chosen):
    pred, target, classes = maps
    m = SegmentationMetrics(classes, metrics=MORE, ignore_index=255, volumes=pred.ndim == 4, empty=0.0, **chosen)
    m.update(pred, target)
    for name, found in m.compute().items():
        f = formula.get(name)
        expected = f.evaluate(pred, target, classes, conventions=m.conventions)
        assert found == pytest.approx(expected, abs=1e-12), name
        assert -1 <= found <= 1 + 1e-12


@given(label_maps(), conventions)
def test_counts_add_over_images_and_an_image_has_its_own_score(maps, chosen):
    pred, target, classes = maps
    settings = {"metrics": MORE, "ignore_index": 255, "volumes": pred.ndim == 4, **chosen}
    whole = SegmentationMetrics(classes, **settings)
    whole.update(pred, target)
    parts = [SegmentationMetrics(classes, **settings) for _ in pred]
    for k, part in enumerate(parts):
        part.update(pred[k], target[k])
    images = [part.compute() for part in parts]
    parts[0].merge(parts[1])
    assert parts[0].compute() == pytest.approx(whole.compute(), nan_ok=True)
    per_image = SegmentationMetrics(classes, per_image=True, **settings)
    per_image.update(pred, target)
    for name, score in per_image.compute().items():
        there = [image[name] for image in images if not math.isnan(image[name])]
        assert score == pytest.approx(np.mean(there) if there else math.nan, nan_ok=True)


# ---- By hand -------------------------------------------------------------------------------------------------------


def scores(pred, target, classes=2, **options):
    m = SegmentationMetrics(classes, metrics=MORE, **options)
    m.update(np.array(pred), np.array(target))
    return m.compute()


def test_regions_by_hand():
    pred, target = [[0, 0, 1, 1, 1]], [[0, 1, 1, 1, 0]]  # class 1: TP 2, FP 1, FN 1; class 0: TP 1, FP 1, FN 1
    found = scores(pred, target, beta=2.0, tversky=(0.2, 0.8))
    assert found["mDice"] == pytest.approx((4 / 6 + 2 / 4) / 2)
    assert found["mFbeta"] == pytest.approx((5 * 2 / (5 * 2 + 4 * 1 + 1) + 5 * 1 / (5 * 1 + 4 * 1 + 1)) / 2)
    assert found["mTversky"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    mcc = (2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2)
    assert found["mMCC"] == pytest.approx(mcc)
    assert found["kappa"] == pytest.approx((3 / 5 - 13 / 25) / (1 - 13 / 25))


def test_a_class_in_neither_map_or_in_all_pixels_of_both_has_no_mcc_and_no_kappa():
    m = SegmentationMetrics(3, metrics=["mMCC", "kappa"])
    m.update(np.zeros((2, 2), int), np.zeros((2, 2), int))
    assert np.isnan([*m.per_class()["mMCC"], *m.per_class()["kappa"]]).all()
    m.update(np.array([[0, 0]]), np.array([[0, 1]]))  # class 1 is never predicted
    assert m.per_class()["mMCC"][1] == 0
    assert m.per_class()["kappa"][1] == 0
    assert np.isnan(m.per_class()["mMCC"][2])


def square(size, top, left, side):
    mask = np.zeros((size, size), int)
    mask[top : top + side, left : left + side] = 1
    return mask


def test_boundary_iou_by_hand():
    target, pred = square(12, 3, 3, 6), square(12, 3, 4, 6)  # moved by one pixel to the right
    found = scores(pred, target, band_width=1)
    # Rings of 20 pixels each. Common: the rows at the top and the bottom, 5 pixels each; their columns differ.
    assert found["BoundaryIoU"] == pytest.approx(10 / (20 + 20 - 10))
    assert scores(pred, target, band_width=3)["BoundaryIoU"] == pytest.approx(30 / 42)  # all of both squares: the IoU
    wide = scores(pred, target, band_width=2)["BoundaryIoU"]
    rim = 36 - 4  # a square of 6 without its inner 2 x 2; common: 30 pixels of both without the two holes of 2 x 2
    assert wide == pytest.approx((30 - 6) / (2 * rim - (30 - 6)))
    # A share of the diagonal, 12 sqrt(2): .1 of it is 1.7, two pixels; at least one.
    assert scores(pred, target, band_width=0.1)["BoundaryIoU"] == wide
    assert scores(pred, target, band_width=0.001)["BoundaryIoU"] == found["BoundaryIoU"]


def test_the_border_of_the_image_is_a_boundary_and_void_is_none():
    full = np.ones((5, 5), int)
    found = scores(full, full, band_width=1)
    assert found["BoundaryIoU"] == found["NSD"] == 1  # the image's border
    target = np.zeros((9, 9), int)
    target[:, :4], target[:, 4] = 1, 255
    pred = target.copy()
    pred[:, 4] = 1  # goes on into void, where nobody knows
    assert scores(pred, target, surface_tolerance=0, band_width=1)["NSD"] == 1
    m = SegmentationMetrics(2, metrics=["NSD"], surface_tolerance=0)
    m.update(pred, target)
    assert m._states["NSD", "target"][1] == 9 + 4 + 4 - 2  # left, top and bottom, but not along void


def test_nsd_by_hand():
    target, pred = square(12, 3, 3, 6), square(12, 3, 5, 6)
    # Surfaces of 20 pixels. At tolerance 0: the common parts of the rows at the top and the bottom, 4 pixels each.
    assert scores(pred, target, surface_tolerance=0)["NSD"] == pytest.approx(2 * 8 / 40)
    # At 1: five or six of each row; the column at 3 has the corner (3, 5), 2 away; but in it the rows' ends are near.
    assert scores(pred, target, surface_tolerance=2)["NSD"] == 1
    assert scores(pred, target, surface_tolerance=2, spacing=(1.0, 1.01))["NSD"] < 1
    assert scores(pred, target, surface_tolerance=1.9)["NSD"] == scores(pred, target, surface_tolerance=1)["NSD"] < 1
    # Without a value of its own it takes BF1's tolerance.
    assert scores(pred, target, tolerance=0)["NSD"] == scores(pred, target, surface_tolerance=0)["NSD"]
    # A class in one map alone counts 0, in neither it does not count.
    assert scores(np.zeros_like(target), target)["NSD"] == 0
    assert math.isnan(scores(np.zeros_like(target), np.zeros_like(target))["NSD"])


def test_cldice_rewards_the_line_and_not_the_width():
    target = np.zeros((15, 40), int)
    target[6:9, 2:38] = 1
    thin, broken = np.zeros_like(target), target.copy()
    thin[7, 2:38] = 1
    broken[:, 10:20] = 0
    found = {name: scores(pred, target) for name, pred in {"thin": thin, "broken": broken}.items()}
    assert found["thin"]["clDice"] > 0.95 > 0.85 > found["broken"]["clDice"]
    assert found["thin"]["mDice"] < found["broken"]["mDice"]


def test_objects_that_are_wider_than_the_skeleton_has_steps_for_are_not_seen():
    for side, steps in ((8, 3), (9, 4), (30, 14), (30, 15)):
        found = scores(square(40, 5, 5, side), square(40, 5, 5, side), skeleton_steps=steps)["clDice"]
        assert math.isnan(found) == (side > 2 * (steps + 1))
    assert math.isnan(scores(square(40, 5, 5, 9), square(40, 5, 6, 9))["clDice"])
    assert scores(square(40, 5, 5, 30), square(40, 5, 5, 30), skeleton_steps=14)["clDice"] == 1


def test_a_volume_of_depth_1_equals_its_slice():
    rng = np.random.default_rng(0)
    pred, target = rng.integers(0, 3, (2, 7, 8)).repeat(2, 2)
    target[:2] = 255
    m = SegmentationMetrics(3, metrics=MORE, volumes=True)
    m.update(pred[None], target[None])
    assert m.compute() == pytest.approx(scores(pred, target, 3))
    logits, labels = torch.randn(1, 3, 7, 16), torch.tensor(target)[None]
    for name in MORE:
        loss = SurrogateLoss(name)
        flat = loss(logits, labels).item()
        assert loss(logits[:, :, None], labels[:, None]).item() == pytest.approx(flat, abs=1e-6)


def test_the_band_of_a_volume_of_depth_1_is_a_share_of_the_diagonal_of_its_slice():
    assert shapes.pixels_wide(0.3, (1, 6, 10)) == shapes.pixels_wide(0.3, (6, 10)) == 3
    assert shapes.pixels_wide(0.3, (2, 6, 10)) == 4


# ---- Surrogates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", MORE)
def test_on_hard_predictions_a_surrogate_is_its_metric(metric):
    rng = np.random.default_rng(3)
    target = rng.integers(0, 4, (2, 6, 6)).repeat(3, 1).repeat(3, 2)
    pred = np.where(rng.random(target.shape) < 0.85, target, rng.integers(0, 4, target.shape))
    target[:, :2] = 255
    hard = 1e4 * torch.nn.functional.one_hot(torch.tensor(pred), 4).permute(0, 3, 1, 2).float()
    chosen = {"tolerance": 1, "band_width": 2, "beta": 0.5, "skeleton_steps": 2}
    expected = scores(pred, target, 4, **chosen)[metric]
    theta = rng.uniform(0.2, 0.8, len(Surrogate.make(metric).theta))
    for loss in (SurrogateLoss(metric, **chosen), SurrogateLoss(metric, theta, **chosen)):
        assert 1 - loss(hard, torch.tensor(target)).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("batch", list(awkward_batches()), ids=lambda b: b[0])
@pytest.mark.parametrize("metric", MORE)
def test_every_batch_has_a_finite_value_connected_to_the_logits(metric, batch):
    _, logits, target = batch
    theta = np.random.default_rng(0).uniform(0, 1, len(Surrogate.make(metric).theta))
    for loss in (SurrogateLoss(metric), SurrogateLoss(metric, theta), build_loss(f"naive:{metric.lower()}")):
        x = logits.clone().requires_grad_()
        value = loss(x, target)
        value.backward()
        assert value.ndim == 0
        assert -1e-5 <= value <= 2 + 1e-5
        assert x.grad.isfinite().all()


@given(st.sampled_from(MORE), label_maps(), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 10.0, 1000.0]))
def test_a_surrogate_is_finite_on_every_finite_batch(metric, maps, seed, scale):
    _, target, classes = maps
    rng = np.random.default_rng(seed)
    logits = torch.tensor(scale * rng.standard_normal((len(target), classes, *target.shape[1:])), requires_grad=True)
    theta = rng.uniform(0, 1, len(Surrogate.make(metric).theta)).round(rng.integers(0, 3))
    value = SurrogateLoss(metric, theta, ignore_index=255)(logits, target)
    value.backward()
    assert -1e-5 <= value <= 2 + 1e-5
    assert logits.grad.isfinite().all()
    assert logits.grad[(target == 255).unsqueeze(1).expand_as(logits)].abs().sum() == 0


@given(st.sampled_from(SHAPES), label_maps(), conventions, st.integers(0, 2**32 - 1))
def test_shapes_on_a_cpu_are_those_of_the_formula(metric, maps, chosen, seed):
    _, target, classes = maps
    rng = np.random.default_rng(seed)
    theta = rng.uniform(0.2, 0.8, len(Surrogate.make(metric).theta))
    if chosen["spacing"] is not None and len(chosen["spacing"]) != target.ndim - 1:
        chosen = {**chosen, "spacing": None}
    loss = SurrogateLoss(metric, theta, ignore_index=255, **chosen)
    y = formula.one_hot(target, classes)
    found = []
    for on_a_cpu in (True, False):
        logits = torch.tensor(np.random.default_rng(seed).standard_normal(y.shape), requires_grad=True)
        value = loss._loss_of_maps(logits, y, y.sum(1, keepdim=True), on_a_cpu)
        value.backward()
        found.append((value.item(), logits.grad))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-9)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("metric", ["mDice", "mFbeta", "mTversky"])
def test_nothing_wrong_is_never_less_than_nothing(metric):
    theta = [*[9.0] * 4, -9.0] * 2  # flat at first: TP of small probabilities is next to nothing
    loss = SurrogateLoss(metric, theta[::-1], "linear", tversky=(1.0, 0.0))
    for seed in range(20):
        logits = torch.randn(2, 5, 2, 3, 5, generator=torch.Generator().manual_seed(seed))
        value = loss(logits, logits.argmax(1) * 0)
        assert 0 <= value <= 1 + 1e-6


@pytest.mark.parametrize("shape", [(6, 5), (3, 4, 5)])
@pytest.mark.parametrize("spec", ["naive:NSD", "naive:BoundaryIoU", "naive:clDice", "published:mIoU", "naive:BF1"])
def test_a_second_derivative_is_refused_and_not_half_computed(spec, shape):
    logits = torch.randn(1, 2, *shape, requires_grad=True)
    loss = torch.nn.functional.softplus(logits).mean() + build_loss(spec)(logits, torch.ones(1, *shape).long())
    with pytest.raises(RuntimeError, match="no second derivative: leave out create_graph=True"):
        torch.autograd.grad(loss, logits, create_graph=True)
    torch.autograd.grad(loss, logits, retain_graph=True)
    loss.backward()


@pytest.mark.parametrize("metric", SHAPES)
def test_images_of_shapes_are_computed_a_few_at_a_time(metric, monkeypatch):
    rng = np.random.default_rng(1)
    logits, target = random_batch(rng, 3, 5, 9, 8, 0.1, 2.0)
    whole = SurrogateLoss(metric)(logits, target)
    monkeypatch.setattr("autoseg.losses.formula_loss.CHUNK", 2 * 3 * 9 * 8)
    assert SurrogateLoss(metric)(logits, target).item() == pytest.approx(whole.item(), abs=1e-12)


def test_formulas_of_shapes_of_ones_own_see_all_classes():
    own = Formula(  # every class sees the first one's rim
        "mine",
        sums=lambda y_hat, y, ops: {
            "both": ops.AND("AND", ops.rim(y_hat, 1), y + ops.rim(y, 1)[:, :1]),
            "rim": ops.rim(y, 1),
        },
        per_class=lambda s: ratio(s["both"], s["both"] + s["rim"]),
        operations=more.ShapeOps,
        drops_background=True,
    )
    formula.register(own, replace=True)
    loss = SurrogateLoss("mine")
    target = torch.tensor(np.random.default_rng(0).integers(0, 3, (2, 6, 7)))  # class 3 is absent
    y = formula.one_hot(target, 4)
    logits = torch.randn(2, 4, 6, 7, dtype=torch.float64)
    slow = loss._loss_of_maps(logits, y, y.sum(1, keepdim=True), False)
    assert loss(logits, target).item() == pytest.approx(slow.item(), abs=1e-9)


@pytest.mark.parametrize("family", ["bezier", "linear"])
@pytest.mark.parametrize("metric", MORE)
def test_gradcheck_in_float64(metric, family):
    rng = np.random.default_rng(7)
    theta = rng.uniform(0.2, 0.8, len(Surrogate.make(metric, family=family).theta))
    loss = SurrogateLoss(metric, theta, family, tolerance=1, band_width=1)
    logits, target = random_batch(rng, 3, 2, 5, 4, 0.1, 1.0)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), (logits,), eps=1e-7, atol=1e-5, fast_mode=True)
    volume, labels = torch.randn(1, 2, 3, 4, 3, dtype=torch.float64, requires_grad=True), torch.ones(1, 3, 4, 3).long()
    labels[0, 1, 1:3] = 0
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (volume,), eps=1e-7, atol=1e-5, fast_mode=True)


@pytest.mark.parametrize("metric", REGIONS)
def test_regions_run_on_the_kernels_of_the_six(metric):
    rng = np.random.default_rng(2)
    theta = rng.uniform(0.2, 0.8, 12)
    loss = SurrogateLoss(metric, theta)
    assert loss.form is not None
    assert tuple(loss.curves) == ("AND", "OR")  # as mIoU's: their curves are one another's
    logits, target = random_batch(rng, 4, 2, 9, 8, 0.2, 2.0)
    (fast, fast_gradient), (slow, slow_gradient) = both_ways(loss, logits, target)
    assert fast.item() == pytest.approx(slow.item(), abs=1e-9)
    torch.testing.assert_close(fast_gradient, slow_gradient, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("metric", MORE)
def test_a_surrogate_compiles_in_one_graph(metric):
    torch._dynamo.reset()
    logits, target = torch.randn(2, 3, 9, 8), torch.randint(0, 3, (2, 9, 8))
    loss = SurrogateLoss(metric, ignore_index=255)
    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(logits, target)
    assert found.item() == pytest.approx(loss(logits, target).item(), abs=1e-6)


@pytest.mark.parametrize("metric", MORE)
def test_a_multilabel_loss_is_the_mean_of_its_channels(metric):
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 9, 8, dtype=torch.float64, generator=rng)
    target = torch.rand(2, 3, 9, 8, generator=rng) < 0.3
    one = SurrogateLoss(metric, mode="binary")
    each = [one(logits[:, c : c + 1], target[:, c]).item() for c in range(3)]
    assert SurrogateLoss(metric, mode="multilabel")(logits, target).item() == pytest.approx(np.mean(each), abs=1e-9)


@pytest.mark.parametrize("metric", SHAPES)
def test_shapes_take_no_soft_targets(metric):
    with pytest.raises(InputError, match="holds probabilities"):
        SurrogateLoss(metric)(torch.randn(1, 2, 4, 4), torch.rand(1, 2, 4, 4))


# ---- Names, files, conventions -------------------------------------------------------------------------------------


def test_names_are_accepted_in_any_case_and_the_six_stay_the_default():
    assert formula.get("boundaryiou") is more.BoundaryIoU
    assert formula.get("CLDICE") is more.clDice
    assert set(MORE) <= set(formula.names())
    assert not set(MORE) & set(METRICS)
    assert tuple(SegmentationMetrics(3).compute()) == METRICS


def test_a_formula_of_the_users_own_takes_the_place_of_one_of_these_but_not_of_the_six():
    own = Formula(
        "mDice",
        sums=lambda y_hat, y, ops: {"both": ops.AND("AND", y_hat, y), "size": y_hat + y},
        per_class=lambda s: ratio(2 * s["both"], s["size"]),
    )
    assert formula.register(own) is formula.get("mdice")
    assert len(SurrogateLoss("mDice").surrogate.theta) == 6
    with pytest.raises(InputError, match="registered already"):
        formula.register(own)
    with pytest.raises(InputError, match="registered already"):
        formula.register(Formula("miou", own.sums, own.per_class))


def test_files_name_the_new_conventions_only_where_they_differ(tmp_path):
    plain = Conventions().model_dump()
    assert list(plain) == ["tolerance", "boundary_radius", "drop_background", "mask_void", "absent"]
    assert Conventions(beta=2.0).model_dump() == plain
    chosen = Conventions(beta=0.5, spacing=(2, 1, 1), band_width=3)
    assert Conventions.model_validate_json(chosen.model_dump_json()) == chosen
    SurrogateLoss("NSD", spacing=(0.5, 0.5), surface_tolerance=1.5).save(tmp_path / "surrogate.json")
    kept = json.loads((tmp_path / "surrogate.json").read_text())["conventions"]
    assert kept["spacing"] == [0.5, 0.5]
    assert not {"beta", "tversky"} & set(kept)
    assert SurrogateLoss.load(tmp_path / "surrogate.json").conventions.distance == 1.5


@pytest.mark.parametrize("metric", MORE)
def test_a_surrogate_is_exported_as_a_file_that_needs_torch_alone(metric, tmp_path):
    theta = np.random.default_rng(1).random(len(Surrogate.make(metric).theta)).tolist()
    surrogate = Surrogate.make(metric, theta, conventions={"tolerance": 1, "beta": 0.5, "band_width": 1})
    surrogate.save(tmp_path / "surrogate.json")
    module = export(str(tmp_path / "surrogate.json"), tmp_path)
    assert_same(SurrogateLoss(surrogate), module.Loss(), *batch(seed=2))
    assert "autoseg." not in (tmp_path / "exported.py").read_text().partition('"""\n\nfrom')[2]


def test_bad_conventions_are_refused():
    for chosen in ({"beta": 0}, {"band_width": 1.5}, {"spacing": (1,)}, {"spacing": (1, -1)}, {"skeleton_steps": -1}):
        with refused(where=next(iter(chosen))):
            SegmentationMetrics(2, **chosen)
    with refused(where="tversky", expected="one above 0"):
        SurrogateLoss("mTversky", tversky=(0, 0))
    with refused(what="bta"):
        SegmentationMetrics(2, bta=1)


def test_a_ball_is_a_ball():
    rows = shapes.ball(2.0, (2.0, 1.0, 0.5), (9, 9, 9))
    found = {(z, y, x) for (z, y), reach in rows.items() for x in range(-reach, reach + 1)}
    every = range(-5, 6)
    assert found == {(z, y, x) for z in every for y in every for x in every if 4 * z * z + y * y + x * x / 4 <= 4}
