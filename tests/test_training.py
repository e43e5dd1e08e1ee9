"""Training: what a step is, exact resumption, collapse and failure told apart."""

from __future__ import annotations

import math
import os
import signal
import sys
import time

import pytest
import torch
from small_task import arguments, lines, small_task, start, wait_for
from torch import nn

from autoseg.cli import main
from autoseg.errors import Preempted
from autoseg.files import checksum
from autoseg.losses.build import MeanOfGroupsLoss, build_loss
from autoseg.training.checkpoint import Checkpoint
from autoseg.training.logs import TensorBoard
from autoseg.training.loop import choose_device, train
from autoseg.training.networks import build_network
from autoseg.training.optimiser import learning_rate
from autoseg.training.run import train_run
from autoseg.training.settings import PROTOCOLS, Training
from autoseg.training.task import OpenTask
from tests.refusals import refused

CPU = torch.device("cpu")


def settings(**changes) -> Training:
    return Training(
        **{"iterations": 6, "batch_size": 2, "crop": (16, 16), "short_side": 16, "lr": 0.05, "head_lr": 1.0, **changes}
    )


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(2, 3, 16, 16, generator=generator), torch.randint(0, 3, (2, 16, 16), generator=generator)


def from_memory(start: int):
    return (batch(number) for number in range(start, 1000))


def fresh(network: str = "tiny", seed: int = 0):
    torch.manual_seed(seed)
    return build_network(network, 3)


def without_dropout(network: nn.Module) -> nn.Module:
    for module in network.modules():
        if isinstance(module, nn.Dropout2d):
            module.p = 0.0
    return network


class Fails(nn.Module):
    """Cross entropy until its `at`-th call, which does something else."""

    def __init__(self, at: int, what) -> None:
        super().__init__()
        self.loss, self.at, self.what, self.calls = build_loss("ce"), at, what, 0

    def forward(self, logits, masks):
        self.calls += 1
        loss = self.loss(logits, masks)
        return self.what(loss) if self.calls == self.at else loss


def stop(loss):
    os.kill(os.getpid(), signal.SIGUSR1)
    return loss


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_the_learning_rate_falls_from_lr_to_min_lr_by_the_papers_polynomial():
    s = Training.of_protocol("paper-proxy")
    assert learning_rate(s, 0, s.lr) == pytest.approx(0.02)
    assert learning_rate(s, 500, s.lr) == pytest.approx((0.02 - 1e-4) * 0.5**0.9 + 1e-4)
    assert learning_rate(s, 1000, s.lr) == pytest.approx(1e-4)


def test_protocols_are_valid_and_settings_are_checked():
    assert {name: Training.of_protocol(name).iterations for name in PROTOCOLS}["paper"] == 30000
    with refused(what="did you mean 'paper'?", expected="paper-proxy"):
        Training.of_protocol("papr")
    with refused(where="protocol 'paper'", what="did you mean 'iterations'?"):
        Training.of_protocol("paper", iteration=3)
    with refused(where="batch_size", what="32 images"):
        Training.of_protocol("paper-proxy", accumulate=3)
    for key, value in (("crop", [0, 32]), ("crop", [32, -5]), ("short_side", 7), ("seed", 2**63), ("lr", math.nan)):
        with refused(where=key):
            Training.of_protocol("paper-proxy", **{key: value})


def test_a_step_is_torchs_sgd_on_the_loss_of_both_heads_with_faster_heads():
    s = settings(iterations=1, head_lr=10.0, weight_decay=0.01)
    network, other = without_dropout(fresh()), without_dropout(fresh())
    train(network, build_loss("ce"), from_memory, s, device=CPU)
    images, masks = batch(0)
    logits, aux = other.train()(images)
    loss = build_loss("ce")
    (loss(logits, masks) + 0.4 * loss(aux, masks)).backward()
    for name, parameter in other.named_parameters():
        lr = 0.05 if name.startswith("encoder.") else 0.5
        parameter.data -= lr * (parameter.grad + 0.01 * parameter.data)
    for (name, a), b in zip(network.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-7), name


