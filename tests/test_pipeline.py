"""The pipeline: its config is checked whole, its DAG follows from the tables, and a finished run has nothing to do."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
import yaml
from PIL import Image

from autoseg.config import NETWORK_NAMES
from autoseg.errors import InputError
from autoseg.networks import NETWORKS
from autoseg.pipeline import Run, load_pipeline
from autoseg.reference import pages, schema
from autoseg.search import search_space, settings_of
from tests.pipeline_runs import CONFIGS, ROOT, TARGETS, TINY, changed, content, snakemake, with_config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_is_valid(path):
    assert load_pipeline(yaml.safe_load(path.read_text()), path.name).tables


def tiny(*where_and_value):
    return changed(content("tiny"), *where_and_value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (tiny("tabels", {}), "unknown key 'tabels'; did you mean 'tables'"),
        (
            tiny("searches", "mIoU", "dataset", "scnes"),
            r"searches.mIoU.dataset: unknown name 'scnes'; did you mean 'scenes'",
        ),
        (tiny("searches", "mIoU", "search", {"metric": "mIuO"}), "unknown metric 'mIuO'; did you mean 'mIoU'"),
        (
            tiny("searches", "mIoU", "search", {"metric": "mIoU", "stpes": 3}),
            "unknown key 'stpes'; did you mean 'steps'",
        ),
        (tiny("tables", "main", "rows", ["searched:miou2"]), "unknown search 'miou2'"),
        (tiny("tables", "main", "rows", ["cee"]), "unknown loss 'cee'; did you mean 'ce'"),
        (
            tiny("proxies", "tiny", "training", {"lr": -1}),
            r"proxies.tiny.training: protocol 'paper-proxy': lr: .*greater than 0",
        ),
        (tiny("retrainings", "tiny", "protocol", "papr"), "unknown protocol 'papr'; did you mean 'paper'"),
        (tiny("datasets", "sc/enes", {"kind": "synthetic"}), "a name has letters"),
        (tiny("name", "my results; rm"), "name is 'my results; rm'; a name has letters"),
        (tiny("plugins", "my_metrics"), r"plugins is 'my_metrics'; expected a list of modules"),
        (tiny("proxies", "tiny", "network", "tinny"), "proxies.tiny: unknown network 'tinny'; did you mean 'tiny'"),
        (tiny("proxies", "tiny", "training", "workers", 2), "proxies.tiny.training.workers: this is one for all"),
        (tiny("datasets", "scenes", "hold_out", 1.5), "datasets.scenes.hold_out is 1.5; write a share below 1"),
        (tiny("datasets", "scenes", "options", "trian", 9), "unknown option 'trian'; did you mean 'train'"),
        (tiny("datasets", "scenes", "options", "train", "12"), "options.train is '12'; expected a whole number"),
        (tiny("retrainings", "tiny", "training", "seed", 3), "a run's seed is that of its table"),
        (tiny("retrainings", "tiny", "processes", 3), "batch_size 2 cannot be shared by 3 processes"),
        (tiny("retrainings", "tiny", "window", [8, 8]), "expected at least 32 x 32 pixels"),
        (tiny("tables", "main", "seeds", [0, 0]), r"seeds are \[0, 0\]; expected different whole numbers"),
        (tiny("searches", "mIoU", "search", "name", "x"), "a search is called by its key, 'mIoU'"),
        (tiny("searches", "mIoU", "search", "initial", "nowhere.json"), "searches.mIoU.search.initial: nowhere.json"),
        (tiny("searches", "twice", content("tiny")["searches"]["mIoU"]), "mIoU and searches.twice are the same search"),
        (
            tiny("datasets", "scenes", "holdout", 4),
            r"the config: datasets.scenes: unknown key 'holdout'; did you mean 'hold_out'",
        ),
        (
            tiny("tables", "main", "rows", [{"loss": "ce", "lable": "CE"}]),
            r"tables.main.rows.0: unknown key 'lable'; did you mean 'label'",
        ),
        (
            tiny("figures", {"g": {"kind": "curves", "searches": ["mIoU"], "titel": "x"}}),
            r"figures.g.curves: unknown key 'titel'; did you mean 'title'",
        ),
    ],
)
def test_a_wrong_config_is_answered_in_a_sentence(config, message):
    with pytest.raises(InputError, match=message):
        load_pipeline(config, "the config")


def test_names_of_runs_are_safe_and_differ():
    names = {
        Run("d", "r", loss, 0).name
        for loss in ("ce", "naive:mIoU", "searched:a + 0.5 * searched:b", "searched:a + searched:b")
    }
    assert len(names) == 4
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") for name in names)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_plans(path, tmp_path):
    done = snakemake(tmp_path, "-n", "--quiet", "all", "--configfile", str(path))
    assert done.returncode == 0, done.stdout


def test_every_target_that_the_page_names_plans(tmp_path):
    parts = (ROOT / "docs/pipeline.md").read_text().split("## Parts of it\n")[1].split("\n## ")[0]
    targets = re.findall(r"`([a-z]+)`", "".join(line.split("|")[1] for line in parts.splitlines() if line[:1] == "|"))
    assert sorted(["all", *targets]) == sorted(TARGETS)
    done = snakemake(tmp_path, *targets, "-n", "--quiet", "rules", "--configfile", str(TINY))
    assert done.returncode == 0, done.stdout
    assert all(re.search(rf"^{target} +1$", done.stdout, re.MULTILINE) for target in targets), done.stdout


def test_a_wrong_key_stops_the_pipeline_before_its_first_job(tmp_path):
    done = snakemake(tmp_path, "--configfile", str(TINY), "--config", "naem=x")
    assert done.returncode != 0
    assert "unknown key 'naem'; did you mean 'name'" in done.stdout
    assert not (tmp_path / "results").exists()


def test_the_demo_is_the_default_and_keys_go_on_top_of_either(tmp_path):
    for arguments, name in (((), "demo"), (("--configfile", str(TINY)), "tiny")):
        done = snakemake(tmp_path, "-n", *arguments)
        assert f"results/{name}/report.html" in done.stdout
        done = snakemake(tmp_path, "-n", *arguments, "--config", "name=other")
        assert "results/other/report.html" in done.stdout
        assert f"results/{name}" not in done.stdout


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (tiny("datasets", "scenes", "hold_out", 12), "hold_out is 12, but there are only 12 training images"),
        (
            tiny("datasets", "scenes", {"kind": "voc", "options": {"root": "nowhere/VOC"}, "hold_out": 4}),
            r"datasets.scenes: nowhere/VOC: the folder does not exist; give the folder",
        ),
        (tiny("proxies", "tiny", "weights", "r50.pth"), "proxies.tiny.weights: r50.pth does not exist"),
        (tiny("plugins", ["no_such_module"]), "plugin 'no_such_module': No module named"),
    ],
)
def test_what_is_missing_is_said_before_the_first_job(config, message, tmp_path):
    done = snakemake(tmp_path, *with_config(tmp_path, config))
    assert done.returncode != 0
    assert re.search(message, done.stdout), done.stdout
    assert "Traceback" not in done.stdout
    assert not list(tmp_path.glob("results/*/*"))


def test_a_hold_out_that_leaves_nothing_is_refused_before_the_first_job(tmp_path):
    for part in ("train", "val"):
        for number in range(3):
            for kind, mode in (("images", "RGB"), ("masks", "L")):
                path = tmp_path / f"mine/{kind}/{part}/{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new(mode, (32, 32), number).save(path)
    (tmp_path / "classes.txt").write_text("sky\nsea\nland\n")
    options = {
        "root": "mine",
        "classes": "classes.txt",
        "split": {p: f"images/{p},masks/{p}" for p in ("train", "val")},
    }
    config = tiny("datasets", "scenes", {"kind": "folder", "options": options, "hold_out": 3})
    done = snakemake(tmp_path, *with_config(tmp_path, config))
    assert "datasets.scenes: hold-out of 3 images: the training set has 3" in done.stdout


def test_results_that_cannot_be_written_are_said_before_the_first_job(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/tiny").write_text("a file in the way")
    done = snakemake(tmp_path, "--configfile", str(TINY))
    assert done.returncode != 0
    assert "results/tiny: this is not a folder, so results cannot go there" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_for_writes_out_every_search():
    config = tiny(
        "searches",
        {
            "{metric}-{seed}": {
                "for": {"metric": ["mIoU", "mAcc"], "seed": [1, 2]},
                "dataset": "scenes",
                "proxy": "tiny",
                "search": {"metric": "{metric}", "seed": "{seed}"},
            }
        },
    )
    config["tables"] = {"main": {**config["tables"]["main"], "rows": ["searched:mAcc-2"]}}
    del config["figures"]
    pipeline = load_pipeline(config, "the config")
    assert list(pipeline.searches) == ["mIoU-1", "mIoU-2", "mAcc-1", "mAcc-2"]
    assert pipeline.search("mAcc-2").seed == 2
    config["searches"] = {"{metric}": {"for": {"metric": ["mIoU"], "seed": [1, 2]}}}
    with pytest.raises(InputError, match="gives 'mIoU' twice"):
        load_pipeline(config, "the config")


def test_the_paper_is_whole():
    paper = load_pipeline(content("paper"), "paper.yaml")
    assert len(paper.searches) == 46
    assert len(paper.runs) == 62
    for page in ("README.md", "docs/pipeline.md", "workflow/config/README.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert re.search(r"\b46 searches\b.*\b62 runs\b", text), page
    assert all(paper.search(name).preset == "paper" for name in paper.searches if "random" not in name)
    sizes = [settings_of(paper.search(name)) for name in paper.searches]
    assert {(settings.steps, settings.trials_per_step) for settings in sizes} == {(20, 32)}
    # One curve for each of BF1's four operators, two pieces each; the release has one piece for each operand.
    assert len(search_space(paper.search("voc-BF1")).names) == 4 * 6
    assert paper.search("voc-BF1-tolerance-0").conventions.tolerance == 0
    assert paper.search("cityscapes-BIoU").conventions.drop_background is False
    assert paper.run_training("r101-cityscapes", 0).iterations == 90000
    release = load_pipeline({**content("paper"), "preset": "release"}, "paper.yaml")
    assert release.search("voc-mIoU").preset == "release"
    assert len(search_space(release.search("voc-BF1")).names) == 4 * 2
    assert settings_of(release.search("voc-mIoU-random-0")).steps == 12
    assert release.run_training("r101", 0).iterations == 10000
    assert release.run_training("r101-cityscapes", 0).iterations == 40000


def test_the_papers_jobs_are_as_many_as_the_page_says():
    paper, jobs = load_pipeline(content("paper"), "paper.yaml"), 0
    for name, plan in paper.searches.items():
        steps, trials = settings_of(paper.search(name)).steps, settings_of(paper.search(name)).trials_per_step
        assert (steps, paper.chunks(name, trials), plan.trials_per_job) == (20, 8, 4)
        jobs += steps * (1 + 8) + 1  # ask and chunks, then select
    jobs += 2 * len(paper.datasets) + 2 * len(paper.runs) + len(paper.tables) + len(paper.figures) + 1
    text = " ".join((ROOT / "docs/pipeline.md").read_text().split())
    assert f"20 steps in 8 jobs of 4 trials each, and 62 runs: some {round(jobs, -2):,} jobs" in text


def test_schema_and_reference_are_what_the_models_say():
    for path, text in pages().items():
        assert (ROOT / path).read_text() == text, f"{path} is out of date; run `make reference`"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_fits_the_schema(path):
    jsonschema.validate(yaml.safe_load(path.read_text()), schema())


def test_the_schema_refuses_what_the_models_refuse():
    with pytest.raises(jsonschema.ValidationError, match="tabels"):
        jsonschema.validate({**content("tiny"), "tabels": {}}, schema())


def test_networks_are_known_by_name_without_torch():
    assert set(NETWORK_NAMES) == set(NETWORKS)


def test_a_search_is_scored_by_its_own_conventions_on_top_of_its_data_sets(tmp_path):
    config = tiny("searches", "mIoU", "search", {"metric": "BF1", "steps": 2, "conventions": {"tolerance": 2}})
    config["datasets"]["scenes"]["conventions"] = {"drop_background": False}
    search = load_pipeline(config, "the config").search("mIoU")
    assert (search.conventions.tolerance, search.conventions.drop_background) == (2, False)
    target = "results/tiny/searches/mIoU/step-001/chunk-0-of-16.json"
    done = snakemake(tmp_path, "-n", "-p", *with_config(tmp_path, config), "--", target)
    assert "--convention drop_background=false --convention mask_void=false --convention tolerance=2" in done.stdout


def test_a_figure_has_its_losses_in_the_configs_order(tmp_path):
    losses = {"b": "ce", "a": "naive:mIoU"}
    config = tiny("figures", "gallery", "losses", losses)
    target = "results/tiny/figures/gallery.svg"
    done = snakemake(tmp_path, "-n", "-p", *with_config(tmp_path, config), "--", target)
    assert json.dumps(losses) in done.stdout


def test_a_part_needs_only_its_own_data(tmp_path):
    away = {"kind": "voc", "options": {"root": "nowhere"}, "hold_out": 4}
    done = snakemake(tmp_path, *with_config(tmp_path, tiny("datasets", "away", away)), "--", "prepare")
    assert "datasets.away: nowhere: the folder does not exist" in done.stdout
    target = "results/tiny/data/scenes/split.json"
    done = snakemake(tmp_path, *with_config(tmp_path, tiny("datasets", "away", away)), "--", target)
    assert done.returncode == 0, done.stdout
