"""The report: one self-contained page of a pipeline's results, also when half of them are missing. No torch.

It has tables, figures and each search's story, with the paper's numbers beside ours; what is missing, what failed,
what was run where; and the command that makes each number again. `assets/report.html` holds the words.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoseg.errors import Problem, collect
from autoseg.files import atomic
from autoseg.pipeline.outputs import Run
from autoseg.report import drawing, facts, formats
from autoseg.report.figures import story_figure, write_figure
from autoseg.report.published import published_metrics
from autoseg.report.results import Results
from autoseg.report.score_files import ReadScores
from autoseg.report.searches import SearchSoFar, diverged_trials, gathered, percent, search_so_far
from autoseg.report.tables import FilledTable
from autoseg.report.templates import count, duration, render
from autoseg.report.verdict import verdicts
from autoseg.search.times import SearchTime, search_time

if TYPE_CHECKING:
    from autoseg.search.steps import Candidate

_UNFOLDED_STORIES = 6  # with more searches than this, each story is folded up
_SHOWN = 3  # of the files that belong to no run


@dataclass(frozen=True)
class _Picture:
    """A picture inside the page: its title, its media type and its bytes in base 64."""

    title: str
    kind: str
    code: str

    @classmethod
    def of(cls, title: str, kind: str, content: bytes) -> _Picture:
        return cls(title, kind, base64.b64encode(content).decode())


@dataclass(frozen=True)
class _Table:
    filled: FilledTable
    files: list[str]
    command: str


@dataclass(frozen=True)
class _Figure:
    picture: _Picture
    command: str


@dataclass(frozen=True)
class _Story:
    """A search that has begun; its picture and what it selected, if it has come so far."""

    name: str
    search: SearchSoFar
    time: SearchTime
    picture: _Picture | None
    selected: Candidate | None

    @property
    def selected_percent(self) -> float | None:
        """The score of what was selected, in percent."""
        return None if self.selected is None or self.selected.score is None else percent(self.selected.score)

    @property
    def step_rows(self) -> list[list[str]]:
        """Each step's number and its worst, average and best score, in percent."""
        shares = ((min(step.scores), step.average, max(step.scores)) for step in self.search.steps)
        return [[str(number), *(f"{percent(share):.2f}" for share in row)] for number, row in enumerate(shares, 1)]


@dataclass(frozen=True)
class _Account:
    """How a run's scores are made, and where they are shown; cells of tables link to its anchor."""

    run: Run
    places: list[str]
    state: str
    command: str

    @property
    def anchor(self) -> str:
        return _anchor(self.run.name)


def make_all(results: Results) -> list[Problem]:
    """Write every table and figure of the config from the files that are there; return what was left out, and why."""
    problems: list[Problem] = []
    for name in results.pipeline.tables:
        filled, read = results.filled(name)
        problems += read.problems.values()
        formats.write(filled, results.layout.table(name))
    for name, config in results.pipeline.figures.items():
        with collect(problems, f"figure '{name}'"):
            stem, window, network = results.layout.figure(name), results.window(config), results.network(config)
            write_figure(config, results.folder, stem, window=window, network=network)
    return problems


def write_report(
    results: Results, out: str | os.PathLike[str], snakemake_logs: str | os.PathLike[str] = ".snakemake/log"
) -> None:
    """Write the page from the results; it shows the figures that are in results/<name>/figures."""
    warnings: list[Problem] = []
    pipeline = results.pipeline
    searches = {name: search_so_far(results.layout.search(name), pipeline.search(name)) for name in pipeline.searches}
    read = results.read(pipeline.runs.values())
    tables, figures = _tables(results, Path(out), warnings), _figures(results, warnings)
    warnings += _strays(results)
    stories = [_story(results, name, one, warnings) for name, one in searches.items() if one.settings is not None]
    cure = f"`{results.command} -- searches` runs what is missing"
    lacks = [lack for one in searches.values() for lack in one.lacks]
    warnings += gathered([lack if lack.cure else replace(lack, cure=cure) for lack in lacks])
    failures, retries = facts.failures(Path(snakemake_logs), pipeline.name)
    text = render(
        "report.html",
        title=f"autoseg: {pipeline.name}",
        name=pipeline.name,
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        planned_runs=len(pipeline.runs),
        scored=len(read.scores),
        planned_searches=len(searches),
        finished=sum(one.answer is not None for one in searches.values()),
        trials=sum(len(step.scores) for one in searches.values() for step in one.steps),
        verdicts=verdicts(results),
        warnings=list(dict.fromkeys(warnings)),
        tables=tables,
        figures=figures,
        stories=stories,
        unfolded=len(stories) <= _UNFOLDED_STORIES,
        diverged_trials={name: found for name in searches if (found := diverged_trials(results.layout.search(name)))},
        diverged_runs=[one.run for one in read.scores.values() if one.diverged],
        failures=failures,
        retries=retries,
        accounts=_accounts(results, read),
        link=lambda run: f"#{_anchor(run)}",
        config_file=results.config,
        command=results.command,
        config_text=_config_text(results),
        facts=facts.read_facts(),
        devices=sorted({device for story in stories for device in story.time.devices}),
        stages=_stages(facts.stages(Path(results.layout.logs))),
        metrics=published_metrics(),
    )
    with atomic(out) as file:
        file.write(text)


