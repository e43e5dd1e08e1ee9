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
from autoseg.data.prepared import Prepared
from autoseg.losses.curves import CurveSpace
from autoseg.losses.published import PUBLISHED, published
from autoseg.losses.surrogate import Surrogate
from autoseg.pipeline.layout import Layout
from autoseg.pipeline.outputs import Run
from autoseg.report import drawing, formats
from autoseg.report.figures import (
    curve_figure,
    parse_figure,
    proxy_figure,
    search_figure,
    surrogate_figure,
    write_figure,
)
from autoseg.report.gallery import predict, spread
from autoseg.report.searches import search_so_far
from autoseg.training.run import evaluate_run, train_run
from tests.pipeline_runs import content
from tests.small_results import make_results, make_search
from tests.small_task import make_data, small_task

RUNS = {"dataset": "scenes", "retraining": "tiny", "losses": {"Cross entropy": "ce", "Searched mIoU": "searched:mIoU"}}
FIGURES = {
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


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_to_the_same_bytes_again(made, name, tmp_path):
    config = parse_figure(FIGURES[name])
    for stem in ("a", "b"):
        assert write_figure(config, made.folder, tmp_path / stem, ("png", "svg", "pdf")) == []
    for suffix, begin in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        first = (tmp_path / f"a.{suffix}").read_bytes()
        assert first.startswith(begin)
        assert first == (tmp_path / f"b.{suffix}").read_bytes()
        assert not re.search(rb"20\d\d-\d\d-\d\d", first)  # no dates in it


def test_repeats_of_a_search_are_a_band_from_worst_to_best(made):
    with drawing.style():
        figure, lacks = search_figure(parse_figure(FIGURES["repeats"]), made.layout)
    (band,) = figure.axes[0].collections
    means = [search_so_far(made.layout.search(name)).best_so_far for name in ("mIoU", "mAcc")]
    heights = band.get_paths()[0].vertices[:, 1]
    assert lacks == []
    assert (heights.min(), heights.max()) == pytest.approx((np.min(means), np.max(means)))


def test_the_papers_proxies_stand_beside_ours(tmp_path):
    config = content("tiny")
    config["tables"]["proxies"] |= {"paper": "proxies"}
    results = make_results(config, tmp_path / "results")
    formats.write(results.filled("proxies")[0], results.folder / "tables/proxies")
    with drawing.style():
        figure, lacks = proxy_figure(parse_figure(FIGURES["proxies"]), results.layout)
    points = [tuple(float(z[0]) for z in line.get_data()) for line in figure.axes[0].lines if len(line.get_xdata())]
    assert lacks == []
    assert (8 * 8.5, 80.97) in points  # eight GPUs for 8.5 hours
    assert len(points) == 2


@pytest.mark.parametrize("name", FIGURES)
def test_with_nothing_there_a_figure_is_drawn_and_says_what_it_lacks(name, tmp_path):
    lacks = write_figure(parse_figure(FIGURES[name]), tmp_path / "nothing", tmp_path / "a", ("svg",))
    assert (tmp_path / "a.svg").exists()
    assert bool(lacks) == (name != "published")


def test_what_a_figure_lacks_is_not_written_over_its_legend(tmp_path):
    with drawing.style():
        figure, lacks = curve_figure(parse_figure(FIGURES["curves"]), Layout(str(tmp_path)))
        drawing.remark(figure, [lack.where for lack in lacks])
    assert figure.legends[0].get_title().get_text() == "search 'mIoU'\nsearch 'mAcc'"
    assert figure.get_supxlabel() == ""


def test_a_search_that_is_half_done_is_drawn_as_far_as_it_goes(made, tmp_path):
    shutil.copytree(made.folder, tmp_path / "results")
    shutil.rmtree(tmp_path / "results/searches/mIoU")
    make_search(made.pipeline, "mIoU", tmp_path / "results/searches/mIoU", steps=1)
    found = search_so_far(tmp_path / "results/searches/mIoU", made.pipeline.search("mIoU"))
    assert (len(found.steps), found.planned, found.answer) == (1, 2, None)
    assert [(lack.where, lack.what) for lack in found.lacks] == [("search 'mIoU'", "1 of 2 steps done")]
    drawn = write_figure(parse_figure(FIGURES["searches"]), tmp_path / "results", tmp_path / "a", ("svg",))
    assert [lack.where for lack in drawn] == ["search 'mIoU'"]
    torn = tmp_path / "results/searches/mAcc/step-002/trial-3.json"
    torn.write_text("{")
    assert [lack.where for lack in search_so_far(tmp_path / "results/searches/mAcc").lacks] == [str(torn)]


def test_the_search_curve_is_the_best_average_so_far(made):
    found = search_so_far(made.layout.search("mIoU"))
    averages = [100 * step.average for step in found.steps]
    assert found.best_so_far == pytest.approx([averages[0], max(averages)])


def test_what_a_search_selected_is_what_its_file_holds(made):
    """Also the score, which is in the trials' files and, rounded, in the sentence of `source`."""
    for name in made.pipeline.searches:
        found = search_so_far(made.layout.search(name), made.pipeline.search(name))
        selected = found.selected()
        assert list(selected.theta) == found.answer.theta
        assert f"{selected.origin}, " in found.answer.source
        assert f" {selected.score:.6g}" in found.answer.source


@pytest.mark.parametrize("family", ["bezier", "linear"])
def test_curves_are_drawn_where_the_loss_has_them(family):
    rng = np.random.default_rng(0)
    y = np.linspace(0, 1, 257)
    for constraints in ({}, {"monotone": False}, {"monotone": False, "truth_table": False}):
        space = CurveSpace(family, **constraints)
        for _ in range(20):
            theta = rng.random(len(space.names))
            curve = space.curve(theta.tolist())
            drawn = curve(y)
            np.testing.assert_allclose(drawn, curve(torch.tensor(y)).numpy(), atol=1e-6)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_surrogate_can_be_drawn(name):
    with drawing.style():
        figure = surrogate_figure(published(name))
        titles = [axes.get_title() for axes in figure.axes]
    assert sum("control points" in title for title in titles) == len(published(name).curves)


def test_control_points_include_the_ends():
    loss = Surrogate.make("mAcc", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    u, v = loss.space.knots(loss.curves["AND"])
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
        f"sys.exit(main(['figure', '--figure', json.dumps({FIGURES['curves']!r}), '--results', {str(made.folder)!r}, "
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
    config = parse_figure({"kind": "gallery", "images": 2, **RUNS})
    for stem in ("a", "b"):
        lacks = write_figure(config, tmp_path, tmp_path / stem)
    assert len(lacks) == 1
    assert lacks[0].where.startswith("'Searched mIoU'")
    assert "run.json" in str(lacks[0])
    for suffix in ("png", "svg"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
