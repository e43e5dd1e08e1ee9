"""The arguments of a task, which all verbs that train or score share: data, network, training settings."""

from __future__ import annotations

import argparse
import json
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from autoseg import gpus, strict
from autoseg.cli.parts import add_repeated
from autoseg.errors import InputError, located

if TYPE_CHECKING:
    from autoseg.search.settings import Search
    from autoseg.training.settings import Task


def add_task_arguments(
    parser: argparse.ArgumentParser, protocol: str, exception: str = "", *, checkpoint: bool = True
) -> None:
    """Add what makes a `Task`; `protocol` is the default one, and `exception` is added to its help.

    `checkpoint`: also the whole network that a training starts from.
    """
    parser.set_defaults(usual_protocol=protocol)
    said = f"{protocol}; {exception}" if exception else protocol
    group = parser.add_argument_group("task")
    group.add_argument("--data", metavar="DIR", help="a folder made by `autoseg prepare`")
    group.add_argument("--split", metavar="FILE", help="made by `autoseg split` (default: split.json in DIR)")
    add_network_arguments(group, checkpoint=checkpoint)
    group.add_argument(
        "--protocol", metavar="NAME", help=f"training settings by name (default {said}); see docs/config.md"
    )
    pairs = "KEY=VALUE"
    add_repeated(group, "--set", pairs, "change one training setting, such as iterations=200 or crop=[64,64]")
    conventions = (
        "change one convention of the metrics, such as tolerance=2, or drop_background=false if class 0 is not a"
    )
    add_repeated(group, "--convention", pairs, f"{conventions} background")
    add_repeated(group, "--loss-convention", pairs, "change one convention of naive and published losses")


def add_network_arguments(parser: argparse._ActionsContainer, *, checkpoint: bool = True) -> None:
    """Add what names a network and the weights that it starts from."""
    parser.add_argument(
        "--network",
        default="deeplabv3plus-r50c",
        help="by name: one of this toolkit's, smp:<Architecture>/<encoder>, module:callable, or registered by a plugin "
        "(default deeplabv3plus-r50c)",
    )
    what = "an argument of the smp architecture, or of the callable"
    add_repeated(parser, "--network-option", "KEY=VALUE", what)
    parser.add_argument(
        "--weights", metavar="NAME|FILE", help="weights of the encoder: imagenet, a file, or none (default none)"
    )
    if checkpoint:
        parser.add_argument(
            "--checkpoint", metavar="FILE", help="weights of the whole network to start from, instead of --weights"
        )


def add_sharing_argument(parser: argparse.ArgumentParser) -> None:
    """Add how many trials may share a GPU."""
    parser.add_argument(
        "--trials-per-gpu",
        type=positive,
        default=1,
        metavar="N",
        help="trials that may share a GPU of this machine, if it is large enough for them (default 1)",
    )


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected a whole number of at least 1")
    return int(text)


def on_gpus(task: Task, count: int = 1, sharing: int = 1) -> AbstractContextManager[object]:
    """Return a block that waits for the GPUs of a task and then holds them; on a CPU it does nothing."""
    return nullcontext() if task.training.device == "cpu" else gpus.taken(count, sharing)


def settings(pairs: list[str], option: str) -> dict[str, Any]:
    """Return KEY=VALUE pairs as a mapping; a value that is not JSON is taken as text.

    >>> settings(["iterations=200", "device=cpu"], "--set")
    {'iterations': 200, 'device': 'cpu'}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise InputError(f"found '{pair}'", where=option, expected="KEY=VALUE")
        try:
            content = json.loads(value)
        except (ValueError, RecursionError):
            found[key] = value
            continue
        with located(f"{option} {key}"):
            strict.check(content)
        found[key] = content
    return found


def task_of_search(args: argparse.Namespace, search: Search) -> Task:
    """Return the task that scores a search's trials: with the search's conventions, where the arguments say none."""
    task = task_of(args)
    for field, stated in (
        ("conventions", search.conventions.model_dump(exclude_defaults=True)),
        ("loss_conventions", search.loss_conventions.changes),
    ):
        own = getattr(task, field)
        both = {**stated, **own.model_dump(exclude_unset=True)}
        task = task.model_copy(update={field: type(own)(**both)})
    return task


def task_of(args: argparse.Namespace) -> Task:
    """Return the task that the arguments describe."""
    from autoseg.files import parse
    from autoseg.metrics.conventions import Conventions, LossConventions
    from autoseg.training.settings import Task, Training

    if not args.data:
        raise InputError("is missing", where="--data", cure="give a folder made by `autoseg prepare`")
    conventions = settings(args.convention, "--convention")
    parse(Conventions, conventions, "--convention")
    loss_conventions = settings(args.loss_convention, "--loss-convention")
    parse(LossConventions, loss_conventions, "--loss-convention")
    content = {
        "data": args.data,
        "split": args.split,
        "network": args.network,
        "network_options": settings(args.network_option, "--network-option"),
        "weights": None if args.weights in (None, "none") else args.weights,
        "checkpoint": args.checkpoint,
        "training": Training.of_protocol(args.protocol or args.usual_protocol, **settings(args.set, "--set")),
        "conventions": conventions,
        "loss_conventions": loss_conventions,
    }
    return parse(Task, content, "the task")
