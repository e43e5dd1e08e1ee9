"""PPO2, the paper's parameter search (Algorithm 1), as pure functions of numbers.

`initial_policy`, `draw`, `next_policy`, `answer_of` and `best_step` are the whole driver: the Optuna sampler and the
JSON steps of a search call them. Knows nothing of losses, networks or files, and imports neither torch nor Optuna.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from autoseg.errors import InputError, unknown, whole_number

Array = NDArray[np.float64]
REACH_OF_MEAN = 4.0
"""How many sigmas beyond [0, 1] mu may go where it is only the parent's mean: at the bound the policy's expectation is
.23 sigma from the edge; with mu in [0, 1] it could never come nearer than .8 sigma."""

EDGE = 1e-3
"""With `optimise="logit"` the first mean is at least this far from 0 and 1, where the logit is infinite."""

# What a preset says differently from the default settings. `paper`: section 3.3 and Algorithm 1 (the optimiser and its
# rate are not in the paper; the joint ratio's step depends on both). `release`: the authors' released code. `annealed`
# is ours: mirrored pairs of samples, a clip that falls over the planned steps, and the last policy as answer.
# `recommended` is ours too: a model of all trials moves the mean, draws the trials and is the answer.
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
    "recommended": {"move": "model", "mirrored": True, "answer": "model", "pick": "last"},
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
    move: Literal["ppo2", "model"] = "ppo2"
    answer: Literal["expectation", "mu", "model"] = "expectation"
    pick: Literal["best", "last"] = "best"
    family: Literal["truncated", "normal"] = "truncated"

    def __post_init__(self) -> None:
        # NumPy's numbers become Python's, so that everything here can be written as JSON.
        for name, least in (("trials_per_step", 2), ("steps", 1), ("updates", 1)):
            object.__setattr__(self, name, whole_number(getattr(self, name), name, least=least))
        for name in ("sigma", "lr", "clip"):
            value = getattr(self, name)
            if name == "clip" and value is None:
                continue
            if not (is_number(value) and value > 0):
                raise InputError(f"found {value!r}", where=name, expected="a positive number")
            object.__setattr__(self, name, float(value))
        for name, hint in get_type_hints(type(self)).items():
            known = (False, True) if hint is bool else get_args(hint) if get_origin(hint) is Literal else ()
            value = getattr(self, name)
            if known and not (isinstance(value, str | int | np.bool_) and value in known):
                choices = [str(choice) for choice in known]
                raise unknown(f"PPO2 {name}", str(getattr(self, name)), choices, where=name)
            if hint is bool:
                object.__setattr__(self, name, bool(getattr(self, name)))
        if self.move == "model" and self.baseline == "mu":
            raise InputError("'mu' belongs to PPO2's own moves", where="baseline", cure="use 'mean', or move 'ppo2'")
        if self.family == "normal" and self.optimise == "logit":
            raise InputError(
                "'logit' needs a mean in [0, 1], which family 'normal' does not have",
                where="optimise",
                cure="use 'mu'",
            )

    @classmethod
    def preset(cls, name: str, /, **changes: Any) -> Settings:
        """Return the settings of a preset, with changes: `Settings.preset("release", steps=20)`."""
        if name not in PRESETS:
            raise unknown("PPO2 preset", name, PRESETS, where="preset")
        known = [field.name for field in fields(cls)]
        for key in changes:
            if key not in known:
                raise unknown("PPO2 setting", key, known)
        return cls(**{**PRESETS[name], **changes})

    def clip_at(self, step: int) -> float:
        """Return the clip epsilon of the update that ends step `step` (1, 2, ...)."""
        clip = self.first_clip
        return clip * max(1, self.steps - step + 1) / self.steps if self.anneal else clip

    @property
    def first_clip(self) -> float:
        """The clip epsilon of the first update.

        The clip is this algorithm's step size, so `clip=None` divides one distance among the planned steps: 3 / T, and
        6 / T falling linearly when annealed; `benchmarks/README.md` has the comparison.
        """
        return self.clip if self.clip is not None else min(0.9, (6 if self.anneal else 3) / self.steps)

    @property
    def bounds(self) -> tuple[float, float]:
        """Where mu may go: [0, 1] if mu itself is a trial or the answer, else up to `REACH_OF_MEAN` sigmas beyond."""
        if self.family == "normal":
            return -math.inf, math.inf
        beyond = 0.0 if "mu" in (self.answer, self.baseline) else REACH_OF_MEAN * self.sigma
        return -beyond, 1 + beyond


def is_number(value: Any) -> bool:
    """Whether `value` is a finite real number, Python's or NumPy's."""
    # Nearly all are plain floats, and `isinstance` of an abstract class takes long: it was most of an ask.
    real = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    return real and math.isfinite(value)


# ------------------------------------------------------------------------------------------------ the policy's density


def _density(x: Array) -> Array:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _slope_of_log_mass(mu: Array, sigma: float) -> tuple[Array, Array]:
    """Return Z, the parent normal's mass on [0, 1], and d log Z / d mu.

    With mu at most `REACH_OF_MEAN` sigmas beyond [0, 1] the tails never swallow the mass, so Z keeps eleven digits.
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


