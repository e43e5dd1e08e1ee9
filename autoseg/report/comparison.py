"""Differences between two losses over seeds that both were trained with, and how sure they are. No torch.

A seed decides the initial weights, the batches and the dropout, and they are the same for every loss: seeds are pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

LEVEL = 0.95
"""The share of intervals that hold the true difference, if differences are normally distributed."""


@dataclass(frozen=True)
class Difference:
    """A difference of two scores, as the mean over paired seeds and its interval by Student's t.

    >>> found = paired({0: 71.0, 1: 72.5, 2: 71.8}, {0: 70.0, 1: 70.0, 2: 70.1})
    >>> found.text, found.verdict
    ('+1.73 [−0.13, +3.60], 3 of 3', 'unsure')
    """

    mean: float
    low: float
    high: float
    better: int  # in how many seeds
    seeds: int

    @property
    def verdict(self) -> str:
        """`better` or `worse`, if the whole interval is on one side of 0; else `unsure`."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "unsure"

    @property
    def text(self) -> str:
        """The mean, the interval, and how many seeds are better."""
        return f"{signed(self.mean)} [{signed(self.low)}, {signed(self.high)}], {self.better} of {self.seeds}"


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Return the difference of two losses' scores by seed; None with fewer than two seeds that both have."""
    values = [score - theirs[seed] for seed, score in sorted(ours.items()) if seed in theirs]
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # the quantile of Student's t; scipy.stats takes a second to import

    mean = statistics.fmean(values)
    wide = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * statistics.stdev(values) / math.sqrt(len(values))
    return Difference(mean, mean - wide, mean + wide, sum(value > 0 for value in values), len(values))


def signed(value: float) -> str:
    """Return a number with two decimals and its sign; a zero has none.

    >>> signed(1.234), signed(-0.5), signed(-0.001)
    ('+1.23', '−0.50', '0.00')
    """
    rounded = round(value, 2)
    return f"{rounded:+.2f}".replace("-", "−") if rounded else "0.00"
