"""The zoo as text: each surrogate, where it was searched, and what it scored beside others."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

from autoseg.errors import shown, unknown
from autoseg.losses import zoo
from autoseg.losses.published import PUBLISHED, published
from autoseg.metrics import formula
from autoseg.report.comparison import paired
from autoseg.report.published import published_table


def describe(only: Sequence[str] = ()) -> str:
    """Return every entry, then the authors' published surrogates, in words; or only those of some names or metrics."""
    entries, theirs = zoo.entries(), {name: published(name) for name in PUBLISHED}
    found = [({f"zoo:{name}", name, entry.loss.metric}, _entry(entry)) for name, entry in entries.items()]
    found += [({f"published:{name}", name, loss.metric}, _published(name)) for name, loss in theirs.items()]
    known = set[str]().union(*(names for names, _ in found))
    asked = {name.lower() for name in only}
    texts = [text for names, text in found if not asked or asked & {name.lower() for name in names}]
    metrics = {metric.lower(): metric for metric in formula.names()}
    for name in only:
        if name.lower() in {one.lower() for one in known}:
            continue
        if name.lower() not in metrics:
            raise unknown("surrogate or metric", name, known | set(metrics.values()))
        metric = metrics[name.lower()]
        texts.append(
            f"No surrogate for {metric} has a name yet. `naive:{metric}` is the one without parameters; what a search "
            "finds gets a name by `autoseg loss add`."
        )
    if not entries and not only:
        texts.insert(0, "No entries of files. `autoseg loss add FILE` adds one.")
    return shown("\n\n".join(texts)) + "\n"


def _entry(entry: zoo.Entry) -> str:
    lines = [f"zoo:{entry.name}  for {entry.loss.metric}"]
    if entry.searched is None:
        lines.append("  searched: not known")
    else:
        where = entry.searched
        lines.append(f"  searched: {where.data}; {where.network}; {where.trials} trials; again: {where.command}")
        lines.append(f"  config: {json.dumps(where.config)}")
    if entry.loss.source:
        lines.append(f"  answer: {entry.loss.source}")
    if not entry.evidence:
        lines.append("  scores: nothing was measured")
    for found in entry.evidence:
        lines += _measured(found)
        if not _beats_ce(found):
            lines.append(f"    note: it was not shown to beat cross entropy on {found.metric} on {found.data}")
    return "\n".join(lines)


def _beats_ce(found: zoo.Evidence) -> bool:
    """Return whether a loss is better than cross entropy for sure, as far as seeds can tell."""
    ours, theirs = ({int(k): v for k, v in found.scores.get(loss, {}).items()} for loss in ("this", "ce"))
    gain = paired(ours, theirs)
    return gain is not None and gain.verdict == "better"


def _measured(found: zoo.Evidence) -> list[str]:
    """Return what a loss scored on one data set, and by how much it differs from each rival."""
    ours = {int(seed): score for seed, score in found.scores["this"].items()}
    lines = [
        f"  {found.metric} on {found.data}, which it was not searched on; {found.network} ({found.command})",
        f"    this loss: {statistics.fmean(ours.values()):.2f}, mean of {len(ours)} seed{'s' * (len(ours) > 1)}",
    ]
    for loss, scores in found.scores.items():
        if loss != "this":
            theirs = {int(seed): score for seed, score in scores.items()}
            gain = paired(ours, theirs)
            verdict = f"; this is {gain.text}: {gain.verdict}" if gain else "; fewer than two common seeds tell nothing"
            lines.append(f"    {loss}: {statistics.fmean(theirs.values()):.2f}{verdict}")
    return lines


def _published(name: str) -> str:
    """Return a published surrogate with the paper's own numbers, which are one run each."""
    loss = published(name)
    lines = [f"published:{name}  for {loss.metric}", f"  searched: PASCAL VOC, by the authors. {loss.source}"]
    rows = {"searched": f"Searched {loss.metric}", "cross entropy": "Cross Entropy", "Dice": "DiceLoss"}
    table = published_table("main")
    printed = {label: table.cell(row, "PASCAL VOC", loss.metric) for label, row in rows.items()}
    scores = ", ".join(f"{label} {cell.text}" for label, cell in printed.items() if cell is not None)
    lines.append(f"  {loss.metric} on PASCAL VOC, the paper's numbers, one run each, not measured here: {scores}")
    for found in zoo.measured(name):
        lines += _measured(found)
    return "\n".join(lines)
