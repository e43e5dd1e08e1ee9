"""The package as a user meets it: layers, pins, command line."""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import autoseg
from autoseg.cli import main
from autoseg.files import atomic, fingerprint, read_json, write_json
from tests.refusals import refused

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("autoseg", {"torch", "optuna", "numpy"}),
        ("autoseg.cli", {"torch", "optuna"}),
        ("autoseg.metrics.formula", {"torch", "optuna"}),
        ("autoseg.losses.surrogate", {"torch", "optuna"}),
        ("autoseg.search.ppo2", {"torch", "optuna", "scipy.stats"}),
        ("autoseg.search.steps", {"torch", "optuna", "scipy.stats"}),
        ("autoseg.search.runner", {"torch", "optuna"}),
        ("autoseg.search.sampler", {"torch", "scipy.stats"}),
        ("autoseg.training.settings", {"torch", "optuna", "albumentations"}),
        ("autoseg.metrics.counts", {"optuna", "scipy", "torchvision"}),
        ("autoseg.losses.hand_made", {"optuna", "scipy", "torchvision"}),
    ],
)
def test_a_module_imports_only_what_its_layer_needs(module, forbidden):
    code = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(run("-c", code).stdout))
    assert not forbidden & loaded


@pytest.mark.parametrize("name", ["paper", "demo", "tiny"])
def test_reading_a_config_and_planning_its_jobs_loads_neither_torch_nor_optuna(name):
    code = (
        "import sys; from autoseg.files import read_settings; from autoseg.pipeline.arguments import Arguments; "
        "from autoseg.pipeline.expansion import load_pipeline; from autoseg.pipeline.inputs import Inputs; "
        "from autoseg.pipeline.layout import Layout; "
        f"pipeline = load_pipeline(read_settings('workflow/config/{name}.yaml'), 'config'); "
        "layout = Layout.named(pipeline.name); "
        "jobs = [Inputs(pipeline, layout).select(search) for search in pipeline.searches]; "
        "assert jobs and Arguments(pipeline, layout).ask; "
        "print({'torch', 'optuna', 'scipy.stats'} & set(sys.modules))"
    )
    done = run("-c", code)
    assert done.stdout == "set()\n", done.stderr


def test_the_conda_file_has_the_same_pins_as_the_constraints():
    constraints = (ROOT / "envs" / "constraints.txt").read_text().split()
    packages = yaml.safe_load((ROOT / "envs" / "autoseg.yaml").read_text())["dependencies"][-1]["pip"]
    assert len(packages) > 10
    assert set(packages) <= set(constraints)


def test_the_version_is_written_the_same_everywhere():
    assert f'version = "{autoseg.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {autoseg.__version__}" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == autoseg.__version__
    assert f"date-released: {newest[2]}" in (ROOT / "CITATION.cff").read_text()


def test_every_make_target_is_explained():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    explained = re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)
    assert len(explained) > 10
    assert targets == set(explained)


def test_the_command_line_explains_itself():
    shown = run("-m", "autoseg", "--help")
    assert shown.returncode == 0
    assert "usage: autoseg" in shown.stdout
    assert run("-m", "autoseg", "--version").stdout == f"autoseg {autoseg.__version__}\n"
    wrong = run("-m", "autoseg", "bake")
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_a_package_that_only_an_extra_brings_is_missed_in_a_sentence(tmp_path):
    """As after `pip install .`, which brings losses, metrics and the sampler alone."""
    code = (
        "import sys; sys.modules['cv2'] = None; from autoseg.cli import main; "
        f"sys.exit(main(['prepare', 'synthetic', '--out', {str(tmp_path / 'data')!r}]))"
    )
    done = run("-c", code)
    assert done.returncode == 2
    assert done.stderr == "autoseg prepare: needs the package cv2; `pip install 'autoseg[all]'` brings it.\n"


def test_a_verb_shows_what_the_library_logs_on_stderr_alone(tmp_path, capsys):
    for folder in ("a", "b"):  # the second verb of a process says each line once, too
        assert (
            main(
                ["prepare", "synthetic", "--train", "3", "--val", "1", "--size", "32", "--out", str(tmp_path / folder)]
            )
            == 0
        )
        assert main(["split", str(tmp_path / folder), "--hold-out", "1"]) == 0
        logging.getLogger("autoseg.files").info("a line")
        shown = capsys.readouterr()
        assert shown.err.count("autoseg split: a line\n") == 1
        assert shown.out == ""


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder" / "a.json"
    write_json(path, {"b": 1, "a": 0.1})
    before = path.read_bytes()

    def fail_half_way():
        with atomic(path) as file:
            file.write("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert path.read_bytes() == before


def test_json_is_canonical_and_errors_name_the_file(tmp_path):
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    with refused(where="nowhere.json"):
        read_json(tmp_path / "nowhere.json")
    (tmp_path / "broken.json").write_text("{")
    with refused(where="broken.json", what="JSON"):
        read_json(tmp_path / "broken.json")


def test_a_metric_from_a_plugin_is_known_to_every_verb(tmp_path):
    (tmp_path / "my_metrics.py").write_text(
        "from autoseg.metrics.formula import Formula, ratio, register\n"
        "register(Formula('myDice', lambda y_hat, y, ops: {'both': ops.AND('AND', y_hat, y), 'size': y_hat + y},\n"
        "                 lambda s: ratio(2 * s['both'], s['size'])))\n"
    )
    (tmp_path / "search.json").write_text('{"metric": "myDice", "steps": 2, "trials_per_step": 2}')
    command = [sys.executable, "-m", "autoseg"]
    ask = ["ask", "dice", "--settings", "search.json", "--step", "1"]
    done = subprocess.run(
        [*command, "--plugin", "my_metrics", *ask], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads((tmp_path / "dice/step-001/proposals.json").read_text())["trials"][0]["theta"]) == 6
    without = subprocess.run([*command, *ask], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert without.returncode == 2
    assert "myDice" in without.stderr
    assert "Traceback" not in without.stderr


ROOMS = [
    "errors",
    "files",
    "versions",
    "progress",
    "gpus",
    "data",
    "metrics",
    "plugins",
    "losses",
    "search",
    "training",
]
ROOMS += ["pipeline", "report", "cli"]


def test_rooms_import_only_rooms_before_them_in_the_data_flow():
    backwards = []
    for path in sorted((ROOT / "autoseg").rglob("*.py")):
        room = path.relative_to(ROOT / "autoseg").parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autoseg."):
                other = node.module.split(".")[1]
                if room in ROOMS and ROOMS.index(other) > ROOMS.index(room):
                    backwards.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {node.module}")
    assert not backwards


def test_the_public_names_are_there_and_nothing_else():
    assert set(dir(autoseg)) == {*autoseg.__all__, "search", "__version__"}
    assert callable(autoseg.search)  # a package, too
    assert all(name in autoseg.__doc__ for name in dir(autoseg) if name != "__version__")
    for name in autoseg.__all__:
        assert getattr(autoseg, name).__name__ == name
    with pytest.raises(AttributeError, match="SurrogatLoss"):
        autoseg.SurrogatLoss  # noqa: B018
