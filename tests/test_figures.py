"""Figures: drawn from what is there, the same bytes for the same input, and what they lack is said."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from autoseg.cli import main
from autoseg.curves import CurveSpace
from autoseg.data.prepared import Prepared
from autoseg.paper import drawing, formats
from autoseg.paper.figures import (
    best_so_far,
    curve_figure,
    gathered,
    parse_figure,
    progress,
    proxy_figure,
    search_figure,
    surrogate_figure,
    write_figure,
)
from autoseg.paper.gallery import predict, spread
from autoseg.pipeline import Run
from autoseg.runs import evaluate_run, train_run
from autoseg.surrogate_json import PUBLISHED, Surrogate, published
from tests.pipeline_runs import content
from tests.small_results import make_results, make_search
from tests.small_task import make_data, small_task

RUNS = {"dataset": "scenes", "retraining": "tiny", "losses": {"Cross entropy": "ce", "Searched mIoU": "searched:mIoU"}}
PLANS = {
    "searches": {"kind": "searches", "title": "t", "lines": {"PPO2": ["mIoU"], "other": ["mAcc"]}},
    "repeats": {"kind": "searches", "lines": {"PPO2": ["mIoU", "mAcc"]}},
    "curves": {"kind": "curves", "searches": ["mIoU", "mAcc"]},
    "surrogate": {"kind": "surrogate", "loss": "searched:mIoU"},
    "published": {"kind": "surrogate", "loss": "published:BF1"},
    "classes": {"kind": "classes", **RUNS},
    "proxies": {"kind": "proxies", "table": "proxies"},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    results = make_results(content("tiny"), tmp_path_factory.mktemp("results"))
    for name in results.pipeline.tables:
        formats.write(results.filled(name)[0], results.folder / "tables" / name)
    return results


@pytest.mark.parametrize("name", PLANS)
def test_a_figure_is_drawn_to_the_same_bytes_again(made, name, tmp_path):
    plan = parse_figure(PLANS[name])
    for stem in ("a", "b"):
        assert write_figure(plan, made.folder, tmp_path / stem, ("png", "svg", "pdf")) == []
    for suffix, begin in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        first = (tmp_path / f"a.{suffix}").read_bytes()
        assert first.startswith(begin)
        assert first == (tmp_path / f"b.{suffix}").read_bytes()
        assert not re.search(rb"20\d\d-\d\d-\d\d", first)  # no dates in it


def test_repeats_of_a_search_are_a_band_from_worst_to_best(made):
    with drawing.style():
        figure, lacks = search_figure(parse_figure(PLANS["repeats"]), made.folder / "searches")
    (band,) = figure.axes[0].collections
    means = [best_so_far(progress(made.search(name)).steps) for name in ("mIoU", "mAcc")]
    heights = band.get_paths()[0].vertices[:, 1]
    assert lacks == []
    assert (heights.min(), heights.max()) == pytest.approx((np.min(means), np.max(means)))


def test_the_papers_proxies_stand_beside_ours(tmp_path):
    config = content("tiny")
    config["tables"]["proxies"] |= {"paper": "proxies"}
    results = make_results(config, tmp_path / "results")
    formats.write(results.filled("proxies")[0], results.folder / "tables/proxies")
    with drawing.style():
        figure, lacks = proxy_figure(parse_figure(PLANS["proxies"]), results.folder / "tables/proxies.csv")
    points = [tuple(float(z[0]) for z in line.get_data()) for line in figure.axes[0].lines if len(line.get_xdata())]
    assert lacks == []
    assert (8 * 8.5, 80.97) in points  # eight GPUs for 8.5 hours
    assert len(points) == 2


@pytest.mark.parametrize("name", PLANS)
def test_with_nothing_there_a_figure_is_drawn_and_says_what_it_lacks(name, tmp_path):
    lacks = write_figure(parse_figure(PLANS[name]), tmp_path / "nothing", tmp_path / "a", ("svg",))
    assert (tmp_path / "a.svg").exists()
    assert bool(lacks) == (name != "published")


def test_what_a_figure_lacks_is_not_written_over_its_legend(tmp_path):
    with drawing.style():
        figure, lacks = curve_figure(parse_figure(PLANS["curves"]), tmp_path)
        drawing.remark(figure, gathered(lacks))
    assert figure.legends[0].get_title().get_text() == "searches mIoU, mAcc have not begun"
    assert figure.get_supxlabel() == ""


def test_a_search_that_is_half_done_is_drawn_as_far_as_it_goes(made, tmp_path):
    shutil.copytree(made.folder, tmp_path / "results")
    shutil.rmtree(tmp_path / "results/searches/mIoU")
    make_search(made.pipeline, "mIoU", tmp_path / "results/searches/mIoU", steps=1)
    found = progress(tmp_path / "results/searches/mIoU")
    assert len(found.steps) == 1
    assert found.lacks == ["search 'mIoU' has done 1 of 2 steps"]
    assert write_figure(parse_figure(PLANS["searches"]), tmp_path / "results", tmp_path / "a", ("svg",)) == found.lacks
    torn = tmp_path / "results/searches/mAcc/step-002/trial-3.json"
    torn.write_text("{")
    assert "trial-3.json: not readable as JSON" in progress(tmp_path / "results/searches/mAcc").lacks[0]


def test_the_search_curve_is_the_best_average_so_far(made):
    steps = progress(made.search("mIoU")).steps
    averages = [100 * step.average for step in steps]
    assert best_so_far(steps).tolist() == pytest.approx([averages[0], max(averages)])


@pytest.mark.parametrize("family", ["bezier", "linear"])
def test_curves_are_drawn_where_the_loss_has_them(family):
    rng = np.random.default_rng(0)
    y = np.linspace(0, 1, 257)
    for constraints in ({}, {"monotone": False}, {"monotone": False, "truth_table": False}):
        space = CurveSpace(family, **constraints)
        for _ in range(20):
            theta = rng.random(len(space.names))
            curve = space.curve(theta.tolist())
            drawn = drawing.evaluate(curve, y)
            np.testing.assert_allclose(drawn, curve(torch.tensor(y)).numpy(), atol=1e-6)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_surrogate_can_be_drawn(name):
    with drawing.style():
        figure = surrogate_figure(published(name))
        titles = [axes.get_title() for axes in figure.axes]
    assert sum("control points" in title for title in titles) == len(published(name).curves)


def test_control_points_include_the_ends():
    loss = Surrogate.make("mAcc", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    u, v = drawing.knots(loss.space, loss.curves["AND"])
    assert (u[0], v[0], u[-1], v[-1]) == (0, 0, 1, 1)
    assert len(u) == 5


def test_the_verb_draws_by_name_and_by_json(made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--results", str(made.folder), "--out", "a", "--format", "svg"]
    config = ["--config", "config.yaml"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content("tiny")))
    assert main(["figure", "--figure", "curves", *config, *arguments]) == 0
    assert main(["figure", "--figure", "curvs", *config, *arguments]) == 2
    assert "did you mean 'curves'" in capsys.readouterr().err
    assert main(["figure", "--figure", '{"kind": "curvs"}', *arguments]) == 2
    assert "curvs" in capsys.readouterr().err
    assert main(["figure", "--figure", "curves", "--out", "a"]) == 2
    assert "--config" in capsys.readouterr().err


def test_figures_but_galleries_need_no_torch(made, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    code = (
        "from autoseg.cli import main; import json, sys; "
        f"sys.exit(main(['figure', '--figure', json.dumps({PLANS['curves']!r}), '--results', {str(made.folder)!r}, "
        f"'--out', {str(tmp_path / 'a')!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_images_of_a_gallery_are_spread_over_the_set():
    ids = [str(k) for k in range(10)]
    assert spread(ids, 1) == ["0"]
    assert spread(ids, 4) == ["0", "3", "6", "9"]
    assert spread(ids, 99) == ids


def test_a_gallery_shows_what_the_networks_of_real_checkpoints_predict(tmp_path):
    data = make_data(tmp_path / "data/scenes")
    run = tmp_path / "runs" / Run("scenes", "tiny", "ce", 0).name
    train_run(small_task(data, iterations=2), "ce", run, progress=False)
    evaluate_run(small_task(data), run, run / "scores.json", predictions=tmp_path / "predicted")
    opened = Prepared.open(data)
    found = predict(run, opened, opened.ids("val"), None, torch.device("cpu"))
    for name, labels in zip(opened.ids("val"), found, strict=True):
        np.testing.assert_array_equal(labels, np.array(Image.open(tmp_path / f"predicted/{name}.png")))
    plan = parse_figure({"kind": "gallery", "images": 2, **RUNS})
    for stem in ("a", "b"):
        lacks = write_figure(plan, tmp_path, tmp_path / stem)
    assert len(lacks) == 1
    assert "'Searched mIoU' is not shown" in lacks[0]
    assert "run.json" in lacks[0]
    for suffix in ("png", "svg"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
