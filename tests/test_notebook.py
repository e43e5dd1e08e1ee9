"""`autoseg.search(train, metric=...)` as a notebook's user would use it, stop it, and go on."""

from __future__ import annotations

import functools
import logging
import os
import pydoc
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import autoseg
from autoseg.search.identity import identity
from tests import toy_trainings
from tests.refusals import refused

search = functools.partial(autoseg.search, metric="mIoU", steps=2, trials_per_step=3, progress=False)


def train(loss):
    return {"mIoU": 1 - sum((x - 0.4) ** 2 for x in loss.surrogate.theta), "BF1": torch.tensor(0.25)}


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.json")}


def test_a_search_gives_the_answer_the_trials_and_a_study_in_a_repr_of_two_lines():
    found = search(train)
    assert found.surrogate.metric == "mIoU"
    assert isinstance(found.loss(ignore_index=255), autoseg.SurrogateLoss)
    assert [t.number for t in found.trials] == list(range(6))
    assert found.trials[0].scores["BF1"] == 0.25
    assert [t.value for t in found.study.trials] == [t.score for t in found.trials]
    assert found.study.metric_names == ["mIoU"]
    mean = np.mean([t.score for t in found.trials[:3]])
    assert found.study.trials[2].user_attrs["step's mean score"] == pytest.approx(mean)
    assert found.study.trials[2].user_attrs["BF1"] == 0.25
    assert found.study.user_attrs["step 1"]["mean score"] == pytest.approx(mean)
    assert found.search.preset == "recommended"
    assert found.folder is None
    assert len(repr(found).splitlines()) <= 2


def test_a_stopped_search_goes_on_where_it_was_and_ends_with_the_same_files(tmp_path):
    calls = []

    def stopped(loss):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return train(loss)

    straight, broken = tmp_path / "whole", tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        search(stopped, out=broken)
    found = search(stopped, out=broken)
    assert len(calls) == 7  # 4 that were scored, the one that was stopped, and the last 2
    search(stopped, out=straight)
    assert files(broken) == files(straight)
    assert len(found.trials) == 6


def test_a_stopped_search_without_a_folder_says_where_its_scores_are(caplog):
    calls = []

    def stopped(loss):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return 0.5

    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        search(stopped)
    folder = Path(caplog.text.split("out='")[1].split("'")[0])
    search(stopped, out=folder)
    assert len(calls) == 7  # 2 were not trained again


def test_every_trial_begins_with_the_same_random_numbers_and_leaves_the_users_alone():
    seen = []
    random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), torch.get_rng_state()

    def drawing(loss):
        seen.append((random.random(), np.random.random(), torch.rand(()).item()))  # noqa: NPY002
        return 0.5

    search(drawing)
    assert len(set(seen)) == 1
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_changed_function_is_another_one_and_the_same_again_is_not():
    def make(text: str, **names: object):
        exec(text, names)
        return names["f"]

    one = make("def f(loss):\n    return loss * rate", rate=0.1)
    again = make("# a comment\n\ndef f(loss):\n    return loss * rate  # another", rate=0.1)
    assert identity(one) == identity(again)
    assert identity(one) != identity(make("def f(loss):\n    return loss + rate", rate=0.1))
    assert identity(one) != identity(make("def f(loss):\n    return loss * rate", rate=0.2))
    counting = make("n = 0\ndef f(loss):\n    global n\n    n += 1\n    return n")
    before = identity(counting)
    for _ in range(50):
        counting(None)
    assert identity(counting) == before


def test_two_processes_give_what_one_gives(tmp_path):
    one = search(toy_trainings.train, out=tmp_path / "one")
    two = search(toy_trainings.train, out=tmp_path / "two", workers=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert one.surrogate == two.surrogate


@pytest.mark.parametrize(
    ("changes", "where", "what"),
    [
        ({"train": 3}, "train", "found 3"),
        ({"train": lambda: 1}, "train", "loss alone"),
        ({"train": lambda loss: 1.0, "workers": 2}, "train", "lambda"),
        ({"loss": {"ignore_idx": 3}}, "loss", "did you mean 'ignore_index'?"),
        ({"stepz": 3}, "autoseg.search", "did you mean 'steps'?"),
        ({"metric": "mIuo"}, "autoseg.search: metric", "did you mean 'mIoU'?"),
        ({"train": lambda loss: None}, "trial 0: train", "NoneType"),
        ({"train": lambda loss: {"BF1": 1.0}}, "trial 0: train", "BF1"),
        ({"train": lambda loss: 1 / 0}, "trial 0", "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_searched_is_told_in_a_sentence(changes, where, what):
    with refused(where=where, what=what):
        search(**{"train": train, **changes})


def test_a_loss_takes_every_convention_of_its_metric():
    seen = []

    def train(loss):
        seen.append((loss.conventions.spacing, loss.conventions.surface_tolerance))
        return 0.5

    search(train, metric="NSD", steps=1, loss={"spacing": (2, 1), "surface_tolerance": 3})
    assert set(seen) == {((2.0, 1.0), 3.0)}
    with refused(where="loss", what="others"):
        search(train, loss={"others": 1})


def test_a_function_of_a_prompt_is_not_sent_to_workers():
    code = textwrap.dedent("""
        import autoseg
        def train(loss):
            return 0.5
        try:
            autoseg.search(train, metric="mIoU", workers=2)
        except ValueError as error:
            print(error)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "defined in this notebook or prompt" in done.stdout


def test_a_script_that_its_workers_would_run_again_says_so_and_trains_nothing_twice(tmp_path):
    (tmp_path / "their_script.py").write_text(
        textwrap.dedent("""
            import functools, autoseg
            from tests.toy_trainings import train

            search = functools.partial(autoseg.search, train, metric="mIoU", steps=1, trials_per_step=2, progress=False)
            search(out="one")
            print("begun")
            search(out="two", workers=2)
        """)
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "their_script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout.count("begun") == 1
    assert "a worker process imports the script" in done.stderr
    assert done.stderr.splitlines()[-1].count("below `if __name__ == '__main__':`") == 1


def test_help_of_the_search_says_what_its_arguments_are_before_what_the_package_is():
    shown = pydoc.render_doc(autoseg.search, renderer=pydoc.plaintext)
    assert "Search a loss for a metric: train with many losses" in shown.splitlines()[3]
    assert (
        0 < shown.index("trials_per_gpu: how many workers") < shown.index("Called as a function") < shown.index("PACK")
    )


def test_reprs_are_a_line_or_two():
    from optuna.distributions import FloatDistribution

    loss = autoseg.SurrogateLoss.published("mIoU")
    sampler = autoseg.PPO2Sampler({"x": FloatDistribution(0, 1)}, steps=3, trials_per_step=4)
    for text in (repr(loss), repr(loss.surrogate), repr(sampler)):
        assert len(text) < 240
        assert "\n" not in text
    assert repr(sampler) == "PPO2Sampler(1 parameter, 3 steps of 4 trials, moved by PPO2, sigma=0.2, seed=0)"