def _anchor(run: str) -> str:
    return "run-" + re.sub(r"[^A-Za-z0-9_-]", "-", run)


def _strays(results: Results) -> list[Problem]:
    """Name the score files that belong to no run of the config, such as those of an older config."""
    known = {results.scores(run) for run in results.pipeline.runs.values()}
    found = [path for path in sorted(Path(results.layout.runs).rglob("scores.json")) if path not in known]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    shown = ", ".join(f"`{path}`" for path in found[:_SHOWN])
    return [Problem("left out, because they belong to no run of the config", shown + more)] if found else []


def _tables(results: Results, page: Path, warnings: list[Problem]) -> list[_Table]:
    found = []
    for name in results.pipeline.tables:
        filled, read = results.filled(name)
        command = results.command_for(results.targets.table(name, ".md"))
        files = [os.path.relpath(results.layout.table(name, suffix), page.parent) for suffix in formats.FORMATS]
        found.append(_Table(filled, files, command))
        warnings += read.problems.values()
        runs = dict.fromkeys(results.table(name).runs)
        if missing := len(runs) - len(read.scores) - len(read.problems):
            what = f"{count(missing, 'run')} without scores yet"
            warnings.append(Problem(f"table '{name}'", what, cure=f"`{command}` fills it"))
    return found


def _figures(results: Results, warnings: list[Problem]) -> list[_Figure]:
    found = []
    for name, config in results.pipeline.figures.items():
        command = results.command_for(results.targets.figure(name, ".svg"))
        photographs = config.kind == "gallery"  # smaller as PNG
        suffix, kind = (".png", "image/png") if photographs else (".svg", "image/svg+xml")
        path = Path(results.layout.figure(name, suffix))
        if path.exists():
            found.append(_Figure(_Picture.of(config.title or name, kind, path.read_bytes()), command))
        else:
            warnings.append(Problem(f"figure '{name}'", "not drawn yet", cure=f"`{command}` draws it"))
    return found


def _story(results: Results, name: str, search: SearchSoFar, warnings: list[Problem]) -> _Story:
    picture = selected = None
    with collect(warnings):  # a score may have been changed after the next step was made from it
        if search.steps:
            with drawing.style():
                content = drawing.picture(story_figure(search), "svg")
            picture = _Picture.of(f"Search {name}", "image/svg+xml", content)
            selected = search.selected()
    return _Story(name, search, search_time(results.layout.search(name)), picture, selected)


def _accounts(results: Results, read: ReadScores) -> list[_Account]:
    places: dict[Run, list[str]] = {}
    for name in results.pipeline.tables:
        for run in dict.fromkeys(results.table(name).runs):
            places.setdefault(run, []).append(f"table {name}")
    for name, config in results.pipeline.figures.items():
        for run in config.runs:
            places.setdefault(run, []).append(f"figure {name}")
    found = []
    for run, shown in places.items():
        if run in read.scores:
            state = f"scored, fingerprint {read.scores[run].fingerprint[:12]}"
        else:
            state = str(read.problems.get(results.scores(run), "not yet"))
        found.append(_Account(run, shown, state, results.command_for(results.targets.scores(run.name))))
    return found


def _stages(stages: Iterable[facts.Stage]) -> list[list[str]]:
    rows = [
        [stage.name, str(stage.jobs), duration(stage.hours), f"{stage.memory:.2f}" if stage.memory else ""]
        for stage in stages
    ]
    if rows:
        together = duration(sum(stage.hours for stage in stages))
        rows.append(["together", str(sum(stage.jobs for stage in stages)), together, ""])
    return rows


def _config_text(results: Results) -> str:
    content: Any = results.pipeline.model_dump(mode="json", exclude_defaults=True)
    try:
        import yaml
    except ImportError:
        return json.dumps(content, indent=2)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
