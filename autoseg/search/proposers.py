"""The samplers of a search, each rebuilt from the scored steps: what it proposes next, and its means so far.

Optuna is imported only by the samplers that need it, not by PPO2 and CMA-ES.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from autoseg.errors import InputError
from autoseg.search import guided, ppo2
from autoseg.search.ppo2 import Array
from autoseg.search.records import PriorTrials, Scored
from autoseg.search.settings import Search
from autoseg.search.space import Space, search_space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from autoseg.search.model import Model

Z_BOUND = 10.0
"""Optuna knows no unbounded float: the z of linear curves are declared in [-10, 10], 50 sigmas wide, and sampled
without truncation."""


class Proposer:
    """A sampler after the steps of a history.

    `mus` are the means that each step was sampled around, and that of the next step; `means` are what these answer
    with. Both are empty for samplers without a mean.
    """

    def __init__(self, search: Search, history: Sequence[Scored], prior: PriorTrials | None = None) -> None:
        self.search, self.history = search, history
        self.prior = history[0].proposals.prior if history else prior
        self.settings, self.space = search.settings, search_space(search)
        self.mus: list[Array] = []
        self.means: list[Array] = []

    @cached_property
    def other(self) -> Model | None:
        """The model of another search's trials, if the search was given some."""
        if self.prior is None:
            return None
        return guided.other_model(self.prior.thetas, self.prior.scores, self.settings.sigma)

    def propose(self, numbers: range) -> list[Array]:
        """Return the parameters of the next step's trials."""
        raise NotImplementedError

    @property
    def best(self) -> int | None:
        """The index of the mean that is the answer; None: the best trial is."""
        return None


class PPO2(Proposer):
    """The paper's search; every policy is computed once.

    Where a model moves the mean, the means before the newest are those in the files: a fit for each would take long.
    """

    def __init__(self, search: Search, history: Sequence[Scored], prior: PriorTrials | None = None) -> None:
        super().__init__(search, history, prior)
        self.model: Model | None = None
        first = ppo2.initial_policy(self.settings, self.space.initial)
        if self.settings.move == "model":
            self.policies = [first, *(ppo2.Policy(np.array(step.proposals.mu)) for step in history[1:])]
            if history:
                centre = self.policies[-1].mu
                if len(history) == 1 and self.other is not None:
                    second = guided.second_start(self.settings, self.other)
                    centre = guided.better_start(centre, second, history[0].scores)
                mu, self.model = guided.moved(
                    self.settings, centre, *trials_of(history), doubts_of(history), self.other
                )
                self.policies.append(ppo2.Policy(mu))
        else:
            self.policies = ppo2.policies(self.settings, first, ((step.thetas, step.scores) for step in history))
        self.mus = [policy.mu for policy in self.policies]
        self.means = [ppo2.answer_of(self.settings, policy) for policy in self.policies]

    def propose(self, numbers: range) -> list[Array]:
        """Sample the newest policy, or have the model choose."""
        policy, seed = self.policies[-1], self.search.seed
        if self.model is None and self.other is not None:
            second = guided.second_start(self.settings, self.other)
            return list(guided.from_two_starts(self.settings, policy.mu, second, seed, numbers))
        if self.model is not None:
            design = guided.chosen(self.settings, self.model, policy.mu, seed, len(self.policies))
            policy = policy._replace(design=design, begin=numbers[0])
        return [ppo2.draw(self.settings, policy, seed, n, first=n == numbers[0]) for n in numbers]

    @property
    def best(self) -> int:
        """The mean of the step with the best average score, or the newest."""
        return ppo2.best_step(self.settings, [step.average for step in self.history]) - 1


class CMAES(Proposer):
    """CMA-ES, by the package behind Optuna's CmaEsSampler; its population is a step."""

    def __init__(self, search: Search, history: Sequence[Scored], prior: PriorTrials | None = None) -> None:
        super().__init__(search, history, prior)
        try:
            from cmaes import CMA
        except ImportError:
            raise InputError(
                "'cmaes' needs the package cmaes", where="sampler", cure="pip install 'autoseg[search]'"
            ) from None
        space, size = self.space, self.settings.trials_per_step
        bounds = np.tile([0.0, 1.0], (len(space.names), 1)) if space.bounded else None
        with np.errstate(divide="ignore"):  # of 2 or 3 trials it takes the lesser of a share and 1 / 0
            cma = CMA(np.array(space.initial), self.settings.sigma, bounds, population_size=size, seed=search.seed)
        self.mus = [cma.mean.copy()]
        for step in history:
            cma.tell([(theta, -score) for theta, score in zip(step.thetas, step.scores, strict=True)])
            self.mus.append(cma.mean.copy())
        cma.reseed_rng(_seed(search, len(history) + 1))
        self.cma = cma
        self.means = [np.clip(mu, 0, 1) for mu in self.mus] if space.bounded else self.mus

    def propose(self, numbers: range) -> list[Array]:
        """Ask for a population."""
        return [self.cma.ask() for _ in numbers]

    @property
    def best(self) -> int:
        """The newest mean."""
        return len(self.means) - 1


