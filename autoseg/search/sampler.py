"""PPO2 as an Optuna sampler: which step a trial belongs to, and what the study keeps of the steps.

The algorithm itself is in `autoseg.search.ppo2`. Knows nothing of losses, networks or files, and never imports torch.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, NamedTuple

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autoseg.errors import InputError, unknown, whole_number
from autoseg.search.box import Box, Number, by_name
from autoseg.search.foreign import Foreign, Warner
from autoseg.search.frozen import (
    DRAW,
    agree_on_settings,
    check_members,
    draw_of,
    freeze,
    is_mu,
    records,
    refuse_several_objectives,
    settings_of,
    sign_of,
    thaw,
    trials_of,
    unused,
)
from autoseg.search.guided import guided_policy
from autoseg.search.model import model_answer
from autoseg.search.ppo2 import (
    PRESETS,
    Array,
    Policy,
    Settings,
    answer_of,
    best_step,
    draw,
    initial_policy,
    next_policy,
)


class BestMean(NamedTuple):
    """The answer of a search: the mean of a step's policy by parameter name, and that step's average score.

    `score` is None when the policy was never scored, as the one after the last step with `pick="last"`. `ignored`
    counts the complete and the pruned trials that took part in no step, by reason.
    """

    step: int
    mean: dict[str, float]
    score: float | None
    ignored: dict[str, int]


class _Step(NamedTuple):
    policy: Policy
    members: list[FrozenTrial]  # what the next policy was, or would be, made of; fewer than M while unfinished
    drawn: list[FrozenTrial]  # all trials sampled from the policy, in any state


class PPO2Sampler(BaseSampler):
    """Auto Seg-Loss's parameter search as an Optuna sampler: steps of M trials around a mean that PPO2 moves.

    >>> import optuna
    >>> from optuna.distributions import FloatDistribution
    >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
    >>> space = {"x": FloatDistribution(0, 1), "y": FloatDistribution(-5, 5)}
    >>> study = optuna.create_study(direction="maximize", sampler=PPO2Sampler(space, trials_per_step=8, steps=20))
    >>> study.optimize(
    ...     lambda t: -((t.suggest_float("x", 0, 1) - 0.7) ** 2) - (t.suggest_float("y", -5, 5) / 10) ** 2, n_trials=160
    ... )
    >>> best = study.sampler.best_mean(study)
    >>> bool(abs(best.mean["x"] - 0.7) < 0.05 and abs(best.mean["y"]) < 0.5)
    True

    The answer is `answer(study)`, or by the paper's rule `best_mean(study)`. It is not `study.best_trial`, which under
    noise is only the luckiest sample.

    The sampler keeps nothing in memory. A trial's random numbers come from (seed, trial number). `Study.ask` puts the
    trial into the smallest step with fewer than M COMPLETE trials of finite value, so no step waits for a lost worker.
    When a step is full, the policy of the next one is frozen in the study's user attributes, with the numbers of the
    trials it was made of: the first M to complete (`policies`). So several processes on one storage agree, and a fresh
    sampler continues exactly where the last one stopped. Trials that failed, were pruned or enqueued, or that lack a
    parameter of the space or gave it another range take part in no update; `best_mean(study).ignored` counts the
    pruned and the complete ones among them.

    A pruned trial has no score, only the value of an earlier epoch, so PPO2 learns nothing from it: another sample
    takes its place. Where many are pruned, the averages of steps are those of the trials that were not. An objective
    that is to teach PPO2 to stay away returns the value that it has instead of raising `TrialPruned`. Constraints
    (`trial.set_constraint`) are refused.

    With several workers, trials that are still running when their step is full come too late for it and do not count:
    k workers lose up to k - 1 trials per step, so n trials make about n / (M + k - 1) steps. Where a trial is
    expensive, ask whole steps (M times `study.ask`), as `autoseg search` does, or choose M much larger than k.

    Args:
        search_space: Optuna distributions by name. Floats and ints are searched, each mapped to [0, 1]: linearly, by
            their logarithms with `log=True`, and with a `step` (ints have one) by bins of the same width for all
            values. Anything else in here, and any other parameter of the objective, is left to the independent sampler,
            which is warned of once.
        trials_per_step: M, at least 2.
        steps: T, the planned number of steps, on which `clip=None` and `anneal` depend; a study may have more or fewer.
        sigma: the policy's fixed standard deviation, as a share of each parameter's range (the parameter's own unit
            with `family="normal"`).
        clip: epsilon of the clipped ratio. It acts as the step size; None means 3 / steps.
        updates: Adam ascents per step.
        seed: with the trial number, the source of all random numbers.
        ratio: "dimension" (release) clips p(theta; mu) / p(theta; mu_t) coordinate by coordinate; "joint" is the
            paper's one ratio per sample, whose step also depends on `lr`.
        baseline: "mean" subtracts the step's mean score (paper); "mu" the score of mu itself, which then is the first
            trial of every step (release). If that trial is lost, it is run once more after M - 1 others. If it is lost
            again, the step takes the mean score, and its frozen policy says so.
        lr: Adam's learning rate.
        initial_mean: mu_1 by parameter name, in the parameters' units; the middle of the range where not given (0 with
            `family="normal"` where 0 is in range). With `optimise="logit"` a mean on the edge of its range starts .001
            of the range inside.
        independent_sampler: for the parameters outside the policy; None is Optuna's TPESampler, seeded by (seed, trial
            number, name), so that they resume as exactly as the others.
        family: "truncated" is N_trunc[0,1](mu, sigma^2 I); "normal" has no truncation: the bounds of the distributions
            are then only a limit far outside what is sampled, as for the z of piecewise linear curves; plain floats
            alone are searched then.
        optimise: Adam moves "mu" itself, projected on its bounds, or its "logit" (release).
        keep_adam: carry Adam's moments from step to step (release).
        anneal: let the clip fall linearly, to clip / steps at the last step; `clip=None` then starts at 6 / steps.
        mirrored: trials 2k and 2k + 1 use the quantiles u and 1 - u of the policy, on both sides of its median; far
            from the edges they are mirror images about mu.
        move: "ppo2" is the paper's update. "model" fits a Gaussian process to all trials: mu goes to its maximum within
            .75 sigma, and from the second step on it chooses the trials (Thompson sampling among samples of the
            policy). That takes a second or two at the end of a step of a long search, and no time in between.
        answer: "mu" answers with the parent's mean (paper), which stays in the range; near an edge it moves past a good
            point. "expectation" answers with the mean of the truncated normal, and mu may then go 4 sigma beyond the
            range, so that the answer comes as near as .23 sigma to an edge (with `baseline="mu"`, .8 sigma). "model"
            is the maximum of a Gaussian process within .75 sigma of that mean, fitted to all trials (`answer`);
            `best_mean` then has the mean.
        pick: "best" answers with the step of the best average score (paper); "last" with the newest policy, which no
            trial has sampled yet.
    """

    def __init__(
        self,
        search_space: Mapping[str, BaseDistribution],
        *,
        trials_per_step: int = 32,
        steps: int = 20,
        sigma: float = 0.2,
        clip: float | None = None,
        updates: int = 100,
        seed: int = 0,
        ratio: Literal["dimension", "joint"] = "dimension",
        baseline: Literal["mean", "mu"] = "mean",
        lr: float = 0.01,
        initial_mean: Mapping[str, float] | None = None,
        independent_sampler: BaseSampler | None = None,
        family: Literal["truncated", "normal"] = "truncated",
        optimise: Literal["mu", "logit"] = "mu",
        keep_adam: bool = False,
        anneal: bool = False,
        mirrored: bool = False,
        move: Literal["ppo2", "model"] = "ppo2",
        answer: Literal["expectation", "mu", "model"] = "expectation",
        pick: Literal["best", "last"] = "best",
    ) -> None:
        given = locals()  # every field of Settings is an argument of the same name
        self.settings = Settings(**{field.name: given[field.name] for field in fields(Settings)})
        self.seed = whole_number(seed, "seed")
        self._initial_mean = by_name(initial_mean)
        self._box = Box.of(search_space, self.settings.family)
        self._box.initial(self._initial_mean)
        self._warner = Warner()
        self._foreign = Foreign(independent_sampler, search_space, self.settings.family, self.seed, self._warner)

    @classmethod
    def preset(cls, name: str, search_space: Mapping[str, BaseDistribution], **changes: Any) -> PPO2Sampler:
        """Return the sampler of a preset ("recommended", "annealed", "paper", "release"), with any argument changed.

        >>> from optuna.distributions import FloatDistribution
        >>> PPO2Sampler.preset("release", {"x": FloatDistribution(0, 1)}, seed=1).settings.clip
        0.2
        """
        if name not in PRESETS:
            raise unknown("PPO2 preset", name, PRESETS, where="preset")
        known = [key for key in inspect.signature(cls).parameters if key != "search_space"]
        for key in changes:
            if key not in known:
                raise unknown("PPO2Sampler argument", key, known)
        return cls(search_space, **{**PRESETS[name], **changes})

    def __repr__(self) -> str:
        s, count = self.settings, len(self.search_space)
        kind = "moved by a model" if s.move == "model" else "moved by PPO2"
        return (
            f"PPO2Sampler({count} parameter{'s' * (count != 1)}, {s.steps} steps of {s.trials_per_step} trials, "
            f"{kind}, sigma={s.sigma:g}, seed={self.seed})"
        )

    @property
    def search_space(self) -> dict[str, Number]:
        """The parameters that are searched."""
        return self._box.distributions

    @property
    def initial_policy(self) -> Policy:
        """The policy of step 1."""
        return initial_policy(self.settings, self._box.initial(self._initial_mean))

    # What Optuna calls.

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Give the trial its step and its sample, at the moment it is asked."""
        if DRAW in trial.system_attrs:
            return  # Optuna made the Trial object again for a trial that was asked before
        try:
            drawn = self._draw(study, trial)
        except InputError:
            # A refused trial must not stay RUNNING; an enqueued one goes back into the queue.
            state = TrialState.WAITING if "fixed_params" in trial.system_attrs else TrialState.FAIL
            study._storage.set_trial_state_values(trial._trial_id, state)
            raise
        study._storage.set_trial_system_attr(trial._trial_id, DRAW, drawn)
        self._foreign.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return an empty space: given mu, the policy's coordinates are independent, so each is drawn when suggested.

        That also lets an objective suggest a name with another kind or range than the space has: such a parameter is
        left to the independent sampler instead of being an error.
        """
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Sample every parameter of `search_space` for this trial."""
        refuse_several_objectives(study)
        return {name: self.sample_independent(study, trial, name, d) for name, d in search_space.items()}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the trial's sample of a parameter of the policy, or ask the independent sampler for another one."""
        refuse_several_objectives(study)
        if self.search_space.get(param_name) == param_distribution:
            return (draw_of(trial, self.search_space) or self._draw(study, trial))["params"][param_name]
        return self._foreign.sample(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Warn of a complete trial that is of no use, and of a pruned one; refuse constraints."""
        if state == TrialState.COMPLETE and (missing := self._box.missing(trial)):
            self._warner.once(
                study,
                "missing",
                f"trial {trial.number} did not suggest {', '.join(missing)} with the distribution of the search space, "
                "so it takes part in no update of PPO2; such trials never finish a step.",
            )
        self._foreign.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Reseed the independent sampler; this one's random numbers depend on the trial number alone."""
        self._foreign.reseed()

    # The steps, read from the study.

    def _draw(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        refuse_several_objectives(study)
        self._agree_on_settings(study, write=True)
        steps = self._steps(study, writer=trial.number)
        step, (policy, members, drawn) = len(steps), steps[-1]
        first = self.settings.baseline == "mu" and self._needs_mu(members, drawn)
        params = self._box.params(draw(self.settings, policy, self.seed, trial.number, first=first))
        if policy.design is not None and any(draw_of(other)["params"] == params for other in drawn):
            # A process that was held up has begun this step again, and the rows come round: this is a plain sample.
            plain = policy._replace(design=None)
            params = self._box.params(draw(self.settings, plain, self.seed, trial.number, first=first))
        fixed = trial.system_attrs.get("fixed_params", {})
        return {
            # An enqueued trial is no sample of the policy, unless only foreign parameters were given.
            "step": None if set(fixed) & set(self.search_space) else step,
            "mu": policy.mu.tolist(),
            "is_mu": first,
            "params": params,
        }

    def _needs_mu(self, members: list[FrozenTrial], drawn: list[FrozenTrial]) -> bool:
        """Whether mu's own trial is to be run now: first, or again when it is lost and the other trials are done."""
        tried = any(is_mu(t) for t in drawn)
        others_are_done = len(members) >= self.settings.trials_per_step - 1
        missing = not any(is_mu(t) for t in members)
        return missing and (not tried or others_are_done) and not self._mu_is_given_up(drawn)

    def _mu_is_given_up(self, drawn: list[FrozenTrial]) -> bool:
        """Whether mu's own trial was lost twice, or asked for three times without an answer."""
        mine = [t for t in drawn if is_mu(t)]
        lost = [t for t in mine if t.state.is_finished() and not self._counts(t)]
        return len(lost) >= 2 or len(mine) >= 3

    def _agree_on_settings(self, study: Study, write: bool = False) -> None:
        """Refuse a study that was started with other settings; write the settings into a new one."""
        theirs = settings_of(study)
        order = list(theirs.get("search_space", self.search_space))
        if order != list(self.search_space) and set(order) == set(self.search_space):
            self._box = self._box.in_order(order)
        began_with = theirs.get("seed", self.seed)
        if began_with != self.seed:
            self._warner.once(
                study,
                "seed",
                f"seed {self.seed}, but the study began with {began_with}: new trials differ from an exact resume.",
            )
        agree_on_settings(study, self.settings, self._box, self.initial_policy.mu, self.seed, write)

    def _steps(self, study: Study, writer: int | None = None) -> list[_Step]:
        """Return the steps so far: their policies and members; the last one is unfinished.

        The trial `writer` freezes what is full and not frozen yet; without one nothing is written.
        """
        while True:
            chain = self.policies(study)  # read before the trials, so that every member is among them
            trials = trials_of(study)
            by_number = {t.number: t for t in trials}
            policies = [self.initial_policy, *map(thaw, chain)]
            for record, policy in zip(chain, policies[1:], strict=True):
                check_members(study, record, policy.mu.shape == policies[0].mu.shape, by_number)
            steps = [
                _Step(policy, [by_number[n] for n in record["members"]], [])
                for policy, record in zip(policies, chain, strict=False)
            ]
            number, policy = len(policies), policies[-1]
            mu = policy.mu.tolist()
            drawn = [t for t in trials if (own := draw_of(t)) and own["step"] == number and own["mu"] == mu]
            members = self._members(drawn)
            steps.append(_Step(policy, members, drawn))
            if len(members) < self.settings.trials_per_step:
                return steps
            successor = self._successor(study, self.settings, steps)._replace(begin=writer or 0)
            if writer is None:
                return [*steps, _Step(successor, [], [])]
            freeze(
                study,
                number + 1,
                successor,
                writer,
                parent=chain[-1]["writer"] if chain else None,
                members=[t.number for t in members],
                clip=self.settings.clip_at(number),
                baseline=self._baseline(members),
            )

    @staticmethod
    def policies(study: Study) -> list[dict[str, Any]]:
        """Return the frozen policies of steps 2, 3, ...: `mu`, and the `members`, `clip`, `baseline` that made it."""
        return records(study)

    def _counts(self, trial: FrozenTrial) -> bool:
        return trial.state == TrialState.COMPLETE and math.isfinite(trial.values[0]) and not self._box.missing(trial)

    def _members(self, drawn: list[FrozenTrial]) -> list[FrozenTrial]:
        """Return the first M to complete, by number, so that a late trial changes no step.

        With `baseline="mu"` a place is kept for mu's own trial, until that is given up.
        """
        order = sorted(
            (t for t in drawn if self._counts(t)),
            key=lambda t: (t.datetime_complete is None, t.datetime_complete, t.number),
        )
        places = self.settings.trials_per_step
        chosen = order[:places]
        if self.settings.baseline == "mu" and not any(is_mu(t) for t in chosen):
            mine = [t for t in order if is_mu(t)][:1]
            if mine or not self._mu_is_given_up(drawn):
                chosen = mine + [t for t in order if t not in mine][: places - 1]
        return sorted(chosen, key=lambda t: t.number)

    def _baseline(self, members: list[FrozenTrial]) -> Literal["mean", "mu"]:
        return "mu" if self.settings.baseline == "mu" and any(is_mu(t) for t in members) else "mean"

    def _told(self, study: Study, trials: list[FrozenTrial]) -> tuple[Array, Array]:
        """Return the parameters and the scores of trials, higher being better."""
        thetas = np.array([self._box.theta(t.params) for t in trials])
        return thetas, sign_of(study) * np.array([float(t.values[0]) for t in trials])

    def _successor(self, study: Study, settings: Settings, steps: list[_Step]) -> Policy:
        """Return the policy after the last of the steps, which is full."""
        number, (policy, members, _) = len(steps), steps[-1]
        if settings.move == "model":
            told = self._told(study, [t for step in steps for t in step.members])
            return guided_policy(settings, policy.mu, self.seed, number, *told)
        thetas, scores = self._told(study, members)
        thetas[[is_mu(t) for t in members]] = policy.mu
        return next_policy(settings, policy, number, thetas, scores, baseline=self._baseline(members))

    def best_mean(self, study: Study) -> BestMean:
        """Return the search's answer: the mean of the finished step with the best average score (Algorithm 1, line 9).

        The paper also lets mu_(T+1) compete, which takes one more step of M trials. With `pick="last"` the answer is
        the newest policy instead, whose score is None as long as no step has sampled it.
        """
        return self._best_mean(study, self._read_steps(study))

    def _read_steps(self, study: Study) -> list[_Step]:
        refuse_several_objectives(study)
        self._agree_on_settings(study)
        return self._steps(study)

    def _best_mean(self, study: Study, steps: list[_Step]) -> BestMean:
        finished = steps[:-1]
        ignored = unused(study, self._box, {t.number for step in steps for t in step.members})
        if not finished:
            counts = "; ".join(f"{count} {reason}" for reason, count in ignored.items())
            raise InputError(
                f"no step is finished yet: {len(steps[-1].members)} of {self.settings.trials_per_step} trials of "
                "step 1 are complete" + (f"; complete trials that do not count: {counts}" if ignored else ""),
                where=f"study '{study.study_name}'",
            )
        scores = [sum(t.values[0] / len(step.members) for t in step.members) for step in finished]
        number = best_step(self.settings, [sign_of(study) * score for score in scores])
        score = scores[number - 1] if number <= len(finished) else None
        mean = answer_of(self.settings, steps[number - 1].policy)
        return BestMean(number, self._box.params(mean), score, ignored)

    def answer(self, study: Study) -> dict[str, float]:
        """Return the parameters that the search answers with, by name.

        With `answer="model"`, as in the preset "recommended", that is the best point near the newest mean by a model of
        all complete trials, if that model is believed (docs/searches.md); otherwise it is `best_mean(study).mean`.
        """
        steps = self._read_steps(study)  # once: where the last step is full, that fits a model
        best = self._best_mean(study, steps)
        if self.settings.answer != "model":
            return best.mean
        told = [t for t in trials_of(study) if self._counts(t)]
        numbers = [draw_of(t).get("step") or 0 for t in told]
        newest = answer_of(self.settings, steps[-1].policy)
        bounded = self.settings.family == "truncated"
        found = model_answer(*self._told(study, told), numbers, newest, self.settings.sigma, bounded=bounded)
        return self._box.params(found.theta) if found.trusted else best.mean