def test_accumulated_parts_make_the_step_of_the_whole_batch():
    """Cross entropy without void is a mean over equal parts, so two parts of 1 image are one batch of 2."""
    whole, parts = without_dropout(fresh()), without_dropout(fresh())
    train(whole, build_loss("ce"), from_memory, settings(), device=CPU)

    def halves(start):
        return (tuple(x[half : half + 1] for x in batch(n)) for n in range(start // 2, 1000) for half in (0, 1))

    train(parts, build_loss("ce"), halves, settings(accumulate=2), device=CPU)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_a_loss_may_take_its_sums_over_groups_of_images_as_the_releases_gpus_do():
    """A surrogate is no mean over images: that of 4 images is not the mean of those of 2 and 2."""
    torch.manual_seed(0)
    logits, masks = torch.randn(4, 3, 8, 8), torch.randint(0, 3, (4, 8, 8))
    masks[:2] = masks[:2].clamp(max=1)  # a class of some groups alone
    loss = build_loss("published:mIoU")
    halves = (loss(logits[:2], masks[:2]) + loss(logits[2:], masks[2:])) / 2
    assert MeanOfGroupsLoss(loss, 2)(logits, masks) == pytest.approx(halves.item(), abs=1e-6)
    assert abs(loss(logits, masks) - halves) > 0.01
    assert Training.of_protocol("release").loss_batch == 8  # 32 images on 4 GPUs
    with refused(what="(processes 8, accumulate 1)"):
        Training.of_protocol("release").check_shares(8)
    with refused(where="loss_batch"):
        Training.of_protocol("paper-proxy", loss_batch=5)


def test_the_settings_decide_over_how_many_images_a_runs_loss_sums(tmp_path, data):
    losses = [
        [line["loss"] for line in lines(train_into(tmp_path / str(images), data, images) / "log.jsonl")]
        for images in (None, 4, 2)
    ]
    assert losses[0] == losses[1] != losses[2]


def train_into(out, data, images):
    train_run(small_task(data, loss_batch=images), "published:mIoU", out, progress=False)
    return out


def test_a_loss_is_computed_in_float32_whatever_the_networks_arithmetic():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.parameter_groups = (network := fresh()), network.parameter_groups

        def forward(self, images):
            return tuple(logits.bfloat16() for logits in self.network(images))

    class Looks(nn.Module):
        def forward(self, logits, masks):
            seen.append(logits.dtype)
            return logits.square().mean()

    seen: list[torch.dtype] = []
    train(Half(), Looks(), from_memory, settings(iterations=1), device=CPU)
    assert seen == [torch.float32] * 2


def test_a_clipped_gradient_moves_the_weights_no_further_than_its_norm():
    network, before = fresh(), fresh()
    train(
        network, build_loss("ce"), from_memory, settings(iterations=1, clip_gradient=1e-3, weight_decay=0), device=CPU
    )
    moved = sum(
        float((a - b).detach().square().sum()) for a, b in zip(network.parameters(), before.parameters(), strict=True)
    )
    assert math.sqrt(moved) <= 0.05 * 1e-3 * 1.001


# ---- Resumption ----------------------------------------------------------------------------------------------------


def interrupted(tmp_path, at: int) -> Checkpoint:
    """A training that was told to stop at step `at` and has left its checkpoint."""
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", "mark")

    with pytest.raises(Preempted, match=f"stopped after step {at} of 6"):
        train(fresh(), Fails(2 * at, stop), from_memory, settings(), device=CPU, checkpoint=checkpoint)
    return checkpoint


def test_a_stopped_training_ends_with_the_weights_of_one_that_went_through(tmp_path):
    whole, resumed = fresh(), fresh(seed=9)
    expected = train(whole, build_loss("ce"), from_memory, settings(), device=CPU).losses
    outcome = train(resumed, build_loss("ce"), from_memory, settings(), device=CPU, checkpoint=interrupted(tmp_path, 3))
    assert outcome.losses == expected[3:]
    assert same(whole, resumed)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_told_to_stop_during_the_last_step_a_training_is_simply_done():
    outcome = train(fresh(), Fails(12, stop), from_memory, settings(), device=CPU)
    assert outcome.iterations == 6


@pytest.mark.parametrize("damage", [b"", b"garbage", "torn", "list"])
def test_an_unreadable_checkpoint_falls_back_to_the_one_before(tmp_path, caplog, damage):
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", "mark")
    s = settings(checkpoint_every=2)
    whole = fresh()
    train(whole, build_loss("ce"), from_memory, s, device=CPU, checkpoint=checkpoint)
    assert checkpoint.path.exists()
    assert checkpoint.previous.exists()
    if damage == "torn":
        checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:-100])
    elif damage == "list":
        torch.save([1, 2], checkpoint.path)
    else:
        checkpoint.path.write_bytes(damage)
    resumed = fresh(seed=3)
    outcome = train(resumed, build_loss("ce"), from_memory, s, device=CPU, checkpoint=checkpoint)
    assert len(outcome.losses) == 4  # from step 2 on
    assert same(whole, resumed)
    assert "checkpoint.pt: not readable as a checkpoint" in caplog.text


