"""Networks of others: smp's by name, anyone's own module, registered ones; their weights, identity and parts."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import my_networks
import pytest
import torch
import torch.nn.functional as F
from pipeline_runs import changed, command, content, environment, results, snakemake, with_config
from safetensors.torch import save_file
from small_task import arguments, lines, small_task, start, wait_for
from torch import nn

from autoseg.cli import main
from autoseg.errors import InputError
from autoseg.files import checksum
from autoseg.training.foreign import Foreign
from autoseg.training.names import check_network, network_identity, register_network, unregister_network
from autoseg.training.networks import build_network, encoder_weights
from autoseg.training.rehearsal import rehearse
from autoseg.training.task import OpenTask, check_task
from autoseg.training.weights import load_encoder, read

import autoseg.training._torchvision  # isort: skip  # noqa: F401  # before smp and timm: see there
import segmentation_models_pytorch as smp  # isort: skip
import timm  # isort: skip

SMP = "smp:FPN/mobilenet_v2"
REAL = Path(__file__).parents[2] / "shared/data/weights/mobilenet_v2.safetensors"  # beside the clone in CI


@pytest.fixture(scope="module")
def mobilenet(tmp_path_factory) -> Path:
    """Weights of the encoder: real ones where they are, otherwise drawn ones under torchvision's names."""
    if REAL.exists():
        return REAL
    torch.manual_seed(1)
    state = smp.FPN("mobilenet_v2", encoder_weights=None).encoder.state_dict()
    path = tmp_path_factory.mktemp("weights") / "mobilenet_v2.safetensors"
    save_file({name: value for name, value in state.items() if "num_batches" not in name}, path)
    return path


# ---- Names, without loading anything ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["tiny", SMP, "smp:UPerNet/tu-convnext_tiny.fb_in22k", "smp:FPN/timm-tf_efficientnet_lite0", "a.b_c:make"]
)
def test_a_name_of_every_kind_is_taken_without_loading_what_it_names(name):
    check_network(name)


@pytest.mark.parametrize(
    "name", ["smp:FPN", "smp:/x", "smp:FPN/", "my_networks:", ":make", "a/b:c", "a-b:make", "tinny"]
)
def test_a_name_that_can_be_no_network_is_refused(name):
    with pytest.raises(InputError, match="smp:<Architecture>/<encoder>"):
        check_network(name)


def test_options_are_refused_where_there_are_none():
    with pytest.raises(InputError, match="network_options: network 'tiny' has no options, found width"):
        check_network("tiny", {"width": 3})


def test_a_registered_network_has_a_name_of_its_own_and_no_other_takes_it():
    register_network("mine", my_networks.make)
    try:
        register_network("mine", my_networks.make)  # the same: its module was imported again
        assert isinstance(build_network("mine", 3).module, my_networks.Mine)
        assert network_identity("mine") == network_identity("my_networks:make")
        with pytest.raises(InputError, match="there is a network 'mine' already"):
            register_network("mine", dict)
        for name in ("tiny", "my net"):
            with pytest.raises(InputError, match="register_network"):
                register_network(name, dict)
    finally:
        unregister_network("mine")


