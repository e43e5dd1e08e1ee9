"""The config that `autoseg auto` writes: a study as YAML, with a comment on each choice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoseg.losses.published import PUBLISHED
from autoseg.metrics.formula import METRICS
from autoseg.pipeline.budget import RETRAINING, Size

NAME = "auto"

RIVALS = {"ce": "Cross entropy", "ce + dice": "Cross entropy + Dice", "lovasz": "Lovász", "dice": "Dice"}
FURTHER = {"jml": "JML", "focal": "Focal", "tversky": "Tversky"}

TUNED = 16.0
"""The learning rate of cross entropy is tuned from a 16th of that of the range test to 16 times that."""

_GALLERY = 3  # images


@dataclass(frozen=True)
class Choices:
    """What was chosen for a study, beside its size."""

    metrics: Sequence[str]
    rivals: Mapping[str, str]  # loss -> label
    kind: str
    options: Mapping[str, Any]
    said: Sequence[str]  # of the images
    conventions: Mapping[str, Any]
    hold_out: float
    val: int
    device: str
    network: str
    network_options: Mapping[str, Any]
    weights: str | None
    training: Mapping[str, Any]
    seeds: Sequence[int]
    places: int
    plugins: Sequence[str] = ()

    @property
    def published(self) -> dict[str, str]:
        """The published loss of each metric that has one."""
        return {metric: f"published:{metric}" for metric in self.metrics if metric in PUBLISHED}

    @property
    def stand_ins(self) -> list[str]:
        """For each metric a loss whose step takes as long as that of a searched one."""
        return [self.published.get(metric, f"naive:{metric}") for metric in self.metrics]

    @property
    def searched(self) -> str:
        """The loss that was searched for all metrics together."""
        return " + ".join(f"searched:{metric}" for metric in self.metrics)


def config_text(chosen: Choices, size: Size, minutes: tuple[float, float]) -> str:
    """Return the config; `minutes`: those that were given for it, and those that it takes by what was measured."""
    lines = [
        f"# Written by `autoseg auto` for {minutes[0]:.0f} minutes; by what was measured it takes {minutes[1]:.0f}.",
        "# It is yours to change: `autoseg auto` keeps it, and goes on with it. docs/config.md has every key.",
        f"name: {NAME}",
        *([f"plugins: {flow(list(chosen.plugins))}"] if chosen.plugins else []),
        f"device: {chosen.device}",
        "threads: 1  # CPU threads of a training; as many trainings run at once as there are cores, or --jobs",
        f"loaders: {0 if chosen.device == 'cpu' else 2}",
        "",
        *_data(chosen, size),
        "",
        *_searches(chosen, size),
        "",
        *_retrainings(chosen, size),
        "",
        *_outputs(chosen),
    ]
    return "\n".join(lines) + "\n"


def _data(chosen: Choices, size: Size) -> list[str]:
    return [
        "datasets:",
        "  images:",
        *(f"    # {said}" for said in chosen.said),
        f"    kind: {chosen.kind}",
        f"    options: {flow(chosen.options)}",
        f"    proxy_size: {size.crop}  # crop, pixels",
        f"    hold_out: {chosen.hold_out}  # of the training images: there losses and learning rates are chosen",
        "    split_seed: 0",
        f"    conventions: {flow(chosen.conventions)}  # of the metrics, pixels",
    ]


def _network(chosen: Choices) -> list[str]:
    lines = [f"network: {flow(chosen.network)}"]
    lines += [f"network_options: {flow(chosen.network_options)}"] if chosen.network_options else []
    return lines + ([f"weights: {flow(chosen.weights)}"] if chosen.weights else [])


def _searches(chosen: Choices, size: Size) -> list[str]:
    low, high = (float(f"{chosen.training['lr'] * factor:.2g}") for factor in (1 / TUNED, TUNED))
    lines = [
        "proxies:",
        "  short:  # what the search and the tuning train",
        *(f"    {line}" for line in _network(chosen)),
        "    # The learning rate is that of a range test with cross entropy (auto/probe.json), for all losses.",
        f"    training: {flow({'iterations': size.iterations, **chosen.training})}",
        "",
        "# A search begins at the published curves, if the metric has some. Its answers are trained as long as the",
        "# runs, and the best of them is taken: a loss that leads in short trainings need not lead in long ones.",
        "searches:",
    ]
    sizes = {"steps": size.steps, "trials_per_step": size.trials_per_step}
    answers = {"rescore": 1, "rescore_length": RETRAINING}
    for metric in chosen.metrics:
        start = {"initial": chosen.published[metric]} if metric in chosen.published else {}
        lines += [
            f"  {metric}:",
            "    dataset: images",
            "    proxy: short",
            f"    trials_per_job: {-(-size.trials_per_step // chosen.places)}",
            f"    search: {flow({'metric': metric, 'preset': 'recommended', **start, **sizes, **answers})}",
        ]
    return [
        *lines,
        "",
        "tunings:",
        "  lr:  # cross entropy with as many trainings as a search has: a search must beat tuning",
        "    dataset: images",
        "    proxy: short",
        "    loss: ce",
        f"    lr: {flow([low, high])}",
        f"    trials: {size.trainings}",
        f"    trials_per_job: {-(-size.trainings // chosen.places)}",
    ]


def _retrainings(chosen: Choices, size: Size) -> list[str]:
    crop = {"crop": [size.crop, size.crop], "short_side": size.crop}
    training = {"iterations": size.run_iterations, **chosen.training, **crop}
    body = [*_network(chosen), "protocol: paper-proxy", "source: cache", f"training: {flow(training)}"]
    lines = ["retrainings:", "  long:  # how every loss is trained for the table", *(f"    {line}" for line in body)]
    for metric in chosen.metrics:
        lines += [f"  tuned-{metric}:", *(f"    {line}" for line in body), "    tuning: lr", f"    tuned_for: {metric}"]
    return lines


def _outputs(chosen: Choices) -> list[str]:
    metrics = list(chosen.metrics)
    rows: list[dict[str, str]] = [{"loss": "ce", "label": chosen.rivals["ce"]}]
    for metric in metrics:
        label = "Cross entropy, learning rate tuned" + (f" for {metric}" if len(metrics) > 1 else "")
        rows.append({"loss": "ce", "label": label, "retraining": f"tuned-{metric}"})
    rows += [{"loss": loss, "label": label} for loss, label in chosen.rivals.items() if loss != "ce"]
    rows += [{"loss": loss, "label": f"Published {metric}"} for metric, loss in chosen.published.items()]
    rows += [{"loss": f"searched:{metric}", "label": f"Searched {metric}"} for metric in metrics]
    if len(metrics) > 1:
        rows.append({"loss": chosen.searched, "label": f"Searched {' + '.join(metrics)}"})
    searches = {"kind": "searches", "title": "Search curves", "lines": {metric: [metric] for metric in metrics}}
    curves = {"kind": "curves", "title": "The searched curves against the identity", "searches": metrics}
    gallery = {"kind": "gallery", "title": "Validation images", "dataset": "images", "retraining": "long"}
    shown = {"images": _GALLERY, "losses": {"Cross entropy": "ce", rows[-1]["label"]: chosen.searched}}
    return [
        "tables:",
        "  main:",
        "    title: Losses on your images",
        "    dataset: images",
        "    retraining: long",
        f"    metrics: {flow(list(dict.fromkeys([*METRICS, *metrics])))}",
        f"    seeds: {flow(list(chosen.seeds))}  # the same for all losses: seeds are pairs",
        "    rows:",
        *(f"      - {flow(row)}" for row in rows),
        "",
        "figures:",
        f"  searches: {flow(searches)}",
        f"  curves: {flow(curves)}",
        *([f"  gallery: {flow({**gallery, **shown})}"] if chosen.val >= _GALLERY else []),
    ]


def flow(value: Any) -> str:
    """Return a value as YAML in one line: JSON, which is YAML too, without quotes around plain words.

    >>> flow({"lr": 0.00003, "network": "smp:FPN/mobilenet_v2", "crop": [64, 64], "kind": "curves"})
    '{lr: 3.0e-05, network: "smp:FPN/mobilenet_v2", crop: [64, 64], kind: curves}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(key)}: {flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, float):
        digits, exponent, power = repr(value).partition("e")
        return f"{digits}{'' if '.' in digits else '.0'}{exponent}{power}"  # YAML 1.1 takes 3e-05 for a text
    if isinstance(value, str) and value.replace("_", "").replace("-", "").isalnum() and value[0].isalpha():
        return value if value.lower() not in ("null", "true", "false", "yes", "no", "on", "off") else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)
