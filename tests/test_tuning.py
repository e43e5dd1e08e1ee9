"""Tuned learning rates: as many trainings as a search has, on the same images, resumed file by file."""

from __future__ import annotations

import itertools

import pytest
from pipeline_runs import changed, content
from refusals import refused
from small_task import arguments, make_data

from autoseg.cli import main
from autoseg.errors import InputError
from autoseg.pipeline.arguments import Arguments
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.inputs import Inputs
from autoseg.pipeline.layout import Layout
from autoseg.training.rates import RateTrial, TunedRates, at_rate, rates, select, trial_path
from autoseg.training.settings import Training


def test_rates_are_evenly_spaced_by_their_logarithms_from_end_to_end():
    found = rates(1e-4, 1e-1, 7)
    assert found[0] == 1e-4
    assert found[-1] == 1e-1
    assert len(found) == 7
    assert all(b / a == pytest.approx(10**0.5, rel=1e-3) for a, b in itertools.pairwise(found))
    with refused(where="lr"):
        rates(1e-2, 1e-4, 3)


def test_the_rate_at_the_end_stays_in_proportion_and_below_the_first():
    slow = at_rate(Training.of_protocol("paper-proxy", lr=0.02, min_lr=1e-4), 1e-5)
    assert slow.lr == 1e-5
    assert slow.min_lr == pytest.approx(5e-8)


def scored(folder, scores):
    for number, (lr, score) in enumerate(scores):
        RateTrial(number=number, lr=lr, scores={"mIoU": score, "BF1": 1 - score}).save(trial_path(folder, number))


def test_the_best_rate_is_chosen_for_each_metric_and_of_equals_the_lowest(tmp_path):
    scored(tmp_path, [(0.1, 0.3), (0.2, 0.8), (0.3, 0.8)])
    best = select(tmp_path, "ce", [0.1, 0.2, 0.3])
    assert best.best == {"mIoU": 0.2, "BF1": 0.1}
    assert best.trials == 3
    assert best.rate("BF1") == 0.1
    with pytest.raises(InputError, match="unknown metric"):
        best.rate("gAcc")


def test_a_trial_of_another_rate_is_not_taken(tmp_path):
    scored(tmp_path, [(0.1, 0.3), (0.2, 0.8)])
    with pytest.raises(InputError, match=r"trial-1.json: is of the learning rate 0.2; expected 0.5"):
        select(tmp_path, "ce", [0.1, 0.5])


def test_trials_in_chunks_and_after_a_kill_are_those_of_one_go(tmp_path):
    """Trained in two chunks, one trial lost in between: the same bytes, and nothing finished is trained again."""
    task = arguments(make_data(tmp_path / "data"))
    words = ["--lr", "0.01", "0.2", "--trials", "3", "--quiet", *task]
    assert main(["tune", str(tmp_path / "whole"), *words]) == 0
    parts = tmp_path / "parts"
    assert main(["tune", str(parts), *words, "--chunk", "0/2", "--out", str(parts / "chunk-0-of-2.json")]) == 0
    kept = trial_path(parts, 0).stat().st_ino
    trial_path(parts, 2).unlink()
    for chunk in "01":
        out = parts / f"chunk-{chunk}-of-2.json"
        assert main(["tune", str(parts), *words, "--chunk", f"{chunk}/2", "--out", str(out)]) == 0
    assert main(["tune", str(parts), *words, "--select"]) == 0
    for name in ("trial-0.json", "trial-1.json", "trial-2.json", "tuning.json"):
        assert (parts / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert trial_path(parts, 0).stat().st_ino == kept
    assert len({RateTrial.load(trial_path(parts, k)).scores["mIoU"] for k in range(3)}) > 1  # the rate matters
    best = TunedRates.load(parts / "tuning.json").rate("mIoU")
    run = tmp_path / "run"
    fixed = [*words[words.index("--data") :], "--loss", "ce", "--source", "cache", "--quiet"]
    assert main(["train", "--out", str(run), *fixed, "--tuning", str(parts / "tuning.json")]) == 0
    other = tmp_path / "other"
    assert (
        main(["train", "--out", str(other), *fixed, "--set", f"lr={best}", "--set", f"min_lr={1e-4 * best / 0.05}"])
        == 0
    )
    assert (run / "run.json").read_bytes() == (other / "run.json").read_bytes()


# ------------------------------------------------------------------------------------------------------- the pipeline


def tuned():
    config = content("tiny")
    config["tunings"] = {"lr": {"dataset": "scenes", "proxy": "tiny", "lr": [0.001, 0.5], "trials": 5}}
    config["retrainings"]["tuned"] = {**config["retrainings"]["tiny"], "tuning": "lr", "tuned_for": "BIoU"}
    config["tables"]["main"]["rows"].append({"loss": "ce", "retraining": "tuned", "label": "tuned"})
    return config


def test_a_row_with_a_tuned_retraining_waits_for_its_tuning():
    pipeline = load_pipeline(tuned(), "test")
    layout = Layout.named("tiny")
    run = "scenes/tuned/ce/seed-0"
    assert run in pipeline.runs
    assert "scenes/tiny/ce/seed-0" in pipeline.runs
    assert layout.tuned("lr") in Inputs(pipeline, layout).train(run)
    assert Inputs(pipeline, layout).tuned("lr") == [layout.tuning_chunk("lr", k, 2) for k in (0, 1)]
    assert f"--tuned-for BIoU --tuning {layout.tuned('lr')}" in Arguments(pipeline, layout).train(run)
    assert "--tuning" not in Arguments(pipeline, layout).train("scenes/tiny/ce/seed-0")


def test_a_metric_beyond_the_six_is_scored_where_a_retraining_is_tuned_for_it():
    config = changed(tuned(), "retrainings", "tuned", "tuned_for", "mDice")
    pipeline = load_pipeline(config, "test")
    assert "--metrics mDice" in str(Arguments(pipeline, Layout.named("tiny")).tune("lr")["arguments"])
    plain = Arguments(load_pipeline(tuned(), "test"), Layout.named("tiny")).tune("lr")["arguments"]
    assert "--metrics" not in str(plain)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("tunings", "lr", "lr"), [0.5, 0.001], "lr: found"),
        (("tunings", "lr", "loss"), "searched:mIoU", "unknown search"),
        (("tunings", "lr", "proxy"), "small", "unknown name 'small'"),
        (("retrainings", "tuned", "tuning"), "rl", "unknown name 'rl'"),
        (("retrainings", "tuned", "tuned_for"), "mIuO", "unknown metric"),
    ],
)
def test_a_tuning_that_cannot_be_is_refused_with_the_config(where, value, said):
    with pytest.raises(InputError, match=said):
        load_pipeline(changed(tuned(), *where, value), "test")
