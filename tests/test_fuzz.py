"""Files and arguments that lie, by the hundred: no traceback, exit code 2, and every file as it was.

A table of mutations is tried on every JSON and YAML format, on weights and on images; hypothesis makes texts that no
table has. `make test` tries some of each, `make test-long` thousands.
"""

from __future__ import annotations

import copy
import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from autoseg import strict
from autoseg.cli import VERBS, main
from autoseg.data.prepared import Prepared
from autoseg.data.reading import Unreadable, decode_image, decode_mask
from autoseg.data.split import load_split
from autoseg.errors import InputError
from autoseg.files import parse, read_settings
from autoseg.losses.surrogate import Surrogate
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.outputs import Run
from autoseg.report.score_files import read_scores
from autoseg.search.folder import Folder
from autoseg.search.records import ChunkScores, TrialScore
from autoseg.search.settings import Search
from autoseg.search.steps import ask, select
from autoseg.training.run import Trained, load_trained
from tests.pipeline_runs import content
from tests.refusals import refused
from tests.small_results import scores

# What a value is replaced by.
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**63, -(2**70), 10**400, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", " ", "\n", "a\nb", "\ud800", "\0", "x" * 5000, "../../etc/passwd", "/dev/zero", "-1", "inf", "nan", "{", "é"),
    *([], {}, [[]], [None], {"": 1}, {"a": {"b": {}}}, [1, "a", None], "published:mIoU", "0 * ce", "-1 * ce"),
]
DEEP: Any = []
for _ in range(2000):
    DEEP = [DEEP]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a content."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:3]):
            yield from places(inner, (*path, number))


def mutated(content: Any, rng: random.Random) -> Any:
    """Return the content with one value replaced, removed, doubled or added."""
    new = copy.deepcopy(content)
    *above, last = rng.choice(list(places(new)))
    part = new
    for name in above:
        part = part[name]
    how = rng.choice(["replace"] * 6 + ["remove", "add", "nest"])
    if how == "remove":
        del part[last]
    elif how == "add" and isinstance(part, dict):
        part[rng.choice(["", "a\nb", "name", "extra", "\ud800", "x" * 300])] = rng.choice(VALUES)
    elif how == "nest":
        part[last] = [part[last]] if rng.random() < 0.5 else {"a": part[last]}
    else:
        part[last] = rng.choice(VALUES)
    return new


def torn(text: str, rng: random.Random) -> bytes:
    """Return a text with bytes cut off, changed or put in, a key doubled, or one of a kind that no writer makes."""
    raw = text.encode()
    place = rng.randrange(len(raw))
    first = text.find("{") + 1
    return rng.choice(
        [
            b"",
            raw[:place],
            raw[:place] + bytes([rng.randrange(256)]) + raw[place + 1 :],
            raw[:place] + rng.randbytes(4) + raw[place:],
            b"\xff\xfe" + raw,
            b"\x00" * 100,
            b"[" * 100_000,
            b'{"a":' * 100_000,
            b"9" * 10_000,
            b'"\\ud800"',
            (text[:first] + '"schema": 1, "schema": 2, ' + text[first:]).encode(),
        ]
    )


