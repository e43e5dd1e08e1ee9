"""Proxy trials: the same score wherever and whenever, nothing trained twice, nothing stale reused."""

from __future__ import annotations

import json
import math
import shutil
import signal
from pathlib import Path

import pytest
import torch
from small_task import arguments, make_data, small_task, start, wait_for

from autoseg.cli import main
from autoseg.errors import Preempted
from autoseg.files import checksum, read_json, write_json
from autoseg.losses.build import build_loss
from autoseg.losses.published import published
from autoseg.search.folder import Folder
from autoseg.search.runner import run_chunk
from autoseg.search.settings import Search
from autoseg.search.steps import ask
from autoseg.training.loop import Outcome
from autoseg.training.networks import build_network
from autoseg.training.trial import ProxyTask
from tests.refusals import refused

SEARCH = Search(name="toy", metric="mIoU", steps=1, trials_per_step=4)


def new_search(path: Path, search: Search = SEARCH) -> Folder:
    folder = Folder(path)
    folder.write(ask(search, []))
    return folder


def scores(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.glob("step-001/trial-*.json"))}


@pytest.fixture(scope="module")
def proxy(data):
    return ProxyTask(small_task(data))


@pytest.fixture(scope="module")
def expected(data, proxy, tmp_path_factory) -> dict[str, bytes]:
    """The bytes of all four scores, trained one after the other in one go."""
    folder = new_search(tmp_path_factory.mktemp("expected"))
    run_chunk(folder.path, 1, proxy)
    found = scores(folder.path)
    assert len(found) == 4
    return found


@pytest.fixture
def trained(monkeypatch) -> list[list[float]]:
    """The parameters of every trial that is trained."""
    thetas: list[list[float]] = []
    trial = ProxyTask.__call__

    def counted(self, proposal, number):
        thetas.append(proposal.theta)
        return trial(self, proposal, number)

    monkeypatch.setattr(ProxyTask, "__call__", counted)
    return thetas


def test_a_score_file_holds_all_six_scores_and_the_target_is_one_of_them(expected):
    content = json.loads(expected["trial-0.json"])
    assert content["metric"] == "mIoU"
    assert set(content["scores"]) == {"gAcc", "mAcc", "mIoU", "FWIoU", "BIoU", "BF1"}
    assert content["score"] == content["scores"]["mIoU"]
    assert content["diverged"] is False
    assert len({json.loads(text)["score"] for text in expected.values()}) > 1


@pytest.mark.parametrize("chunks", [[(0, 2), (1, 2)], [(3, 4), (0, 4), (2, 4), (1, 4)], [(2, 3), (0, 3), (1, 3)]])
def test_a_score_is_the_same_bytes_in_any_chunk_of_any_size_in_any_order(tmp_path, proxy, expected, chunks):
    folder = new_search(tmp_path)
    for chunk in chunks:
        run_chunk(folder.path, 1, proxy, chunk)
    assert scores(tmp_path) == expected


@pytest.mark.long
def test_a_score_is_the_same_bytes_alone_in_a_fresh_process_with_loaders(tmp_path, data, expected):
    new_search(tmp_path)
    process = start("trials", str(tmp_path), "--step", "1", "--chunk", "2/4", *arguments(data, loaders=2))
    _, shown = process.communicate(timeout=600)
    assert process.returncode == 0, shown
    assert scores(tmp_path) == {"trial-2.json": expected["trial-2.json"]}


def test_killed_in_the_middle_a_chunk_goes_on_without_training_finished_trials_again(tmp_path, data, expected, trained):
    new_search(tmp_path)
    command = ["trials", str(tmp_path), "--step", "1", "--quiet", *arguments(data)]
    process = start(*command)
    wait_for((tmp_path / "step-001/trial-0.json").exists, process)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.stderr.close()
    finished = {name: (tmp_path / "step-001" / name).stat().st_mtime_ns for name in scores(tmp_path)}
    assert main([*command, "--out", str(tmp_path / "chunk.json")]) == 0
    assert scores(tmp_path) == expected
    assert len(trained) == 4 - len(finished)
    for name, time in finished.items():
        assert (tmp_path / "step-001" / name).stat().st_mtime_ns == time
    written = read_json(tmp_path / "chunk.json")["scores"]
    assert written == {name: checksum(tmp_path / "step-001" / name) for name in expected}
    assert main(command) == 0
    assert len(trained) == 4 - len(finished)


def test_a_preempted_chunk_exits_with_75(tmp_path, data, monkeypatch, capsys):
    new_search(tmp_path)

    def preempted(self, proposal, number):
        raise Preempted("stopped after step 3 of 4")

    monkeypatch.setattr(ProxyTask, "__call__", preempted)
    assert main(["trials", str(tmp_path), "--step", "1", *arguments(data)]) == 75
    assert "the same command goes on" in capsys.readouterr().err


