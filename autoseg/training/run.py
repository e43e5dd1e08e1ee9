"""A run: one network trained with one loss on a data set, and its scores on the validation images."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from autoseg import plugins, strict
from autoseg.data.augment import WholeView
from autoseg.data.loaders import eval_loader
from autoseg.data.model import cache_short_side
from autoseg.data.prepared import Prepared
from autoseg.data.source import locate
from autoseg.errors import InputError
from autoseg.files import atomic, checksum, fingerprint, to_json, writing
from autoseg.losses.build import build_loss, loss_content
from autoseg.metrics import formula
from autoseg.metrics.formula import METRICS
from autoseg.progress import bar
from autoseg.training.arithmetic import decisive_for_scores
from autoseg.training.checkpoint import Checkpoint
from autoseg.training.evaluation import is_finite, score
from autoseg.training.logs import JsonLines, Line, TensorBoard
from autoseg.training.loop import Outcome, distributed, train
from autoseg.training.names import kind_of, network_identity
from autoseg.training.networks import build_network
from autoseg.training.scores import WEIGHTS_FILE, AboutRun, Scores
from autoseg.training.settings import Decide, Task
from autoseg.training.task import OpenTask
from autoseg.training.weights import check_size, load_whole, read
from autoseg.versions import TRAINING_VERSION

logger = logging.getLogger(__name__)


class Trained(AboutRun):
    """`run.json`: what was trained, with what, and the checksum of the weights beside it."""

    SCHEMA: ClassVar[str] = "autoseg/run/2"

    num_classes: int
    network_options: dict[str, Any] = Field(default={}, description="of an smp architecture, or of somebody's own")
    network_source: str | None = Field(
        default=None, description="fingerprint of somebody's own network; null: it is not"
    )
    iterations: int
    test_scale: tuple[int, int] | None = Field(description="long and short side of images that are scored; null: as is")


def train_run(
    task: Task,
    loss: str,
    out: str | os.PathLike[str],
    *,
    searched: Mapping[str, str] | None = None,
    on: Literal["train", "search-train"] = "train",
    source: Literal["files", "cache"] = "files",
    tensorboard: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Trained | None:
    """Train a run into the folder `out`, or continue it; the files are `run.json` and `weights.safetensors`.

    Args:
        task: data, network and training settings.
        loss: see `autoseg.losses.build.build_loss`.
        out: the run's folder.
        searched: for "searched:NAME", the surrogate.json of each search.
        on: the whole training set, or what a search trains on (without the hold-out).
        source: original files, or the cache of short side 2 x `short_side`.
        tensorboard: a folder for TensorBoard's curves, beside `log.jsonl` in `out`.
        progress: show a bar.

    Under torchrun every process calls this; the first writes and returns, the others return None.
    """
    out, s = Path(out), task.training
    opened = OpenTask(task)
    data, split, device = opened.data, opened.split, opened.device
    ids = split.whole_train if on == "train" else split.train
    cached = source == "cache"
    read = data.cache(cache_short_side(s.short_side)).read if cached else data.read
    run_fingerprint = fingerprint(
        {
            **opened.decisive(),
            "loss": loss_content(loss, searched),
            "data": data.checksum(cache_short_side(s.short_side)) if cached else data.index_checksum,
            "ids": ids,
            "source": source,
        }
    )

    def trained(outcome: Outcome) -> Trained:
        return Trained(
            dataset=data.index.dataset,
            network=task.network,
            network_options=task.network_options,
            network_source=network_identity(task.network).get("network_source"),
            num_classes=data.num_classes,
            loss=loss,
            seed=s.seed,
            iterations=outcome.iterations,
            test_scale=s.scored_at,
            diverged=outcome.diverged,
            weights=checksum(out / WEIGHTS_FILE),
            fingerprint=run_fingerprint,
        )

    if before := _finished(out, run_fingerprint):
        if os.environ.get("RANK", "0") != "0":  # torchrun's
            return None
        with writing(out):
            return _write_trained(out, trained(before))  # written again so that Snakemake sees a new modification time
    with distributed(device) as (rank, world):
        s.check_shares(world)
        network = opened.network()
        criterion = build_loss(
            loss,
            ignore_index=data.ignore_index,
            class_counts=[sum(data.entry(name).pixels.get(c, 0) for name in ids) for c in range(data.num_classes)],
            searched=searched,
            conventions=opened.conventions,
            has_background=opened.has_background,
            sync=world > 1 and s.loss_batch is None,
            **task.loss_conventions.changes,
        )
        logs: list[Callable[[Line], None]] = []
        if rank == 0:
            with writing(out):  # a folder that cannot be made is an error before the first step
                out.mkdir(parents=True, exist_ok=True)
            logs = [JsonLines(out / "log.jsonl"), *([TensorBoard(tensorboard)] if tensorboard else [])]
        checkpoint = Checkpoint(out / "checkpoint.pt", run_fingerprint)
        outcome = train(
            network,
            opened.in_groups(criterion),
            lambda start: opened.batches(read, ids, start, rank, world),
            s,
            device=device,
            rank=rank,
            world=world,
            checkpoint=checkpoint,
            logs=logs,
            progress=loss if progress and rank == 0 else None,
        )
        if rank:
            return None
        with writing(out):
            save_weights(network, out / WEIGHTS_FILE, run_fingerprint, outcome)
            done = _write_trained(out, trained(outcome))
        checkpoint.remove()
        return done


def evaluate_run(
    task: Task, run: str | os.PathLike[str], out: str | os.PathLike[str], *, name: str | None = None, **options: Any
) -> Scores | None:
    """Score the run in the folder `run` and write `scores.json` to `out`; for `options` see `evaluate`.

    In the file the run is called `name`, or by its folder's name. Images have the size that `run.json` says, unless
    `options` say another `scale`. A run whose weights are not finite scores 0.
    """
    run = Path(run)
    trained = load_trained(run)
    opened = OpenTask(task)
    if trained.num_classes != opened.data.num_classes:
        raise InputError(
            f"trained for {trained.num_classes} classes, but {task.data} has {opened.data.num_classes}",
            where=run,
            cure="evaluate it on the data set it was trained for",
        )
    network = load_network(run, trained, opened.device, task.network)
    about = trained.model_dump(include=set(AboutRun.model_fields) - {"fingerprint"})
    options.setdefault("scale", trained.test_scale)
    options["identity"] = network_identity(trained.network, trained.network_options)
    return evaluate(opened, network, {**about, "run": name or run.absolute().name}, out, **options)


def evaluate_checkpoint(
    task: Task,
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    name: str | None = None,
    **options: Any,
) -> Scores | None:
    """Score a whole network from a file, such as mmsegmentation's, at the task's `test_scale`; else as a run."""
    opened = OpenTask(task)
    network = build_network(task.network, opened.data.num_classes, checkpoint=checkpoint, options=task.network_options)
    about = {
        "run": name or Path(checkpoint).stem,
        "dataset": opened.data.index.dataset,
        "network": task.network,
        "loss": None,
        "seed": None,
        "diverged": False,
        "weights": checksum(checkpoint),
    }
    options.setdefault("scale", opened.settings.scored_at)
    options["identity"] = network_identity(task.network, task.network_options)
    return evaluate(opened, network.to(opened.device), about, out, **options)


def evaluate(
    opened: OpenTask,
    network: torch.nn.Module,
    about: Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    scale: tuple[int, int] | None,
    part: Literal["val", "hold_out"] = "val",
    window: tuple[int, int] | None = None,
    predictions: str | os.PathLike[str] | None = None,
    metrics: Sequence[str] = (),
    decide: Decide = "argmax",
    identity: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Scores | None:
    """Score a network and write `scores.json` to `out`: the six metrics, and those that plugins registered.

    Args:
        opened: the data set, and the conventions of the metrics.
        network: on the task's device.
        about: what the file says of the network, see `Scores`.
        out: the file to write.
        scale: the greatest long and short side of an image, see `Training.test_scale`; None: as it is. Labels are
            predicted and scored at the original size all the same.
        part: the validation images, or the hold-out.
        window: a sliding window over the resized image; None: whole images.
        predictions: a folder for the predicted label maps as palette PNGs.
        metrics: further ones, such as NSD; the file has them after the six.
        decide: how labels follow from logits, see `autoseg.training.evaluation.decision`.
        identity: what the network is beside its weights, see `network_identity`; part of the fingerprint.
        progress: show a bar.

    Under torchrun the images are shared out and the counts added up; the first process writes and returns.
    """
    if window is not None and min(window) < 32:
        raise InputError(f"{window[0]} x {window[1]} pixels", where="window", expected="at least 32 x 32")
    data, device = opened.data, opened.device
    ids: list[str] = getattr(opened.split, part)
    if predictions is not None:
        _refuse_originals(Path(predictions), data, ids)
    # Also those of plugins: the loss may be searched for one of them.
    scored_by = list(dict.fromkeys([*plugins.metrics(), *(formula.get(name).name for name in metrics)]))
    counted = opened.metrics(scored_by)
    colours = [colour for info in data.index.classes for colour in info.color]
    with distributed(device) as (rank, world):
        mine = ids[rank::world]

        def save(first: int, labels: Tensor) -> None:
            if predictions is not None:
                for number, label in enumerate(labels, first):
                    _write_png(Path(predictions) / f"{mine[number]}.png", label, colours)

        view = WholeView(scale) if scale else None
        loader = eval_loader(data.read, ids, view, loaders=opened.settings.loaders, rank=rank, world_size=world)
        shown = bar("evaluate" if progress and rank == 0 else None, "image", iterable=loader, total=len(mine))
        score(network, shown, counted, device, opened.settings, window=window, decide=decide, seen=save)
        if world > 1:
            counted.all_reduce()
        if rank:
            return None
    percent = 100 if is_finite(network) else 0
    found = Scores(
        **about,
        scores={key: percent * value for key, value in counted.compute().items()},
        per_class={
            key: {
                c: None if value != value else percent * float(value)
                for c, value in zip(data.class_names, values, strict=True)
            }
            for key, values in counted.per_class().items()
        },
        fingerprint=fingerprint(
            {
                "version": TRAINING_VERSION,
                "weights": about["weights"],
                **(identity or {}),
                "device": device.type,
                "data": data.index_checksum,
                "ids": ids,
                "conventions": opened.conventions.model_dump(),
                "scale": scale,
                "window": window,
                **decisive_for_scores(opened.settings, device),
                **({} if decide == "argmax" else {"decide": decide}),
                **({"metrics": own} if (own := [name for name in scored_by if name not in METRICS]) else {}),
            }
        ),
    )
    with writing(out):
        found.save(out)
    return found


def save_weights(
    network: torch.nn.Module, path: str | os.PathLike[str], run_fingerprint: str, outcome: Outcome
) -> None:
    """Write a network's weights as safetensors, with the fingerprint of the training and how it ended."""
    from safetensors.torch import save

    # Copies: safetensors refuses two names of one tensor, as networks with shared weights have them.
    state = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in network.state_dict().items()
    }
    about = {"fingerprint": run_fingerprint, "iterations": outcome.iterations, "diverged": outcome.diverged}
    with atomic(path, "wb") as file:
        # Under one key: safetensors writes several keys in random order, so that equal networks would differ in bytes.
        file.write(save(state, {"autoseg": to_json(about)}))


