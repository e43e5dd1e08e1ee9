"""Losses in compiled code: one graph, the same numbers, no second compilation for another theta; and other ways to run.

The graphs run without a code generator, which would take most of a minute for each loss. What breaks a graph, and what
makes a host wait, breaks them all the same.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from run_interpreted import batch, surrogate, value_and_gradient
from torch._subclasses.fake_tensor import FakeTensorMode

from autoseg.errors import InputError
from autoseg.losses.build import build_loss
from autoseg.losses.export import as_python
from autoseg.losses.labels import Labels
from autoseg.losses.names import HAND_MADE
from autoseg.losses.surrogate import Surrogate
from autoseg.losses.surrogate_loss import SurrogateLoss
from autoseg.metrics.formula import METRICS, Formula, ratio, register

COUNTS = [5, 4, 3, 2, 1]


@pytest.fixture(autouse=True)
def _fresh():
    """Forget what was compiled before; know one metric of a user's, and one that is not linear in the prediction."""
    torch._dynamo.reset()
    for name, square in (("mDice", False), ("squared", True)):
        register(
            Formula(
                name,
                lambda p, y, ops, square=square: {"both": ops.AND("AND", p, y), "size": (p * p if square else p) + y},
                lambda s: ratio(2 * s["both"], s["size"]),
            )
        )


def compiled(call):
    return torch.compile(call, fullgraph=True, backend="aot_eager")


def assert_same(found, expected):
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-6)  # distances are float32
    assert (found[1] - expected[1]).norm() <= 1e-6 * expected[1].norm()


@pytest.mark.parametrize(
    "name",
    [*HAND_MADE, "published:FWIoU", "published:mAcc", "published:gAcc", "published:mIoU + 0.5 * published:BIoU"],
)
def test_a_loss_compiles_into_one_graph_with_the_same_numbers(name):
    loss = build_loss(name, class_counts=COUNTS)
    logits, target = batch((2, 5, 17, 23))
    assert_same(value_and_gradient(compiled(loss), logits, target), value_and_gradient(loss, logits, target))


@pytest.mark.parametrize(
    ("metric", "family", "layout"),
    [
        ("mIoU", "bezier", None),
        ("mIoU", "linear", None),
        ("BIoU", "bezier", None),
        ("BF1", "bezier", "release"),
        ("BF1", "linear", "paper"),
        ("mDice", "bezier", None),
        ("squared", "bezier", None),
    ],
)
@torch._dynamo.config.patch(error_on_recompile=True)
def test_one_compilation_serves_every_theta(metric, family, layout):
    rng = np.random.default_rng(0)
    count = len(Surrogate.make(metric, family=family, layout=layout).theta)
    call = compiled(lambda loss, logits, target: loss(logits, target))
    logits, target = batch((1, 3, 9, 11))
    for k in range(20):
        theta = rng.uniform(0.02, 0.98, count) if family == "bezier" else rng.standard_normal(count)
        if family == "bezier" and k >= 15:  # pieces that are dropped
            theta = np.where(rng.random(count) < 0.4, rng.choice([0.0, 1.0], count), theta)
        loss = SurrogateLoss(metric, theta.tolist(), family, layout=layout)
        found = value_and_gradient(lambda x, y, loss=loss: call(loss, x, y), logits, target)
        assert_same(found, value_and_gradient(loss, logits, target))


