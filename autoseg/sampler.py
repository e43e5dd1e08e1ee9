"""PPO2, the paper's parameter search (Algorithm 1), as two pure functions and the Optuna sampler on top of them.

Knows nothing of losses, networks or files, and never imports torch: a search space and scores are all it sees.
"""

from __future__ import annotations

import inspect
import math
import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from scipy.special import ndtr, ndtri

from autoseg.errors import InputError, unknown

Array = NDArray[np.float64]

# How many sigmas beyond [0, 1] mu may go where it is only the parent's mean: at the bound the policy's expectation is
# .23 sigma from the edge; with mu in [0, 1] it could never come nearer than .8 sigma.
REACH = 4.0

# What a preset says differently from the default settings. `paper`: section 3.3 and Algorithm 1 (the optimiser and its
# rate are not in the paper; the joint ratio's step depends on both). `release`: the authors' released code. `annealed`
# is ours: mirrored pairs of samples, a clip that falls over the planned steps, and the last policy as answer.
PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"clip": 0.1, "ratio": "joint", "answer": "mu"},
    "release": {
        "steps": 12,
        "clip": 0.2,
        "updates": 60,
        "baseline": "mu",
        "lr": 0.2,
        "optimise": "logit",
        "keep_adam": True,
        "answer": "mu",
    },
    "annealed": {"anneal": True, "mirrored": True, "pick": "last"},
}


