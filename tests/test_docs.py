"""README and docs: every block of code is run, or it is said why not; links lead somewhere; figures were measured."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pages import Block, blocks, commands
from pipeline_runs import environment

from autoseg.cli import build_parser, main
from autoseg.files import parse
from autoseg.losses.published import PUBLISHED, published
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.sections import Proxy
from autoseg.search.settings import load_search
from autoseg.training.settings import Training

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md", "workflow/config/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))


BLOCKS = [block for page in PAGES for block in blocks(page)]


def of(language: str, *pages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and (not pages or block.page in pages)]


def test_every_block_says_what_it_is():
    assert {block.language for block in BLOCKS} == {"python", "sh", "yaml", "json", "text"}
    for page in PAGES:
        assert page.read_text().count("```") == 2 * len(blocks(page)), page


# ------------------------------------------------------------------------------------------------------------- Python


@pytest.mark.parametrize("page", ["README.md", "docs/losses.md", "docs/which-loss.md", "docs/training.md"])
def test_the_programs_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in of("python", page):
        exec(compile(block.text, page, "exec"), names)


def test_no_page_with_programs_is_forgotten():
    here = {"README.md", "docs/losses.md", "docs/which-loss.md", "docs/training.md", "docs/own-data.md"}
    # tests/data/test_data_docs.py, on a data set made for it; tests/test_distribution.py, with an installed package;
    # tests/frameworks, with the frameworks
    elsewhere = {"docs/data.md", "docs/searches.md", "docs/frameworks.md"}
    assert {block.page for block in of("python")} == here | elsewhere


def test_the_page_on_frameworks_shows_examples_to_the_letter():
    for block in of("python", "docs/frameworks.md"):
        assert block.file, block.text
        assert block.text == (ROOT / "examples" / block.file).read_text(), block.file


# ------------------------------------------------------------------------------------------ what commands are run on

make_images = runpy.run_path(str(ROOT / "examples/search_own_folder.py"))["make_up"]  # a folder of one's own

# All that is not to the letter: less of everything.
SMALLER = {
    "steps: 4": "steps: 1",
    "trials_per_step: 8": "trials_per_step: 2",
    "iterations=60": "iterations=2 --set loaders=0",
    "iterations: 60": "iterations: 2",
    "iterations: 150": "iterations: 2",
    "batch_size=8": "batch_size=2",
    "batch_size: 8": "batch_size: 2",
    "--workers 2": "--workers 1",
    "--cores all": "--cores 1",
}


def smaller(text: str) -> str:
    for long, short in SMALLER.items():
        text = text.replace(long, short)
    return text


def environ(*folders: Path) -> dict[str, str]:
    """Return an environment where autoseg is the one under test, and modules in some folders are found."""
    return environment(PYTHONPATH=os.pathsep.join(map(str, [ROOT, *folders])))


# ----------------------------------------------------------------------------------------------------------- commands

# Run below, on data made for it.
RUN = {
    "autoseg prepare folder --root my_images --classes my_images/classes.txt --out results/data/mine",
    "autoseg split results/data/mine --hold-out 0.25",
    "echo '{metric: mIoU, preset: recommended, steps: 4, trials_per_step: 8}' > search.yaml",
    "autoseg search results/searches/mine --settings search.yaml --data results/data/mine --network small "
    "--set iterations=60 --set batch_size=8 --workers 2",
    "autoseg doctor network --network my_networks:make",
    "autoseg search results/searches/own --settings search.yaml --data results/data/mine --network my_networks:make "
    "--set iterations=60 --set batch_size=8 --set lr=0.05 --workers 2",
    "autoseg search results/searches/fpn --settings search.yaml --data results/data/mine "
    "--network smp:FPN/mobilenet_v2 --set iterations=60 --set batch_size=8 --set optimiser=adamw --set lr=1e-3",
    "autoseg init paper",
    "cd paper",
    "autoseg loss show mIoU",
    "autoseg loss list",
    "autoseg loss show results/demo/searches/mIoU/surrogate.json --out mIoU.png",
    "autoseg loss export mIoU --out my_loss.py",
    'autoseg loss export "mIoU + 0.5 * BIoU" --out my_loss.py',
    "autoseg loss export results/demo/searches/mIoU/surrogate.json --out my_loss.json",
    "autoseg report --config workflow/config/demo.yaml --make",
    "autoseg table --config workflow/config/demo.yaml --table main",
    "autoseg table --published main",
    "autoseg figure --config workflow/config/demo.yaml --figure curves --out curves --format pdf",
}
# Why a command is not run by a test of this file.
ELSEWHERE = {
    "make demo": "minutes; tests/test_pipeline.py runs the same DAG with less training, `make bench-demo` this one",
    "make test": "runs this",
    "make resume": "tests/test_cluster_notes.py and tests/slurm run `autoseg resume`, which it calls",
    "autoseg auto my_images --metric mIoU --hours 1": "an hour; tests/test_auto.py runs smaller ones",
    "autoseg auto my_images --metric BF1+mIoU --hours 4 --network smp:FPN/mobilenet_v2 --weights encoder.safetensors": (
        "hours; tests/test_auto.py runs smaller ones"
    ),
    "autoseg auto my_images --profile slurm --jobs 8": "tests/slurm runs the profile, tests/test_auto.py the rest",
    "autoseg fetch pets --root data/pets": "no network; tests/data/test_data_fetch.py has a server",
    "autoseg auto data/pets --hours 1": "an hour; tests/test_auto.py runs smaller ones",
    "make venv": "whoever runs this has done it",
    "git clone ... autoseg": "no network",
    "cd autoseg": "after the clone",
    "source .venv/bin/activate": "after the clone",
    "snakemake --cores all": "the demo, see there",
    "snakemake --cores all --config name=mine": "the demo under another name; tests/test_pipeline.py has --config",
    "snakemake --cores all searches": "tests/test_pipeline.py plans every target",
    "snakemake --cores all results/demo/tables/main.md": "tests/test_pipeline.py plans every target",
    "snakemake --cores all --configfile workflow/config/paper.yaml -n": "tests/test_pipeline.py plans every config",
    "snakemake --configfile workflow/config/paper.yaml -n --quiet rules": "tests/test_pipeline.py plans every config",
    "snakemake --profile slurm -n --quiet rules": "tests/test_pipeline.py plans every config, tests/slurm the profile",
    "snakemake --profile slurm": "tests/slurm, on a real SLURM",
    "snakemake --cores all tables figures report": "tests/test_pipeline.py plans every target",
    "autoseg doctor gpus": "tests/test_gpus.py, with pretended GPUs",
    "CUDA_VISIBLE_DEVICES=2,3 snakemake --cores all": "tests/test_gpus.py, with pretended GPUs",
    "snakemake --cores all --config trials_per_gpu=3": "tests/test_gpus.py, with pretended GPUs",
    "autoseg search results/searches/toy --settings search.yaml --data results/data/demo --workers auto "
    "--trials-per-gpu 3": "tests/test_gpus.py, with pretended GPUs",
    "autoseg doctor slurm": "tests/slurm, on a real SLURM",
    "autoseg doctor voc --root /data": "tests/data/test_data_docs.py, on a small VOC",
    "autoseg prepare voc --root /data --out results/data/voc": "tests/data/test_data_docs.py, on a small VOC",
    "autoseg split results/data/voc --seed 0": "tests/data/test_data_docs.py, on a small VOC",
    "autoseg weights deeplabv3plus-r101c --out r101c.safetensors": "no network; tests/test_networks.py has a file's",
    "autoseg weights deeplabv3plus-r101c --from resnet101_v1c.pth --out r101c.safetensors": "tests/test_networks.py",
    "autoseg train --loss published:mIoU --data results/data/voc --network deeplabv3plus-r101c "
    "--weights r101c.safetensors --protocol paper --out results/runs/voc-miou": "a GPU's work; tests/test_runs.py",
    "autoseg evaluate results/runs/voc-miou --data results/data/voc": "after it; tests/test_runs.py",
    "autoseg evaluate --checkpoint iter_10000.pth --network deeplabv3plus-r101c --data results/data/voc "
    "--out theirs.json": "tests/test_runs.py, on a small data set",
    "autoseg trials results/searches/voc-miou --step 1 --chunk 0/8 --data results/data/voc "
    "--weights r50c.safetensors": ("a GPU's work; tests/test_trials.py"),
    "autoseg search results/searches/toy --settings search.yaml --data results/data/demo --network small --workers 2": (
        "as in docs/own-data.md, which is followed below"
    ),
    "autoseg search results/searches/toy --settings search.yaml --objective my_task:train_and_score --workers 2": (
        "tests/test_distribution.py, with an installed package"
    ),
    "autoseg train --processes 4 --loss published:mIoU --data results/data/voc --out results/runs/voc-miou "
    "--set batch_size=32": "a GPU's work; tests/test_runs.py has two processes",
    "autoseg search results/searches/handed-on --settings handed-on.yaml --data results/data/demo --network small "
    "--set batch_size=8 --set iterations=22": "1,440 trainings; tests/test_am_lfs.py, on a small data set",
    "autoseg evaluate --checkpoint results/searches/handed-on/network.safetensors --network small "
    "--data results/data/demo --out handed-on.json": "after it; tests/test_am_lfs.py",
    "torchrun --standalone --nproc-per-node 4 -m autoseg train --loss published:mIoU ... --set batch_size=32": (
        "a GPU's work; tests/test_runs.py has two processes"
    ),
}


def test_every_command_is_run_or_says_why_not():
    written = {command for block in of("sh") if block.page != "docs/own-data.md" for command in commands(block.text)}
    assert written == RUN | set(ELSEWHERE)
    for reason in ELSEWHERE.values():
        assert all((ROOT / name).exists() for name in re.findall(r"(?:tests|docs)/[\w./-]+\w", reason)), reason


@pytest.mark.parametrize("command", sorted(c for b in of("sh") for c in commands(b.text) if c.startswith("autoseg ")))
def test_every_command_is_one_that_the_parser_takes(command):
    build_parser().parse_args(shlex.split(command)[1:])


def test_the_readmes_commands_on_own_images_and_with_an_own_network_run(tmp_path):
    make_images(tmp_path / "my_images", 8)
    (own,) = [block for block in blocks(ROOT / "README.md") if block.file == "my_networks.py"]
    (tmp_path / own.file).write_text(own.text)
    text = smaller("\n".join(block.text for block in of("sh", "README.md")[2:4]))
    done = subprocess.run(
        ["sh", "-e", "-c", text], cwd=tmp_path, env=environ(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for search in ("mine", "own", "fpn"):
        assert json.loads((tmp_path / f"results/searches/{search}/surrogate.json").read_text())["metric"] == "mIoU"


@pytest.mark.parametrize("page", ["docs/losses.md", "docs/tables.md"])
def test_the_commands_on_losses_and_tables_run_in_a_project(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "."]) == 0
    published("mIoU").save("results/demo/searches/mIoU/surrogate.json")  # the rest is missing, and said to be
    for block in of("sh", page):
        for command in commands(block.text):
            if command in RUN:
                assert main(shlex.split(command)[1:]) == 0, command
    assert "class Loss" in (tmp_path / "my_loss.py").read_text()


def test_the_readmes_project_is_written_where_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    init, cd, *_ = commands(of("sh", "README.md")[4].text)
    assert main(shlex.split(init)[1:]) == 0
    assert (tmp_path / cd.removeprefix("cd ") / "slurm" / "config.yaml").exists()


# ------------------------------------------------------------------------------------------------------ YAML and JSON


def test_every_config_is_valid(tmp_path):
    kinds = []
    for block in of("yaml"):
        content = yaml.safe_load(block.text)
        if block.page == "docs/own-data.md":
            continue  # its metric is known only where the page is followed
        if block.page == "docs/pipeline.md":
            continue  # parts of the demo's, see below
        if "proxies" in content:
            for name, proxy in content["proxies"].items():
                Training.of_protocol("paper-proxy", **parse(Proxy, proxy, name).training.model_dump())
        elif "metric" in content:
            (tmp_path / "search.yaml").write_text(block.text)
            load_search(tmp_path / "search.yaml")
        else:
            rules = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
            assert all(f"rule {name}:" in rules for name in content["set-resources"])
        kinds.append(next(key for key in ("metric", "set-resources", "proxies") if key in content))
    assert set(kinds) == {"metric", "set-resources", "proxies"}


def test_the_tutorial_explains_the_demos_config_to_the_letter():
    demo = (ROOT / "workflow/config/demo.yaml").read_text()
    schema, title, body = demo.split("\n", 2)
    assert schema == "# yaml-language-server: $schema=../schemas/config.schema.json"
    assert title.startswith("# ")
    assert "\n".join(block.text for block in of("yaml", "docs/pipeline.md")) == body
    pipeline = load_pipeline(yaml.safe_load(demo), "demo.yaml")
    searches = map(pipeline.search, pipeline.searches)
    trainings = sum(search.steps * search.trials_per_step + search.most_rescored for search in searches)
    text = (ROOT / "docs/pipeline.md").read_text()
    assert f"{trainings} short trainings" in text
    assert f"{len(pipeline.runs)} runs" in text


def test_every_function_that_the_architecture_names_is_there():
    text = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", text)
    assert len(named) > 20
    for file, name in named:
        body = ast.parse((ROOT / "autoseg" / file).read_text()).body
        for part in name.split("."):
            found = [node for node in body if getattr(node, "name", None) == part]
            assert found, f"{file} has no {name}"
            body = getattr(found[0], "body", [])
    assert len(named) == len(set(named))  # none is visited twice
    files = re.findall(r"`((?:data|metrics|losses|search|training|pipeline|report)/\w+\.py)`", text)
    assert all((ROOT / "autoseg" / file).exists() for file in files)


def test_every_json_is_json():
    assert all(json.loads(block.text) for block in of("json"))


# ----------------------------------------------------------------------------------------- docs/own-data.md, followed


def follow(folder: Path, upto: str | None = None) -> str:
    """Do what the page says, in its order, up to a command; return what was printed."""
    make_images(folder / "my_images", 8)
    shown = ""
    for block in blocks(ROOT / "docs/own-data.md"):
        text = smaller(block.text)
        if block.file:
            (folder / block.file).write_text(text)
        elif block.language in ("python", "sh"):
            runs = [["-c", text]] if block.language == "python" else [["-m", *shlex.split(c)] for c in commands(text)]
            for arguments in runs:
                if upto and shlex.join(arguments).endswith(upto):
                    return shown
                done = subprocess.run(
                    [sys.executable, *arguments],
                    cwd=folder,
                    env=environ(folder),
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
                shown += done.stdout
    return shown


def test_a_new_metric_is_searched_for_by_following_the_page(tmp_path):
    shown = follow(tmp_path, upto="--configfile mine.yaml")
    (printed,) = re.findall(r"# (\{'mF2'.*\})", (ROOT / "docs/own-data.md").read_text())
    assert printed in shown
    found = json.loads((tmp_path / "results/searches/mine/surrogate.json").read_text())
    assert found["metric"] == "mF2"
    assert len(found["theta"]) == 6
    assert "make_report" in shown  # planned


@pytest.mark.long
def test_the_page_followed_to_its_end_gives_a_table(tmp_path):
    follow(tmp_path)
    rows = (tmp_path / "results/mine/tables/main.csv").read_text().splitlines()
    assert "mF2" in rows[0]
    assert any(row.startswith("searched:mF2") and row.count(".") == 3 for row in rows), rows  # a score of each metric


# ----------------------------------------------------------------------------------------------------- pages, figures


def test_links_of_pages_outside_the_site_lead_to_files():
    for page in [*PAGES[:4], ROOT / "benchmarks/README.md", ROOT / "hub/README.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page}: {target}"


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").glob("*.html"))
    assert len(pages) > 12
    for page in pages:
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"([^\"]+)\"", page.read_text())
        assert loaded
        assert not [place for place in loaded if "//" in place], page
        assert "&amp;lt;" not in page.read_text(), page  # escaped twice
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.findall(r"url\(['\"]?(?:https?:)?//", sheet.read_text()), sheet
    api = (tmp_path / "site/api.html").read_text()
    assert "autoseg.losses.build.build_loss" in re.sub("<[^>]+>", "", api)
    assert "check_ignore_index" not in api  # not in `__all__`
    assert "<code>monotone, truth_table</code>: the two constraints" in api
    shutil.rmtree(tmp_path / "site")


def test_the_readmes_figures_are_those_of_the_benchmarks():
    readme, measured = ((ROOT / name).read_text() for name in ("README.md", "benchmarks/README.md"))
    speed = readme.split("## Speed")[1].split("\n## ")[0]
    figures = re.findall(r"\d+\.\d+x?|\d+x\b", speed)
    assert len(figures) > 8
    gain = re.search(r"gains (\S+) points of\s+mIoU", readme)
    assert gain
    spreads = re.findall(r"\d+\.\d ± \d+\.\d", readme.split("On the made-up scenes of the demo")[1])
    assert len(spreads) == 2
    for figure in [*figures, gain[1], *spreads]:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", measured), figure


def test_the_readmes_figures_of_photographs_are_those_of_the_benchmark():
    """README rounds to one decimal what the benchmark writes with two."""
    readme, measured = ((ROOT / name).read_text() for name in ("README.md", "benchmarks/README.md"))
    section = measured.split("<!-- bench-real:begin -->")[1].split("<!-- bench-real:end -->")[0]
    rows = re.findall(r"^\| (\w+) \| (\S+ ± \S+) \| (.+?) \| (.+?) \| (.+?) \((.+)\) \|$", readme, re.MULTILINE)
    assert [row[0] for row in rows] == ["mIoU", "BF1", "BIoU"]
    header = re.search(r"^\| Loss \| (.+) \|$", section, re.MULTILINE)[1].split(" | ")
    for metric, score, *differences, best in rows:
        scores = re.search(rf"^\| Searched {metric} \| (.+) \|$", section, re.MULTILINE)[1].split(" | ")
        _assert_rounded(score, scores[header.index(metric)])
        rivals = ("cross entropy", f"cross entropy, tuned for {metric}", best)
        for rival, difference in zip(rivals, differences, strict=True):
            row = rf"^\| Searched {metric} \| {metric} \| {re.escape(rival)} \| (.+?\])"
            _assert_rounded(difference, re.search(row, section, re.MULTILINE)[1])


def _assert_rounded(shown: str, measured: str) -> None:
    pairs = zip(*(re.findall(r"[\d.]+", text) for text in (shown, measured)), strict=True)
    assert all(abs(float(one) - float(other)) < 0.0501 for one, other in pairs), (shown, measured)
    assert re.findall(r"[+−]", shown) == re.findall(r"[+−]", measured), (shown, measured)


def test_the_data_pages_figures_are_those_of_the_benchmark():
    measured = re.search(r"from the packed cache \| (\d+)", (ROOT / "benchmarks/README.md").read_text())
    text = (ROOT / "docs/data.md").read_text()
    assert f"about {measured[1]} proxy samples a second" in text
    assert f"batch 32 needs {32_000 / int(measured[1]):.0f} ms of one core" in text


def test_the_published_curves_are_named():
    text = (ROOT / "docs/losses.md").read_text()
    assert all(f"`{name}`" in text for name in PUBLISHED)


def test_the_architecture_names_every_room_and_only_files_that_are_there():
    text = (ROOT / "docs/architecture.md").read_text()
    package = ROOT / "autoseg"
    rooms = [f"{path.parent.name}/" for path in package.glob("*/__init__.py")]
    modules = [path.name for path in package.glob("*.py") if not path.name.startswith("__")]
    assert not [name for name in (*rooms, *modules) if name not in text]
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text)) - {"__init__.py"}
    assert not [name for name in named if not (package / name).is_file()]


# ------------------------------------------------------------------------------------------------- tests and targets


def test_every_test_and_target_that_a_page_names_is_there():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        missing = [name for name in re.findall(r"\btests/[\w/]+\.py", text) if not (ROOT / name).exists()]
        assert not missing, page
        assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets, page


def test_every_test_is_run_by_a_target():
    """Whatever marks a test has."""
    selections = re.findall(r"pytest.* -m '?([a-z ]+?)'?(?: -|$)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"long", "page"} < set(selections)
    marks = re.findall(r'^    "([a-z]+)[:(]', (ROOT / "pyproject.toml").read_text().partition("markers = [")[2], re.M)
    for number in range(2 ** len(marks)):
        given = {mark: bool(number >> k & 1) for k, mark in enumerate(marks)}
        assert any(eval(selection, {}, given) for selection in selections), given