def trees(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def read_or_refuse(read: Callable[[], Any]) -> bool:
    """Return whether the reader took it; any error but an InputError fails the test."""
    try:
        read()
    except InputError as error:
        return bool(error.what.isspace())
    return True


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A prepared data set with its split, a finished search and its surrogate, and a table's score file."""
    root = tmp_path_factory.mktemp("made")
    size = ["--train", "6", "--val", "2", "--size", "32", "--proxy-size", "16", "--threads", "1"]
    assert main(["prepare", "synthetic", *size, "--out", str(root / "data")]) == 0
    assert main(["split", str(root / "data")]) == 0
    folder = Folder(root / "search")
    search = folder.start(Search(metric="mIoU", steps=1, trials_per_step=2))
    proposals = ask(search, [])
    folder.write(proposals)
    for trial in proposals.trials:
        score = TrialScore(number=trial.number, metric="mIoU", score=0.1 + 0.01 * trial.number)
        score.save(folder.score_path(1, trial.number))
    (root / "scores.json").write_text(json.dumps(scores(Run("d", "r", "ce", 0))))
    about = {"num_classes": 2, "iterations": 1, "test_scale": (64, 32), "weights": "0" * 64, "fingerprint": "f" * 64}
    Trained(dataset="d", network="tiny", loss="ce", seed=0, diverged=False, **about).save(root / "run.json")
    ChunkScores(scores={"trial-0.json": "a" * 64}).save(folder.step(1) / "chunk-0-of-1.json")
    select(search, folder.history(1)).save(folder.path / "surrogate.json")
    return root


def read_data(folder: Path) -> None:
    data = Prepared.open(folder / "data")
    load_split(folder / "data/split.json", data)
    cache = data.cache(32)
    for entry in data.index.entries():
        cache.read(entry.id)


def read_search(folder: Path) -> None:
    found = Folder(folder / "search")
    select(found.search(), found.history(1))


FORMATS: dict[str, Callable[[Path], Any]] = {
    "data/index.json": read_data,
    "data/source.json": read_data,
    "data/split.json": read_data,
    "data/cache-32.json": read_data,
    "search/search.json": read_search,
    "search/step-001/proposals.json": read_search,
    "search/step-001/trial-0.json": read_search,
    "search/step-001/chunk-0-of-1.json": lambda folder: ChunkScores.load(folder / "search/step-001/chunk-0-of-1.json"),
    "scores.json": lambda folder: read_scores([Run("d", "r", "ce", 0)], [folder / "scores.json"], strict=True),
    "run.json": load_trained,
    "search/surrogate.json": lambda folder: Surrogate.load(folder / "search/surrogate.json"),
}


def lie(made: Path, name: str, times: int, seed: int) -> int:
    """Read a file with so many mutations, one by one; return how many were refused."""
    path, good = made / name, (made / name).read_text()
    rng, count = random.Random(f"{name}{seed}"), 0
    try:
        for turn in range(times):
            if turn % 3:
                path.write_text(json.dumps(mutated(json.loads(good), rng)), encoding="utf-8", errors="surrogatepass")
            else:
                path.write_bytes(torn(good, rng))
            count += not read_or_refuse(lambda: FORMATS[name](made))
    finally:
        path.write_text(good)
    return count


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_lies_is_refused_or_read_but_never_a_traceback(name, made):
    assert lie(made, name, 40, 0) > 10
    FORMATS[name](made)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_lies_a_thousand_times(name, seed, made):
    assert lie(made, name, 1000, seed) > 200


def configs_that_lie(times: int, seed: int) -> int:
    rng, good, count = random.Random(seed), content("tiny"), 0
    for _ in range(times):
        given = mutated(good, rng)
        count += not read_or_refuse(lambda given=given: load_pipeline(given, "the config"))
    return count


def test_a_config_that_lies_is_refused_or_read_but_never_a_traceback():
    assert configs_that_lie(150, 0) > 50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 9))
def test_a_config_that_lies_a_thousand_times(seed):
    assert configs_that_lie(1000, seed) > 300


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("datasets", "{first}", "hold_out"), True, "hold_out"),
        (("proxies", "{first}", "training", "lr"), float("inf"), "lr"),
        (("proxies", "{first}", "training", "crop"), [8, 8], "training.crop"),
        (("proxies", "{first}", "training", "iterations"), True, "iterations"),
        (("searches", "{first}", "for"), {}, "for"),
        (("searches", "{first}", "for"), {"m": []}, "for"),
        (("searches", "{first}", "search", "ppo2"), {"name": "paper"}, "ppo2"),
        (("searches", "{first}", "search", "initial"), [0.5], "initial"),
        (("searches", "{first}", "search", "initial"), "no-such.json", "initial"),
        (("plugins",), [""], "plugin"),
        (("name",), "two\n", "name"),
        (("tables", "{first}", "rows"), ["0 * ce"], "loss"),
        (("tables", "{first}", "rows"), ["ce + -1 * dice"], "loss"),
        (("tables", "{first}", "rows"), ["no-such.json"], "no-such.json"),
    ],
)
def test_a_key_of_a_config_is_named(path, value, where):
    config = content("tiny")
    *above, last = path
    part = config
    for name in above:
        part = part[next(iter(part)) if name == "{first}" else name]
        if name == "proxies":
            continue
    part[last] = value
    with pytest.raises(InputError) as error:
        load_pipeline(config, "the config")
    assert where in f"{error.value.where} {error.value.what}"


