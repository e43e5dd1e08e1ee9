"""AdamW, schedules, frozen parts, the average of the weights, and augmentation of the user's own."""

from __future__ import annotations

import json
import math

import albumentations as A
import my_augmentation
import my_networks
import numpy as np
import pytest
import torch
from small_task import small_task
from torch import nn

from autoseg.errors import InputError, Preempted
from autoseg.losses.build import build_loss
from autoseg.training.augmentation import make_augmentation, pipeline_identity, remarks_on_augmentation
from autoseg.training.average import Average
from autoseg.training.checkpoint import Checkpoint
from autoseg.training.foreign import Foreign
from autoseg.training.loop import train
from autoseg.training.optimiser import learning_rate, make_optimiser
from autoseg.training.settings import Training
from autoseg.training.task import OpenTask, check_task
from tests.test_training import CPU, Fails, batch, fresh, from_memory, same, settings, stop, without_dropout


def mine() -> Foreign:
    torch.manual_seed(0)
    return Foreign(my_networks.make(3), 3, "mine")


def trained(network, **changes):
    train(network, build_loss("ce"), from_memory, settings(**changes), device=CPU)
    return network


# ---- Steps -----------------------------------------------------------------------------------------------------------


def test_a_step_of_adamw_is_torchs_on_two_rates():
    changes = {"optimiser": "adamw", "lr": 1e-3, "min_lr": 0, "head_lr": 5.0, "weight_decay": 0.1, "betas": (0.8, 0.95)}
    network, other = without_dropout(fresh()), without_dropout(fresh())
    trained(network, iterations=1, **changes)
    heads = [p for name, p in other.named_parameters() if not name.startswith("encoder.")]
    groups = [{"params": list(other.encoder.parameters()), "lr": 1e-3}, {"params": heads, "lr": 5e-3}]
    optimiser = torch.optim.AdamW(groups, betas=(0.8, 0.95), weight_decay=0.1)
    images, masks = batch(0)
    logits, aux = other.train()(images)
    (build_loss("ce")(logits, masks) + 0.4 * build_loss("ce")(aux, masks)).backward()
    optimiser.step()
    assert same(network, other)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_weight_decay_leaves_norms_and_biases_out_on_request(optimiser):
    """Without a gradient only the decay moves a weight."""
    network = fresh()
    s = settings(optimiser=optimiser, lr=0.1, head_lr=1.0, weight_decay=0.5, decay_norms=False)
    made, bases = make_optimiser(network, s)
    assert bases == [0.1] * 4
    before = {name: value.clone() for name, value in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    made.step()
    for name, value in network.named_parameters():
        assert torch.equal(value, before[name]) == (value.ndim <= 1), name


def test_the_learning_rate_grows_in_the_warm_up_and_falls_by_the_cosine():
    s = settings(iterations=110, warmup=10, schedule="cosine", lr=0.5, min_lr=0.1)
    rates = [learning_rate(s, iteration, 0.5) for iteration in range(111)]
    assert rates[:10] == pytest.approx([0.5 * (t + 1) / 11 for t in range(10)])
    assert rates[10] == pytest.approx(0.5)
    assert rates[60] == pytest.approx(0.3)
    assert rates[35] == pytest.approx(0.1 + 0.4 * (1 + math.cos(math.pi / 4)) / 2)
    assert rates[110] == pytest.approx(0.1)
    poly = settings(iterations=110, warmup=10, lr=0.5, min_lr=0.1)
    assert learning_rate(poly, 60, 0.5) == pytest.approx(0.1 + 0.4 * 0.5**0.9)


def test_settings_that_cannot_be_are_refused():
    for changes, named in (
        ({"warmup": 6}, "warmup: found 6; expected less than the 6 iterations"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"ema": 1.0}, "ema"),
        ({"optimiser": "adam"}, "optimiser"),
        ({"augmentation": "steps.txt"}, "augmentation: 'steps.txt'; expected a .yaml or .json file"),
    ):
        with pytest.raises(ValueError, match=named):
            settings(**changes)


def test_only_settings_that_are_not_the_papers_are_named_in_a_fingerprint():
    plain = settings().decisive
    assert "optimiser" not in plain
    assert set(settings(ema=0.9, optimiser="adamw").decisive) == {*plain, "ema", "optimiser"}


def test_the_doctor_remarks_on_sgds_rate_with_adamw(data):
    found = [problem.what for problem in check_task(small_task(data, optimiser="adamw", lr=0.02))]
    assert "0.02 is a rate for SGD" in found


# ---- What stays as it is ---------------------------------------------------------------------------------------------


