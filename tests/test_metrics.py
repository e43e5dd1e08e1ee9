"""The fast counts equal the release's counts and the formulas, whatever the maps."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoseg.errors import InputError
from autoseg.metrics import formula
from autoseg.metrics.conventions import Conventions
from autoseg.metrics.counts import dilate
from autoseg.metrics.formula import METRICS, Formula, ratio
from autoseg.metrics.segmentation import SegmentationMetrics
from tests.refusals import refused

GOLDEN_METRICS = json.loads((Path(__file__).parent / "golden" / "official.json").read_text())["metrics"]
VECTORS = ("n_pred_edge", "n_target_edge", "matched_pred", "matched_target")


@pytest.mark.parametrize("case", GOLDEN_METRICS, ids=lambda c: f"{c['case']}-{c['tolerance']}-{c['drop_background']}")
def test_counts_are_identical_to_the_release_and_scores_agree(case, golden):
    target, pred = (golden[1][f"m{case['case']}_{name}"] for name in ("target", "pred"))
    classes = case["num_classes"]
    m = SegmentationMetrics(classes, 255, case["tolerance"], case["boundary_radius"], case["drop_background"])
    m.update(pred, target)
    for name in ("confusion", "boundary_confusion"):
        assert m.counts[name][:, :classes].tolist() == case[name]
        assert m.counts[name][:, classes].sum() == 0
    for name in VECTORS:
        assert m.counts[name].tolist() == case[name]
    scores = m.compute()
    assert list(scores) == list(METRICS)
    for name, expected in case["scores"].items():
        assert scores[name] == pytest.approx(expected, abs=1e-6)


@st.composite
def label_maps(draw, max_classes=7):
    """A pair of label maps, blocky or noisy, with void in the target and, sometimes, no class in the prediction."""
    classes = draw(st.integers(1, max_classes))
    n, h, w = draw(st.integers(1, 3)), draw(st.integers(1, 19)), draw(st.integers(1, 19))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    block, used = draw(st.sampled_from([1, 3, 6])), draw(st.integers(1, classes))

    def one(void):
        coarse = rng.integers(0, used, (n, -(-h // block), -(-w // block)))
        labels = np.repeat(np.repeat(coarse, block, 1), block, 2)[:, :h, :w]
        return np.where(rng.random((n, h, w)) < void, 255, labels)

    target = one(draw(st.sampled_from([0.0, 0.1, 0.6, 1.0])))
    return classes, one(draw(st.sampled_from([0.0, 0.0, 0.2]))), target


conventions = st.builds(
    Conventions,
    tolerance=st.integers(0, 7),
    boundary_radius=st.integers(0, 7),
    drop_background=st.booleans(),
    mask_void=st.booleans(),
    absent=st.sampled_from(["skip", "zero"]),
)


def metrics_with(c: Conventions, classes: int, **more) -> SegmentationMetrics:
    return SegmentationMetrics(
        classes,
        255,
        c.tolerance,
        c.boundary_radius,
        c.drop_background,
        mask_void=c.mask_void,
        absent=c.absent,
        empty=0.0,
        **more,
    )


def assert_equal_formulas(m: SegmentationMetrics, pred, target):
    scores, per_class = m.compute(), m.per_class()
    for name in METRICS:
        f = formula.get(name)
        sums = f.count(torch.tensor(pred), torch.tensor(target), m.num_classes, 255, m.conventions)
        np.testing.assert_allclose(per_class[name], f.per_class(sums).numpy(), atol=1e-12, err_msg=name)
        assert scores[name] == pytest.approx(float(f.score(sums, m.conventions)), abs=1e-12)
        assert 0 <= scores[name] <= 1


@given(label_maps(), conventions)
def test_kernels_equal_the_formulas(maps, c):
    classes, pred, target = maps
    m = metrics_with(c, classes)
    m.update(pred, target)
    assert_equal_formulas(m, pred, target)


@pytest.mark.parametrize("classes", [8, 16, 31, 32, 33, 64, 65, 150, 255, 256, 300])
def test_kernels_equal_the_formulas_for_many_classes(classes):
    rng = np.random.default_rng(classes)
    target = rng.integers(0, classes, (2, 6, 7)).repeat(2, 1).repeat(2, 2)
    pred = np.where(rng.random(target.shape) < 0.5, target, rng.integers(0, classes, target.shape))
    void = 255 if classes <= 255 else 999
    target[0, :3] = void
    m = SegmentationMetrics(classes, void, tolerance=1, boundary_radius=2)
    m.update(pred, target)
    for name in METRICS:
        f = formula.get(name)
        exact = f.evaluate(torch.tensor(pred), torch.tensor(target), classes, void, m.conventions)
        assert m.compute()[name] == pytest.approx(exact, abs=1e-12)


@given(label_maps(), st.randoms())
def test_counts_add_over_batches_in_any_order_and_grouping(maps, random):
    classes, pred, target = maps
    whole, parts, others = (SegmentationMetrics(classes, ignore_index=255, empty=0.0) for _ in range(3))
    whole.update(pred, target)
    order = list(range(len(pred)))
    random.shuffle(order)
    for i in order[:1]:
        parts.update(torch.tensor(pred[i]), torch.tensor(target[i]))  # (H, W)
    for i in order[1:]:
        others.update(pred[i : i + 1], target[i : i + 1])  # (1, H, W)
    parts.merge(pickle.loads(pickle.dumps(others)))  # as from a worker process
    assert parts.compute() == whole.compute()


@given(st.integers(0, 30), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_dilation_reaches_exactly_radius_pixels(radius, h, w, seed):
    x = np.random.default_rng(seed).random((1, h, w)) < 0.1
    got = dilate(torch.tensor(x).to(torch.int32), radius)[0].numpy()
    rows, columns = np.nonzero(x[0])
    expected = np.zeros((h, w), int)
    for i, j in zip(rows, columns, strict=True):
        expected[max(0, i - radius) : i + radius + 1, max(0, j - radius) : j + radius + 1] = 1
    assert got.tolist() == expected.tolist()


def test_a_perfect_prediction_scores_one_also_where_classes_are_absent():
    target = np.repeat(np.arange(3), 4)[None].repeat(6, 0)
    m = SegmentationMetrics(6)
    m.update(target, target)
    assert m.compute() == dict.fromkeys(METRICS, 1.0)  # the release's FWIoU would say 2.0
    assert np.isnan(m.per_class()["mIoU"][3:]).all()


def test_masking_void_in_bf1_ignores_what_is_predicted_there():
    target = np.zeros((8, 8), int)
    target[:, 4:] = 1
    target[3:5] = 255
    clean, dirty = target.copy(), target.copy()
    clean[3:5], dirty[3:5] = 0, np.arange(16).reshape(2, 8) % 2
    for pred in (clean, dirty):
        m = SegmentationMetrics(2, tolerance=0, mask_void=True, metrics=["BF1"])
        m.update(pred, target)
        assert m.compute() == {"BF1": 1.0}
    seen = SegmentationMetrics(2, tolerance=0, metrics=["BF1"])
    seen.update(dirty, target)
    assert seen.compute()["BF1"] < 1  # the release: the border to void is an edge


def test_presets_have_the_data_sets_settings():
    assert SegmentationMetrics.preset("VOC", 21).conventions == Conventions(absent="skip")
    city = SegmentationMetrics.preset("cityscapes", 19, tolerance=3)
    assert (city.conventions.drop_background, city.conventions.tolerance) == (False, 3)
    own = SegmentationMetrics.preset(Conventions(absent="zero"), 21)
    assert own.conventions == Conventions(absent="zero")
    with pytest.raises(ValueError, match="unknown conventions 'coco'"):
        SegmentationMetrics.preset("coco", 80)


def test_all_integer_types_and_both_libraries_count_alike():
    rng = np.random.default_rng(0)
    pred, target = rng.integers(0, 4, (2, 9, 9)), rng.integers(0, 4, (2, 9, 9))
    expected = SegmentationMetrics(4)
    expected.update(pred, target)
    frozen = pred.astype(np.uint8)
    frozen.flags.writeable = False
    for p, t in [
        (frozen, target.astype(np.uint16)),
        (pred.astype(np.uint64), target.astype(np.int16)),
        (torch.tensor(pred, dtype=torch.int32), torch.tensor(target, dtype=torch.uint8)),
        (np.asfortranarray(pred), target[:, ::-1].copy()[:, ::-1]),
        (torch.tensor(pred).transpose(0, 2).contiguous().transpose(0, 2), torch.tensor(target).to(torch.uint16)),
        (pred.tolist(), torch.tensor(target).transpose(1, 2).contiguous().transpose(1, 2)),
    ]:
        m = SegmentationMetrics(4)
        m.update(p, t)
        assert m.compute() == expected.compute()
    binary = SegmentationMetrics(2)
    binary.update(pred > 1, target > 1)
    as_ints = SegmentationMetrics(2, ignore_index=-100)
    as_ints.update((pred > 1).astype(int), np.where(target > 1, 1, 0))
    assert binary.compute() == as_ints.compute()


def test_void_may_be_any_label_or_none():
    pred, target = np.array([[0, 1, 2, 1]]), np.array([[0, 1, 1, -7]])
    m = SegmentationMetrics(3, ignore_index=-7, metrics=["gAcc"])
    m.update(pred, target)
    assert m.compute()["gAcc"] == pytest.approx(2 / 3)
    inner = SegmentationMetrics(3, ignore_index=0, metrics="gAcc")
    inner.update(pred, np.array([[0, 1, 1, 1]]))
    assert inner.compute()["gAcc"] == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="holds labels 255"):
        SegmentationMetrics(3, ignore_index=None).update(pred, np.array([[0, 1, 1, 255]]))


@pytest.mark.parametrize(
    ("pred", "target", "where", "found", "expected"),
    [
        (np.full((4, 4), 0.5), np.zeros((4, 4), int), "pred", "0.5", "integer class labels"),
        (torch.zeros(4, 4, dtype=torch.long), torch.full((4, 4), 1.2), "target", "1.2", "integer class labels"),
        (np.zeros((4, 4), int), np.zeros((4, 5), int), "pred", "(1, 4, 4)", "(1, 4, 5)"),
        (np.zeros((2, 5, 4, 4), int), np.zeros((2, 4, 4), int), "pred", "(2, 5, 4, 4)", "(H, W)"),
        (np.zeros((0, 4), int), np.zeros((0, 4), int), "target", "(0, 4)", "(H, W)"),
        (np.full((4, 4), 3), np.zeros((4, 4), int), "pred", "labels 3", "0..2 or 255 (void)"),
        (np.zeros((4, 4), int), np.full((4, 4), -1), "target", "labels -1", "0..2"),
        (np.zeros((4, 4), int), np.full((4, 4), 300), "target", "labels 300", "0..2"),
        (np.array([["a"]]), np.zeros((1, 1), int), "pred", "<U1", "integer class labels"),
    ],
)
def test_bad_input_is_named_and_leaves_the_counts_as_they_were(pred, target, where, found, expected):
    m = SegmentationMetrics(3)
    m.update(np.arange(9).reshape(3, 3) % 3, np.arange(9).reshape(3, 3) // 3)
    before = {name: value.tolist() for name, value in m.counts.items()}
    with pytest.raises(InputError) as error:
        m.update(pred, target)
    assert error.value.where == where
    assert found in error.value.what
    assert expected in error.value.expected
    assert {name: value.tolist() for name, value in m.counts.items()} == before


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"num_classes": 0}, "0"),
        ({"num_classes": 2.5}, "2.5"),
        ({"tolerance": -1}, "-1"),
        ({"boundary_radius": 1.5}, "1.5"),
        ({"drop_background": "yes"}, "'yes'"),
        ({"absent": "nan"}, "'nan'"),
        ({"ignore_index": "void"}, "'void'"),
        ({"metrics": []}, "empty"),
        ({"ignore_index": True}, "True"),
    ],
)
def test_bad_settings_are_named(arguments, found):
    with pytest.raises(InputError) as error:
        SegmentationMetrics(**{"num_classes": 3, **arguments})
    assert error.value.where == next(iter(arguments))
    assert found in error.value.what


@pytest.mark.parametrize(("metrics", "found"), [(["mIuO"], "did you mean 'mIoU'"), (3, "'3'")])
def test_an_unknown_metric_is_named(metrics, found):
    with refused(what=found):
        SegmentationMetrics(3, metrics=metrics)


def test_numpys_whole_numbers_are_whole_numbers():
    m = SegmentationMetrics(np.int64(3), np.uint8(255), tolerance=np.int32(1))
    m.update(np.zeros((2, 2), int), np.zeros((2, 2), int))
    assert m.compute()["mIoU"] == 1
    assert "num_classes=3" in repr(m)


def test_metrics_of_different_settings_do_not_merge():
    with pytest.raises(ValueError, match="None cannot be merged"):
        SegmentationMetrics(3).merge(None)
    with pytest.raises(ValueError, match="cannot be merged"):
        SegmentationMetrics(3).merge(SegmentationMetrics(3, tolerance=1))


def test_before_any_update_and_after_reset_every_score_is_empty():
    assert all(np.isnan(score) for score in SegmentationMetrics(3).compute().values())
    m = SegmentationMetrics(3, empty=0.0)
    assert m.compute() == dict.fromkeys(METRICS, 0.0)
    m.update(np.zeros((2, 2), int), np.zeros((2, 2), int))
    assert m.compute()["mIoU"] == 1
    m.reset()
    assert m.compute() == dict.fromkeys(METRICS, 0.0)
    m.update(np.zeros((0, 4, 4), int), np.zeros((0, 4, 4), int))  # an empty last batch
    assert m.compute() == dict.fromkeys(METRICS, 0.0)


def test_a_perfect_image_without_boundaries_has_no_boundary_score():
    m = SegmentationMetrics(3)
    one = np.ones((4, 4), int)
    m.update(one, one)
    scores = m.compute()
    assert (scores["mIoU"], scores["gAcc"]) == (1, 1)
    assert np.isnan([scores["BIoU"], scores["BF1"]]).all()
    assert np.isnan(m.per_class()["BF1"]).all()


def test_metrics_are_a_module_that_scores_a_batch_and_counts_it():
    rng = np.random.default_rng(4)
    pred, target = torch.tensor(rng.integers(0, 3, (2, 4, 9, 9)))
    m, alone = SegmentationMetrics(3), SegmentationMetrics(3)
    m.update(pred[:2], target[:2])
    alone.update(pred[2:], target[2:])
    assert m(pred[2:], target[2:]) == alone.compute()
    whole = SegmentationMetrics(3)
    whole.update(pred, target)
    assert m.compute() == whole.compute()
    holder = torch.nn.Sequential(m).half()
    assert m.compute() == whole.compute()  # counts are not rounded
    assert holder.state_dict() == {}
    assert {count.device.type for count in m.to("meta").counts.values()} == {"meta"}


def test_scores_per_image_are_means_over_the_images_that_can_be_measured():
    rng = np.random.default_rng(5)
    pred, target = rng.integers(0, 3, (2, 3, 9, 9))
    pred[2] = target[2] = 1  # no boundary
    m, images = SegmentationMetrics(3, per_image=True), []
    m.update(pred[:2], target[:2])
    m.update(pred[2:], target[2:])
    for i in range(3):
        one = SegmentationMetrics(3)
        one.update(pred[i], target[i])
        images.append(one.compute())
    for name in METRICS:
        assert m.compute()[name] == pytest.approx(np.nanmean([scores[name] for scores in images]))
    assert np.isnan(images[2]["BF1"])


def test_class_weights_weigh_the_mean_and_0_leaves_a_class_out():
    rng = np.random.default_rng(6)
    pred, target = rng.integers(0, 3, (2, 2, 9, 9))
    m = SegmentationMetrics(3, class_weights=[0, 1, 3], drop_background=False)
    m.update(pred, target)
    for name in ("mIoU", "mAcc", "BIoU", "BF1"):
        _, one, two = m.per_class()[name]
        assert m.compute()[name] == pytest.approx((one + 3 * two) / 4)
    for bad in ([1, 2], [0, 0, 0], [1, -1, 1], "no"):
        with pytest.raises(InputError, match="class_weights"):
            SegmentationMetrics(3, class_weights=bad)


@given(label_maps(), conventions)
def test_a_volume_of_depth_1_scores_as_its_slice(maps, c):
    classes, pred, target = maps
    flat, volumes = metrics_with(c, classes), metrics_with(c, classes, volumes=True)
    flat.update(pred, target)
    volumes.update(pred[:, None], target[:, None])
    assert volumes.compute() == pytest.approx(flat.compute(), abs=1e-12)


def test_edges_of_a_volume_are_in_three_dimensions():
    target = np.zeros((6, 6, 6), int)
    target[2:4] = 1  # no slice (H, W) has an edge
    m = SegmentationMetrics(2, volumes=True, tolerance=0, boundary_radius=0)
    m.update(target, target)
    assert m.compute()["BF1"] == 1
    shifted = np.roll(target, 2, 0)
    m.reset()
    m.update(shifted, target)
    assert m.compute()["BF1"] == 0
    with pytest.raises(InputError, match="D, H, W"):
        m.update(target[0], target[0])


@pytest.fixture
def mean_dice():
    f = Formula(
        "mDice",
        sums=lambda y_hat, y, ops: {"both": ops.AND("AND", y_hat, y), "size": y_hat + y},
        per_class=lambda s: ratio(2 * s["both"], s["size"]),
    )
    return formula.register(f)


def test_a_registered_formula_is_a_metric_like_the_six(mean_dice):
    rng = np.random.default_rng(1)
    pred, target = rng.integers(0, 4, (3, 8, 8)), rng.integers(0, 4, (3, 8, 8))
    target[0] = 255
    m = SegmentationMetrics(4, metrics=["mIoU", "MDICE"], empty=0.0)
    assert m.compute() == {"mIoU": 0.0, "mDice": 0.0}
    for p, t in zip(pred, target, strict=True):
        m.update(p, t)
    iou = m.per_class()["mIoU"]
    np.testing.assert_allclose(m.per_class()["mDice"], 2 * iou / (1 + iou), atol=1e-12)
    assert m.compute()["mDice"] == pytest.approx((2 * iou / (1 + iou)).mean())
    with pytest.raises(ValueError, match="registered already"):
        formula.register(mean_dice)


def test_counts_add_over_processes(tmp_path):
    maps = np.random.default_rng(3).integers(0, 5, (2, 2, 10, 10))
    torch.multiprocessing.spawn(_rank, args=(str(tmp_path / "store"), maps, tmp_path), nprocs=2)
    whole = SegmentationMetrics(5)
    whole.update(maps[0], maps[1])
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == whole.compute()


def _rank(rank: int, store: str, maps: np.ndarray, folder: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    m = SegmentationMetrics(5)
    m.update(maps[0, rank], maps[1, rank])
    synced = m.compute()  # adds up the processes' counts by itself, and leaves one's own as they are
    assert int(m.counts["confusion"].sum()) == maps[0, rank].size
    m.all_reduce()
    assert m.compute() == synced
    with pytest.raises(InputError, match="different settings"):
        SegmentationMetrics(5, tolerance=rank).compute()
    _train_with_metrics_inside(m, maps[:, rank])
    (folder / f"{rank}.json").write_text(json.dumps(m.compute()))
    dist.destroy_process_group()


def _train_with_metrics_inside(m: SegmentationMetrics, maps: np.ndarray) -> None:
    """Count between the steps of DistributedDataParallel, which gives all processes the buffers of the first."""
    network = torch.nn.Conv2d(1, 1, 1)
    network.metrics = m
    before = m.compute()
    parallel = torch.nn.parallel.DistributedDataParallel(network)
    m.reset()
    for part in np.split(maps, 2, axis=1):
        with torch.inference_mode():
            m.update(*part)
        parallel(torch.zeros(1, 1, 1, 1)).sum().backward()
    assert m.compute() == before


@pytest.mark.parametrize("metric", [*METRICS, "mDice", "BoundaryIoU", "NSD", "clDice"])
def test_labels_of_many_classes_are_only_read(metric):
    target = torch.arange(300, dtype=torch.int32).view(1, 15, 20)
    before, metrics = target.clone(), SegmentationMetrics(num_classes=300, ignore_index=None, metrics=[metric])
    metrics.update(target, target)
    assert metrics.compute() == {metric: 1.0}
    assert torch.equal(target, before)


def test_metrics_of_many_classes_have_one_score_alone_and_together():
    pred, target = torch.randint(0, 300, (2, 2, 15, 20), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    names = [*METRICS, "mDice", "BoundaryIoU", "NSD"]
    together, alone = (SegmentationMetrics(300, None, metrics=wanted) for wanted in (names, ["mDice"]))
    assert together(pred, target)["mDice"] == alone(pred, target)["mDice"]
