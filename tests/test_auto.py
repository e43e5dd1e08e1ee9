"""`autoseg auto`: from a folder of images to a config that fits the time, and from that to a verdict."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from pipeline_runs import environment, results
from small_task import make_data, small_task

from autoseg.cli import main
from autoseg.errors import InputError
from autoseg.files import read_settings
from autoseg.losses.surrogate import Surrogate
from autoseg.pipeline.auto import metrics_of
from autoseg.pipeline.auto_text import FURTHER, RIVALS, Choices, config_text, flow
from autoseg.pipeline.budget import FEWEST_STEPS, LADDER, Size, Study, plan
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.layout import Layout
from autoseg.pipeline.watched import Work, _line, left, work
from autoseg.report.comparison import paired
from autoseg.report.verdict import Comparison, Verdict, as_text
from autoseg.search.space import search_space
from autoseg.training import probe
from autoseg.training.measures import Asked, Measured, chosen_rate


def make_images(root: Path, count: int = 40, size: int = 48) -> Path:
    """Draw discs on noise, and their masks in black and white."""
    rng = np.random.default_rng(0)
    (root / "images").mkdir(parents=True)
    (root / "masks").mkdir()
    rows, columns = np.mgrid[:size, :size]
    for k in range(count):
        y, x, radius = [*rng.uniform(12, size - 12, 2).tolist(), rng.uniform(5, 14)]
        inside = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
        image = rng.integers(0, 120, (size, size, 3)) + 90 * inside[..., None]
        Image.fromarray(image.astype(np.uint8)).save(root / f"images/{k}.jpg", quality=90)
        Image.fromarray((255 * inside).astype(np.uint8)).save(root / f"masks/{k}.png")
    return root


# ---------------------------------------------------------------------------------------------------------- the budget


def study(start: float = 2.5, places: int = 2, step: float = 0.05) -> Study:
    losses = [*RIVALS, "ce", "published:mIoU", "published:mIoU"]
    steps = dict.fromkeys(losses, step) | {"published:mIoU": 1.5 * step}
    return Study(64, steps, 0.01, start, ["published:mIoU"], losses, 3, 8, 10, 2.0, places)


@pytest.mark.parametrize("seconds", [180, 360, 1800, 3600, 8 * 3600])
def test_the_plan_fills_the_time_that_is_given(seconds):
    size = plan(study(), [64, 96, 128], seconds)
    assert 0.9 * seconds < study().seconds(size) <= 1.01 * seconds


def test_more_time_gives_more_trials_larger_crops_and_longer_trainings():
    small, large = (plan(study(), [64, 96, 128], seconds) for seconds in (180, 6 * 3600))
    assert large.crop > small.crop
    assert large.trainings > small.trainings
    assert large.iterations > small.iterations
    assert (small.steps, small.trials_per_step) == LADDER[0]


def test_a_time_that_is_too_short_is_refused_with_one_that_is_not():
    with pytest.raises(InputError, match="--hours") as error:
        plan(study(start=20), [64], 120)
    hours = float(error.value.cure.split()[1])
    assert plan(study(start=20), [64], 3600 * hours).iterations >= FEWEST_STEPS


def test_more_places_shorten_the_study():
    size = Size(64, 3, 8, 40)
    assert study(places=4).seconds(size) < 0.6 * study(places=2).seconds(size)


def test_the_range_test_takes_a_rate_below_the_one_with_the_lowest_loss():
    rates = [10 ** (-6 + k / 10) for k in range(50)]
    losses = [1 - 0.9 * np.exp(-((k - 35) ** 2) / 50) for k in range(50)]
    assert rates[35] / 10 < chosen_rate(rates, losses) < rates[35]


def test_the_time_left_follows_the_plan_first_and_the_work_later():
    assert left(100.0, 2.0, 0.0) == 100.0
    assert left(100.0, 100.0, 50.0) == 200.0


def test_the_line_of_progress_is_one_line_of_any_terminal(tmp_path):
    whats = ["search for BF1", "search for mIoU", "tuning of ce", "trainings for the table", "scored"]
    counts = [
        (Work(what, 29, tmp_path, "*", 1.0), number) for what, number in zip(whats, (29, 12, 0, 3, 0), strict=True)
    ]
    assert _line(counts, 20.0, 100.0, 600.0).endswith("trainings for the table 3/29, scored 0/29")
    short = _line(counts, 20.0, 100.0, 600.0, 80)
    assert short == " 20 %, 10 min left: search for mIoU 12/29, trainings for the table 3/29"
    assert _line(counts, 20.0, 100.0, 600.0, 50) == " 20 %, 10 min left: search for mIoU 12/29"
    assert len(_line(counts, 20.0, 100.0, 600.0, 15)) == 15


def test_the_time_of_a_search_is_that_of_its_own_steps_and_not_of_the_slowest_rival(tmp_path):
    path = tmp_path / "auto.yaml"
    path.write_text(config_text(choices(["mIoU"]), Size(64, 3, 8, 40), (3, 3)))
    pipeline = load_pipeline(read_settings(path), str(path))
    search, tuning, *_ = work(pipeline, {"ce": 1.0, "published:mIoU": 2.0, "lovasz": 99.0, "step": 34.0})
    # 3 x 8 trials of 40 steps, and five answers twice as long
    assert search.count * search.seconds == pytest.approx(2.0 * 40 * (24 + 2 * 5))
    assert tuning.count * tuning.seconds == pytest.approx(1.0 * 40 * (24 + 2 * 5))


# ---------------------------------------------------------------------------------------------------------- the config


def choices(metrics: list[str], **changes) -> Choices:
    given = {
        "metrics": metrics,
        "rivals": RIVALS,
        "kind": "folder",
        "options": {"root": "/data/my images", "classes": "auto/classes.txt", "binary": True},
        "said": ["40 images"],
        "conventions": {"tolerance": 5, "boundary_radius": 5, "drop_background": True},
        "hold_out": 0.25,
        "val": 10,
        "device": "cpu",
        "network": "small",
        "network_options": {},
        "weights": None,
        "training": {"batch_size": 8, "optimiser": "adamw", "lr": 3e-5, "min_lr": 0.0, "head_lr": 1.0},
        "seeds": (0, 1, 2),
        "places": 2,
    }
    return Choices(**{**given, **changes})


def test_the_config_is_an_ordinary_one_with_every_rival_paired_seeds_and_a_tuning_as_dear_as_the_search(tmp_path):
    path = tmp_path / "auto.yaml"
    path.write_text(config_text(choices(["mIoU"]), Size(64, 3, 8, 40), (3, 3)))
    pipeline = load_pipeline(read_settings(path), str(path))
    table = pipeline.tables["main"]
    assert table.seeds == [0, 1, 2]
    assert {row.loss for row in table.rows} == {*RIVALS, "published:mIoU", "searched:mIoU"}
    search = pipeline.search("mIoU")
    trials = search.total_steps * search.settings.trials_per_step
    assert pipeline.tunings["lr"].trials == trials + search.rescored_trainings
    budgets = {
        settings.iterations * settings.batch_size
        for run in table.runs
        if (settings := pipeline.run_training(run.retraining, run.seed))
    }
    assert len(budgets) == 1  # the same for every loss
    assert pipeline.proxy_training("mIoU").lr == pipeline.run_training("long", 0).lr == 3e-5


def test_several_metrics_have_a_search_and_a_tuned_rival_each_and_their_sum(tmp_path):
    path = tmp_path / "auto.yaml"
    chosen = choices(["BF1", "mIoU"], rivals={**RIVALS, **FURTHER}, network="smp:FPN/mobilenet_v2", weights="w.pth")
    path.write_text(config_text(chosen, Size(96, 5, 12, 60), (60, 58)))
    pipeline = load_pipeline(read_settings(path), str(path))
    losses = [row.loss for row in pipeline.tables["main"].rows]
    assert {"searched:BF1", "searched:mIoU", "searched:BF1 + searched:mIoU", *FURTHER} <= set(losses)
    assert losses.count("ce") == 3
    assert {how.tuned_for for how in pipeline.retrainings.values() if how.tuning} == {"BF1", "mIoU"}
    assert [part.count for part in work(pipeline, {})][:3] == [65, 65, 70]  # the tuning also pays for longer answers


def test_a_search_that_ended_is_shown_as_whole_though_its_answers_were_fewer_than_they_may_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "auto.yaml"
    path.write_text(config_text(choices(["mIoU"]), Size(64, 3, 8, 40), (3, 3)))
    pipeline = load_pipeline(read_settings(path), str(path))
    search = work(pipeline, {})[0]
    assert search.done() == 0
    answer = Path(Layout.named(pipeline.name).surrogate("mIoU"))
    answer.parent.mkdir(parents=True)
    answer.touch()
    assert search.done() == search.count == 29


def test_values_are_written_so_that_yaml_reads_them_as_they_were():
    for value in ({"lr": 3e-05, "a b": [1, 2.0, None, True]}, "no", "smp:a/b", "4", -1.5e-12, {"on": "off"}):
        assert yaml.safe_load(flow(value)) == value


def test_metrics_are_named_with_a_plus_and_each_once():
    assert metrics_of("bf1 + MIOU") == metrics_of("BF1,mIoU") == ["BF1", "mIoU"]
    for text in ("mIoU+mIoU", "mIuO", ""):
        with pytest.raises(InputError):
            metrics_of(text)


# --------------------------------------------------------------------------------------------------------- the verdict


def comparison(rival: str, *gains: float) -> Comparison:
    difference = paired(dict(enumerate(gains)), dict.fromkeys(range(len(gains)), 0.0))
    assert difference is not None
    return Comparison(rival, difference)


WILD = (5.0, -6.0, 2.0)
BETTER, WORSE, SAME, LEANS = (2.0, 2.1, 1.9), (-2.0, -2.1, -1.9), (0.4, -0.3, 0.1), (0.1, 2.0, 4.0)


@pytest.mark.parametrize(
    ("ce", "tuned", "best", "said"),
    [
        (BETTER, BETTER, BETTER, "is worth its search here: it beats every rival"),
        (SAME, SAME, SAME, "Cross entropy is as good here"),
        (WORSE, SAME, WORSE, "Cross entropy is better here"),
        (WILD, SAME, SAME, "Seeds differ too much here to tell"),
        (LEANS, SAME, SAME, "too few to be sure"),
        (LEANS, WORSE, SAME, "Tuning the learning rate of cross entropy does better here than Searched mIoU"),
        (BETTER, SAME, SAME, "tuning the learning rate of cross entropy does as well here"),
        (BETTER, BETTER, SAME, "Lovász is as good here, without a search"),
        (BETTER, BETTER, WORSE, "Lovász is better here, without a search"),
    ],
)
def test_the_verdict_says_plainly_who_is_better(ce, tuned, best, said):
    verdict = Verdict(
        table="main",
        ours="Searched mIoU",
        metric="mIoU",
        score=70.0,
        ce=comparison("cross entropy", *ce),
        tuned=comparison("cross entropy, tuned", *tuned),
        best=comparison("Lovász", *best),
        trainings=28,
        tuned_trainings=28,
    )
    text = as_text([verdict])
    assert said in verdict.headline
    assert "28 trainings" in text
    assert "Student's t over 3 paired seeds" in text
    assert text.count("of 3 seeds") == 3
    assert len(text.splitlines()) == 5


def test_the_verdict_says_that_a_search_kept_what_it_began_with():
    same = comparison("cross entropy", *SAME)
    verdict = Verdict("main", "Searched mIoU", "mIoU", 70.0, same, None, same, 28, kept=["published:mIoU"])
    assert "The search kept published:mIoU, which it began with: nothing that it tried was better." in verdict.lines


# ------------------------------------------------------------------------------------------------------- the command


def test_a_folder_with_mixed_problems_ends_in_one_screen_and_leaves_no_config(tmp_path, capsys, monkeypatch):
    root = make_images(tmp_path / "mine", 200)
    for k in range(0, 200, 4):
        Image.fromarray(np.zeros((9, 9), np.uint8)).save(root / f"masks/{k}.png")
        (root / f"images/{k + 1}.jpg").write_bytes(b"nothing")
        (root / f"masks/{k + 2}.png").write_bytes(b"")
        if k % 8:
            (root / f"masks/{k + 3}.png").unlink()
    monkeypatch.chdir(tmp_path)
    assert main(["auto", "mine", "--hours", "0.1"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "%|" not in line]
    assert len(said) < 24
    assert sum("50 of:" in line for line in said) == 3
    assert not (tmp_path / "mine-auto/auto.yaml").exists()
    listed = tmp_path / "mine-auto/auto/problems.txt"
    assert said[-1].strip() == f"{listed} lists all."
    assert sum("mine/masks/" in line for line in listed.read_text().splitlines()) >= 100


@pytest.mark.parametrize(
    "words",
    [
        ["nowhere"],
        ["mine", "--hours", "-1"],
        ["mine", "--hours", "nan"],
        ["mine", "--hours", "0.001"],
        ["mine", "--metric", "mIuO"],
        ["mine", "--out", "mine/here"],
        ["mine", "--profile", "nothing"],
        ["mine", "--network", "nonet"],
        ["mine", "--weights", "nofile.pth"],
    ],
)
def test_a_wrong_word_is_a_sentence(words, tmp_path, capsys, monkeypatch):
    make_images(tmp_path / "mine", 10)
    monkeypatch.chdir(tmp_path)
    assert main(["auto", *words]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("autoseg auto: ")


def test_what_cannot_be_measured_is_one_sentence_and_leaves_no_prepared_images(tmp_path, capsys, monkeypatch):
    make_images(tmp_path / "mine", 10)
    monkeypatch.chdir(tmp_path)
    assert main(["auto", "mine", "--network", "smp:FPN/nonet", "--weights", "none"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("autoseg auto: network: unknown encoder of smp 'nonet'")
    assert "errors" not in said
    assert not said.endswith(").")
    assert not (tmp_path / "mine-auto/auto/probe").exists()  # it would be taken for that of images that were mended


def test_a_missing_file_of_weights_is_said_before_the_images_are_read(tmp_path, capsys, monkeypatch):
    make_images(tmp_path / "mine", 10)
    monkeypatch.chdir(tmp_path)
    assert main(["auto", "mine", "--weights", "nofile.pth"]) == 2
    assert "looking" not in capsys.readouterr().err


def test_modules_of_a_person_s_own_are_found_from_the_study_s_folder(tmp_path, capsys, monkeypatch):
    make_images(tmp_path / "mine", 10)
    (tmp_path / "own_words.py").write_text("import os\nos.environ['OWN_WORDS'] = 'loaded'\n")
    monkeypatch.chdir(tmp_path)
    for name in ("PYTHONPATH", "AUTOSEG_PLUGINS", "OWN_WORDS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def measured(asked: Asked, place: Path, at_once: int) -> Measured:
        return Measured(step=dict.fromkeys(asked.losses, 0.01), image=0.01, start=1.0, rates=[1e-3], losses=[1.0])

    monkeypatch.setattr("autoseg.pipeline.auto.measure", measured)
    monkeypatch.setattr("autoseg.pipeline.watched.run", lambda *given: None)
    monkeypatch.setattr("autoseg.cli.auto._finish", lambda *given: None)
    words = ["--network", "own_words:make", "--weights", "none", "--hours", "0.1"]
    assert main(["--plugin", "own_words", "auto", "mine", *words]) == 0
    assert re.search(r"auto\.yaml: \d+ trainings, for \d minutes by what was measured\.", capsys.readouterr().out)
    assert yaml.safe_load((tmp_path / "mine-auto/auto.yaml").read_text())["plugins"] == ["own_words"]
    assert os.environ["PYTHONPATH"] == str(tmp_path)  # of the probe and of all jobs
    monkeypatch.setenv("OWN_WORDS", "")
    monkeypatch.delitem(sys.modules, "own_words")
    monkeypatch.setattr(probe, "measure", lambda asked, step_done: Measured(step={}, image=1, start=1))
    Asked(task=small_task(tmp_path), losses=["ce"]).save(tmp_path / "asked.json")
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    probe.main(str(tmp_path / "asked.json"), str(tmp_path / "measured.json"))
    assert os.environ["OWN_WORDS"] == "loaded"


def test_each_measured_step_is_counted_for_the_bar_of_progress(tmp_path):
    asked = Asked(task=small_task(make_data(tmp_path / "data")), losses=["ce", "dice"], steps=1, range_steps=4)
    steps: list[int] = []
    probe.measure(asked, lambda: steps.append(1))
    assert 2 * 3 < len(steps) <= asked.all_steps == 2 * 3 + 4


def smaller(path: Path) -> None:
    """Change a written config to what a test can wait for; it is an ordinary one, and kept."""
    config = yaml.safe_load(path.read_text())
    for how in (*config["proxies"].values(), *config["retrainings"].values()):
        how["network"] = "tiny"
        how["training"] |= {"iterations": 2, "batch_size": 2}
    config["searches"]["mIoU"]["search"] |= {"steps": 1, "trials_per_step": 2}
    config["tunings"]["lr"] |= {"trials": 2, "trials_per_job": 2}
    config["tables"]["main"] |= {"seeds": [0, 1], "rows": config["tables"]["main"]["rows"][:2]}
    config["tables"]["main"]["rows"].append({"loss": "searched:mIoU", "label": "Searched mIoU"})
    config["figures"] = {}
    path.write_text(yaml.safe_dump(config, sort_keys=False))


def test_a_study_of_other_images_in_a_folder_of_the_same_name_is_not_gone_on_with(tmp_path, capsys, monkeypatch):
    small_study(tmp_path)
    make_images(tmp_path / "elsewhere/mine", 16)
    monkeypatch.chdir(tmp_path)
    assert main(["auto", "elsewhere/mine"]) == 2
    said = capsys.readouterr().err
    assert f"this is the study of {tmp_path / 'mine'}" in said
    assert "--out" in said


def test_a_study_s_folder_that_is_named_is_gone_on_with(tmp_path, capsys, monkeypatch):
    out = small_study(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autoseg.pipeline.watched.run", lambda *given: None)
    monkeypatch.setattr("autoseg.cli.auto._finish", lambda *given: None)
    assert main(["auto", "mine", "--out", str(out)]) == 0
    assert "is there: going on with it" in capsys.readouterr().out


def test_a_config_without_a_search_ends_without_a_loss(tmp_path, capsys, monkeypatch):
    out = small_study(tmp_path)
    config = yaml.safe_load((out / "auto.yaml").read_text())
    del config["searches"], config["tunings"], config["retrainings"]["tuned-mIoU"]
    config["tables"]["main"]["rows"] = [{"loss": "ce"}, {"loss": "dice"}]
    (out / "auto.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autoseg.pipeline.watched.run", lambda *given: None)
    assert main(["auto", "mine"]) == 0
    assert "There is no verdict" in capsys.readouterr().out
    assert not (out / "my_loss.py").exists()


def test_what_stops_the_pipeline_before_its_first_job_is_said_in_a_sentence(tmp_path, capsys, monkeypatch):
    out = small_study(tmp_path)
    (out / "auto/classes.txt").unlink()
    monkeypatch.chdir(tmp_path)
    assert main(["auto", "mine"]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("autoseg auto: ")]
    assert "classes.txt: the list cannot be read" in said
    assert "Job stats" not in said


def auto(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autoseg", "auto", "mine", *words]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def small_study(folder: Path) -> Path:
    """Make images, and a config for them that was written by `auto` and then changed; return the study's folder."""
    make_images(folder / "mine", 16)
    out = folder / "mine-auto"
    (out / "auto").mkdir(parents=True)
    chosen = choices(["mIoU"], options={"root": str(folder / "mine"), "classes": "auto/classes.txt", "binary": True})
    lists = {"train": range(12), "val": range(12, 16)}
    for split, numbers in lists.items():
        text = "".join(f"images/{k}.jpg\tmasks/{k}.png\n" for k in numbers)
        (out / f"auto/{split}.txt").write_text(text)
    (out / "auto/classes.txt").write_text("background\nobject\n")
    chosen.options["split"] = {split: f"auto/{split}.txt" for split in lists}  # type: ignore[index]
    (out / "auto.yaml").write_text(config_text(chosen, Size(32, 3, 8, 10), (3, 3)))
    smaller(out / "auto.yaml")
    return out