def moved(network, **changes) -> set[str]:
    """The names of all tensors that a training changes; none is zero at the start."""
    for value in network.state_dict().values():
        if value.is_floating_point():
            value += 0.01
    before = {name: value.clone() for name, value in network.state_dict().items()}
    trained(network, **changes)
    return {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}


def test_a_frozen_encoder_keeps_its_weights_and_its_statistics():
    assert moved(mine(), freeze_encoder=True) == {"head.weight", "head.bias", "side.weight", "side.bias"}
    assert {name.partition(".")[0] for name in moved(fresh("small"), freeze_encoder=True)} == {"head", "auxiliary"}


def test_frozen_batch_norms_keep_all_and_the_rest_learns():
    assert moved(mine(), freeze_batch_norm=True) == {
        *("encoder.0.weight", "encoder.0.bias", "head.weight", "head.bias", "side.weight", "side.bias")
    }


def test_an_encoder_that_is_not_there_cannot_be_frozen():
    with pytest.raises(InputError, match=r"freeze_encoder: the network has neither .encoder nor .backbone"):
        trained(Foreign(nn.Conv2d(3, 3, 1), 3, "mine"), freeze_encoder=True)


def test_the_encoder_is_slow_and_all_else_fast_and_a_network_without_one_has_the_encoders_rate():
    def rates(network) -> dict[float, int]:
        made, _ = make_optimiser(network, settings(lr=0.1, head_lr=10.0))
        return {group["lr"]: len(group["params"]) for group in made.param_groups}

    assert rates(mine()) == {0.1: 4, 1.0: 4}
    assert rates(Foreign(nn.Conv2d(3, 3, 1), 3, "mine")) == {0.1: 2, 1.0: 0}
    with_backbone = nn.Module()
    with_backbone.backbone, with_backbone.decoder = nn.Conv2d(3, 3, 1, bias=False), nn.Conv2d(3, 3, 1)
    assert rates(Foreign(with_backbone, 3, "mine")) == {0.1: 1, 1.0: 2}


# ---- The average of the weights --------------------------------------------------------------------------------------


def test_the_average_is_what_a_training_ends_with():
    network, plain = fresh(), fresh()
    averaged = {name: value.clone() for name, value in plain.state_dict().items()}
    loss, s = build_loss("ce"), settings()
    trained(network, ema=0.2)

    def after_step(step: int) -> None:
        for name, value in plain.state_dict().items():
            d = min(0.2, (1 + step) / (10 + step))
            averaged[name] = d * averaged[name] + (1 - d) * value

    class Looks(nn.Module):
        """The loss, which sees the weights after each step when the next begins: it is called twice a step."""

        calls = 0

        def forward(self, logits, masks):
            if self.calls and self.calls % 2 == 0:
                after_step(self.calls // 2)
            self.calls += 1
            return loss(logits, masks)

    train(plain, Looks(), from_memory, s, device=CPU)
    after_step(s.iterations)
    for name, value in network.state_dict().items():
        assert torch.allclose(value, averaged[name], atol=1e-6), name


def test_stopped_and_resumed_moments_and_average_go_on_exactly(tmp_path):
    changes = {"optimiser": "adamw", "lr": 1e-3, "ema": 0.7, "schedule": "cosine", "warmup": 2, "decay_norms": False}
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", "mark")
    with pytest.raises(Preempted):
        train(fresh(), Fails(6, stop), from_memory, settings(**changes), device=CPU, checkpoint=checkpoint)
    resumed = fresh(seed=9)
    train(resumed, build_loss("ce"), from_memory, settings(**changes), device=CPU, checkpoint=checkpoint)
    assert same(trained(fresh(), **changes), resumed)


def test_a_collapse_ends_with_the_average_before_it():
    network, shorter = fresh(), fresh()
    outcome = train(network, Fails(7, lambda loss: loss * math.nan), from_memory, settings(ema=0.7), device=CPU)
    assert (outcome.diverged, outcome.iterations) == (True, 3)
    average = Average(shorter, 0.7)
    average.put_into(shorter)
    assert all(value.isfinite().all() for value in network.state_dict().values())
    assert not same(network, shorter)


# ---- Augmentation --------------------------------------------------------------------------------------------------


def picture(size: int = 48) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (size, size, 3), np.uint8), rng.integers(0, 3, (size, size), np.uint8)


def augmentation(spec: str, crop: tuple[int, int] = (32, 32)):
    return make_augmentation(settings(augmentation=spec, crop=crop))


