"""Searches on small JSON files: what to try next, what the trials scored, and which surrogate that selects.

`ask`, `record`, `rescore` and `select` are pure functions of what the files hold, so a search can be killed, moved and
resumed anywhere; `Folder` finds the files, and `write_journal` shows them to Optuna's dashboard. No torch here.

A search's folder: `search.json`, `initial.json` (the curves it starts from, if a file named them),
`step-001/proposals.json`, `step-001/trial-<number>.json`, ..., `rescore/` (like a step), `surrogate.json`, and
`journal.log`, which may be deleted at any time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from autoseg import surrogate_json
from autoseg.config import Search, load_search, parse
from autoseg.errors import InputError
from autoseg.files import fingerprint, read_json, write_json
from autoseg.sampler import Array, Policy, Settings, expectation, next_policy, propose
from autoseg.surrogate_json import Surrogate
from autoseg.versions import SEARCH_VERSION

FIRST_RESCORED = 1_000_000
"""The number of the first rescored mean: beyond those of all steps, also if a search is given more of them."""

Z_BOUND = 10.0
"""Optuna knows no unbounded float: the z of linear curves are declared in [-10, 10], 50 sigmas wide, and sampled
without truncation."""


class Trial(BaseModel):
    """A proposal: the trial's number, unique in the search, and its parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int = Field(ge=0)
    theta: list[FiniteFloat]


class Proposals(BaseModel):
    """`proposals.json`: what one step tries. `mu` is the mean it samples around, where the sampler has one."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal["autoseg/proposals/1"] = Field(default="autoseg/proposals/1", alias="schema")
    search: str
    settings: str = Field(description="fingerprint of the search's settings")
    step: int | Literal["rescore"]
    mu: list[FiniteFloat] | None = None
    trials: list[Trial] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Proposals:
        if len({len(trial.theta) for trial in self.trials}) != 1:
            raise ValueError("the trials have thetas of different lengths")
        if len({trial.number for trial in self.trials}) != len(self.trials):
            raise ValueError("two trials have the same number")
        return self

    def agrees_with(self, other: Proposals) -> bool:
        """Whether both propose the same; the last digits may differ between machines, and a search may be renamed."""
        same = (self.settings, self.step, len(self.trials)) == (other.settings, other.step, len(other.trials))
        return same and all(
            a.number == b.number and len(a.theta) == len(b.theta) and np.allclose(a.theta, b.theta, rtol=0, atol=1e-9)
            for a, b in zip(self.trials, other.trials, strict=True)
        )


class TrialScore(BaseModel):
    """`trial-<number>.json`: what one trial scored on the hold-out set; a collapsed training has `diverged`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal["autoseg/trial/1"] = Field(default="autoseg/trial/1", alias="schema")
    number: int = Field(ge=0)
    metric: str
    score: FiniteFloat | None = Field(
        description="null: a collapsed training without one; it counts as the step's worst"
    )
    scores: dict[str, FiniteFloat] = {}
    diverged: bool = False
    fingerprint: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> TrialScore:
        if self.score is None and not self.diverged:
            raise ValueError("only a trial that diverged can be without a score")
        return self


@dataclass(frozen=True)
class Scored:
    """A step that is done: its proposals and, in their order, its scores."""

    proposals: Proposals
    scores: tuple[float, ...]

    @property
    def thetas(self) -> Array:
        """The parameters, one row per trial."""
        return np.array([trial.theta for trial in self.proposals.trials])

    @property
    def average(self) -> float:
        """The step's average score."""
        return float(np.mean(self.scores))


# --------------------------------------------------------------------------------------------------- the search space


@dataclass(frozen=True)
class Space:
    """The parameters of a search: their names, the first mean, and whether they live in [0, 1]."""

    names: tuple[str, ...]
    initial: tuple[float, ...]
    bounded: bool

    @property
    def distributions(self) -> dict[str, FloatDistribution]:
        """The space as Optuna sees it."""
        low, high = (0.0, 1.0) if self.bounded else (-Z_BOUND, Z_BOUND)
        return {name: FloatDistribution(low, high) for name in self.names}


