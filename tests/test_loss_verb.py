"""`autoseg loss`: a loss as text, as a picture, and as a Python file that computes the same with torch alone."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from autoseg.cli import main
from autoseg.losses.build import build_loss
from autoseg.losses.curves import Curve, evaluate_piece
from autoseg.losses.published import PUBLISHED
from autoseg.losses.surrogate import Surrogate
from autoseg.losses.surrogate_loss import SurrogateLoss
from autoseg.metrics import formula
from autoseg.metrics.formula import Formula, register
from autoseg.metrics.more import MORE

METRICS = ("mIoU", "FWIoU", "BIoU", "BF1", "mAcc", "gAcc")


def export(spec: str, folder: Path, name: str = "exported"):
    """Export a loss and return its module, as a user who has no autoseg would load it."""
    path = folder / f"{name}.py"
    assert main(["loss", "export", spec, "--out", str(path)]) == 0
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    module.__spec__.loader.exec_module(module)
    return module


def batch(classes: int = 5, seed: int = 0, size: int = 20):
    """Logits, and labels in patches with void, one class absent."""
    rng = np.random.default_rng(seed)
    labels = np.kron(rng.integers(0, max(classes - 1, 2), (2, size // 4, size // 4)), np.ones((4, 4), int))
    labels[rng.random(labels.shape) < 0.05] = 255
    logits = torch.tensor(3 * rng.standard_normal((2, classes, size, size)), requires_grad=True)
    return logits, torch.tensor(labels)


def assert_same(ours, theirs, logits, target):
    values = []
    for loss in (ours, theirs):
        value = loss(logits, target)
        (gradient,) = torch.autograd.grad(value, logits)
        values.append((value.detach(), gradient))
    (a, da), (b, db) = values
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(da, db, rtol=1e-6, atol=1e-7 * float(da.abs().max()) + 1e-15)


@pytest.mark.parametrize("spec", [*(f"published:{name}" for name in PUBLISHED), *(f"naive:{name}" for name in METRICS)])
def test_an_exported_loss_is_the_same_in_value_and_gradient(spec, tmp_path):
    theirs = export(spec, tmp_path).Loss()
    ours = build_loss(spec)
    assert_same(ours, theirs, *batch())
    binary, target = batch(2)
    assert_same(ours, theirs, binary[:, :1].detach().requires_grad_(), target)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "options",
    [
        {"family": "linear"},
        {"family": "spline"},
        {"layout": "paper"},
        {"monotone": False},
        {"monotone": False, "truth_table": False},
        {"conventions": {"mask_void": True, "drop_background": False, "tolerance": 1, "boundary_radius": 2}},
        {"conventions": {"absent": "skip"}},
        {"conventions": {"absent": "zero"}},
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_any_surrogate_is_exported(metric, options, tmp_path):
    identity = Surrogate.make(metric, **options)
    theta = np.random.default_rng(1).random(len(identity.theta)).tolist()
    surrogate = Surrogate.make(metric, theta, **options)
    surrogate.save(tmp_path / "surrogate.json")
    module = export(str(tmp_path / "surrogate.json"), tmp_path)
    assert_same(SurrogateLoss(surrogate), module.Loss(), *batch(seed=2))


@pytest.mark.parametrize("spec", [*(f"naive:{name}" for name in (*METRICS, *MORE)), "published:BF1"])
def test_an_exported_loss_takes_volumes(spec, tmp_path):
    theirs = export(spec, tmp_path).Loss(ignore_index=255)
    logits, target = batch(3, size=8)
    for depth in (1, 2):
        volume = logits.detach().view(2, 3, depth, 8 // depth, 8).requires_grad_()
        labels = target.view(2, depth, 8 // depth, 8)
        assert_same(build_loss(spec, ignore_index=255), theirs, volume, labels)
        assert torch.equal(theirs(volume, labels), theirs(volume, labels[:, None]))


def test_a_sum_is_exported_with_its_weights_and_another_void(tmp_path):
    spec = "published:mIoU + 0.5 * naive:BF1"
    logits, target = batch()
    target[target == 255] = 7
    assert_same(build_loss(spec, ignore_index=7), export(spec, tmp_path).Loss(ignore_index=7), logits, target)


def test_an_exported_loss_keeps_class_0_where_it_is_no_background(tmp_path):
    theirs = export("BIoU", tmp_path).Loss(has_background=False)
    assert_same(SurrogateLoss.published("BIoU", has_background=False), theirs, *batch())


def test_an_exported_loss_is_finite_where_ours_is_and_not_where_it_is_not(tmp_path):
    for metric in METRICS:
        loss = export(f"published:{metric}", tmp_path, metric).Loss()
        logits, target = batch()
        void = torch.full_like(target, 255)
        assert_same(build_loss(f"published:{metric}"), loss, logits, void)
        with torch.no_grad():
            assert loss(torch.full_like(logits, float("nan")), target).isnan()
            assert loss(logits.half(), target).dtype == torch.float32


def test_an_exported_file_needs_torch_alone(tmp_path):
    export("mIoU", tmp_path)
    code = (
        "import sys; sys.modules['autoseg'] = sys.modules['numpy.linalg'] = None\n"
        "import torch, exported\n"
        "print(float(exported.Loss()(torch.zeros(1, 3, 8, 8), torch.zeros(1, 8, 8, dtype=torch.long))))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(0.7652, abs=1e-4)


def test_an_exported_file_holds_the_sources_themselves(tmp_path):
    export("mIoU + 0.5 * BF1", tmp_path)
    text = (tmp_path / "exported.py").read_text()
    for part in (evaluate_piece, Curve.value_and_slope, Formula.sum_maps, Formula.score, formula.Ops, formula.BF1.sums):
        assert text.count(inspect.getsource(part)) == 1
    assert "autoseg." not in text.partition('"""\n\nfrom')[2]


