"""The arguments that `trials`, `train`, `evaluate` and `search` share: data, network, training settings."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from autoseg.errors import InputError

if TYPE_CHECKING:
    from autoseg.training.settings import Task


def add_task_arguments(parser: argparse.ArgumentParser, protocol: str, *, checkpoint: bool = True) -> None:
    """Add what makes a `Task`; `checkpoint`: also the whole network that a training starts from."""
    group = parser.add_argument_group("task")
    group.add_argument("--data", metavar="DIR", help="a folder made by `autoseg prepare`")
    group.add_argument("--split", metavar="FILE", help="made by `autoseg split` (default: split.json in DIR)")
    add_network_arguments(group, checkpoint=checkpoint)
    group.add_argument(
        "--protocol", default=protocol, help=f"training settings by name (default {protocol}); see docs/config.md"
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one training setting, such as iterations=200 or crop=[64,64]; may be repeated",
    )
    group.add_argument(
        "--convention",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one of the metrics' conventions, such as tolerance=2; drop_background=false where class 0 is no "
        "background",
    )
    group.add_argument(
        "--loss-convention",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one of the conventions of naive and published losses",
    )


def add_network_arguments(parser: argparse._ActionsContainer, *, checkpoint: bool = True) -> None:
    """Add what names a network and the weights that it starts from."""
    parser.add_argument(
        "--network",
        default="deeplabv3plus-r50c",
        help="by name: one of this toolkit's, smp:<Architecture>/<encoder>, module:callable, or registered by a plugin "
        "(default deeplabv3plus-r50c)",
    )
    parser.add_argument(
        "--network-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an argument of the smp architecture, or of the callable; may be repeated",
    )
    parser.add_argument("--weights", help="of the encoder: imagenet, a file, or none (default none)")
    if checkpoint:
        parser.add_argument(
            "--checkpoint", metavar="FILE", help="weights of the whole network to start from, instead of --weights"
        )


def settings(pairs: list[str], option: str) -> dict[str, Any]:
    """Return KEY=VALUE pairs as a mapping; a value is JSON, or else a plain word.

    >>> settings(["iterations=200", "device=cpu"], "--set")
    {'iterations': 200, 'device': 'cpu'}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise InputError(f"{option} {pair}: expected KEY=VALUE.")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def task_of(args: argparse.Namespace) -> Task:
    """Return the task that the arguments describe."""
    from autoseg.files import parse
    from autoseg.metrics.conventions import Conventions, LossConventions
    from autoseg.training.settings import Task, Training

    if not args.data:
        raise InputError("--data is missing; give a folder made by `autoseg prepare`.")
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
        "training": Training.of_protocol(args.protocol, **settings(args.set, "--set")),
        "conventions": conventions,
        "loss_conventions": loss_conventions,
    }
    return parse(Task, content, "the task")
