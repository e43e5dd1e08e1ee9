"""AM-LFS: its loss, its search by REINFORCE, and networks that are handed from step to step."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_task import arguments, small_task, start

from autoseg.cli import main
from autoseg.errors import InputError
from autoseg.files import checksum
from autoseg.losses.am_lfs import ProbabilitySpace
from autoseg.losses.am_lfs_loss import FLOOR, AMLFSLoss
from autoseg.losses.build import build_loss
from autoseg.losses.surrogate import Surrogate
from autoseg.losses.surrogate_loss import SurrogateLoss
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.layout import Layout
from autoseg.pipeline.recovery import recover
from autoseg.search.folder import Folder, Link
from autoseg.search.records import Scored, TrialScore
from autoseg.search.runner import run
from autoseg.search.settings import Search
from autoseg.search.steps import ask, candidates, select
from autoseg.training.loop import Outcome
from autoseg.training.run import save_weights
from autoseg.training.trial import ProxyObjective, ProxyTask
from autoseg.training.weights import read
from tests.pipeline_runs import content, snakemake, with_config

SEARCH = Search(name="handed on", metric="mIoU", sampler="am-lfs", family="am-lfs", steps=3, trials_per_step=3)


def made(theta: list[float], **options: object) -> AMLFSLoss:
    return AMLFSLoss(Surrogate.make("mIoU", theta, family="am-lfs"), **options)


# ---------------------------------------------------------------------------------------------------------- its loss


thetas = st.lists(st.floats(-3, 3), min_size=12, max_size=12)


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    seed, scale = draw(st.integers(0, 10_000)), draw(st.sampled_from([0.1, 1.0, 30.0, 1e4, 1e38]))
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 3, (2, 4, 5), generator=generator)
    target[torch.rand(target.shape, generator=generator) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = 255
    return scale * torch.randn(2, 3, 4, 5, generator=generator), target


@given(batches())
@settings(max_examples=40, deadline=None)
def test_it_starts_as_cross_entropy_in_value_and_gradient(batch):
    logits, target = batch
    values, gradients = [], []
    for loss in (made(ProbabilitySpace().identity), build_loss("ce")):
        leaf = logits.double().requires_grad_()
        values.append(loss(leaf, target))
        gradients.append(torch.autograd.grad(values[-1], leaf)[0])
    torch.testing.assert_close(values[0], values[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-12)


@given(thetas, batches())
@settings(max_examples=60, deadline=None)
def test_it_is_finite_on_every_finite_batch_whatever_was_sampled(theta, batch):
    logits, target = batch
    leaf = logits.requires_grad_()
    value = made(theta)(leaf, target)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(leaf.grad).all()


@given(thetas, st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_it_is_the_mean_of_minus_log_tau(theta, seed):
    generator = np.random.default_rng(seed)
    logits, target = generator.normal(size=(1, 4, 3, 3)), generator.integers(0, 4, (1, 3, 3))
    target[0, 0, 0] = 255
    expected = []
    for pixel in range(1, 9):
        row, column = divmod(pixel, 3)
        z = logits[0, :, row, column]
        p = np.exp(z[target[0, row, column]] - np.logaddexp.reduce(z))
        k = min(int(p * 6), 5)
        expected.append(-np.log(max(theta[2 * k] * p + theta[2 * k + 1], FLOOR)))
    found = made(theta)(torch.tensor(logits), torch.tensor(target)).item()
    assert found == pytest.approx(np.mean(expected), rel=1e-9, abs=1e-9)


def test_its_gradient_is_that_of_its_value():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 3, (2, 3, 3))
    loss = made([0.8, 0.1, 1.2, 0.05, 0.9, 0.2, 1.1, 0.0, 1.0, 0.1, 0.7, 0.3])
    assert torch.autograd.gradcheck(lambda x: loss(x, target), (logits,))


def test_a_probability_of_zero_still_pulls_where_the_offset_is_zero():
    logits = torch.tensor([[[[0.0]], [[200.0]]]], requires_grad=True)
    loss = made(ProbabilitySpace().identity)(logits, torch.zeros(1, 1, 1, dtype=torch.long))
    loss.backward()
    assert loss.item() == pytest.approx(200)
    assert logits.grad.flatten().tolist() == pytest.approx([-1, 1])


def test_classes_weigh_as_in_cross_entropy():
    logits, target = torch.randn(1, 3, 4, 4), torch.randint(0, 3, (1, 4, 4))
    own, plain = made(ProbabilitySpace().identity, class_weights=[1, 2, 0]), build_loss("ce", class_weights=[1, 2, 0])
    assert own(logits, target).item() == pytest.approx(plain(logits, target).item(), rel=1e-6)


def test_its_file_comes_back_and_is_built_by_its_path_but_is_no_metrics_surrogate(tmp_path):
    known = Surrogate.make("mIoU", [0.9, 0.1] * 6, family="am-lfs", source="a test")
    known.save(tmp_path / "loss.json")
    assert Surrogate.load(tmp_path / "loss.json") == known
    assert (known.layout, known.monotone, known.truth_table) == ("probability", False, False)
    assert isinstance(build_loss(str(tmp_path / "loss.json")), AMLFSLoss)
    with pytest.raises(InputError, match="build_loss"):
        SurrogateLoss.load(tmp_path / "loss.json")


def test_it_is_shown_as_text_and_as_a_picture_and_not_exported(tmp_path, capsys):
    Surrogate.make("mIoU", [0.9, 0.1] * 6, family="am-lfs").save(tmp_path / "loss.json")
    assert main(["loss", "show", str(tmp_path / "loss.json")]) == 0
    assert "am-lfs" in capsys.readouterr().out
    assert main(["loss", "export", str(tmp_path / "loss.json"), "--out", str(tmp_path / "mine.py")]) == 2
    assert "AM-LFS" in capsys.readouterr().err
    assert not (tmp_path / "mine.py").exists()


@pytest.mark.parametrize("theta", [[1.0] * 11, [float("nan")] * 12, [1e7] * 12])
def test_numbers_that_make_no_function_are_refused(theta):
    with pytest.raises(InputError, match="theta"):
        Surrogate.make("mIoU", theta, family="am-lfs")


# -------------------------------------------------------------------------------------------------------- its search


def scored(search: Search, history: list[Scored], score) -> Scored:
    """The next step, scored by a function of theta."""
    step = ask(search, history)
    files = tuple(
        TrialScore(number=t.number, metric="mIoU", score=score(np.array(t.theta)), weights=f"{t.number:064x}")
        for t in step.trials
    )
    return Scored(step, tuple(float(file.score) for file in files), files=files)


def test_the_first_move_is_adams_along_the_gradient_of_the_reward():
    step = scored(SEARCH.model_copy(update={"trials_per_step": 8}), [], lambda theta: float(theta[0] - theta[3]))
    search = step.proposals.search
    first, second = (np.array(c.theta) for c in candidates(search, [step]))
    rewards = np.array(step.scores)
    rewards = (rewards - rewards.mean()) / rewards.std()
    gradient = (rewards[:, None] * (step.thetas - first)).mean(axis=0) / 0.2**2
    assert second - first == pytest.approx(0.05 * np.sign(gradient), rel=1e-4)
    assert (second - first)[0] > 0 > (second - first)[3]


def test_rewards_are_compared_within_a_step_and_equal_ones_move_nothing():
    one = scored(SEARCH, [], lambda theta: float(theta[0]))
    same = scored(SEARCH, [], lambda theta: float(10 * theta[0] - 3))
    assert candidates(SEARCH, [one])[1].theta == pytest.approx(candidates(SEARCH, [same])[1].theta, abs=1e-9)
    flat = scored(SEARCH, [], lambda theta: 0.25)
    assert candidates(SEARCH, [flat])[1].theta == candidates(SEARCH, [flat])[0].theta


def test_it_climbs_a_hill():
    search = SEARCH.model_copy(update={"steps": 40, "trials_per_step": 32})
    top = np.array(ProbabilitySpace().identity) + 0.6
    history: list[Scored] = []
    for _ in range(40):
        history.append(scored(search, history, lambda theta: float(-np.sum((theta - top) ** 2))))
    found = np.array(select(search, history).theta)
    assert np.abs(found - top).max() < 0.2


def test_a_step_starts_from_the_best_of_the_step_before_and_of_equals_from_the_first():
    first = scored(SEARCH, [], lambda theta: float(theta[0] > 10))
    assert ask(SEARCH, [first]).start.trial == 0
    second = scored(SEARCH, [], lambda theta: float(theta[1]))
    best = int(np.argmax(second.scores))
    assert ask(SEARCH, [second]).start.model_dump() == {"trial": best, "weights": f"{best:064x}"}


def test_a_step_that_started_from_another_network_is_refused():
    first = scored(SEARCH, [], lambda theta: float(theta[0]))
    second = scored(SEARCH, [first], lambda theta: float(theta[0]))
    other = Scored(
        first.proposals, first.scores, files=tuple(f.model_copy(update={"weights": "0" * 64}) for f in first.files)
    )
    ask(SEARCH, [first, second])
    with pytest.raises(InputError, match="does not follow from the scores"):
        ask(SEARCH, [other, second])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"family": "bezier"}, "family"),
        ({"early": "mild"}, "early"),
        ({"rescore": 2}, "rescore"),
        ({"answer": "model"}, "answer"),
        ({"preset": "annealed"}, "preset"),
        ({"layout": "paper"}, "layout"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes, named):
    with pytest.raises((InputError, ValueError), match=named):
        Search(**{**SEARCH.model_dump(exclude_unset=True), **changes})


def test_a_function_of_ones_own_cannot_hand_networks_on(tmp_path):
    with pytest.raises(InputError, match="proxy task"):
        run(tmp_path, SEARCH, "toy_objectives:near", progress=False, here=True)


def test_its_space_can_be_searched_without_it(tmp_path, data):
    search = Search(metric="mIoU", family="am-lfs", steps=1, trials_per_step=2)
    found = run(tmp_path, search, ProxyObjective(small_task(data)), progress=False, here=True)
    assert found.family == "am-lfs"
    assert not list(tmp_path.rglob("*.safetensors"))


# ------------------------------------------------------------------------------------- networks from step to step


def files_of(folder: Path) -> dict[str, str]:
    """The checksums of all files of a search but for times and the dashboard's journal."""
    kept = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("time-")]
    return {str(path.relative_to(folder)): checksum(path) for path in kept if path.name != "journal.log"}


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory) -> Path:
    """A chained search that ran in one go."""
    folder = tmp_path_factory.mktemp("unbroken")
    run(folder, SEARCH, ProxyObjective(small_task(data)), progress=False, here=True)
    return folder


