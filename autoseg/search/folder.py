"""The files of one search: their paths, and what is done with a score that does not belong to its trial.

`step-001/proposals.json`, `step-001/trial-<number>.json`, ..., `rescore/` (like a step), `surrogate.json`;
`search.json` if the search was started without the pipeline; and `journal.log`, which may be deleted at any time.
A chained search has `step-001/weights-<number>.safetensors`, the best network of each step, and `network.safetensors`.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoseg.errors import InputError
from autoseg.files import atomic, checksum, read_json, write_json
from autoseg.losses.surrogate import Surrogate
from autoseg.search.records import PriorTrials, Proposals, Scored, StepName, TrialScore
from autoseg.search.settings import Search, load_search
from autoseg.search.space import changes, search_space, self_contained
from autoseg.search.steps import fitting_prior, record

logger = logging.getLogger(__name__)


NETWORK = "network.safetensors"
"""The network that a chained search answers with, beside its loss."""


@dataclass(frozen=True)
class Link:
    """A step's place in a chained search: the number of the step, of all steps, and the network that it starts from.

    The steps are parts of one training, whose learning rate falls over all of them. `out` is where a trial's network is
    written, `fingerprint` that of the trial.
    """

    step: int
    steps: int
    start: Path | None
    weights: str | None  # checksum of `start`
    out: Path | None = None
    fingerprint: str = ""


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
        self.prior(search)
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

    def begin(self, proposals: Proposals, history: Sequence[Scored]) -> None:
        """Write the proposals of the step after a history; in a chained search, delete all networks but the start."""
        self.write(proposals)
        if proposals.start is not None:
            self.keep_best(history[-1])

    def proposals(self, step: StepName) -> Proposals:
        """Read a step's `proposals.json`."""
        return Proposals.load(self.step(step) / "proposals.json")

    # The networks of a chained search.

    def weights_path(self, step: StepName, number: int) -> Path:
        """Return where the network of a trial is written."""
        return self.step(step) / f"weights-{number}.safetensors"

    def link(self, proposals: Proposals) -> Link:
        """Return a step's place in its chain."""
        assert isinstance(proposals.step, int)
        start, path = proposals.start, None
        if start is not None:
            path = self.weights_path(proposals.step - 1, start.trial)
        return Link(proposals.step, proposals.search.settings.steps, path, start.weights if start else None)

    def check_start(self, link: Link) -> None:
        """Refuse to train a step if the network that it starts from is not there."""
        if link.start is not None and not _is_there(link.start, link.weights):
            raise InputError(
                "the network that this step starts from is missing or not as it was",
                where=link.start,
                cure="start the search again: it trains that trial again",
            )

    def lost_network(self, scored: Scored) -> bool:
        """Whether the best network of a step is missing, or is not the one that was scored, and is still needed.

        If it is not, it is not made again: where trainings are not repeated to the bit, all later steps would be too.
        """
        step, best = scored.proposals.step, scored.best
        assert isinstance(step, int)
        if _is_there(self.weights_path(step, best.number), best.weights):
            return False
        try:
            after = self.scored(step + 1)
        except InputError:  # it is not scored yet
            return True
        return self.lost_network(after)

    def keep_best(self, scored: Scored) -> Path:
        """Delete the networks of a step but for the best, and return its path."""
        best = self.weights_path(scored.proposals.step, scored.best.number)
        for path in best.parent.glob("weights-*.safetensors"):
            if path != best:
                path.unlink(missing_ok=True)
        return best

    def finish(self, chosen: Surrogate, history: Sequence[Scored], out: str | os.PathLike[str] | None = None) -> None:
        """Write the answer of a search; of a chained one, the best network of the last step beside it."""
        if history[0].proposals.search.chained:
            best = self.keep_best(history[-1])
            with open(best, "rb") as network, atomic(self.path / NETWORK, "wb") as copy:
                shutil.copyfileobj(network, copy)
        chosen.save(out or self.path / "surrogate.json")

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

    def prior(self, search: Search) -> PriorTrials | None:
        """Return the trials of another search that this one starts from, if its settings name one.

        Once the first step has been made with them they are its own, and the other folder may be gone.
        """
        if search.prior is None:
            return None
        kept = self.proposals(1).prior if (self.step(1) / "proposals.json").exists() else None
        return kept or fitting_prior(search, Folder(search.prior).as_prior())

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

    def set_aside_lost(self, scored: Scored) -> int:
        """Set the score of a step's best trial aside, whose network is lost; return its number."""
        assert isinstance(scored.proposals.step, int)
        self._set_aside(scored.proposals.step, scored.best, "its network is lost, so it is trained again")
        return scored.best.number

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


def _is_there(path: Path, weights: str | None) -> bool:
    """Whether a file of weights is there, with this checksum."""
    return path.exists() and checksum(path) == weights


def _aside(path: Path, score: TrialScore) -> Path:
    return path.with_name(f"stale-{path.stem}-{(score.fingerprint or score.checksum())[:12]}.json")
