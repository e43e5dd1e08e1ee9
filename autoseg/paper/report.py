"""The report: one self-contained page of a pipeline's results, also when half of them are missing. No torch.

It has what was found, beside the paper's: tables, figures, each search's story; and what to know of it: what is
missing, what failed, what was run where, and how each number is made again.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from autoseg.errors import InputError
from autoseg.files import atomic
from autoseg.paper import definitions, drawing, facts, formats
from autoseg.paper.figures import Progress, gathered, progress, story_figure, write_figure
from autoseg.paper.formats import prose
from autoseg.paper.results import Results
from autoseg.pipeline import Run, table_runs
from autoseg.scores_json import Scores
from autoseg.times import SearchTime, search_time

_OPEN_STORIES = 6  # with more searches than this, each story is folded up
_SHOWN = 3  # of the files that belong to no run


def make_all(results: Results) -> None:
    """Write every table and figure of the config from what is there."""
    for name in results.pipeline.tables:
        filled, read = results.filled(name)
        for problem in read.problems:
            print(f"autoseg report: skipped {problem}", file=sys.stderr)
        formats.write(filled, results.folder / "tables" / name)
    for name, plan in results.pipeline.figures.items():
        try:
            write_figure(plan, results.folder, results.folder / "figures" / name, window=results.window(plan))
        except InputError as error:
            print(f"autoseg report: figure '{name}' is left out: {error}", file=sys.stderr)


def write_report(
    results: Results, out: str | os.PathLike[str], snakemake_logs: str | os.PathLike[str] = ".snakemake/log"
) -> None:
    """Write the page from the results; figures are those in results/<name>/figures."""
    tables, warnings = _tables(results)
    figures, missing = _figures(results)
    scores = _scores(results)
    found = {name: progress(results.search(name)) for name in results.pipeline.searches}
    begun = {name: one for name, one in found.items() if one.search is not None}
    times = {name: search_time(results.search(name)) for name in begun}
    stories = [_story(name, one, times[name], len(begun) <= _OPEN_STORIES) for name, one in begun.items()]
    warnings += missing + _strays(results)
    warnings += [_sentence(text) for text in gathered([text for one in begun.values() for text in one.lacks])]
    if waiting := [name for name in found if name not in begun]:
        warnings.append(
            f"Searches that have not begun: {', '.join(waiting)}; `{results.command} -- searches` runs them."
        )
    sections = [
        ("tables", "Tables", tables),
        ("figures", "Figures", figures),
        ("searches", "Searches", stories),
        ("failures", "Failures and retries", _failures(results, found, scores, Path(snakemake_logs))),
        ("reproduce", "How to make each number again", _reproduce(results, scores)),
        ("run", "What was run", _what_was_run(results, times)),
        ("metrics", "The metrics", [definitions.element()]),
    ]
    sections = [section for section in sections if section[2]]
    contents = "".join(f"<li><a href='#{key}'>{title}</a></li>" for key, title, _ in sections)
    name = html.escape(results.pipeline.name)
    head = (
        f"<header class='top'><h1>{name}</h1><p class='lead'>{_summary(results, found, scores)}</p></header>\n"
        f"<nav class='contents' aria-label='Contents'><ul>{contents}</ul></nav>\n"
    )
    body = "\n".join(f"<h2 id='{key}'>{title}</h2>\n" + "\n".join(parts) for key, title, parts in sections)
    alarm = "".join(f"<li>{prose(text)}</li>" for text in dict.fromkeys(warnings))
    notice = f"<div class='warning'><b>To know first</b><ul>{alarm}</ul></div>\n" if alarm else ""
    page = formats.page(f"autoseg: {results.pipeline.name}", f"{head}<main>\n{notice}{body}\n</main>")
    with atomic(out) as file:
        file.write(page)


def _scores(results: Results) -> dict[Run, Scores | InputError]:
    """Return the scores of every run that has a file of them, or what is wrong with that."""
    found: dict[Run, Scores | InputError] = {}
    for run in results.pipeline.runs.values():
        path = results.run(run) / "scores.json"
        if path.exists():
            try:
                found[run] = one = Scores.load(path)
            except InputError as error:
                found[run] = error
                continue
            if "/" in one.run and one.run != run.name:
                found[run] = InputError(f"{path}: holds the run '{one.run}', not the one of this folder.")
    return found


def _strays(results: Results) -> list[str]:
    """Name the score files in the results that are of no run of the config: of an older one, say."""
    known = {results.run(run) / "scores.json" for run in results.pipeline.runs.values()}
    found = [path for path in sorted((results.folder / "runs").rglob("scores.json")) if path not in known]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    shown = ", ".join(f"`{path}`" for path in found[:_SHOWN])
    return [f"Of no run of this config, and left out: {shown}{more}."] if found else []


def _summary(results: Results, found: dict[str, Progress], scores: dict[Run, Scores | InputError]) -> str:
    runs = len(results.pipeline.runs)
    scored = sum(isinstance(one, Scores) for one in scores.values())
    done = sum(one.answer is not None for one in found.values())
    trials = sum(len(step.scores) for one in found.values() for step in one.steps)
    return (
        f"{scored} of {runs} runs are scored, {done} of {len(found)} searches finished ({trials} trials). "
        f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by autoseg {facts.versions()['autoseg']}."
    )


# ------------------------------------------------------------------------------------------------ tables and figures


def _anchor(run: str) -> str:
    return "run-" + re.sub(r"[^A-Za-z0-9_-]", "-", run)


def _tables(results: Results) -> tuple[list[str], list[str]]:
    parts, warnings = [], []
    for name in results.pipeline.tables:
        filled, read = results.filled(name)
        parts.append(formats.element(filled, link=lambda run: f"#{_anchor(run)}"))
        stem = f"tables/{name}"
        links = ", ".join(f"<a href='{stem}{suffix}'>{suffix[1:]}</a>" for suffix in formats.FORMATS)
        command = html.escape(results.fills(f"{stem}.md"))
        parts.append(f"<p class='soft'>Files beside this page: {links}. Made by <code>{command}</code>.</p>")
        cure = "It is made again once it is deleted."
        warnings += [f"Table '{name}' skipped {problem} {cure}" for problem in read.problems]
        if missing := len(dict.fromkeys(table_runs(results.table(name)))) - len(read.scores) - len(read.problems):
            makes = results.fills(f"{stem}.md")
            warnings.append(f"Table '{name}': {_count(missing, 'run')} without scores yet; `{makes}` fills it.")
    return parts, warnings


def _figures(results: Results) -> tuple[list[str], list[str]]:
    parts, warnings = [], []
    for name, plan in results.pipeline.figures.items():
        target = f"figures/{name}.svg"
        picture = results.folder / target
        if plan.kind == "gallery":  # of photographs: smaller as PNG
            picture = picture.with_suffix(".png")
        if not picture.exists():
            warnings.append(f"Figure '{name}' is not drawn yet; `{results.fills(target)}` draws it.")
            continue
        kind = "image/png" if picture.suffix == ".png" else "image/svg+xml"
        title = plan.title or name
        parts.append(
            f"<figure>{_image(picture.read_bytes(), kind, title)}"
            f"<figcaption>{html.escape(title)}. Made by <code>{html.escape(results.fills(target))}</code>.</figcaption>"
            "</figure>"
        )
    return [f"<div class='figures'>{''.join(parts)}</div>"] if parts else [], warnings


def _image(content: bytes, kind: str, title: str) -> str:
    code = base64.b64encode(content).decode()
    return f"<img alt='{html.escape(title, quote=True)}' src='data:{kind};base64,{code}'>"


# ---------------------------------------------------------------------------------------------------------- searches


def _story(name: str, found: Progress, time: SearchTime, unfolded: bool) -> str:
    assert found.search is not None
    title, search, steps = html.escape(name), found.search, found.steps
    size = max((len(step.scores) for step in steps), default=0)
    text = [
        f"Target {search.metric}, sampler {search.sampler}: {len(steps)} of {found.planned} steps of {size} trials."
    ]
    if steps:
        averages = [step.average for step in steps]
        best = max(range(len(steps)), key=lambda k: averages[k])
        text.append(
            f"The average score went from {100 * averages[0]:.2f} % in the first step to {100 * averages[-1]:.2f} % in "
            f"the last; the best was {100 * averages[best]:.2f} % in step {best + 1}, the best single trial "
            f"{100 * max(score for step in steps for score in step.scores):.2f} %."
        )
    if found.answer:
        origin = found.answer.source.removeprefix(f"search '{name}': ")
        # In percent, as all scores here.
        origin = re.sub(r"score ([0-9.e-]+)", lambda match: f"score {100 * float(match[1]):.2f} %", origin)
        after = " (the mean that the last step led to)" if f"mean of step {len(steps) + 1}," in origin else ""
        text.append(f"Selected: {origin}{after}.")
    if time.hours:
        untimed = f" ({time.untimed} trials have no recorded time)" if time.untimed else ""
        text.append(f"Its trials took {_hours(time.hours)} on {', '.join(time.devices)}{untimed}.")
    text += [_sentence(lack) for lack in found.lacks]
    parts = [f"<p>{prose(' '.join(text))}</p>"]
    if steps:
        with drawing.style():
            picture = drawing.picture(story_figure(found), "svg")
        moved = "mean, the later the darker; thick, its" if search.sampler in ("ppo2", "cmaes") else ""
        caption = f"Left: every trial, by step. Right: the curves of the search's {moved} answer."
        image = _image(picture, "image/svg+xml", f"Search {name}")
        parts.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
        parts.append(_step_table(found))
    inner = "".join(parts)
    return f"<h3>{title}</h3>{inner}" if unfolded else f"<details><summary>{title}</summary>{inner}</details>"


def _step_table(found: Progress) -> str:
    rows = [
        [str(number), f"{100 * min(s.scores):.2f}", f"{100 * s.average:.2f}", f"{100 * max(s.scores):.2f}"]
        for number, s in enumerate(found.steps, start=1)
    ]
    table = _table(["step", "worst, %", "average, %", "best, %"], rows)
    return f"<details><summary>Scores by step</summary>{table}</details>"


# ------------------------------------------------------------------------------------------- failures, and the rest


def _failures(
    results: Results, found: dict[str, Progress], scores: dict[Run, Scores | InputError], logs: Path
) -> list[str]:
    lines = []
    for name in found:
        if numbers := diverged_trials(results.search(name)):
            shown = ", ".join(map(str, numbers[:20])) + (", ..." if len(numbers) > 20 else "")
            lines.append(f"Search '{name}': {_count(len(numbers), 'trial')} diverged, number {shown}.")
    lines += [
        f"Run `{one.run}` diverged; its scores are those of the weights it left."
        for one in scores.values()
        if isinstance(one, Scores) and one.diverged
    ]
    failed, retries = facts.failures(logs, results.pipeline.name)
    lines += [
        f"Rule {one.rule} failed {'once' if one.times == 1 else f'{one.times} times'} making `{one.output}`."
        for one in failed
    ]
    if retries:
        lines.append(f"Snakemake tried {_count(retries, 'job')} again.")
    if not lines:
        return ["<p>No training diverged, and no job failed that Snakemake's logs know of.</p>"]
    return ["<ul>" + "".join(f"<li>{prose(line)}</li>" for line in lines) + "</ul>"]


def diverged_trials(folder: Path) -> list[int]:
    """Return the numbers of a search's trials whose training diverged; what cannot be read is named elsewhere."""
    found = []
    for path in folder.glob("*/trial-*.json"):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and content.get("diverged") is True:
            found.append(int(content.get("number", -1)))
    return sorted(found)


