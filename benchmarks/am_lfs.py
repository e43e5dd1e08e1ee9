"""`make bench-am-lfs`: does the search of AM-LFS (Li et al. 2019) converge here, what tames it, what is its loss worth?

On the made-up scenes: the search as published, beside cross entropy along the same chain, and with one change each. On
photographs of pets, where they are: the search as published (`make bench-am-lfs PETS=DIR WEIGHTS=FILE`); without them
that part is left out. Then networks are trained with the losses that were found. What was run before is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from autoseg.data.model import cache_short_side
from autoseg.data.pets import find as find_pets
from autoseg.data.prepare import prepare
from autoseg.data.split import make_split
from autoseg.data.synthetic import find as find_scenes
from autoseg.files import fingerprint, read_json, write_json
from autoseg.losses.am_lfs import ProbabilitySpace
from autoseg.losses.am_lfs_loss import FLOOR, AMLFSLoss
from autoseg.losses.build import build_loss, loss_of
from autoseg.losses.curves import Curve
from autoseg.losses.surrogate import Surrogate
from autoseg.report.comparison import LEVEL, paired
from autoseg.search.folder import Folder, Link
from autoseg.search.ppo2 import Array
from autoseg.search.proposers import AMLFS, trials_of
from autoseg.search.records import Scored
from autoseg.search.runner import run
from autoseg.search.settings import Search
from autoseg.training.run import save_weights
from autoseg.training.settings import Task, Training
from autoseg.training.trial import ProxyObjective, ProxyTask
from autoseg.versions import TRAINING_VERSION
from benchmarks.real import CONFIG as PETS_CONFIG
from benchmarks.real import ROOT
from benchmarks.shared import table, write_section

HERE = Path(__file__).parent
CACHE = HERE / ".cache" / "am-lfs"
FIGURE = HERE / "am-lfs.png"
METRIC = "mIoU"
SEEDS = (1, 2, 3)  # of the networks that are trained with what was found; the searches have 0
LEAST = 0.1  # with a floor that slopes: tau is at least so many times p


# --------------------------------------------------------------------------------------------------- what is changed


class Sloped:
    """A tau that is at least `LEAST` p: where it would be less, the loss is cross entropy, but for a constant."""

    def __init__(self, tau: Curve) -> None:
        self.tau, self.pieces = tau, tau.pieces

    def __call__(self, p: Tensor) -> Tensor:
        """Return tau(p)."""
        return torch.maximum(self.tau(p), LEAST * p)


def sloped(surrogate: Surrogate, **options: Any) -> nn.Module:
    """Return a loss whose tau has a floor that slopes."""
    loss = loss_of(surrogate, **options)
    assert isinstance(loss, AMLFSLoss)
    loss.tau = Sloped(loss.tau)  # type: ignore[assignment]
    return loss


class Fixed(AMLFS):
    """A search whose mean stays cross entropy: what is gained by taking the best network of each step alone."""

    RATE = 0.0


class Narrow(AMLFS):
    """A search with samples that are near each other."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.settings = replace(self.settings, sigma=0.05)


class Raw(AMLFS):
    """A search whose rewards are the scores as they are: nothing is subtracted, nothing divided."""

    @staticmethod
    def rewards(scores: Array) -> Array:
        """Return the scores."""
        return scores


@dataclass(frozen=True)
class Variant:
    """A search with one thing changed: its sampler, or its loss."""

    sampler: type[AMLFS] = AMLFS
    loss: Callable[..., nn.Module] = loss_of

    @contextmanager
    def there(self) -> Iterator[None]:
        """Have searches and trainings changed inside."""
        with (
            patch("autoseg.search.proposers.AMLFS", self.sampler),
            patch("autoseg.training.trial.loss_of", self.loss),
        ):
            yield


AS_PUBLISHED = "as published"
VARIANTS = {
    AS_PUBLISHED: Variant(),
    "the mean stays cross entropy": Variant(Fixed),
    "rewards as they are": Variant(Raw),
    "sigma .05": Variant(Narrow),
    f"tau at least {LEAST:g} p": Variant(loss=sloped),
}


