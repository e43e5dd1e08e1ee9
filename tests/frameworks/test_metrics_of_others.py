"""The metrics beyond the six give the numbers of scikit-learn, smp and MONAI; docs/losses.md says where they do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoseg.metrics.formula import one_hot
from autoseg.metrics.segmentation import SegmentationMetrics

# A map with a class or two absent, in two or three dimensions.
MAPS = st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 5]), st.sampled_from([2, 3]), st.booleans())


def maps(seed, classes, dims, blobs):
    rng = np.random.default_rng(seed)
    sides = rng.integers(1, 13 if dims == 2 else 7, dims)
    there = rng.integers(0, classes, rng.integers(1, classes + 1))
    target = there[rng.integers(0, len(there), sides)]
    if blobs:
        for axis in range(dims):
            target = np.repeat(target, 2, axis)
    return np.where(rng.random(target.shape) < 0.7, target, rng.permutation(target)), target


def measured(pred, target, classes, metric, **options):
    m = SegmentationMetrics(classes, None, metrics=[metric], volumes=pred.ndim == 3, drop_background=False, **options)
    m.update(pred, target)
    return m.compute()[metric], m.per_class()[metric]


@pytest.mark.frameworks("scikit-learn")
@settings(deadline=None, derandomize=True)
@given(MAPS)
def test_mcc_and_kappa_are_those_of_scikit_learn(case):
    from sklearn.metrics import cohen_kappa_score, matthews_corrcoef

    pred, target = maps(*case)
    _, mcc = measured(pred, target, case[1], "mMCC")
    whole, kappa = measured(pred, target, case[1], "kappa")
    for c in range(case[1]):
        a, b = (pred == c).ravel(), (target == c).ravel()
        nothing = (~a).all() & (~b).all() or a.all() & b.all()
        assert np.isnan(mcc[c]) == np.isnan(kappa[c]) == nothing  # scikit-learn's MCC is 0 there, its kappa NaN
        if not nothing:
            assert mcc[c] == pytest.approx(matthews_corrcoef(b, a), abs=1e-9)
            assert kappa[c] == pytest.approx(cohen_kappa_score(b, a), abs=1e-9)
    if len(np.unique([pred, target])) > 1:
        assert whole == pytest.approx(cohen_kappa_score(target.ravel(), pred.ravel()), abs=1e-9)


@pytest.mark.frameworks("segmentation-models-pytorch")
@settings(deadline=None, derandomize=True)
@given(MAPS, st.sampled_from([0.5, 1.0, 2.0]))
def test_fbeta_is_that_of_smp(case, beta):
    import segmentation_models_pytorch.metrics as smp

    pred, target = maps(*case)
    stats = smp.get_stats(torch.tensor(pred)[None], torch.tensor(target)[None], mode="multiclass", num_classes=case[1])
    expected = smp.fbeta_score(*stats, beta=beta, reduction=None)[0].double().numpy()
    _, found = measured(pred, target, case[1], "mFbeta", beta=beta)
    there = ~np.isnan(found)  # smp has 1 for a class in neither map
    np.testing.assert_allclose(found[there], expected[there], atol=1e-6)
    if beta == 1:
        np.testing.assert_allclose(measured(pred, target, case[1], "mDice")[1][there], expected[there], atol=1e-6)


@pytest.mark.frameworks("monai")
@settings(deadline=None, derandomize=True)
@given(MAPS, st.sampled_from([0.0, 1.0, 1.5, 3.0]), st.booleans())
@pytest.mark.filterwarnings("ignore")
def test_nsd_is_that_of_monai(case, tolerance, spaced):
    from monai.metrics import compute_surface_dice

    pred, target = maps(*case)
    classes, dims = case[1], pred.ndim
    spacing = (2.0, 0.7, 1.0)[-dims:] if spaced else None
    if dims == 3 and pred.shape[0] == 1:
        return  # a volume of one slice is a slice here, and a surface all over in MONAI
    y_hat, y = (one_hot(torch.tensor(x)[None], classes, None, torch.float32) for x in (pred, target))
    expected = compute_surface_dice(y_hat, y, [tolerance] * classes, include_background=True, spacing=spacing)[0]
    _, found = measured(pred, target, classes, "NSD", surface_tolerance=tolerance, spacing=spacing)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


@pytest.mark.frameworks("monai")
@settings(deadline=None, derandomize=True)
@given(MAPS, st.sampled_from([0, 1, 3, 10]))
def test_cldice_is_that_of_monai(case, steps):
    from monai.losses.cldice import soft_skel

    pred, target = maps(*case)
    _, found = measured(pred, target, case[1], "clDice", skeleton_steps=steps)
    for c in range(case[1]):
        a, b = (torch.tensor(x == c, dtype=torch.float64)[None, None] for x in (pred, target))
        line_a, line_b = soft_skel(a, steps), soft_skel(b, steps)
        if not (line_a.sum() + line_b.sum()):
            assert np.isnan(found[c])
            continue
        precision = (line_a * b).sum() / line_a.sum().clamp(min=1)
        recall = (line_b * a).sum() / line_b.sum().clamp(min=1)
        expected = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        assert found[c] == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.frameworks("monai")
def test_the_naive_surrogate_of_cldice_is_monais_loss_without_its_smoothing():
    from monai.losses import SoftclDiceLoss

    from autoseg import build_loss

    torch.manual_seed(0)
    logits, target = torch.randn(1, 2, 16, 16, dtype=torch.float64), torch.randint(0, 2, (1, 4, 4))
    target = target.repeat_interleave(4, 1).repeat_interleave(4, 2)
    monais = SoftclDiceLoss(3, smooth_nr=0.0, smooth_dr=1e-12, smooth=1e-12, include_background=False, softmax=True)
    y = one_hot(target, 2, None)
    ours = build_loss("naive:clDice", ignore_index=None)(logits, target)
    assert ours.item() == pytest.approx(monais(logits, y).item(), abs=1e-9)