def _reproduce(results: Results, scores: dict[Run, Scores | InputError]) -> list[str]:
    where: dict[Run, list[str]] = {}
    for name in results.pipeline.tables:
        for run in dict.fromkeys(table_runs(results.table(name))):
            where.setdefault(run, []).append(f"table {name}")
    for name, plan in results.pipeline.figures.items():
        for run in getattr(plan, "runs", []):
            where.setdefault(run, []).append(f"figure {name}")
    rows = []
    for run, places in where.items():
        one = scores.get(run)
        state = f"scored, fingerprint {one.fingerprint[:12]}" if isinstance(one, Scores) else str(one or "not yet")
        target = f"runs/{run.name}/scores.json"
        rows.append(
            f"<tr id='{_anchor(run.name)}'><th scope='row' class='text'>{html.escape(run.loss)}</th>"
            f"<td class='text'>{html.escape(f'{run.dataset}, {run.retraining}, seed {run.seed}')}</td>"
            f"<td class='text'>{html.escape(', '.join(places))}</td><td class='text long'>{html.escape(state)}</td>"
            f"<td class='text long'><code>{html.escape(results.fills(target))}</code></td></tr>"
        )
    heads = _heads(["loss", "trained on", "shown in", "state", "made by"])
    return [
        "<p>Delete a file and run its command: it, and what it needs, is made again. On a CPU to the same bytes.</p>",
        f"<div class='scroll' tabindex='0'><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>",
    ]


