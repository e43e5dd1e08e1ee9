"""The hand-made losses: equal to their libraries where those are right, and right where those are not."""

from __future__ import annotations

import importlib
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from autoseg.errors import InputError
from autoseg.losses.build import WeightedSumLoss, build_loss
from autoseg.losses.hand_made import CrossEntropyLoss, FocalLoss, TverskyLoss
from autoseg.losses.kernels import device_labels
from autoseg.losses.labels import Labels
from autoseg.losses.names import HAND_MADE, parse_loss
from autoseg.losses.surrogate_loss import SurrogateLoss
from tests.refusals import refused

COUNTS = [100, 10, 1, 0]


def batch(void=0.1, seed=0, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 4, (2, 5, 5)).repeat(2, 1).repeat(2, 2)
    target = np.where(rng.random(target.shape) < void, 255, target)
    return torch.tensor(rng.standard_normal((2, 4, 10, 10)), dtype=dtype).requires_grad_(), torch.tensor(target)


@pytest.mark.parametrize("name", [*HAND_MADE, "published:BF1", "naive:NSD", "published:mIoU + 0.5 * dice"])
def test_losses_are_pickled_with_a_module_and_not_rounded_with_it(name):
    logits, target = batch()
    module = torch.nn.Sequential(build_loss(name, class_counts=[10**9, 1000, 10, 0]))
    value = module[0](logits, target)
    assert pickle.loads(pickle.dumps(module))[0](logits, target) == value
    assert module.half()[0](logits, target) == value


@pytest.fixture(scope="module")
def smp_losses():
    importlib.import_module("autoseg.training._torchvision")
    return importlib.import_module("segmentation_models_pytorch.losses")


def test_torchvision_imports_beside_a_cpu_only_torch():
    importlib.import_module("autoseg.training._torchvision")
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


def test_losses_of_the_release_divide_by_all_pixels_void_too():
    logits, target = batch(void=0.3)
    share = float((target != 255).double().mean())
    for name in ("ce", "dpce", "ssim"):
        valid, everything = (build_loss(kind)(logits, target).item() for kind in (name, f"{name}-release"))
        assert everything == pytest.approx(share * valid)
        assert build_loss(f"{name}-release")(logits, torch.full_like(target, 255)) == 0


def test_cross_entropy_of_the_release_by_hand():
    # Four pixels, one of them void: -log of 1/2, 3/4 and 1/4, over four.
    logits = torch.log(torch.tensor([[1.0, 1.0], [3.0, 1.0], [3.0, 1.0], [1.0, 1.0]])).T.view(1, 2, 1, 4)
    target = torch.tensor([[[0, 0, 1, 255]]])
    surprise = -np.log([1 / 2, 3 / 4, 1 / 4])
    assert build_loss("ce")(logits, target).item() == pytest.approx(surprise.sum() / 3)
    assert build_loss("ce-release")(logits, target).item() == pytest.approx(surprise.sum() / 4)
    # Weights 4 / (2 * 3) and 4 / (2 * 1); the release does not divide by them.
    weights = np.array([2 / 3, 2 / 3, 2])
    for name, divisor in (("wce", weights.sum()), ("wce-release", 4)):
        value = build_loss(name, class_counts=[3, 1])(logits, target).item()
        assert value == pytest.approx((weights * surprise).sum() / divisor), name


def test_dice_of_the_release_by_hand():
    # Two images of two pixels, p = 3/4 and 1/4; the second pixel of the second image is void.
    logits = torch.log(torch.tensor([3.0, 1.0])).view(1, 2, 1, 1).expand(2, 2, 1, 2)
    target = torch.tensor([[[0, 1]], [[0, 255]]])
    first = [1 - (2 * 3 / 4 + 1) / (2 * 9 / 16 + 1 + 1), 1 - (2 * 1 / 4 + 1) / (2 * 1 / 16 + 1 + 1)]
    # Above the line void is left out; below it counts, and as a pixel of the last class.
    second = [1 - (2 * 3 / 4 + 1) / (2 * 9 / 16 + 1 + 1), 1 - (0 + 1) / (2 * 1 / 16 + 1 + 1)]
    assert build_loss("dice-release")(logits, target).item() == pytest.approx(np.mean([first, second]))
    # A class that is in neither map scores 1 by the smoothing, and counts.
    perfect = torch.tensor([50.0, 0.0, 0.0]).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    assert build_loss("dice-release")(perfect, torch.zeros(1, 2, 2).long()).item() == pytest.approx(0, abs=1e-6)


