"""Runs: trained by one process or several, evaluated at the images' own size."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from small_task import arguments, lines, make_data, small_task, start, their_weights, wait_for
from torch import nn

from autoseg import plugins
from autoseg.cli import main
from autoseg.data.augment import WholeView
from autoseg.data.loaders import collate
from autoseg.data.prepared import Prepared
from autoseg.data.split import make_split
from autoseg.files import checksum, read_json, to_json
from autoseg.losses.names import HAND_MADE
from autoseg.losses.surrogate import Surrogate
from autoseg.losses.surrogate_loss import SurrogateLoss
from autoseg.metrics.conventions import Conventions, LossConventions
from autoseg.metrics.segmentation import SegmentationMetrics
from autoseg.report.gallery import predict
from autoseg.training.evaluation import score, slide
from autoseg.training.loop import Outcome
from autoseg.training.networks import build_network
from autoseg.training.run import evaluate_run, load_network, load_trained, save_weights, train_run
from autoseg.training.settings import Training
from autoseg.training.task import OpenTask
from tests.refusals import refused


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """A trained run."""
    out = tmp_path_factory.mktemp("runs") / "small-ce"
    assert main(["train", "--loss", "ce", "--out", str(out), "--quiet", *arguments(data)]) == 0
    return out


def test_a_run_says_what_it_is(run):
    content = read_json(run / "run.json")
    assert (content["dataset"], content["network"], content["loss"]) == ("synthetic", "tiny", "ce")
    assert (content["iterations"], content["num_classes"], content["diverged"]) == (4, 6, False)
    assert content["weights"] == checksum(run / "weights.safetensors")
    assert [line["iteration"] for line in lines(run / "log.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize("loss", [*HAND_MADE, "naive:mIoU", "published:BF1", "ce + 0.5 * published:BIoU"])
def test_every_kind_of_loss_trains_a_run(tmp_path, data, loss):
    trained = train_run(small_task(data, iterations=2), loss, tmp_path, progress=False)
    assert (trained.iterations, trained.diverged) == (2, False)


def test_a_searched_loss_keeps_class_0_on_data_without_a_background(tmp_path, data):
    paths = {}
    for drop in (True, False):
        paths[drop] = tmp_path / f"{drop}.json"
        Surrogate.make("BIoU", conventions={"drop_background": drop, "boundary_radius": 0}).save(paths[drop])
    task = small_task(data)
    road = task.model_copy(update={"conventions": Conventions(drop_background=False)})
    asked = road.model_copy(update={"loss_conventions": LossConventions(drop_background=True)})
    runs = {"kept": (task, False), "dropped": (task, True), "road": (road, True), "asked": (asked, True)}
    weights = {
        name: train_run(where, str(paths[drop]), tmp_path / name, progress=False).weights
        for name, (where, drop) in runs.items()
    }
    kept, dropped, road, asked = (load_file(tmp_path / name / "weights.safetensors") for name in weights)
    assert all(torch.equal(kept[name], road[name]) for name in kept)
    assert all(torch.equal(dropped[name], asked[name]) for name in kept)  # whatever the metric does
    assert not all(torch.equal(kept[name], dropped[name]) for name in kept)


def test_whether_class_0_is_a_background_is_known_of_the_kind_of_data(tmp_path, data):
    copied = Path(shutil.copytree(data, tmp_path / "data"))
    assert OpenTask(small_task(copied)).conventions.drop_background
    index = json.loads((copied / "index.json").read_text())
    (copied / "index.json").write_text(to_json({**index, "dataset": "cityscapes"}))
    make_split(Prepared.open(copied).index, 4).save(copied / "split.json")
    task = small_task(copied)
    assert not OpenTask(task).conventions.drop_background
    asked = task.model_copy(update={"conventions": Conventions(drop_background=True)})
    assert OpenTask(asked).conventions.drop_background


def test_a_finished_run_is_trained_again_only_if_something_it_depends_on_changed(tmp_path, data):
    def trained_again(loss="ce", options=None, **changes) -> bool:
        path = tmp_path / "run" / "weights.safetensors"
        before = path.stat().st_mtime_ns if path.exists() else 0
        train_run(small_task(**{"data": data, **changes}), loss, tmp_path / "run", progress=False, **(options or {}))
        return path.stat().st_mtime_ns != before

    assert trained_again()
    assert not trained_again()
    assert not trained_again(loaders=1, checkpoint_every=3)
    assert trained_again(lr=0.04)
    assert trained_again("dice")
    assert trained_again("dice", {"on": "search-train"})
    assert trained_again("dice", {"source": "cache"})
    assert trained_again(data=make_data(tmp_path / "other", seed=3))
    SurrogateLoss.published("mIoU").save(tmp_path / "surrogate.json")
    file, searched = str(tmp_path / "surrogate.json"), {"searched": {"toy": str(tmp_path / "surrogate.json")}}
    assert trained_again(file)
    assert not trained_again("searched:toy", searched)  # the same curves, wherever they lie
    assert not trained_again("Searched:toy", searched)
    SurrogateLoss.published("mIoU-paper").save(tmp_path / "surrogate.json")
    assert trained_again(file)
    (tmp_path / "run/weights.safetensors").write_bytes(b"damaged")
    assert trained_again(file)


# ---- Several processes ---------------------------------------------------------------------------------------------


def test_two_processes_train_to_the_losses_of_one_with_the_same_batch_and_merge_their_scores_exactly(tmp_path, data):
    """Every loss within 1e-5 of one process's (relative): float32 sums in another order, nothing else.

    Without the auxiliary head, whose dropout each process draws for itself. The cropped images have padded, void
    parts, so cross entropy must be normalised by all processes' valid pixels.
    """
    changes = {"iterations": 12, "aux_weight": 0.0}

    def commands(place: str) -> list[list[str]]:
        rest = ["--quiet", *arguments(data, **changes)]
        train = [
            ["train", "--loss", loss, "--out", str(tmp_path / place / name), *rest, *more]
            for name, loss, *more in (
                ("ce", "ce"),
                ("miou", "published:mIoU"),
                ("groups", "published:mIoU", "--set", "loss_batch=2"),  # the loss of each process's own images
                ("spare", "ce", "--network", "my_networks:make_with_a_spare", "--set", "freeze_batch_norm=true"),
            )
        ]
        run = str(tmp_path / "one" / "miou")  # the same weights are scored by both
        scores = str(tmp_path / place / "scores.json")
        return [*train, ["evaluate", run, "--out", scores, "--name", "x", *arguments(data, **changes)]]

    for command in commands("one"):
        assert main(command) == 0
    torchrun = ["--standalone", "--nproc-per-node", "2", "-m", "run_several"]
    process = start(*torchrun, *map(json.dumps, commands("two")), module="torch.distributed.run")
    _, shown = process.communicate(timeout=600)
    assert process.returncode == 0, shown
    for name in ("ce", "miou", "groups", "spare"):
        one, two = ([line["loss"] for line in lines(tmp_path / place / name / "log.jsonl")] for place in ("one", "two"))
        assert len(one) == len(two) == 12
        assert two == pytest.approx(one, rel=1e-5)
        assert read_json(tmp_path / "two" / name / "run.json")["iterations"] == 12
    assert (tmp_path / "two/scores.json").read_bytes() == (tmp_path / "one/scores.json").read_bytes()


@pytest.mark.long
def test_preempted_under_torchrun_the_same_command_goes_on(tmp_path, data):
    """torchrun passes the signal on and ends with 1, whatever its processes end with: for a cluster, a retry."""

    def torchrun(out: str):
        options = ["--standalone", "--nproc-per-node", "2", "--signals-to-handle", "SIGTERM,SIGINT,SIGUSR1"]
        run = ["train", "--loss", "published:mIoU", "--out", str(tmp_path / out), "--quiet"]
        task = arguments(data, iterations=150, loaders=1)
        return start(*options, "-m", "autoseg", *run, *task, module="torch.distributed.run")

    def finish(process) -> str:
        _, shown = process.communicate(timeout=600)
        assert process.returncode == 0, shown
        return shown

    finish(torchrun("whole"))
    out = tmp_path / "stopped"
    for number, least in ((signal.SIGTERM, 20), (signal.SIGUSR1, 60)):
        process = torchrun("stopped")
        wait_for(lambda: (out / "log.jsonl").exists() and len(lines(out / "log.jsonl")) > least, process)  # noqa: B023
        process.send_signal(number)
        _, shown = process.communicate(timeout=600)
        assert process.returncode == 1, shown
        assert "the same command goes on" in shown
        assert torch.load(out / "checkpoint.pt", weights_only=True)["iteration"] > least
    finish(torchrun("stopped"))
    for name in ("weights.safetensors", "run.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_batch_that_cannot_be_shared_out_is_refused(tmp_path, data, monkeypatch):
    class Three:
        def __enter__(self):
            return 0, 3

        def __exit__(self, *error):
            return None

    monkeypatch.setattr("autoseg.training.run.distributed", lambda device: Three())
    with refused(where="batch_size", what="processes 3"):
        train_run(small_task(data), "ce", tmp_path, progress=False)


# ---- Evaluation ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """A data set with images of several sizes, none of them square, none a multiple of the network's stride."""
    root = tmp_path_factory.mktemp("uneven")
    rng = np.random.default_rng(0)
    for split, sizes in (("train", [(37, 51), (50, 41)]), ("val", [(45, 33), (31, 62), (40, 40)])):
        for number, size in enumerate(sizes):
            for folder, shape in (("images", (*size, 3)), ("masks", size)):
                (root / folder / split).mkdir(parents=True, exist_ok=True)
                values = rng.integers(0, 256 if folder == "images" else 3, shape, np.uint8)
                Image.fromarray(values).save(root / folder / split / f"{split}{number}.png")
    (root / "classes.txt").write_text("sky 10 20 30\nroad 40 50 60\ncar 70 80 90\n")
    out = tmp_path_factory.mktemp("prepared")
    places = [f"--split={split}=images/{split},masks/{split}" for split in ("train", "val")]
    (root / "plain.txt").write_text("sky\nroad\ncar\n")
    command = ["prepare", "folder", "--root", str(root), "--classes", str(root / "plain.txt"), *places]
    assert main([*command, "--out", str(out), "--proxy-size", "32", "--threads", "1"]) == 0
    assert main(["split", str(out), "--hold-out", "1"]) == 0
    return out


