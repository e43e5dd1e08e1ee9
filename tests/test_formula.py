"""A formula says what its operators are, and with hard logic is the metric."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from autoseg.errors import InputError
from autoseg.metrics import formula
from autoseg.metrics.conventions import Conventions
from autoseg.metrics.formula import BF1, METRICS, Formula, mIoU, ratio
from benchmarks.plain import six_metrics
from tests.refusals import refused


def test_operators_are_found_by_tracing_in_the_order_of_the_parameters():
    assert {name: formula.get(name).layout().curves for name in METRICS} == {
        "mIoU": ("AND", "OR"),
        "FWIoU": ("AND", "OR"),
        "BIoU": ("AND", "OR"),
        "BF1": ("g1", "g2", "g3", "g4"),
        "mAcc": ("AND",),
        "gAcc": ("AND",),
    }
    assert BF1.layout("paper").curves == ("edge.AND", "edge.OR", "precision", "recall")
    assert (BF1.layout("release").pieces, BF1.layout("paper").pieces) == (1, 2)
    with pytest.raises(ValueError, match="unknown layout of BF1 'papr'; did you mean 'paper'"):
        BF1.layout("papr")


@pytest.mark.parametrize("drop_background", [True, False])
def test_formulas_equal_plain_torch(drop_background):
    rng = np.random.default_rng(5)
    target = torch.tensor(rng.integers(0, 5, (2, 9, 8)).repeat(4, 1).repeat(4, 2))
    pred = torch.where(
        torch.tensor(rng.random(target.shape) < 0.8), target, torch.tensor(rng.integers(0, 5, target.shape))
    )
    target[:, :6] = 255
    plain = six_metrics(pred, target, 5, tolerance=2, radius=3, drop_background=drop_background)
    c = Conventions(tolerance=2, boundary_radius=3, drop_background=drop_background)
    for name, expected in plain.items():
        assert formula.get(name).evaluate(pred, target, 5, conventions=c) == pytest.approx(expected, abs=1e-6)


def test_sums_add_over_batches():
    pred, target = (torch.randint(0, 3, (4, 7, 7), generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    c = Conventions()
    whole = BF1.count(pred, target, 3, 255, c)
    parts = [BF1.count(pred[i : i + 2], target[i : i + 2], 3, 255, c) for i in (0, 2)]
    for name in whole:
        assert torch.equal(whole[name], parts[0][name] + parts[1][name])


def test_a_ratio_without_denominator_has_no_value_and_no_nan_in_its_gradient():
    a, b = torch.tensor([1.0, 0.0], requires_grad=True), torch.tensor([2.0, 0.0], requires_grad=True)
    value = ratio(a, b)
    assert value[0] == 0.5
    assert value[1].isnan()
    value.nan_to_num().sum().backward()
    assert a.grad.tolist() == [0.5, 0.0]
    assert b.grad.tolist() == [-0.25, 0.0]


def test_the_kind_of_an_operator_does_not_depend_on_its_name():
    named = Formula(
        "named",
        sums=lambda y_hat, y, ops: {"a": ops.OR("either", y_hat, y), "b": ops.XOR("edge", y_hat, y)},
        per_class=lambda s: s["a"],
    )
    assert named.operators == {"either": "OR", "edge.AND": "AND", "edge.OR": "OR"}


def test_boundary_accuracy_takes_four_lines():
    accuracy = Formula(
        "bAcc",
        sums=lambda y_hat, y, ops: {"hit": ops.band(y) * ops.AND("AND", y_hat, y), "target": ops.band(y) * y},
        per_class=lambda s: ratio(s["hit"], s["target"]),
    )
    assert accuracy.operators == {"AND": "AND"}
    target = torch.zeros(1, 1, 20, dtype=torch.long)
    target[..., 10:] = 1
    pred = target.clone()
    pred[..., 8:10], pred[..., 0] = 1, 1  # two wrong near the boundary, one far from it
    score = accuracy.evaluate(pred, target, 2, conventions=Conventions(boundary_radius=3, drop_background=False))
    assert score == pytest.approx((2 / 4 + 1) / 2)  # the band: 4 pixels of each class


def test_names_are_accepted_in_any_case_and_unknown_ones_answered():
    assert formula.get("fwiou") is formula.FWIoU
    assert set(METRICS) <= set(formula.names())
    with refused(what="'IoU'") as error:
        formula.get("IoU")
    assert set(METRICS) <= set(error.value.expected.removeprefix("one of ").split(", "))


def test_absent_classes_are_skipped_or_count_zero():
    labels = torch.zeros(1, 2, 2, dtype=torch.long)
    assert mIoU.evaluate(labels, labels, 4, conventions=Conventions(absent="skip")) == 1
    assert mIoU.evaluate(labels, labels, 4, conventions=Conventions(absent="zero")) == 0.25


def test_a_formula_that_uses_more_than_arithmetic_is_told_so():
    wrong = Formula("x", sums=lambda y_hat, y, ops: {"a": (y_hat * y).clamp(max=1)}, per_class=lambda s: s["a"])
    with pytest.raises(InputError) as error:
        _ = wrong.operators
    assert (error.value.where, error.value.expected) == ("x", "arithmetic and `ops` only")
    assert copy.deepcopy(wrong).name == "x"