def _what_was_run(results: Results, times: dict[str, SearchTime]) -> list[str]:
    devices = sorted({device for time in times.values() for device in time.devices})
    known = {
        "config": f"`{results.config}`" if results.config else "",
        "command": f"`{results.command}`",
        "commit": facts.commit() or "",
        "versions": ", ".join(f"{name} {version}" for name, version in facts.versions().items()),
        "trials ran on": ", ".join(devices),
        "this page was made on": facts.machine(),
    }
    listed = "".join(f"<dt>{key}</dt><dd>{prose(value)}</dd>" for key, value in known.items() if value)
    parts = [f"<dl class='facts'>{listed}</dl>"]
    if stages := facts.stages(results.folder / "logs"):
        rows = [
            [stage.name, str(stage.jobs), _hours(stage.hours), f"{stage.memory:.2f}" if stage.memory else ""]
            for stage in stages
        ]
        jobs, hours = sum(stage.jobs for stage in stages), sum(stage.hours for stage in stages)
        rows.append(["together", str(jobs), _hours(hours), ""])
        parts.append("<h3>Time</h3>")
        parts.append(_table(["stage", "jobs", "time of all jobs", "greatest memory, GB"], rows, words=1))
    config = html.escape(_config_text(results))
    parts.append(f"<details><summary>The config, every search written out</summary><pre>{config}</pre></details>")
    return parts


def _config_text(results: Results) -> str:
    content = results.pipeline.model_dump(mode="json", exclude_defaults=True)
    try:
        import yaml
    except ImportError:
        return json.dumps(content, indent=2)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


def _hours(hours: float) -> str:
    """Return a time to read.

    >>> _hours(0.001), _hours(0.5), _hours(20)
    ('4 s', '30.0 min', '20.0 h')
    """
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.1f} min" if hours >= 1 / 60 else f"{3600 * hours:.0f} s"


def _sentence(text: str) -> str:
    """Return words as a sentence; a path at their beginning stays as it is."""
    return (text if "/" in text.split()[0] else text[0].upper() + text[1:]) + "."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _heads(names: Iterable[str]) -> str:
    return "".join(
        f"<th scope='col' class='text'><button type='button' data-column='{k}'>{html.escape(name)}</button></th>"
        for k, name in enumerate(names)
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 0) -> str:
    """Return a small table; the first `words` columns are words, the others numbers."""
    top = "".join(f"<th scope='col'{' class=text' if k < words else ''}>{head}</th>" for k, head in enumerate(heads))
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=text' if k < words else ''}>{html.escape(c)}</td>" for k, c in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<div class='scroll'><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
