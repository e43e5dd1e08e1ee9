"""Networks: shapes, strides, heads, weights from everywhere, and that they learn."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from autoseg.cli import main
from autoseg.config import Training
from autoseg.data.loaders import collate
from autoseg.data.synthetic import CLASSES, scene
from autoseg.errors import InputError
from autoseg.evaluation import score
from autoseg.losses import HAND_MADE, build_loss
from autoseg.metrics import METRICS, SegmentationMetrics
from autoseg.networks import NETWORKS, build_network, encoder_weights
from autoseg.training import train

import timm  # isort: skip  # after autoseg.networks, which lets torchvision be imported beside a CPU-only torch

SMALL = ("tiny", "small")
LOSSES = (*HAND_MADE, *(f"{kind}:{metric}" for kind in ("naive", "published") for metric in METRICS), "ce + dice")
CPU = torch.device("cpu")


def scenes(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return collate([scene(size, 0, "train", number) for number in range(count)])


def settings(iterations: int, **changes) -> Training:
    return Training(iterations=iterations, batch_size=2, crop=(32, 32), short_side=32, **changes)


def steps(network, loss: str, count: int, size: int, images: int = 2):
    counts = [1000, 100, 10, 10, 1, 1]
    batch = scenes(images, size)
    s = settings(count, lr=0.01, head_lr=1.0)
    return train(network, build_loss(loss, class_counts=counts), lambda start: iter([batch] * count), s, device=CPU)


def finite(network) -> bool:
    return all(bool(value.isfinite().all()) for value in network.state_dict().values())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", SMALL)
def test_a_small_network_trains_with_every_loss(name, loss):
    network = build_network(name, len(CLASSES))
    outcome = steps(network, loss, 3, 32)
    assert (outcome.iterations, outcome.diverged) == (3, False)
    assert finite(network)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in SMALL])
def test_a_large_network_trains_with_every_loss(name):
    network = build_network(name, len(CLASSES))
    for loss in LOSSES:
        outcome = steps(network, loss, 2, 64)
        assert (outcome.iterations, outcome.diverged) == (2, False), loss
        assert finite(network), loss


@pytest.mark.parametrize("name", ["deeplabv3plus-r18", "deeplabv3plus-r50", "hrnetv2-w48"])
def test_a_large_network_takes_a_step(name):
    network = build_network(name, len(CLASSES))
    assert steps(network, "published:mIoU", 1, 64).iterations == 1
    assert finite(network)


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_have_the_size_of_the_image_and_the_second_head_is_there_in_training_alone(name):
    """Of any image: those of a data set are of all sizes, and the paper's crop is 513."""
    network = build_network(name, 5)
    with torch.inference_mode():
        for height, width in ((64, 96), (65, 49)):
            images = torch.randn(2, 3, height, width)
            assert network.eval()(images).shape == (2, 5, height, width)
            assert [x.shape for x in network.train()(images)] == [(2, 5, height, width)] * 2
    encoder, heads = network.parameter_groups()
    assert len(encoder) + len(heads) == len(list(network.parameters()))
    assert {id(p) for p in network.auxiliary.parameters()} <= {id(p) for p in heads}


@pytest.mark.parametrize("name", ["deeplabv3plus-r18", "deeplabv3plus-r50c"])
def test_the_encoders_output_stride_is_8(name):
    with torch.inference_mode():
        assert build_network(name, 2).encoder.eval()(torch.zeros(1, 3, 64, 64))[-1].shape[-2:] == (8, 8)


@pytest.mark.long
@pytest.mark.parametrize("loss", ["ce", "published:mIoU"])
@pytest.mark.parametrize("name", SMALL)
def test_a_small_network_learns_a_handful_of_images_by_heart(name, loss):
    torch.manual_seed(0)
    network = build_network(name, len(CLASSES))
    images, masks = scenes(4, 64)
    iterations = 1500 if name == "tiny" else 500
    s = settings(iterations, lr=0.1 if loss == "ce" else 0.3, head_lr=1.0, weight_decay=0.0)
    criterion = build_loss(loss)
    train(network, criterion, lambda start: iter([(images, masks)] * iterations), s, device=CPU)
    scores = score(network, [(images, masks)], SegmentationMetrics(len(CLASSES)), CPU).compute()
    assert scores["mIoU"] > 0.95


# ---- Weights -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resnet18():
    torch.manual_seed(5)
    return timm.create_model("resnet18").state_dict()  # torchvision's names, with fc.*


def loaded(path, name: str = "deeplabv3plus-r18"):
    return build_network(name, 3, path).encoder.state_dict()


