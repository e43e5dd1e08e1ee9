"""Searches on small JSON files: what to try next, what the trials scored, and which surrogate that selects.

`ask`, `record`, `rescore` and `select` are pure functions of what the files hold, so a search can be killed, moved and
resumed anywhere. `autoseg.search.folder` finds the files. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autoseg.errors import InputError
from autoseg.files import fingerprint
from autoseg.losses.surrogate import Surrogate
from autoseg.search.early import Look, Seen, looks
from autoseg.search.model import ModelAnswer, model_answer
from autoseg.search.ppo2 import Array
from autoseg.search.proposers import Proposer, doubts_of, replay, trials_of
from autoseg.search.records import PriorTrials, Proposals, Scored, Start, StepName, Trial, TrialScore
from autoseg.search.settings import Search
from autoseg.search.space import changes, decisive, search_space, surrogate
from autoseg.versions import SEARCH_VERSION

FARTHEST = 1e6
"""The greatest number in a theta without bounds: softmax tells no greater ones apart."""

FIRST_RESCORED = 1_000_000
"""The number of the first rescored mean: beyond those of all steps, also if a search is given more of them."""


def ask(search: Search, history: Sequence[Scored], prior: PriorTrials | None = None) -> Proposals:
    """Return the proposals of the step after `history`, which holds every step before it, in order.

    The first step of a search with a `prior` needs its trials, and keeps them for all later steps.

    >>> step = ask(Search(metric="mIoU"), [])
    >>> step.step, len(step.trials), step.trials[31].number
    (1, 32, 31)
    """
    if search.prior is not None and not history:
        prior = fitting_prior(search, prior)
    proposer = _replay(search, history, prior)
    size = search.settings.trials_per_step
    numbers = range(len(history) * size, (len(history) + 1) * size)
    trials = [
        Trial(number=number, theta=list(_floats(theta)))
        for number, theta in zip(numbers, proposer.propose(numbers), strict=True)
    ]
    return Proposals(
        search=decisive(search),
        step=len(history) + 1,
        mu=list(_floats(proposer.mus[-1])) if proposer.mus else None,
        after=_after(history, prior) if (history or prior) and _is_fitted(search) else None,
        trials=trials,
        looks=_looks(search, history, trials),
        prior=None if history else prior,
        start=_start(history) if search.chained and history else None,
    )


def _start(history: Sequence[Scored]) -> Start:
    """Return the network that the step after the history starts from."""
    best = history[-1].best
    if best.weights is None:
        raise InputError(
            f"trial {best.number} has no network to hand on",
            where=f"step {history[-1].proposals.step}",
            cure="delete its score, and have the trial run again",
        )
    return Start(trial=best.number, weights=best.weights)


def fitting_prior(search: Search, prior: PriorTrials | None) -> PriorTrials:
    """Return the trials of another search, after checking that they have the parameters of this one."""
    if prior is None:
        raise InputError("the first step needs the trials of the other search", where=f"search '{search.name}': prior")
    if prior.names != list(search_space(search).names):
        raise InputError(
            f"'{search.prior}' searches {', '.join(prior.names)}",
            where=f"search '{search.name}': prior",
            expected=f"a search of the same parameters: {', '.join(search_space(search).names)}",
        )
    return prior


def record(proposals: Proposals, scores: Sequence[TrialScore], where: str = "the scores") -> Scored:
    """Return the step with its scores, after checking that each trial was scored once, and for the same search.

    A collapsed training without a score gets the step's lowest: on an unknown scale, 0 might be a high score.
    """
    expected = {trial.number for trial in proposals.trials}
    found: dict[int, TrialScore] = {}
    for score in scores:
        if score.number not in expected:
            raise InputError(f"trial {score.number} is not a trial of step {proposals.step}", where=where)
        if score.number in found:
            raise InputError(f"trial {score.number} of step {proposals.step} was scored twice", where=where)
        if score.metric != proposals.search.metric:
            raise InputError(
                f"trial {score.number} has a score of {score.metric}", where=where, expected=proposals.search.metric
            )
        found[score.number] = score
    if missing := sorted(expected - set(found)):
        shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise InputError(
            f"step {proposals.step} has no score yet for {len(missing)} of {len(expected)} trials ({shown})",
            where=where,
            cure="run them first",
        )
    numbers = [score.score for score in found.values() if score.score is not None]
    if not numbers:
        raise InputError(
            f"every trial of step {proposals.step} collapsed without a score",
            where=where,
            cure="correct the training, and move the folder of the step away to try it again",
        )
    in_order = tuple(found[trial.number] for trial in proposals.trials)
    finals = [min(numbers) if score.score is None else score.score for score in in_order]
    seen = (
        Seen(score.partial, final, None if score.ended is None else f"{score.ended:g}")
        for score, final in zip(in_order, finals, strict=True)
    )
    return Scored(proposals, tuple(finals), tuple(seen) if proposals.looks else (), in_order)


# ------------------------------------------------------------------------------------------------------------ answers


@dataclass(frozen=True)
class Candidate:
    """A possible answer: its parameters, where they come from, and their score as a share, if there is one.

    `step` is the number of the step that a mean is the mean of; the mean after the last step has the next number.
    `model` is what the model says of its own answer; where it was not believed, the candidate is the sampler's.
    """

    theta: tuple[float, ...]
    origin: str
    score: float | None
    step: int | None = None
    model: ModelAnswer | None = None


def candidates(search: Search, history: Sequence[Scored]) -> list[Candidate]:
    """Return the possible answers in order: the first is the start, the last the newest mean."""
    return _candidates(_replay(search, history))


def answer(search: Search, history: Sequence[Scored]) -> Candidate:
    """Return the search's answer: PPO2's rule, CMA-ES's mean, the best trial of the others, or the model's near it."""
    return _answer(_replay(search, history))


def rescore(search: Search, history: Sequence[Scored]) -> Proposals:
    """Return answers as trials: the identity, the start, the `rescore` best by average, the last, and the model's.

    A step's average says how good its samples are, not its mean, and over few trials it chooses badly.
    """
    return _rescore(_replay(search, history))


def selected(search: Search, history: Sequence[Scored], rescored: Scored | None = None) -> Candidate:
    """Return the candidate that `select` makes the surrogate of; a rescored mean has its own score."""
    if rescored is None:
        return answer(search, history)
    return max(answers(search, history, rescored), key=_by_score)


def answers(search: Search, history: Sequence[Scored], rescored: Scored) -> list[Candidate]:
    """Return the rescored answers with their own scores."""
    proposer = _replay(search, history)
    modelled = _by_model(proposer)  # once: it fits a model
    if not rescored.proposals.agrees_with(_rescore(proposer, modelled)):
        raise InputError(
            f"the rescored means are not those of its {len(history)} steps",
            where=f"search '{search.name}'",
            cure="run `autoseg rescore` and its trials again",
        )
    known = {c.theta: c for c in reversed([*_starts(search), *_candidates(proposer)])}
    thetas = [_floats(theta) for theta in rescored.thetas]
    # The last digits of the model's answer may differ between machines: the one that was trained is taken.
    found = [known[theta] if theta in known else replace(modelled, theta=theta) for theta in thetas]
    return [replace(one, score=score) for one, score in zip(found, rescored.scores, strict=True)]


def select(search: Search, history: Sequence[Scored], rescored: Scored | None = None) -> Surrogate:
    """Return the search's surrogate: the best of the rescored means, or the sampler's own answer."""
    best = selected(search, history, rescored)
    if rescored is not None:
        score = f"own score {best.score:.6g}, best of {len(rescored.scores)}"
    elif best.model is not None and best.model.trusted:
        score = f"expected score {best.score:.6g}"
    else:
        score = "not scored" if best.score is None else f"average score {best.score:.6g}"
    if (found := best.model) is not None and not found.trusted:
        score += f"; the model is not believed: of steps left out it knows {max(found.skill, 0):.0%} of the differences"
    elif found is not None:
        score += f"; posterior std {found.std:.2g}, of a score {found.noise:.2g}; expected gain over the mean "
        score += f"{found.gain:.2g} +- {found.gain_std:.2g}, at most {found.distance:.2g} from it"
    if search.chained:
        network = history[-1].best
        score += f"; its network is that of trial {network.number}, score {network.score or 0.0:.6g}"
    return surrogate(search, best.theta, source=f"search '{search.name}': {best.origin}, {score}")


def _candidates(proposer: Proposer) -> list[Candidate]:
    history = proposer.history
    if not history:
        raise InputError("no step is finished yet, so there is no answer", where=f"search '{proposer.search.name}'")
    if not proposer.means:
        return [
            Candidate(tuple(trial.theta), f"trial {trial.number}", score)
            for step in history
            for trial, score, ended in zip(step.proposals.trials, step.scores, step.ended, strict=True)
            if not ended  # the score is only what was expected
        ]
    averages = [*(step.average for step in history), None]
    return [
        Candidate(_floats(mean), f"mean of step {number}", average, step=number)
        for number, (mean, average) in enumerate(zip(proposer.means, averages, strict=True), start=1)
    ]


def _answer(proposer: Proposer) -> Candidate:
    return _by_model(proposer) if proposer.search.answers_with_model else _own_answer(proposer)


def _own_answer(proposer: Proposer) -> Candidate:
    possible = _candidates(proposer)
    if proposer.best is not None:
        return possible[proposer.best]
    return max(possible, key=_by_score)


def _by_model(proposer: Proposer) -> Candidate:
    """Return the best point near the newest mean, or near the best trial, by a model of all trials.

    A model that knows nothing of steps it has not seen is not asked: the answer is then the sampler's own.
    """
    own = _candidates(proposer)[-1] if proposer.means else _own_answer(proposer)
    numbers = np.concatenate([np.full(len(step.scores), k) for k, step in enumerate(proposer.history)])
    thetas, scores = trials_of(proposer.history)
    found = model_answer(
        thetas,
        scores,
        numbers,
        own.theta,
        proposer.settings.sigma,
        bounded=proposer.space.bounded,
        doubts=doubts_of(proposer.history),
        other=proposer.other,
    )
    if not found.trusted:
        return replace(_own_answer(proposer), model=found)
    return Candidate(_floats(found.theta), f"the model's answer near {own.origin}", found.score, own.step, found)


def _rescore(proposer: Proposer, modelled: Candidate | None = None) -> Proposals:
    search = proposer.search
    if not search.rescore:
        raise InputError(
            "is 0, so the search selects by the step averages",
            where=f"search '{search.name}': rescore",
            cure="set rescore: 3",
        )
    possible = _candidates(proposer)
    ranked = sorted((c for c in possible if c.score is not None), key=_by_score, reverse=True)
    newest = possible[-1:] if proposer.means else []
    chosen = [*_starts(search), *ranked[: search.rescore], *newest, modelled or _by_model(proposer)]
    return Proposals(
        search=decisive(search),
        step="rescore",
        after=_after(proposer.history),
        trials=[
            Trial(number=FIRST_RESCORED + k, theta=list(theta))
            for k, theta in enumerate(dict.fromkeys(c.theta for c in chosen))
        ],
        length=search.rescore_length,
    )


def _starts(search: Search) -> list[Candidate]:
    """Return the identity, as no answer should be worse than it, and the start of the search."""
    identity_curves = search_space(search.model_copy(update={"initial": "identity"}))
    name = f", {Path(search.initial).name}" if isinstance(search.initial, str) else ""
    return [
        Candidate(identity_curves.initial, "the identity", None),
        Candidate(search_space(search).initial, f"the start{name}", None),
    ]


def _is_fitted(search: Search) -> bool:
    """Whether a model proposes or sets bars, so that last digits of a machine can become other trials."""
    saves = search.early_rule is not None and search.early_rule.save is not None
    return saves or search.sampler == "gp" or (search.sampler == "ppo2" and search.settings.move == "model")


def _looks(search: Search, history: Sequence[Scored], trials: Sequence[Trial]) -> list[Look]:
    if search.early_rule is None:
        return []
    before = [trial.theta for step in history for trial in step.proposals.trials]
    return looks(search.early_rule, _seen(history), before, [t.theta for t in trials], search.settings.sigma)


def _seen(history: Sequence[Scored]) -> list[Seen]:
    return [trial for step in history for trial in step.seen]


def _after(history: Sequence[Scored], prior: PriorTrials | None = None) -> str:
    trials = [[trial.number, trial.theta] for step in history for trial in step.proposals.trials]
    told = {"trials": trials, "scores": [step.scores for step in history]}
    if seen := _seen(history):
        told["seen"] = [[dict(trial.partial), trial.ended] for trial in seen]
    if prior := history[0].proposals.prior if history else prior:
        told["prior"] = prior.model_dump()
    return fingerprint(told)


def _by_score(candidate: Candidate) -> float:
    return -math.inf if candidate.score is None else candidate.score


def _floats(values: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _replay(search: Search, history: Sequence[Scored], prior: PriorTrials | None = None) -> Proposer:
    """Return the search's sampler after the history, which must be of this search and follow from its own scores."""
    for number, step in enumerate(history, start=1):
        where, found = f"search '{search.name}': step {number}", step.proposals
        if found.step != number:
            raise InputError(f"found the proposals of step {found.step}", where=where)
        changed = changes(found.search, search)
        if found.version != SEARCH_VERSION:
            changed.append(f"version {found.version} of the algorithm")
        if changed:
            raise InputError(
                f"its proposals were made with other settings ({', '.join(changed)})",
                where=where,
                cure="use the old settings, or search in a new folder",
            )
        space = search_space(search)
        low, high = (0.0, 1.0) if space.bounded else (-FARTHEST, FARTHEST)
        if step.thetas.shape[1] != len(space.names) or not ((low <= step.thetas) & (step.thetas <= high)).all():
            raise InputError(
                "a theta is not of this search",
                where=where,
                expected=f"{len(space.names)} numbers from {low:g} to {high:g}",
                cure="delete its proposals.json and ask for the step again",
            )
    stale = [n for n, step in enumerate(history) if n and step.proposals.after not in (None, _after(history[:n]))]
    if stale:
        raise _stale(search, stale[0] + 1)
    for n, step in enumerate(history):
        if search.chained and n and step.proposals.start != _start(history[:n]):
            raise _stale(search, step.proposals.step)
    proposer = replay(search, history, prior)
    if search.chained or (search.sampler == "ppo2" and search.settings.move == "ppo2"):
        for step, mu in zip(history, proposer.mus, strict=False):
            if step.proposals.mu is None or not np.allclose(step.proposals.mu, mu, rtol=0, atol=1e-6):
                raise _stale(search, step.proposals.step)
    return proposer


def _stale(search: Search, step: StepName) -> InputError:
    return InputError(
        "it does not follow from the scores before it, which have changed since",
        where=f"search '{search.name}': step {step}",
        cure="run `autoseg ask` for that step again, or restore the scores",
    )