def test_a_config_that_was_changed_is_kept_and_run_to_its_verdict(tmp_path):
    out = small_study(tmp_path)
    written = (out / "auto.yaml").read_bytes()
    done = auto(tmp_path)
    assert done.returncode == 0, done.stderr
    assert (out / "auto.yaml").read_bytes() == written
    verdict = (out / "verdict.txt").read_text()
    assert verdict in done.stdout
    assert "Against cross entropy, learning rate tuned" in verdict
    search = load_pipeline(read_settings(out / "auto.yaml"), "auto.yaml").search("mIoU")
    (answer,) = out.glob("results/*/searches/mIoU/surrogate.json")
    kept = list(Surrogate.load(answer).theta) == list(search_space(search).initial)
    assert ("The search kept published:mIoU, which it began with" in verdict) == kept
    assert "time left" in done.stderr or " left: " in done.stderr
    page = (out / "report.html").read_text()
    assert verdict.splitlines()[0] in page.replace("&#39;", "'")
    assert page.index("class='verdict'") < page.index("<h2 id='tables'")
    assert "http://" not in page.replace("http://www.w3.org", "")
    code = "import torch, my_loss, sys; assert 'autoseg' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=out, check=True)
    again = auto(tmp_path, "--metric", "BF1")
    assert again.returncode == 0, again.stderr
    assert "Not used of the command: --metric BF1 (it is mIoU)." in again.stdout
    assert (out / "verdict.txt").read_text() == verdict