# ------------------------------------------------------------------------------------------------------------- studies


@dataclass(frozen=True)
class Study:
    """What is searched on, and for how long."""

    name: str
    steps: int
    trials: int
    task: Task  # of a trial
    iterations: int  # of a training with what was found
    fresh: Callable[[int], tuple[Task, list[str] | None]]  # seed -> such a training, and what it is scored on

    @property
    def search(self) -> Search:
        """The search's settings."""
        return Search(
            name=f"AM-LFS on {self.name}",
            metric=METRIC,
            sampler="am-lfs",
            family="am-lfs",
            steps=self.steps,
            trials_per_step=self.trials,
        )

    @cached_property
    def proxy(self) -> ProxyTask:
        """The task, opened."""
        return ProxyTask(self.task)

    @property
    def folder(self) -> Path:
        """Where its results are kept, by all that they depend on."""
        mark = fingerprint([TRAINING_VERSION, self.proxy.task_fingerprint, self.steps, self.trials, self.iterations])
        return CACHE / f"{self.name}-{mark[:12]}"

    def history(self, name: str) -> list[Scored]:
        """Return a search's steps, after running what is missing."""
        place = self.folder / name.replace(" ", "-")
        with VARIANTS[name].there():
            run(place, self.search, ProxyObjective(self.task), here=True)
            return Folder(place).history(self.steps)

    def cross_entropy(self) -> list[float]:
        """Return the scores of cross entropy after every step of the same chain: of a mean that stays, not sampled."""
        place = self.folder / "cross-entropy"
        loss, before, scores = build_loss("ce", ignore_index=self.proxy.data.ignore_index), None, []
        for step in range(1, self.steps + 1):
            network, path = place / f"{step}.safetensors", place / f"{step}.json"
            if not path.exists():
                place.mkdir(parents=True, exist_ok=True)
                outcome = self.proxy.train(loss, link=Link(step, self.steps, before, None))
                save_weights(self.proxy.trained, network, "", outcome)
                write_json(path, self.proxy.score([METRIC]))
            scores.append(read_json(path)[METRIC])
            before = network
        return scores

    def retrained(self, name: str | None) -> dict[int, float]:
        """Return what networks score that are trained with a search's loss, or with cross entropy, by seed."""
        found = {}
        for seed in SEEDS:
            path = self.folder / f"retrained-{(name or 'ce').replace(' ', '-')}-{seed}.json"
            if not path.exists():
                task, ids = self.fresh(seed)
                proxy = ProxyTask(task)
                options: dict[str, Any] = {"ignore_index": proxy.data.ignore_index}
                if name is None:
                    loss: nn.Module = build_loss("ce", **options)
                else:
                    loss = VARIANTS[name].loss(self.answer(name), **options)
                proxy.train(loss)
                write_json(path, proxy.score([METRIC], ids))
            found[seed] = 100 * read_json(path)[METRIC]
        return found

    def answer(self, name: str) -> Surrogate:
        """Return the loss that a search found."""
        return Surrogate.load(self.folder / name.replace(" ", "-") / "surrogate.json")


def scenes() -> Study:
    """Return the study on made-up scenes: 120 images to train on, 60 held out, a network as in the demo."""
    settings: dict[str, Any] = {
        "batch_size": 8,
        "crop": (64, 64),
        "short_side": 64,
        "lr": 0.05,
        "head_lr": 1.0,
        "loaders": 0,
        "device": "cpu",
    }

    def task(seed: int, iterations: int) -> Task:
        place = CACHE / f"scenes-{seed}"
        if not (place / "split.json").exists():
            data = prepare(find_scenes(place / "source", 180, 1, 128, seed), place, cache_short_side(64))
            make_split(data.index, 60, seed).save(place / "split.json")
        return Task(data=str(place), network="small", training=Training(**settings, iterations=iterations, seed=seed))

    return Study("scenes", 12, 16, task(0, 15), 180, lambda seed: (task(seed, 180), None))