def labels_at(network, image, mask, size: tuple[int, int]) -> np.ndarray:
    """The release's test: the image resized, its logits resized to the mask's size, the greatest of them."""
    resized = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)
    images, _ = collate([(resized, np.zeros(size, np.uint8))])
    with torch.inference_mode():
        logits = F.interpolate(network(images), mask.shape, mode="bilinear", align_corners=False)
    return logits.argmax(1)[0].numpy()


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ([], [(44, 32), (32, 64), (32, 32)]),  # as it was trained: short side 32
        (["--scale", "50,24"], [(33, 24), (24, 48), (24, 24)]),
        (["--scale", "original"], [(45, 33), (31, 62), (40, 40)]),
    ],
)
def test_scores_are_those_of_predictions_at_the_training_scale_brought_to_the_original_size(
    tmp_path, uneven, given, sizes
):
    run = tmp_path / "run"
    assert main(["train", "--loss", "ce", "--out", str(run), "--quiet", *arguments(uneven, batch_size=2)]) == 0
    assert main(["evaluate", str(run), *given, "--predictions", str(tmp_path / "png"), *arguments(uneven)]) == 0
    data = Prepared.open(uneven)
    metrics = SegmentationMetrics(3)
    network = load_network(run, load_trained(run), torch.device("cpu"))
    colours = [info.color for info in data.index.classes]
    for name, size in zip(data.ids("val"), sizes, strict=True):
        image, mask = data.read(name)
        picture = Image.open(tmp_path / "png" / f"{name}.png")
        assert picture.mode == "P"
        labels = np.array(picture)
        assert labels.shape == mask.shape
        assert (labels == labels_at(network, image, mask, size)).all()
        assert (np.array(picture.convert("RGB")) == np.array(colours, np.uint8)[labels]).all()
        metrics.update(labels, mask)
    found = read_json(run / "scores.json")
    assert found["scores"] == {name: 100 * value for name, value in metrics.compute().items()}
    assert list(found["per_class"]["mIoU"]) == sorted(["sky", "road", "car"])
    assert found["run"] == "run"


