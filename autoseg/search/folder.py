"""The files of one search: their paths, and what is done with a score that does not belong to its trial.

`step-001/proposals.json`, `step-001/trial-<number>.json`, ..., `rescore/` (like a step), `surrogate.json`;
`search.json` if the search was started without the pipeline; and `journal.log`, which may be deleted at any time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from autoseg.errors import InputError
from autoseg.files import read_json, write_json
from autoseg.search.records import PriorTrials, Proposals, Scored, StepName, TrialScore
from autoseg.search.settings import Search, load_search
from autoseg.search.space import changes, search_space, self_contained
from autoseg.search.steps import record

logger = logging.getLogger(__name__)


class Folder:
    """The files of one search."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    # The settings of a search outside a pipeline.

    def start(self, search: Search) -> Search:
        """Write `search.json`, after checking that an older one gives the same proposals; return the settings in it.

        A file of curves to start from is replaced by theta, so that the search does not need that file any more.
        """
        search = self_contained(search)  # first: what cannot be searched must not be written
        if (self.path / "search.json").exists() and (changed := changes(self.search(), search)):
            raise InputError(
                f"this search was started with other settings ({', '.join(changed)})",
                where=self.path / "search.json",
                cure="use the old settings, or search in a new folder",
            )
        write_json(self.path / "search.json", search.model_dump())
        return search

    def search(self) -> Search:
        """Read `search.json`."""
        if not (self.path / "search.json").exists():
            raise InputError(
                "there is no search.json in it", where=self.path, cure="give the search's settings with `--settings`"
            )
        return load_search(self.path / "search.json")

    # Proposals.

    def step(self, step: StepName) -> Path:
        """Return the folder of a step."""
        return self.path / ("rescore" if step == "rescore" else f"step-{step:03d}")

    def write(self, proposals: Proposals) -> Path:
        """Write a step's `proposals.json`; if the one that is there proposes the same, it is left as it is.

        The score of a trial that is proposed no more, or with other parameters, is set aside.
        """
        path = self.step(proposals.step) / "proposals.json"
        before = {}
        if path.exists():
            there = self.proposals(proposals.step)
            if there.agrees_with(proposals):
                return path
            before = {trial.number: trial for trial in there.trials}
        now = {trial.number: trial for trial in proposals.trials}
        for score in self.scores(proposals.step):
            number = score.number
            if number not in now or (number in before and not before[number].agrees_with(now[number])):
                self._set_aside(proposals.step, score, "its trial is proposed no more")
        proposals.save(path)
        return path

    def proposals(self, step: StepName) -> Proposals:
        """Read a step's `proposals.json`."""
        return Proposals.load(self.step(step) / "proposals.json")

    # Scores.

    def score_path(self, step: StepName, number: int) -> Path:
        """Return where a trial's score is written."""
        return self.step(step) / f"trial-{number}.json"

    def scores(self, step: StepName) -> list[TrialScore]:
        """Read the scores of a step that are there already."""
        scores = []
        for path in sorted(self.step(step).glob("trial-*.json")):
            score = TrialScore.load(path)
            if path != self.score_path(step, score.number):
                raise InputError(
                    f"it holds the score of trial {score.number}", where=path, expected="the number in the file's name"
                )
            scores.append(score)
        return scores

    def scored(self, step: StepName) -> Scored:
        """Read a step's proposals and all its scores."""
        return record(self.proposals(step), self.scores(step), str(self.step(step)))

    def history(self, steps: int) -> list[Scored]:
        """Read the first `steps` steps, all of which must be scored."""
        return [self.scored(step) for step in range(1, steps + 1)]

    def as_prior(self) -> PriorTrials:
        """Return all trials of this search, as far as its steps are scored, for another search to start from."""
        count = 0
        while (self.step(count + 1) / "proposals.json").exists():
            count += 1
        if not count:
            raise InputError(
                "there is no search in this folder",
                where=self.path,
                cure="give the folder of a search that has run, as `prior`",
            )
        history = self.history(count)
        return PriorTrials(
            names=list(search_space(history[0].proposals.search).names),
            thetas=[trial.theta for step in history for trial in step.proposals.trials],
            scores=[score for step in history for score in step.scores],
        )

    def kept_prior(self) -> PriorTrials | None:
        """Return the trials of another search that the first step was made with; the other folder may be gone."""
        return self.proposals(1).prior if (self.step(1) / "proposals.json").exists() else None

    def unscored(self, step: StepName, fingerprints: Mapping[int, str]) -> list[int]:
        """Return which trials have no score with the given fingerprint.

        A score with another fingerprint is of another task, setting or objective: it is renamed, not deleted. It
        gets its name back when its fingerprint is needed again.
        """
        self._set_aside_damaged(step)
        done = {score.number: score for score in self.scores(step)}
        missing = []
        for number, fingerprint in fingerprints.items():
            if number in done and done[number].fingerprint == fingerprint:
                continue
            if number in done:
                self._set_aside(step, done[number], "it depends on other settings, data or weights")
            if not self._take_back(step, number, fingerprint):
                missing.append(number)
        return missing

    def _set_aside_damaged(self, step: StepName) -> None:
        """Rename scores that are cut short or no JSON: their trials are run again."""
        for path in self.step(step).glob("trial-*.json"):
            try:
                read_json(path)
            except InputError as error:
                aside = path.with_name(f"damaged-{path.name}")
                logger.warning("%s is set aside as %s: %s", path, aside.name, error.what)
                path.replace(aside)

    def _set_aside(self, step: StepName, score: TrialScore, why: str) -> None:
        """Rename a trial's score, and its time, so that they do not count."""
        path = self.score_path(step, score.number)
        logger.warning("%s is set aside as %s: %s", path, _aside(path, score).name, why)
        for kind in ("time", "trial"):
            found = path.with_name(f"{kind}-{score.number}.json")
            if found.exists():
                found.replace(_aside(found, score))

    def _take_back(self, step: StepName, number: int, fingerprint: str) -> bool:
        """Give a score that was set aside its name again; return whether there was one."""
        path = self.score_path(step, number)
        for aside in path.parent.glob(f"stale-{path.stem}-*.json"):
            score = TrialScore.load(aside)
            if score.fingerprint == fingerprint:
                for kind in ("time", "trial"):
                    found = path.with_name(f"{kind}-{number}.json")
                    if _aside(found, score).exists():
                        _aside(found, score).replace(found)
                logger.info("%s is used again: it was set aside as %s", path, aside.name)
                return True
        return False


def _aside(path: Path, score: TrialScore) -> Path:
    return path.with_name(f"stale-{path.stem}-{(score.fingerprint or score.checksum())[:12]}.json")