def photographs(pets: Path, weights: Path) -> Study:
    """Return the study on photographs, with the network and the settings of `make bench-real`."""
    how = yaml.safe_load(PETS_CONFIG.read_text())["proxies"]["mobile"]
    place, side = CACHE / "pets", 96
    data = prepare(find_pets(pets), place, cache_short_side(side), leave_out_copies=True)
    make_split(data.index, 200, 0).save(place / "split.json")
    settings = {**how["training"], "crop": (side, side), "short_side": side, "loaders": 0, "device": "cpu"}

    def task(seed: int, iterations: int) -> Task:
        return Task(
            data=str(place),
            network=how["network"],
            network_options=how["network_options"],
            weights=str(weights),
            training=Training(**{**settings, "iterations": iterations, "seed": seed}),
        )

    validated = [entry.id for entry in data.index.splits["val"]]
    return Study("pets", 8, 8, task(0, 16), 128, lambda seed: (task(seed, 128), validated))


# -------------------------------------------------------------------------------------------------------- what is told


def handed_on(history: list[Scored]) -> list[float]:
    """Return the score of the network that each step hands on."""
    return [100 * max(step.scores) for step in history]


def degenerate(thetas: Array, classes: int) -> tuple[float, float]:
    """Return the share of losses whose tau is 0 or less somewhere, and where every class is as probable.

    >>> degenerate(np.array([[1.0, 0.0] * 6, [1.0, -0.2] + [1.0, 0.0] * 5]), 6)
    (0.5, 0.0)
    """
    p = np.append(np.linspace(1e-3, 1, 500), 1 / classes)
    with np.errstate(all="ignore"):
        tau = np.array([ProbabilitySpace().curve(list(theta))(p) for theta in thetas])
    return float((tau[:, :-1] <= FLOOR).any(axis=1).mean()), float((tau[:, -1] <= FLOOR).mean())


def row(study: Study, name: str, against: list[float]) -> list[str]:
    """Return what the table says of a search."""
    history = study.history(name)
    thetas, scores = trials_of(history)
    handed = handed_on(history)
    starts = np.repeat([0.0, *handed[:-1]], study.trials)
    later = np.arange(len(scores)) >= study.trials
    flat, flat_at_start = degenerate(thetas, study.proxy.data.num_classes)
    if name.startswith("tau"):
        flat = flat_at_start = 0.0
    diverged = sum(file.diverged for step in history for file in step.files)
    moved = np.abs(np.array(study.answer(name).theta) - ProbabilitySpace().identity)
    return [
        name,
        f"{100 * history[0].average:.1f} to {100 * history[-1].average:.1f}",
        f"{handed[-1]:.1f}",
        f"{handed[-1] - 100 * against[-1]:+.1f}",
        f"{100 * flat:.0f} %",
        f"{100 * flat_at_start:.0f} %",
        f"{100 * float((100 * scores < starts - 1)[later].mean()):.0f} %",
        str(diverged),
        f"{moved.mean():.2f}",
    ]


HEAD = [
    "search",
    "mean of a step, first to last",
    "last network",
    "to cross entropy",
    "tau <= 0 somewhere",
    "no gradient at 1/C",
    "left worse",
    "diverged",
    "mean moved",
]


