"""Networks: shapes, strides, heads, weights from everywhere, and that they learn."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_task import GOLDEN, THEIRS, their_weights

from autoseg.cli import main
from autoseg.data.loaders import collate
from autoseg.data.synthetic import CLASSES, scene
from autoseg.errors import InputError
from autoseg.losses.build import build_loss
from autoseg.losses.names import HAND_MADE
from autoseg.metrics.formula import METRICS
from autoseg.metrics.segmentation import SegmentationMetrics
from autoseg.training.encoders import Block, resize
from autoseg.training.evaluation import score
from autoseg.training.loop import train
from autoseg.training.networks import NETWORKS, build_network, encoder_weights
from autoseg.training.settings import Training
from autoseg.training.weights import load_whole

import autoseg.training._torchvision  # isort: skip  # noqa: F401  # before timm: see there
import timm  # isort: skip

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
    heads = 1 if name == "hrnetv2-w48" else 2  # the release trains HRNet without an auxiliary head
    with torch.inference_mode():
        for height, width in ((64, 96), (65, 49)):
            images = torch.randn(2, 3, height, width)
            assert network.eval()(images).shape == (2, 5, height, width)
            assert [x.shape for x in network.train()(images)] == [(2, 5, height, width)] * heads
    encoder, others = network.parameter_groups()
    assert len(encoder) + len(others) == len(list(network.parameters()))
    assert {id(p) for p in network.encoder.parameters()} == {id(p) for p in encoder}


# ---- The authors' networks -----------------------------------------------------------------------------------------

SIZES = {
    "deeplabv3plus-r50c": (65, 97),
    "deeplabv3plus-r101c": (64, 64),
    "pspnet-r101c": (65, 97),
    "hrnetv2-w48": (64, 96),
}


def distance(found: torch.Tensor, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.linalg.norm(found.numpy() - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("name", SIZES)
def test_a_network_answers_as_the_authors_does(name):
    network = build_network(name, 21).eval()
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == THEIRS[f"{name}#parameters"]
    load_whole(network, their_weights(name), "theirs")
    images = torch.from_numpy(np.random.default_rng(99).standard_normal((1, 3, *SIZES[name])).astype(np.float32))
    with np.load(GOLDEN / "networks.npz") as expected, torch.inference_mode():
        features = network.encoder(images)
        assert distance(network.head(features)[0], expected[f"{name}/head"]) < 1e-4
        assert distance(network(images)[0, :, ::4, ::4], expected[f"{name}/logits"]) < 1e-4
        assert (network.auxiliary is None) == (f"{name}/auxiliary" not in expected)
        if network.auxiliary is not None:
            auxiliary = resize(network.auxiliary(features[-2:-1]), images)
            assert distance(auxiliary[0, :, ::4, ::4], expected[f"{name}/auxiliary"]) < 1e-4


@pytest.mark.parametrize("name", ["deeplabv3plus-r50", "deeplabv3plus-r50c", "deeplabv3plus-r18"])
def test_the_last_two_stages_are_dilated_by_2_and_4_but_for_their_first_blocks(name):
    """As torchvision's, whose ImageNet weights the encoder starts from, and the release's."""
    encoder = build_network(name, 2).encoder
    with torch.inference_mode():
        assert encoder.eval()(torch.zeros(1, 3, 64, 64))[-1].shape[-2:] == (8, 8)
    for stage, (first, others) in ((encoder.layer3, (1, 2)), (encoder.layer4, (2, 4))):
        blocks = [module for module in stage.modules() if isinstance(module, Block)]
        dilated = [max(m.dilation[0] for m in block.modules() if isinstance(m, torch.nn.Conv2d)) for block in blocks]
        assert dilated == [first] + [others] * (len(blocks) - 1)


def test_a_plain_resnet_answers_as_torchvisions_does():
    """timm's has torchvision's dilation and names, and its own code."""
    torch.manual_seed(2)
    theirs = timm.create_model("resnet50", features_only=True, out_indices=(1, 2, 3, 4), output_stride=8).eval()
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1)  # the last one of a block starts at 0, and would hide it
    ours = build_network("deeplabv3plus-r50", 2).encoder.eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(1, 3, 65, 49)
    with torch.inference_mode():
        for found, expected in zip(ours(images), theirs(images), strict=True):
            assert distance(found, expected.numpy()) < 1e-5


def test_heads_begin_as_the_releases():
    """The classifier near 0, other convolutions by what goes out of them; dropout of whole channels before the last."""
    torch.manual_seed(0)
    network = build_network("deeplabv3plus-r50c", 21)
    for head in (network.head, network.auxiliary):
        assert float(head.conv_seg.weight.detach().std()) == pytest.approx(0.01, rel=0.05)
        assert float(head.conv_seg.bias.detach().abs().max()) == 0
        assert (type(head.dropout), head.dropout.p) == (torch.nn.Dropout2d, 0.1)
    assert float(network.head.bottleneck.conv.weight.detach().std()) == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.02)
    assert build_network("hrnetv2-w48", 21).head.dropout.p == 0


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
    scores = score(network, [(images, masks)], SegmentationMetrics(len(CLASSES)), CPU, s).compute()
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


def test_hrnets_weights_have_timms_names(tmp_path):
    torch.manual_seed(7)
    theirs = timm.create_model("hrnet_w48").state_dict()
    torch.save(theirs, tmp_path / "hrnet.pth")
    found = loaded(tmp_path / "hrnet.pth", "hrnetv2-w48")
    assert all(torch.equal(value, theirs[name]) for name, value in found.items())


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
    assert all(torch.equal(value, renamed[name]) for name, value in found.items() if "num_batches" not in name)
    torch.save(theirs, tmp_path / "timm.pth")
    again = loaded(tmp_path / "timm.pth", "deeplabv3plus-r50c")
    assert all(torch.equal(value, found[name]) for name, value in again.items())


def refused(path, name: str = "deeplabv3plus-r18", **options) -> InputError:
    with pytest.raises(InputError) as error:
        build_network(name, 3, **(options or {"weights": path}))
    assert error.value.where == str(path)
    return error.value


def test_other_networks_weights_missing_files_and_garbage_are_refused(tmp_path, resnet18):
    torch.save(resnet18, tmp_path / "resnet18.pth")
    error = refused(tmp_path / "resnet18.pth", "deeplabv3plus-r50")
    assert "lacks" in error.what
    assert "name the network that they are of" in error.cure
    wide = {name: value.repeat(2, *[1] * (value.ndim - 1)) if value.ndim else value for name, value in resnet18.items()}
    torch.save(wide, tmp_path / "wide.pth")
    assert "'conv1.weight' has shape (128, 3, 7, 7)" in refused(tmp_path / "wide.pth").what
    gone = refused(tmp_path / "gone.pth")
    assert gone.what == "no such file"
    assert "`autoseg weights deeplabv3plus-r18 --out FILE`" in gone.cure
    for name in ("garbage.pth", "garbage.safetensors"):
        (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1")
        assert "not readable as weights" in refused(tmp_path / name).what
    torch.save([1, 2], tmp_path / "list.pth")
    assert refused(tmp_path / "list.pth").expected == "a mapping of names to tensors"


def mmsegs_names(network) -> dict[str, torch.Tensor]:
    names = {"encoder.": "backbone.", "head.": "decode_head.", "auxiliary.": "auxiliary_head."}
    renamed = {}
    for key, value in network.state_dict().items():
        prefix = next(prefix for prefix in names if key.startswith(prefix))
        renamed[names[prefix] + key.removeprefix(prefix)] = value
    return renamed


def test_a_whole_checkpoint_is_read_with_mmsegmentations_names_and_with_ours(tmp_path):
    torch.manual_seed(8)
    network = build_network("deeplabv3plus-r18", 3)
    theirs = mmsegs_names(network)
    assert {key.partition(".")[0] for key in theirs} == {key.partition(".")[0] for key in THEIRS["deeplabv3plus-r50c"]}
    about = {"meta": {"iter": 10, "CLASSES": ("a", "b", "c")}, "optimizer": {"state": {}, "param_groups": []}}
    torch.save({**about, "state_dict": theirs}, tmp_path / "iter_10000.pth")
    torch.save({"state_dict": {f"module.{key}": value for key, value in theirs.items()}}, tmp_path / "parallel.pth")
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    for path in sorted(tmp_path.iterdir()):
        found = build_network("deeplabv3plus-r18", 3, checkpoint=path).state_dict()
        assert all(torch.equal(value, found[name]) for name, value in network.state_dict().items()), path.name


def test_a_checkpoint_of_another_network_or_other_classes_is_refused(tmp_path, resnet18):
    path = tmp_path / "other.pth"
    torch.save(mmsegs_names(build_network("deeplabv3plus-r18", 4)), path)
    assert "'head.conv_seg.weight' has shape (4, 128, 1, 1)" in refused(path, checkpoint=path).what
    assert "tensors that the network lacks" in refused(path, "deeplabv3plus-r50c", checkpoint=path).what
    whole = mmsegs_names(build_network("deeplabv3plus-r18", 3))
    torch.save({key: value for key, value in whole.items() if "auxiliary" not in key}, path)
    assert "it lacks 7 of" in refused(path, checkpoint=path).what
    torch.save(resnet18, path)
    assert "'conv1.weight'" in refused(path, checkpoint=path).what
    assert refused(tmp_path / "gone.pth", checkpoint=tmp_path / "gone.pth").what == "no such file"


class Command:
    """What a malicious file holds: unpickled, it would make a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("zipped", [True, False])