def test_another_scale_of_the_test_trains_nothing_again_and_is_the_galleries_too(tmp_path, data):
    run, png, prepared = tmp_path / "run", tmp_path / "png", Prepared.open(data)
    weights, scores = set(), set()
    for scale, said in (("training", (128, 32)), ([64, 48], (64, 48)), ("original", None)):
        trained = train_run(small_task(data, test_scale=scale), "ce", run, progress=False)
        assert trained.test_scale == load_trained(run).test_scale == said
        weights.add((run / "weights.safetensors").stat().st_mtime_ns)
        found = evaluate_run(small_task(data), run, tmp_path / "scores.json", predictions=png, progress=False)
        scores.add(found.fingerprint)
        ids = prepared.ids("val")
        for name, shown in zip(ids, predict(run, prepared, ids, None, torch.device("cpu")), strict=True):
            assert (np.array(Image.open(png / f"{name}.png")) == shown).all()
    assert len(weights) == 1
    assert len(scores) == 3


def test_the_releases_networks_see_a_voc_image_at_512_x_683_and_a_cityscapes_image_as_it_is():
    sizes = {
        "release": {(375, 500): (512, 683), (500, 375): (683, 512), (281, 500): (512, 911)},
        "release-cityscapes": {(1024, 2048): (1024, 2048)},
        "paper-cityscapes": {(1024, 2048): (1024, 2048)},
        "paper": {(375, 500): (513, 684)},
    }
    for protocol, expected in sizes.items():
        view = WholeView(Training.of_protocol(protocol).scored_at)
        assert {size: view.size(*size) for size in expected} == expected


