"""What targets mean: which label is void, which forms are taken, and that all forms give the same numbers."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from autoseg import SegmentationMetrics, SurrogateLoss, build_loss
from autoseg.cli import main
from autoseg.errors import InputError
from autoseg.losses.labels import Labels, LabelWatch
from benchmarks.counting import as_on_a_gpu, cost

MASK = torch.zeros(2, 8, 8, dtype=torch.long)
MASK[:, 2:6, 3:7] = 255


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The exported file of the mIoU loss."""
    path = tmp_path_factory.mktemp("exported") / "exported.py"
    assert main(["loss", "export", "mIoU", "--out", str(path)]) == 0
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("exported", path))
    module.__spec__.loader.exec_module(module)
    return module


# ---- Is 255 void? --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["published:mIoU", "naive:BF1", "ce", "ce + published:mIoU"])
def test_one_hot_maps_of_0_and_255_are_refused_unless_void_is_said(name):
    logits, maps = torch.zeros(1, 3, 8, 8), one_hot(torch.arange(64).view(1, 8, 8) % 3, 3)
    for target in (maps * 255, (maps * 255).byte(), (maps * 255).float()):
        with refused(where="target", cure="ignore_index=255"):
            build_loss(name)(logits, target)
        assert build_loss(name, ignore_index=255)(logits, target).isfinite()
    with as_on_a_gpu():
        assert build_loss(name)(logits, maps * 255).isnan()
        assert build_loss(name)(logits, maps).isfinite()


def test_the_cure_for_a_shape_is_a_call_that_gives_the_right_labels():
    labels = torch.randint(3, (2, 4, 8, 8))
    with refused(where="target", cure="volumes=True"):
        SegmentationMetrics(3).update(labels, labels)
    with refused(where="target", cure="target.argmax(-1)"):
        build_loss("ce")(torch.zeros(2, 3, 4, 8, 8), torch.nn.functional.one_hot(labels, 3))


@pytest.mark.parametrize("name", ["published:mIoU", "naive:BF1", "ce", "ce + published:mIoU"])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_mask_of_0_and_255_is_refused_unless_void_is_said(name, channels):
    logits = torch.zeros(2, channels, 8, 8)
    with pytest.raises(InputError) as error:
        build_loss(name)(logits, MASK)
    assert "(target > 0).long()" in error.value.cure
    assert build_loss(name, ignore_index=255)(logits, MASK).isfinite()
    assert build_loss(name)(logits, (MASK > 0).long()).isfinite()
    assert build_loss(name)(logits, MASK * 0).isfinite()  # no void: an image without foreground


@pytest.mark.parametrize("name", ["published:mIoU", "published:BF1", "ce"])
def test_on_a_gpu_a_mask_of_0_and_255_makes_the_loss_nan_and_the_watch_says_why(name):
    logits = torch.zeros(2, 1, 8, 8)
    with as_on_a_gpu():
        assert build_loss(name)(logits, MASK).isnan()
        assert build_loss(name, ignore_index=255)(logits, MASK).isfinite()
        assert build_loss(name)(logits, (MASK > 0).long()).isfinite()
    watch = LabelWatch()
    watch.see(MASK, num_classes=1)
    with pytest.raises(InputError, match="foreground"):
        watch.check()


@pytest.mark.parametrize("name", ["published:mIoU", "ce", "ce + published:mIoU"])
@pytest.mark.parametrize("mode", ["binary", "multilabel"])
def test_on_a_gpu_check_labels_refuses_a_mask_of_0_and_255_at_once(name, mode):
    loss = build_loss(name, mode=mode, check_labels=True)
    with as_on_a_gpu(), pytest.raises(InputError, match="foreground"):
        loss(torch.zeros(2, 1, 8, 8), MASK)


def test_on_a_gpu_check_labels_refuses_numbers_that_are_no_probabilities():
    loss, soft = build_loss("published:mIoU", check_labels=True), torch.full((1, 3, 4, 4), 1.5)
    with as_on_a_gpu(), pytest.raises(InputError, match="outside"):
        loss(torch.zeros(1, 3, 4, 4), soft)


