"""The hand-made losses: equal to their libraries where those are right, and right where those are not."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autoseg.losses import HAND_MADE, LossSum, build_loss, closeness_to_boundary
from autoseg.surrogates import SurrogateLoss

COUNTS = [100, 10, 1, 0]


def batch(void=0.1, seed=0, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 4, (2, 5, 5)).repeat(2, 1).repeat(2, 2)
    target = np.where(rng.random(target.shape) < void, 255, target)
    return torch.tensor(rng.standard_normal((2, 4, 10, 10)), dtype=dtype).requires_grad_(), torch.tensor(target)


@pytest.fixture(scope="module")
def smp_losses():
    importlib.import_module("autoseg._torchvision")
    return importlib.import_module("segmentation_models_pytorch.losses")


def test_torchvision_imports_beside_a_cpu_only_torch():
    importlib.import_module("autoseg._torchvision")
    assert importlib.import_module("torchvision").__version__
    assert hasattr(torch.ops.torchvision, "nms")


def test_cross_entropy_is_torchs():
    logits, target = batch()
    assert build_loss("ce")(logits, target).item() == pytest.approx(
        F.cross_entropy(logits, target, ignore_index=255).item()
    )
    weight = torch.tensor([111 / 300, 111 / 30, 111 / 3, 111 / 3], dtype=torch.float64)
    expected = F.cross_entropy(logits, target, weight, ignore_index=255)
    assert build_loss("wce", class_counts=COUNTS)(logits, target).item() == pytest.approx(expected.item())


def test_dice_and_lovasz_are_smps(smp_losses):
    logits, target = batch(dtype=torch.float32)
    dice = smp_losses.DiceLoss("multiclass", ignore_index=255)
    assert build_loss("dice")(logits, target).item() == pytest.approx(dice(logits, target).item(), abs=1e-6)
    lovasz = smp_losses.LovaszLoss("multiclass", ignore_index=255)
    assert build_loss("lovasz")(logits, target).item() == pytest.approx(lovasz(logits, target).item(), abs=1e-6)


def test_squared_dice_squares_the_probabilities():
    logits, target = batch(void=0)
    p, y = logits.softmax(1), F.one_hot(target, 4).permute(0, 3, 1, 2)
    dice = 2 * (p * y).sum((0, 2, 3)) / ((p * p).sum((0, 2, 3)) + y.sum((0, 2, 3)))
    assert build_loss("dice-squared")(logits, target).item() == pytest.approx(1 - dice.mean().item())


def test_dpce_weighs_boundaries_twice_and_the_farthest_pixel_once():
    labels = torch.zeros(1, 1, 9, dtype=torch.long)
    labels[..., 5:] = 1
    weight = closeness_to_boundary(labels, 2)[0, 0]
    assert weight[4] == weight[5] == 1
    assert weight[0] == 0
    assert (weight[:4].diff() > 0).all()
    assert closeness_to_boundary(torch.zeros(1, 4, 4, dtype=torch.long), 2).sum() == 0
    logits, target = batch()
    ce, dpce = build_loss("ce")(logits, target), build_loss("dpce")(logits, target)
    assert ce < dpce < 2 * ce


def test_padding_with_void_changes_no_loss():
    logits, target = batch(void=0)
    for name in ("ce", "dpce", "dice", "lovasz", "ssim"):
        loss = build_loss(name)
        whole = loss(logits, target).item()
        for columns in (1, 7, 24):
            padded = loss(F.pad(logits, (0, columns)), F.pad(target, (0, columns), value=255)).item()
            assert padded == pytest.approx(whole, abs=1e-9), name


def test_dpce_by_hand():
    target = torch.tensor([[[0, 0, 1]]])
    logits = torch.tensor([0.0, 1.0, 2.0]).view(1, 1, 1, 3)
    logits = torch.cat([torch.zeros_like(logits), logits], 1).double()
    pixelwise = F.cross_entropy(logits, target, reduction="none")[0, 0]
    # boundaries are pixels 1 and 2; pixel 0 is one away, the farthest
    expected = (pixelwise[0] + 2 * pixelwise[1] + 2 * pixelwise[2]) / 3
    assert build_loss("dpce")(logits, target).item() == pytest.approx(expected.item())


def test_ssim_is_zero_for_a_perfect_map_and_falls_with_likeness():
    _, target = batch(void=0)
    hard = 1e3 * F.one_hot(target, 4).permute(0, 3, 1, 2).double()
    assert build_loss("ssim")(hard, target).item() == pytest.approx(0, abs=1e-9)
    noisy = hard + 1e3 * torch.rand(hard.shape, generator=torch.Generator().manual_seed(0))
    assert build_loss("ssim")(0.001 * noisy, target) > build_loss("ssim")(0.003 * noisy, target) > 0


@pytest.mark.parametrize("name", [*HAND_MADE, "naive:mIoU", "published:BF1", "ce + 0.5 * published:mIoU"])
def test_void_has_no_influence_and_all_void_is_finite_and_connected(name):
    loss = (
        build_loss(name, class_counts=COUNTS, mask_void=True) if ":" in name else build_loss(name, class_counts=COUNTS)
    )
    logits, target = batch(void=0.3)
    value = loss(logits, target)
    (gradient,) = torch.autograd.grad(value, logits)
    void = (target == 255).unsqueeze(1)
    assert (gradient * void).abs().max() == 0
    other = torch.where(void, torch.full_like(logits, 3.0), logits.detach())
    other[:, 1] += void[:, 0]
    assert loss(other, target).item() == pytest.approx(value.item(), abs=1e-12)
    nothing = loss(logits, torch.full_like(target, 255))
    (gradient,) = torch.autograd.grad(nothing, logits)
    assert nothing.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", HAND_MADE)
def test_gradcheck_in_float64(name):
    loss = build_loss(name, class_counts=COUNTS)
    logits, target = batch()
    small, labels = logits.detach()[:1, :, :4, :4].clone().requires_grad_(), target[:1, :4, :4]
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (small,), eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("name", [*HAND_MADE, "published:mIoU"])
def test_binary_logits_are_accepted(name):
    loss = build_loss(name, class_counts=[3, 1])
    value = loss(torch.randn(2, 1, 12, 12, requires_grad=True), torch.randint(0, 2, (2, 12, 12)))
    value.backward()
    assert value.isfinite()


def test_a_sum_is_the_sum_of_its_terms(tmp_path):
    SurrogateLoss.published("BIoU").save(tmp_path / "surrogate.json")
    logits, target = batch()
    total = build_loss(f"published:mIoU + 0.5 * {tmp_path}/surrogate.json + 2*ce")
    assert isinstance(total, LossSum)
    parts = [build_loss(name)(logits, target) for name in ("published:mIoU", "published:BIoU", "ce")]
    expected = parts[0] + 0.5 * parts[1] + 2 * parts[2]
    assert total(logits, target).item() == pytest.approx(expected.item())
    searched = build_loss("searched:biou-voc", searched={"biou-voc": str(tmp_path / "surrogate.json")})
    assert searched(logits, target) == parts[1]


def test_naive_is_the_surrogate_with_identity_curves():
    logits, target = batch()
    for metric in ("mIoU", "BF1"):
        identity = SurrogateLoss(metric, tolerance=2)
        assert build_loss(f"naive:{metric}", tolerance=2)(logits, target).item() == pytest.approx(
            identity(logits, target).item(), abs=1e-6
        )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dise", "unknown loss 'dise'; did you mean 'dice'.*Known: .*lovasz.*published"),
        ("published:mIou2", "unknown published surrogate 'mIou2'"),
        ("naive:IoU", "unknown metric 'IoU'"),
        ("wce", "give class_counts"),
        ("x * ce", "unknown loss 'x"),
        ("1.2.3 * ce", r"the weight '1\.2\.3'; expected a number"),
        ("searched:a", "no searches were given"),
        ("", "empty term"),
        ("ce+dice", "spaces around the plus"),
        ("1e400 * ce", "expected a number"),
        (None, "the loss is None; expected a name"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(spec, message):
    with pytest.raises(ValueError, match=message):
        build_loss(spec)


def test_class_counts_are_checked():
    with pytest.raises(ValueError, match="class_counts has 3 numbers; expected one for each of 4"):
        build_loss("wce", class_counts=[1, 2, 3])(*batch())
    for counts in ([-1, 2], [1, float("inf")], 3, [1, "a"]):
        with pytest.raises(ValueError, match="class_counts is"):
            build_loss("wce", class_counts=counts)


def test_a_misspelt_option_is_answered():
    with pytest.raises(ValueError, match="unknown convention 'tol'; did you mean 'tolerance'"):
        build_loss("naive:mIoU", tol=3)
    with pytest.raises(ValueError, match="unknown convention 'ignore_idx'"):
        build_loss("ce", ignore_idx=0)
    with pytest.raises(ValueError, match=r"ignore_index is 2\.5"):
        build_loss("ce", ignore_index=2.5)
    assert build_loss("Published:mIoU").surrogate.metric == "mIoU"


SYNCED = ("ce", "wce", "dpce", "ssim", "dice", "naive:FWIoU", "published:BIoU")


def test_losses_synced_over_ranks_are_those_of_the_whole_batch(tmp_path):
    torch.multiprocessing.spawn(_rank, args=(tmp_path,), nprocs=2)
    logits, target = batch(void=0.4, seed=3)
    for name in SYNCED:
        (whole,) = torch.autograd.grad(build_loss(name, class_counts=COUNTS)(logits, target), logits)
        for rank in range(2):
            part = torch.load(tmp_path / f"{name.replace(':', '-')}-{rank}.pt", weights_only=True)
            torch.testing.assert_close(part / 2, whole[rank : rank + 1])


def _rank(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    logits, target = batch(void=0.4, seed=3)
    mine = logits.detach()[rank : rank + 1].requires_grad_()
    for name in SYNCED:
        (gradient,) = torch.autograd.grad(
            build_loss(name, class_counts=COUNTS, sync=True)(mine, target[rank : rank + 1]), mine
        )
        torch.save(gradient, folder / f"{name.replace(':', '-')}-{rank}.pt")
    torch.distributed.destroy_process_group()
