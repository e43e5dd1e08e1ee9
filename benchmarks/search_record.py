"""Real trials, recorded: what a search would be told, so that searches can be tried out without training.

`python -m benchmarks.search_record scenes` trains trials of the demo's proxy task; `pets --root DIR --weights FILE`
those of a proxy task on Oxford-IIIT Pet (also: $AUTOSEG_PETS) with MobileNetV2's weights of ImageNet; and `NAME --data
DIR --network ...` those of any other (the arguments of `autoseg trials`). Each trial is a small file in a cache;
stopped, the same command goes on. At its end, or with `--write`, it writes `benchmarks/recorded/NAME.json`.

A trial's curves are uniform (half of them), or drawn around the published curves of the metric (a quarter), or around
the identity; after the first 64, instead of the identity, around the best point of a model of those, as a search does.
The first few are trained with other seeds too: how far their scores differ is the noise of a score.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoseg.cli.tasks import add_task_arguments, task_of
from autoseg.data.model import cache_short_side
from autoseg.data.pets import find as find_pets
from autoseg.data.prepare import prepare
from autoseg.data.source import Source
from autoseg.data.split import make_split
from autoseg.data.synthetic import find
from autoseg.errors import InputError
from autoseg.files import atomic, read_json, write_json
from autoseg.losses.published import PUBLISHED, published
from autoseg.losses.surrogate_loss import SurrogateLoss
from autoseg.progress import bar
from autoseg.search.model import fit
from autoseg.search.ppo2 import propose
from autoseg.search.settings import Search
from autoseg.search.space import search_space, surrogate
from autoseg.training.loop import train
from autoseg.training.settings import Task
from autoseg.training.trial import ProxyTask

HERE = Path(__file__).parent
CACHE, RECORDED = HERE / ".cache" / "recorded", HERE / "recorded"
LOOKS = (4, 2)  # scored after a quarter and after a half of the steps, too
SCENES = ("iterations=60", "batch_size=8", "crop=[64,64]", "short_side=64", "lr=0.05", "head_lr=1.0")  # as in the demo
PETS = (
    *("iterations=48", "batch_size=8", "crop=[96,96]", "short_side=96"),
    *("optimiser=adamw", "lr=0.0003", "head_lr=10.0", "weight_decay=0.01"),
)
PETS_NETWORK = ("smp:FPN/mobilenet_v2", ["decoder_pyramid_channels=64", "decoder_segmentation_channels=32"])
PETS_HELD_OUT = 100
LEARNED = 64  # trials before others are drawn around the best point by a model of them


def theta_of(search: Search, number: int, cache: Path) -> list[float]:
    """Return the curves of a recorded trial: even numbers are uniform, the others around a known place."""
    space = search_space(search)
    if number % 2 == 0:
        return np.random.default_rng([3, number]).random(len(space.names)).tolist()
    if number % 4 == 1 and number >= LEARNED:
        first = [read_json(cache / f"trial-{known}-seed-0.json") for known in range(LEARNED)]
        thetas, scores = [trial["theta"] for trial in first], [trial["scores"][search.metric] for trial in first]
        model = fit(np.array(thetas), np.array(scores), np.full(len(space.names), 0.5), 0.2)
        best = model.best(np.zeros(len(space.names)), np.ones(len(space.names)))
        return propose(best, 3, number, sigma=0.1).tolist()
    centre = published(search.metric).theta if number % 4 == 3 and search.metric in PUBLISHED else space.initial
    return propose(centre, 3, number, sigma=0.2).tolist()


def record(proxy: ProxyTask, search: Search, theta: list[float]) -> dict[str, Any]:
    """Train one trial, and return its curves and its scores after 1/4, 1/2 and all of its steps."""
    s = proxy.settings
    looks = {s.iterations * s.accumulate // part: part for part in LOOKS}
    early: dict[int, dict[str, float]] = {}

    def watched(start: int) -> Iterator[tuple[Tensor, Tensor]]:
        batches: Iterable[tuple[Tensor, Tensor]] = proxy.batches(proxy.cache.read, proxy.split.train, start)
        for index, batch in enumerate(batches):
            if index in looks:
                early[looks[index]] = proxy.score()
                proxy.trained.train()
            yield batch

    proxy.trained.load_state_dict(proxy.initial)
    loss = SurrogateLoss(
        surrogate(search, theta), ignore_index=proxy.data.ignore_index, has_background=proxy.conventions.drop_background
    )
    outcome = train(proxy.trained, loss, watched, s, device=proxy.device)
    found = {"theta": theta, "scores": proxy.score(), "diverged": outcome.diverged}
    # A training that collapsed early has no later score of its own: what it ends with is what it would be seen with.
    return {**found, **{f"scores 1/{part}": early.get(part, found["scores"]) for part in LOOKS}}


def scenes(folder: Path) -> Source:
    """Make the demo's images."""
    return find(folder / "source", 240, 60, 128, 0)


