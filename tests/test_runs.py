"""Runs: trained by one process or several, evaluated at the images' own size."""

from __future__ import annotations

import json
import shutil
import signal

import numpy as np
import pytest
import torch
from PIL import Image
from small_task import arguments, lines, make_data, small_task, start, wait_for
from torch import nn

from autoseg import plugins
from autoseg.cli import main
from autoseg.data.loaders import collate
from autoseg.data.prepared import Prepared
from autoseg.errors import InputError
from autoseg.evaluation import score, slide
from autoseg.files import checksum, read_json, write_json
from autoseg.losses import HAND_MADE
from autoseg.metrics import SegmentationMetrics
from autoseg.runs import evaluate_run, load_network, load_trained, save_weights, train_run
from autoseg.surrogates import SurrogateLoss
from autoseg.training import Outcome


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


def test_a_finished_run_is_trained_again_only_if_something_it_depends_on_changed(tmp_path, data):
    def trained_again(loss="ce", options=None, **changes) -> bool:
        path = tmp_path / "run" / "weights.safetensors"
        before = path.stat().st_mtime_ns if path.exists() else 0
        train_run(small_task(**{"data": data, **changes}), loss, tmp_path / "run", progress=False, **(options or {}))
        return path.stat().st_mtime_ns != before

    assert trained_again()
    assert not trained_again()
    assert not trained_again(workers=1, checkpoint_every=3)
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
            ["train", "--loss", loss, "--out", str(tmp_path / place / name), *rest]
            for name, loss in (("ce", "ce"), ("miou", "published:mIoU"))
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
    for name in ("ce", "miou"):
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
        task = arguments(data, iterations=150, workers=1)
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

    monkeypatch.setattr("autoseg.runs.distributed", lambda device: Three())
    with pytest.raises(InputError, match="batch_size 4 cannot be shared by 3 processes in 1 parts each"):
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
    assert main([*command, "--out", str(out), "--proxy-size", "32", "--workers", "1"]) == 0
    assert main(["split", str(out), "--hold-out", "1"]) == 0
    return out


def test_scores_are_those_of_the_predictions_at_original_size(tmp_path, uneven):
    run = tmp_path / "run"
    assert main(["train", "--loss", "ce", "--out", str(run), "--quiet", *arguments(uneven, batch_size=2)]) == 0
    assert main(["evaluate", str(run), "--predictions", str(tmp_path / "png"), *arguments(uneven)]) == 0
    data = Prepared.open(uneven)
    metrics = SegmentationMetrics(3)
    network = load_network(run, load_trained(run), torch.device("cpu"))
    colours = [info.color for info in data.index.classes]
    for name in data.ids("val"):
        image, mask = data.read(name)
        picture = Image.open(tmp_path / "png" / f"{name}.png")
        assert picture.mode == "P"
        labels = np.array(picture)
        with torch.inference_mode():
            expected = network(collate([(image, mask)])[0]).argmax(1)[0].numpy()
        assert labels.shape == mask.shape
        assert (labels == expected).all()
        assert (np.array(picture.convert("RGB")) == np.array(colours, np.uint8)[labels]).all()
        metrics.update(labels, mask)
    found = read_json(run / "scores.json")
    assert found["scores"] == {name: 100 * value for name, value in metrics.compute().items()}
    assert list(found["per_class"]["mIoU"]) == sorted(["sky", "road", "car"])
    assert found["run"] == "run"


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
from autoseg.formula import Formula, ratio, register
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
    write_json(broken / "run.json", {**trained.model_dump(by_alias=True), **changes})
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
    window = ["--window", "48", "48"]  # as large as the images
    assert main(["evaluate", str(run), "--out", str(scores), *arguments(data)]) == 0
    whole = read_json(scores)
    assert main(["evaluate", str(run), "--out", str(scores), *window, *arguments(data)]) == 0
    assert read_json(scores)["scores"] == whole["scores"]
    assert read_json(scores)["fingerprint"] != whole["fingerprint"]
    assert main(["evaluate", str(run), "--out", str(scores), "--window", "0", "48", *arguments(data)]) == 2
    assert "a window of 0 x 48 pixels; expected at least 32 x 32" in capsys.readouterr().err


def test_several_processes_counts_add_up_to_those_of_one():
    images = [torch.randn(1, 3, 9, 11) for _ in range(5)]
    masks = [torch.randint(0, 4, (1, 9, 11)) for _ in range(5)]
    network, device = Convolution(), torch.device("cpu")
    whole = score(network, zip(images, masks, strict=True), SegmentationMetrics(4), device)
    parts = [
        score(network, zip(images[k::2], masks[k::2], strict=True), SegmentationMetrics(4), device) for k in (0, 1)
    ]
    parts[0].merge(parts[1])
    assert parts[0].compute() == whole.compute()


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
    monkeypatch.setattr("autoseg.runs.train", lambda *args, **options: pytest.fail("a step was trained"))
    assert main(["train", "--loss", "ce", "--out", str(tmp_path / "file"), *arguments(data)]) == 2
    assert "file: cannot be written" in capsys.readouterr().err


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