def test_a_registered_partial_is_its_function_and_what_it_binds(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "bound_network.py"
    file.write_text("def make(width, n): ...\n")
    make = importlib.import_module("bound_network").make
    seen = []
    for width in (4, 8, 8):
        register_network("bound", functools.partial(make, width))
        try:
            register_network("bound", functools.partial(make, width))  # the same: its module was imported again
            seen.append(network_identity("bound"))
        finally:
            unregister_network("bound")
        if width == 8:
            file.write_text("def make(width, n): return None\n")
    assert len({str(each) for each in seen}) == 3


@pytest.mark.parametrize("make", ["my_networks:make", None, 3])
def test_what_is_registered_must_be_callable(make):
    with pytest.raises(InputError, match=r"register_network: found .*; expected a callable"):
        register_network("mine", make)


# ---- smp -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        SMP,
        "smp:Unet/tu-mobilenetv3_small_050",
        "smp:Segformer/mit_b0",
        "smp:PAN/resnet18",
        "smp:DeepLabV3Plus/resnet18",
    ],
)
def test_a_model_of_smp_takes_images_of_any_size(name):
    network = build_network(name, 3)
    images = torch.randn(2, 3, 37, 50)
    (logits,) = network.train()(images)
    assert logits.shape == network.eval()(images).shape == (2, 3, 37, 50)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        *(f"smp:{name}/resnet18" for name in ("UnetPlusPlus", "MAnet", "Linknet", "PSPNet", "DeepLabV3", "UPerNet")),
        *("smp:UPerNet/tu-convnext_tiny", "smp:UPerNet/tu-swin_tiny_patch4_window7_224"),
        *("smp:DPT/tu-vit_tiny_patch16_224", "smp:FPN/timm-tf_efficientnet_lite0"),
    ],
)
def test_every_architecture_of_smp_takes_images_of_any_size(name):
    test_a_model_of_smp_takes_images_of_any_size(name)


def test_every_architecture_of_smp_is_tried_above():
    marks = [
        *test_a_model_of_smp_takes_images_of_any_size.pytestmark,
        *test_every_architecture_of_smp_takes_images_of_any_size.pytestmark,
    ]
    names = [name for mark in marks if mark.name == "parametrize" for name in mark.args[1]]
    tried = {name.removeprefix("smp:").partition("/")[0] for name in names}
    assert tried == {found.__name__ for found in smp.MODEL_ARCHITECTURES_MAPPING.values()}


def test_a_model_of_smp_answers_as_smps_own_where_nothing_is_padded_and_padded_as_by_hand():
    torch.manual_seed(0)
    theirs = smp.FPN("mobilenet_v2", encoder_weights=None, classes=3, decoder_dropout=0.5).eval()
    ours = build_network(SMP, 3, options={"decoder_dropout": 0.5}).eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(1, 3, 40, 64)
    with torch.inference_mode():
        assert torch.equal(ours(images[..., :32, :]), theirs(images[..., :32, :]))
        assert torch.equal(ours(images), theirs(F.pad(images, (0, 0, 0, 24)))[..., :40, :])


def test_what_smp_cannot_build_is_said_in_a_sentence():
    with pytest.raises(InputError, match="unknown architecture of smp 'FNP'; did you mean 'FPN'"):
        build_network("smp:FNP/resnet18", 2)
    with pytest.raises(InputError, match=r"unknown encoder of smp 'resnet81'; did you mean 'resnet18'\?") as error:
        build_network("smp:FPN/resnet81", 2)
    assert len(str(error.value)) < 200
    with pytest.raises(InputError, match="network_options: unknown option 'decoder_drop'; did you mean 'decoder_drop"):
        build_network("smp:FPN/resnet18", 2, options={"decoder_drop": 0.2})
    with pytest.raises(InputError, match="smp cannot build FPN on 'resnet18' with upsampling='x'"):
        build_network("smp:FPN/resnet18", 2, options={"upsampling": "x"})
    with pytest.raises(InputError, match=r"unknown encoder of timm 'tu-resnet81'; did you mean 'tu-resnet18'\?"):
        build_network("smp:FPN/tu-resnet81", 2)
    with pytest.raises(InputError, match="unknown encoder of smp 'timm-foo'; expected a name of smp's") as error:
        build_network("smp:FPN/timm-foo", 2)
    assert len(str(error.value)) < 200
    with pytest.raises(InputError, match="network_options: 'classes' is no choice here"):
        build_network("smp:FPN/resnet18", 2, options={"classes": 2})


# ---- Anyone's own --------------------------------------------------------------------------------------------------


class Gives(nn.Module):
    """A network that gives what it is told, of logits at a third of the images' size."""

    def __init__(self, what) -> None:
        super().__init__()
        self.conv, self.what = nn.Conv2d(3, 4, 3, stride=3), what

    def forward(self, images):
        return self.what(self.conv(images))