def pets(args: argparse.Namespace) -> Source:
    """Find the photographs."""
    if not args.root or not args.weights:
        raise InputError("not given", where="--root or --weights", cure="name the folder and the encoder's weights")
    return find_pets(args.root)


def prepared(source: Source, folder: Path, crop: int, hold_out: float) -> str:
    """Prepare and split a data set, if this was not done before, and return its folder."""
    data = prepare(source, folder, cache_short_side(crop))
    if not (folder / "split.json").exists():
        make_split(data.index, hold_out, 0).save(folder / "split.json")
    return str(folder)


def main() -> None:
    """Train what is missing, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", help="what the record is called; scenes needs nothing else, pets --root and --weights")
    parser.add_argument("--root", default=os.environ.get("AUTOSEG_PETS"), help="of pets (default: $AUTOSEG_PETS)")
    parser.add_argument("--metric", default="mIoU", help="the metric of the surrogates (default mIoU)")
    parser.add_argument("--trials", type=int, default=400, help="with seed 0 (default 400)")
    parser.add_argument("--again", type=int, default=16, help="how many of them with seeds 1, 2, 3 too (default 16)")
    parser.add_argument("--write", action="store_true", help="train nothing, and write what there is")
    add_task_arguments(parser, "paper-proxy")
    args = parser.parse_args()
    cache = CACHE / args.name
    if args.name == "scenes" and not args.data:
        args.data, args.network = prepared(scenes(cache / "data"), cache / "data", 64, 0.25), "small"
        args.set = [*SCENES, "loaders=0", "device=cpu", *args.set]
    if args.name == "pets" and not args.data:
        args.data = prepared(pets(args), cache / "data", 96, PETS_HELD_OUT)
        args.network, args.network_option = PETS_NETWORK
        args.set = [*PETS, "loaders=0", "device=cpu", *args.set]
    search = Search(metric=args.metric)
    jobs = [(number, 0) for number in range(args.trials)] + [(n, s) for n in range(args.again) for s in (1, 2, 3)]
    jobs.sort(key=lambda job: (job[0] // args.again, job[1]) if args.again else job)  # the noise is known early
    paths = {job: cache / f"trial-{job[0]}-seed-{job[1]}.json" for job in jobs}
    if not args.write:
        _train(task_of(args), search, {job: path for job, path in paths.items() if not path.exists()})
    found = [{"number": job[0], "seed": job[1], **read_json(path)} for job, path in paths.items() if path.exists()]
    content = {"metric": search.metric, "parameters": list(search_space(search).names), "trials": _short(found)}
    if not args.write or not (RECORDED / f"{args.name}.json").exists():
        content["task"] = task_of(args).model_dump(mode="json", exclude={"data", "split", "weights"})
    else:
        content["task"] = read_json(RECORDED / f"{args.name}.json")["task"]
    with atomic(RECORDED / f"{args.name}.json") as file:
        file.write(_in_lines(content))
    print(f"benchmarks/recorded/{args.name}.json: {len(found)} of {len(jobs)} trials")


def _train(task: Task, search: Search, missing: dict[tuple[int, int], Path]) -> None:
    torch.set_num_threads(1)
    proxies: dict[int, ProxyTask] = {}
    with bar("recording", "trial", total=len(missing)) as shown:
        for (number, seed), path in missing.items():
            if seed not in proxies:
                training = task.training.model_copy(update={"seed": seed})
                proxies[seed] = ProxyTask(task.model_copy(update={"training": training}))
            write_json(path, record(proxies[seed], search, theta_of(search, number, path.parent)))
            shown.update()


def _in_lines(content: dict[str, Any]) -> str:
    """Return JSON with a line for each trial: a third of the size of one with a line for each number."""
    trials = ",\n".join(json.dumps(trial, sort_keys=True, separators=(",", ":")) for trial in content["trials"])
    others = json.dumps({key: value for key, value in content.items() if key != "trials"}, sort_keys=True, indent=2)
    return others.removesuffix("\n}") + f',\n  "trials": [\n{trials}\n  ]\n}}\n'


def _short(value: Any) -> Any:
    """Return the same with five digits, which is more than a score's noise."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