def search_space(search: Search) -> Space:
    """Return the space of a search; it starts at the identity or at the curves of a given surrogate.

    >>> search_space(Search(metric="mAcc")).names
    ('AND.u1', 'AND.v1', 'AND.u2', 'AND.v2', 'AND.u3', 'AND.v3')
    """
    _, layout, space = surrogate_json.curve_space(
        search.metric, search.family, search.layout, search.pieces, search.monotone, search.truth_table
    )
    names = tuple(f"{curve}.{name}" for curve in layout.curves for name in space.names)
    if search.initial == "identity":
        theta = list(space.identity) * len(layout.curves)
    else:
        start = surrogate_json.resolve(search.initial)
        theta = []
        for curve in layout.curves:
            if (start.family, start.pieces, start.truth_table) != (space.family, space.pieces, space.truth_table):
                raise InputError(
                    f"initial '{search.initial}' has {start.family} curves of {start.pieces} pieces; this search needs "
                    f"{space.family} curves of {space.pieces}, with the same truth-table constraint."
                )
            if curve not in start.curves:
                raise InputError(
                    f"initial '{search.initial}' has the curves {', '.join(start.curves)}, but not '{curve}', which "
                    f"{search.metric} needs."
                )
            theta += space.theta(start.curves[curve])
    return Space(names, tuple(float(value) for value in theta), space.bounded)


def surrogate(search: Search, theta: Sequence[float], source: str = "") -> Surrogate:
    """Return the surrogate that these parameters make."""
    return Surrogate.make(
        search.metric,
        list(theta),
        family=search.family,
        layout=search.layout,
        pieces=search.pieces,
        monotone=search.monotone,
        truth_table=search.truth_table,
        conventions=search.conventions.model_dump(),
        source=source,
    )


def settings_of(search: Search, space: Space | None = None) -> Settings:
    """Return PPO2's settings; other samplers take their numbers of steps and trials from here too."""
    sizes = {"steps": search.steps, "trials_per_step": search.trials_per_step}
    changes = {**search.ppo2, **{key: value for key, value in sizes.items() if value is not None}}
    bounded = space.bounded if space else search_space(search).bounded
    return Settings.preset(search.preset, family="truncated" if bounded else "normal", **changes)


def identity(search: Search) -> str:
    """Return the fingerprint of all that decides what is proposed next, given the scores.

    A search may be given more steps later, unless its clip was derived from their number, and another way to answer.
    """
    return fingerprint(_decisive(search))


def _decisive(search: Search) -> dict[str, Any]:
    space = search_space(search)
    effective = settings_of(search, space)
    settings = {**asdict(effective), "clip": effective.clip_at(1) if search.sampler == "ppo2" else None}
    for may_change in ("answer", "pick", *(() if settings["anneal"] else ("steps",))):
        del settings[may_change]
    own = search.model_dump(include=set(Search.model_fields) - _ASIDE)
    return {**own, "settings": settings, "initial": space.initial, "version": SEARCH_VERSION}


def changes(before: Search, now: Search) -> list[str]:
    """Return the settings that make a search another one; none, if both propose the same, given the scores.

    >>> changes(Search(metric="mIoU", steps=4), Search(metric="mIoU", steps=5))  # it follows from the steps
    ['clip']
    >>> changes(Search(metric="mIoU", steps=4, preset="paper"), Search(metric="mIoU", steps=5, preset="paper"))
    []
    """
    old, new = _decisive(before), _decisive(now)
    for content in (old, new):
        content.update(content.pop("settings"))
    return [key for key in {**old, **new} if old.get(key) != new.get(key)]


# Not in the fingerprint: what changes no proposal, and what is in there by its effect.
_ASIDE = {"name", "initial", "preset", "ppo2", "steps", "trials_per_step", "rescore", "score_last_mean"}


def total_steps(search: Search) -> int:
    """Return how many steps are run: T, and one more where the mean after step T shall compete."""
    return settings_of(search).steps + (1 if search.score_last_mean else 0)


# ---------------------------------------------------------------------------------------------- ask, record, select


