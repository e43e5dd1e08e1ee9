"""`make bench-am-lfs`: does the search of AM-LFS (Li et al. 2019) converge here, what tames it, what is its loss worth?

On the made-up scenes: the search as published, and with a tamed tau, beside cross entropy along the same chain. On
photographs of pets, where they are: the search as published (`make bench-am-lfs PETS=DIR WEIGHTS=FILE`); without them
that part is left out. Then networks are trained with the losses that were found. What was run before is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from autoseg.data.augment import CenterView
from autoseg.data.loaders import eval_loader
from autoseg.data.model import cache_short_side
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
from autoseg.search.folder import NETWORK, Folder, Link
from autoseg.search.ppo2 import Array
from autoseg.search.proposers import AMLFS, trials_of
from autoseg.search.records import Scored
from autoseg.search.runner import run
from autoseg.search.settings import Search
from autoseg.training.run import save_weights
from autoseg.training.settings import Task, Training
from autoseg.training.trial import ProxyObjective, ProxyTask
from autoseg.training.weights import read
from autoseg.versions import TRAINING_VERSION
from benchmarks import synthetic
from benchmarks.photographs import photographs
from benchmarks.real import places
from benchmarks.shared import table, write_section

HERE = Path(__file__).parent
CACHE = HERE / ".cache" / "am-lfs"
FIGURE = HERE / "am-lfs.png"
METRIC = "mIoU"
SEEDS = (1, 2, 3)  # of the networks that are trained with what was found; the searches have 0
LEAST = 0.1  # of a tamed tau: it is at least so many times p


# --------------------------------------------------------------------------------------------------- what is changed


class Tamed:
    """A tau without an offset in its first interval, and nowhere less than `LEAST` p: no pixel loses its gradient."""

    def __init__(self, tau: Curve) -> None:
        first = tau.pieces[0]
        self.pieces = [first._replace(v0=0.0, c=max(first.c, LEAST * first.b)), *tau.pieces[1:]]
        self.tau = Curve(self.pieces, 0.0, tau.end)

    def __call__(self, p: Tensor) -> Tensor:
        """Return tau(p)."""
        return torch.maximum(self.tau(p), LEAST * p)


def tamed(surrogate: Surrogate, **options: Any) -> nn.Module:
    """Return a loss whose tau is tamed."""
    loss = loss_of(surrogate, **options)
    assert isinstance(loss, AMLFSLoss)
    loss.tau = Tamed(loss.tau)  # type: ignore[assignment]
    return loss


AS_PUBLISHED, TAMED = "as published", "tau tamed"
LOSSES: dict[str, Callable[..., nn.Module]] = {AS_PUBLISHED: loss_of, TAMED: tamed}


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
        with patch("autoseg.training.trial.loss_of", LOSSES[name]):
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

    def predicted(self, network: Path) -> str:
        """Return how many classes a network gives to more than a thousandth of the held-out pixels, of how many."""
        proxy = self.proxy
        proxy.trained.load_state_dict(read(network))
        proxy.trained.eval()
        classes = proxy.data.num_classes
        pixels = np.zeros(classes)
        view = CenterView(proxy.settings.short_side)
        for images, _ in eval_loader(proxy.cache.read, proxy.split.hold_out, view, batch_size=8, loaders=0):
            with torch.no_grad():
                found = proxy.trained(images)
            logits = found if isinstance(found, Tensor) else found[0]
            pixels += np.bincount(logits.argmax(1).flatten().numpy(), minlength=classes)
        return f"{int((pixels > pixels.sum() / 1000).sum())} of {classes}"

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
                    loss = LOSSES[name](self.answer(name), **options)
                proxy.train(loss)
                write_json(path, proxy.score([METRIC], ids))
            found[seed] = 100 * read_json(path)[METRIC]
        return found

    def answer(self, name: str) -> Surrogate:
        """Return the loss that a search found."""
        return Surrogate.load(self.folder / name.replace(" ", "-") / "surrogate.json")


def scenes() -> Study:
    """Return the study on made-up scenes: 120 images to train on, 60 held out, a network as in the demo."""

    def task(seed: int, iterations: int) -> Task:
        place = CACHE / f"scenes-{seed}"
        if not (place / "split.json").exists():
            data = prepare(find_scenes(place / "source", 180, 1, 128, seed), place, cache_short_side(64))
            make_split(data.index, 60, seed).save(place / "split.json")
        training = Training(**{**synthetic.SETTINGS, "iterations": iterations, "seed": seed})
        return Task(data=str(place), network=synthetic.NETWORK, training=training)

    return Study("scenes", 12, 10, task(0, 15), 180, lambda seed: (task(seed, 180), None))


def pets() -> Study | None:
    """Return the study on photographs, with the network and the settings of `make bench-real`, where they are."""
    if not all(place.exists() for place in places()):
        return None
    task, validated = photographs(*places(), CACHE / "pets", 100)
    return Study("pets", 6, 6, task(0, 12), 72, lambda seed: (task(seed, 72), validated))


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


def first_losses(sigma: float, count: int = 10_000) -> Array:
    """Return losses as the first step samples them: around cross entropy."""
    identity = np.array(ProbabilitySpace().identity)
    return identity + sigma * np.random.default_rng(0).normal(size=(count, len(identity)))


def without_baseline(history: list[Scored]) -> float:
    """Return the cosine of the gradient by plain scores to that by normalised rewards, the median of the steps."""
    cosines = []
    for step in history:
        away = step.thetas - np.array(step.proposals.mu)
        scores = np.array(step.scores)
        raw, published = ((rewards[:, None] * away).mean(axis=0) for rewards in (scores, AMLFS.rewards(scores)))
        cosines.append(raw @ published / np.linalg.norm(raw) / np.linalg.norm(published))
    return float(np.median(cosines))


def row(study: Study, name: str, against: list[float]) -> list[str]:
    """Return what the table says of a search."""
    history = study.history(name)
    thetas, scores = trials_of(history)
    handed = handed_on(history)
    starts = np.repeat([0.0, *handed[:-1]], study.trials)
    later = np.arange(len(scores)) >= study.trials
    flat, flat_at_start = degenerate(thetas, study.proxy.data.num_classes)
    if name == TAMED:
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
        study.predicted(study.folder / name.replace(" ", "-") / NETWORK),
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
    "classes predicted",
]


def curves(study: Study, names: list[str]) -> str:
    """Return the section of a study."""
    chain = study.cross_entropy()
    last = study.predicted(study.folder / "cross-entropy" / f"{study.steps}.safetensors")
    rows = [["cross entropy, not sampled", "", f"{100 * chain[-1]:.1f}", *[""] * (len(HEAD) - 4), last]]
    rows += [row(study, name, chain) for name in names]
    ce = study.retrained(None)
    found = {name: study.retrained(name) for name in names}
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
            "Left worse: trials after the first step that end more than a point below their start. Mean moved: "
            "how far a number of theta is from cross entropy's in the end. Classes predicted: those that the last "
            "network gives to more than a thousandth of the pixels. Were the rewards the scores as they are, the "
            "gradient of the mean would have the cosine "
            f"{without_baseline(study.history(AS_PUBLISHED)):.2f} to this one (median of the steps as published).",
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
    for k, name in enumerate(LOSSES):
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


def about() -> str:
    """Return what the section begins with: what is compared, and how many losses have no gradient from the start."""
    rows = []
    for sigma in (0.2, 0.05):
        thetas = first_losses(sigma)
        shares = [degenerate(thetas, classes) for classes in (3, 6, 21)]
        rows.append([f"{sigma:g}", f"{100 * shares[0][0]:.0f} %", *(f"{100 * share[1]:.0f} %" for share in shares)])
    head = ["sigma", "tau <= 0 somewhere", *(f"tau(1/C) <= 0, C = {classes}" for classes in (3, 6, 21))]
    return f"""## AM-LFS

