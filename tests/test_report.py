"""The report: one page that stands alone, whole also when half of the results are missing or broken."""

from __future__ import annotations

import html
import json
import re
import shutil
from html.parser import HTMLParser

import pytest
import yaml

from autoseg.cli import main
from autoseg.paper import facts
from autoseg.paper.report import diverged_trials, make_all, write_report
from autoseg.paper.results import Results
from autoseg.pipeline import table_runs
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
    assert re.search(r"Selected: mean of step \d+, .*score \d+\.\d\d %", text)
    for words in ("How to make each number again", "The metrics", "What was run", "Search 'mIoU': 1 trial diverged"):
        assert words in html.unescape(text)


def test_every_cell_leads_to_the_command_that_makes_it(results):
    text, _ = read(results)
    for run in table_runs(results.table("main")):
        command = results.fills(f"runs/{run.name}/scores.json")
        assert command in text
        anchor = re.search(rf"<tr id='([^']+)'>(?:(?!</tr>).)*{re.escape(command)}", text)[1]
        assert f"href='#{anchor}'" in text


def test_commands_say_what_snakemake_was_told_beside_the_config(made, results):
    told = Results(made.pipeline, results.folder, "paper.yaml", ["preset=release", "name=tiny"])
    text, _ = read(told)
    assert "snakemake --cores all --configfile paper.yaml --config preset=release name=tiny -- " in text
    for folder in ("results/other", "/some/where/results/other"):
        assert Results(made.pipeline, folder, "demo.yaml").fills("report.html") == (
            "snakemake --cores all --config name=other -- results/other/report.html"
        )


def test_the_pipeline_says_what_it_was_told(tmp_path):
    told = ("--configfile", str(TINY), "--config", "name=mine")
    done = snakemake(tmp_path, "-n", "-p", *told, "--", "results/mine/report.html")
    assert re.search(r"autoseg report .*--set name=mine", done.stdout)


def test_with_half_of_everything_missing_the_page_is_built_and_says_so(results):
    runs = list(results.pipeline.runs.values())
    for run in runs[::2]:
        (results.run(run) / "scores.json").unlink()
    shutil.rmtree(results.search("mIoU"))
    (results.search("mAcc") / "surrogate.json").unlink()
    make_all(results)
    (results.folder / "figures/classes.svg").unlink()
    text, page = read(results)
    assert page.open == []
    assert "2 of 4 runs are scored, 0 of 2 searches finished" in text
    assert "Table &#x27;main&#x27;: 2 runs without scores yet; <code>snakemake --cores all --configfile" in text
    assert (
        "Searches that have not begun: mIoU; <code>snakemake --cores all --configfile config.yaml -- searches" in text
    )
    assert "Search &#x27;mAcc&#x27; has not selected its answer" in text
    assert "Figure &#x27;classes&#x27; is not drawn yet" in text


def test_with_nothing_at_all_the_page_is_built(made, tmp_path):
    results = Results(made.pipeline, tmp_path / "a", made.config)
    make_all(results)
    text, page = read(results)
    assert page.open == []
    assert "0 of 4 runs are scored" in text


def test_broken_and_foreign_scores_are_named_and_skipped(results):
    first, second, third, _ = results.pipeline.runs.values()
    (results.run(first) / "scores.json").write_text("{")
    (results.run(second) / "scores.json").write_text(json.dumps(scores(third)))
    (results.run(third) / "scores.json").write_text(json.dumps(scores(third, 77.77, diverged=True)))
    make_all(results)
    text = html.unescape(read(results)[0])
    assert re.search(rf"skipped {re.escape(str(results.run(first)))}/scores.json: not readable as JSON", text)
    assert re.search(rf"skipped {re.escape(str(results.run(second)))}/scores.json: holds the run '{third.name}'", text)
    assert "2 of 4 runs are scored" in text
    assert "77.77" in text  # the copy in another run's folder does not stand for the run itself
    assert f"Run <code>{third.name}</code> diverged" in text


def test_scores_of_no_run_of_the_config_are_named(results):
    for name in ("old/tiny/ce/seed-0", *(f"old/tiny/ce/seed-{k}" for k in range(1, 5))):
        path = results.folder / "runs" / name / "scores.json"
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    text, _ = read(results)
    assert f"Of no run of this config, and left out: <code>{results.folder}/runs/old/tiny/ce/seed-0/scores.json" in text
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
    assert diverged_trials(results.search("mIoU")) == [1]


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
    assert main(["report", "--config", json.dumps(config()), "--out", "b.html"]) == 0
    assert (tmp_path / "b.html").exists()