def test_what_a_mean_is_over_is_checked():
    with pytest.raises(InputError) as error:
        CrossEntropyLoss(mean_over="void")
    assert error.value.where == "mean_over"


def test_every_hand_made_name_is_built():
    for name in HAND_MADE:
        assert isinstance(build_loss(name, class_counts=COUNTS), torch.nn.Module)


def test_squared_dice_squares_the_probabilities():
    logits, target = batch(void=0)
    p, y = logits.softmax(1), F.one_hot(target, 4).permute(0, 3, 1, 2)
    dice = 2 * (p * y).sum((0, 2, 3)) / ((p * p).sum((0, 2, 3)) + y.sum((0, 2, 3)))
    assert build_loss("dice-squared")(logits, target).item() == pytest.approx(1 - dice.mean().item())


def test_jml_is_the_soft_jaccard_loss_and_with_soft_maps_least_at_the_map_itself():
    logits, target = batch(void=0)
    p, y = logits.softmax(1), F.one_hot(target, 4).permute(0, 3, 1, 2).double()
    both, size, apart = ((x.sum((0, 2, 3))) for x in (p * y, p + y, (p - y).abs()))
    assert build_loss("jml")(logits, target).item() == pytest.approx(1 - (both / (size - both)).mean().item())
    assert build_loss("jml")(logits, target).item() == pytest.approx(
        1 - ((size - apart) / (size + apart)).mean().item()
    )
    soft, loss = (0.5 * logits.detach()).softmax(1), build_loss("jml")
    exact = soft.log().requires_grad_()
    assert loss(exact, soft).item() == pytest.approx(0, abs=1e-9)
    assert loss(2 * exact, soft) > 0.01
    assert build_loss("naive:mIoU", absent="skip")(exact, soft) > 0.1  # the plain soft Jaccard loss is not


def test_focal_with_gamma_0_is_cross_entropy_and_with_2_is_by_hand():
    logits, target = batch()
    assert FocalLoss(gamma=0)(logits, target).item() == pytest.approx(build_loss("ce")(logits, target).item())
    pixelwise = F.cross_entropy(logits, target, ignore_index=255, reduction="none")[target != 255]
    expected = ((1 - (-pixelwise).exp()) ** 2 * pixelwise).mean()
    assert build_loss("focal")(logits, target).item() == pytest.approx(expected.item())
    weights = torch.tensor([1.0, 2.0, 0.5, 0.0], dtype=torch.float64)
    w = weights[target[target != 255]]
    expected = (w * (1 - (-pixelwise).exp()) ** 2 * pixelwise).sum() / w.sum()
    found = build_loss("focal", class_weights=weights.tolist())(logits, target)
    assert found.item() == pytest.approx(expected.item())


def test_tversky_is_dice_with_halves_and_smps_with_the_papers_numbers(smp_losses):
    logits, target = batch(dtype=torch.float32)
    halves = TverskyLoss(alpha=0.5, beta=0.5)(logits, target)
    assert halves.item() == pytest.approx(build_loss("dice")(logits, target).item(), abs=1e-6)
    theirs = smp_losses.TverskyLoss("multiclass", ignore_index=255, alpha=0.3, beta=0.7)
    assert build_loss("tversky")(logits, target).item() == pytest.approx(theirs(logits, target).item(), abs=1e-6)


@pytest.mark.parametrize(
    ("make", "where"), [(lambda: FocalLoss(gamma=0.5), "gamma"), (lambda: TverskyLoss(beta=0), "beta")]
)
def test_what_a_rival_cannot_take_is_refused(make, where):
    with pytest.raises(InputError) as error:
        make()
    assert error.value.where == where


@given(
    st.sampled_from(["jml", "dml", "focal", "tversky", "boundary"]),
    st.integers(1, 4),
    st.floats(0, 1e30),
    st.floats(0, 1),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_the_rivals_are_finite_on_any_finite_batch(name, classes, scale, void, seed):
    draw = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(2, classes, 5, 4, generator=draw)).requires_grad_()
    target = torch.randint(0, max(classes, 2), (2, 5, 4), generator=draw)
    target[torch.rand(target.shape, generator=draw) < void] = 255
    value = build_loss(name, ignore_index=255)(logits, target)
    value.backward()
    assert value.isfinite()
    assert logits.grad.isfinite().all()


