"""Files that a stranger sent: no code in them runs, no path in them leads outside, and no bomb goes off."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import sys
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from small_task import arguments

from autoseg import strict
from autoseg.cli import main
from autoseg.data.model import Index
from autoseg.data.reading import LARGEST, Unreadable, decode_image, read_bytes, remarks
from autoseg.errors import InputError
from autoseg.files import parse, read_text
from autoseg.losses.surrogate import Surrogate
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.layout import Layout
from autoseg.pipeline.preflight import check_before_start
from autoseg.pipeline.recovery import recover
from autoseg.pipeline.slurm import read_profile
from autoseg.search.records import ChunkScores
from autoseg.search.settings import Search
from tests.pipeline_runs import content, snakemake
from tests.refusals import refused
from tests.small_results import make_results

# ----------------------------------------------------------------------------------------------------- YAML and JSON


def merged(levels: int, width: int = 9) -> str:
    """Return YAML whose merges stand for width ** levels keys."""
    more = [f"a{k + 1}: &a{k + 1} {{<<: [{','.join([f'*a{k}'] * width)}]}}" for k in range(levels)]
    return "\n".join(["a0: &a0 {x: 1}", *more])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (merged(9), "too many values"),
        ("a: &a {<<: *a, b: 1}", "too deep"),
        ("a: 1" + ":1" * 1000, "too long"),
        ("a: 1" + ":1" * 1000 + ".5", "too long"),
        ('a: !!float ""', "not readable"),
        ('a: !!int ""', "not readable"),
        ("a: !!bool x", "not readable"),
        ("a: !!timestamp x", "not readable"),
        ("a: !!set {a, b}", "found"),
        ("a: !!omap [a: 1, b: 2]", "found"),
        ("a: 1\n---\nb: 2", "not readable"),
        ("a: 2026-13-45", "not readable"),
        ("? [a]\n: 2", "not readable"),
        ("a: !!python/name:os.system", "not readable"),
        ("a: !include /etc/passwd", "not readable"),
        ("\tb: 1", "not readable"),
        ("a: &a {b: *a}", "too deep"),
        ("".join(" " * depth + "a:\n" for depth in range(1200)), "too deep"),
    ],
    ids=lambda value: value[:16],
)
def test_yaml_bombs_are_refused(text, what):
    with refused(what=what):
        strict.loads_yaml(text)


def test_repeated_keys_among_many_are_found_in_a_moment():
    began = time.process_time()
    keys = ",".join(f'"k{k}":1' for k in range(200_000))
    with refused(what="'k199999' occurs twice"):
        strict.loads(f'{{{keys},"k199999":1}}')
    with refused(what="'k2999' occurs twice"):
        strict.loads_yaml("".join(f"k{k}: 1\n" for k in range(3000)) + "k2999: 1")
    assert time.process_time() - began < 10  # the square of their number would take minutes


def test_a_named_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "surrogate.json")
    os.mkfifo(tmp_path / "image.png")
    with refused(where="surrogate.json", what="pipe"):
        Surrogate.load(tmp_path / "surrogate.json")
    with pytest.raises(Unreadable, match="pipe"):
        read_bytes(tmp_path / "image.png")
    read, write = os.pipe()
    os.write(write, b"a: 1")
    os.close(write)
    assert read_text(f"/dev/fd/{read}") == "a: 1"  # as a shell hands over <(...)
    os.close(read)


def test_a_sparse_file_of_gigabytes_is_not_read(tmp_path):
    with open(tmp_path / "surrogate.json", "wb") as file:
        file.truncate(50 << 30)
    with refused(what="too large", expected="16 MiB"):
        Surrogate.load(tmp_path / "surrogate.json")
    (tmp_path / "surrogate.json").rename(tmp_path / "a.yaml")
    assert main(["plan", "--config", str(tmp_path / "a.yaml")]) == 2
    (tmp_path / "a.yaml").rename(tmp_path / "w.safetensors")
    from autoseg.training import weights

    with refused(what="too large", expected="16 GiB"):
        weights.read(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        (Search, "pieces", 10**9),
        (Search, "steps", 10**9),
        (Search, "trials_per_step", 10**9),
        (Search, "rescore", 10**9),
    ],
)
def test_settings_that_would_fill_the_memory_are_refused(model, key, value):
    with refused(where=key):
        parse(model, {"metric": "mIoU", key: value}, "file")


def test_a_surrogate_of_a_billion_pieces_is_refused(tmp_path):
    for family in ("bezier", "linear"):
        lie = {**Surrogate.make("mIoU").content(), "pieces": 10**9, "family": family}
        (tmp_path / "s.json").write_text(json.dumps(lie))
        with refused(where="pieces"):
            Surrogate.load(tmp_path / "s.json")


def test_a_config_of_a_billion_searches_or_runs_is_refused():
    config = content("tiny")
    plan = {**config["searches"]["mIoU"], "for": {name: list(range(1000)) for name in "abc"}}
    with refused(where="for", what="1,000,000,000 searches"):
        load_pipeline({**config, "searches": {"{a}-{b}-{c}": plan}}, "the config")
    config["tables"]["main"]["seeds"] = list(range(50_000))
    with refused(where="seeds", what="runs"):
        load_pipeline(config, "the config")


# ------------------------------------------------------------------------------------------------------------ code


class Evil:
    """An object whose pickle makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_pickles_do_not_run(tmp_path):
    import torch

    from autoseg.training import weights
    from autoseg.training.checkpoint import Checkpoint

    mark = tmp_path / "mark"
    for suffix in (".pth", ".pt", ".safetensors"):
        for save in (torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))):
            save({"a": Evil(mark)}, tmp_path / f"w{suffix}")
            with refused(where="w."):
                weights.read(tmp_path / f"w{suffix}")
    network = torch.nn.Linear(1, 1)
    torch.save({"fingerprint": Evil(mark)}, tmp_path / "checkpoint.pt")
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", "mine")
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    assert checkpoint.restore(network, torch.optim.SGD(network.parameters()), scaler, torch.device("cpu")) == 0
    assert not mark.exists()


