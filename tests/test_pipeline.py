"""The pipeline: its config is checked whole, its DAG follows from the tables, and a finished run has nothing to do."""

from __future__ import annotations

import json
import re
import shlex

import jsonschema
import pytest
import yaml
from PIL import Image

from autoseg.cli import build_parser
from autoseg.cli.tasks import task_of
from autoseg.errors import InputError
from autoseg.losses.names import parse_loss
from autoseg.pipeline.arguments import Arguments, as_argument
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.inputs import Inputs
from autoseg.pipeline.layout import Layout, step_name
from autoseg.pipeline.outputs import Run
from autoseg.search.folder import Folder
from autoseg.search.space import search_space
from autoseg.training.names import BUILT_IN
from autoseg.training.networks import NETWORKS
from docs.reference import pages, schema
from tests.pipeline_runs import CONFIGS, ROOT, TARGETS, TINY, changed, content, snakemake, with_config
from tests.refusals import refused


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_is_valid(path):
    assert load_pipeline(yaml.safe_load(path.read_text()), path.name).tables


def tiny(*where_and_value):
    return changed(content("tiny"), *where_and_value)


@pytest.mark.parametrize(
    ("config", "where", "named"),
    [
        (tiny("tabels", {}), "", "tables"),
        (tiny("searches", "mIoU", "dataset", "scnes"), "searches.mIoU: dataset", "scenes"),
        (tiny("searches", "mIoU", "search", {"metric": "mIuO"}), "searches.mIoU.search: metric", "mIoU"),
        (tiny("searches", "mIoU", "search", {"metric": "mIoU", "stpes": 3}), "searches.mIoU.search", "steps"),
        (tiny("searches", "mIoU", "search", "steps", "two"), "searches.mIoU.search.steps", "two"),
        (tiny("searches", "mIoU", "search", "name", "x"), "searches.mIoU: search.name", "key"),
        (
            tiny("searches", "mIoU", "search", "initial", "nowhere.json"),
            "searches.mIoU.search: initial: nowhere.json",
            "no such file",
        ),
        (tiny("searches", "twice", content("tiny")["searches"]["mIoU"]), "searches.twice", "mIoU"),
        (tiny("tables", "main", "rows", ["searched:miou2"]), "tables.main: loss 'searched:miou2'", "mIoU"),
        (tiny("tables", "main", "rows", ["cee"]), "tables.main: loss 'cee'", "'ce'"),
        (tiny("tables", "main", "seeds", [0, 0]), "tables.main.seeds", "different"),
        (tiny("tables", "main", "rows", [{"loss": "ce", "lable": "CE"}]), "tables.main.rows.0", "label"),
        (tiny("proxies", "tiny", "training", {"lr": -1}), "proxies.tiny.training.lr", "greater than 0"),
        (tiny("proxies", "tiny", "training", "loaders", 2), "proxies.tiny: training.loaders", "top of the config"),
        (tiny("proxies", "tiny", "network", "tinny"), "proxies.tiny", "tiny"),
        (tiny("retrainings", "tiny", "protocol", "papr"), "retrainings.tiny", "paper"),
        (tiny("retrainings", "tiny", "training", "seed", 3), "retrainings.tiny: training.seed", "seeds"),
        (tiny("retrainings", "tiny", "processes", 3), "retrainings.tiny: batch_size", "processes 3"),
        (tiny("retrainings", "tiny", "window", [8, 8]), "retrainings.tiny: window", "32 x 32"),
        (tiny("datasets", "sc/enes", {"kind": "synthetic"}), "datasets", "sc/enes"),
        (tiny("datasets", "scenes", "hold_out", 1.5), "datasets.scenes.hold_out", "a share"),
        (tiny("datasets", "scenes", "options", "trian", 9), "datasets.scenes: options", "train"),
        (tiny("datasets", "scenes", "holdout", 4), "datasets.scenes", "hold_out"),
        (tiny("name", "my results; rm"), "name", "my results; rm"),
        (tiny("plugins", "my_metrics"), "plugins", "a list"),
        (
            tiny("figures", {"g": {"kind": "curves", "searches": ["mIoU"], "titel": "x"}}),
            "figures.g.curves",
            "title",
        ),
        (tiny("figures", {"g": {"kind": "curves", "searches": ["mIuO"]}}), "figures.g: search", "mIoU"),
        (tiny("figures", {"g": {"kind": "surrogate", "loss": "ce"}}), "figures.g.surrogate.loss", "one surrogate"),
        (tiny("figures", {"g": {"kind": "proxies", "table": "main"}}), "figures.g: table", "hours"),
    ],
)
def test_a_wrong_config_is_refused_by_its_key(config, where, named):
    with pytest.raises(InputError) as error:
        load_pipeline(config, "the config")
    assert error.value.where == f"the config: {where}".removesuffix(": ")
    assert named in f"{error.value.what} {error.value.expected} {error.value.cure}"