class AMLFS(Proposer):
    """The search of AM-LFS: samples of a normal distribution, whose mean REINFORCE moves with Adam.

    The scores of a step are compared with each other alone: its trials start from other weights than those before.
    """

    RATE = 0.05

    def __init__(self, search: Search, history: Sequence[Scored], prior: PriorTrials | None = None) -> None:
        super().__init__(search, history, prior)
        mu = np.array(self.space.initial)
        self.mus, adam = [mu], ppo2.Adam.new(mu)
        for step in history:
            # The gradient of the expected reward: the mean of R d log N(theta; mu, sigma) / d mu.
            rewards = self.rewards(np.array(step.scores))
            slope = (rewards[:, None] * (step.thetas - mu)).mean(axis=0) / self.settings.sigma**2
            mu, adam = adam.ascend(mu, slope, self.RATE)
            self.mus.append(mu)
        self.means = self.mus

    @staticmethod
    def rewards(scores: Array) -> Array:
        """Return the rewards of a step's scores: of mean 0 and deviation 1, or all 0 where the scores are equal."""
        rewards = scores - scores.mean()
        return rewards / spread if (spread := rewards.std()) > 0 else rewards

    def propose(self, numbers: range) -> list[Array]:
        """Sample around the newest mean."""
        s = self.settings
        return [ppo2.propose(self.mus[-1], self.search.seed, n, sigma=s.sigma, family="normal") for n in numbers]

    @property
    def best(self) -> int:
        """The newest mean."""
        return len(self.means) - 1


class ByOptuna(Proposer):
    """One of Optuna's samplers: it gets the whole history, and is seeded by the step.

    The first trial of TPE and of the Gaussian process is the start; random search has none. Both take the step's other
    trials into account, which have no score yet.
    """

    def propose(self, numbers: range) -> list[Array]:
        """Ask a study that is rebuilt from the history."""
        import optuna

        seed = _seed(self.search, len(self.history) + 1)
        sampler: optuna.samplers.BaseSampler
        if self.search.sampler == "random":
            sampler = optuna.samplers.RandomSampler(seed=seed)
        elif self.search.sampler == "tpe":
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        else:
            sampler = optuna.samplers.GPSampler(seed=seed)
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(direction="maximize", sampler=sampler)
            study.add_trials(as_trials(self.space, self.history))
            if not self.history and self.search.sampler != "random":
                study.enqueue_trial(dict(zip(self.space.names, self.space.initial, strict=True)))
            thetas = []
            for _ in numbers:
                trial = study.ask(distributions(self.space))
                thetas.append(np.array([trial.params[name] for name in self.space.names]))
        finally:
            optuna.logging.set_verbosity(verbosity)
        return thetas


def trials_of(history: Sequence[Scored]) -> tuple[Array, Array]:
    """Return the parameters and the scores of all trials of a history."""
    return np.concatenate([step.thetas for step in history]), np.concatenate([step.scores for step in history])


def doubts_of(history: Sequence[Scored]) -> Array:
    """Return how far off the scores of trials may be that were ended early; 0 for the others."""
    return np.concatenate([step.doubts for step in history])


def replay(search: Search, history: Sequence[Scored], prior: PriorTrials | None = None) -> Proposer:
    """Return the search's sampler as it is after the history; before the first step, with another search's trials."""
    kind = {"ppo2": PPO2, "cmaes": CMAES, "am-lfs": AMLFS}.get(search.sampler, ByOptuna)
    return kind(search, history, prior)


def _seed(search: Search, step: int) -> int:
    return int(np.random.SeedSequence([search.seed, step]).generate_state(1)[0])


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return a search's space as Optuna sees it."""
    from optuna.distributions import FloatDistribution

    low, high = (0.0, 1.0) if space.bounded else (-Z_BOUND, Z_BOUND)
    return {name: FloatDistribution(low, high) for name in space.names}


def as_trials(space: Space, history: Sequence[Scored]) -> list[FrozenTrial]:
    """Return the scored trials as Optuna's; their user attributes have all metrics, and the mean score of the step."""
    import optuna

    known: dict[str, Any] = dict(distributions(space))
    trials = []
    for step in history:
        about = {"step": step.proposals.step, "step's mean score": step.average}
        for k, (trial, score, ended) in enumerate(zip(step.proposals.trials, step.scores, step.ended, strict=True)):
            file = step.files[k] if step.files else None
            own: dict[str, Any] = {**file.scores, "diverged": file.diverged} if file else {}
            own |= {"ended": True} if ended else {}
            params = dict(zip(space.names, trial.theta, strict=True))
            trials.append(
                optuna.create_trial(params=params, distributions=known, value=score, user_attrs={**about, **own})
            )
    return trials