def ask(search: Search, history: Sequence[Scored]) -> Proposals:
    """Return the proposals of the step after `history`, which holds every step before it, in order.

    >>> step = ask(Search(metric="mIoU"), [])
    >>> step.step, len(step.trials), step.trials[31].number
    (1, 32, 31)
    """
    _check_history(search, history)
    space = search_space(search)
    settings = settings_of(search, space)
    step = len(history) + 1
    numbers = range((step - 1) * settings.trials_per_step, step * settings.trials_per_step)
    mu: Array | None
    if search.sampler == "ppo2":
        policy = _policies(search, space, settings, history)[-1]
        mu, options = policy.mu, {"sigma": settings.sigma, "family": settings.family, "mirrored": settings.mirrored}
        thetas = [propose(mu, search.seed, number, **options) for number in numbers]  # type: ignore[arg-type]
        if settings.baseline == "mu":
            thetas[0] = mu
    elif search.sampler == "cmaes":
        cma = _cma_es(search, space, settings, history)[-1]
        mu, thetas = cma.mean, [cma.ask() for _ in numbers]
    else:
        mu, thetas = None, [np.array(theta) for theta in _by_optuna(search, space, settings, history)]
    return Proposals(
        search=search.name,
        settings=identity(search),
        step=step,
        mu=None if mu is None else [float(x) for x in mu],
        trials=[Trial(number=n, theta=[float(x) for x in theta]) for n, theta in zip(numbers, thetas, strict=True)],
    )


def record(proposals: Proposals, scores: Sequence[TrialScore], where: str = "the scores") -> Scored:
    """Return the step with its scores, after checking that each trial was scored once, and for the same search.

    A collapsed training without a score gets the step's lowest: a low one on any scale, where 0 might be a high one.
    """
    expected = {trial.number for trial in proposals.trials}
    found: dict[int, float | None] = {}
    for score in scores:
        if score.number not in expected:
            raise InputError(f"{where}: trial {score.number} is not a trial of step {proposals.step}.")
        if score.number in found:
            raise InputError(f"{where}: trial {score.number} of step {proposals.step} was scored twice.")
        found[score.number] = score.score
    if missing := sorted(expected - set(found)):
        raise InputError(
            f"{where}: step {proposals.step} has no score yet for {len(missing)} of {len(expected)} trials "
            f"({', '.join(map(str, missing[:5]))}{', ...' if len(missing) > 5 else ''}); run them first."
        )
    numbers = [score for score in found.values() if score is not None]
    if not numbers:
        raise InputError(
            f"{where}: every trial of step {proposals.step} collapsed without a score; mend the training, and move the "
            "step's folder away to try it again."
        )
    scores_found = (found[trial.number] for trial in proposals.trials)
    return Scored(proposals, tuple(min(numbers) if score is None else score for score in scores_found))


@dataclass(frozen=True)
class Candidate:
    """A possible answer: its parameters, where they come from, and a score if there is one."""

    theta: tuple[float, ...]
    origin: str
    score: float | None


def answer(search: Search, history: Sequence[Scored]) -> Candidate:
    """Return the sampler's own answer: PPO2's rule, CMA-ES's mean, or the best trial of the others."""
    possible = candidates(search, history)
    if search.sampler == "cmaes" or (search.sampler == "ppo2" and settings_of(search).pick == "last"):
        return possible[-1]
    return max(possible, key=lambda c: -math.inf if c.score is None else c.score)


def most_rescored(search: Search) -> int:
    """Return how many means are rescored at most: the identity, the start, the best, the last; some may be the same."""
    starts = 1 if search.initial == "identity" else 2
    return starts + min(search.rescore, total_steps(search)) + 1 if search.rescore else 0


def rescore(search: Search, history: Sequence[Scored]) -> Proposals:
    """Return the means themselves as trials: the identity, the start, the `rescore` best by average, and the last one.

    A step's average says how good its samples are, not its mean, and over few trials it chooses badly.
    """
    if not search.rescore:
        raise InputError(f"search '{search.name}' has rescore: 0, so it selects by the step averages; set rescore: 3.")
    possible = candidates(search, history)
    ranked = sorted((c for c in possible if c.score is not None), key=lambda c: c.score or 0.0, reverse=True)
    chosen = [*_starts(search), *ranked[: search.rescore]]
    if search.sampler in ("ppo2", "cmaes"):
        chosen.append(possible[-1])
    unique = list(dict.fromkeys(c.theta for c in chosen))
    return Proposals(
        search=search.name,
        settings=identity(search),
        step="rescore",
        trials=[Trial(number=FIRST_RESCORED + k, theta=list(theta)) for k, theta in enumerate(unique)],
    )