def test_metrics_refuse_a_mask_of_0_and_255_unless_void_is_said():
    metrics = SegmentationMetrics(2)
    with pytest.raises(InputError, match="foreground"):
        metrics.update(np.zeros((2, 8, 8), int), MASK)
    assert np.isnan(metrics.compute()["mIoU"])
    SegmentationMetrics(2, ignore_index=255).update(np.zeros((2, 8, 8), int), MASK)
    metrics.update(MASK > 0, MASK > 0)
    assert metrics.compute()["mIoU"] == 1


def test_metrics_refuse_0_and_255_as_predictions_one_hot_maps_and_masks_of_one_class():
    labels, maps = torch.zeros(2, 8, 8).long(), one_hot(MASK // 255, 3)
    several = SegmentationMetrics(2, mode="multilabel")
    for metrics, pred, target, where in [
        (SegmentationMetrics(2), MASK, MASK > 0, "pred"),
        (several, maps[:, :2] * 255, maps[:, :2], "pred"),
        (SegmentationMetrics(1), labels, MASK, "target"),
        (SegmentationMetrics(3), labels, maps * 255, "target"),
        (SegmentationMetrics(3), labels, maps.numpy() * 255.0, "target"),
    ]:
        with refused(where=where, cure="ignore_index=255"):
            metrics.update(pred, target)
    SegmentationMetrics(2, ignore_index=255).update(MASK, MASK > 0)
    with refused(where="target", cure="num_classes=2"):
        SegmentationMetrics(1).update(labels, MASK > 0)


@pytest.mark.parametrize(("shape", "call"), [((2, 8, 9, 1), "squeeze(-1)"), ((2, 8, 9, 3), "argmax(-1)")])
def test_metrics_answer_channels_at_the_end_with_the_call_that_works(shape, call):
    with refused(where="pred", cure=f"`pred.{call}`"):
        SegmentationMetrics(3).update(torch.zeros(shape), torch.zeros(2, 8, 9))


def test_255_is_not_taken_for_void_where_it_is_a_class(exported):
    logits, target = torch.zeros(1, 300, 2, 2), torch.full((1, 2, 2), 255)
    for call in (lambda: SegmentationMetrics(300), lambda: build_loss("ce")(logits, target)):
        with pytest.raises(InputError) as error:
            call()
        assert error.value.where == "ignore_index"
    with pytest.raises(ValueError, match="say ignore_index"):
        exported.Loss()(logits, target)
    metrics = SegmentationMetrics(300, ignore_index=None, metrics=["gAcc"])
    metrics.update(target, target)
    assert metrics.compute() == {"gAcc": 1}
    assert build_loss("ce", ignore_index=None)(logits, target) == pytest.approx(np.log(300))


def test_the_exported_file_refuses_a_mask_of_0_and_255_and_wrong_labels(exported, monkeypatch):
    logits = torch.zeros(2, 1, 8, 8)
    for loss in (exported.Loss(), exported.Loss(ignore_index=None)):
        with pytest.raises(ValueError, match=r"\(target > 0\).long\(\)"):
            loss(logits, MASK)
    assert exported.Loss(ignore_index=255)(logits, MASK).isfinite()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # where values may not be looked at
    assert exported.Loss()(logits, MASK).isnan()
    assert exported.Loss()(logits, (MASK > 0).long()).isfinite()


# ---- Forms of targets ----------------------------------------------------------------------------------------------


class Noted(torch.Tensor):
    """A tensor that carries notes, as MONAI's MetaTensor does."""


def batch(channels: int, classes: int):
    generator = torch.Generator().manual_seed(channels)
    target = torch.randint(0, classes, (2, 3, 4), generator=generator).repeat_interleave(3, 1).repeat_interleave(3, 2)
    target[0, 0, :4] = 255
    return torch.randn(2, channels, 9, 12, generator=generator, dtype=torch.float64), target


FORMS = {
    "channel": lambda t: t.unsqueeze(1),
    "float": lambda t: t.double(),
    "float channel": lambda t: t.unsqueeze(1).float(),
    "uint8": lambda t: t.to(torch.uint8),
    "noted": lambda t: t.as_subclass(Noted),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["published:mIoU", "published:BF1", "dice", "ce", "dpce"])
@pytest.mark.parametrize("gpu", [False, True])
def test_every_form_of_labels_gives_the_same_loss(form, name, gpu):
    for channels, classes in ((1, 2), (4, 4)):
        logits, target = batch(channels, classes)
        loss = build_loss(name)
        values = []
        for x, y in ((logits, target), (logits.as_subclass(Noted), FORMS[form](target))):
            x = x.detach().requires_grad_()
            if gpu:
                with as_on_a_gpu(triton=False):
                    value = loss(x, y)
            else:
                value = loss(x, y)
            assert type(value) is torch.Tensor
            value.backward()
            values.append((value.detach(), x.grad.as_subclass(torch.Tensor)))
        torch.testing.assert_close(values[0], values[1], rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_labels_gives_the_same_metrics(form):
    logits, target = batch(4, 4)
    one, other = SegmentationMetrics(4), SegmentationMetrics(4)
    one.update(logits.argmax(1), target)
    other.update(FORMS[form](logits.argmax(1)), FORMS[form](target))
    assert one.compute() == other.compute()
    bools = SegmentationMetrics(2)
    bools.update((target.numpy() > 1).astype(np.float32), target > 1)
    assert bools.compute()["mIoU"] == 1


def test_a_float_that_is_no_whole_number_is_refused_and_nan_on_a_gpu():
    logits, target = batch(1, 2)
    target = target.float() + 0.25
    with pytest.raises(InputError, match="no whole number"):
        build_loss("published:mIoU")(logits, target)
    with as_on_a_gpu(triton=False):
        assert build_loss("published:mIoU")(logits, target).isnan()


@pytest.mark.parametrize(
    ("shape", "call"),
    [
        ((2, 9, 12, 1), "target.squeeze(-1).long()"),
        ((2, 3, 9, 12), "target.argmax(1)"),
        ((2, 18, 24), "F.interpolate(logits, (18, 24)"),
        ((2, 1, 18, 24), "F.interpolate(logits, (18, 24)"),
    ],
)
def test_a_wrong_shape_is_answered_with_the_call_that_works(shape, call, exported):
    logits, _ = batch(4, 4)
    target = torch.zeros(shape, dtype=torch.long)
    with pytest.raises(InputError) as error:
        build_loss("dice")(logits, target)
    assert call in error.value.cure
    with pytest.raises(ValueError, match=r"target.squeeze\(1\).long\(\)"):
        exported.Loss()(logits, target)


@pytest.mark.parametrize(
    ("outputs", "call"),
    [
        ({"out": torch.zeros(2, 3, 4, 4)}, 'outputs["out"]'),
        (SimpleNamespace(logits=torch.zeros(2, 3, 4, 4)), "outputs.logits"),
        ((torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 4)), "outputs[0]"),
        (np.zeros((2, 3, 4, 4)), "torch.as_tensor(logits)"),
        (torch.zeros(3, 4, 4), "logits.unsqueeze(0)"),
    ],
)
def test_what_a_network_gives_is_answered_with_where_its_logits_are(outputs, call):
    with refused(where="logits", cure=call):
        build_loss("published:mIoU")(outputs, torch.zeros(2, 4, 4).long())


@pytest.mark.parametrize(
    ("mode", "logits", "target", "call"),
    [
        (None, (2, 8, 9, 3), (2, 8, 9), "logits.movedim(-1, 1)"),
        ("multilabel", (2, 3, 8, 9), (2, 8, 9, 3), "target.movedim(-1, 1)"),
        ("multilabel", (2, 3, 8, 9), (2, 3, 16, 18), "F.interpolate(logits, (16, 18)"),
        ("multilabel", (2, 3, 8, 9), (2, 8, 9), "F.one_hot(target, 3)"),
    ],
)
def test_channels_in_another_place_are_answered_with_the_call_that_moves_them(mode, logits, target, call):
    with pytest.raises(InputError) as error:
        build_loss("dice", mode=mode)(torch.zeros(logits), torch.zeros(target).long())
    assert call in error.value.cure
    with refused(where="target", cure="torch.as_tensor(target)"):
        build_loss("dice", mode=mode)(torch.zeros(2, 3, 8, 9), np.zeros((2, 8, 9)))


def test_the_exported_file_takes_a_channel_and_does_not_broadcast_it(exported):
    logits, target = batch(1, 2)
    ours = SurrogateLoss.published("mIoU")(logits, target)
    for form in ("channel", "float channel", "float"):
        torch.testing.assert_close(exported.Loss()(logits, FORMS[form](target)), ours)
    for kind in (torch.uint16, torch.uint32, torch.uint64):
        torch.testing.assert_close(exported.Loss()(logits, target.to(kind)), ours)
    torch.testing.assert_close(exported.Loss()(logits.as_subclass(Noted), target.as_subclass(Noted)), ours)
    for pair in ((logits.numpy(), target), (logits, target.numpy())):
        with pytest.raises(ValueError, match="expected tensors"):
            exported.Loss()(*pair)
    with pytest.raises(ValueError, match="labels other"):  # -1 is not 255 in one byte
        exported.Loss()(logits, torch.where(target == 255, -1, target).to(torch.int8))


# ---- Modes ---------------------------------------------------------------------------------------------------------

REGION = ["mIoU", "FWIoU", "mAcc", "gAcc"]
ALL = [*(f"published:{name}" for name in (*REGION, "BIoU", "BF1")), "ce", "dice", "lovasz", "dpce", "ssim"]


def value_and_gradient(loss, logits, target):
    x = logits.detach().clone().requires_grad_()
    value = loss(x, target)
    value.backward()
    return value.detach(), x.grad


@pytest.mark.parametrize("name", [*ALL, "published:mIoU + 0.5 * ce"])
@pytest.mark.parametrize("gpu", [False, True])
def test_binary_multilabel_of_one_class_and_two_classes_agree(name, gpu):
    z, target = batch(1, 2)
    both = torch.cat([torch.zeros_like(z), z], 1)
    with as_on_a_gpu(triton=False) if gpu else nullcontext():
        binary, d_binary = value_and_gradient(build_loss(name, mode="binary"), z, target)
        multilabel, d_multilabel = value_and_gradient(build_loss(name, mode="multilabel"), z, target.unsqueeze(1))
        two, d_two = value_and_gradient(build_loss(name, mode="multiclass"), both, target)
    torch.testing.assert_close((binary, d_binary), (multilabel, d_multilabel), rtol=0, atol=1e-6)
    torch.testing.assert_close((binary, d_binary), (two, d_two[:, 1:]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["published:mIoU", "published:BF1", "ce", "published:mIoU + 0.5 * ce"])
def test_a_multilabel_loss_is_the_mean_of_its_channels(name):
    z, _ = batch(3, 2)
    target = torch.stack([batch(channel, 2)[1] for channel in (1, 2, 3)], 1)
    alone = [build_loss(name, mode="binary")(z[:, c : c + 1], target[:, c]) for c in range(3)]
    torch.testing.assert_close(build_loss(name, mode="multilabel")(z, target), torch.stack(alone).mean())
    compiled = torch.compile(build_loss(name, mode="multilabel"), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(z, target.float()), torch.stack(alone).mean(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["published:mIoU", "published:BF1", "dice", "dice + ce"])
@pytest.mark.parametrize("mode", ["binary", "multilabel"])
def test_a_second_backward_pass_gives_the_same_gradient(name, mode):
    z, target = batch(1, 2)
    z.requires_grad_()
    value = 3 * build_loss(name, mode=mode)(z, target.unsqueeze(1))
    first = torch.autograd.grad(value, z, retain_graph=True)[0].clone()
    torch.testing.assert_close(torch.autograd.grad(value, z)[0], first, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["published:mIoU", "published:BF1", "ce"])
def test_no_mode_makes_a_gpu_wait(name):
    z, target = batch(1, 2)
    assert cost(build_loss(name, mode="binary"), z.float(), target.unsqueeze(1).float()).waits == 0
    maps = target.unsqueeze(1).expand(-1, 2, -1, -1)
    assert cost(build_loss(name, mode="multilabel"), z.float().expand(-1, 2, -1, -1), maps.float()).waits == 0
    if name == "published:mIoU":
        assert cost(build_loss(name), z.float().expand(-1, 2, -1, -1), maps.float()).waits == 0  # soft


def test_multilabel_void_has_no_influence_and_a_mask_of_0_and_255_is_refused():
    z, _ = batch(2, 2)
    target = torch.stack([batch(channel, 2)[1] for channel in (1, 2)], 1)
    loss = build_loss("published:mIoU", mode="multilabel")
    changed = z.masked_fill(target == 255, 9.0)
    torch.testing.assert_close(loss(z, target), loss(changed, target))
    with pytest.raises(InputError, match="foreground"):
        loss(z, target.masked_fill(target == 1, 255))
    target[:, 0] = target[:, 0].masked_fill(target[:, 0] == 1, 0)  # one channel without foreground
    assert loss(z, target).isfinite()


def one_hot(target: torch.Tensor, classes: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(target.masked_fill(target == 255, classes), classes + 1).movedim(-1, 1)[:, :-1]


@pytest.mark.parametrize("name", ALL)
def test_one_hot_equals_labels(name):
    logits, target = batch(4, 4)
    expected = value_and_gradient(build_loss(name), logits, target)
    maps = one_hot(target, 4)
    for form in (maps, maps.bool(), maps.double(), maps.masked_fill((target == 255).unsqueeze(1), 255)):
        torch.testing.assert_close(value_and_gradient(build_loss(name), logits, form), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", [*(f"published:{name}" for name in REGION), "dice", "published:mIoU + 0.5 * dice"])
def test_soft_targets_by_the_formula_equal_labels_where_they_are_hard(name):
    logits, target = batch(4, 4)
    expected = value_and_gradient(build_loss(name), logits, target)
    maps = one_hot(target, 4).double().masked_fill((target == 255).unsqueeze(1), 255)
    with as_on_a_gpu(triton=False):  # where floats are always taken for soft
        found = value_and_gradient(build_loss(name), logits, maps)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    soft = (0.9 * maps + 0.025).masked_fill((target == 255).unsqueeze(1), 255)
    near = build_loss(name)(logits, soft)
    assert near.isfinite()
    assert near != expected[0]
    with pytest.raises(InputError, match="outside"):
        build_loss(name)(logits, soft + 0.5)


@pytest.mark.parametrize("void", [255, None])
@pytest.mark.parametrize("name", [*ALL, "naive:NSD"])
def test_on_a_gpu_a_pixel_of_no_class_makes_the_loss_nan_wherever_it_is(name, void):
    logits, _ = batch(3, 3)
    target = torch.zeros(logits.shape[0], *logits.shape[2:], dtype=torch.long)
    target[..., :2] = 1  # a boundary at the left; what is wrong is far from it, at the right
    loss = build_loss(name, ignore_index=void)
    maps = one_hot(target, 3)
    maps[:, :2, -1, -1] = 1
    wrong = [maps]
    for label in (0.5, -1, 3, *[255] * (void is None)):
        wrong.append(target.float() if label == 0.5 else target.clone())
        wrong[-1][:, -1, -1] = label
    with as_on_a_gpu(triton=False):
        assert loss(logits, target).isfinite()
        for each in wrong:
            assert loss(logits, each).isnan()


@pytest.mark.parametrize("name", [*(f"published:{name}" for name in REGION), "dice", "jml", "dml", "tversky"])
def test_a_pixel_of_no_class_is_void_in_soft_maps_too(name):
    logits, target = batch(4, 4)
    maps = one_hot(target, 4).double()
    expected = value_and_gradient(build_loss(name), logits, target)
    with as_on_a_gpu(triton=False):
        torch.testing.assert_close(value_and_gradient(build_loss(name), logits, maps), expected, rtol=0, atol=1e-6)
        assert build_loss(name, ignore_index=None)(logits, maps).isnan()  # there is no void
    soft, void = 0.9 * maps, (target == 255).unsqueeze(1)
    assert build_loss(name)(logits, soft) == build_loss(name)(logits, soft.masked_fill(void, 255))
    with pytest.raises(InputError, match="target: has pixels of no class; expected probabilities; say ignore_index"):
        build_loss(name, ignore_index=None)(logits, soft)


def test_soft_maps_that_are_not_finite_are_refused():
    with pytest.raises(InputError, match="outside"):
        build_loss("dice")(torch.zeros(1, 3, 4, 4), torch.full((1, 3, 4, 4), float("nan")))


@pytest.mark.parametrize(
    ("mode", "logits", "target", "where"),
    [
        ("binary", (2, 2, 4, 4), (2, 4, 4), "logits"),
        ("multiclass", (2, 1, 4, 4), (2, 4, 4), "logits"),
        ("multilabel", (2, 3, 4, 4), (2, 4, 4), "target"),
        ("smp", (2, 3, 4, 4), (2, 4, 4), "mode"),
    ],
)
def test_a_mode_that_does_not_fit_is_refused(mode, logits, target, where):
    with pytest.raises(InputError) as error:
        build_loss("published:mIoU", mode=mode)(torch.zeros(logits), torch.zeros(target).long())
    assert error.value.where == where


@pytest.mark.parametrize("name", ["published:BIoU", "published:BF1", "ce"])
def test_soft_targets_are_refused_where_boundaries_are_needed(name):
    with pytest.raises(InputError, match=r"target.argmax\(1\)"):
        build_loss(name)(torch.zeros(1, 2, 4, 4), torch.full((1, 2, 4, 4), 0.5))


@pytest.mark.parametrize("name", ["published:mIoU", "published:BF1", "ce"])
def test_a_multilabel_batch_without_images_has_a_finite_loss(name):
    z = torch.zeros(0, 2, 4, 4, requires_grad=True)
    assert build_loss(name, mode="multilabel")(z, torch.zeros(0, 2, 4, 4)).isfinite()


@pytest.mark.parametrize("name", ["published:mIoU", "published:BIoU", "published:BF1", "naive:NSD", "ce"])
def test_a_batch_of_many_classes_without_images_has_a_finite_loss(name):
    z, target = torch.zeros(0, 300, 4, 4, requires_grad=True), torch.zeros(0, 4, 4, dtype=torch.long)
    assert build_loss(name, ignore_index=None)(z, target).isfinite()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_multilabel_loss_of_logits_that_are_not_finite_is_nan(bad):
    z = torch.zeros(1, 2, 4, 4)
    z[0, 1, 2, 2] = bad
    assert build_loss("published:mIoU", mode="multilabel")(z, torch.ones(1, 2, 4, 4)).isnan()


@pytest.mark.parametrize("name", ["published:mIoU", "dice"])
@pytest.mark.parametrize("mode", ["binary", "multilabel"])
def test_a_loss_of_the_greatest_logits_is_finite(name, mode):
    z = torch.full((2, 1, 64, 64), 3e38) * torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)
    target = torch.zeros(2, 1, 64, 64).masked_fill(z > 0, 1.0)
    for sign in (1, -1):
        value, gradient = value_and_gradient(build_loss(name, mode=mode), sign * z, target)
        assert value.item() == pytest.approx(0 if sign == 1 else 1, abs=1e-6)
        assert gradient.isfinite().all()


@settings(max_examples=40)
@given(
    st.sampled_from(REGION),
    st.sampled_from(["bezier", "linear"]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from(["skip", "zero"]),
    st.sampled_from([(1, 4, 5), (2, 2, 3, 4)]),
)
def test_kernels_equal_formulas_in_every_mode(metric, family, seed, void, absent, shape):
    rng = np.random.default_rng(seed)
    length = len(SurrogateLoss(metric, family=family).surrogate.theta)
    theta = rng.uniform(0.05, 0.95, length)
    z = torch.tensor(3 * rng.standard_normal((shape[0], 2, *shape[1:])))
    target = torch.tensor(np.where(rng.random(z.shape) < void, 255, rng.random(z.shape) < 0.4).astype(int))
    common = {"family": family, "ignore_index": 255, "absent": absent}
    multilabel = value_and_gradient(SurrogateLoss(metric, theta, mode="multilabel", **common), z, target)
    binary = SurrogateLoss(metric, theta, mode="binary", **common)
    alone = [value_and_gradient(binary, z[:, c : c + 1], target[:, c]) for c in range(2)]
    mean = sum(value for value, _ in alone) / 2
    torch.testing.assert_close(multilabel, (mean, torch.cat([g for _, g in alone], 1) / 2), rtol=0, atol=1e-6)
    formula = binary._formula_loss
    both = torch.cat([torch.zeros_like(z[:, :1]), z[:, :1]], 1)
    torch.testing.assert_close(alone[0][0], formula(both, Labels(target[:, 0])), rtol=0, atol=1e-6)


# ---- Volumes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("gpu", [False, True])
def test_a_volume_of_depth_1_equals_its_slice(name, gpu):
    logits, target = batch(4, 4)
    with as_on_a_gpu(triton=False) if gpu else nullcontext():
        expected = value_and_gradient(build_loss(name), logits, target)
        value, gradient = value_and_gradient(build_loss(name), logits.unsqueeze(2), target.unsqueeze(1))
    torch.testing.assert_close((value, gradient.squeeze(2)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["published:mIoU", "dice", "ce", "lovasz", "dice-release"])
def test_a_volume_is_one_large_image_where_neighbours_do_not_matter(name):
    logits, target = batch(4, 4)
    deep, labels = logits.view(2, 4, 3, 3, 12), target.view(2, 3, 3, 12)
    value, gradient = value_and_gradient(build_loss(name), deep, labels)
    expected = value_and_gradient(build_loss(name), logits, target)
    torch.testing.assert_close((value, gradient.view_as(logits)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("gpu", [False, True])
def test_dpce_weighs_a_volume_by_the_distance_in_three_dimensions(gpu):
    target = torch.zeros(1, 9, 3, 3, dtype=torch.long)
    target[:, 5:] = 1  # an edge between slices; no slice has one
    target[:, 8, 0, 0] = 255
    with as_on_a_gpu(triton=False) if gpu else nullcontext():
        near = Labels(target).closeness(2, 255)
        apart = Labels(target).closeness(2, 255, (2.0, 1.0, 1.0))
    expected = torch.tensor([0, 0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25], dtype=near.dtype)
    torch.testing.assert_close(near[0, :, 1, 1], expected)
    torch.testing.assert_close(apart, near)
    logits = torch.zeros(1, 2, 9, 3, 3, dtype=torch.float64)
    value, gradient = value_and_gradient(build_loss("dpce", ignore_index=255), logits, target)
    weights = (1 + expected).expand(3, 3, 9).movedim(-1, 0).flatten()[target.flatten() != 255]
    assert value.item() == pytest.approx(weights.double().mean().item() * np.log(2), rel=1e-6)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("weights", [None, [1.0, 0.0, 2.0]])
def test_ssim_of_a_volume_has_a_window_in_three_dimensions(gpu, weights):
    """By torch's convolution with the whole window, and autograd; a few planes at a time or all at once."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 3, 5, 6, 7, dtype=torch.float64, generator=generator)
    target = torch.randint(0, 3, (2, 5, 6, 7), generator=generator)
    target[0, :2] = 255
    bell = torch.exp(-(torch.arange(-5, 6, dtype=torch.float64) ** 2) / 4.5)
    window = torch.einsum("i,j,k->ijk", *[bell / bell.sum()] * 3).expand(3, 1, 11, 11, 11)

    def blur(maps):
        return torch.nn.functional.conv3d(maps, window, padding=5, groups=3)

    def by_hand(z, labels):
        valid = (labels != 255).unsqueeze(1).double()
        p, y = z.softmax(1) * valid, one_hot(labels, 3).double()
        m, n, s, t, both = blur(p), blur(y), blur(p * p), blur(y * y), blur(p * y)
        upper = (2 * m * n + 1e-4) * (2 * (both - m * n) + 9e-4)
        ssim = upper / ((m * m + n * n + 1e-4) * (s - m * m + t - n * n + 9e-4))
        share = valid * torch.tensor([1.0] * 3 if weights is None else weights).view(-1, 1, 1, 1)
        return ((1 - ssim) * share).sum() / share.sum()

    expected = value_and_gradient(by_hand, logits, target)
    loss = build_loss("ssim", ignore_index=255, class_weights=weights)
    with as_on_a_gpu(triton=False) if gpu else nullcontext():
        torch.testing.assert_close(value_and_gradient(loss, logits, target), expected)


@pytest.mark.parametrize("name", ["BIoU", "BF1"])
@pytest.mark.parametrize("gpu", [False, True])
def test_boundaries_of_volumes_are_in_three_dimensions(name, gpu):
    target = torch.zeros(1, 6, 6, 6, dtype=torch.long)
    target[:, 2:4] = 1  # no slice has an edge
    loss = SurrogateLoss.published(name, tolerance=1, boundary_radius=1, drop_background=False)
    sure = 20 * one_hot(target, 2).double()
    with as_on_a_gpu(triton=False) if gpu else nullcontext():
        perfect, _ = value_and_gradient(loss, sure, target)
        shifted, gradient = value_and_gradient(loss, sure.roll(3, 2), target)
    assert perfect < 0.01
    assert shifted > 0.4
    assert gradient.isfinite().all()


# ---- Weights of classes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ALL, "ce-release", "dice-release"])
@pytest.mark.parametrize("gpu", [False, True])
def test_equal_class_weights_change_nothing_and_others_do(name, gpu):
    logits, target = batch(4, 4)
    with as_on_a_gpu(triton=False) if gpu else nullcontext():
        expected = value_and_gradient(build_loss(name), logits, target)
        even = value_and_gradient(build_loss(name, class_weights=[1.0] * 4), logits, target)
        other = build_loss(name, class_weights=[0, 1, 2, 3])(logits, target)
    torch.testing.assert_close(even, expected)
    assert other.isfinite()
    assert other != expected[0]
    with pytest.raises(InputError, match="4 classes"):
        build_loss(name, class_weights=[1, 2])(logits, target)


def test_class_weights_by_hand():
    logits, target = batch(4, 4)
    alone = [SurrogateLoss.published("mIoU", class_weights=row.tolist())(logits, target) for row in torch.eye(4)]
    weights = torch.tensor([0.0, 1, 2, 3])
    found = SurrogateLoss.published("mIoU", class_weights=weights)(logits, target)
    torch.testing.assert_close(found, (torch.stack(alone) * weights).sum() / 6)
    ce = torch.nn.functional.cross_entropy(logits, target, weights.double(), ignore_index=255)
    torch.testing.assert_close(build_loss("ce", class_weights=weights)(logits, target), ce)
    z, labels = logits, one_hot(target, 4)
    channels = [build_loss("dice", mode="binary")(z[:, c : c + 1], labels[:, c]) for c in range(4)]
    found = build_loss("dice", mode="multilabel", class_weights=weights)(z, labels)
    torch.testing.assert_close(found, (torch.stack(channels) * weights).sum() / 6)


@pytest.mark.parametrize("name", ["published:mIoU", "published:mAcc", "dice"])
def test_void_of_channels_counts_for_nothing_whatever_its_logits(name):
    generator = torch.Generator().manual_seed(0)
    logits, target = torch.randn(2, 3, 8, 8, generator=generator), torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    target[:, :, 2:4], target[:, :, 4:] = 1, 255
    found = []
    for extreme in (0.0, 1e4, -1e30):
        z = logits.clone()
        z[:, :, 4:] = extreme
        loss = build_loss(name, mode="multilabel", ignore_index=255)(z.requires_grad_(), target)
        loss.backward()
        assert (z.grad[:, :, 4:] == 0).all()
        found.append((loss.detach(), z.grad))
    torch.testing.assert_close(found[1:], found[:1] * 2, rtol=0, atol=0)
    cut = build_loss(name, mode="multilabel", ignore_index=255)(logits[:, :, :4], target[:, :, :4])
    assert found[0][0].item() == pytest.approx(cut.item(), abs=1e-6)