class Adam(NamedTuple):
    """The moments of the optimiser: decays .9 and .999, epsilon 1e-8; the release keeps them from step to step."""

    ascents: int
    first: Array
    second: Array

    @classmethod
    def new(cls, mu: Array) -> Adam:
        """Return the state before the first ascent."""
        return cls(0, np.zeros_like(mu), np.zeros_like(mu))

    def ascend(self, x: Array, gradient: Array, lr: float) -> tuple[Array, Adam]:
        """Return x after one ascent, and the state after it."""
        ascents = self.ascents + 1
        first = 0.9 * self.first + 0.1 * gradient
        second = 0.999 * self.second + 0.001 * gradient**2
        x = x + lr * (first / (1 - 0.9**ascents)) / (np.sqrt(second / (1 - 0.999**ascents)) + 1e-8)
        return x, Adam(ascents, first, second)


class Policy(NamedTuple):
    """The distribution a step samples from: mu_t, and the optimiser's moments where they are kept.

    `design` has the step's trials where a model chose them, one row each, for as many trials from number `begin` on.
    Trials beyond them, such as those that take the place of failed ones, are samples.
    """

    mu: Array
    adam: Adam | None = None
    design: Array | None = None
    begin: int = 0


def initial_policy(settings: Settings, mu: ArrayLike) -> Policy:
    """Return the policy of step 1 around a given mean; with `optimise="logit"` a mean on the edge starts beside it.

    >>> initial_policy(Settings.preset("release"), [0.0, 0.5]).mu.tolist()
    [0.001, 0.5]
    """
    mean = np.asarray(mu, float)
    return Policy(np.clip(mean, EDGE, 1 - EDGE) if settings.optimise == "logit" else mean)