@pytest.mark.parametrize(
    ("what", "outputs"),
    [
        (lambda logits: logits, 1),
        (lambda logits: (logits, logits, logits), 3),
        (lambda logits: (logits, None, logits), 2),
        (lambda logits: [logits], 1),
        (lambda logits: {"out": logits, "aux": logits}, 2),
        (lambda logits: {"out": logits, "aux": None}, 1),
        (lambda logits: {"logits": logits, "loss": 3}, 1),
        (lambda logits: SimpleNamespace(logits=logits, hidden_states=None), 1),
    ],
)
def test_logits_are_found_in_what_a_module_gives_and_brought_to_the_images_size(what, outputs):
    network = Foreign(Gives(what), 4, "mine")
    images = torch.randn(2, 3, 20, 31)
    found = network.train()(images)
    assert [logits.shape for logits in found] == [(2, 4, 20, 31)] * outputs
    expected = F.interpolate(network.module.conv(images), (20, 31), mode="bilinear", align_corners=False)
    assert torch.equal(network.eval()(images), found[0])
    assert torch.equal(found[0], expected)


@pytest.mark.parametrize(
    "what",
    [
        lambda logits: logits[0],
        lambda logits: logits[:, :3],
        lambda logits: logits.long(),
        lambda logits: {"mask": logits},
        lambda logits: None,
    ],
)
def test_what_is_no_logits_is_refused_with_what_would_be(what):
    with pytest.raises(InputError, match=r"network 'mine' gives .* for images \(2, 3, 9, 9\); expected logits"):
        Foreign(Gives(what), 4, "mine")(torch.randn(2, 3, 9, 9))


def test_in_evaluation_mode_anything_may_follow_the_logits():
    for after in (None, [1, 2], torch.zeros(2, 256, 3, 3)):
        network = Foreign(Gives(lambda logits, after=after: (logits, after)), 4, "mine")
        assert network.eval()(torch.randn(2, 3, 9, 9)).shape == (2, 4, 9, 9)


@pytest.mark.parametrize("multiple", [0, -3, "32", [32, 32]])
def test_a_size_that_is_no_whole_number_is_refused(multiple):
    module = nn.Conv2d(3, 4, 1)
    module.size_multiple = multiple
    with pytest.raises(InputError, match=r"size_multiple: .* a whole number, 1 or more"):
        Foreign(module, 4, "mine")


def test_a_module_that_says_so_has_images_padded():
    class Picky(nn.Module):
        size_multiple = 8

        def forward(self, images):
            seen.append(tuple(images.shape[-2:]))
            return images

    seen: list[tuple[int, int]] = []
    assert Foreign(Picky(), 3, "mine").eval()(torch.zeros(1, 3, 9, 16)).shape == (1, 3, 9, 16)
    assert seen == [(16, 16)]