def _starts(search: Search) -> list[Candidate]:
    """Return the identity, which no search should end below, and where the search started."""
    identity_curves = search_space(search.model_copy(update={"initial": "identity"}))
    return [
        Candidate(identity_curves.initial, "the identity", None),
        Candidate(search_space(search).initial, f"the start, {Path(search.initial).name}", None),
    ]


def select(search: Search, history: Sequence[Scored], rescored: Scored | None = None) -> Surrogate:
    """Return the search's surrogate: the best of the rescored means, or the sampler's own answer."""
    if rescored is None:
        best = answer(search, history)
        score = "not scored" if best.score is None else f"average score {best.score:.6g}"
    else:
        if not rescored.proposals.agrees_with(rescore(search, history)):
            raise InputError(
                f"search '{search.name}': the rescored means are not those of its {len(history)} steps; "
                "run `autoseg rescore` and its trials again."
            )
        thetas, scores = rescored.thetas, rescored.scores
        index = int(np.argmax(scores))
        origins = {c.theta: c.origin for c in reversed([*_starts(search), *candidates(search, history)])}
        theta = tuple(float(x) for x in thetas[index])
        best = Candidate(theta, origins.get(theta, "a rescored mean"), scores[index])
        score = f"own score {scores[index]:.6g}, best of {len(scores)}"
    return surrogate(search, best.theta, source=f"search '{search.name}': {best.origin}, {score}")


def candidates(search: Search, history: Sequence[Scored]) -> list[Candidate]:
    """Return the possible answers in order: the first is the start, the last the newest mean."""
    _check_history(search, history)
    if not history:
        raise InputError(f"search '{search.name}' has no finished step to select from.")
    space = search_space(search)
    settings = settings_of(search, space)
    if search.sampler == "ppo2":
        means = [policy.mu for policy in _policies(search, space, settings, history)]
        if settings.answer == "expectation":
            means = [expectation(mu, settings.sigma, settings.family) for mu in means]
    elif search.sampler == "cmaes":
        means = [
            np.clip(cma.mean, 0, 1) if space.bounded else cma.mean for cma in _cma_es(search, space, settings, history)
        ]
    else:
        return [
            Candidate(tuple(trial.theta), f"trial {trial.number}", score)
            for step in history
            for trial, score in zip(step.proposals.trials, step.scores, strict=True)
        ]
    averages = [*(step.average for step in history), None]
    return [
        Candidate(tuple(float(x) for x in mean), f"mean of step {number}", average)
        for number, (mean, average) in enumerate(zip(means, averages, strict=True), start=1)
    ]


def _check_history(search: Search, history: Sequence[Scored]) -> None:
    expected = identity(search)
    for number, step in enumerate(history, start=1):
        if step.proposals.step != number:
            raise InputError(
                f"search '{search.name}': expected the proposals of step {number}, found those of "
                f"{step.proposals.step}."
            )
        if step.proposals.settings != expected:
            raise InputError(
                f"search '{search.name}': the proposals of step {number} were made with other settings; "
                "give them back, or search in a new folder."
            )
    if search.sampler == "ppo2":
        space = search_space(search)
        for step, policy in zip(history, _policies(search, space, settings_of(search, space), history), strict=False):
            if step.proposals.mu is None or not np.allclose(step.proposals.mu, policy.mu, rtol=0, atol=1e-6):
                raise InputError(
                    f"search '{search.name}': step {step.proposals.step} does not follow from the scores before it, "
                    "which have changed since; ask for it again in a new folder, or give the scores back."
                )


# ---------------------------------------------------------------------------------- the samplers, from the history