@pytest.mark.parametrize("metric", ["BIoU", "mIoU"])
@torch._dynamo.config.patch(error_on_recompile=True)
def test_a_formula_as_it_is_written_is_one_graph_for_every_theta(metric):
    """BIoU of volumes and mIoU of soft targets have a linear form, but do not run on its kernels."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 4, 3, 9, 11, generator=generator)
    target = torch.randint(0, 4, (2, 3, 9, 11), generator=generator)
    if metric == "mIoU":
        target = torch.rand(logits.shape, generator=generator).softmax(1)
    call = compiled(lambda loss, logits, target: loss(logits, target))
    for seed in range(3):
        loss = SurrogateLoss(metric, theta=np.random.default_rng(seed).uniform(0.1, 0.9, 12).tolist())
        found = value_and_gradient(lambda x, y, loss=loss: call(loss, x, y), logits, target)
        assert_same(found, value_and_gradient(loss, logits, target))


def test_a_step_with_two_heads_and_shared_labels_is_one_graph():
    loss = build_loss("published:mIoU + published:BIoU")

    def step(logits, target):
        labels = Labels(target)
        return loss(logits, labels) + 0.4 * loss(2 * logits, labels)

    logits, target = batch((2, 5, 17, 23))
    assert_same(value_and_gradient(compiled(step), logits, target), value_and_gradient(step, logits, target))


def test_a_bad_label_in_compiled_code_makes_the_loss_nan():
    logits, target = batch((1, 5, 9, 9))
    target[0, 0, 0] = 7
    assert compiled(build_loss("published:mIoU"))(logits, target).isnan()


@pytest.mark.parametrize("name", ["published:mIoU", "published:BF1", "lovasz", "ssim", "dpce"])
def test_a_loss_is_exported(name):
    loss = build_loss(name)
    logits, target = batch((2, 5, 17, 23))
    exported = torch.export.export(loss, (logits, target)).module()
    torch.testing.assert_close(exported(logits, target), loss(logits, target), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [*HAND_MADE, *(f"published:{metric}" for metric in METRICS), "naive:squared"])
def test_where_nothing_is_trained_no_gradient_is_made(name):
    loss = build_loss(name, class_counts=COUNTS)
    logits, target = batch((2, 5, 17, 23))
    logits.requires_grad_()
    expected = loss(logits, target)
    assert expected.requires_grad
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            value = loss(logits, target)
        assert not value.requires_grad
        torch.testing.assert_close(value, expected.detach(), rtol=0, atol=1e-7)
    loss(logits, target).backward()  # nothing of the inference stayed behind
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("name", ["published:mIoU", "published:BF1", "naive:squared", "ssim"])
def test_fake_tensors_do_not_stay_behind(name):
    loss = build_loss(name)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake, labels = torch.randn(2, 5, 17, 23, requires_grad=True), torch.zeros(2, 17, 23, dtype=torch.long)
        value = loss(fake, labels)
        value.backward()
        assert (value.shape, fake.grad.shape) == ((), fake.shape)
    logits, target = batch((2, 5, 17, 23))
    value, gradient = value_and_gradient(loss, logits, target)
    assert type(value) is type(gradient) is torch.Tensor
    assert gradient.isfinite().all()


def test_a_curve_keeps_no_tensor_of_a_mode_that_has_ended():
    curve = surrogate("mIoU").curves["AND"]
    points = torch.linspace(0, 1, 7, dtype=torch.float64)
    with FakeTensorMode():
        curve(torch.rand(7, dtype=torch.float64))
    with torch.inference_mode():
        expected = curve(points)
    points.requires_grad_()
    value = curve(points)
    value.sum().backward()
    assert torch.equal(value, expected)
    assert points.grad.isfinite().all()


def test_compiled_code_does_not_excuse_logits_and_labels_that_do_not_fit():
    with pytest.raises(InputError, match="target: has shape"):
        build_loss("published:mIoU")(torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 5, dtype=torch.long))


@pytest.mark.parametrize("spec", ["published:mIoU", "published:BF1", "published:mIoU + 0.5 * published:BIoU"])
def test_an_exported_loss_compiles_into_one_graph_with_the_same_numbers(spec):
    module: dict = {"__name__": "my_loss"}
    exec(as_python(spec), module)
    loss = module["Loss"](ignore_index=255)
    logits, target = batch((2, 5, 17, 23))
    assert_same(value_and_gradient(compiled(loss), logits, target), value_and_gradient(loss, logits, target))