def propose(
    mu: ArrayLike, seed: int, number: int, *, sigma: float = 0.2, family: str = "truncated", mirrored: bool = False
) -> Array:
    """Sample theta ~ N_trunc[0,1](mu, sigma^2 I) for the trial of this number (Algorithm 1, line 3).

    Its random numbers depend on (seed, number) alone. Mirrored, trials 2k and 2k + 1 use the quantiles u and 1 - u, on
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
    # The inverse of the distribution function, taken from the nearer tail: no digits are lost at either edge.
    below, above = ndtr(-mean / sigma), ndtr(-(1 - mean) / sigma)
    mass = 1 - below - above
    p, q = below + u * mass, above + (1 - u) * mass
    return np.clip(mean + sigma * np.where(p < 0.5, ndtri(p), -ndtri(q)), 0.0, 1.0)


def draw(settings: Settings, policy: Policy, seed: int, number: int, *, first: bool = False) -> Array:
    """Return the sample of trial `number`; with `baseline="mu"` the first trial of a step is mu itself."""
    if first and settings.baseline == "mu":
        return policy.mu
    if policy.design is not None and policy.begin <= number < policy.begin + len(policy.design):
        # By the number alone: processes that began the step at the same time, each at its own trial, take other rows.
        return policy.design[number % len(policy.design)]
    s = settings
    return propose(policy.mu, seed, number, sigma=s.sigma, family=s.family, mirrored=s.mirrored)


def advantages(mu: ArrayLike, thetas: ArrayLike, scores: ArrayLike, baseline: str) -> Array:
    """Return the scores less their baseline: the mean score (paper), or the score of mu's own trial (release)."""
    xi, theta = np.asarray(scores, float), np.asarray(thetas, float)
    if (largest := np.abs(xi).max()) > 1e100:  # sums and squares would overflow, and Adam does not see the scale
        xi = xi / largest
    if baseline == "mean":
        return xi - xi.mean()
    is_mu = np.all(np.abs(theta - np.asarray(mu, float)) < 1e-9, axis=1)
    if not is_mu.any():
        raise InputError("'mu' needs the score of mu itself, but no theta of this step equals mu", where="baseline")
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
    """Return the policy of step `step` + 1: mu_(t+1) = argmax_mu 1/M sum_i R(mu, mu_t, theta_i) (Algorithm 1, line 7).

    Higher scores are better. The maximum is sought by `updates` ascents of `objective` by Adam from mu_t. `baseline`
    takes the place of the settings' one where mu's own score was lost.

    >>> thetas, scores = [[0.2], [0.4], [0.6]], [0.1, 0.2, 0.3]
    >>> next_policy(Settings(clip=0.1, lr=0.001), Policy(np.array([0.4])), 1, thetas, scores).mu.round(2).tolist()
    [0.43]
    """
    mu_t, theta = policy.mu, np.asarray(thetas, float)
    expected = (len(np.atleast_1d(scores)), len(mu_t))
    if theta.shape != expected:
        raise InputError(f"found the shape {theta.shape}", where="thetas", expected=f"{expected}: scores, dimensions")
    if not np.isfinite(theta).all() or not np.isfinite(scores).all():
        raise InputError("a theta or a score of the step is not finite", where="PPO2", cure="leave failed trials out")
    xi = advantages(mu_t, theta, scores, baseline or settings.baseline)
    clip = settings.clip_at(step)
    log_p_t, _ = log_density(theta, mu_t, settings.sigma, settings.family)
    logit = settings.optimise == "logit"
    mu = x = np.log(mu_t / (1 - mu_t)) if logit else mu_t
    adam = policy.adam or Adam.new(mu_t)
    for _ in range(settings.updates):
        mu = 1 / (1 + np.exp(-x)) if logit else x
        _, gradient = objective(mu, log_p_t, theta, xi, settings.sigma, clip, settings.ratio, settings.family)
        if logit:
            gradient = gradient * mu * (1 - mu)
        x, adam = adam.ascend(x, gradient, settings.lr)
        if not logit:
            x = np.clip(x, *settings.bounds)
    mu = 1 / (1 + np.exp(-x)) if logit else x
    return Policy(mu, adam if settings.keep_adam else None)


def policies(settings: Settings, first: Policy, steps: Iterable[tuple[ArrayLike, ArrayLike]]) -> list[Policy]:
    """Return the policies of steps 1, 2, ... from each step's (thetas, scores): one more than there are steps."""
    found = [first]
    for number, (thetas, scores) in enumerate(steps, start=1):
        found.append(next_policy(settings, found[-1], number, thetas, scores))
    return found


def answer_of(settings: Settings, policy: Policy) -> Array:
    """Return the mean that a policy answers with: the parent's mean mu, or the policy's own expectation.

    A model moves mu to what it takes for the best point, so there it is mu. With `answer="model"` the answer is sought
    around this mean.
    """
    return (
        policy.mu
        if settings.answer == "mu" or settings.move == "model"
        else expectation(policy.mu, settings.sigma, settings.family)
    )


def best_step(settings: Settings, averages: Sequence[float]) -> int:
    """Return the step whose policy is the answer: of the best average score (line 9), or the one after the last.

    >>> best_step(Settings(), [0.1, 0.3, 0.2]), best_step(Settings(pick="last"), [0.1, 0.3, 0.2])
    (2, 4)
    """
    return len(averages) + 1 if settings.pick == "last" else int(np.argmax(averages)) + 1