def test_the_answer_is_a_network_beside_the_loss_and_the_best_of_each_step_is_kept(unbroken):
    folder = Folder(unbroken)
    history = folder.history(3)
    kept = sorted(str(path.relative_to(unbroken)) for path in unbroken.rglob("weights-*.safetensors"))
    assert kept == [f"step-{n:03d}/weights-{step.best.number}.safetensors" for n, step in enumerate(history, 1)]
    assert checksum(unbroken / "network.safetensors") == history[-1].best.weights
    assert f"trial {history[-1].best.number}" in Surrogate.load(unbroken / "surrogate.json").source
    starts = [step.proposals.start for step in history]
    assert starts[0] is None
    assert [start.weights for start in starts[1:]] == [step.best.weights for step in history[:-1]]


def test_the_network_can_be_evaluated(unbroken, data, tmp_path):
    network = str(unbroken / "network.safetensors")
    sets = [a for a in arguments(data) if not a.startswith(("--protocol", "paper-proxy"))]
    assert (
        main(
            [
                "evaluate",
                "--checkpoint",
                network,
                "--data",
                str(data),
                "--network",
                "tiny",
                "--out",
                str(tmp_path / "s.json"),
            ]
        )
        == 0
    ), sets
    assert json.loads((tmp_path / "s.json").read_text())["scores"]["mIoU"] > 0