def test_what_a_kill_while_writing_left_is_cleared_away(tmp_path):
    for torn in (".checkpoint.new.abc.part", ".checkpoint.new.def.part", "checkpoint.new"):
        (tmp_path / torn).write_bytes(b"torn")
    checkpoint = interrupted(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
    (tmp_path / ".checkpoint.new.abc.part").write_bytes(b"torn")
    checkpoint.remove()
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_another_fingerprint_is_not_used(tmp_path, caplog):
    interrupted(tmp_path, 2)
    other = Checkpoint(tmp_path / "checkpoint.pt", "another mark")
    outcome = train(fresh(), build_loss("ce"), from_memory, settings(), device=CPU, checkpoint=other)
    assert len(outcome.losses) == 6
    assert "made with other settings or data" in caplog.text


def test_processes_that_find_different_checkpoints_are_stopped(tmp_path, monkeypatch):
    """Two nodes whose folder is not the same one: the other process has found none."""
    checkpoint = interrupted(tmp_path, 3)
    monkeypatch.setattr("autoseg.training.loop.reduced", lambda value, world: value)
    with refused(where=str(checkpoint.path), what="step 3"):
        train(fresh(), build_loss("ce"), from_memory, settings(), device=CPU, world=2, checkpoint=checkpoint)


def weights_of(data, out, **changes) -> str:
    """The checksum of the weights of an uninterrupted run."""
    command = ["train", "--loss", "published:mIoU", "--out", str(out), "--quiet", *arguments(data, **changes)]
    assert main(command) == 0
    return checksum(out / "weights.safetensors")


@pytest.mark.parametrize("changes", [pytest.param({}, marks=pytest.mark.long), {"loaders": 2, "accumulate": 2}])
def test_killed_in_the_middle_the_same_command_ends_with_the_same_bytes(tmp_path, data, changes):
    changes = {"iterations": 80, "checkpoint_every": 8, **changes}
    expected = weights_of(data, tmp_path / "whole", **changes)
    out = tmp_path / "killed"
    command = ["train", "--loss", "published:mIoU", "--out", str(out), "--quiet", *arguments(data, **changes)]
    process = start(*command)
    wait_for((out / "checkpoint.previous.pt").exists, process)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.stderr.close()
    assert not (out / "run.json").exists()
    assert main(command) == 0
    assert checksum(out / "weights.safetensors") == expected
    assert (out / "run.json").read_bytes() == (tmp_path / "whole/run.json").read_bytes()
    assert sorted(path.name for path in out.iterdir()) == ["log.jsonl", "run.json", "weights.safetensors"]
    log = lines(out / "log.jsonl")
    assert [line["iteration"] for line in log] == list(range(1, 81))
    assert [line["loss"] for line in log] == [line["loss"] for line in lines(tmp_path / "whole/log.jsonl")]


def test_a_preempted_run_saves_exits_with_75_and_goes_on(tmp_path, data):
    """The signal goes to every process of the job, as a cluster sends it: to the loaders too."""
    changes = {"iterations": 80, "loaders": 1}
    out = tmp_path / "run"
    command = ["train", "--loss", "published:mIoU", "--out", str(out), "--quiet", *arguments(data, **changes)]
    process = start(*command, start_new_session=True)
    wait_for(lambda: (out / "log.jsonl").exists() and len(lines(out / "log.jsonl")) > 20, process)
    os.killpg(process.pid, signal.SIGTERM)
    _, shown = process.communicate(timeout=600)
    assert process.returncode == 75, shown
    assert "the same command goes on" in shown
    done = torch.load(out / "checkpoint.pt", weights_only=True)["iteration"]
    assert 20 < done < 80
    assert main(command) == 0
    assert checksum(out / "weights.safetensors") == weights_of(data, tmp_path / "whole", **changes)


def test_a_training_that_fails_does_not_wait_for_its_loaders(data):
    """They outlive a preemption's signals, but not the end of their parent, whatever it was."""
    code = (
        "import sys; from small_task import small_task; from autoseg.training.task import OpenTask\n"
        "opened = OpenTask(small_task(sys.argv[1], loaders=2))\n"
        "batches = iter(opened.batches(opened.data.read, opened.split.train, 0))\n"
        "next(batches); raise RuntimeError('a bug')"
    )
    process = start(code, str(data), module=None)
    _, shown = process.communicate(timeout=600)
    assert process.returncode == 1, shown
    assert shown.endswith("RuntimeError: a bug\n")


# ---- Collapse and failure ------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_ends_the_training_with_the_weights_before_that_step(tmp_path):
    network = fresh()
    outcome = train(network, Fails(7, lambda loss: loss * math.nan), from_memory, settings(), device=CPU)
    assert (outcome.diverged, outcome.iterations) == (True, 3)
    before = torch.load(interrupted(tmp_path, 3).path, weights_only=True)["network"]
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
)
def test_out_of_memory_is_an_error_with_its_cure_never_an_outcome(error):
    def fail(loss):
        raise error

    with refused(what="2 images of 16 x 16", cure="set accumulate to 2"):
        train(fresh(), Fails(3, fail), from_memory, settings(), device=CPU)


