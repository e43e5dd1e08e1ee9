"""What moves the weights: SGD or AdamW, its groups of parameters, the learning rate, and what stays frozen."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from autoseg.errors import InputError
from autoseg.training.foreign import Foreign
from autoseg.training.networks import Network
from autoseg.training.settings import Training


def make_optimiser(
    network: Network | Foreign, settings: Training, *, fused: bool = False
) -> tuple[torch.optim.Optimizer, list[float]]:
    """Return an optimiser of the parameters that learn, and the learning rate at the start of each of its groups.

    The groups are the encoder and the heads; without `decay_norms` each is two, and the second has no weight decay.
    """
    groups: list[dict[str, object]] = []
    bases: list[float] = []
    rates = (settings.lr, settings.lr * settings.head_lr)
    for parameters, rate in zip(network.parameter_groups(), rates, strict=True):
        learning = [parameter for parameter in parameters if parameter.requires_grad]
        parts = [(learning, settings.weight_decay)]
        if not settings.decay_norms:
            parts = [([p for p in learning if p.ndim > 1], settings.weight_decay)]
            parts += [([p for p in learning if p.ndim <= 1], 0.0)]
        for part, decay in parts:
            groups.append({"params": part, "lr": rate, "weight_decay": decay})
            bases.append(rate)
    if not any(group["params"] for group in groups):
        asked = settings.freeze_encoder or settings.freeze_batch_norm
        cure = "set freeze_encoder or freeze_batch_norm to false" if asked else "make one that requires a gradient"
        raise InputError(
            "every parameter is frozen" if asked else "the network has no parameter that learns", cure=cure
        )
    if settings.optimiser == "adamw":
        return torch.optim.AdamW(groups, betas=settings.betas, fused=fused or None), bases
    return torch.optim.SGD(groups, momentum=settings.momentum, fused=fused or None), bases


def learning_rate(settings: Training, iteration: int, base: float) -> float:
    """Return the rate of a step: linear up to `base` in `warmup` steps, then down to min_lr by the schedule.

    poly is the paper's: (base - min) (1 - t/T)^power + min; cosine is (base - min) (1 + cos(pi t/T)) / 2 + min. Both
    count their steps after the warm-up.
    """
    if iteration < settings.warmup:
        return base * (iteration + 1) / (settings.warmup + 1)
    left = 1 - (iteration - settings.warmup) / (settings.iterations - settings.warmup)
    share = left**settings.power if settings.schedule == "poly" else (1 - math.cos(math.pi * left)) / 2
    return (base - settings.min_lr) * share + settings.min_lr


def freeze_parameters(network: Network | Foreign, settings: Training) -> None:
    """Take the parameters that stay as they are out of the training; before the optimiser is made."""
    if settings.freeze_encoder:
        if network.encoder is None:
            what = "the network has neither .encoder nor .backbone"
            raise InputError(what, where="freeze_encoder", cure="give it one of them (a property will do)")
        _stop(network.encoder.parameters())
    if settings.freeze_batch_norm:
        _stop(parameter for norm in _batch_norms(network) for parameter in norm.parameters())


def freeze_statistics(network: Network | Foreign, settings: Training) -> None:
    """Keep batch norms that are frozen from counting; after the network was put into training mode."""
    frozen = network if settings.freeze_batch_norm else network.encoder if settings.freeze_encoder else None
    for norm in _batch_norms(frozen) if frozen is not None else []:
        norm.eval()


def _stop(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.requires_grad_(False)


def _batch_norms(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, _BatchNorm)]
