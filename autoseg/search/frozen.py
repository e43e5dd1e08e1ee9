"""What an Optuna study keeps of a search in its user attributes: the settings, and each finished step's successor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autoseg.errors import InputError
from autoseg.search.box import Box
from autoseg.search.ppo2 import Adam, Array, Policy, Settings, is_number

SETTINGS = "ppo2:settings"  # a study's user attribute: what its trials mean
POLICY = "ppo2:policy:"  # and the step and the writing trial's number: "ppo2:policy:2:31"
DRAW = "ppo2:draw"  # a trial's system attribute: its step, the mean it was drawn around, its parameters


# Read from the storage: a pruner such as Hyperband shows its sampler only a part of the study.


def trials_of(study: Study) -> list[FrozenTrial]:
    """Return all trials of a study."""
    return study._storage.get_all_trials(study._study_id, deepcopy=False)


def attributes_of(study: Study) -> dict[str, Any]:
    """Return the user attributes of a study."""
    return study._storage.get_study_user_attrs(study._study_id)


def set_attribute(study: Study, key: str, value: Any) -> None:
    """Write a user attribute of a study."""
    study._storage.set_study_user_attr(study._study_id, key, value)


def tampered(where: str) -> InputError:
    """Return the error for an attribute that this sampler did not write so."""
    return InputError("another program changed the attribute", where=where, cure="restore it, or begin a new study")


def draw_of(trial: FrozenTrial, names: Collection[str] = ()) -> Mapping[str, Any]:
    """Return how a trial was drawn, with parameters of these names; nothing, if this sampler did not draw it."""
    found = trial.system_attrs.get(DRAW)
    if found is None:
        return {}
    if not isinstance(found, Mapping) or not {"step", "mu", "params"} <= set(found):
        raise tampered(f"trial {trial.number}: {DRAW}")
    params = found["params"]
    if not (isinstance(params, Mapping) and set(names) <= set(params) and all(map(is_number, params.values()))):
        raise tampered(f"trial {trial.number}: {DRAW}")
    return found


def is_mu(trial: FrozenTrial) -> bool:
    """Whether a trial is the mean itself, and not a sample around it."""
    return bool(draw_of(trial).get("is_mu"))


def settings_of(study: Study) -> dict[str, Any]:
    """Return the settings that a study was started with; none, if it is new."""
    theirs = attributes_of(study).get(SETTINGS) or {}
    if not isinstance(theirs, dict) or not isinstance(theirs.get("search_space", {}), dict):
        raise tampered(f"study '{study.study_name}': {SETTINGS}")
    return {"move": "ppo2", **theirs} if theirs else {}


def agree_on_settings(study: Study, settings: Settings, box: Box, start: Array, seed: int, write: bool) -> None:
    """Refuse a study that was started with other settings or another start; write them into a new one."""
    mine: dict[str, Any] = asdict(settings)
    for may_change in ("steps", "clip", "pick", "mirrored"):  # each policy keeps its own clip
        del mine[may_change]
    if mine["answer"] == "model":
        mine["answer"] = "expectation"  # which proposes the same
    mine |= box.described(start)
    theirs = settings_of(study)
    theirs.pop("seed", None)
    if not theirs and write:
        set_attribute(study, SETTINGS, {**mine, "seed": seed})
    elif theirs and theirs != mine:
        key = next(key for key in {**mine, **theirs} if theirs.get(key) != mine.get(key))
        raise InputError(
            f"the PPO2Sampler has {mine.get(key)}, but the study was started with {theirs.get(key)}",
            where=key,
            cure="use the same settings, or a new study",
        )


def freeze(study: Study, step: int, policy: Policy, writer: int, **about: Any) -> None:
    """Write the policy of a step, with what is to be known about it, under the number of the trial that writes it."""
    adam = policy.adam and [x if isinstance(x, int) else x.tolist() for x in policy.adam]
    record = {"mu": policy.mu.tolist(), "adam": adam, "writer": writer, **about}
    if policy.design is not None:
        record["design"] = policy.design.tolist()
    set_attribute(study, f"{POLICY}{step}:{writer}", record)


def thaw(record: Mapping[str, Any]) -> Policy:
    """Return a policy from its record."""
    adam, design = record["adam"], record.get("design")
    return Policy(
        np.array(record["mu"]),
        Adam(adam[0], np.array(adam[1]), np.array(adam[2])) if adam else None,
        None if design is None else np.array(design),
        record["writer"],
    )


def records(study: Study) -> list[dict[str, Any]]:
    """Return the records of the policies of steps 2, 3, ...

    Storages cannot "write unless written", and two processes may see a step full at the same time, one of them held up
    for long. So each writes under its own trial number and names the record it builds on (`parent`). The longest chain
    of records is the search; of equally long ones, that of the smallest trial number. Trials sampled from another
    record do not count. A step that has a successor can therefore not change any more.
    """
    found = {}
    for key, record in attributes_of(study).items():
        if key.startswith(POLICY):
            step_of, _, writer_of = key.removeprefix(POLICY).partition(":")
            if not (step_of.isdecimal() and writer_of.isdecimal() and _is_record(record)):
                raise tampered(f"study '{study.study_name}': {key}")
            found[int(step_of), int(writer_of)] = record
    step = max((s for s, _ in found), default=1)
    writer: int | None = min((w for s, w in found if s == step), default=None)
    chain: list[dict[str, Any]] = []
    while writer is not None:
        if (step, writer) not in found:
            raise tampered(f"study '{study.study_name}': {POLICY}{step}:{writer}")
        chain.insert(0, found[step, writer])
        step, writer = step - 1, chain[0]["parent"]
    return chain


def refuse_several_objectives(study: Study) -> None:
    """Refuse a study with more than one score."""
    if len(study.directions) > 1:
        raise InputError("PPO2Sampler searches for one score, but the study has several objectives", where="study")


def sign_of(study: Study) -> float:
    """Return what makes higher scores better ones."""
    return 1.0 if study.direction == StudyDirection.MAXIMIZE else -1.0


def unused(study: Study, box: Box, members: Collection[int]) -> dict[str, int]:
    """Count the complete and the pruned trials that are in no step's members, by reason."""
    reasons: Counter[str] = Counter()
    for t in trials_of(study):
        if t.state == TrialState.PRUNED:
            reasons["pruned"] += 1
        elif t.state != TrialState.COMPLETE or t.number in members:
            continue
        elif missing := box.missing(t):
            reasons[f"without {', '.join(missing)} of the search space, or with another distribution"] += 1
        elif not math.isfinite(t.values[0]):
            reasons["not finite"] += 1
        elif draw_of(t).get("step") is None:
            reasons["enqueued, or not asked from this sampler"] += 1
        else:
            reasons["too late for their step"] += 1
    return dict(reasons)


def check_members(study: Study, record: Mapping[str, Any], fits: bool, trials: Mapping[int, FrozenTrial]) -> None:
    """Refuse a record of another search space (`fits` is false), or one whose members are no trials with a score."""
    members = record["members"]
    if not (fits and members and all(number in trials and trials[number].values for number in members)):
        raise tampered(f"study '{study.study_name}': the policy of trial {record['writer']}")


def _is_record(record: Any) -> bool:
    """Whether a record is as `freeze` writes it."""
    if not isinstance(record, Mapping) or not {"mu", "adam", "writer", "parent", "members"} <= set(record):
        return False
    adam, size = record["adam"], len(record["mu"]) if _are_numbers(record["mu"]) else -1
    if adam is not None:
        if not (isinstance(adam, list) and len(adam) == 3 and type(adam[0]) is int):
            return False
        if not all(_are_numbers(part) and len(part) == size for part in adam[1:]):
            return False
    numbers = [record["writer"], *(record["members"] if isinstance(record["members"], list) else [None])]
    return size > 0 and all(type(n) is int for n in numbers) and isinstance(record["parent"], int | None)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(is_number(value) for value in values)
