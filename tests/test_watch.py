"""Training as on a GPU, where a look at a number makes the host wait: how often it looks, and what a late look costs.

There is no GPU here: the steps of a GPU run on the CPU, and every operation that would make the host wait is counted.
"""

from __future__ import annotations

import math
import os
import signal

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autoseg.errors import InputError, Preempted
from autoseg.files import fingerprint
from autoseg.losses.build import build_loss
from autoseg.losses.surrogate_loss import SurrogateLoss
from autoseg.training.arithmetic import autocast, cudnn_settings, decisive_for_scores
from autoseg.training.checkpoint import Checkpoint
from autoseg.training.loop import train
from autoseg.training.networks import build_network
from autoseg.training.settings import Training
from autoseg.training.watch import LOOK_EVERY
from benchmarks.counting import as_on_a_gpu as as_losses_on_a_gpu

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
STEPS = 2 * LOOK_EVERY
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "bincount", "unique", "_unique2", "equal", "item")


class Waits(TorchDispatchMode):
    """Counts the operations whose result the host has to wait for."""

    def __init__(self, monkeypatch) -> None:
        super().__init__()
        self.count, to_list = 0, torch.Tensor.tolist

        def counted(tensor):
            self.count += 1
            return to_list(tensor)

        monkeypatch.setattr(torch.Tensor, "tolist", counted)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket.__name__ in WAITING
        return function(*args, **(kwargs or {}))


class CrossEntropy(nn.Module):
    """Torch's, which makes nobody wait; its `at`-th call does something else."""

    def __init__(self, at: int = 0, what=None) -> None:
        super().__init__()
        self.at, self.what, self.calls = at, what, 0

    def forward(self, logits, masks):
        self.calls += 1
        loss = nn.functional.cross_entropy(logits, masks)
        return self.what(loss) if self.calls == self.at else loss


def batches(start: int):
    for number in range(start, 1000):
        generator = torch.Generator().manual_seed(number)
        yield torch.randn(2, 3, 16, 16, generator=generator), torch.randint(0, 3, (2, 16, 16), generator=generator)


def settings(**changes) -> Training:
    own = {"iterations": STEPS, "batch_size": 2, "crop": (16, 16), "short_side": 16, "lr": 0.05, "head_lr": 1.0}
    return Training(**{**own, **changes})


def fresh() -> nn.Module:
    torch.manual_seed(0)
    return build_network("tiny", 3)


def trained(loss: nn.Module | None = None, checkpoint: Checkpoint | None = None, logs=(), **changes):
    network = fresh()
    outcome = train(
        network, loss or CrossEntropy(), batches, settings(**changes), device=CPU, checkpoint=checkpoint, logs=logs
    )
    return network, outcome


def weights(network: nn.Module) -> list[torch.Tensor]:
    return list(network.parameters())


def after(steps: int, folder) -> list[torch.Tensor]:
    """The weights of a training that is stopped after so many steps."""

    def stop(loss):
        os.kill(os.getpid(), signal.SIGUSR1)
        return loss

    checkpoint = Checkpoint(folder / "checkpoint.pt", "x")
    with pytest.raises(Preempted, match=f"after step {steps} of {STEPS}"):
        trained(CrossEntropy(2 * steps, stop), checkpoint)
    network = fresh()
    network.load_state_dict(torch.load(checkpoint.path, weights_only=True)["network"])
    return weights(network)


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr("autoseg.training.loop.works_behind", lambda device: True)


@pytest.fixture
def scaled(monkeypatch):
    """Training with the scaler of float16, which a CPU does not have."""
    scaler = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, enabled: scaler(device))


ADAMW = {"optimiser": "adamw", "lr": 1e-3, "ema": 0.9, "decay_norms": False}


@pytest.mark.parametrize("changes", [{}, {"accumulate": 2}, {"clip_gradient": 1.0}, ADAMW])
def test_the_host_waits_once_in_20_steps(as_on_a_gpu, monkeypatch, changes):
    with Waits(monkeypatch) as waits:
        trained(**changes)
    assert waits.count == STEPS / LOOK_EVERY == 2


@pytest.mark.parametrize("metric", ["mIoU", "BIoU", "BF1", "gAcc"])
def test_the_host_waits_once_in_20_steps_also_with_a_searched_loss(as_on_a_gpu, monkeypatch, metric):
    monkeypatch.setattr("autoseg.losses.labels.eager_on_cpu", lambda x: False)  # the loss as a GPU computes it
    loss = SurrogateLoss.published(metric)
    with Waits(monkeypatch) as waits:
        _, outcome = trained(loss)
    assert waits.count == 2
    assert len(outcome.losses) == STEPS


def test_the_host_waits_no_more_often_with_the_scaler_of_float16(as_on_a_gpu, scaled, monkeypatch):
    with Waits(monkeypatch) as waits:
        trained()
    assert waits.count == 2


def test_the_count_sees_a_wait(monkeypatch):
    with Waits(monkeypatch) as waits:
        bool(torch.ones(()) > 0)
        torch.ones(2).tolist()
        torch.ones(2).nonzero()
    assert waits.count == 3


