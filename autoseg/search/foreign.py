"""What PPO2 leaves to others, and says so once a study: parameters outside its space, pruned trials, constraints."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autoseg.errors import InputError
from autoseg.search.box import why_not


class Warner:
    """Warns of each kind of thing once a study."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def once(self, study: Study, kind: str, sentence: str) -> None:
        """Warn, unless a thing of this kind was said of the study before."""
        if (study.study_name, kind) not in self._said:
            self._said.add((study.study_name, kind))
            warnings.warn(f"PPO2: {sentence}", stacklevel=3)


class Foreign:
    """The sampler of the parameters that PPO2 does not search."""

    def __init__(
        self,
        sampler: BaseSampler | None,
        search_space: Mapping[str, BaseDistribution],
        family: str,
        seed: int,
        warner: Warner,
    ) -> None:
        if sampler is not None and not isinstance(sampler, BaseSampler):
            raise InputError(f"found {sampler!r}", where="independent_sampler", expected="a sampler of Optuna, or None")
        self._given = sampler
        self._seed = seed
        self._warner = warner
        self._name = "TPESampler" if sampler is None else type(sampler).__name__
        self._left_out = {name: why for name, d in search_space.items() if (why := why_not(d, family))}

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Say what of the search space is not searched."""
        if self._left_out:
            found = "; ".join(f"'{name}': {why}" for name, why in self._left_out.items())
            self._warner.once(
                study, "space", f"a part of the search space is not searched, and is left to {self._name} ({found})."
            )
        if self._given is not None:
            self._given.before_trial(study, trial)

    def sample(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        """Sample a parameter, by TPE if no sampler was given.

        TPE is made anew for each parameter of each trial, and seeded with both: so it keeps nothing in memory, and a
        study that is continued gives what it would have given.
        """
        if name not in self._left_out:
            self._warner.once(
                study,
                "foreign",
                f"'{name}' is not in the search space with this distribution ({distribution}), so it is not searched; "
                f"such parameters are left to {self._name}.",
            )
        sampler = self._given or TPESampler(seed=zlib.crc32(f"{self._seed} {trial.number} {name}".encode()))
        return sampler.sample_independent(study, trial, name, distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Say that a trial was pruned, let the given sampler do its post-processing, and refuse constraints."""
        if state == TrialState.PRUNED:
            self._warner.once(
                study,
                "pruned",
                f"trial {trial.number} was pruned. A pruned trial has no score, so PPO2 learns nothing from it, and "
                "another trial takes its place in the step; `best_mean(study).ignored` counts them.",
            )
        if self._given is not None:
            self._given.after_trial(study, trial, state, values)
        attributes = study._storage.get_trial_system_attrs(trial._trial_id)
        if any(key.partition(":")[0] == "constraints" for key in attributes):
            raise InputError(
                "PPO2Sampler knows no constraints, but the trial has some",
                where=f"trial {trial.number}",
                cure="give what violates one a low score, or use a sampler with constraints, such as TPESampler",
            )

    def reseed(self) -> None:
        """Reseed the given sampler; TPE's seed depends on the trial alone."""
        if self._given is not None:
            self._given.reseed_rng()