def save_weights(path: Path, seed: int) -> str:
    torch.manual_seed(seed)
    torch.save(build_network("tiny", 2).encoder.state_dict(), path)
    return str(path)


def test_another_setting_data_set_split_or_weight_file_trains_anew(tmp_path, data, trained):
    """And what changes no result (loaders, checkpoints, a copied folder) does not."""
    folder = new_search(tmp_path / "search")

    def run(**changes) -> int:
        before = len(trained)
        run_chunk(folder.path, 1, ProxyTask(small_task(**{"data": data, **changes})), (0, 4))
        return len(trained) - before

    weights = save_weights(tmp_path / "weights.pth", seed=1)
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    assert run() == 1
    assert run() == 0
    assert run(loaders=1, checkpoint_every=7) == 0
    assert run(data=copy) == 0
    assert run(iterations=3) == 1
    assert run() == 0  # the old score was set aside and is taken back
    assert len(list((folder.path / "step-001").glob("trial-0.json"))) == 1
    assert run(network="small") == 1
    assert run(weights=weights) == 1
    shutil.copy(weights, tmp_path / "moved.pth")
    assert run(weights=str(tmp_path / "moved.pth")) == 0
    save_weights(tmp_path / "weights.pth", seed=2)
    assert run(weights=weights) == 1
    assert main(["split", str(data), "--hold-out", "3", "--out", str(tmp_path / "split.json")]) == 0
    assert run(split=str(tmp_path / "split.json")) == 1
    assert run(data=make_data(tmp_path / "other", seed=1)) == 1


def test_a_finished_chunk_is_recognised_without_building_a_network(tmp_path, data, expected, monkeypatch):
    """Neither by `autoseg trials` nor by a whole search, in this process or in a worker."""
    folder = new_search(tmp_path / "toy")
    for name, content in expected.items():
        (folder.path / "step-001" / name).write_bytes(content)

    def build(self):
        raise AssertionError("a network was built")

    monkeypatch.setattr(ProxyTask, "network", build)
    assert main(["trials", str(folder.path), "--step", "1", "--quiet", *arguments(data)]) == 0
    write_json(tmp_path / "search.json", SEARCH.model_dump())
    search = ["search", str(folder.path), "--settings", str(tmp_path / "search.json"), "--quiet", *arguments(data)]
    assert main(search) == 0
    (folder.path / "step-001" / "trial-1.json").unlink()
    with pytest.raises(AssertionError, match="a network was built"):
        main(["trials", str(folder.path), "--step", "1", "--quiet", *arguments(data)])


def test_trials_start_from_the_same_weights_batches_and_dropout(proxy):
    """A trial leaves nothing behind: between two trainings with a loss, others were trained."""
    first = proxy.train(build_loss("ce")).losses
    proxy.train(build_loss("published:BF1"))
    assert proxy.train(build_loss("ce")).losses == first