# -------------------------------------------------------------------------------------------------- what takes minutes


@pytest.mark.long
def test_forty_small_images_end_in_the_time_that_was_given(tmp_path):
    make_images(tmp_path / "mine", 40, 100)
    began = time.monotonic()
    done = auto(tmp_path, "--hours", "0.1", "--jobs", "2")
    spent = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert 0.8 * 360 < spent < 1.2 * 360
    assert len((done.stdout + done.stderr).splitlines()) < 50


@pytest.mark.long
def test_a_study_that_is_killed_twice_ends_with_the_same_bytes(tmp_path):
    for name in ("whole", "killed"):
        make_images(tmp_path / name / "mine", 24)
    done = auto(tmp_path / "whole", "--hours", "0.08", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    whole, killed = tmp_path / "whole/mine-auto", tmp_path / "killed/mine-auto"
    (killed / "auto").mkdir(parents=True)
    for name in ("train.txt", "val.txt", "classes.txt", "probe.json"):
        (killed / "auto" / name).write_bytes((whole / "auto" / name).read_bytes())
    text = (whole / "auto.yaml").read_text().replace(str(tmp_path / "whole"), str(tmp_path / "killed"))
    (killed / "auto.yaml").write_text(text)
    for wait in (40, 30):
        process = subprocess.Popen(
            [sys.executable, "-m", "autoseg", "auto", "mine"],
            cwd=tmp_path / "killed",
            env=environment(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = auto(tmp_path / "killed")
    assert done.returncode == 0, done.stderr
    suffixes = (".json", ".py", ".txt", ".csv", ".md")
    assert results(whole, suffixes).keys() == results(killed, suffixes).keys()
    differ = {name for name, text in results(whole, suffixes).items() if results(killed, suffixes)[name] != text}
    assert not {name for name in differ if "snakemake" not in name and "source" not in name}