def test_steps_are_parts_of_one_training_in_batches_and_rates(data, tmp_path):
    """Without momentum, which is not handed on, three parts with one loss are the training of all their steps."""
    loss = build_loss("ce")
    whole = ProxyTask(small_task(data, momentum=0.0, iterations=6))
    whole.train(loss)
    parts = ProxyTask(small_task(data, momentum=0.0, iterations=2))
    before = None
    for step in (1, 2, 3):
        parts.train(loss, link=Link(step, 3, before, None))
        before = tmp_path / f"{step}.safetensors"
        save_weights(parts.trained, before, "", Outcome(2))
    expected = {name: value.clone() for name, value in whole.trained.state_dict().items()}
    found = read(before)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_network_that_was_handed_on_is_not_where_other_trainings_start(unbroken, data):
    handed = next((unbroken / "step-001").glob("weights-*.safetensors"))
    used, fresh = ProxyTask(small_task(data)), ProxyTask(small_task(data))
    used.train(build_loss("ce"), link=Link(2, 3, handed, None))  # the first training in this process
    for proxy in (used, fresh):
        proxy.train(build_loss("ce"))
    assert all(torch.equal(a, b) for a, b in zip(used.initial.values(), fresh.initial.values(), strict=True))


def test_chunks_and_workers_change_nothing(unbroken, data, tmp_path):
    run(tmp_path / "workers", SEARCH, ProxyObjective(small_task(data)), workers=2, progress=False)
    assert files_of(tmp_path / "workers") == files_of(unbroken)
    settings_, folder = json.dumps(SEARCH.model_dump()), str(tmp_path / "chunks")
    for step in ("1", "2", "3"):
        assert main(["ask", folder, "--step", step, "--settings", settings_]) == 0
        for chunk in ("1/2", "0/2"):
            assert main(["trials", folder, "--step", step, "--chunk", chunk, "--quiet", *arguments(data)]) == 0
    assert main(["select", folder, "--settings", settings_]) == 0
    expected = {name: sum_ for name, sum_ in files_of(unbroken).items() if name != "search.json"}
    assert files_of(tmp_path / "chunks") == expected