def _policies(search: Search, space: Space, settings: Settings, history: Sequence[Scored]) -> list[Policy]:
    """Return PPO2's policies, mu_1 first: one more than there are steps in the history."""
    mu = np.array(space.initial)
    if settings.optimise == "logit":
        mu = np.clip(mu, 1e-3, 1 - 1e-3)  # a warm start may lie on the edge, where the logit is infinite
    policies = [Policy(mu)]
    for number, step in enumerate(history, start=1):
        policies.append(next_policy(settings, policies[-1], number, step.thetas, step.scores))
    return policies


def _cma_es(search: Search, space: Space, settings: Settings, history: Sequence[Scored]) -> list[Any]:
    """Return CMA-ES (the package behind Optuna's CmaEsSampler) as it was before every step, and as it is now."""
    try:
        from cmaes import CMA
    except ImportError:
        raise InputError("sampler 'cmaes' needs the package cmaes: pip install 'autoseg[search]'.") from None
    states = []
    for length in range(len(history) + 1):
        cma = CMA(
            np.array(space.initial),
            settings.sigma,
            np.tile([0.0, 1.0], (len(space.names), 1)) if space.bounded else None,
            population_size=settings.trials_per_step,
            seed=search.seed,
        )
        for step in history[:length]:
            cma.tell([(theta, -score) for theta, score in zip(step.thetas, step.scores, strict=True)])
        cma.reseed_rng(_seed(search, length + 1))
        states.append(cma)
    return states


def _by_optuna(search: Search, space: Space, settings: Settings, history: Sequence[Scored]) -> list[list[float]]:
    """Return a step proposed by one of Optuna's samplers, which sees the whole history and is seeded by the step."""
    seed = _seed(search, len(history) + 1)
    sampler: optuna.samplers.BaseSampler
    if search.sampler == "random":
        sampler = optuna.samplers.RandomSampler(seed=seed)
    elif search.sampler == "tpe":
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    else:
        sampler = optuna.samplers.GPSampler(seed=seed)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.add_trials(_frozen(space, history))
        if not history:
            study.enqueue_trial(dict(zip(space.names, space.initial, strict=True)))
        thetas = []
        for _ in range(settings.trials_per_step):
            trial = study.ask(dict(space.distributions))
            thetas.append([trial.params[name] for name in space.names])
            if search.sampler == "gp" and history:
                # A Gaussian process does not see running trials: without a believed score it proposes the same again.
                study.tell(trial, history[-1].average)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return thetas


def _seed(search: Search, step: int) -> int:
    return int(np.random.SeedSequence([search.seed, step]).generate_state(1)[0])


def _frozen(space: Space, history: Sequence[Scored]) -> list[optuna.trial.FrozenTrial]:
    distributions: dict[str, Any] = dict(space.distributions)
    return [
        optuna.create_trial(
            params=dict(zip(space.names, trial.theta, strict=True)),
            distributions=distributions,
            value=score,
            user_attrs={"step": step.proposals.step},
        )
        for step in history
        for trial, score in zip(step.proposals.trials, step.scores, strict=True)
    ]


# ------------------------------------------------------------------------------------------------------- the files


