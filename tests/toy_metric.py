"""A user's metric, registered as a plugin does it."""

from __future__ import annotations

from autoseg.metrics.formula import Formula, ratio, register

register(
    Formula(
        "toyDice",
        sums=lambda y_hat, y, ops: {"both": ops.AND("AND", y_hat, y), "size": y_hat + y},
        per_class=lambda s: ratio(2 * s["both"], s["size"]),
    )
)