def test_a_gallery_asks_for_no_more_images_than_there_are():
    config = content("tiny")
    table = next(iter(config["tables"].values()))
    block = table.get("columns", [table])[0]
    gallery = {"kind": "gallery", "losses": {"CE": "ce"}, "images": 10_000}
    config["figures"] = {"many": {**gallery, "dataset": block["dataset"], "retraining": block["retraining"]}}
    with refused(where="figures.many: images", expected="at most"):
        load_pipeline(config, "the config")


# ----------------------------------------------------------------------------------------------------------- texts

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # Texts as JSON and YAML may hold them: no half surrogates.
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)
QUICK = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))


def check_round_trip(value: Any) -> None:
    assert strict.loads(json.dumps(value)) == value


def check_any_text(text: str) -> None:
    for loads in (strict.loads, strict.loads_yaml):
        read_or_refuse(lambda loads=loads: loads(text))


def check_any_settings(value: Any) -> None:
    for model in (Search,):
        read_or_refuse(lambda model=model: parse(model, value, "file"))


test_plain_json_is_read_as_it_is = QUICK(given(plain)(check_round_trip))
test_any_text_is_read_or_refused = QUICK(
    given(st.text() | st.from_regex(r"[\[\]{}&*:,!\"'a0.e\n -]{0,40}"))(check_any_text)
)
test_any_settings_are_read_or_refused = QUICK(given(plain)(check_any_settings))
test_any_text_many_times = pytest.mark.long(
    LONG(given(st.text() | st.from_regex(r"[\[\]{}&*:,!\"'a0.e\n -]{0,60}"))(check_any_text))
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ('{"a": [1, NaN]}', "nan"),
        ('{"a": -Infinity}', "inf"),
        ('{"a": 1e999}', "inf"),
        ('{"a": 9223372036854775808}', "too large"),
        ('{"a": "\\ud800"}', "surrogate"),
        ("[" * 100 + "]" * 100, "too deep"),
        ("[" * 10**6, "too deep"),
        ("9" * 5000, "not readable"),
        ("", "not readable"),
    ],
    ids=lambda value: value[:20],
)
def test_json_that_lies_is_refused(text, what):
    with refused(what=what):
        strict.loads(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: 1\nb: 2\na: 3\n", "'a' occurs twice"),
        ("a: .inf", "inf"),
        ("a: 2026-11-18", "date"),
        ("a: !!binary aGVsbG8=", "found b"),
        ("a: !!python/object/apply:os.system [echo]", "not readable"),
        ("&a [*a]", "too deep"),
        (
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"{chr(98 + k)}: &{chr(98 + k)} [{','.join(['*' + chr(97 + k)] * 9)}]\n" for k in range(12)),
            "too many values",
        ),
        ("yes: 1", "True"),
        ("- a\nb: 1", "not readable"),
    ],
    ids=lambda value: value[:20],
)
def test_yaml_that_lies_is_refused(text, what):
    with refused(what=what):
        strict.loads_yaml(text)


def test_a_merge_key_of_yaml_may_be_overridden():
    assert strict.loads_yaml("base: &b {a: 1, c: 2}\nown: {<<: *b, a: 3}") == {
        "base": {"a": 1, "c": 2},
        "own": {"a": 3, "c": 2},
    }