def test_the_layout_spells_paths_as_the_rooms_that_write_them():
    layout = Layout.named("tiny")
    folder = Folder(layout.search("mIoU"))
    assert layout.proposals("mIoU", step_name(3)) == str(folder.step(3) / "proposals.json")
    assert layout.proposals("mIoU", "rescore") == str(folder.step("rescore") / "proposals.json")
    assert layout.surrogate("{search}").format(search="mIoU") == layout.surrogate("mIoU")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_the_arguments_of_a_job_say_to_its_command_what_the_config_says(path):
    pipeline = load_pipeline(yaml.safe_load(path.read_text()), path.name)
    arguments = Arguments(pipeline, Layout.named(pipeline.name))

    def task(verb, words):
        return task_of(build_parser().parse_args([verb, *shlex.split(f"{words} {arguments.machine}")]))

    for name, plan in pipeline.searches.items():
        told = task("trials", f"{arguments.trials[name]['arguments']} --step 1")
        assert told.training == pipeline.proxy_training(name)
        assert told.conventions == pipeline.search(name).conventions
        assert (told.network, told.weights) == (
            pipeline.proxies[plan.proxy].network,
            pipeline.proxies[plan.proxy].weights,
        )
    for name, run in pipeline.runs.items():
        told = task("train", f"{arguments.train(name)} --out x")
        assert told.training == pipeline.run_training(run.retraining, run.seed)
        assert told == task("evaluate", f"x {arguments.evaluate(name)}")
        assert told.data == f"results/{pipeline.name}/data/{run.dataset}"


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
    parts = (ROOT / "docs/pipeline.md").read_text().split("## Running a part\n")[1].split("\n## ")[0]
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
        (tiny("datasets", "scenes", "hold_out", 12), "hold_out: 12 images, but the training set has 12"),
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
    assert "datasets.scenes: hold_out: 3 images, but the training set has 3" in done.stdout