@pytest.mark.parametrize("form", ["yaml", "json", "module"])
def test_a_pipeline_is_a_function_of_image_and_seed_however_it_is_given(form, tmp_path):
    spec = "my_augmentation:make"
    if form != "module":
        spec = str(tmp_path / f"mine.{form}")
        A.save(my_augmentation.make(), spec, data_format=form)
    image, mask = picture()
    first, second = augmentation(spec), augmentation(spec)
    second(image, mask, 3)  # what came before changes nothing
    seen = set()
    for seed in range(8):
        a, b = first(image, mask, seed), second(image, mask, seed)
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
        assert a[0].shape == (*a[1].shape, 3)
        assert max(a[1].shape) <= 32
        seen.add(a[0].tobytes())
    assert len(seen) == 8
    expected = augmentation("my_augmentation:make")(image, mask, 5)
    assert all(np.array_equal(x, y) for x, y in zip(first(image, mask, 5), expected, strict=True))


def test_batches_are_the_same_whatever_the_number_of_workers(data):
    def first_batches(workers: int) -> list[torch.Tensor]:
        opened = OpenTask(small_task(data, augmentation="my_augmentation:make", loaders=workers))
        return [part for batch in opened.batches(opened.data.read, opened.split.train, 1) for part in batch]

    alone, shared = first_batches(0), first_batches(2)
    assert len(alone) == 6
    assert all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))


def test_a_pipeline_counts_by_its_content(tmp_path, data):
    path = tmp_path / "mine.yaml"
    A.save(A.Compose([A.HorizontalFlip(p=0.5)]), path, data_format="yaml")
    before, identity = pipeline_identity(str(path)), OpenTask(small_task(data, augmentation=str(path))).decisive()
    assert identity["training"]["augmentation"] == before
    A.save(A.Compose([A.HorizontalFlip(p=0.4)]), path, data_format="yaml")
    assert pipeline_identity(str(path)) != before
    assert "source" in pipeline_identity("my_augmentation:make")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([A.RandomCrop(40, 40)], "gives crops of 40 x 40; expected at most `crop`, 32 x 32; end it with RandomCrop"),
        ([A.RandomCrop(32, 32), A.Normalize()], "gives float32 images and uint8 masks; expected uint8; leave out Norm"),
    ],
)
def test_a_crop_that_cannot_be_trained_on_is_refused_with_the_cure(steps, message, tmp_path, data):
    path = tmp_path / "mine.json"
    A.save(A.Compose(steps), path)
    with pytest.raises(InputError, match=message):
        augmentation(str(path))(*picture(), 0)
    opened = OpenTask(small_task(data, augmentation=str(path), loaders=1))
    with pytest.raises(InputError, match=message):  # from a worker too
        next(iter(opened.batches(opened.data.read, opened.split.train, 0)))


def test_a_file_that_is_no_pipeline_is_refused(tmp_path):
    path = tmp_path / "mine.json"
    for content in ({"a": 1}, {"transform": {"__class_fullname__": "os.system"}, "__version__": "2.0.8"}, [1]):
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match="no pipeline of albumentations"):
            augmentation(str(path))
    with pytest.raises(InputError, match="no such file"):
        augmentation(str(tmp_path / "gone.yaml"))
    with pytest.raises(InputError, match=r"gives a Mine; expected an albumentations.Compose"):
        augmentation("tests.test_optimisers:no_pipeline")


def test_a_pipeline_that_fails_is_named_with_the_place_in_it(tmp_path, monkeypatch, data):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_steps.py").write_text(
        "import albumentations as A\n\nclass Failing(A.ImageOnlyTransform):\n    def apply(self, image, **p):\n"
        "        return image / {}\n\ndef make():\n    return Failing(p=1)\n\ndef none():\n    raise OSError('no')\n"
    )
    with pytest.raises(InputError, match=r"'failing_steps:none': OSError: no \(.*failing_steps.py, line 11\)"):
        augmentation("failing_steps:none")
    said = r"'failing_steps:make': fails on an image of \d+ x \d+: TypeError: .*failing_steps.py, line 5\)"
    with pytest.raises(InputError, match=said):
        augmentation("failing_steps:make")(*picture(), 0)
    for loaders in (0, 1):
        opened = OpenTask(small_task(data, augmentation="failing_steps:make", loaders=loaders))
        with pytest.raises(InputError, match=said):
            next(iter(opened.batches(opened.data.read, opened.split.train, 0)))


def no_pipeline():
    return my_networks.make(3)


def test_a_step_that_fills_masks_with_a_class_is_remarked_on(tmp_path):
    path = tmp_path / "mine.yaml"
    A.save(A.Compose([A.OneOf([A.Affine(rotate=20)]), A.PadIfNeeded(9, 9, fill_mask=255)]), path, data_format="yaml")
    (remark,) = remarks_on_augmentation(Training(**{**settings().model_dump(), "augmentation": str(path)}))
    assert str(remark) == (
        "augmentation: Affine fills masks with class 0 where there is no image; fill_mask=255 makes that void."
    )
    assert not remarks_on_augmentation(settings(augmentation="my_augmentation:make"))