def curves(study: Study, names: list[str]) -> str:
    """Return the section of a study."""
    chain = study.cross_entropy()
    rows = [["cross entropy, not sampled", "", f"{100 * chain[-1]:.1f}", *[""] * (len(HEAD) - 3)]]
    rows += [row(study, name, chain) for name in names]
    ce = study.retrained(None)
    found = {name: study.retrained(name) for name in names if name != "the mean stays cross entropy"}
    trained = [["cross entropy", f"{np.mean(list(ce.values())):.1f}", ""]]
    for name, scores in found.items():
        gain = paired(scores, ce)
        trained.append([f"AM-LFS, {name}", f"{np.mean(list(scores.values())):.1f}", gain.text if gain else ""])
    s, training = study.search.settings, study.task.training
    return "\n\n".join(
        [
            f"**{study.name.capitalize()}**: `{study.task.network}`, {study.proxy.data.num_classes} classes, {s.steps} "
            f"steps of {s.trials_per_step} losses, each trained for {training.iterations} iterations of "
            f"{training.batch_size} crops of {training.crop[0]}, seed {training.seed}, and scored on "
            f"{len(study.proxy.split.hold_out)} held-out images.",
            table(HEAD, rows),
            f"Networks that were trained anew with what was found, {study.iterations} iterations, seeds "
            f"{', '.join(map(str, SEEDS))}; the difference over paired seeds, its {100 * LEVEL:.0f} % interval, and in "
            "how many seeds it is better:",
            table(["loss", METRIC, "against cross entropy"], trained),
        ]
    )


def plot(studies: Mapping[str, Study]) -> None:
    """Draw the rewards by step: of the published search, beside cross entropy; and what the changes hand on."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(
        1, len(studies) + 1, figsize=(4 * len(studies) + 4, 3.4), constrained_layout=True, squeeze=False
    )
    for panel, (title, study) in zip(panels[0], studies.items(), strict=False):
        history = study.history(AS_PUBLISHED)
        at = range(1, study.steps + 1)
        for step, scored in zip(at, history, strict=True):
            points = [100 * score for score in scored.scores]
            panel.plot([step] * len(points), points, ".", color="0.75", markersize=3)
        panel.plot(at, [100 * step.average for step in history], "s-", color="C0", label="mean of the step")
        panel.plot(at, handed_on(history), "o-", color="C1", label="best, handed on")
        panel.plot(at, [100 * score for score in study.cross_entropy()], "k--", label="cross entropy")
        panel.set(title=title, xlabel="step", ylabel=f"{METRIC} on the hold-out")
        panel.legend(fontsize=7)
    study, panel = studies["Scenes, as published"], panels[0][-1]
    for k, name in enumerate(VARIANTS):
        panel.plot(
            range(1, study.steps + 1), handed_on(study.history(name)), "o-", markersize=3, label=name, color=f"C{k}"
        )
    panel.plot(
        range(1, study.steps + 1), [100 * score for score in study.cross_entropy()], "k--", label="cross entropy"
    )
    panel.set(title="Scenes, the network handed on", xlabel="step")
    panel.legend(fontsize=7)
    figure.savefig(FIGURE, dpi=90)
    plt.close(figure)


def main() -> None:
    """Run what is missing, and write the section."""
    torch.set_num_threads(1)
    began = time.process_time()
    studies = {"Scenes, as published": scenes()}
    parts: list[Callable[[], str]] = [partial(curves, studies["Scenes, as published"], list(VARIANTS))]
    pets, weights = (
        (ROOT / place).resolve()
        for place in (
            os.environ.get("PETS") or "data/pets",
            os.environ.get("WEIGHTS") or "data/mobilenet_v2.safetensors",
        )
    )
    if pets.exists() and weights.exists():
        studies["Pets, as published"] = photographs(pets, weights)
        parts.append(partial(curves, studies["Pets, as published"], [AS_PUBLISHED]))
    else:
        parts.append(lambda: "The photographs of pets, or the weights, were not there: that part was not run.")
    told = [part() for part in parts]
    plot(studies)
    write_section("am-lfs", "\n\n".join([ABOUT, *told, f"![rewards by step]({FIGURE.name})", FINDINGS]))
    print(f"{(time.process_time() - began) / 60:.1f} minutes of one core, of what was not there yet.")


ABOUT = f"""## AM-LFS

`make bench-am-lfs`: the search of AM-LFS (Li et al. 2019) for {METRIC}, in percent."""

FINDINGS = ""


if __name__ == "__main__":
    main()