@dataclass(frozen=True)
class Settings:
    """Every number and choice of the search algorithm; `PPO2Sampler` documents them.

    >>> Settings(steps=20).clip_at(1), Settings(steps=5).clip_at(1)
    (0.15, 0.6)
    >>> Settings.preset("paper").clip_at(1)
    0.1
    """

    trials_per_step: int = 32
    steps: int = 20
    sigma: float = 0.2
    clip: float | None = None
    updates: int = 100
    lr: float = 0.01
    ratio: Literal["dimension", "joint"] = "dimension"
    baseline: Literal["mean", "mu"] = "mean"
    optimise: Literal["mu", "logit"] = "mu"
    keep_adam: bool = False
    anneal: bool = False
    mirrored: bool = False
    answer: Literal["expectation", "mu"] = "expectation"
    pick: Literal["best", "last"] = "best"
    family: Literal["truncated", "normal"] = "truncated"

    def __post_init__(self) -> None:
        # NumPy's numbers are taken, as Python's, so that everything here can be written down.
        for name, least in (("trials_per_step", 2), ("steps", 1), ("updates", 1)):
            object.__setattr__(self, name, _whole_number(name, getattr(self, name), least))
        for name in ("sigma", "lr", "clip"):
            value = getattr(self, name)
            if name == "clip" and value is None:
                continue
            if not (_is_number(value) and value > 0):
                raise InputError(f"PPO2: {name} must be a positive number, not {value!r}.")
            object.__setattr__(self, name, float(value))
        for name, hint in get_type_hints(type(self)).items():
            known = (False, True) if hint is bool else get_args(hint) if get_origin(hint) is Literal else ()
            if known and getattr(self, name) not in known:
                raise unknown(f"PPO2 {name}", str(getattr(self, name)), [str(choice) for choice in known])
            if hint is bool:
                object.__setattr__(self, name, bool(getattr(self, name)))
        if self.family == "normal" and self.optimise == "logit":
            raise InputError("PPO2: optimise='logit' needs a mean in [0, 1]; with family='normal' use optimise='mu'.")

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Settings:
        """Return the settings of a preset, with changes: `Settings.preset("release", steps=20)`."""
        if name not in PRESETS:
            raise unknown("PPO2 preset", name, PRESETS)
        known = [field.name for field in fields(cls)]
        for key in changes:
            if key not in known:
                raise unknown("PPO2 setting", key, known)
        return cls(**{**PRESETS[name], **changes})

    def clip_at(self, step: int) -> float:
        """Return the clip epsilon of the update that ends step `step` (1, 2, ...).

        The clip is this algorithm's step size, so `clip=None` shares one distance out over the planned steps: 3 / T,
        and 6 / T falling linearly when annealed; `benchmarks/README.md` has the comparison.
        """
        clip = self.clip if self.clip is not None else min(0.9, (6 if self.anneal else 3) / self.steps)
        return clip * max(1, self.steps - step + 1) / self.steps if self.anneal else clip

    @property
    def bounds(self) -> tuple[float, float]:
        """Where mu may go: in the search space if it is a trial or the answer itself, else `REACH` sigmas beyond."""
        if self.family == "normal":
            return -math.inf, math.inf
        beyond = 0.0 if "mu" in (self.answer, self.baseline) else REACH * self.sigma
        return -beyond, 1 + beyond


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _whole_number(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"PPO2: {name} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


# ------------------------------------------------------------------------------------------------ the policy's density


def _density(x: Array) -> Array:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _slope_of_log_mass(mu: Array, sigma: float) -> tuple[Array, Array]:
    """Return Z, the parent normal's mass on [0, 1], and d log Z / d mu.

    With mu at most `REACH` sigmas beyond [0, 1] the tails never swallow the mass, so Z keeps eleven digits.
    """
    low, high = -mu / sigma, (1 - mu) / sigma
    mass = ndtr(high) - ndtr(low)
    return mass, (_density(low) - _density(high)) / (sigma * mass)


def log_density(thetas: ArrayLike, mu: ArrayLike, sigma: float, family: str = "truncated") -> tuple[Array, Array]:
    """Return log p(theta; mu, sigma^2 I) for every coordinate, up to a constant in mu, and its slope in mu."""
    theta, mean = np.asarray(thetas, float), np.asarray(mu, float)
    log_p, slope = -0.5 * ((theta - mean) / sigma) ** 2, (theta - mean) / sigma**2
    if family == "truncated":
        mass, slope_of_log_mass = _slope_of_log_mass(mean, sigma)
        log_p, slope = log_p - np.log(mass), slope - slope_of_log_mass
    return log_p, slope


def expectation(mu: ArrayLike, sigma: float, family: str = "truncated") -> Array:
    """Return the mean of the policy: of the truncated normal itself, not of its parent.

    >>> expectation([0.0, 0.5], sigma=0.2).round(3).tolist()
    [0.16, 0.5]
    """
    mean = np.asarray(mu, float)
    return mean if family == "normal" else mean + sigma**2 * _slope_of_log_mass(mean, sigma)[1]


# --------------------------------------------------------------------- Algorithm 1, which solves eq. 14: sample, update


def propose(
    mu: ArrayLike, seed: int, number: int, *, sigma: float = 0.2, family: str = "truncated", mirrored: bool = False
) -> Array:
    """Sample theta ~ N_trunc[0,1](mu, sigma^2 I) for the trial of this number (Algorithm 1, line 3).

    Its random numbers depend on (seed, number) alone. Mirrored, trials 2k and 2k + 1 use u and 1 - u: a pair stands on
    both sides of the policy's median, which makes the step's direction less noisy.

    >>> propose([0.25, 0.5], seed=0, number=3).round(4).tolist()
    [0.5133, 0.7124]
    """
    mean = np.asarray(mu, float)
    u = np.random.default_rng([seed, number // 2 if mirrored else number]).random(mean.shape)
    if mirrored and number % 2:
        u = 1 - u
    if family == "normal":
        return mean + sigma * ndtri(np.clip(u, 2.0**-54, 1 - 2.0**-53))
    # The inverse of the distribution function, from whichever tail is nearer: no digits are lost at either edge.
    below, above = ndtr(-mean / sigma), ndtr(-(1 - mean) / sigma)
    mass = 1 - below - above
    p, q = below + u * mass, above + (1 - u) * mass
    return np.clip(mean + sigma * np.where(p < 0.5, ndtri(p), -ndtri(q)), 0.0, 1.0)


def update(
    mu: ArrayLike,
    thetas: ArrayLike,
    scores: ArrayLike,
    *,
    sigma: float = 0.2,
    clip: float = 0.15,
    updates: int = 100,
    lr: float = 0.01,
    ratio: str = "dimension",
    baseline: str = "mean",
    optimise: str = "mu",
    family: str = "truncated",
    answer: str = "expectation",
) -> Array:
    """Return mu_(t+1) = argmax_mu 1/M sum_i R(mu, mu_t, theta_i), higher scores being better (Algorithm 1, line 7).

    mu stays in [0, 1] with `answer="mu"` or `baseline="mu"`; else it may go a little beyond (`Settings.bounds`).

    >>> thetas, scores = [[0.2], [0.4], [0.6]], [0.1, 0.2, 0.3]
    >>> update([0.4], thetas, scores, clip=0.1, lr=0.001).round(2).tolist()
    [0.43]
    """
    settings = Settings(
        trials_per_step=max(2, len(np.atleast_1d(scores))),
        sigma=sigma,
        clip=clip,
        updates=updates,
        lr=lr,
        ratio=ratio,  # type: ignore[arg-type]
        baseline=baseline,  # type: ignore[arg-type]
        optimise=optimise,  # type: ignore[arg-type]
        family=family,  # type: ignore[arg-type]
        answer=answer,  # type: ignore[arg-type]
    )
    return next_policy(settings, Policy(np.asarray(mu, float)), 1, thetas, scores).mu


class Adam(NamedTuple):
    """The moments of the optimiser: decays .9 and .999, epsilon 1e-8; the release keeps them from step to step."""

    ascents: int
    first: Array
    second: Array


class Policy(NamedTuple):
    """The distribution a step samples from: mu_t, and the optimiser's moments where they are kept."""

    mu: Array
    adam: Adam | None = None


def advantages(mu: ArrayLike, thetas: ArrayLike, scores: ArrayLike, baseline: str) -> Array:
    """Return the scores less their baseline: the mean score (paper), or the score of mu's own trial (release)."""
    xi, theta = np.asarray(scores, float), np.asarray(thetas, float)
    if (largest := np.abs(xi).max()) > 1e100:  # sums and squares would overflow, and Adam does not see the scale
        xi = xi / largest
    if baseline == "mean":
        return xi - xi.mean()
    is_mu = np.all(np.abs(theta - np.asarray(mu, float)) < 1e-9, axis=1)
    if not is_mu.any():
        raise InputError("PPO2: baseline='mu' needs the score of mu itself, but no theta of this step equals mu.")
    return xi - xi[is_mu].mean()


def objective(
    mu: Array, log_p_t: Array, thetas: Array, xi: Array, sigma: float, clip: float, ratio: str, family: str
) -> tuple[float, Array]:
    """Return 1/M sum_i R(mu, mu_t, theta_i) of section 3.3 and its gradient in mu.

    `log_p_t` is the log density at mu_t, `xi` the scores less their baseline.
    """
    log_p, slope = log_density(thetas, mu, sigma, family)
    log_ratio = log_p - log_p_t
    if ratio == "joint":
        log_ratio = log_ratio.sum(axis=1, keepdims=True)
    r = np.exp(np.minimum(log_ratio, 700.0))
    xi = xi[:, None]
    reward = np.minimum(r * xi, np.clip(r, 1 - clip, 1 + clip) * xi)
    # Where the clipped term is the smaller one, R is flat; elsewhere dR/dmu = xi r dlog(p)/dmu.
    follows = np.where(xi > 0, r <= 1 + clip, r >= 1 - clip)
    return float(reward.sum(axis=1).mean()), (xi * r * follows * slope).mean(axis=0)


def next_policy(
    settings: Settings,
    policy: Policy,
    step: int,
    thetas: ArrayLike,
    scores: ArrayLike,
    baseline: Literal["mean", "mu"] | None = None,
) -> Policy:
    """Return the policy of step `step` + 1: `updates` ascents of `objective` by Adam from mu_t.

    `baseline` takes the place of the settings' one where mu's own score was lost.
    """
    mu_t, theta = policy.mu, np.asarray(thetas, float)
    if theta.shape != (len(np.atleast_1d(scores)), len(mu_t)):
        raise InputError(f"PPO2: {len(np.atleast_1d(scores))} scores and {len(mu_t)} dimensions, thetas {theta.shape}.")
    if not np.isfinite(theta).all() or not np.isfinite(scores).all():
        raise InputError("PPO2: a step is updated from finite thetas and scores; leave failed trials out.")
    xi = advantages(mu_t, theta, scores, baseline or settings.baseline)
    clip = settings.clip_at(step)
    log_p_t, _ = log_density(theta, mu_t, settings.sigma, settings.family)
    logit = settings.optimise == "logit"
    mu = x = np.log(mu_t / (1 - mu_t)) if logit else mu_t
    zero = np.zeros_like(mu_t)
    ascents, first, second = policy.adam or Adam(0, zero, zero)
    for _ in range(settings.updates):
        mu = 1 / (1 + np.exp(-x)) if logit else x
        _, gradient = objective(mu, log_p_t, theta, xi, settings.sigma, clip, settings.ratio, settings.family)
        if logit:
            gradient = gradient * mu * (1 - mu)
        ascents += 1
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        x = x + settings.lr * (first / (1 - 0.9**ascents)) / (np.sqrt(second / (1 - 0.999**ascents)) + 1e-8)
        if not logit:
            x = np.clip(x, *settings.bounds)
    mu = 1 / (1 + np.exp(-x)) if logit else x
    return Policy(mu, Adam(ascents, first, second) if settings.keep_adam else None)


# -------------------------------------------------------------------------------------------------- the Optuna sampler


class BestMean(NamedTuple):
    """The answer of a search: the mean of a step's policy by parameter name, and that step's average score.

    `score` is None when the policy was never scored, as the one after the last step with `pick="last"`. `ignored`
    counts the complete trials that took part in no step, by reason.
    """

    step: int
    mean: dict[str, float]
    score: float | None
    ignored: dict[str, int]


class _Step(NamedTuple):
    policy: Policy
    members: list[FrozenTrial]  # what the next policy was, or would be, made of; fewer than M while unfinished
    drawn: list[FrozenTrial]  # all trials sampled from the policy, in any state


_SETTINGS = "ppo2:settings"
_POLICY = "ppo2:policy:"
_DRAW = "ppo2:draw"


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

    The answer is `best_mean(study)`, not `study.best_trial`, which under noise is only the luckiest sample.

    The sampler keeps nothing in memory. A trial's random numbers come from (seed, trial number). When it is asked, it
    joins the smallest step with fewer than M COMPLETE trials of finite value, so nothing ever waits for a lost worker;
    `Study.ask` decides that, however late the parameters are suggested. When a step is full, its successor is frozen in
    the study's user attributes with the numbers of the trials it was made of, the first M to complete (`policies`), so
    several processes on one storage agree and a fresh sampler continues exactly where the last one stopped. Trials that
    failed, were pruned or enqueued, or that lack a parameter of the space or gave it another range take part in no
    update; `best_mean(study).ignored` counts the complete ones among them.

    With several workers, the trials still running when a step fills up come too late for it and count for nothing: k
    workers lose up to k - 1 trials per step, so n trials make about n / (M + k - 1) steps. Where trials are dear,
    ask whole steps (M times `study.ask`), as `autoseg search` does, or choose M large beside k.

    Args:
        search_space: Optuna distributions by name. Plain floats are searched, mapped linearly to [0, 1]; anything else
            in here, and any other parameter of the objective, goes to the independent sampler.
        trials_per_step: M, at least 2.
        steps: T, the planned number of steps. It scales `clip=None` and `anneal`; the study may go on or end early.
        sigma: the policy's fixed standard deviation, as a share of each parameter's range (the parameter's own unit
            with `family="normal"`).
        clip: epsilon of the clipped ratio, which acts as the step size; None means 3 / steps.
        updates: Adam ascents per step.
        seed: with the trial number, the source of all random numbers.
        ratio: "dimension" (release) clips p(theta; mu) / p(theta; mu_t) coordinate by coordinate; "joint" is the
            paper's one ratio per sample, whose step also depends on `lr`.
        baseline: "mean" subtracts the step's mean score (paper); "mu" the score of mu itself, which then is the first
            trial of every step (release). If that trial is lost it is run once more after M - 1 others; lost again, the
            step takes the mean, and its frozen policy says so.
        lr: Adam's learning rate.
        initial_mean: mu_1 by parameter name, in the parameters' units; the middle of the range where not given (0 with
            `family="normal"` where 0 is in range).
        independent_sampler: for the parameters outside the policy; None draws them uniformly from (seed, trial number,
            name), so they resume as exactly as the others.
        family: "truncated" is N_trunc[0,1](mu, sigma^2 I); "normal" has no truncation: the bounds of the
            distributions are then a guard far outside what is sampled, as for the z of piecewise linear curves.
        optimise: Adam moves "mu" itself, projected on its bounds, or its "logit" (release).
        keep_adam: carry Adam's moments from step to step (release).
        anneal: let the clip fall linearly, to clip / steps at the last step; `clip=None` then starts at 6 / steps.
        mirrored: trials 2k and 2k + 1 use the quantiles u and 1 - u of the policy: mirror images about mu where the
            truncation is not felt, and on both sides of the policy's median near an edge.
        answer: "mu" answers with the parent's mean (paper), which stays in the range and is pushed past a good point
            near its edge; "expectation" with the mean of the truncated normal, and mu may then go 4 sigma beyond the
            range, so that the answer comes as near as .23 sigma to an edge (with `baseline="mu"`, .8 sigma).
        pick: "best" answers with the step of the best average score (paper); "last" with the newest policy, which
            no trial has sampled yet.
    """

    def __init__(
        self,
        search_space: Mapping[str, BaseDistribution],
        trials_per_step: int = 32,
        steps: int = 20,
        sigma: float = 0.2,
        clip: float | None = None,
        updates: int = 100,
        seed: int = 0,
        *,
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
        answer: Literal["expectation", "mu"] = "expectation",
        pick: Literal["best", "last"] = "best",
    ) -> None:
        given = locals()  # every field of Settings is an argument of the same name
        self.settings = Settings(**{field.name: given[field.name] for field in fields(Settings)})
        self.seed = _whole_number("seed", seed, 0)
        if not isinstance(search_space, Mapping) or not all(
            isinstance(d, BaseDistribution) for d in search_space.values()
        ):
            raise InputError("PPO2: search_space must be Optuna distributions by name: {'x': FloatDistribution(0, 1)}.")
        plain = {
            name: d
            for name, d in search_space.items()
            if isinstance(d, FloatDistribution) and not d.single() and not d.log and d.step is None
        }
        if not plain:
            raise InputError("PPO2: the search space has no plain float parameter (not log, no step) to search.")
        for name, d in plain.items():
            if not math.isfinite(d.high - d.low):
                raise InputError(f"PPO2: the range of {name} must be finite, not [{d.low}, {d.high}].")
        self._initial_mean = dict(initial_mean or {})
        self._take(plain)
        self._independent = independent_sampler
        self._warned: set[str] = set()

    @classmethod
    def preset(cls, name: str, search_space: Mapping[str, BaseDistribution], **changes: Any) -> PPO2Sampler:
        """Return the sampler of a preset ("paper", "release", "annealed", "default"), with any argument changed.

        >>> PPO2Sampler.preset("release", {"x": FloatDistribution(0, 1)}, seed=1).settings.clip
        0.2
        """
        if name not in PRESETS:
            raise unknown("PPO2 preset", name, PRESETS)
        known = [key for key in inspect.signature(cls).parameters if key != "search_space"]
        for key in changes:
            if key not in known:
                raise unknown("PPO2Sampler argument", key, known)
        return cls(search_space, **{**PRESETS[name], **changes})

    def _take(self, space: dict[str, FloatDistribution]) -> None:
        """Search this space; the order of its names is that of the policy's coordinates."""
        self._low = np.array([d.low for d in space.values()])
        self._range = np.array([d.high for d in space.values()]) - self._low
        self._initial = self._initial_policy(space, self._initial_mean)
        self.search_space = space  # last: whoever sees it, in another thread, finds the rest in place

    def _initial_policy(self, space: dict[str, FloatDistribution], mean: Mapping[str, float]) -> Policy:
        for name in mean:
            if name not in space:
                raise unknown("parameter of initial_mean", name, space)
        values = {}
        for name, d in space.items():
            middle = 0.0 if self.settings.family == "normal" and d.low <= 0 <= d.high else (d.low + d.high) / 2
            values[name] = mean.get(name, middle)
            if not _is_number(values[name]) or not d.low <= values[name] <= d.high:
                raise InputError(f"PPO2: initial_mean of {name} must be in [{d.low}, {d.high}], not {values[name]!r}.")
        mu = self._to_theta(values, list(space))
        if self.settings.optimise == "logit" and not np.all((mu > 0) & (mu < 1)):
            raise InputError("PPO2: optimise='logit' needs an initial mean strictly inside the ranges.")
        return Policy(mu)

    # The policy's coordinates: [0, 1] for the truncated family, the parameters' own for the normal one.

    def _to_theta(self, params: Mapping[str, float], names: Sequence[str] | None = None) -> Array:
        values = np.array([float(params[name]) for name in names or self.search_space])
        return values if self.settings.family == "normal" else np.clip((values - self._low) / self._range, 0, 1)

    def _to_params(self, theta: Array) -> dict[str, float]:
        values = theta if self.settings.family == "normal" else self._low + self._range * theta
        values = np.clip(values, self._low, self._low + self._range)
        return dict(zip(self.search_space, values.tolist(), strict=True))

    # What Optuna calls.

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Give the trial its step and its sample, at the moment it is asked."""
        if _DRAW in trial.system_attrs:
            return  # a Trial object made again for a trial asked before
        try:
            draw = self._draw(study, trial)
        except InputError:
            # Refused, so not left RUNNING; an enqueued trial goes back into the queue.
            state = TrialState.WAITING if "fixed_params" in trial.system_attrs else TrialState.FAIL
            study._storage.set_trial_state_values(trial._trial_id, state)
            raise
        study._storage.set_trial_system_attr(trial._trial_id, _DRAW, draw)
        if self._independent is not None:
            self._independent.before_trial(study, trial)

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
        _refuse_several_objectives(study)
        return {name: self.sample_independent(study, trial, name, d) for name, d in search_space.items()}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the trial's sample of a parameter of the policy, or ask the independent sampler for another one."""
        _refuse_several_objectives(study)
        if self.search_space.get(param_name) == param_distribution:
            draw = trial.system_attrs.get(_DRAW) or self._draw(study, trial)
            return draw["params"][param_name]
        sampler = self._independent or RandomSampler(
            seed=zlib.crc32(f"{self.seed} {trial.number} {param_name}".encode())
        )
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Warn of a complete trial that is of no use, and let the independent sampler do its post-processing."""
        if state == TrialState.COMPLETE and (missing := self._missing(trial)):
            self._warn_once(
                f"trial {trial.number} did not suggest {', '.join(missing)} with the distribution of the search space, "
                "so it takes part in no update of PPO2; such trials never finish a step."
            )
        if self._independent is not None:
            self._independent.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Reseed the independent sampler; this one's random numbers depend on the trial number alone."""
        if self._independent is not None:
            self._independent.reseed_rng()

    def _warn_once(self, sentence: str) -> None:
        if (kind := sentence.split(" ", 1)[0]) not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"PPO2: {sentence}", stacklevel=3)

    # The steps, read from the study.

    def _draw(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        _refuse_several_objectives(study)
        self._agree_on_settings(study, write=True)
        steps = self._steps(study, writer=trial.number)
        step, (policy, members, drawn) = len(steps), steps[-1]
        is_mu = self.settings.baseline == "mu" and self._needs_mu(members, drawn)
        theta = policy.mu if is_mu else self.propose(policy, trial.number)
        fixed = trial.system_attrs.get("fixed_params", {})
        return {
            # An enqueued trial is no sample of the policy, unless only foreign parameters were given.
            "step": None if set(fixed) & set(self.search_space) else step,
            "mu": policy.mu.tolist(),
            "is_mu": is_mu,
            "params": self._to_params(theta),
        }

    def propose(self, policy: Policy, number: int) -> Array:
        """Return the sample of trial `number` in the policy's coordinates."""
        s = self.settings
        return propose(policy.mu, self.seed, number, sigma=s.sigma, family=s.family, mirrored=s.mirrored)

    def _needs_mu(self, members: list[FrozenTrial], drawn: list[FrozenTrial]) -> bool:
        """Whether mu's own trial is to be run now: as the first, or again when it is missing and the rest is done."""
        tried = any(_is_mu(t) for t in drawn)
        others_are_done = len(members) >= self.settings.trials_per_step - 1
        missing = not any(_is_mu(t) for t in members)
        return missing and (not tried or others_are_done) and not self._mu_is_given_up(drawn)

    def _mu_is_given_up(self, drawn: list[FrozenTrial]) -> bool:
        """Whether mu's own trial was lost twice, or asked for three times by whoever may never answer."""
        mine = [t for t in drawn if _is_mu(t)]
        lost = [t for t in mine if t.state.is_finished() and not self._counts(t)]
        return len(lost) >= 2 or len(mine) >= 3

    def _agree_on_settings(self, study: Study, write: bool = False) -> None:
        """Refuse a study whose trials mean something else, and write down what they mean in a new one."""
        mine: dict[str, Any] = asdict(self.settings)
        for may_change in ("steps", "clip", "pick", "mirrored"):  # each policy keeps its own clip
            del mine[may_change]
        theirs = dict(_attributes(study).get(_SETTINGS) or {})
        order = list(theirs.get("search_space", self.search_space))
        if order != list(self.search_space) and set(order) == set(self.search_space):
            self._take({name: self.search_space[name] for name in order})
        mine["search_space"] = {name: [d.low, d.high] for name, d in self.search_space.items()}
        mine["initial_mean"] = self._to_params(self._initial.mu)
        seed = theirs.pop("seed", self.seed)
        if seed != self.seed:
            self._warn_once(
                f"seed {self.seed}, but the study began with {seed}: new trials differ from an exact resume."
            )
        if not theirs and write:
            study._storage.set_study_user_attr(study._study_id, _SETTINGS, {**mine, "seed": self.seed})
        elif theirs and theirs != mine:
            key = next(key for key in mine if theirs.get(key) != mine[key])
            raise InputError(
                f"this study was started with {key} = {theirs.get(key)}, but the PPO2Sampler has "
                f"{mine[key]}: use the same settings, or a new study."
            )

    def _steps(self, study: Study, writer: int | None = None) -> list[_Step]:
        """Return the steps so far: their policies and members; the last one is unfinished.

        The trial `writer` freezes what is full and not frozen yet; without one nothing is written.
        """
        while True:
            chain = self.policies(study)  # read before the trials, so that every member is among them
            trials = _trials(study)
            by_number = {t.number: t for t in trials}
            policies = [self._initial, *(_policy_from(record) for record in chain)]
            steps = [
                _Step(policy, [by_number[n] for n in record["members"]], [])
                for policy, record in zip(policies, chain, strict=False)
            ]
            number, policy = len(policies), policies[-1]
            mu = policy.mu.tolist()
            drawn = [
                t for t in trials if (draw := t.system_attrs.get(_DRAW)) and draw["step"] == number and draw["mu"] == mu
            ]
            members = self._members(drawn)
            steps.append(_Step(policy, members, drawn))
            if len(members) < self.settings.trials_per_step:
                return steps
            successor = self._successor(study, self.settings, policy, number, members)
            if writer is None:
                return [*steps, _Step(successor, [], [])]
            record = {
                "mu": successor.mu.tolist(),
                "members": [t.number for t in members],
                "clip": self.settings.clip_at(number),
                "baseline": self._baseline(members),
                "adam": successor.adam and [x if isinstance(x, int) else x.tolist() for x in successor.adam],
                "parent": chain[-1]["writer"] if chain else None,
                "writer": writer,
            }
            study._storage.set_study_user_attr(study._study_id, f"{_POLICY}{number + 1}:{writer}", record)

    @staticmethod
    def policies(study: Study) -> list[dict[str, Any]]:
        """Return the frozen policies of steps 2, 3, ...: `mu`, and the `members`, `clip` and `baseline` that made it.

        Storages have no "write unless written", and of two processes that see a step full at once, one may be held up
        at will. So each writes under its own trial number and names the record it builds on. The longest chain of
        records is the search, and among equally long ones that of the smallest trial number; who sampled from another
        one does not count. A step that has a successor can therefore not change any more.
        """
        records = {}
        for key, record in _attributes(study).items():
            if key.startswith(_POLICY):
                step_of, writer_of = (int(part) for part in key.removeprefix(_POLICY).split(":"))
                records[step_of, writer_of] = record
        step = max((s for s, _ in records), default=1)
        writer: int | None = min((w for s, w in records if s == step), default=None)
        chain: list[dict[str, Any]] = []
        while writer is not None:
            chain.insert(0, records[step, writer])
            step, writer = step - 1, chain[0]["parent"]
        return chain

    def _counts(self, trial: FrozenTrial) -> bool:
        return trial.state == TrialState.COMPLETE and math.isfinite(trial.values[0]) and not self._missing(trial)

    def _missing(self, trial: FrozenTrial) -> list[str]:
        return [name for name, d in self.search_space.items() if trial.distributions.get(name) != d]

    def _members(self, drawn: list[FrozenTrial]) -> list[FrozenTrial]:
        """Return the first M to complete, by number: late ones change nothing for whoever looks later.

        With `baseline="mu"` a place is kept for mu's own trial, until that is given up.
        """
        order = sorted(
            (t for t in drawn if self._counts(t)),
            key=lambda t: (t.datetime_complete is None, t.datetime_complete, t.number),
        )
        places = self.settings.trials_per_step
        chosen = order[:places]
        if self.settings.baseline == "mu" and not any(_is_mu(t) for t in chosen):
            mine = [t for t in order if _is_mu(t)][:1]
            if mine or not self._mu_is_given_up(drawn):
                chosen = mine + [t for t in order if t not in mine][: places - 1]
        return sorted(chosen, key=lambda t: t.number)

    def _baseline(self, members: list[FrozenTrial]) -> Literal["mean", "mu"]:
        return "mu" if self.settings.baseline == "mu" and any(_is_mu(t) for t in members) else "mean"

    def _successor(
        self, study: Study, settings: Settings, policy: Policy, step: int, members: list[FrozenTrial]
    ) -> Policy:
        sign = 1.0 if study.direction == StudyDirection.MAXIMIZE else -1.0
        thetas = [policy.mu if _is_mu(t) else self._to_theta(t.params) for t in members]
        scores = [sign * float(t.values[0]) for t in members]
        return next_policy(settings, policy, step, thetas, scores, baseline=self._baseline(members))

    def _ignored(self, study: Study, members: set[int]) -> dict[str, int]:
        """Count the complete trials that are in no step's members, by reason."""
        reasons: Counter[str] = Counter()
        for t in _trials(study):
            if t.state != TrialState.COMPLETE or t.number in members:
                continue
            if missing := self._missing(t):
                reasons[f"without {', '.join(missing)} of the search space, or with another distribution"] += 1
            elif not math.isfinite(t.values[0]):
                reasons["not finite"] += 1
            elif t.system_attrs.get(_DRAW, {}).get("step") is None:
                reasons["enqueued, or not asked from this sampler"] += 1
            else:
                reasons["too late for their step"] += 1
        return dict(reasons)

    def best_mean(self, study: Study) -> BestMean:
        """Return the search's answer: the mean of the finished step with the best average score (Algorithm 1, line 9).

        The paper also lets mu_(T+1) compete, which takes one more step of M trials. With `pick="last"` the answer is
        the newest policy instead, whose score is None as long as no step has sampled it.
        """
        _refuse_several_objectives(study)
        self._agree_on_settings(study)
        steps = self._steps(study)
        finished = steps[:-1]
        ignored = self._ignored(study, {t.number for step in steps for t in step.members})
        if not finished:
            counts = "; ".join(f"{count} {reason}" for reason, count in ignored.items())
            raise InputError(
                f"study '{study.study_name}' has no finished step yet: {len(steps[-1].members)} of "
                f"{self.settings.trials_per_step} trials of step 1 are complete"
                + (f"; complete trials that do not count: {counts}." if ignored else ".")
            )
        scores = [sum(t.values[0] / len(step.members) for t in step.members) for step in finished]
        if self.settings.pick == "last":
            index, score = len(steps) - 1, None
        else:
            best = np.argmax if study.direction == StudyDirection.MAXIMIZE else np.argmin
            index = int(best(scores))
            score = scores[index]
        return BestMean(index + 1, self._to_params(self.mean(steps[index].policy)), score, ignored)

    def mean(self, policy: Policy) -> Array:
        """Return what the policy answers: the parent's mean or the policy's own expectation (`answer`)."""
        if self.settings.answer == "mu":
            return policy.mu
        return expectation(policy.mu, self.settings.sigma, self.settings.family)


# From the storage, because a pruner such as Hyperband shows its sampler only a part of the study.


def _trials(study: Study) -> list[FrozenTrial]:
    return study._storage.get_all_trials(study._study_id, deepcopy=False)


def _attributes(study: Study) -> dict[str, Any]:
    return study._storage.get_study_user_attrs(study._study_id)


def _refuse_several_objectives(study: Study) -> None:
    if len(study.directions) > 1:
        raise InputError("PPO2Sampler searches for one score; a study with several objectives cannot use it.")


def _is_mu(trial: FrozenTrial) -> bool:
    return bool(trial.system_attrs.get(_DRAW, {}).get("is_mu"))


def _policy_from(record: Mapping[str, Any]) -> Policy:
    adam = record["adam"]
    return Policy(np.array(record["mu"]), Adam(adam[0], np.array(adam[1]), np.array(adam[2])) if adam else None)