def test_an_evaluation_shows_how_far_it_is_and_names_the_run_by_its_folder(tmp_path, run, data, capsys, monkeypatch):
    monkeypatch.chdir(run)
    command = ["evaluate", ".", "--out", str(tmp_path / "scores.json"), *arguments(data)]
    assert main(command) == 0
    assert "evaluate: 100%" in capsys.readouterr().err
    assert read_json(tmp_path / "scores.json")["run"] == "small-ce"
    assert main([*command, "--quiet"]) == 0
    assert "evaluate" not in capsys.readouterr().err


def test_a_class_that_is_nowhere_has_no_score_of_its_own(tmp_path, run, data):
    found = evaluate_run(small_task(data), run, tmp_path / "scores.json", part="hold_out")
    assert set(found.per_class["BF1"]) == {"ground", "meadow", "roof", "crate", "wire", "pebble"}
    for values in found.per_class.values():
        for value in values.values():
            assert value is None or 0 <= value <= 100


PLUGIN = """
from autoseg.metrics.formula import Formula, ratio, register
register(
    Formula(
        "pluginDice",
        sums=lambda y_hat, y, ops: {"both": ops.AND("AND", y_hat, y), "size": y_hat + y},
        per_class=lambda s: ratio(2 * s["both"], s["size"]),
    )
)
"""


def test_a_plugins_metric_is_scored_too(tmp_path, run, data, monkeypatch):
    without = evaluate_run(small_task(data), run, tmp_path / "six.json", progress=False)
    monkeypatch.setattr(plugins, "_registered", {})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "dice_plugin.py").write_text(PLUGIN)
    plugins.load_plugin("dice_plugin")
    found = evaluate_run(small_task(data), run, tmp_path / "seven.json", progress=False)
    assert {name: found.scores[name] for name in without.scores} == without.scores
    assert found.scores["pluginDice"] > found.scores["mIoU"] > 0
    assert found.fingerprint != without.fingerprint