`make bench-am-lfs`: the search of AM-LFS (Li et al. 2019) for {METRIC}, in percent. All trials of a step start from the
best network of the step before. Cross entropy is trained along the same chain, with the same batches and rates, one
network a step. Tamed: tau has no offset in its first interval, and is at least {LEAST:g} p. Sizes were chosen for the
time that they take; the learning rates are those of the demo and of `make bench-real`. One search each, seed 0.

Of 10,000 losses as the first step samples them (C: classes; an undecided network gives every class 1/C):

{table(head, rows)}"""


FINDINGS = """What happens. On the scenes the search as published converges, but to a poor network: the scores of a
step come close together, far below cross entropy, and the network has given its rare classes up. The loss is the
logarithm of a p + b. Where that is not positive, a pixel has no gradient; where b is positive, the gradient in the
label's logit is a p (1 - p) / (a p + b), which goes to 0 with p, where that of cross entropy goes to 1. Either way a
class whose pixels have a small p is not learned any more, and the network is handed on to all: no later step has
another. Clipping the gradient was not tried: no training of a sampled loss diverged on the scenes.

On the photographs the search is far too short to say whether it converges: its scores still rise. It ends below cross
entropy, whose own scores on so few images jump from step to step. The loss that it found hardly differs from cross
entropy, and is worth as much.

What tames it. A tau that is proportional to p where p is small: on the scenes the network that is handed on is then
level with cross entropy, with nothing else changed; one search each is too little to call one of the two better. A
smaller sigma was counted, not trained: half of all first offsets are negative at any sigma, but the dead part of [0,
1] is narrower. More classes make it worse, as 1/C comes nearer to 0. With VOC's 21 four of ten losses of the first
step teach an undecided network nothing, which fits the paper's sentence. The rewards are a step's scores less their
mean, over their deviation; with the scores as they are, the mean would move mostly by noise, as the cosine says."""


def main() -> None:
    """Run what is missing, and write the section."""
    torch.set_num_threads(1)
    began = time.process_time()
    studies = {"Scenes, as published": scenes()}
    parts: list[Callable[[], str]] = [partial(curves, studies["Scenes, as published"], list(LOSSES))]
    if photographed := pets():
        studies["Pets, as published"] = photographed
        parts.append(partial(curves, photographed, [AS_PUBLISHED]))
    else:
        parts.append(lambda: "The photographs of pets, or the weights, were not there: that part was not run.")
    told = [part() for part in parts]
    plot(studies)
    write_section("am-lfs", "\n\n".join([about(), *told, f"![rewards by step]({FIGURE.name})", FINDINGS]))
    print(f"{(time.process_time() - began) / 60:.1f} minutes of one core, of what was not there yet.")


if __name__ == "__main__":
    main()