@pytest.mark.parametrize("name", ["latin.yaml", "folder.yaml", "missing.yaml", "binary.json"])
def test_settings_that_cannot_be_read_are_named(name, tmp_path):
    (tmp_path / "latin.yaml").write_bytes("name: Köln".encode("latin-1"))
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "binary.json").write_bytes(bytes(range(256)))
    with refused(where=name):
        read_settings(tmp_path / name)


# ----------------------------------------------------------------------------------------------------------- verbs

BAD_WORDS = [
    "",
    " ",
    "\n",
    "-",
    "--",
    "nan",
    "inf",
    "-1",
    "1e9",
    "{",
    "[",
    "{}",
    "é",
    "x" * 5000,
    "/dev/null",
    "/",
    "..",
]


def commands(made: Path) -> dict[str, list[str]]:
    """Return a short command of every verb that neither trains nor sends anything; FUZZ is the word to replace."""
    data, search = str(made / "data"), str(made / "search")
    loss = str(made / "search/surrogate.json")
    return {
        "prepare": ["prepare", "synthetic", "--train", "FUZZ", "--out", f"{data}/FUZZ"],
        "split": ["split", data, "--hold-out", "FUZZ", "--out", "FUZZ"],
        "ask": ["ask", search, "--step", "2", "--settings", "FUZZ"],
        "trials": ["trials", search, "--step", "FUZZ", "--chunk", "FUZZ", "--data", data],
        "rescore": ["rescore", search, "--settings", "FUZZ"],
        "select": ["select", search, "--settings", "FUZZ"],
        "search": ["search", "FUZZ", "--settings", "FUZZ", "--objective", "FUZZ"],
        "tune": ["tune", "FUZZ", "--lr", "0.1", "FUZZ", "--trials", "2", "--chunk", "FUZZ", "--data", "FUZZ"],
        "weights": ["weights", "FUZZ", "--from", loss, "--out", f"{data}/FUZZ.safetensors"],
        "train": ["train", "--loss", "FUZZ", "--data", "FUZZ", "--out", "FUZZ"],
        "evaluate": ["evaluate", "FUZZ", "--data", data, "--scale", "FUZZ"],
        "table": ["table", loss, "--table", "FUZZ", "--strict"],
        "figure": ["figure", "--figure", "FUZZ", "--out", "FUZZ"],
        "report": ["report", "--config", "FUZZ"],
        "loss": ["loss", "show", "FUZZ"],
        "plan": ["plan", "--config", "FUZZ"],
        "doctor": ["doctor", "prepared", "FUZZ"],
        "resume": ["resume", "--name", "FUZZ"],
        "auto": ["auto", str(made / "search/FUZZ"), "--metric", "FUZZ", "--hours", "FUZZ", "--out", "FUZZ"],
        "fetch": ["fetch", "FUZZ", "--root", "FUZZ", "--from", "FUZZ"],
        "init": ["init", search + "/search.json/FUZZ"],
    }


def test_every_verb_has_a_command_to_lie_to(made):
    assert set(commands(made)) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_words_that_lie_end_in_exit_code_2_and_change_no_file(verb, made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = trees(made)
    for word in BAD_WORDS:
        try:
            code = main([part.replace("FUZZ", word) for part in commands(made)[verb]])
        except SystemExit as end:  # argparse's
            code = end.code
        assert code == 2, (verb, word)
        assert capsys.readouterr().err.strip()
        assert trees(made) == before, (verb, word)
        assert not list(tmp_path.rglob("*")), (verb, word)


# ---------------------------------------------------------------------------------------------- images and weights


def encoded(kind: str) -> bytes:
    rng = np.random.default_rng(0)
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (40, 30, 3), dtype=np.uint8)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("cut", [1, 2, 4, 8, 12, 13, 20, 100])
def test_an_image_without_its_last_bytes_is_named(kind, cut):
    whole = encoded(kind)
    decode_image(whole)
    decode_image(whole + b"\0\0 behind the end")
    with pytest.raises(Unreadable, match="truncated"):
        decode_image(whole[:-cut])