def test_an_own_network_is_made_with_its_options_and_a_mistake_is_said_in_a_sentence(tmp_path, monkeypatch):
    assert build_network("my_networks:make", 3, options={"width": 5}).module.head.in_channels == 5
    with pytest.raises(InputError, match=r"does not take depth; it is make\(num_classes"):
        build_network("my_networks:make", 3, options={"depth": 5})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "wrong_networks.py").write_text("def none(n): pass\ndef fails(n):\n    return {}[n]\n")
    with pytest.raises(
        InputError, match=r"network 'wrong_networks:none': gives a NoneType; expected a torch.nn.Module"
    ):
        build_network("wrong_networks:none", 3)
    with pytest.raises(InputError, match=r"KeyError: 3 \(.*wrong_networks.py, line 3\)"):
        build_network("wrong_networks:fails", 3)
    with pytest.raises(InputError, match="module wrong_networks has no 'mak'"):
        build_network("wrong_networks:mak", 3)
    with pytest.raises(InputError, match="No module named 'no_networks'"):
        build_network("no_networks:make", 3)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\ny = 1 / 0", r"fails when it is imported: ZeroDivisionError: division by zero \(.*bad.py, line 2\)"),
        ("from torch import no_such_thing", r"fails when it is imported: ImportError: .* \(.*bad.py, line 1\)"),
        ("import sys\nsys.exit(3)", r"fails when it is imported: SystemExit: 3 \(.*bad.py, line 2\)"),
        ("def make(n, width): ...", r"missing a required argument: 'width'; it is make\(n, width\); .*network_options"),
        ("def make(*, num_classes): ...", r"too many positional arguments; it is make\(\*, num_classes\)"),
        (
            "import torch\nmake = torch.nn.Conv2d(3, 3, 1)",
            "is a Conv2d, not a function that makes one; expected a call",
        ),
        ("import torch\ndef make(n):\n    return torch.nn.Conv2d(3, n)", r"TypeError.* \(.*bad.py, line 3\)"),
        (
            "import torch\ndef make(n):\n    return torch.nn.LazyConv2d(n, 1)",
            "has weights without a size: 'weight'; .*",
        ),
        (
            "import torch\nclass Net(torch.nn.Conv2d):\n    def get_extra_state(self):\n        return {}\n"
            "def make(n):\n    return Net(3, n, 1)",
            "has a state that is no tensor: '_extra_state'; .*",
        ),
    ],
)
def test_a_module_that_gives_no_network_is_refused_with_the_place_in_it(source, said, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bad", raising=False)
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(InputError, match=rf"^network 'bad:make': {said}"):
        build_network("bad:make", 3)


MISTAKES = """
import torch

class Forgets(torch.nn.Conv2d):
    def forward(self, images):
        return super().forward(images) + self.forgotten

class Nothing(torch.nn.Module):
    def forward(self, images):
        return images

class NotFinite(torch.nn.Conv2d):
    def forward(self, images):
        return super().forward(images).sub(9).log()

class Detached(torch.nn.Conv2d):
    def forward(self, images):
        return super().forward(images).detach()

def forgets(n): return Forgets(3, n, 1)
def nothing(n): return Nothing()
def not_finite(n): return NotFinite(3, n, 1)
def detached(n): return Detached(3, n, 1)
def doubles(n): return torch.nn.Conv2d(3, n, 1).double()
"""


def test_the_doctor_and_the_training_say_what_is_wrong_with_a_network(data, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    place = r"AttributeError: 'Forgets' object has no attribute 'forgotten' \(.*mistakes.py, line 6\)"
    for name, said in (
        ("forgets", rf"fails on images \(2, 3, 32, 32\) in training mode: {place}"),
        ("nothing", "has no parameter that learns"),
        ("not_finite", "gives logits that are not finite in training mode"),
        ("doubles", "fails on images .* should be the same .*; images are float32: give the module such weights"),
    ):
        with pytest.raises(InputError, match=rf"^network 'mistakes:{name}': {said}"):
            rehearse(f"mistakes:{name}", 3, (32, 32))
    for name, said in (
        ("forgets", place),
        ("nothing", "has no parameter that learns"),
        ("detached", "gives logits without a gradient in training mode, though .*; look for `torch.no_grad"),
    ):
        task = arguments(data, f"mistakes:{name}")
        assert main(["train", "--loss", "ce", "--out", str(tmp_path / name), "--quiet", *task]) == 2
        assert re.search(said, capsys.readouterr().err)


def test_the_doctor_finds_a_network_that_cannot_take_the_images(data, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code = (
        "class N(torch.nn.Conv2d):\n    def forward(self, x):\n        return super().forward(x).view(2, -1, 32, 32)\n"
    )
    (tmp_path / "one_size.py").write_text(f"import torch\n{code}def make(n): return N(3, n, 1)\n")
    found = [str(problem) for problem in check_task(small_task(data, "one_size:make"))]
    assert any("fails on images (1, 3, 35, 37) in evaluation mode: RuntimeError" in text for text in found)
    assert any("`size_multiple`" in text for text in found)


# ---- What it is: fingerprints ----------------------------------------------------------------------------------------


def test_a_changed_source_is_another_network_and_so_are_files_that_it_imports(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "parts_of_it.py").write_text("WIDTH = 8\n")
    (tmp_path / "not_of_it.py").write_text("WIDTH = 8\n")
    (tmp_path / "a_network.py").write_text("import parts_of_it, torch, autoseg\ndef make(n): ...\n")
    seen = [network_identity("a_network:make")["network_source"]]
    (tmp_path / "not_of_it.py").write_text("WIDTH = 9\n")
    assert network_identity("a_network:make")["network_source"] == seen[0]
    for name, text in (("parts_of_it", "WIDTH = 9\n"), ("a_network", "import parts_of_it\ndef make(n): ...\n")):
        (tmp_path / f"{name}.py").write_text(text)
        seen.append(network_identity("a_network:make")["network_source"])
    assert len(set(seen)) == 3
    assert "a_network" not in sys.modules


def test_a_package_is_all_of_its_files(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_package/inner").mkdir(parents=True)
    (tmp_path / "a_package/__init__.py").write_text("")
    (tmp_path / "a_package/inner/blocks.py").write_text("WIDTH = 8\n")
    before = network_identity("a_package.nets:make")
    (tmp_path / "a_package/inner/blocks.py").write_text("WIDTH = 9\n")
    assert network_identity("a_package.nets:make") != before


def test_smps_networks_are_those_of_its_version_and_options_count():
    libraries = {"segmentation-models-pytorch": smp.__version__, "timm": timm.__version__}
    assert network_identity(SMP) == {"libraries": libraries}
    assert network_identity(SMP, {"decoder_dropout": 0.5})["network_options"] == {"decoder_dropout": 0.5}


def test_the_fingerprint_of_a_built_in_network_with_default_settings_has_no_new_key(data):
    identity = OpenTask(small_task(data)).decisive()
    assert not {"network_options", "network_source", "libraries", "checkpoint"} & set(identity)
    later = {"optimiser", "schedule", "warmup", "betas", "decay_norms", "ema", "augmentation", "freeze_encoder"}
    assert not later & set(identity["training"])


# ---- Weights ---------------------------------------------------------------------------------------------------------


def test_a_file_of_the_encoder_fills_smps_encoder(mobilenet):
    found = build_network(SMP, 3, mobilenet).encoder.state_dict()
    assert all(torch.equal(found[name], value) for name, value in read(mobilenet).items() if name in found)
    assert not torch.equal(
        build_network(SMP, 3).encoder.state_dict()["features.0.0.weight"], found["features.0.0.weight"]
    )


@pytest.mark.parametrize(
    ("encoder", "model"), [("tu-convnext_atto", "convnext_atto"), ("tu-mobilenetv3_small_050", "mobilenetv3_small_050")]
)
def test_a_file_of_a_whole_timm_model_fills_smps_encoder_of_it(tmp_path, encoder, model):
    torch.manual_seed(2)
    theirs = timm.create_model(model)
    torch.save(theirs.state_dict(), tmp_path / "timm.pth")
    encoder = build_network(f"smp:FPN/{encoder}", 3, tmp_path / "timm.pth").encoder.eval()
    images = torch.randn(1, 3, 64, 64)
    features = timm.create_model(model, features_only=True)
    load_encoder(features, theirs.state_dict(), "timm.pth")
    assert torch.equal(encoder(images)[-1], features.eval()(images)[-1])


def test_weights_that_were_fetched_are_read_again(tmp_path, mobilenet, capsys):
    out = tmp_path / "encoder.safetensors"
    assert main(["weights", SMP, "--from", str(mobilenet), "--out", str(out)]) == 0
    a, b = (build_network(SMP, 3, path).encoder.state_dict() for path in (mobilenet, out))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_wrong_file_says_what_does_not_fit(tmp_path, mobilenet):
    with pytest.raises(
        InputError, match=r"it lacks 100 of 100 tensors, such as 'conv1.weight'; its own \d+ have names"
    ):
        build_network("smp:FPN/resnet18", 3, mobilenet)
    whole = build_network(SMP, 4)
    path = tmp_path / "whole.safetensors"
    save_file(whole.state_dict(), path)
    assert torch.equal(
        build_network(SMP, 4, checkpoint=path).module.segmentation_head[0].bias, whole.module.segmentation_head[0].bias
    )
    with pytest.raises(
        InputError, match=r"has shape \(4, 128, 1, 1\), the network's is \(3, 128, 1, 1\) \(2 of \d+ have"
    ):
        build_network(SMP, 3, checkpoint=path)
    with pytest.raises(InputError, match="tensors that the network lacks"):
        build_network(SMP, 3, checkpoint=mobilenet)
    with pytest.raises(InputError, match="network 'my_networks:make' has no ImageNet weights"):
        build_network("my_networks:make", 3, "imagenet")
    (tmp_path / "bare_network.py").write_text("import torch\ndef make(n): return torch.nn.Conv2d(3, n, 1)\n")
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(InputError, match=r"neither .encoder nor .backbone; give the whole network's checkpoint"):
            build_network("bare_network:make", 3, mobilenet)
    finally:
        sys.path.remove(str(tmp_path))


def test_a_file_of_a_network_whose_own_part_is_called_module_fits_it(tmp_path, monkeypatch):
    make = lambda n: nn.DataParallel(my_networks.make(n))  # noqa: E731
    monkeypatch.setattr(my_networks, "parallel", make, raising=False)
    for state in (make(4).state_dict(), nn.DataParallel(make(4)).state_dict()):
        torch.save(state, tmp_path / "whole.pth")
        network = build_network("my_networks:parallel", 4, checkpoint=tmp_path / "whole.pth")
        assert torch.equal(network.module.module.head.bias, state[next(k for k in state if k.endswith("head.bias"))])


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "net._orig_mod."])
def test_a_file_of_a_greater_module_fills_the_network_that_is_a_part_of_it(prefix, tmp_path):
    """DataParallel's, Lightning's, torch.compile's: another prefix, and in Lightning other parts beside the network."""
    torch.manual_seed(3)
    whole = build_network(SMP, 4).state_dict()
    state = {f"{prefix}{name}": value for name, value in whole.items()}
    beside = {} if prefix == "module." else {"criterion.weight": torch.ones(4)}
    path = tmp_path / "epoch=3.ckpt"
    torch.save({"epoch": 3, "state_dict": {**state, **beside}, "hyper_parameters": {"lr": 0.1}}, path)
    found = build_network(SMP, 4, checkpoint=path).state_dict()
    assert all(torch.equal(found[name], value) for name, value in whole.items() if "num_batches" not in name)
    encoder = build_network("smp:Unet/mobilenet_v2", 3, path).encoder.state_dict()
    assert torch.equal(encoder["features.0.0.weight"], whole["encoder.features.0.0.weight"])
    with pytest.raises(InputError, match="tensors that the network lacks"):
        build_network("smp:Unet/mobilenet_v2", 4, checkpoint=path)


def test_a_file_that_would_run_code_is_not_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"state_dict": Evil()}))
    torch.save({"state_dict": Evil()}, tmp_path / "evil2.pth")
    for name in ("evil.pth", "evil2.pth"):
        with pytest.raises(InputError, match="not readable as weights"):
            build_network(SMP, 3, tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_a_hub_out_of_reach_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def offline(*args, **options):
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(smp.encoders, "hf_hub_download", offline)
    with pytest.raises(InputError, match="the ImageNet weights of 'resnet18' cannot be fetched here") as error:
        encoder_weights("smp:FPN/resnet18", "imagenet")
    assert "`autoseg weights smp:FPN/resnet18 --out FILE`" in error.value.cure


def test_a_task_begins_from_one_thing(data, tmp_path):
    with pytest.raises(ValueError, match="weights and checkpoint: both are given"):
        small_task(data, SMP, "imagenet").model_copy().__class__(
            **{**small_task(data, SMP).model_dump(), "weights": "imagenet", "checkpoint": "x.pth"}
        )


# ---- Whole searches, runs and tables -------------------------------------------------------------------------------


def search(folder: Path, data: Path, network: str, *more: str) -> dict[str, bytes]:
    """Run a small search and return its files."""
    settings = json.dumps({"metric": "mIoU", "steps": 2, "trials_per_step": 2})
    (folder.parent / "search.json").write_text(settings)
    task = arguments(data, network, iterations=2)
    command = ["search", str(folder), "--settings", str(folder.parent / "search.json"), "--quiet", *task, *more]
    assert main(command) == 0
    return results(folder)


@pytest.mark.parametrize("network", [SMP, "my_networks:make"])
def test_a_search_goes_through_and_on_from_where_it_was(network, data, mobilenet, tmp_path, capsys):
    more = ["--weights", str(mobilenet)] if network == SMP else ["--network-option", "width=6"]
    whole = search(tmp_path / "whole", data, network, *more)
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "whole", again)
    for path in [again / "surrogate.json", *again.glob("step-002/*"), again / "step-001/trial-1.json"]:
        path.unlink()  # as a kill in the first step would leave it
    assert search(again, data, network, *more) == whole
    scores = [json.loads(text)["score"] for name, text in whole.items() if "/trial-" in name]
    assert len(scores) == 4
    assert all(0 <= score <= 1 for score in scores)