def test_the_same_weights_are_the_same_bytes(tmp_path, run):
    network = load_network(run, load_trained(run), torch.device("cpu"))
    for number in range(20):
        save_weights(network, tmp_path / f"{number}.safetensors", "mark", Outcome(3))
    assert len({checksum(path) for path in tmp_path.glob("*.safetensors")}) == 1


def test_a_run_whose_weights_are_not_finite_scores_0(tmp_path, run, data):
    """Its labels are all the first class, which may well be the most frequent one."""
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    trained = load_trained(run)
    network = load_network(run, trained, torch.device("cpu"))
    next(network.parameters()).data.fill_(float("nan"))
    save_weights(network, broken / "weights.safetensors", trained.fingerprint, Outcome(3, diverged=True))
    changes = {"weights": checksum(broken / "weights.safetensors"), "diverged": True}
    trained.model_copy(update=changes).save(broken / "run.json")
    found = evaluate_run(small_task(data), broken, tmp_path / "scores.json", progress=False)
    assert (set(found.scores.values()), len(found.scores), found.diverged) == ({0.0}, 6, True)
    assert {value for values in found.per_class.values() for value in values.values()} <= {0.0, None}


class Convolution(nn.Module):
    """Logits that look one pixel far."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 4, size, padding=size // 2)

    def forward(self, images):
        return self.layer(images)


def test_a_sliding_window_equals_the_whole_image_where_it_must():
    torch.manual_seed(1)
    images = torch.randn(2, 3, 21, 34)
    pointwise = Convolution(1)
    with torch.inference_mode():
        assert torch.allclose(slide(pointwise, images, (8, 8)), pointwise(images), atol=1e-6)
        assert torch.equal(slide(Convolution(), images, (21, 34)), Convolution()(images))  # one window
        larger = slide(pointwise, images, (30, 40))  # an image smaller than the window is padded and cut back
        assert torch.allclose(larger, pointwise(images), atol=1e-6)
        # A window covers every pixel: the middle of it sees what the whole image shows there.
        assert slide(Convolution(), images, (8, 8)).shape == (2, 4, 21, 34)
        inner = (..., slice(1, 3), slice(1, 3))
        assert torch.allclose(slide(Convolution(), images, (8, 8))[inner], Convolution()(images)[inner], atol=1e-6)


def test_windows_can_be_asked_for_on_the_command_line(tmp_path, run, data, capsys):
    scores = tmp_path / "scores.json"
    window = ["--window", "32", "32"]  # as large as the images when they are scored
    assert main(["evaluate", str(run), "--out", str(scores), *arguments(data)]) == 0
    whole = read_json(scores)
    assert main(["evaluate", str(run), "--out", str(scores), *window, *arguments(data)]) == 0
    assert read_json(scores)["scores"] == whole["scores"]
    assert read_json(scores)["fingerprint"] != whole["fingerprint"]
    assert main(["evaluate", str(run), "--out", str(scores), "--window", "0", "48", *arguments(data)]) == 2
    assert "window: 0 x 48 pixels; expected at least 32 x 32" in capsys.readouterr().err


def test_several_processes_counts_add_up_to_those_of_one():
    images = [torch.randn(1, 3, 9, 11) for _ in range(5)]
    masks = [torch.randint(0, 4, (1, 9, 11)) for _ in range(5)]
    network, device, settings = Convolution(), torch.device("cpu"), Training.of_protocol("paper")
    whole = score(network, zip(images, masks, strict=True), SegmentationMetrics(4), device, settings)
    parts = [
        score(network, zip(images[k::2], masks[k::2], strict=True), SegmentationMetrics(4), device, settings)
        for k in (0, 1)
    ]
    parts[0].merge(parts[1])
    assert parts[0].compute() == whole.compute()


# ---- Somebody else's checkpoint ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twenty_one(tmp_path_factory):
    """A data set with VOC's number of classes."""
    root = tmp_path_factory.mktemp("twenty-one")
    rng = np.random.default_rng(1)
    for split, count in (("train", 2), ("val", 2)):
        for number in range(count):
            for folder, shape in (("images", (40, 56, 3)), ("masks", (40, 56))):
                (root / folder / split).mkdir(parents=True, exist_ok=True)
                values = rng.integers(0, 256 if folder == "images" else 21, shape, np.uint8)
                Image.fromarray(values).save(root / folder / split / f"{split}{number}.png")
    (root / "classes.txt").write_text("".join(f"class{number}\n" for number in range(21)))
    places = [f"--split={split}=images/{split},masks/{split}" for split in ("train", "val")]
    out = tmp_path_factory.mktemp("prepared")
    command = ["prepare", "folder", "--root", str(root), "--classes", str(root / "classes.txt"), *places]
    assert main([*command, "--out", str(out), "--proxy-size", "32", "--threads", "1"]) == 0
    assert main(["split", str(out), "--hold-out", "1"]) == 0
    return out