def test_no_torch_is_loaded_to_show_a_loss():
    code = "import sys; from autoseg.cli import main; main(['loss', 'show', 'BF1']); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_what_a_file_says_of_itself_cannot_become_code(tmp_path):
    surrogate = Surrogate.make("mIoU", source='"""\nraise SystemExit(9)\n"""\\')
    surrogate.save(tmp_path / "surrogate.json")
    assert export(str(tmp_path / "surrogate.json"), tmp_path).TERMS[0]["metric"] == "mIoU"


def test_a_metric_of_ones_own_is_not_exported_as_python(tmp_path, capsys):
    register(Formula("mine", lambda y_hat, y, ops: {"both": ops.AND("AND", y_hat, y)}, lambda s: s["both"]))
    Surrogate.make("mine").save(tmp_path / "a.json")
    assert main(["loss", "export", str(tmp_path / "a.json"), "--out", str(tmp_path / "a.py")]) == 2
    assert "mine is a metric of your own" in capsys.readouterr().err


def test_json_is_exported_and_read_again(tmp_path):
    assert main(["loss", "export", "mIoU-paper", "--out", str(tmp_path / "a.json")]) == 0
    assert (
        Surrogate.load(tmp_path / "a.json").control_points
        == SurrogateLoss.published("mIoU-paper").surrogate.control_points
    )


@pytest.mark.parametrize("name", [*PUBLISHED, "naive:BF1", "mIoU + 0.5 * naive:BIoU"])
def test_a_loss_is_shown_in_the_terminal(name, capsys):
    assert main(["loss", "show", name]) == 0
    shown = capsys.readouterr().out
    assert "control points" in shown
    assert "# g(y), o control points, . identity" in shown
    assert max(len(line) for line in shown.splitlines()) <= 120


def test_a_loss_is_drawn(tmp_path):
    for suffix in ("png", "svg", "pdf", "PNG"):  # written under the very name
        assert main(["loss", "show", "BF1", "--out", str(tmp_path / f"a.{suffix}")]) == 0
        assert (tmp_path / f"a.{suffix}").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "mIuO"], "unknown published surrogate 'mIuO'; did you mean 'mIoU'"),
        (["show", "ce"], "'ce' is a hand-made loss"),
        (["show", "nsd"], "published no surrogate for NSD; give naive:NSD, or what `autoseg loss list NSD` names"),
        (["show", "mIoU+BIoU"], "write spaces around the plus of a sum"),
        (["show", "searched:mIoU"], "give the file of that search, such as results/<name>/searches/mIoU/surrogate"),
        (["show", "nowhere.json"], "nowhere.json: no such file"),
        (["show", "mIoU", "--out", "a.gif"], "--out: found a.gif; expected a name that ends in .png or .svg or .pdf"),
        (["export", "mIoU", "--out", "a.txt"], "--out: found a.txt; expected a name that ends in .py or .json"),
        (["export", "mIoU + BF1", "--out", "a.json"], "is a sum"),
        (["export", "mIoU", "--out", "file/a.py"], "file/a.py: a file is in the place of a folder"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    assert main(["loss", *arguments]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert not list(tmp_path.glob("a.*"))


def test_the_list_is_also_of_some_names_or_metrics(capsys):
    assert main(["loss", "list", "MIOU", "published:mAcc"]) == 0
    text = capsys.readouterr().out
    named = [line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")]
    assert named == ["published:mIoU", "published:mIoU-paper", "published:mAcc"]
    assert main(["loss", "list", "mIuO"]) == 2
    assert "did you mean 'mIoU'?" in capsys.readouterr().err
