"""The report in a browser: asks nothing of the network, complains of nothing, fits every width; its tables sort."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autoseg.report.page import make_all, write_report
from tests.page.browser import browser, why_not
from tests.pipeline_runs import content
from tests.small_results import make_results

pytestmark = [
    pytest.mark.page,
    pytest.mark.xdist_group("page"),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]

ROWS = [
    {"label": "Cross Entropy", "loss": "ce"},
    {"label": "Searched mIoU", "loss": "searched:mIoU"},
    {"label": "Searched BIoU", "loss": "naive:mIoU"},
    {"label": "Searched mAcc", "loss": "searched:mAcc"},
]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """A report with the paper's widest table, a score that is missing, and one that is broken."""
    config = content("tiny")
    del config["figures"]["gallery"]  # it needs networks
    config["retrainings"]["other"] = config["retrainings"]["tiny"]
    blocks = {"PASCAL VOC": "tiny", "Cityscapes": "other"}
    config["tables"]["wide"] = {
        "title": "The paper's widest table",
        "paper": "main",
        "columns": [{"label": label, "dataset": "scenes", "retraining": name} for label, name in blocks.items()],
        "rows": ROWS,
    }
    results = make_results(config, tmp_path_factory.mktemp("page") / "results/tiny")
    first, *_, last = (results.scores(run) for run in results.pipeline.runs.values())
    last.unlink()
    first.write_text("{")
    make_all(results)
    out = results.folder / "report.html"
    write_report(results, out)
    return out


@pytest.fixture(scope="module")
def chromium():
    with browser() as session:
        yield session


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_is_quiet_and_fits_the_window(page, chromium, width):
    chromium.open(page, width)
    assert chromium.requests() == [page.resolve().as_uri()]
    assert chromium.messages() == []
    for unfolded in ("false", "true"):
        chromium.run(f"for (const one of document.querySelectorAll('details')) one.open = {unfolded}")
        wide = chromium.run("return document.documentElement.scrollWidth")
        assert wide <= chromium.run("return document.documentElement.clientWidth") <= width
    # Also nothing but the tables' own frames is wider than the window.
    outside = chromium.run(
        "return [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre') &&"
        " e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert outside == []
    if folder := os.environ.get("PAGE_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        chromium.screenshot(Path(folder) / f"report-{width}.png")


def test_every_image_loads(page, chromium):
    chromium.open(page, 1280)
    widths = chromium.run("return [...document.images].map(image => image.complete ? image.naturalWidth : -1)")
    assert len(widths) >= 7
    assert min(widths) > 100


def in_table(chromium, title: str, script: str):
    """Run a script on the table of this title."""
    find = f"[...document.querySelectorAll('section.table')].find(s => s.innerText.includes('{title}'))"
    return chromium.run(f"const table = {find}.querySelector('table'); {script}")


def column(chromium, title: str, number: int) -> list[str]:
    shown = f"(row.cells[{number}].querySelector('.ours') ?? row.cells[{number}]).innerText.trim()"
    return in_table(chromium, title, f"return [...table.tBodies[0].rows].map(row => {shown})")


def press(chromium, title: str, number: int) -> None:
    in_table(chromium, title, f"table.querySelector('button[data-column=\"{number}\"]').click()")


def test_tables_sort_by_the_column_that_is_pressed(page, chromium):
    chromium.open(page, 1280)
    table = "The same DAG in seconds"
    before = column(chromium, table, 1)
    numbers = [float(text) for text in before if text]
    assert len(before) == len(numbers) + 1  # the broken one is empty
    press(chromium, table, 1)
    assert column(chromium, table, 1) == [f"{x:.2f}" for x in sorted(numbers, reverse=True)] + [""]
    press(chromium, table, 1)
    assert column(chromium, table, 1) == [f"{x:.2f}" for x in sorted(numbers)] + [""]
    press(chromium, table, 1)
    assert column(chromium, table, 1) == before
    press(chromium, table, 0)
    assert column(chromium, table, 0) == sorted(column(chromium, table, 0))
    for order in (True, False):  # what we have no score for stays at the end, though the paper has one
        press(chromium, "widest table", 12)
        *numbers, missing = column(chromium, "widest table", 12)
        assert missing == ""
        assert numbers == sorted(numbers, key=float, reverse=order)
    assert chromium.messages() == []


def test_rules_between_groups_are_gone_while_a_table_is_sorted(page, chromium):
    chromium.open(page, 1280)
    width = "return getComputedStyle(table.querySelector('tr.rule').cells[0]).borderTopWidth"
    assert in_table(chromium, "widest table", width) == "2px"
    press(chromium, "widest table", 1)
    assert in_table(chromium, "widest table", width) == "0px"


def test_the_page_is_dark_for_those_who_like_it_and_pictures_stay_readable(page, chromium):
    shades = (
        "const shade = (e) => getComputedStyle(e).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => +a + +b);"
        "return [document.body, document.querySelector('th[scope=row]'), document.images[0]].map(shade)"
    )
    try:
        chromium.prefer("dark")
        chromium.open(page, 1280)
        body, head, picture = chromium.run(shades)
        assert max(body, head) < 150
        assert picture == 3 * 255
    finally:
        chromium.prefer("light")
    chromium.open(page, 1280)
    assert chromium.run(shades)[:2] == [3 * 255, 3 * 255]


def test_a_score_leads_to_how_it_is_made(page, chromium):
    chromium.open(page, 1280)
    shown = chromium.run(
        "const link = document.querySelector('td .ours a'); link.click();"
        "return document.querySelector(link.getAttribute('href')).innerText"
    )
    assert "snakemake --cores all" in shown