def _finished(out: Path, run_fingerprint: str) -> Outcome | None:
    """Return how the training with this fingerprint ended, if its weights are here; `run.json` may be missing."""
    from safetensors import SafetensorError, safe_open

    if not (out / WEIGHTS_FILE).exists():
        return None
    if (out / "run.json").exists() and not _has_weights(out, load_trained(out)):
        return None
    try:
        with safe_open(out / WEIGHTS_FILE, "pt") as file:
            about = strict.loads((file.metadata() or {}).get("autoseg", "{}"))
    except (SafetensorError, OSError, InputError):  # damaged: trained again
        return None
    if not isinstance(about, dict) or about.get("fingerprint") != run_fingerprint:
        return None
    iterations, diverged = about.get("iterations"), about.get("diverged")
    if type(iterations) is not int or type(diverged) is not bool:
        return None
    return Outcome(iterations=iterations, diverged=diverged)


def _write_trained(out: Path, trained: Trained) -> Trained:
    trained.save(out / "run.json")
    return trained


def load_trained(run: Path) -> Trained:
    """Read a run's `run.json`."""
    if not (run / "run.json").exists():
        raise InputError("no run.json in it", where=run, cure=f"run `autoseg train ... --out {run}` first")
    return Trained.load(run / "run.json")


def load_network(run: Path, trained: Trained, device: torch.device, named: str | None = None) -> torch.nn.Module:
    """Return the trained network of a run.

    `run.json` may be a stranger's: a `module:callable` in it is imported only if it is `named` by the caller too.
    """
    if trained.network != named and kind_of(trained.network) == "own":
        raise InputError(
            f"says that its network is the code '{trained.network}', which runs only if you name it too",
            where=run / "run.json",
            cure=f"give `--network {trained.network}`, if you trust it",
        )
    if not _has_weights(run, trained):
        what = "missing, or not the weights that run.json describes"
        raise InputError(what, where=run / WEIGHTS_FILE, cure="train the run again")
    source = network_identity(trained.network).get("network_source")
    if source != trained.network_source:
        logger.warning("%s: network '%s' was changed after this run was trained with it.", run, trained.network)
    network = build_network(trained.network, trained.num_classes, options=trained.network_options)
    load_whole(network, read(run / WEIGHTS_FILE, prefix=""), run / WEIGHTS_FILE, finite=False)
    return network.to(device).eval()


def _has_weights(run: Path, trained: Trained) -> bool:
    path = run / WEIGHTS_FILE
    if not path.is_file():
        return False
    check_size(path)
    return checksum(path) == trained.weights


def _refuse_originals(predictions: Path, data: Prepared, ids: Sequence[str]) -> None:
    """Refuse a folder where a prediction would take the place of an original file."""
    for name in ids:
        path = predictions / f"{name}.png"
        entry = data.entry(name)
        if any(path.resolve() == locate(data.roots, file).resolve() for file in (entry.image, entry.mask)):
            what = f"'{path.name}' is a file of the data set there, which a prediction would replace"
            raise InputError(what, where=predictions, cure="choose another folder")


def _write_png(path: Path, labels: Tensor, colours: Sequence[int]) -> None:
    from PIL import Image

    image = Image.fromarray(labels.to(torch.uint8).numpy())
    image.putpalette(list(colours))  # makes a palette image of a greyscale one; the values stay
    with writing(path), atomic(path, "wb") as file:
        image.save(file, format="PNG")