class Folder:
    """The files of one search."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def start(self, search: Search, *, replace: bool = False) -> Search:
        """Write `search.json`, or check that the one that is there says the same; return what it says.

        Curves to start from are copied, as `initial.json`: the search goes on when their file changes or is gone. With
        `replace` other settings take the place of those that are there: who does that asks every step again.
        """
        identity(search)  # what cannot be searched must not be written
        if (self.path / "search.json").exists() and not replace and (changed := changes(self.search(), search)):
            raise InputError(
                f"{self.path / 'search.json'}: this search was started with other settings ({', '.join(changed)}); "
                "give them back, or search in a new folder."
            )
        if search.starts_from_file:
            Surrogate.load(search.initial).save(self.path / "initial.json")
            search = search.model_copy(update={"initial": "initial.json"})
        write_json(self.path / "search.json", search.model_dump())
        return self.search()

    def search(self) -> Search:
        """Read `search.json`."""
        if not (self.path / "search.json").exists():
            raise InputError(
                f"{self.path}: no search.json in it; run `autoseg ask {self.path} --step 1 --config FILE` first."
            )
        return load_search(self.path / "search.json")

    def step(self, step: int | Literal["rescore"]) -> Path:
        """Return the folder of a step."""
        return self.path / ("rescore" if step == "rescore" else f"step-{step:03d}")

    def write(self, proposals: Proposals) -> Path:
        """Write a step's `proposals.json`; equal content leaves the file as it is, other content is refused.

        What is rescored may change, as a search is given more steps. A score whose trial is proposed no more is set
        aside, as stale-trial-<number>.json.
        """
        path = self.step(proposals.step) / "proposals.json"
        before: dict[int, list[float]] = {}
        if path.exists():
            there = self.proposals(proposals.step)
            if there.agrees_with(proposals):
                return path
            if proposals.step != "rescore" and any(self.step(proposals.step).glob("trial-*.json")):
                raise InputError(
                    f"{path}: this step has scores for other proposals than those that would be written now; "
                    "move the step's folder away if it shall be searched anew."
                )
            before = {trial.number: trial.theta for trial in there.trials}
        now = {trial.number: trial.theta for trial in proposals.trials}
        for score in self.step(proposals.step).glob("trial-*.json"):
            number = int(score.stem.removeprefix("trial-"))
            if number not in now or (number in before and before[number] != now[number]):
                score.replace(score.with_name(f"stale-{score.name}"))
        write_json(path, proposals.model_dump(by_alias=True))
        return path

    def proposals(self, step: int | Literal["rescore"]) -> Proposals:
        """Read a step's `proposals.json`."""
        path = self.step(step) / "proposals.json"
        return parse(Proposals, read_json(path), path)

    def scored(self, step: int | Literal["rescore"]) -> Scored:
        """Read a step's proposals and all its scores."""
        proposals, metric = self.proposals(step), self.search().metric
        scores = self.scores(step)
        for score in scores:
            if score.metric != metric:
                path = self.score_path(step, score.number)
                raise InputError(f"{path}: holds a score of {score.metric}, but this search is for {metric}.")
        return record(proposals, scores, str(self.step(step)))

    def scores(self, step: int | Literal["rescore"]) -> list[TrialScore]:
        """Read the scores of a step that are there already."""
        scores = []
        for path in sorted(self.step(step).glob("trial-*.json")):
            score = parse(TrialScore, read_json(path), path)
            if path != self.score_path(step, score.number):
                raise InputError(
                    f"{path}: holds the score of trial {score.number}; the name and the number must agree."
                )
            scores.append(score)
        return scores

    def score_path(self, step: int | Literal["rescore"], number: int) -> Path:
        """Return where a trial's score is written."""
        return self.step(step) / f"trial-{number}.json"

    def write_score(self, step: int | Literal["rescore"], score: TrialScore) -> None:
        """Write a trial's score."""
        write_json(self.score_path(step, score.number), score.model_dump(by_alias=True))

    def history(self, steps: int) -> list[Scored]:
        """Read the first `steps` steps, all of which must be scored."""
        return [self.scored(step) for step in range(1, steps + 1)]


def write_journal(folder: Folder, search: Search, history: Sequence[Scored]) -> None:
    """Write what is scored so far to `journal.log`, which optuna-dashboard can open at any time.

    Only what is missing is appended. The journal is a view: if it does not fit the files, it is made anew.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    path = folder.path / "journal.log"
    frozen = _frozen(search_space(search), history)

    # One process writes it, so a lock is stale after moments: a kill must not hold up the next step for Optuna's 30 s.
    lock = JournalFileSymlinkLock(str(path), grace_period=3)

    def append() -> None:
        view = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path), lock_obj=lock)),
            study_name=search.name,
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(),
        )
        there = view.get_trials(deepcopy=False)
        if any(a.params != b.params for a, b in zip(there, frozen, strict=False)):
            raise ValueError("a journal of other trials")
        view.add_trials(frozen[len(there) :])

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            path.unlink()  # torn by a kill
        try:
            append()
        except (ValueError, KeyError, optuna.exceptions.OptunaError):
            path.unlink(missing_ok=True)
            append()
    finally:
        optuna.logging.set_verbosity(verbosity)