def test_killed_in_the_middle_a_run_with_everything_new_ends_with_the_same_bytes(data, mobilenet, tmp_path):
    """AdamW, its moments, the average of the weights, warm-up, cosine and an own augmentation, on an smp model."""
    changes = {"iterations": 24, "checkpoint_every": 4, "optimiser": "adamw", "lr": 1e-3, "ema": 0.9, "warmup": 3}
    changes |= {"schedule": "cosine", "decay_norms": False, "clip_gradient": 1.0, "loaders": 1}
    changes |= {"augmentation": "my_augmentation:make"}
    task = [*arguments(data, SMP, **changes), "--weights", str(mobilenet)]

    def command(out: Path) -> list[str]:
        return ["train", "--loss", "published:mIoU", "--out", str(out), "--quiet", *task]

    assert main(command(tmp_path / "whole")) == 0
    out = tmp_path / "killed"
    process = start(*command(out))
    wait_for((out / "checkpoint.previous.pt").exists, process, seconds=300)
    process.kill()
    process.wait(60)
    process.stderr.close()
    assert not (out / "run.json").exists()
    assert main(command(out)) == 0
    for name in ("weights.safetensors", "run.json"):
        assert checksum(out / name) == checksum(tmp_path / "whole" / name), name
    assert [line["loss"] for line in lines(out / "log.jsonl")] == [
        line["loss"] for line in lines(tmp_path / "whole/log.jsonl")
    ]
    assert main(["evaluate", str(out), "--quiet", *task[:4]]) == 0