@pytest.mark.parametrize("how", ["deleted", "torn"])
def test_a_lost_network_is_trained_again_to_the_same_bytes(unbroken, data, tmp_path, how):
    folder = tmp_path / "search"
    shutil.copytree(unbroken, folder)
    for path in (folder / "surrogate.json", folder / "network.safetensors"):
        path.unlink()
    shutil.rmtree(folder / "step-003")
    (lost,) = (folder / "step-002").glob("weights-*.safetensors")
    if how == "deleted":
        lost.unlink()
    else:
        lost.write_bytes(lost.read_bytes()[:100])
    run(folder, SEARCH, ProxyObjective(small_task(data)), progress=False, here=True)
    found = {name: sum_ for name, sum_ in files_of(folder).items() if "stale-" not in name}
    assert found == files_of(unbroken)


def test_a_network_that_nothing_needs_any_more_may_be_lost(unbroken, data, tmp_path):
    folder = tmp_path / "search"
    shutil.copytree(unbroken, folder)
    for step in ("step-001", "step-002"):
        next((folder / step).glob("weights-*.safetensors")).unlink()
    run(folder, SEARCH, ProxyObjective(small_task(data)), progress=False, here=True)
    missing = files_of(unbroken).keys() - files_of(folder).keys()
    assert {Path(name).parent.name for name in missing} == {"step-001", "step-002"}
    assert not list(folder.rglob("stale-*"))
    next((folder / "step-003").glob("trial-*.json")).unlink()  # now the second step's is needed, and for it the first's
    run(folder, SEARCH, ProxyObjective(small_task(data)), progress=False, here=True)
    assert {name: sum_ for name, sum_ in files_of(folder).items() if "stale-" not in name} == files_of(unbroken)


def test_a_storm_of_kills_on_the_handed_on_networks_changes_no_byte(unbroken, data, tmp_path):
    folder, chance, kills, networks = tmp_path / "search", random.Random(0), 0, set[Path]()
    Path(tmp_path / "search.json").write_text(json.dumps(SEARCH.model_dump()))
    command = ["search", str(folder), "--settings", str(tmp_path / "search.json"), "--quiet", *arguments(data)]
    for _ in range(40):
        process = start(*command, start_new_session=True)
        deadline = time.monotonic() + 60
        while process.poll() is None and not set(folder.rglob("weights-*.safetensors")) - networks:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        networks.update(folder.rglob("weights-*.safetensors"))
        time.sleep(chance.choice([0, 0, 0.002, 0.02]))
        if process.poll() is not None:
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kills += 1
    assert process.returncode == 0, process.communicate()[1]
    assert kills > 4
    found = {name: sum_ for name, sum_ in files_of(folder).items() if not name.rpartition("/")[2].startswith(".")}
    assert found == files_of(unbroken)


# ------------------------------------------------------------------------------------------------------ in a pipeline


def config() -> dict[str, Any]:
    """The tiny pipeline with a chained search alone."""
    found = {**content("tiny"), "name": "handed"}
    plan = {"metric": "mIoU", "sampler": "am-lfs", "family": "am-lfs", "steps": 2, "trials_per_step": 3}
    found["searches"] = {"am-lfs": {**found["searches"]["mIoU"], "search": plan}}
    found["tables"] = {"main": {**found["tables"]["main"], "rows": ["ce", "searched:am-lfs"]}}
    found["figures"] = {
        "searches": {"kind": "searches", "title": "Rewards", "lines": {"AM-LFS": ["am-lfs"]}},
        "curves": {"kind": "curves", "title": "tau", "searches": ["am-lfs"]},
    }
    return found


def test_a_pipeline_searches_tables_draws_and_brings_a_lost_network_back(tmp_path):
    arguments_ = with_config(tmp_path, config())
    done = snakemake(tmp_path, *arguments_)
    assert done.returncode == 0, done.stdout
    search = tmp_path / "results/handed/searches/am-lfs"
    assert (tmp_path / "results/handed/tables/main.csv").exists()
    before = files_of(search)
    layout, pipeline = Layout(str(tmp_path / "results/handed")), load_pipeline(config(), "config.yaml")
    assert not recover(pipeline, layout, remove=False)
    (search / "network.safetensors").unlink()
    assert [damage.where for damage in recover(pipeline, layout, remove=False)] == [str(search / "network.safetensors")]
    (lost,) = search.glob("step-002/weights-*.safetensors")
    (search / "surrogate.json").unlink()
    lost.unlink()
    assert [damage.where for damage in recover(pipeline, layout, remove=False)] == [str(lost)]
    again = snakemake(tmp_path, *arguments_, "--rerun-incomplete")
    assert again.returncode == 0, again.stdout
    assert {name: sum_ for name, sum_ in files_of(search).items() if "stale-" not in name} == before