def test_a_checkpoint_of_the_authors_network_is_scored(tmp_path, twenty_one, capsys):
    """With mmsegmentation's names; scored are the labels that the network of these weights predicts."""
    name = "deeplabv3plus-r101c"
    weights = their_weights(name)
    path = tmp_path / "iter_10000.pth"
    torch.save({"meta": {"iter": 10000}, "state_dict": weights}, path)
    task = arguments(twenty_one, name)
    assert main(["evaluate", "--checkpoint", str(path), "--quiet", *task]) == 0
    found = read_json(tmp_path / "iter_10000.pth.scores.json")
    assert (found["run"], found["network"], found["loss"], found["seed"]) == ("iter_10000", name, None, None)
    assert found["weights"] == checksum(path)
    network = build_network(name, 21, checkpoint=path).eval()
    metrics = SegmentationMetrics(21)
    data = Prepared.open(twenty_one)
    for image in data.ids("val"):
        pixels, mask = data.read(image)
        metrics.update(labels_at(network, pixels, mask, (32, 45)), mask)
    assert found["scores"] == {name: 100 * value for name, value in metrics.compute().items()}
    assert main(["evaluate", "--checkpoint", str(path), *task, "--network", "pspnet-r101c"]) == 2
    assert f"{path}: it has" in capsys.readouterr().err
    path.unlink()
    assert main(["evaluate", "--checkpoint", str(path), *task]) == 2
    assert f"{path}: no such file" in capsys.readouterr().err


def test_a_run_or_a_checkpoint_is_scored_and_not_both(run, data, capsys):
    for given in ([], [str(run), "--checkpoint", "theirs.pth"]):
        assert main(["evaluate", *given, *arguments(data)]) == 2
        assert "RUN, --checkpoint" in capsys.readouterr().err


# ---- Bad input -----------------------------------------------------------------------------------------------------


def test_a_run_for_another_number_of_classes_is_refused(tmp_path, run, uneven, capsys):
    assert main(["evaluate", str(run), "--out", str(tmp_path / "scores.json"), *arguments(uneven)]) == 2
    assert "trained for 6 classes, but" in capsys.readouterr().err
    assert not (tmp_path / "scores.json").exists()


def test_a_run_that_is_not_there_or_damaged_is_refused(tmp_path, run, data, capsys):
    assert main(["evaluate", str(tmp_path / "nowhere"), *arguments(data)]) == 2
    assert "no run.json in it; run `autoseg train" in capsys.readouterr().err
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    (damaged / "weights.safetensors").write_bytes(b"damaged")
    assert main(["evaluate", str(damaged), *arguments(data)]) == 2
    assert "not the weights that" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(tmp_path, data, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("autoseg.training.run.train", lambda *args, **options: pytest.fail("a step was trained"))
    assert main(["train", "--loss", "ce", "--out", str(tmp_path / "file"), *arguments(data)]) == 2
    assert "file: a file is in the place of a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        ("cee", "unknown loss 'cee'"),
        ("ce + ", "unknown loss 'ce +'"),
        ("searched:toy", "names a search, but no searches were given"),
        ("gone.json", "gone.json: no such file"),
    ],
)
def test_a_loss_that_does_not_exist_is_refused_before_anything_is_written(tmp_path, data, capsys, loss, problem):
    assert main(["train", "--loss", loss, "--out", str(tmp_path / "run"), *arguments(data)]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