def test_dml_is_the_dice_loss_and_with_soft_maps_least_at_the_map_itself():
    logits, target = batch()
    assert build_loss("dml")(logits, target).item() == pytest.approx(build_loss("dice")(logits, target).item())
    soft, loss = (0.5 * logits.detach()).softmax(1), build_loss("dml")
    assert loss(soft.log(), soft).item() == pytest.approx(0, abs=1e-6)
    assert loss((0.3 * logits).detach(), soft) > 0.01
    sharper = soft.log() * 3
    assert build_loss("dice")(sharper, soft) < build_loss("dice")(soft.log(), soft)  # the Dice loss is not least there
    assert loss(sharper, soft) > 0.01


def test_the_boundary_loss_by_hand():
    target = torch.tensor([[[0, 1, 1, 1, 0, 255]]])
    distances = Labels(target).signed_distances(3, 255)[0, :, 0]
    assert distances[1, :5].tolist() == [1, 0, -1, 0, 1]
    assert distances[0, :5].tolist() == [0, 1, 2, 1, 0]
    assert distances[2].abs().sum() == 0  # a class that is not there
    logits = torch.randn(1, 3, 1, 6, dtype=torch.float64)
    p = logits.softmax(1)[0, :, 0, :5]
    expected = (p[1] @ distances[1, :5].double() + p[0] @ distances[0, :5].double()) / 15
    assert build_loss("boundary")(logits, target).item() == pytest.approx(expected.item())
    foreground = build_loss("boundary", class_weights=[0, 1, 0])(logits, target).item()
    assert foreground == pytest.approx((p[1] @ distances[1, :5].double() / 5).item())
    assert build_loss("boundary")(logits, torch.ones(1, 1, 6).long()) == 0  # no boundary


def test_the_boundary_loss_takes_volumes_on_cpu_and_device_alike():
    target = torch.randint(0, 3, (2, 3, 4, 5), generator=torch.Generator().manual_seed(0))
    target[0, 0] = 255
    known = torch.where(target == 255, 3, target)
    on_device = device_labels.signed_distances(known, 3, (1.0,) * (known.ndim - 1))
    torch.testing.assert_close(Labels(target).signed_distances(3, 255), on_device)
    logits = torch.randn(2, 3, 3, 4, 5, requires_grad=True)
    value = build_loss("dice + 0.01 * boundary")(logits, target)
    value.backward()
    assert logits.grad.isfinite().all()
    flat = build_loss("boundary")
    one = flat(logits[:, :, 1:2], target[:, 1:2]).item()
    assert one == pytest.approx(flat(logits[:, :, 1], target[:, 1]).item(), abs=1e-6)


def test_dpce_weighs_boundaries_twice_and_the_farthest_pixel_once():
    labels = torch.zeros(1, 1, 9, dtype=torch.long)
    labels[..., 5:] = 1
    weight = Labels(labels).closeness(2, 255)[0, 0]
    assert weight[4] == weight[5] == 1
    assert weight[0] == 0
    assert (weight[:4].diff() > 0).all()
    assert Labels(torch.zeros(1, 4, 4, dtype=torch.long)).closeness(2, 255).sum() == 0
    logits, target = batch()
    ce, dpce = build_loss("ce")(logits, target), build_loss("dpce")(logits, target)
    assert ce < dpce < 2 * ce


def test_padding_with_void_changes_no_loss():
    logits, target = batch(void=0)
    for name in ("ce", "dpce", "dice", "lovasz", "ssim", "jml", "dml", "focal", "tversky", "boundary"):
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


VOID_COUNTS = ("dice-release",)  # the release's Dice sees void below the fraction


@pytest.mark.parametrize(
    "name", [*sorted({*HAND_MADE} - {*VOID_COUNTS}), "naive:mIoU", "published:BF1", "ce + 0.5 * published:mIoU"]
)
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
    assert isinstance(total, WeightedSumLoss)
    parts = [build_loss(name)(logits, target) for name in ("published:mIoU", "published:BIoU", "ce")]
    expected = parts[0] + 0.5 * parts[1] + 2 * parts[2]
    assert total(logits, target).item() == pytest.approx(expected.item())
    searched = build_loss("searched:biou-voc", searched={"biou-voc": str(tmp_path / "surrogate.json")})
    assert searched(logits, target) == parts[1]


