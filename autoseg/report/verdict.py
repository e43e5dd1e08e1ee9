"""The verdict in plain words: is a searched loss worth its search, against every rival of its table? No torch.

A searched loss is compared with cross entropy, with cross entropy whose learning rate was tuned with as many trainings,
and with the best of all rivals, chosen by their mean on the same images, which favours the rival. Seeds are pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoseg.losses.names import searches_of
from autoseg.losses.surrogate import Surrogate
from autoseg.pipeline.outputs import Columns, Row, Table
from autoseg.report.comparison import LEVEL, Difference, paired, signed
from autoseg.report.results import Results
from autoseg.report.score_files import ReadScores
from autoseg.report.tables import targets
from autoseg.search.space import search_space

FEWEST = 2
"""Seeds that a comparison needs at least."""


WIDE = 3.0
"""Points on either side of a difference, from which an interval around 0 says nothing, not even that both are alike."""


@dataclass(frozen=True)
class Comparison:
    """A searched loss against a rival, on one metric."""

    rival: str
    difference: Difference

    def line(self, metric: str) -> str:
        """Return it as a sentence."""
        d = self.difference
        return (
            f"Against {self.rival}: {signed(d.mean)} points of {metric} [{signed(d.low)}, {signed(d.high)}], "
            f"better in {d.better} of {d.seeds} seeds."
        )


@dataclass(frozen=True)
class Verdict:
    """What is said of one searched loss on one metric that it was searched for."""

    table: str
    ours: str
    metric: str
    score: float
    ce: Comparison | None
    tuned: Comparison | None
    best: Comparison
    trainings: int
    tuned_trainings: int | None = None
    kept: Sequence[str] = ()
    """What searches answered with that began with it."""

    @property
    def headline(self) -> str:
        """The answer in a sentence."""
        ours, on = self.ours, f"on {self.metric}"
        main = self.ce or self.best
        if main.difference.verdict == "worse":
            return f"{_capital(main.rival)} is better here than {ours}, {on}: use that."
        if main.difference.verdict == "unsure":
            if self.tuned is not None and self.tuned.difference.better == 0 and self.tuned.difference.mean < 0:
                return f"Tuning the learning rate of cross entropy does better here than {ours}, {on}."
            if main.difference.better == main.difference.seeds and main.difference.mean > 0:
                return (
                    f"{ours} looks better than {main.rival} {on}, in every seed, but {main.difference.seeds} seeds are "
                    "too few to be sure."
                )
            if main.difference.high - main.difference.low > 2 * WIDE:
                return (
                    f"Seeds differ too much here to tell whether {ours} is better than {main.rival} {on}: train "
                    "longer, or with more seeds."
                )
            return f"{_capital(main.rival)} is as good here as {ours}, {on}: no search is needed."
        if self.tuned is not None and self.tuned.difference.verdict != "better":
            verb = "is better" if self.tuned.difference.verdict == "worse" else "does as well"
            return f"{ours} beats {main.rival} {on}, but tuning the learning rate of cross entropy {verb} here."
        if self.best.difference.verdict == "better":
            return f"{ours} is worth its search here: it beats every rival {on}."
        verb = "is better" if self.best.difference.verdict == "worse" else "is as good"
        return f"{ours} beats {main.rival} {on}, but {self.best.rival} {verb} here, without a search."

    @property
    def lines(self) -> list[str]:
        """The comparisons and the cost, a sentence each."""
        named: dict[str, Comparison] = {}
        for one in (self.ce, self.tuned):
            if one is not None:
                named[one.rival] = one
        if self.best.rival not in named:
            named[f"the best of the others, {self.best.rival}"] = self.best
        lines = [Comparison(rival, one.difference).line(self.metric) for rival, one in named.items()]
        lines += [
            f"The search kept {start}, which it began with: nothing that it tried was better." for start in self.kept
        ]
        cost = f"The search cost {self.trainings} trainings of the proxy task"
        if self.tuned_trainings is not None:
            cost += f", and tuning the learning rate of cross entropy {self.tuned_trainings}"
        level = f"{100 * LEVEL:.0f} %"
        return [*lines, f"{cost}. Intervals: {level}, Student's t over {self.best.difference.seeds} paired seeds."]


def verdicts(results: Results) -> list[Verdict]:
    """Return a verdict on every searched loss, for every metric that it was searched for, of tables with seeds."""
    found = []
    for name in results.pipeline.tables:
        table = results.table(name)
        if len(table.seeds) < FEWEST:
            continue
        read = results.read(dict.fromkeys(table.runs), table.metrics)
        for block in table.columns:
            for row in table.rows:
                if searches_of(block.loss(row)):
                    found += _on(results, name, table, block, row, read)
    return found


def _on(results: Results, name: str, table: Table, block: Columns, row: Row, read: ReadScores) -> list[Verdict]:
    found = []
    searches = searches_of(block.loss(row))
    for metric in [aim for aim in targets(row, results.metrics) if aim in table.metrics]:
        ours = _scores(table, block, row, metric, read)
        rivals = [one for one in table.rows if not searches_of(block.loss(one))]
        compared = {
            _label(one): (one, Comparison(_named(one), difference), statistics.fmean(theirs.values()))
            for one in rivals
            if (theirs := _scores(table, block, one, metric, read)) and (difference := paired(ours, theirs))
        }
        if not compared:
            continue
        plain = next((c for one, c, _ in compared.values() if one.loss == "ce" and not _tuning(results, one)), None)
        tuned = [
            (one, c) for one, c, _ in compared.values() if _tuning(results, one) and _tuned_for(results, one) == metric
        ]
        best = max(compared.values(), key=lambda found: found[2])[1]
        label = _label(row)
        found.append(
            Verdict(
                table=name,
                ours=label if label.lower().startswith(("the ", "searched")) else f"'{label}'",
                metric=metric,
                score=statistics.fmean(ours.values()),
                ce=plain,
                tuned=tuned[0][1] if tuned else None,
                best=best,
                trainings=sum(_trainings(results, search) for search in searches),
                kept=[start for search in searches if (start := _kept(results, search))],
                tuned_trainings=results.pipeline.tunings[_tuning(results, tuned[0][0]) or ""].trials if tuned else None,
            )
        )
    return found


def _scores(table: Table, block: Columns, row: Row, metric: str, read: ReadScores) -> dict[int, float]:
    runs = [block.run(row, seed) for seed in table.seeds]
    return {run.seed: read.scores[run].scores[metric] for run in runs if run in read.scores}


def _label(row: Row) -> str:
    return row.label or row.loss


def _named(row: Row) -> str:
    """Return a row's label within a sentence: names of losses keep their capitals."""
    label = "cross entropy" if _label(row) == "ce" else _label(row)
    return label[0].lower() + label[1:] if label.lower().startswith(("cross entropy", "published")) else label


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _tuning(results: Results, row: Row) -> str | None:
    return results.pipeline.retrainings[row.retraining].tuning if row.retraining else None