def test_the_cure_is_one_that_can_be_taken():
    """A single image cannot be divided further."""

    def fail(loss):
        raise MemoryError

    with refused(what="1 images of 16 x 16", cure="GPUs") as found:
        train(fresh(), Fails(3, fail), from_memory, settings(accumulate=2), device=CPU)
    assert "accumulate" not in found.value.cure


def test_a_batch_too_small_for_batch_statistics_is_refused_in_a_sentence():
    """DeepLabv3+ has a mean over the whole image, which for one image is one value."""
    one = [(torch.zeros(1, 3, 16, 16), torch.zeros(1, 16, 16, dtype=torch.int64))]
    with refused(where="batch_size", what="1 image", cure="accumulate"):
        train(fresh("deeplabv3plus-r18"), build_loss("ce"), lambda start: one, settings(batch_size=1), device=CPU)


@pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), NotImplementedError("shapes do not fit")])
def test_other_errors_are_left_as_they_are(error):
    def fail(loss):
        raise error

    with pytest.raises(type(error), match="shapes do not fit"):
        train(fresh(), Fails(3, fail), from_memory, settings(), device=CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is about machines without a GPU")
def test_a_missing_gpu_is_an_error_where_one_is_required(tmp_path, data, capsys):
    with refused(where="device", cure="'cpu'"):
        choose_device("cuda")
    assert choose_device("auto") == CPU
    command = ["train", "--loss", "ce", "--out", str(tmp_path), *arguments(data, device="cuda")]
    assert main(command) == 2
    assert "no GPU is available" in capsys.readouterr().err


def test_a_full_disk_ends_in_a_sentence_and_loses_no_checkpoint(disk, tmp_path, data, capsys, monkeypatch):
    changes = {"iterations": 12, "checkpoint_every": 2}
    out = disk.path / "run"
    command = ["train", "--loss", "ce", "--out", str(out), "--quiet", *arguments(data, **changes)]
    with monkeypatch.context() as patch:
        patch.setattr("autoseg.training.run.build_loss", lambda *args, **options: Fails(10, stop))
        assert main(command) == 75
    disk.fill()
    assert main(command) == 2
    shown = capsys.readouterr().err
    assert "no room left" in shown
    assert "same command" in shown
    disk.free()
    assert torch.load(out / "checkpoint.pt", weights_only=True)["iteration"] == 5
    assert not list(out.glob(".*.part"))
    assert main(command) == 0
    assert main([*command[:3], "--out", str(tmp_path / "whole"), *command[5:]]) == 0
    assert checksum(out / "weights.safetensors") == checksum(tmp_path / "whole/weights.safetensors")


# ---- Settings that change nothing, logs, compile -------------------------------------------------------------------


def points(folder) -> list[tuple[int, float]]:
    """The curve of the loss, as TensorBoard shows it."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    shown = reader.EventAccumulator(str(folder)).Reload()
    return [(event.step, event.value) for event in shown.Scalars("loss")]


def test_tensorboard_shows_the_lines_of_the_log(tmp_path, data):
    pytest.importorskip("tensorboard")
    curves, run = tmp_path / "curves", tmp_path / "run"
    command = ["train", "--loss", "ce", "--quiet", *arguments(data), "--tensorboard", str(curves), "--out", str(run)]
    assert main(command) == 0
    assert points(curves) == [(line["iteration"], pytest.approx(line["loss"])) for line in lines(run / "log.jsonl")]


def test_tensorboard_forgets_the_steps_that_a_resumed_training_repeats(tmp_path):
    pytest.importorskip("tensorboard")
    for run in ((1, 2, 3), (2, 3)):
        log = TensorBoard(tmp_path)
        for step in run:
            log({"iteration": step, "loss": float(len(run))})
        log.writer.close()
        time.sleep(1.1)  # a file of events is named by the second
    assert points(tmp_path) == [(1, 3.0), (2, 2.0), (3, 2.0)]


def test_a_missing_tensorboard_is_missed_in_a_sentence(tmp_path, data, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    command = ["train", "--loss", "ce", *arguments(data), "--tensorboard", str(tmp_path), "--out", str(tmp_path / "a")]
    assert main(command) == 2
    assert "--tensorboard: needs the package tensorboard" in capsys.readouterr().err


def test_the_same_batches_come_from_any_number_of_loaders(data):
    def first(loaders):
        opened = OpenTask(small_task(data, loaders=loaders))
        return next(iter(opened.batches(opened.data.cache(64).read, opened.split.train, 2)))

    for a, b in zip(first(0), first(1), strict=True):
        assert torch.equal(a, b)