def test_weights_are_read_from_files_of_every_usual_kind(tmp_path, resnet18):
    assert "fc.weight" in resnet18
    torch.save(resnet18, tmp_path / "torchvision.pth")
    torch.save({"state_dict": {f"module.{k}": v for k, v in resnet18.items()}}, tmp_path / "parallel.pt")
    torch.save({"state_dict": {f"backbone.{k}": v for k, v in resnet18.items()}, "epoch": 3}, tmp_path / "mmseg.pth")
    save_file(resnet18, tmp_path / "timm.safetensors")
    for path in sorted(tmp_path.iterdir()):
        found = loaded(path)
        assert all(torch.equal(value, resnet18[name]) for name, value in found.items()), path.name


def test_mmsegs_deep_stem_is_timms(tmp_path):
    torch.manual_seed(6)
    theirs = timm.create_model("resnet50c").state_dict()
    stem = {"conv1.0.": "stem.0.", "conv1.1.": "stem.1.", "conv1.3.": "stem.3.", "conv1.4.": "stem.4."}
    stem |= {"conv1.6.": "stem.6.", "bn1.": "stem.7."}
    renamed = {}
    for key, value in theirs.items():
        prefix = next((prefix for prefix in stem if key.startswith(prefix)), "")
        renamed[stem.get(prefix, "") + key.removeprefix(prefix)] = value
    assert "stem.7.running_var" in renamed
    torch.save({"state_dict": renamed}, tmp_path / "resnet50_v1c.pth")
    found = loaded(tmp_path / "resnet50_v1c.pth", "deeplabv3plus-r50c")
    assert all(torch.equal(value, theirs[name.removeprefix("model.")]) for name, value in found.items())


def test_other_networks_weights_missing_files_and_garbage_are_refused(tmp_path, resnet18):
    torch.save(resnet18, tmp_path / "resnet18.pth")
    with pytest.raises(InputError, match=r"lack \d+ of the encoder's \d+ tensors.*another network's"):
        loaded(tmp_path / "resnet18.pth", "deeplabv3plus-r50")
    wide = {name: value.repeat(2, *[1] * (value.ndim - 1)) if value.ndim else value for name, value in resnet18.items()}
    torch.save(wide, tmp_path / "wide.pth")
    with pytest.raises(InputError, match=r"'conv1.weight' has shape \(128, 3, 7, 7\), expected \(64, 3, 7, 7\)"):
        loaded(tmp_path / "wide.pth")
    with pytest.raises(InputError, match=r"gone.pth': no such file; give a file, 'imagenet' or 'none'"):
        loaded(tmp_path / "gone.pth")
    for name in ("garbage.pth", "garbage.safetensors"):
        (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1")
        with pytest.raises(InputError, match=f"{name}: not readable as weights"):
            loaded(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(InputError, match=r"list.pth: expected a mapping of names to tensors"):
        loaded(tmp_path / "list.pth")


def test_a_hub_out_of_reach_is_said_in_a_sentence(monkeypatch):
    def offline(*args, **options):
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(InputError, match=r"cannot be fetched here .* `autoseg weights deeplabv3plus-r50 --out FILE`"):
        encoder_weights("deeplabv3plus-r50", "imagenet")
    with pytest.raises(InputError, match="network 'small' has no ImageNet weights"):
        encoder_weights("small", "imagenet")


def test_the_hubs_weights_are_used_by_their_names(monkeypatch, resnet18):
    asked = []

    class Model:
        def state_dict(self):
            return resnet18

    def hub(name, pretrained=False, **options):
        asked.append((name, pretrained))
        return Model()

    monkeypatch.setattr(timm, "create_model", hub)
    found = build_network("deeplabv3plus-r18", 2, "imagenet").encoder.state_dict()
    assert asked == [("resnet18.tv_in1k", True)]
    assert torch.equal(found["layer4.1.conv2.weight"], resnet18["layer4.1.conv2.weight"])


def test_every_hub_name_is_known_to_timm():
    for entry in NETWORKS.values():
        if entry.hub:
            assert timm.is_model(entry.hub.partition(".")[0])
            assert entry.hub in timm.list_pretrained(entry.hub)


def test_weights_are_fetched_into_a_file_that_is_weights(tmp_path, resnet18, capsys):
    torch.save(resnet18, tmp_path / "in.pth")
    out = str(tmp_path / "out.safetensors")
    command = ["weights", "deeplabv3plus-r18", "--from", str(tmp_path / "in.pth"), "--out"]
    assert main([*command, out]) == 0
    assert all(torch.equal(value, resnet18[name]) for name, value in loaded(out).items())
    assert main([*command, str(tmp_path / "out.pth")]) == 2
    assert "must end in .safetensors" in capsys.readouterr().err
    assert main(["weights", "deeplabv3plus-r81", "--out", out]) == 2
    assert "did you mean 'deeplabv3plus-r18'" in capsys.readouterr().err


@pytest.mark.parametrize("classes", [0, True, 2.0])
def test_a_number_of_classes_that_is_none_is_refused(classes):
    with pytest.raises(InputError, match="num_classes is"):
        build_network("tiny", classes)