def test_late_looks_change_no_weight_no_loss_and_no_line_of_the_log(monkeypatch):
    lines: dict[bool, list] = {}
    found = {}
    for behind in (False, True):
        monkeypatch.setattr("autoseg.training.loop.works_behind", lambda device, behind=behind: behind)
        network, outcome = trained(logs=[lines.setdefault(behind, []).append])
        found[behind] = weights(network), outcome
    for a, b in zip(found[False][0], found[True][0], strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    assert found[True][1].losses == pytest.approx(found[False][1].losses, abs=1e-6)
    assert [line["iteration"] for line in lines[True]] == list(range(1, STEPS + 1))
    assert [line["lr"] for line in lines[True]] == [line["lr"] for line in lines[False]]


@pytest.mark.parametrize(
    "what", [lambda loss: loss * math.nan, lambda loss: loss + math.inf], ids=["NaN", "infinite with a finite gradient"]
)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_loss_that_is_not_finite_is_found_late_and_the_weights_are_those_before_it(
    as_on_a_gpu, tmp_path, request, what, precision
):
    if precision == "float16":
        request.getfixturevalue("scaled")
    network, outcome = trained(CrossEntropy(2 * 7 + 1, what))
    assert (outcome.diverged, outcome.iterations, len(outcome.losses)) == (True, 7, 7)
    assert equal(weights(network), after(7, tmp_path))


def test_a_first_step_that_the_scaler_skips_leaves_no_momentum(as_on_a_gpu, scaled, monkeypatch):
    """Torch's own buffer would be whatever was in memory: here NaN."""
    monkeypatch.setattr(torch, "empty_like", lambda *args, **options: torch.full_like(*args, math.nan, **options))

    def overflow(loss):
        return loss * 1e35  # the loss is finite, its scaled gradient is not

    network, outcome = trained(CrossEntropy(1, overflow), lr=1e-3)
    assert not outcome.diverged
    assert all(value.isfinite().all() for value in weights(network))


def test_told_to_stop_between_two_looks_a_training_saves_that_step_and_goes_on(as_on_a_gpu, tmp_path):
    after(LOOK_EVERY + 3, tmp_path)
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", "x")
    network, outcome = trained(checkpoint=checkpoint)
    assert len(outcome.losses) == STEPS - LOOK_EVERY - 3
    assert equal(weights(network), weights(trained()[0]))


def test_no_checkpoint_is_written_of_steps_that_were_not_looked_at(as_on_a_gpu, tmp_path):
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", "x")
    _, outcome = trained(CrossEntropy(2 * 7 + 1, lambda loss: loss * math.nan), checkpoint, checkpoint_every=8)
    assert outcome.diverged
    assert not checkpoint.path.exists()


# ---- Arithmetic ----------------------------------------------------------------------------------------------------


def test_tf32_is_torchs_default_and_in_the_fingerprint_where_it_is_not():
    assert torch.backends.cudnn.allow_tf32 is settings().tf32 is True
    assert not torch.backends.cuda.matmul.allow_tf32
    assert "tf32" not in settings().decisive
    assert fingerprint(settings(tf32=False).decisive) != fingerprint(settings().decisive)


def test_cudnn_is_set_for_a_gpu_only_and_set_back():
    cudnn = torch.backends.cudnn
    with cudnn_settings(settings(tf32=False), CPU, fixed_shape=True):
        assert (cudnn.allow_tf32, cudnn.benchmark) == (True, False)
    with cudnn_settings(settings(tf32=False), GPU, fixed_shape=True):
        assert (cudnn.allow_tf32, cudnn.benchmark) == (False, True)
    assert (cudnn.allow_tf32, cudnn.benchmark) == (True, False)


def test_scores_have_the_precision_of_the_training_on_a_gpu():
    half = settings(precision="bfloat16")
    assert not autocast(half, CPU)._enabled
    assert decisive_for_scores(half, CPU) == decisive_for_scores(settings(), GPU) == {}
    assert decisive_for_scores(half, GPU) == {"precision": "bfloat16"}
    assert decisive_for_scores(settings(tf32=False), GPU) == {"tf32": False}


def test_a_label_that_is_no_classs_is_named_at_the_next_look(as_on_a_gpu):
    def with_a_bad_label(start: int):
        for number, (images, masks) in enumerate(batches(start)):
            if number == 3:
                masks[0, 0, 0] = 7
            yield images, masks

    with as_losses_on_a_gpu(), pytest.raises(InputError, match=r"target: holds labels 7; expected 0\.\.2 or 255"):
        train(fresh(), build_loss("published:mIoU"), with_a_bad_label, settings(), device=CPU)


def test_losses_make_the_host_wait_no_more_often(as_on_a_gpu, monkeypatch):
    loss = build_loss("published:mIoU + published:BF1 + dpce")
    with as_losses_on_a_gpu(), Waits(monkeypatch) as waits:
        trained(loss)
    assert waits.count == STEPS / LOOK_EVERY