def test_results_that_cannot_be_written_are_said_before_the_first_job(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/tiny").write_text("a file in the way")
    done = snakemake(tmp_path, "--configfile", str(TINY))
    assert done.returncode != 0
    assert "results/tiny: this is not a folder" in done.stdout
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
    with pytest.raises(InputError) as error:
        load_pipeline(config, "the config")
    assert error.value.where == "searches.{metric}"


def test_the_paper_is_whole():
    paper = load_pipeline(content("paper"), "paper.yaml")
    assert len(paper.searches) == 52
    assert len(paper.runs) == 64
    for page in ("README.md", "docs/pipeline.md", "workflow/config/README.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert re.search(r"\b52 searches\b.*\b64 runs\b", text), page
    by_ppo2 = [name for name in paper.searches if paper.search(name).sampler == "ppo2"]
    assert len(by_ppo2) == 52 - 12 - 4 - 2  # random search, CMA-ES, AM-LFS
    assert all(paper.search(name).preset == "paper" for name in by_ppo2)
    ppo2 = [paper.search(name).settings for name in by_ppo2]
    assert {(settings.steps, settings.trials_per_step) for settings in ppo2} == {(20, 32)}
    # One curve for each of BF1's four operators, two pieces each; the release has one piece for each operand.
    assert len(search_space(paper.search("voc-BF1")).names) == 4 * 6
    assert paper.search("voc-BF1-tolerance-0").conventions.tolerance == 0
    assert paper.search("cityscapes-BIoU").conventions.drop_background is False
    assert paper.run_training("r101-cityscapes", 0).iterations == 90000
    for name, images in {"voc-am-lfs": 10582 - 1500, "cityscapes-am-lfs": 2975 - 500}.items():
        assert paper.proxy_training(name).iterations == round(images / 32)
        assert paper.search(name).total_steps == 45 == round(paper.run_training("r101", 0).iterations * 16 / 10582)
        assert paper.search(name).chained
    release = load_pipeline({**content("paper"), "preset": "release"}, "paper.yaml")
    assert release.search("voc-mIoU").preset == "release"
    assert len(search_space(release.search("voc-BF1")).names) == 4 * 2
    assert release.search("voc-mIoU-random-0").settings.steps == 12
    assert release.run_training("r101", 0).iterations == 10000
    assert release.run_training("r101-cityscapes", 0).iterations == 40000


def trial_task(pipeline, search):
    """Return the task that the trials of a search are told."""
    arguments = Arguments(pipeline, Layout.named(pipeline.name)).trials[search]["arguments"]
    return task_of(build_parser().parse_args(["trials", *shlex.split(arguments), "--step", "1"]))


def run_task(pipeline, verb, run):
    """Return the task that a verb is told of a run."""
    arguments = shlex.split(getattr(Arguments(pipeline, Layout.named(pipeline.name)), verb)(run))
    where = ["--out", "folder"] if verb == "train" else ["folder"]
    return task_of(build_parser().parse_args([verb, *where, *arguments]))


def test_a_run_is_trained_and_scored_with_the_settings_of_its_retraining():
    """All of them: also those that trained weights do not depend on, such as the scale of the test."""
    config = changed(content("tiny"), "retrainings", "tiny", "training", "test_scale", [96, 24])
    config["retrainings"]["tiny"]["training"] |= {"checkpoint_every": 7}
    config["datasets"]["scenes"] |= {"conventions": {"tolerance": 3}, "loss_conventions": {"tolerance": 2}}
    pipeline = load_pipeline(config, "the config")
    for run in pipeline.runs:
        for verb in ("train", "evaluate"):
            task = run_task(pipeline, verb, run)
            same = {"device", "loaders", "checkpoint_every"}  # the rules add these
            wanted = pipeline.run_training("tiny", 0)
            assert task.training.model_dump(exclude=same) == wanted.model_dump(exclude=same)
            assert task.training.scored_at == (96, 24)
            assert (task.conventions.tolerance, task.loss_conventions.tolerance) == (3, 2)


def test_a_loss_may_drop_a_background_that_the_metric_keeps():
    """What a search says of its losses reaches its trials, whatever the metric's convention is."""
    config = changed(content("tiny"), "datasets", "scenes", "conventions", {"drop_background": False})
    config["datasets"]["scenes"]["loss_conventions"] = {"drop_background": True}
    task = trial_task(load_pipeline(config, "the config"), "mIoU")
    assert (task.conventions.drop_background, task.loss_conventions.drop_background) == (False, True)


def test_repeats_of_a_search_differ_in_initial_heads_batches_and_hold_out_too():
    paper = load_pipeline(content("paper"), "paper.yaml")
    for lines in (paper.figures[name].lines for name in ("search-mIoU", "search-BF1", "search-mAcc")):
        for repeats in lines.values():
            tasks = [trial_task(paper, name) for name in repeats]
            assert [task.training.seed for task in tasks] == [0, 1, 2, 3]
            assert [paper.search(name).seed for name in repeats] == [0, 1, 2, 3]
            assert len({task.split for task in tasks}) == 4
        # The samplers are compared on the same four tasks.
        first, *others = ([trial_task(paper, name) for name in repeats] for repeats in lines.values())
        assert others
        assert all(first == other for other in others)


def test_a_search_waits_for_its_own_split_and_the_rule_makes_it_from_its_seed():
    paper = load_pipeline(content("paper"), "paper.yaml")
    layout = Layout.named("paper")
    inputs, arguments = Inputs(paper, layout), Arguments(paper, layout)
    assert inputs.trials["voc-mIoU"] == [layout.split("voc")]
    assert inputs.trials["voc-mIoU-ppo2-2"] == [layout.split("voc", 2)]
    assert arguments.split("voc", 2) == "--hold-out 1500 --seed 2"
    assert arguments.split("voc") == "--hold-out 1500 --seed 0"
    for name in paper.searches:
        assert (trial_task(paper, name).split or layout.split(paper.searches[name].dataset)) in inputs.trials[name]


def test_a_seed_that_a_proxy_or_a_data_set_states_is_that_of_all_repeats():
    config = changed(content("paper"), "datasets", "voc", "split_seed", 7)
    paper = load_pipeline(changed(config, "proxies", "r50-128-1000", "training", {"seed": 5}), "paper.yaml")
    repeats = paper.figures["search-mIoU"].lines["PPO2"]
    assert {trial_task(paper, name).training.seed for name in repeats} == {5}
    assert {trial_task(paper, name).split for name in repeats} == {None}
    assert Arguments(paper, Layout.named("paper")).split("voc") == "--hold-out 1500 --seed 7"


def test_the_mean_after_the_last_step_competes_in_the_papers_searches():
    """Algorithm 1: argmax over t = 1, ..., T + 1. Random search gets as many trials."""
    paper = load_pipeline(content("paper"), "paper.yaml")
    own = [name for name in paper.searches if not paper.search(name).chained]  # AM-LFS counts in epochs
    assert {paper.search(name).total_steps for name in own} == {21}
    release = load_pipeline({**content("paper"), "preset": "release"}, "paper.yaml")
    assert {release.search(name).total_steps for name in own if "linear" not in name} == {12}
    assert {release.search(name).total_steps for name in own if "linear" in name} == {21}


@pytest.mark.parametrize("preset", ["paper", "release"])
def test_linear_searches_have_the_papers_curves_under_both_presets(preset):
    """The authors released no linear curves, so all of such a search is the paper's, also the layout of BF1."""
    pipeline = load_pipeline({**content("paper"), "preset": preset}, "paper.yaml")
    assert search_space(pipeline.search("voc-linear-BF1")).names[0] == "edge.AND.z1"


@pytest.mark.parametrize("preset", ["paper", "release"])
def test_losses_and_metrics_of_the_paper_have_the_releases_conventions(preset):
    paper = load_pipeline({**content("paper"), "preset": preset}, "paper.yaml")
    drops = {
        name: (paper.search(name).conventions.drop_background, paper.search(name).conventions_in_loss.drop_background)
        for name in ("voc-BF1", "voc-BIoU", "cityscapes-BF1", "cityscapes-BIoU")
    }
    # On Cityscapes class 0 is road. BIoU's loss would drop a background; trials say that there is none.
    assert drops == {
        "voc-BF1": (True, False),
        "voc-BIoU": (True, True),
        "cityscapes-BF1": (False, False),
        "cityscapes-BIoU": (False, True),
    }
    assert paper.search("voc-BF1-tolerance-0").conventions_in_loss.tolerance == 0
    hand_made = {term.name for run in paper.runs.values() for term in parse_loss(run.loss) if term.kind == "hand-made"}
    assert hand_made == {"ce-release", "wce-release", "dpce-release", "ssim-release", "dice-release", "lovasz"}


def test_a_config_gives_losses_other_conventions_than_metrics(tmp_path):
    search = {"metric": "BF1", "steps": 2, "loss_conventions": {"tolerance": 1}}
    config = tiny("searches", "mIoU", "search", search)
    config["datasets"]["scenes"]["conventions"] = {"tolerance": 3}
    config["datasets"]["scenes"]["loss_conventions"] = {"tolerance": 2, "drop_background": True}
    config["tables"]["main"]["rows"] = ["naive:BF1"]
    pipeline = load_pipeline(config, "the config")
    found = pipeline.search("mIoU")
    assert (found.conventions.tolerance, found.conventions_in_loss.tolerance) == (3, 1)
    assert found.conventions_in_loss.drop_background is True
    run = next(name for name, run in pipeline.runs.items() if run.loss == "naive:BF1")
    done = snakemake(tmp_path, "-n", "-p", *with_config(tmp_path, config), "--", f"results/tiny/runs/{run}/run.json")
    assert "--convention tolerance=3" in done.stdout
    assert "--loss-convention drop_background=true --loss-convention tolerance=2" in done.stdout
    config["datasets"]["scenes"]["loss_conventions"] = {"tolerence": 2}
    with refused(what="did you mean 'tolerance'?") as error:
        load_pipeline(config, "the config")
    assert error.value.where.endswith("datasets.scenes.loss_conventions")


def test_the_papers_jobs_are_as_many_as_the_page_says():
    paper, jobs = load_pipeline(content("paper"), "paper.yaml"), 0
    for name, plan in paper.searches.items():
        steps, trials = paper.search(name).total_steps, paper.search(name).settings.trials_per_step
        assert (steps, paper.chunks(name, trials), plan.trials_per_job) == (
            45 if paper.search(name).chained else 21,
            8,
            4,
        )
        jobs += steps * (1 + 8) + 1  # ask and chunks, then select
    jobs += 2 * len(paper.datasets) + 2 * len(paper.runs) + len(paper.tables) + len(paper.figures) + 1
    text = " ".join((ROOT / "docs/pipeline.md").read_text().split())
    assert "21 steps of 8 jobs with 4 trials each, one of AM-LFS 45 such steps" in text
    assert f"some {round(jobs, -2):,} jobs" in text


def test_schema_and_reference_are_what_the_models_say():
    for path, text in pages().items():
        assert (ROOT / path).read_text() == text, f"{path} is out of date; run `make reference`"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_fits_the_schema_that_its_first_line_names(path):
    line = path.read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / line).resolve() == ROOT / "workflow/schemas/config.schema.json"
    jsonschema.validate(yaml.safe_load(path.read_text()), schema())


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (tiny("tabels", {}), "tabels"),
        (tiny("proxies", "tiny", "training", "iteratoins", 3), "iteratoins"),
        (tiny("searches", "mIoU", "search", "stpes", 3), "stpes"),
        (tiny("searches", "mIoU", "search", "steps", "two"), "two"),
        (tiny("datasets", "scenes", "options", "trian", 3), "trian"),
        (tiny("tables", "main", "rows", [{"lable": "CE"}]), "lable"),
    ],
)
def test_the_schema_refuses_what_the_models_refuse(config, named):
    with pytest.raises(InputError):
        load_pipeline(config, "the config")
    with pytest.raises(jsonschema.ValidationError, match=named):
        jsonschema.validate(config, schema())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_config_given_on_as_json_is_the_same_config(path):
    config = changed(yaml.safe_load(path.read_text()), "loaders", 1)
    for proxy in config["proxies"].values():
        proxy.setdefault("training", {})["lr"] = 0.02  # the default of `Training`, but given
    pipeline = load_pipeline(config, path.name)
    again = load_pipeline(json.loads(as_argument(pipeline, exclude_defaults=True)), "JSON")
    assert again == pipeline
    assert all(again.search(name) == pipeline.search(name) for name in pipeline.searches)
    assert all("lr" in proxy.training.model_fields_set for proxy in again.proxies.values())


def test_networks_are_known_by_name_without_torch():
    assert set(BUILT_IN) == set(NETWORKS)


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