def test_a_run_of_an_own_network_is_scored_with_its_options_and_a_change_is_said(
    data, tmp_path, monkeypatch, caplog, capsys
):
    monkeypatch.syspath_prepend(tmp_path)
    source = Path(my_networks.__file__).read_text()
    (tmp_path / "their_networks.py").write_text(source)
    options = ["--network-option", "width=5"]
    task = [*arguments(data, "their_networks:make"), *options]
    assert main(["train", "--loss", "ce", "--out", str(tmp_path / "run"), "--quiet", *task]) == 0
    about = json.loads((tmp_path / "run/run.json").read_text())
    assert about["network_options"] == {"width": 5}
    evaluation = ["evaluate", str(tmp_path / "run"), "--quiet", "--data", str(data)]
    assert main(evaluation) == 2  # run.json alone starts no code
    assert "--network their_networks:make" in capsys.readouterr().err
    evaluation += ["--network", "their_networks:make"]
    assert main(evaluation) == 0
    first = json.loads((tmp_path / "run/scores.json").read_text())
    assert "was changed" not in caplog.text
    (tmp_path / "their_networks.py").write_text(source + "# a remark\n")
    assert main(evaluation) == 0
    assert "network 'their_networks:make' was changed after this run was trained with it" in caplog.text
    second = json.loads((tmp_path / "run/scores.json").read_text())
    assert second["scores"] == first["scores"]
    assert second["fingerprint"] != first["fingerprint"]