def test_a_png_that_says_it_is_huge_is_refused_before_it_is_decoded():
    raw = bytearray(encoded("PNG"))
    raw[16:24] = (2**31 - 1).to_bytes(4) * 2
    import zlib

    raw[29:33] = zlib.crc32(raw[12:29]).to_bytes(4)
    with pytest.raises(Unreadable, match="too large"):
        decode_image(bytes(raw))


def images_that_lie(times: int, seed: int) -> None:
    from autoseg.data.model import MaskValues

    rng = random.Random(seed)
    values = MaskValues(values={n: n for n in range(256)})
    for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP"):
        whole = encoded(kind)
        for _ in range(times):
            raw = bytearray(whole)
            for _ in range(rng.randrange(1, 6)):
                raw[rng.randrange(min(len(raw), 200) if rng.random() < 0.5 else len(raw))] = rng.randrange(256)
            for decode in (decode_image, lambda found: decode_mask(found, "index", values)):
                try:
                    decode(bytes(raw[: rng.choice([len(raw), rng.randrange(len(raw))])]))
                except Unreadable:
                    continue


def test_an_image_with_changed_bytes_is_decoded_or_unreadable():
    images_that_lie(10, 0)


@pytest.mark.long
def test_an_image_with_changed_bytes_a_thousand_times():
    images_that_lie(2000, 1)


def test_weights_that_are_no_weights_are_refused_with_the_name_of_the_tensor(tmp_path):
    import torch
    from safetensors.torch import save_file

    from autoseg.training import weights
    from autoseg.training.networks import build_network

    network = build_network("tiny", 2)
    good = {name: value.clone() for name, value in network.encoder.state_dict().items()}
    name = next(name for name, value in good.items() if value.is_floating_point() and value.numel() > 1)
    bad = good[name].clone()
    bad.view(-1)[0] = torch.nan
    for value in (
        bad,
        torch.full_like(bad, torch.inf),
        torch.ones_like(bad, dtype=torch.int32),
        torch.ones_like(bad, dtype=torch.bool),
        torch.ones_like(bad, dtype=torch.complex64),
        torch.ones_like(bad).to_sparse(),
    ):
        torch.save({**good, name: value}, tmp_path / "w.pth")
        with refused(where="w.pth", what=name):
            weights.load_encoder(network.encoder, weights.read(tmp_path / "w.pth"), tmp_path / "w.pth")
    save_file({**good, name: bad}, tmp_path / "w.safetensors")
    with refused(what=name):
        weights.load_encoder(network.encoder, weights.read(tmp_path / "w.safetensors"), "w.safetensors")
    torch.save({1: bad}, tmp_path / "w.pth")
    with refused(where="w.pth", what="called 1"):
        weights.read(tmp_path / "w.pth")
    whole = (tmp_path / "w.safetensors").read_bytes()
    rng = random.Random(0)
    for raw in (
        b"",
        b"\0",
        whole[:100],
        whole[:-1],
        b"\xff" * 8 + whole[8:],
        *(torn("{}" * 50, rng) for _ in range(20)),
    ):
        for suffix in (".safetensors", ".pth"):
            (tmp_path / f"torn{suffix}").write_bytes(raw)
            with refused(where="torn"):
                weights.read(tmp_path / f"torn{suffix}")