def test_no_code_in_a_checkpoint_is_run(tmp_path, zipped):
    network = build_network("tiny", 3)
    path = tmp_path / "checkpoint.pth"
    content = {"meta": Command(tmp_path / "made"), "state_dict": network.state_dict()}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    error = refused(path, "tiny", checkpoint=path)
    assert "no code in it is run" in error.expected
    assert "weights_only" not in error.what  # torch's advice is to run it
    assert not (tmp_path / "made").exists()


def test_a_hub_out_of_reach_is_said_in_a_sentence(monkeypatch):
    def offline(*args, **options):
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(InputError) as error:
        encoder_weights("deeplabv3plus-r50", "imagenet")
    assert "ConnectionError" in error.value.what
    assert "`autoseg weights deeplabv3plus-r50 --out FILE`" in error.value.cure
    with pytest.raises(InputError) as error:
        encoder_weights("small", "imagenet")
    assert error.value.what == "network 'small' has no ImageNet weights"


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
    for architecture in NETWORKS.values():
        if architecture.hub:
            assert timm.is_model(architecture.hub.partition(".")[0])
            assert architecture.hub in timm.list_pretrained(architecture.hub)


def test_weights_are_fetched_into_a_file_that_is_weights(tmp_path, resnet18, capsys):
    torch.save(resnet18, tmp_path / "in.pth")
    out = str(tmp_path / "out.safetensors")
    command = ["weights", "deeplabv3plus-r18", "--from", str(tmp_path / "in.pth"), "--out"]
    assert main([*command, out]) == 0
    assert all(torch.equal(value, resnet18[name]) for name, value in loaded(out).items())
    assert main([*command, str(tmp_path / "out.pth")]) == 2
    assert "a name that ends in .safetensors" in capsys.readouterr().err
    assert main(["weights", "deeplabv3plus-r81", "--out", out]) == 2
    assert "did you mean 'deeplabv3plus-r18'" in capsys.readouterr().err


@pytest.mark.parametrize("classes", [0, True, 2.0])
def test_a_number_of_classes_that_is_none_is_refused(classes):
    with pytest.raises(InputError, match="num_classes is"):
        build_network("tiny", classes)
