"""The report: one page that stands alone, whole also when half of the results are missing or broken."""

from __future__ import annotations

import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from autoseg.cli import main
from autoseg.report import facts
from autoseg.report.page import make_all, write_report
from autoseg.report.results import Results
from autoseg.report.searches import diverged_trials, search_so_far
from tests.pipeline_runs import TINY, changed, content, snakemake
from tests.small_results import make_results, scores

LOG = """Error in rule trials:
    message: None
    jobid: 7
    output: results/tiny/searches/mIoU/step-001/chunk-0-of-2.json
    log: results/tiny/logs/a.log (check log file(s) for error details)

Trying to restart job 7.
"""


def config() -> dict:
    """The tiny config with two of its figures: galleries need networks, and every figure its time."""
    tiny = content("tiny")
    return {**tiny, "figures": {name: tiny["figures"][name] for name in ("curves", "classes")}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_results(config(), tmp_path_factory.mktemp("made"))


@pytest.fixture
def results(made, tmp_path):
    """Results of the test's own."""
    shutil.copytree(made.folder, tmp_path / "results/tiny")
    return Results(made.pipeline, tmp_path / "results/tiny", made.config)


class Page(HTMLParser):
    """What a page asks for, its ids and where its links go; and whether its tags close."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources, self.ids, self.links, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.sources += [found["src"]] if "src" in found else []
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(results, **options) -> tuple[str, Page]:
    write_report(results, results.folder / "report.html", **options)
    text = (results.folder / "report.html").read_text()
    return text, Page(text)


def test_the_page_is_whole_and_asks_nothing_of_the_network(results):
    make_all(results)
    text, page = read(results)
    assert page.open == []
    assert all(source.startswith("data:image/") for source in page.sources)
    assert len(page.sources) == len(results.pipeline.figures) + len(results.pipeline.searches)
    assert len(set(page.ids)) == len(page.ids)
    for link in page.links:
        assert link == "data:," or (results.folder / link).exists() or link.removeprefix("#") in page.ids, link
    assert "To know first" not in text
    for name in results.pipeline.searches:
        selected = search_so_far(results.layout.search(name), results.pipeline.search(name)).selected()
        assert re.search(rf"Selected: {selected.origin}.* {100 * selected.score:.2f} %", text, re.DOTALL)
    assert {"tables", "figures", "searches", "failures", "reproduce", "run", "metrics"} <= set(page.ids)
    assert "Search 'mIoU': 1 trial diverged" in html.unescape(text)


def test_every_cell_leads_to_the_command_that_makes_it(results):
    text, _ = read(results)
    for run in results.table("main").runs:
        command = results.command_for(results.targets.scores(run.name))
        assert command in text
        anchor = re.search(rf"<tr id='([^']+)'>(?:(?!</tr>).)*{re.escape(command)}", text, re.DOTALL)[1]
        assert f"href='#{anchor}'" in text


def test_commands_say_what_snakemake_was_told_beside_the_config(made, results):
    told = Results(made.pipeline, results.folder, "paper.yaml", ["preset=release", "name=tiny"])
    text, _ = read(told)
    assert "snakemake --cores all --configfile paper.yaml --config preset=release name=tiny -- " in text
    for folder in ("results/other", "/some/where/results/other"):
        other = Results(made.pipeline, folder, "demo.yaml")
        assert other.command_for(other.targets.report) == (
            "snakemake --cores all --config name=other -- results/other/report.html"
        )


def test_the_pipeline_says_what_it_was_told(tmp_path):
    told = ("--configfile", str(TINY), "--config", "name=mine")
    done = snakemake(tmp_path, "-n", "-p", *told, "--", "results/mine/report.html")
    assert re.search(r"autoseg report .*--snakemake-config name=mine", done.stdout)


def test_with_half_of_everything_missing_the_page_is_built_and_says_so(results):
    runs = list(results.pipeline.runs.values())
    for run in runs[::2]:
        results.scores(run).unlink()
    shutil.rmtree(results.layout.search("mIoU"))
    (Path(results.layout.surrogate("mAcc"))).unlink()
    make_all(results)
    (results.folder / "figures/classes.svg").unlink()
    text, page = read(results)
    assert page.open == []
    assert "2 of 4 runs are scored, 0 of 2 searches finished" in text
    known = html.unescape(re.search("<div class='warning'>.*?</div>", text, re.DOTALL)[0])
    for place, cure in {
        "table 'main'": "tables/main.md",
        "figure 'classes'": "figures/classes.svg",
        "search 'mIoU'": "-- searches",
        "search 'mAcc'": "-- searches",
    }.items():
        assert re.search(rf"<li>{place}.*{cure}", known), place


def test_with_nothing_at_all_the_page_is_built(made, tmp_path):
    results = Results(made.pipeline, tmp_path / "a", made.config)
    make_all(results)
    text, page = read(results)
    assert page.open == []
    assert "0 of 4 runs are scored" in text


def test_broken_and_foreign_scores_are_named_and_skipped(results):
    first, second, third, _ = results.pipeline.runs.values()
    (results.scores(first)).write_text("{")
    (results.scores(second)).write_text(json.dumps(scores(third)))
    (results.scores(third)).write_text(json.dumps(scores(third, 77.77, diverged=True)))
    places = [str(results.scores(run)) for run in (first, second)]
    assert {problem.where for problem in make_all(results)} >= set(places)
    text = html.unescape(read(results)[0])
    assert all(f"<li>{place}: " in text for place in places)
    assert "2 of 4 runs are scored" in text
    assert "77.77" in text  # the copy in another run's folder does not stand for the run itself
    assert f"Run <code>{third.name}</code> diverged" in text


def test_a_score_that_was_changed_after_the_next_step_is_named_and_tells_no_story(results):
    path = Path(results.layout.search("mIoU")) / "step-001/trial-0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "score": 0.9}))
    text, page = read(results)
    assert page.open == []
    assert "<li>search 'mIoU'" in html.unescape(text)
    assert text.count("Selected: ") == len(results.pipeline.searches) - 1


def test_scores_of_no_run_of_the_config_are_named(results):
    for name in ("old/tiny/ce/seed-0", *(f"old/tiny/ce/seed-{k}" for k in range(1, 5))):
        path = results.folder / "runs" / name / "scores.json"
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    text, _ = read(results)
    assert f"<code>{results.folder}/runs/old/tiny/ce/seed-0/scores.json</code>" in text
    assert f"<code>{results.folder}/runs/old/tiny/ce/seed-3/scores.json</code>" not in text
    assert "and 2 more." in text


def test_what_users_write_cannot_break_the_page(tmp_path):
    tiny = changed(config(), "tables", "main", "title", "</table><script>alert(1)</script>")
    tiny["tables"]["main"]["rows"][0] = {"loss": "ce", "label": "<b>bold & 'quoted'"}
    text, page = read(make_results(tiny, tmp_path / "a"))
    assert page.open == []
    assert "<script>alert" not in text
    assert "<b>bold" not in text


def test_failures_and_retries_are_read_from_snakemakes_logs(results, tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "1.snakemake.log").write_text(LOG + LOG)
    (logs / "2.snakemake.log").write_text(LOG.replace("results/tiny", "results/other"))
    (failure,), retries = facts.failures(logs, "tiny")
    assert (failure.rule, failure.times, retries) == ("trials", 2, 2)
    text, _ = read(results, snakemake_logs=logs)
    assert (
        "Rule trials failed 2 times making <code>results/tiny/searches/mIoU/step-001/chunk-0-of-2.json</code>" in text
    )
    assert "Snakemake tried 2 jobs again" in text
    assert diverged_trials(results.layout.search("mIoU")) == [1]


def test_times_of_jobs_are_summed_by_stage(tmp_path):
    for name, seconds in (("runs/a.tsv", "1800"), ("runs/b.tsv", "1800.0"), ("report.tsv", "-")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:30:00\t2048\n")
    stages = {stage.name: stage for stage in facts.stages(tmp_path)}
    assert (stages["runs"].jobs, stages["runs"].hours, stages["runs"].memory) == (2, 1.0, 2.0)
    assert stages["report"].hours == 0
    assert list(stages) == ["runs", "report"]  # as they follow each other


def test_the_verb_makes_everything_from_a_config(results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config()))
    assert main(["report", "--config", "mine.yaml", "--make"]) == 0
    assert {path.name for path in (results.folder / "figures").iterdir()} >= {"curves.svg", "curves.png"}
    assert {path.name for path in (results.folder / "tables").iterdir()} >= {"main.md", "main.tex"}
    text = (results.folder / "report.html").read_text()
    assert "snakemake --cores all --configfile mine.yaml -- results/tiny/tables/main.md" in text
    assert main(["report", "--pipeline", json.dumps(config()), "--out", "b.html"]) == 0
    links = Page((tmp_path / "b.html").read_text()).links
    assert "results/tiny/tables/main.md" in links
    assert all(link.startswith(("#", "data:")) or (tmp_path / link).exists() for link in links)
