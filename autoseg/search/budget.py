"""How many steps of how many trials fit into some hours, from the measured seconds of a trial. Pure numbers."""

from __future__ import annotations

import math

from autoseg.errors import InputError
from autoseg.search.settings import Search
from autoseg.search.space import changes

FEW, MANY = 8, 32
"""Trials of a step: at least and at most so many, unless the settings say another number."""


def waves(trials: int, workers: int) -> int:
    """Return how often all workers train at once for so many trials."""
    return math.ceil(trials / workers)


def total_seconds(search: Search, seconds: float, workers: int) -> float:
    """Return the seconds of a whole search, its rescored answers included."""
    size = search.settings.trials_per_step
    return seconds * search.total_steps * waves(size, workers) + rescoring_seconds(search, seconds, workers)


def rescoring_seconds(search: Search, seconds: float, workers: int) -> float:
    """Return the seconds of rescoring the answers."""
    return seconds * search.rescore_length * waves(search.most_rescored, workers)


def steps_that_fit(search: Search, done: int, left: float, seconds: float, workers: int) -> int:
    """Return how many steps a search has that has done some and has `left` seconds for the others and for rescoring.

    The number of steps that are settled in advance is kept where another one would make it another search.
    """
    if changes(search, search.model_copy(update={"steps": search.settings.steps + 1})):
        return search.total_steps
    left -= rescoring_seconds(search, seconds, workers)
    return done + max(0, round(left / (seconds * waves(search.settings.trials_per_step, workers))))


def described(plan: Search, seconds: float, workers: int = 1) -> str:
    """Return a plan in words.

    >>> described(Search(metric="mIoU", steps=6, trials_per_step=30), 20)
    '6 steps of 30 trials (180 trainings of 20 s, 1 at once) and at most 0 rescored answers: 1 h'
    """
    size, hours = plan.settings.trials_per_step, total_seconds(plan, seconds, workers) / 3600
    trainings = f"{plan.total_steps * size} trainings of {seconds:.3g} s, {workers} at once"
    answers = f"at most {plan.most_rescored} rescored answers"
    answers += f", each {plan.rescore_length:g} times as long" if plan.rescore and plan.rescore_length > 1 else ""
    steps = f"{plan.total_steps} step{'s' * (plan.total_steps != 1)}"
    return f"{steps} of {size} trials ({trainings}) and {answers}: {hours:.3g} h"


def planned(search: Search, budget: float, seconds: float, workers: int = 1) -> Search:
    """Return the search with the steps and trials that fill a budget of seconds best.

    `seconds` is what a trial takes while all workers train. What the settings say of steps and trials is kept. Five
    steps of 32 trials are the aim of 160 trials, and with fewer trials both are fewer.

    >>> found = planned(Search(metric="mIoU", preset="recommended"), 3600, 20)
    >>> found.steps, found.trials_per_step
    (6, 30)
    """
    trials = budget / seconds * workers
    aim = min(max(math.sqrt(6.4 * trials), FEW), MANY)
    sizes = [search.trials_per_step] if search.trials_per_step else range(FEW, MANY + FEW + 1)
    best: tuple[float, Search] | None = None
    for size in sizes:
        one = search.model_copy(update={"trials_per_step": size})
        fixed = rescoring_seconds(one, seconds, workers)
        extra = one.total_steps - one.settings.steps  # a step more for the paper's last mean
        fits = round((budget - fixed) / (seconds * waves(size, workers))) - extra
        plan = one.model_copy(update={"steps": search.steps or max(fits, 1)})
        spent = total_seconds(plan, seconds, workers)
        # An hour that is missed counts more than a size that is another than the aim.
        cost = 4 * abs(math.log(spent / budget)) + abs(math.log(size / aim))
        if best is None or cost < best[0]:
            best = cost, plan
    assert best is not None
    plan = best[1]
    if not search.steps and total_seconds(plan, seconds, workers) > 1.15 * budget:
        raise InputError(
            f"a trial takes {seconds:.3g} s, so {FEW} trials and the rescored answers do not fit into "
            f"{budget / 3600:.3g} h",
            where="hours",
            cure="give more hours, more workers, or a shorter proxy training",
        )
    return plan