def test_published_surrogates_take_the_arguments_of_loaded_ones(tmp_path):
    SurrogateLoss.published("BIoU").save(tmp_path / "surrogate.json")
    loaded = SurrogateLoss.load(tmp_path / "surrogate.json", check_labels=True, sync=True, mode="binary")
    published = SurrogateLoss.published("BIoU", check_labels=True, sync=True, mode="binary")
    assert (published.check_labels, published.sync, published.mode) == (True, True, "binary")
    assert (loaded.check_labels, loaded.sync, loaded.mode) == (True, True, "binary")


def test_naive_is_the_surrogate_with_identity_curves():
    logits, target = batch()
    for metric in ("mIoU", "BF1"):
        identity = SurrogateLoss(metric, tolerance=2)
        assert build_loss(f"naive:{metric}", tolerance=2)(logits, target).item() == pytest.approx(
            identity(logits, target).item(), abs=1e-6
        )


@pytest.mark.parametrize(
    ("spec", "what", "remedy"),
    [
        ("dise", "unknown loss 'dise'; did you mean 'dice'?", "lovasz"),
        ("published:mIou2", "unknown published surrogate 'mIou2'", "mIoU"),
        ("naive:IoU", "unknown metric 'IoU'", "mIoU"),
        ("foo:mIoU", "unknown loss 'foo:mIoU'", "naive:"),
        ("wce", "'wce'", "class_counts"),
        ("x * ce", "unknown loss 'x", "ce"),
        ("1.2.3 * ce", "'1.2.3'", "number"),
        ("searched:a", "no searches were given", "surrogate.json"),
        ("", "empty term", "names joined by ' + '"),
        ("ce+dice", "unknown loss 'ce+dice'", "spaces around the plus"),
        ("1e400 * ce", "'1e400'", "number"),
        (None, "None", "a name"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(spec, what, remedy):
    with pytest.raises(InputError) as error:
        build_loss(spec)
    assert what in error.value.what
    assert remedy in error.value.expected + error.value.cure


def test_a_loss_is_parsed_into_terms():
    terms = parse_loss("Naive:mIoU + 0.5*CE + 2e-1 * searched:voc-BIoU + a:b/c d.json")
    assert terms == [
        (1.0, "naive", "mIoU"),
        (0.5, "hand-made", "ce"),
        (0.2, "searched", "voc-BIoU"),
        (1.0, "file", "a:b/c d.json"),
    ]
    assert [term.text for term in terms] == ["naive:mIoU", "ce", "searched:voc-BIoU", "a:b/c d.json"]
    assert parse_loss("mIoU-paper + wce", bare="published")[0] == (1.0, "published", "mIoU-paper")
    with refused(what="search 'b'", expected="a"):
        terms[2]._replace(name="b").surrogate({"a": "a.json"})


def test_class_counts_are_checked():
    with pytest.raises(InputError) as error:
        build_loss("wce", class_counts=[1, 2, 3])(*batch())
    assert (error.value.where, error.value.expected) == ("class_counts", "one for each of 4 classes")
    for counts in ([-1, 2], [1, float("inf")], 3, [1, "a"]):
        with pytest.raises(InputError) as error:
            build_loss("wce", class_counts=counts)
        assert error.value.where == "class_counts"


def test_a_misspelt_option_is_answered():
    with refused(what="did you mean 'tolerance'?"):
        build_loss("naive:mIoU", tol=3)
    with refused(what="'ignore_idx'"):
        build_loss("ce", ignore_idx=0)
    with pytest.raises(InputError) as error:
        build_loss("ce", ignore_index=2.5)
    assert error.value.where == "ignore_index"
    assert build_loss("Published:mIoU").surrogate.metric == "mIoU"


SYNCED = (
    *("ce", "wce", "dpce", "ssim", "dice", "naive:FWIoU", "published:BIoU"),
    *("ce-release", "wce-release", "dice-release", "jml", "dml", "focal", "tversky", "boundary"),
)


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