def small_pipeline(mobilenet: Path) -> dict:
    """The tiny config with one search, whose proxy is an own network, and one table, whose runs are smp's."""
    config = content("tiny")
    config["searches"] = {"mIoU": config["searches"]["mIoU"]}
    config["searches"]["mIoU"]["search"].update(steps=1, trials_per_step=2)
    config["proxies"]["tiny"] |= {"network": "my_networks:make", "network_options": {"width": 6}}
    config["retrainings"]["tiny"] |= {"network": SMP, "weights": str(mobilenet)}
    config["tables"] = {"main": {**config["tables"]["main"], "rows": ["searched:mIoU"]}}
    return changed(config, "figures", {})


def test_a_pipeline_makes_a_table_with_an_own_network_and_with_smps(mobilenet, tmp_path):
    shutil.copy(my_networks.__file__, tmp_path)
    config = small_pipeline(mobilenet)
    done = snakemake(tmp_path, "tables", *with_config(tmp_path, config))
    assert done.returncode == 0, done.stdout
    assert "mIoU" in (tmp_path / "results/tiny/tables/main.md").read_text()
    with (tmp_path / "my_networks.py").open("a") as file:
        file.write("# changed\n")
    done = snakemake(tmp_path, "tables", "-n", "--quiet", "rules", *with_config(tmp_path, config))
    assert "trials" in done.stdout  # a changed network is a changed result
    config = copy.deepcopy(config)
    config["retrainings"]["tiny"]["network"] = "smp:FNP/mobilenet_v2"
    done = snakemake(tmp_path, "tables", *with_config(tmp_path, config))
    assert done.returncode != 0
    assert "retrainings.tiny: network: unknown architecture of smp 'FNP'; did you mean 'FPN'" in done.stdout