def _tuned_for(results: Results, row: Row) -> str:
    return results.pipeline.retrainings[row.retraining or ""].tuned_for


def _trainings(results: Results, search: str) -> int:
    """Return how many trainings a search took; while it is not finished, how many it will take at most.

    A longer one, for a rescored answer, counts as many as it is long.
    """
    plan = results.pipeline.search(search)
    done = list(Path(results.layout.search(search)).rglob("trial-*.json"))
    if not done:
        return round(plan.total_steps * plan.settings.trials_per_step + plan.rescored_trainings)
    rescored = sum(path.parent.name == "rescore" for path in done)
    return round(len(done) + (plan.rescore_length - 1) * rescored)


def _kept(results: Results, search: str) -> str | None:
    """Return the start of a search in words, if it is its answer too."""
    plan, answer = results.pipeline.search(search), Path(results.layout.surrogate(search))
    if not answer.exists() or list(search_space(plan).initial) != list(Surrogate.load(answer).theta):
        return None
    return plan.initial if isinstance(plan.initial, str) else "the given theta"


def as_text(found: Sequence[Verdict]) -> str:
    """Return verdicts as plain text.

    >>> as_text([])
    'There is no verdict: no table has a searched loss, a rival, and two seeds or more of both.\\n'
    """
    if not found:
        return "There is no verdict: no table has a searched loss, a rival, and two seeds or more of both.\n"
    return "\n".join("\n".join([one.headline, *(f"  {line}" for line in one.lines), ""]) for one in found)
