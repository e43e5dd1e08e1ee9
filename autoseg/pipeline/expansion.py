"""From a config as it is written to a `Pipeline`: plugins are loaded, each `for` is written out, seeds are added."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping
from typing import Any

from autoseg import strict
from autoseg.data.kinds import KINDS
from autoseg.errors import InputError, located
from autoseg.files import parse
from autoseg.pipeline.config import Pipeline
from autoseg.plugins import load_plugin

MOST_COMBINATIONS = 10_000
"""How many searches one `for` may stand for."""

_SEEDED = tuple(name for name, kind in KINDS.items() if "seed" in kind.model_fields)


def expand(plans: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return plans with each `for` written out: one plan for every combination, its {names} filled in.

    >>> expand({"{m}-{s}": {"for": {"m": ["mIoU"], "s": [1, 2]}, "seed": "{s}"}}, "searches")
    {'mIoU-1': {'seed': 1}, 'mIoU-2': {'seed': 2}}
    """
    found: dict[str, Any] = {}
    for name, plan in plans.items():
        ranges = plan.get("for", {}) if isinstance(plan, Mapping) else {}
        if not (isinstance(ranges, Mapping) and all(isinstance(values, list) for values in ranges.values())):
            expected = "names with lists of values, such as {seed: [1, 2]}"
            raise InputError(f"found {ranges!r}", where=f"{where}.{name}.for", expected=expected)
        if isinstance(plan, Mapping) and "for" in plan and not (ranges and all(ranges.values())):
            raise InputError(f"found {ranges!r}", where=f"{where}.{name}.for", expected="at least one name and value")
        if (count := math.prod(map(len, ranges.values()))) > MOST_COMBINATIONS:
            expected = f"{MOST_COMBINATIONS:,} at most"
            raise InputError(f"gives {count:,} searches", where=f"{where}.{name}.for", expected=expected)
        rest = {key: value for key, value in plan.items() if key != "for"} if ranges else plan
        for values in itertools.product(*ranges.values()):
            chosen = dict(zip(ranges, values, strict=True))
            filled = _fill(name, chosen)
            if isinstance(filled, list | Mapping):
                expected = "words or numbers, as the search is called after them"
                raise InputError(f"found {filled!r}", where=f"{where}.{name}.for", expected=expected)
            if filled in found:
                what, cure = f"gives '{filled}' twice", "write every name of its `for` in its name"
                raise InputError(what, where=f"{where}.{name}", cure=cure)
            found[filled] = _fill(rest, chosen)
    return found


def _fill(content: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(content, Mapping):
        return {key: _fill(value, values) for key, value in content.items()}
    if isinstance(content, list):
        return [_fill(value, values) for value in content]
    if not isinstance(content, str):
        return content
    for name, value in values.items():
        if content == f"{{{name}}}":
            return value  # a number stays a number
        content = content.replace(f"{{{name}}}", str(value))
    return content


def load_pipeline(content: Any, where: str) -> Pipeline:
    """Return a checked config, after loading its plugins and writing out every `for`."""
    with located(where):
        strict.check(content, one_line=True)  # Snakemake read it, and takes more than we do
    if isinstance(content, Mapping):
        content = dict(content)
        plugins = content.get("plugins") or []
        if not (isinstance(plugins, list) and all(isinstance(module, str) for module in plugins)):
            expected = "a list of modules, such as [my_metrics]"
            raise InputError(f"found {plugins!r}", where=f"{where}: plugins", expected=expected)
        for module in plugins:
            load_plugin(module)
        if isinstance(content.get("searches"), Mapping):
            content["searches"] = expand(content["searches"], "searches")
        content = _with_seed(content)
    return parse(Pipeline, content, where)


def _with_seed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with its seed wherever none is given."""
    seed = content.get("seed", 0)
    found = copy.deepcopy(dict(content))
    for kind, of, path, value in (
        ("datasets", _SEEDED, ["options", "seed"], seed),
        ("searches", (), ["search", "seed"], seed),
        ("tables", (), ["seeds"], [seed]),
        ("figures", ("gallery", "classes"), ["seed"], seed),
    ):
        plans = found.get(kind)
        for plan in plans.values() if isinstance(plans, dict) else ():
            if isinstance(plan, dict) and (not of or plan.get("kind") in of):
                *inside, key = path
                for name in inside:
                    plan = plan.setdefault(name, {})
                if isinstance(plan, dict):  # anything else is refused later, when the config is checked
                    plan.setdefault(key, value)
    return found
