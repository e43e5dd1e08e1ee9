"""`make bench-synthetic`: what the published curves are worth on the made-up data set, over three fresh seeds."""

from __future__ import annotations

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from autoseg.data.model import cache_short_side
from autoseg.data.prepare import prepare
from autoseg.data.split import make_split
from autoseg.data.synthetic import SYNTHETIC_VERSION, find
from autoseg.files import fingerprint, read_json, write_json
from autoseg.losses.build import build_loss
from autoseg.training.settings import Task, Training
from autoseg.training.trial import ProxyTask
from autoseg.versions import TRAINING_VERSION
from benchmarks.shared import table, write_section

CACHE = Path(__file__).parent / ".cache" / "synthetic"
SEEDS = (1, 2, 3)  # 0 is the seed that the data set was tuned with
# Name -> loss and changed settings. One learning rate for all would favour losses of its scale: cross entropy has more.
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "ce": ("ce", {}),
    "ce, lr x 1/4": ("ce", {"lr": 0.0125}),
    "ce, lr x 4": ("ce", {"lr": 0.2}),
    "naive:mIoU": ("naive:mIoU", {}),
    "naive:mIoU, lr x 4": ("naive:mIoU", {"lr": 0.2}),
    "published:mIoU": ("published:mIoU", {}),
    "published:mAcc": ("published:mAcc", {}),
}
IMAGES, SIZE, NETWORK = 300, 128, "small"
SETTINGS: dict[str, Any] = {
    "iterations": 150,
    "batch_size": 8,
    "crop": (64, 64),
    "short_side": 64,
    "lr": 0.05,
    "head_lr": 1.0,
    "loaders": 0,
    "device": "cpu",
}
# Which loss shall beat which, on what.
CLAIMS = (
    *(("published:mIoU", worse, "mIoU") for worse in LOSSES if not worse.startswith("published")),
    *(("published:mAcc", worse, "mAcc") for worse in LOSSES if worse.startswith("ce")),
)


def runs(seed: int) -> dict[str, dict[str, float]]:
    """Return the hold-out scores, in percent, of every loss with one seed; what was trained before is read."""
    found = {}
    with TemporaryDirectory() as place:
        for name, (loss, changes) in LOSSES.items():
            settings = {**SETTINGS, **changes, "seed": seed}
            mark = fingerprint([TRAINING_VERSION, SYNTHETIC_VERSION, IMAGES, SIZE, NETWORK, settings, loss])
            path = CACHE / f"{mark[:16]}.json"
            if not path.exists():
                proxy = ProxyTask(
                    Task(data=str(_data(Path(place), seed)), network=NETWORK, training=Training(**settings))
                )
                diverged = proxy.train(build_loss(loss, ignore_index=proxy.data.ignore_index)).diverged
                write_json(path, {"loss": name, "seed": seed, "diverged": diverged, "scores": proxy.score()})
            found[name] = {metric: 100 * value for metric, value in read_json(path)["scores"].items()}
    return found


def _data(folder: Path, seed: int) -> Path:
    if not (folder / "split.json").exists():
        data = prepare(find(folder / "source", IMAGES, 1, SIZE, seed), folder, cache_short_side(SETTINGS["short_side"]))
        make_split(data.index, 0.2, seed).save(folder / "split.json")
    return folder


def main() -> None:
    torch.set_num_threads(1)
    scores = {seed: runs(seed) for seed in SEEDS}

    def spread(loss: str, metric: str) -> str:
        values = [scores[seed][loss][metric] for seed in SEEDS]
        return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"

    metrics = list(next(iter(scores[SEEDS[0]].values())))
    rows = [[f"`{loss}`", *(spread(loss, metric) for metric in metrics)] for loss in LOSSES]
    claims = []
    for better, worse, metric in CLAIMS:
        gains = [scores[seed][better][metric] - scores[seed][worse][metric] for seed in SEEDS]
        claims.append(
            f"- `{better}` against `{worse}` on {metric}: {statistics.mean(gains):+.1f} points "
            f"({', '.join(f'{gain:+.1f}' for gain in gains)}), ahead with {sum(g > 0 for g in gains)} of {len(gains)} "
            "seeds."
        )
    write_section(
        "synthetic",
        "## Losses on the synthetic set\n\n"
        f"`make bench-synthetic`: network `{NETWORK}`, {SETTINGS['iterations']} iterations of {SETTINGS['batch_size']} "
        f"crops of {SETTINGS['crop'][0]} px, {round(0.8 * IMAGES)} training images of {SIZE} px, scores in percent on "
        f"{round(0.2 * IMAGES)} held-out ones; mean ± standard deviation over the seeds {', '.join(map(str, SEEDS))}, "
        "each with other images, other initial weights and other batches, common to all losses. How hard the data set "
        "is was tuned once, looking at seed 0, which is not among them; the learning rate is "
        f"{SETTINGS['lr']} where nothing else is said, chosen on seed 0 too. The trainings are short, and "
        "say nothing of longer ones. The curves were searched by the authors on "
        "PASCAL VOC; nothing was searched here.\n\n"
        f"{table(['loss', *metrics], rows)}\n\n" + "\n".join(claims),
    )


if __name__ == "__main__":
    main()