@pytest.mark.long
def test_a_pipeline_killed_in_its_search_and_in_its_training_ends_with_the_same_bytes(mobilenet, tmp_path):
    config, folders = small_pipeline(mobilenet), [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
        shutil.copy(my_networks.__file__, folder)
    whole, killed = folders
    done = snakemake(whole, "tables", *with_config(whole, config))
    assert done.returncode == 0, done.stdout
    arguments = ("tables", *with_config(killed, config), "--rerun-incomplete")
    trial, log = "results/tiny/searches/mIoU/step-001/trial-0.json", "results/tiny/runs/**/log.jsonl"
    for seen, unseen in (
        (trial, "results/tiny/searches/mIoU/surrogate.json"),
        (log, "results/tiny/runs/**/scores.json"),
    ):
        process = subprocess.Popen(
            command(*arguments),
            cwd=killed,
            env=environment(),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda seen=seen: any(killed.glob(seen)), process, seconds=300)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        assert not list(killed.glob(unseen))
        snakemake(killed, *arguments, "--unlock")
    scored = (killed / trial).stat().st_mtime_ns
    done = snakemake(killed, *arguments)
    assert done.returncode == 0, done.stdout
    assert (killed / trial).stat().st_mtime_ns == scored  # nothing finished is trained again
    kinds = (".json", ".safetensors", ".md")
    assert results(killed / "results", kinds) == results(whole / "results", kinds)