def test_code_that_a_run_names_is_not_imported(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--loss", "ce", "--out", "run", "--quiet", *arguments(data, iterations=1)]) == 0
    (tmp_path / "evil_network.py").write_text("import os\nos.mkdir('mark')\nmake = dict\n")
    run = json.loads(Path("run/run.json").read_text())
    for network in ("evil_network:make", "os:mkdir", "antigravity:fly", "builtins:exec"):
        Path("run/run.json").write_text(json.dumps({**run, "network": network, "network_options": {"a": 1}}))
        assert main(["evaluate", "run", "--quiet", "--data", str(data)]) == 2
        assert f"--network {network}" in capsys.readouterr().err
    assert not Path("mark").exists()
    assert "evil_network" not in sys.modules


def test_a_gallery_imports_no_code_that_a_run_names(tmp_path):
    from autoseg.training.run import Trained, load_network

    run = {"dataset": "d", "network": "evil_gallery:make", "loss": "ce", "seed": 0, "num_classes": 2, "iterations": 1}
    more = {"test_scale": None, "diverged": False, "weights": "0" * 64, "fingerprint": ""}
    import torch

    with refused(what="evil_gallery:make", cure="--network"):
        load_network(tmp_path, Trained(**run, **more), torch.device("cpu"), None)


def test_postscript_is_not_run(tmp_path):
    for text in (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", b"\xc5\xd0\xd3\xc6" + b"\0" * 100):
        with pytest.raises(Unreadable, match="PostScript"):
            decode_image(text)


@pytest.mark.parametrize("source", ["a\nmake_a_mark()", '"""\nmake_a_mark()\n"""', "\\", "\0", "\x1b[2J", "# SOURCES"])
def test_an_exported_loss_holds_no_code_of_its_source(source, tmp_path):
    lie = {**Surrogate.make("mIoU").content(), "source": source}
    (tmp_path / "s.json").write_text(json.dumps(lie))
    assert main(["loss", "export", str(tmp_path / "s.json"), "--out", str(tmp_path / "mine.py")]) == 0
    text = (tmp_path / "mine.py").read_text()
    exec(compile(text, "mine.py", "exec"), {"__name__": "mine"})  # a call of make_a_mark would be a NameError
    assert text.isprintable() or not any(ord(letter) < 32 for letter in text if letter != "\n")


# ------------------------------------------------------------------------------------------------- paths and names


def test_a_chunk_names_only_trials_of_its_step(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    folder = tmp_path / "results/searches/mIoU/step-001"
    folder.mkdir(parents=True)
    layout, pipeline = Layout(str(tmp_path / "results")), load_pipeline(content("tiny"), "the config")
    for name in (
        "../../../../victim",
        str(victim),
        "trial-0.json/../../../../../victim",
        "proposals.json",
        "trial-x.json",
    ):
        (folder / "chunk-0-of-2.json").write_text(
            json.dumps({"schema": ChunkScores.SCHEMA, "scores": {name: "0" * 64}})
        )
        with refused(where="chunk-0"):
            ChunkScores.load(folder / "chunk-0-of-2.json")
        recover(pipeline, layout, remove=True)
        assert victim.read_text() == "mine\n"
        assert not (folder / "chunk-0-of-2.json").exists()


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/../../x", "", "a\0b", ".."])
def test_an_index_names_images_below_its_folder(name, data):
    index = json.loads((data / "index.json").read_text())
    index["splits"]["val"][0]["id"] = name
    with refused(where="splits", what="the id"):
        Index.read(index, "index.json")


def test_names_that_steer_a_terminal_are_written_out(tmp_path, capsys):
    for lie in ({"schema": "\x1b]0;x\x07"}, {"schema": Surrogate.SCHEMA, "\x1b[2J": 1, "a\rb": 2}):
        (tmp_path / "s.json").write_text(json.dumps(lie))
        assert main(["loss", "show", str(tmp_path / "s.json")]) == 2
        said = capsys.readouterr().err.strip()
        assert not any(ord(letter) < 32 for letter in said), said


def test_names_in_results_are_text_in_the_page_and_in_figures(tmp_path):
    config = content("tiny")
    bad = "<script>alert(1)</script> $\\frac{ & ${x}"
    for section in ("tables", "figures"):
        for plan in config[section].values():
            plan["title"] = bad
    results = make_results(config, tmp_path / "results")
    for path in (tmp_path / "results").rglob("scores.json"):
        scores = json.loads(path.read_text())
        for metric, values in scores["per_class"].items():
            scores["per_class"][metric] = {**values, bad: 1.0}
        path.write_text(json.dumps({**scores, "network": bad}))
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    common = ["--config", str(tmp_path / "c.yaml"), "--results", str(results.folder)]
    assert main(["report", *common, "--make", "--out", str(tmp_path / "report.html")]) == 0
    written = [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.svg")]
    assert len(written) > 3
    assert not any("<script>alert" in path.read_text() for path in written)


# ------------------------------------------------------------------------------------------------ images and weights


def test_a_png_with_a_bomb_of_text_is_named():
    from PIL import PngImagePlugin

    about, file = PngImagePlugin.PngInfo(), io.BytesIO()
    for number in range(80):
        about.add_text(f"a{number}", "x" * (1000 << 10), zip=True)
    Image.new("RGB", (8, 8)).save(file, "PNG", pnginfo=about)
    for read in (decode_image, remarks):
        with pytest.raises(Unreadable):
            read(file.getvalue())


def test_a_device_in_the_place_of_an_image_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("autoseg.data.reading.LARGEST", 1 << 20)
    (tmp_path / "a.png").symlink_to("/dev/zero")
    with pytest.raises(Unreadable, match="too large"):
        read_bytes(tmp_path / "a.png", (1 << 20) + 1)
    assert LARGEST == 1 << 30


def bomb(path: Path, name: str) -> None:
    """Write a file of torch's in which one part is packed a thousandfold."""
    import torch

    torch.save({"a": torch.zeros(4)}, path)
    with zipfile.ZipFile(path) as good:
        parts = {part: good.read(part) for part in good.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for part, raw in parts.items():
            packed.writestr(part, raw + b"\0" * (300 << 20) if part.endswith(name) else raw)


@pytest.mark.parametrize("name", ["data.pkl", "data/0"])
def test_packed_weights_are_refused_before_they_are_unpacked(name, tmp_path):
    from autoseg.training import weights

    bomb(tmp_path / "w.pth", name)
    assert (tmp_path / "w.pth").stat().st_size < 1 << 20
    with refused(where="w.pth", what="larger than the file"):
        weights.read(tmp_path / "w.pth")


def test_safetensors_with_lying_headers_are_refused(tmp_path):
    from autoseg.training import weights
    from autoseg.training.networks import build_network

    path = tmp_path / "w.safetensors"
    encoder = build_network("tiny", 2).encoder
    assert encoder is not None
    wide = {"a": {"dtype": "F32", "shape": [0, 10**18], "data_offsets": [0, 0]}}
    beyond = {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}}
    for length, head in (
        (10**15, b"{}"),
        (2**64 - 1, b"{}"),
        (1 << 20, b"[" * (1 << 20)),
        *((len(text), text) for text in (json.dumps(lie).encode() for lie in (wide, beyond))),
    ):
        path.write_bytes(length.to_bytes(8, "little") + head)
        with refused(where="w.safetensors"):
            weights.load_encoder(encoder, weights.read(path), path)


def test_a_tensor_that_is_larger_than_its_file_is_refused(tmp_path):
    import torch

    from autoseg.training import weights
    from autoseg.training.networks import build_network

    encoder = build_network("tiny", 2).encoder
    assert encoder is not None
    torch.save({name: torch.zeros(1).expand(10**12) for name in encoder.state_dict()}, tmp_path / "w.pth")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with refused(what="shape"):
        weights.load_encoder(encoder, weights.read(tmp_path / "w.pth"), tmp_path / "w.pth")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


# ---------------------------------------------------------------------------------------------- configs and profiles


@pytest.mark.parametrize(
    "raw",
    [b"a: \xff", b"[", b"- a", b"a: &a [*a]", b"[" * 5000, b"default-resources: 3", b"default-resources: [a]", b"2"],
)
def test_a_profile_that_lies_is_refused(raw, tmp_path):
    (tmp_path / "config.yaml").write_bytes(raw)
    with refused(where="config.yaml"):
        read_profile(tmp_path, 1)


BAD_CONFIGS = {
    "date.yaml": b"name: 2026-11-18\n",
    "latin.yaml": "name: K\xf6ln\n".encode("latin-1"),
    "binary.yaml": bytes(range(256)),
    "folder.yaml": None,
    "missing.yaml": None,
    "circle.yaml": b"name: a\nb: &b [*b]\n",
    "circle-of-keys.yaml": b"name: a\nb: &b {c: *b}\n",
    "deep.yaml": b"a: " + b"[" * 5000 + b"]" * 5000,
    "torn.yaml": b"name: [\n",
    "twice.yaml": b"name: a\nname: b\n",
    "empty.yaml": b"",
    "list.yaml": b"- a\n",
    "merges.yaml": merged(9).encode(),
    "code.yaml": b"__use_yte__: true\nname: ?open('mark', 'w').name\n",
    "inf.yaml": b"name: a\nseed: .inf\n",
    "text.json": b'{"name": "a", "name": "b"}',
}


def write_bad_config(folder: Path, name: str) -> Path:
    raw = BAD_CONFIGS[name]
    if raw is not None:
        (folder / name).write_bytes(raw)
    elif name.startswith("folder"):
        (folder / name).mkdir()
    return folder / name


@pytest.mark.parametrize("name", BAD_CONFIGS)
@pytest.mark.parametrize("verb", ["plan", "report", "table", "figure", "resume"])
def test_a_config_that_cannot_be_read_is_named_by_every_verb(verb, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write_bad_config(tmp_path, name)
    words = ["resume", "--", "--configfile", str(path)] if verb == "resume" else [verb, "--config", str(path)]
    if verb == "resume" and name in ("empty.yaml", "list.yaml", "code.yaml"):
        pytest.skip("resume reads the file, and leaves its keys to the Snakefile")
    more = {"table": ["--table", "main"], "figure": ["--figure", "a", "--out", "out"]}
    before = sorted(tmp_path.rglob("*"))
    assert main([*words, *more.get(verb, [])]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"autoseg {verb}: {path}"), said
    assert len(said.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_config_that_cannot_be_read_is_named_before_snakemake_reads_it(name, tmp_path):
    path = write_bad_config(tmp_path, name)
    before = sorted(tmp_path.rglob("*"))
    done = snakemake(tmp_path, "--configfile", str(path))
    assert done.returncode == 2
    of_snakemake, said = done.stdout.strip().splitlines()
    assert of_snakemake.startswith("Using workflow specific profile")
    assert said.startswith(f"autoseg: {path}: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_config_that_a_profile_names_is_read_first_too(tmp_path):
    path = write_bad_config(tmp_path, "latin.yaml")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.yaml").write_text(f"configfile: {path}\n")
    done = snakemake(tmp_path, "--profile", "mine")
    assert done.returncode == 2
    assert f"autoseg: {path}: not readable" in done.stdout
    assert "Traceback" not in done.stdout


def test_without_the_workflow_profile_a_repeated_key_is_still_refused(tmp_path):
    path = write_bad_config(tmp_path, "twice.yaml")
    done = snakemake(tmp_path, "--workflow-profile", "none", "--configfile", str(path))
    assert done.returncode != 0
    assert done.stdout.startswith(f"autoseg: {path}: ")


def own_data(folder: Path, val: int) -> dict[str, Any]:
    """Make a data set of this many validation images, and return it as a section of a config."""
    for split, count in (("train", 6), ("val", val)):
        for kind, mode in (("images", "RGB"), ("masks", "L")):
            (folder / kind / split).mkdir(parents=True)
            for number in range(count):
                Image.new(mode, (32, 32)).save(folder / kind / split / f"{split}{number}.png")
    (folder / "classes.txt").write_text("ground\nthing\n")
    options = {
        "root": str(folder),
        "classes": str(folder / "classes.txt"),
        "split": {split: f"images/{split},masks/{split}" for split in ("train", "val")},
    }
    return {"kind": "folder", "options": options, "proxy_size": 16, "hold_out": 2}


def with_gallery(folder: Path, images: int) -> Pipeline:
    config = content("tiny")
    config["datasets"]["scenes"] = own_data(folder, 3)
    config["figures"]["gallery"]["images"] = images
    return load_pipeline(config, "the config")


def test_a_gallery_of_files_on_disk_is_counted_before_the_first_job(tmp_path):
    pipeline, layout = with_gallery(tmp_path / "data", 4), Layout(str(tmp_path / "results"))
    check_before_start(pipeline, layout, ["scenes"], [], [], [])  # the gallery is not wanted
    with refused(where="figures.gallery: images", expected="at most 3"):
        check_before_start(pipeline, layout, ["scenes"], [], [], ["gallery", "curves"])


def test_a_gallery_of_a_prepared_data_set_is_counted_in_its_index(data, tmp_path):
    pipeline, layout = with_gallery(tmp_path / "data", 4), Layout(str(tmp_path / "results"))
    Path(layout.index("scenes")).parent.mkdir(parents=True)
    Path(layout.index("scenes")).write_bytes((data / "index.json").read_bytes())
    with refused(expected=f"at most {len(Index.load(data / 'index.json').splits['val'])}"):
        check_before_start(pipeline, layout, [], [], [], ["gallery"])


# ------------------------------------------------------------------------------------------------------------- API


@pytest.mark.parametrize("dtype", ["bool", "complex64"])
def test_theta_of_an_array_or_tensor_that_is_no_numbers_is_refused(dtype):
    import numpy as np
    import torch

    for theta in (np.ones(12, dtype), torch.ones(12, dtype=getattr(torch, dtype))):
        with refused(where="theta"):
            Surrogate.make("mIoU", theta)


def test_arguments_that_lie_are_refused_by_their_names():
    import torch

    from autoseg import SegmentationMetrics, SurrogateLoss
    from autoseg.search.sampler import PPO2Sampler

    for path in (None, 3, True, ["a"], float("nan")):
        with refused(expected="path"):
            SurrogateLoss.load(path)
    for name in ("sync", "check_labels"):
        with refused(where=name):
            SurrogateLoss("mIoU", **{name: "a"})
    with refused(where="tolerance"):
        SurrogateLoss("BF1", tolerance=10**30)
    target = torch.zeros(1, 4, 4, dtype=torch.long)
    quantised = torch.quantize_per_tensor(target.float(), 1.0, 0, torch.quint8)
    for bad in (target.to_sparse(), target.to("meta"), quantised):
        with refused(where="target"):
            SurrogateLoss("mIoU")(torch.zeros(1, 2, 4, 4), bad)
        for where, maps in (("pred", (bad, target)), ("target", (target, bad))):
            with refused(where=where):
                SegmentationMetrics(num_classes=3).update(*maps)
    from optuna.distributions import FloatDistribution

    with refused(where="initial_mean"):
        PPO2Sampler({"x": FloatDistribution(0, 1)}, initial_mean=3)
    with refused(where="search_space"):
        PPO2Sampler({1: FloatDistribution(0, 1)})


class Odd:
    """Pretends to be a sequence."""

    def __repr__(self) -> str:  # without its address: every test process must find the same names of tests
        return "Odd()"

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> None:
        raise RuntimeError("odd")


def odd_values() -> list[Any]:
    """Return values that raise where they are compared, counted or asked whether they are true."""
    arrays = [np.array([1, 2]), np.array([]), torch.zeros(2), torch.zeros(0)]
    return [*arrays, {}, {"a": 1}, [1, 2], set(), Odd(), b"a", 1j]


@pytest.mark.parametrize(
    "name",
    [
        *("empty", "sync", "per_image", "volumes", "absent", "pick", "independent_sampler", "out", "workers"),
        *("trials_per_gpu", "progress", "loss", "mode", "class_weights", "layout", "family", "theta", "conventions"),
    ],
)
@pytest.mark.parametrize("value", odd_values(), ids=repr)
def test_odd_objects_are_refused_by_the_name_of_their_argument(name, value):
    from optuna.distributions import FloatDistribution

    from autoseg import PPO2Sampler, SegmentationMetrics, build_loss
    from autoseg.search.notebook import search

    calls: dict[Callable[..., Any], tuple[str, ...]] = {
        partial(SegmentationMetrics, 2): ("empty", "sync", "per_image", "volumes", "absent"),
        partial(PPO2Sampler, {"x": FloatDistribution(0, 1)}): ("pick", "independent_sampler"),
        partial(search, lambda loss: 0.5, "mIoU"): ("out", "workers", "trials_per_gpu", "progress", "loss"),
        partial(build_loss, "ce"): ("mode", "class_weights"),
        partial(Surrogate.make, "mIoU"): ("layout", "family", "theta", "conventions"),
    }
    right = {"class_weights": "[1, 2] array([1, 2])", "conventions": "{}", "loss": "{}"}  # these are what is wanted
    if repr(value) in right.get(name, ""):
        return
    with pytest.raises(InputError) as error:
        next(call for call, names in calls.items() if name in names)(**{name: value})
    assert name in str(error.value) or "unknown key 'a'" in str(error.value)


def test_small_floats_of_eight_bits_are_refused():
    from autoseg import SegmentationMetrics, build_loss

    small, target = torch.zeros(1, 2, 4, 4).to(torch.float8_e4m3fn), torch.zeros(1, 4, 4, dtype=torch.long)
    with refused(where="logits"):
        build_loss("ce")(small, target)
    with refused(where="target"):
        build_loss("naive:mIoU")(torch.zeros(1, 2, 4, 4), small)
    with refused(where="pred"):
        SegmentationMetrics(2).update(small[:, 0], target)
    with refused(where="target"):
        build_loss("naive:mIoU")(torch.zeros(1, 2, 4, 4), torch.zeros(1, 2, 4, 4).to_sparse())


def test_a_sentence_is_short_whatever_was_found():
    with pytest.raises(InputError) as error:
        load_pipeline({**content("tiny"), "tables": ["x" * 10_000] * 20}, "the config")
    assert len(str(error.value)) < 1200
    assert str(error.value).startswith("the config: tables: ")
    assert len(str(InputError("\n".join("abc") + "\n" * 300, where="logits", expected="a tensor")).splitlines()) < 30


@pytest.mark.parametrize("value", [["mIoU"], {"kind": None}])
def test_a_value_of_for_that_is_no_name_is_refused(value):
    config = content("tiny")
    config["searches"] = {"{m}": {**next(iter(config["searches"].values())), "for": {"m": [value, value]}}}
    with refused(where="for"):
        load_pipeline(config, "the config")


@pytest.mark.parametrize("name", ["", " ", "a\nb", None, 3, "a:b", "../x", "a/b", "a+b", "2*a"])
def test_a_metric_has_a_plain_name(name):
    from autoseg import Formula, register

    with refused(where="register"):
        register(Formula(name, lambda y_hat, y, ops: {"a": y}, lambda s: s["a"]))
    with refused(where="register"):
        register(name)


@pytest.mark.parametrize("part", ["per_class", "weight"])
@pytest.mark.parametrize(
    "value", [None, 0.5, [0.5] * 3, "a", "seven", "scalar", "int", "bool", "complex"], ids=lambda value: str(value)
)
def test_a_formula_with_a_wrong_return_is_refused_by_the_name_of_its_part(part, value):
    import torch

    from autoseg import Formula, SurrogateLoss, register

    wrong = {
        "seven": lambda s: torch.zeros(7),
        "scalar": lambda s: s["both"].sum(),
        "int": lambda s: s["both"].long(),
        "bool": lambda s: s["both"] > 0,
        "complex": lambda s: s["both"] * 1j,
    }
    parts = {"per_class": lambda s: s["both"] / (s["size"] + 1), part: wrong.get(str(value), lambda s: value)}
    sums = {"sums": lambda y_hat, y, ops: {"both": ops.AND("AND", y_hat, y), "size": y_hat + y}}
    metric = register(Formula("lies", **sums, **parts), replace=True)
    labels = torch.zeros(1, 4, 4, dtype=torch.long)
    with refused(where=f"lies: {part}"):
        metric.evaluate(labels, labels, 3)
    with refused(where=f"lies: {part}"):
        SurrogateLoss("lies")(torch.zeros(1, 3, 4, 4, requires_grad=True), labels)


@pytest.mark.parametrize("value", [None, [], {}, {"a": "b"}, {"a": 1.0}], ids=str)
def test_sums_that_are_no_maps_are_refused(value):
    import torch

    from autoseg import Formula

    labels = torch.zeros(1, 4, 4, dtype=torch.long)
    with refused(where="lies: sums"):
        Formula("lies", lambda y_hat, y, ops: value, lambda s: s["a"]).evaluate(labels, labels, 3)


@pytest.mark.parametrize("more", [["a.json"], ["--table", "main"]])
def test_a_table_of_the_paper_takes_no_other_numbers(more, capsys):
    assert main(["table", "--published", "main", *more]) == 2
    assert "the paper" in capsys.readouterr().err