class Collapse(torch.nn.Module):
    """Cross entropy, and NaN from its `at`-th call on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.calls, self.at = 0, at

    def forward(self, logits, masks):
        self.calls += 1
        loss = torch.nn.functional.cross_entropy(logits, masks, ignore_index=255)
        return loss * (math.nan if self.calls >= self.at else 1)


def test_a_collapsed_training_is_scored_as_it_is_and_recorded(proxy, monkeypatch):
    monkeypatch.setattr("autoseg.training.trial.loss_of", lambda *args, **options: Collapse(5))
    report = proxy(published("mIoU"), 0)
    assert report["diverged"] is True
    assert report["score"] == proxy.score()["mIoU"] > 0


def test_weights_that_are_not_finite_score_0(proxy, monkeypatch):
    def explode(self, loss, progress=None, looks=None, link=None):
        next(self.trained.parameters()).data.fill_(math.inf)
        return Outcome(3, diverged=True)

    monkeypatch.setattr(ProxyTask, "train", explode)
    report = proxy(published("BF1"), 0)
    assert report == {"score": 0.0, "scores": dict.fromkeys(report["scores"], 0.0), "diverged": True, "device": "cpu"}
    assert len(report["scores"]) == 6


def test_out_of_memory_fails_the_chunk_and_writes_no_score(tmp_path, proxy, monkeypatch):
    folder = new_search(tmp_path)

    class Greedy(torch.nn.Module):
        def forward(self, logits, masks):
            raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("autoseg.training.trial.loss_of", lambda *args, **options: Greedy())
    with refused(what="out of memory"):
        run_chunk(folder.path, 1, proxy)
    assert not scores(tmp_path)


def test_a_full_disk_fails_the_chunk_and_keeps_the_scores_that_are_there(disk, data, proxy, expected, capsys):
    folder = new_search(disk.path / "toy")
    run_chunk(folder.path, 1, proxy, (0, 4))
    disk.fill()
    command = ["trials", str(folder.path), "--step", "1", "--quiet", *arguments(data)]
    assert main(command) == 2
    assert "no room left" in capsys.readouterr().err
    disk.free()
    assert scores(folder.path) == {"trial-0.json": expected["trial-0.json"]}
    assert main(command) == 0
    assert scores(folder.path) == expected


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--chunk", "4/4"], "expected K/N with 0 <= K < N"),
        (["--chunk", "first"], "expected K/N, such as 0/4"),
        (["--step", "one"], "expected a number or 'rescore'"),
        (["--step", "2"], "proposals.json: no such file"),
        (["--set", "iterations=none"], "iterations: Input should be a valid integer"),
        (["--set", "iterations"], "expected KEY=VALUE"),
        (["--network", "unet"], "unknown network 'unet'"),
        (["--weights", "gone.pth"], "gone.pth: no such file"),
        (["--data", "nowhere"], "no index.json in it"),
        (["--set", "short_side=64"], "cache"),
        (["--convention", "tolerance=-1"], "tolerance"),
    ],
)
def test_bad_input_ends_in_a_sentence(tmp_path, data, capsys, given, problem):
    new_search(tmp_path)
    assert main(["trials", str(tmp_path), "--step", "1", "--quiet", *arguments(data), *given]) == 2
    shown = capsys.readouterr().err
    assert problem in shown
    assert shown.count("\n") == 1
    assert not scores(tmp_path)


def test_a_whole_search_on_the_proxy_task_writes_the_scores_that_trials_would(tmp_path, data, expected, trained):
    """And goes on where it stopped: a score that is there is not trained again, in no process."""
    write_json(tmp_path / "search.json", SEARCH.model_dump())
    command = [
        "search",
        str(tmp_path / "toy"),
        "--settings",
        str(tmp_path / "search.json"),
        "--quiet",
        *arguments(data),
    ]
    folder = new_search(tmp_path / "toy")
    (folder.path / "step-001/trial-1.json").write_bytes(expected["trial-1.json"])
    before = (folder.path / "step-001/trial-1.json").stat().st_mtime_ns
    assert main([*command, "--workers", "2"]) == 0
    assert scores(tmp_path / "toy") == expected
    assert (folder.path / "step-001/trial-1.json").stat().st_mtime_ns == before
    assert (tmp_path / "toy/surrogate.json").exists()
    assert main(["trials", str(folder.path), "--step", "1", "--quiet", *arguments(data)]) == 0
    assert not trained


@pytest.mark.long
def test_a_searchs_conventions_are_those_of_its_trials(tmp_path, data):
    """Of the losses that are trained, and of the metric that scores them, also without a pipeline that repeats them."""
    losses, scored = set(), set()
    for name, changes in {
        "usual": {},
        "loss": {"loss_conventions": {"tolerance": 0}},
        "metric": {"conventions": {"tolerance": 0}, "loss_conventions": {"tolerance": 5}},
    }.items():
        search = Search(metric="BF1", steps=1, trials_per_step=2, **changes)
        write_json(tmp_path / f"{name}.json", search.model_dump(exclude_defaults=True))
        settings = ["--settings", str(tmp_path / f"{name}.json"), *arguments(data)]
        assert main(["search", str(tmp_path / name), "--quiet", *settings]) == 0
        by_search = Folder(tmp_path / name).scores(1)[0].scores
        assert (
            main(["trials", str(new_search(tmp_path / f"{name} again", search).path), "--step", "1", *arguments(data)])
            == 0
        )
        assert Folder(tmp_path / f"{name} again").scores(1)[0].scores == by_search
        losses.add(by_search["mIoU"])  # of the trained network: it depends on the loss alone
        scored.add(by_search["BF1"])
    assert (len(losses), len(scored)) == (2, 3)


def test_a_users_metric_is_searched_for_on_the_proxy_task(tmp_path, data):
    write_json(tmp_path / "search.json", {"metric": "toyDice", "steps": 1, "trials_per_step": 2})
    command = ["search", str(tmp_path / "toy"), "--settings", str(tmp_path / "search.json"), "--quiet"]
    process = start("--plugin", "toy_metric", *command, *arguments(data))
    _, shown = process.communicate(timeout=600)
    assert process.returncode == 0, shown
    content = read_json(tmp_path / "toy/step-001/trial-0.json")
    assert content["metric"] == "toyDice"
    assert set(content["scores"]) == {"gAcc", "mAcc", "mIoU", "FWIoU", "BIoU", "BF1", "toyDice"}
    assert content["score"] == content["scores"]["toyDice"] > 0


def test_a_search_needs_a_task_or_an_objective(tmp_path, data, capsys):
    write_json(tmp_path / "search.json", SEARCH.model_dump())
    command = ["search", str(tmp_path / "toy"), "--settings", str(tmp_path / "search.json")]
    assert main(command) == 2
    assert "--data: is missing" in capsys.readouterr().err
    assert main([*command, "--objective", "toy_objectives:near", "--data", str(data)]) == 2
    assert "--objective and --data: both are given" in capsys.readouterr().err
