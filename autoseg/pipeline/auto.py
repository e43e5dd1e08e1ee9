"""From a folder of images to a config: what `autoseg auto` finds, measures and plans, written once as `auto.yaml`.

Everything happens in the study's folder, so that paths in the config are seen from there. The config is written last:
if it is there, the study is planned, and only a person changes it. No torch here.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoseg import gpus
from autoseg.data.check import check, survey
from autoseg.data.discovery import Discovered, discover
from autoseg.data.kinds import kind_of
from autoseg.data.source import Source
from autoseg.errors import InputError, Problem, errors, refuse, summary, warnings
from autoseg.files import atomic, read_settings
from autoseg.metrics import formula
from autoseg.metrics.conventions import Conventions
from autoseg.pipeline.auto_text import FURTHER, RIVALS, Choices, config_text
from autoseg.pipeline.budget import Study, plan
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.probing import few_images, measure
from autoseg.training.measures import Asked, Measured, chosen_rate
from autoseg.training.names import check_network
from autoseg.training.names import kind_of as kind_of_network
from autoseg.training.settings import Task, Training

logger = logging.getLogger(__name__)

CONFIG = Path("auto.yaml")
PROBE = Path("auto/probe.json")
_PROBLEMS = Path("auto/problems.txt")  # each in a line
_PROBED = Path("auto/probe")  # a few images, prepared to be measured with

METRIC = "mIoU"  # if none is given
SEEDS = (0, 1, 2)
HOLD_OUT = 0.25

_FURTHER_FROM = 0.5  # hours, from which there are more rivals
_CHOICE_FROM = 0.2  # hours, below which the smallest crop is taken unmeasured
_STEPS, _RANGE_STEPS = 3, 80
_MOBILE = {"decoder_pyramid_channels": 64, "decoder_segmentation_channels": 32}
_GIVE_LIST = (
    "mend the masks, or put a list of the classes of all values beside the images: classes.txt, one a line, from 0 on"
)
_HUB = ("huggingface.co", 443)


@dataclass(frozen=True)
class Wishes:
    """What a person asks for; None: chosen here."""

    root: str
    metrics: list[str]  # none: chosen here
    hours: float
    network: str | None = None
    weights: str | None = None
    device: str = "auto"
    jobs: int | None = None
    plugins: Sequence[str] = ()


def metrics_of(text: str) -> list[str]:
    """Return the metrics that a text such as "BF1+mIoU" names.

    >>> metrics_of("bf1+miou")
    ['BF1', 'mIoU']
    """
    names = [formula.get(name.strip()).name for name in re.split("[+,]", text)]
    if len(set(names)) < len(names):
        raise InputError(f"found '{text}'", where="--metric", expected="each metric once")
    return names


def write_config(wishes: Wishes, began: float) -> float:
    """Find, check, measure and plan, and write `auto.yaml` into this folder; return the seconds that it takes.

    `began`: when the hours began.
    """
    if wishes.network is not None:
        check_network(wishes.network)
    if wishes.weights not in (None, "none", "imagenet") and not os.path.isfile(wishes.weights):
        raise InputError("no such file", where=f"--weights {wishes.weights}", cure="give a file, imagenet or none")
    shutil.rmtree(_PROBED, ignore_errors=True)  # of a start that was killed: images may have changed
    found = discover(wishes.root, "auto", cores())
    for name, text in found.files.items():
        with atomic(name) as file:
            file.write(text)
    looked = time.monotonic()
    source = _checked(wishes, found)
    checked = time.monotonic() - looked
    chosen = _choices(wishes, found, source)
    crops = _crops(source, chosen.device)
    logger.info("measuring a few steps of %s on %s.", chosen.network, chosen.device)

    def seconds_left() -> float:
        return 3600 * wishes.hours - (time.monotonic() - began)

    try:
        crop = crops[0]
        if len(crops) > 1 and wishes.hours >= _CHOICE_FROM:
            # A crop is chosen by rough numbers: other losses take as long as cross entropy.
            first = measure(_asked(chosen, source, crop, ["ce", *chosen.stand_ins], 0), _PROBED, chosen.places)
            crop = plan(_study(chosen, source, first, crop, checked), crops, seconds_left()).crop
        losses = dict.fromkeys([*chosen.rivals, *chosen.stand_ins, " + ".join(chosen.stand_ins)])
        probed = measure(_asked(chosen, source, crop, list(losses), _RANGE_STEPS), _PROBED, chosen.places)
    finally:
        shutil.rmtree(_PROBED, ignore_errors=True)
    probed.save(PROBE)
    chosen = replace(chosen, training={**chosen.training, "lr": chosen_rate(probed.rates, probed.losses)})
    study, left = _study(chosen, source, probed, crop, checked), seconds_left()
    size = plan(study, [crop], left)
    part = CONFIG.with_suffix(".yaml.part")
    with atomic(part) as file:
        file.write(config_text(chosen, size, (left / 60, study.seconds(size) / 60)))
    load_pipeline(read_settings(part), str(CONFIG))
    os.replace(part, CONFIG)
    return study.seconds(size)


def unlike(pipeline: Pipeline, wishes: Wishes) -> list[str]:
    """Return what is asked for now and is not what a config does; images of another folder are refused."""
    roots = {Path(data.options["root"]) for data in pipeline.datasets.values() if "root" in data.options}
    if roots and not any(root.resolve() == Path(wishes.root).resolve() for root in roots):
        raise InputError(
            f"this is the study of {' and '.join(sorted(map(str, roots)))}",
            where=CONFIG.absolute(),
            expected=f"that of {wishes.root}",
            cure="give another folder with `--out`",
        )
    metrics = [pipeline.search(name).metric for name in pipeline.searches]
    networks = {proxy.network for proxy in pipeline.proxies.values()}
    weights = {proxy.weights for proxy in pipeline.proxies.values()}
    found = []
    if wishes.metrics and set(wishes.metrics) != set(metrics):
        found.append(f"--metric {'+'.join(wishes.metrics)} (it is {'+'.join(metrics)})")
    if wishes.network and wishes.network not in networks:
        found.append(f"--network {wishes.network} (it is {', '.join(sorted(networks))})")
    if wishes.weights and (None if wishes.weights == "none" else wishes.weights) not in weights:
        found.append(f"--weights {wishes.weights} (it is {', '.join(sorted(map(str, weights)))})")
    if wishes.device not in ("auto", pipeline.device):
        found.append(f"--device {wishes.device} (it is {pipeline.device})")
    return found


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def places(device: str) -> int:
    """Return how many trainings this machine has room for: one for each GPU, or for each core."""
    found = gpus.visible() if device != "cpu" else []
    return len(found) or cores()


def _checked(wishes: Wishes, found: Discovered) -> Source:
    """Read every file once; say in one screen what was found and what is wrong with it, and refuse what is."""
    source = kind_of(found.kind).model_validate(found.options).find(Path())
    if not found.listed:
        source = replace(source, cure_of_values=lambda strange: _GIVE_LIST)
    problems = [_left_out(problem) for problem in (*found.problems, *check(source, cores()))]
    _PROBLEMS.unlink(missing_ok=True)
    if problems:
        with atomic(_PROBLEMS) as file:
            file.write("".join(f"{problem}\n" for problem in (*errors(problems), *warnings(problems))))
    listed = str(_PROBLEMS.absolute())
    refuse(wishes.root, problems, listed)
    for said in found.said:
        logger.info("%s.", said)
    if remarks := warnings(problems):
        logger.info("%d remark%s:\n%s", len(remarks), "s" * (len(remarks) > 1), summary(remarks, listed))
    return source


def _left_out(problem: Problem) -> Problem:
    """Return the problem of a copy as a remark: the config says that copies are left out."""
    if "--leave-out-copies" in problem.cure:
        return replace(problem, cure="it is left out of the training", severity="warning")
    return problem


# ------------------------------------------------------------------------------------------------------------- choices


def _choices(wishes: Wishes, found: Discovered, source: Source) -> Choices:
    device = wishes.device if wishes.device != "auto" else "cuda" if gpus.visible() else "cpu"
    network, options, weights = _network(wishes, device)
    train = sum(sample.split == "train" for sample in source.samples)
    background = kind_of(found.kind).HAS_BACKGROUND if found.has_background is None else found.has_background
    conventions = (
        Conventions().on_data(background).model_dump(include={"tolerance", "boundary_radius", "drop_background"})
    )
    return Choices(
        metrics=wishes.metrics or [METRIC],
        rivals={**RIVALS, **(FURTHER if wishes.hours >= _FURTHER_FROM else {})},
        kind=found.kind,
        options={**found.options, "leave_out_copies": True},
        said=found.said,
        conventions=conventions,
        hold_out=HOLD_OUT,
        val=sum(sample.split == "val" for sample in source.samples),
        device=device,
        network=network,
        network_options=options,
        weights=weights,
        training={
            "batch_size": min(16 if device == "cuda" else 8, max(int(train * (1 - HOLD_OUT)), 2)),
            "optimiser": "adamw",
            "lr": 1e-3,  # until it is measured
            "min_lr": 0.0,
            "head_lr": 10.0 if weights else 1.0,
            "weight_decay": 0.01,
        },
        seeds=SEEDS,
        places=wishes.jobs or places(device),
        plugins=wishes.plugins,
    )


def _network(wishes: Wishes, device: str) -> tuple[str, dict[str, Any], str | None]:
    """Return the network, its options, and its weights: those that are given, or can be fetched now, or none."""
    network = wishes.network or ("smp:FPN/resnet50" if device == "cuda" else "smp:FPN/mobilenet_v2")
    options: dict[str, Any] = _MOBILE if wishes.network is None and device == "cpu" else {}
    weights = None if wishes.weights == "none" else wishes.weights or _fetched(network)
    if wishes.network is None and weights is None:
        network, options = ("deeplabv3plus-r18", {}) if device == "cuda" else ("small", {})
        logger.info("no ImageNet weights are at hand: %s starts from nothing (--weights FILE gives some).", network)
    return network, options, weights


def _fetched(network: str) -> str | None:
    """Return the file of ImageNet weights, if the hub can be reached."""
    if kind_of_network(network) not in ("smp", "built-in") or network in ("small", "tiny"):
        return None
    path = Path("auto/weights.safetensors")
    if path.exists():
        return str(path)
    try:
        socket.create_connection(_HUB, timeout=3).close()
    except OSError:
        return None
    logger.info("fetching the ImageNet weights of %s, which may take some minutes.", network)
    command = [sys.executable, "-m", "autoseg", "weights", network, "--out", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return str(path) if done.returncode == 0 else None


def _crops(source: Source, device: str) -> list[int]:
    """Return the crops that the images allow, smallest first: networks halve a side five times."""
    sizes = [survey(source, sample) for sample in source.samples]
    short_side = int(statistics.median(min(size) for size in sizes if isinstance(size, tuple)))
    wanted = (64, 96, 128, 192, 256) if device == "cpu" else (128, 192, 256, 384, 512)
    return [crop for crop in wanted if crop <= short_side] or [max(min(wanted[0], short_side // 32 * 32), 32)]


# ------------------------------------------------------------------------------------------------- what is measured


def _asked(chosen: Choices, source: Source, crop: int, losses: list[str], range_steps: int) -> Asked:
    data = few_images(source, _PROBED, crop, HOLD_OUT, cores())
    size = {"crop": (crop, crop), "short_side": crop, "iterations": 100}
    machine = {"device": chosen.device, "threads": 1, "loaders": 0}
    task = Task(
        data=str(data),
        network=chosen.network,
        network_options=dict(chosen.network_options),
        weights=chosen.weights,
        training=Training.of_protocol("paper-proxy", **{**chosen.training, **size, **machine}),
        conventions=Conventions(**chosen.conventions),
    )
    return Asked(task=task, losses=losses, steps=_STEPS, range_steps=range_steps)


def _study(chosen: Choices, source: Source, measured: Measured, crop: int, checked: float) -> Study:
    tuned = ["ce"] * len(chosen.metrics)
    together = [" + ".join(chosen.stand_ins)] if len(chosen.metrics) > 1 else []
    losses = [*chosen.rivals, *tuned, *chosen.published.values(), *chosen.stand_ins, *together]
    return Study(
        crop=crop,
        step={loss: measured.step.get(loss, measured.step["ce"]) for loss in losses},
        image=measured.image,
        start=measured.start,
        searched=chosen.stand_ins,
        losses=losses,
        seeds=len(chosen.seeds),
        hold_out=round(HOLD_OUT * sum(sample.split == "train" for sample in source.samples)),
        val=chosen.val,
        prepared=checked * chosen.places,
        places=chosen.places,
    )