def test_a_checkpoint_that_lies_is_not_restored(tmp_path):
    import torch

    from autoseg.training.checkpoint import Checkpoint

    network = torch.nn.Linear(2, 2)
    optimiser = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    network(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", "mine")
    checkpoint.save(network, optimiser, scaler, 7)
    device = torch.device("cpu")
    assert checkpoint.restore(network, optimiser, scaler, device) == 7
    good = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    before = copy.deepcopy(network.state_dict())
    nan = {"weight": torch.full((2, 2), torch.nan), "bias": torch.ones(2)}
    lies = [
        {"iteration": "7"},
        {"iteration": -1},
        {"iteration": True},
        {"network": None},
        {"network": nan},
        {"network": {**nan, "weight": torch.ones(3, 3)}},
        {"network": {"weight": torch.ones(2, 2)}},
        {"optimiser": {}},
        {"optimiser": {"state": {}, "param_groups": []}},
        {"optimiser": {"state": [], "param_groups": {}}},
    ]
    for change in lies:
        torch.save({**good, **change}, tmp_path / "checkpoint.pt")
        assert checkpoint.restore(network, optimiser, scaler, device) == 0
        assert all(torch.equal(network.state_dict()[key], value) for key, value in before.items())


# ------------------------------------------------------------------------------------------------------------- API


@pytest.mark.parametrize(
    "theta", [b"0" * 12, "1" * 12, [True] * 12, dict.fromkeys(range(12), 0.5), [float("nan")] * 12, [10**400] * 12]
)
def test_theta_that_is_no_numbers_is_refused_by_its_name(theta):
    with refused(where="theta"):
        Surrogate.make("mIoU", theta)


def test_a_surrogate_takes_other_conventions_and_no_other_curves():
    from autoseg import SurrogateLoss

    surrogate = Surrogate.make("BF1")
    assert SurrogateLoss(surrogate, tolerance=3).conventions.tolerance == 3
    assert SurrogateLoss(surrogate).conventions.tolerance == surrogate.conventions.tolerance
    with refused(what="its own parameters", expected="family"):
        SurrogateLoss(surrogate, family="linear")


def test_tensors_without_plain_data_are_refused_by_their_name():
    import torch

    from autoseg import SurrogateLoss

    loss, logits = SurrogateLoss("mIoU"), torch.zeros(1, 2, 4, 4)
    target = torch.zeros(1, 4, 4, dtype=torch.long)
    for bad in (logits.to_sparse(), logits.to("meta")):
        with refused(where="logits"):
            loss(bad, target)
    for bad in (target.to_sparse(), target.to("meta"), target.to(torch.complex64)):
        with refused(where="target"):
            loss(logits, bad)


@pytest.mark.parametrize("number", range(3))
def test_a_cache_that_does_not_fit_its_index_is_refused(number, made, tmp_path):
    shutil.copytree(made / "data", tmp_path / "data")
    path = tmp_path / "data/cache-32.json"
    layout = json.loads(path.read_text())
    slot = layout["slots"][0]
    if number == 0:
        slot["id"] = "another"
    elif number == 1:
        slot["offset"] = 10**12
    else:
        layout["slots"].append(slot)
    path.write_text(json.dumps(layout))
    with refused(where="cache-32"):
        Prepared.open(tmp_path / "data").cache(32)


def test_attributes_of_a_study_that_lie_are_refused_with_their_name():
    import optuna

    from autoseg.search.sampler import PPO2Sampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {name: optuna.distributions.FloatDistribution(0, 1) for name in "xy"}
    sampler = PPO2Sampler(space, trials_per_step=2, steps=3, seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1) + trial.suggest_float("y", 0, 1), n_trials=5)
    storage, number = study._storage, study._study_id
    good = storage.get_study_user_attrs(number)
    rng = random.Random(0)
    for key, value in good.items():
        for _ in range(40):
            storage.set_study_user_attr(number, key, mutated({"a": value}, rng).get("a"))
            read_or_refuse(lambda: sampler.best_mean(study))
            read_or_refuse(study.ask)
        storage.set_study_user_attr(number, key, value)
    policy = next(key for key in good if "policy" in key)
    for bad in (None, 3, {}, {**good[policy], "mu": [0.5]}, {**good[policy], "members": [99, 100]}):
        storage.set_study_user_attr(number, policy, bad)
        with refused(what="changed the attribute"):
            sampler.best_mean(study)
