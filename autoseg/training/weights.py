"""Weights of encoders and of whole networks, from files and from timm's hub, whichever of the usual names they go by.

Knows the names of tensors: torchvision's and mmsegmentation's (ours too), timm's, and the prefixes that training
programs put before them.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autoseg.errors import InputError, first_line

_PARTS = {"backbone.": "encoder.", "decode_head.": "head.", "auxiliary_head.": "auxiliary."}  # mmsegmentation's: ours
_TIMMS_STEM = {"bn1.": "stem.7.", **{f"conv1.{layer}.": f"stem.{layer}." for layer in (0, 1, 3, 4, 6)}}


LARGEST = 16 << 30
"""The greatest size of a file of weights, in bytes."""


def check_size(path: Path) -> None:
    """Refuse a file that is larger than the weights of any network here; it may be sparse, and of no cost to make."""
    if path.stat().st_size > LARGEST:
        raise InputError("the file is too large", where=path, expected=f"{LARGEST >> 30} GiB at most")


def load_plain(path: Path, device: Any = "cpu") -> Any:
    """Return what torch saved in a file: tensors and plain values, for which no code in the file is run.

    torch packs nothing. A file with packed parts, of which a few kilobytes may hold gigabytes, is refused.
    """
    check_size(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as parts:
            if sum(part.file_size for part in parts.infolist()) > path.stat().st_size:
                raise InputError("its parts are larger than the file", where=path)
    return torch.load(path, map_location=device, weights_only=True)


def read(
    path: str | os.PathLike[str], cure: str = "give a file that is there", prefix: str = "module."
) -> dict[str, Tensor]:
    """Return the tensors of a file (.pth, .pt, .safetensors) by their names, without a prefix."""
    path = Path(path)
    if not os.path.isfile(path):
        raise InputError("no such file", where=path, cure=cure)
    check_size(path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = load_plain(path)
    except Exception as error:  # a damaged or foreign file fails in many ways
        reason = first_line(error).partition(". ")[0]
        expected = "a file that torch saved, of tensors and plain values alone: no code in it is run"
        raise InputError(f"not readable as weights ({reason})", where=path, expected=expected) from None
    for key in ("state_dict", "model_state_dict", "model", "network", "net"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError("it holds something else than weights", where=path, expected="a mapping of names to tensors")
    if strange := [key for key in state if not isinstance(key, str)]:
        raise InputError(f"a tensor is called {strange[0]!r}", where=path, expected="text as the name of each tensor")
    return {key.removeprefix(prefix): value for key, value in state.items()}


def fetch(hub: str, cure: str) -> dict[str, Tensor]:
    """Return the weights of a model of timm's hub."""
    import autoseg.training._torchvision  # noqa: F401, I001  # before timm: it then loads beside a CPU-only torch too
    import timm

    try:
        return timm.create_model(hub, pretrained=True).state_dict()
    except Exception as error:  # the network fails in many ways
        raise InputError(
            f"the ImageNet weights '{hub}' cannot be fetched here ({type(error).__name__})", where="weights", cure=cure
        ) from None


def load_encoder(encoder: nn.Module, state: Mapping[str, Tensor], where: str | os.PathLike[str]) -> None:
    """Put weights into an encoder; every one of its tensors must be there, and others, as a classifier's, may be."""
    found = {}
    for key, value in state.items():
        for prefix in ("backbone.", "encoder.", "model."):
            key = key.removeprefix(prefix)
        found[key] = value
    own = encoder.state_dict()
    if not own.keys() & found.keys():
        found = _part(own, state) or found
    if "stem.0.weight" in own and "stem.0.weight" not in found:
        found = {_renamed(key, _TIMMS_STEM): value for key, value in found.items()}
    if not own.keys() & found.keys():
        found = _in_features(own, found)
    _fill(encoder, {key: value for key, value in found.items() if key in own}, where, found)


def _in_features(own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by the names that they have in timm's models of features: `stages.0` of a whole model is
    `model.stages_0` in smp's encoder of it.
    """
    ours = {key.removeprefix("model.").replace("_", "."): key for key in own}
    return {ours.get(key.replace("_", "."), key): value for key, value in found.items()}


def load_whole(
    network: nn.Module, state: Mapping[str, Tensor], where: str | os.PathLike[str], *, finite: bool = True
) -> None:
    """Put weights into a whole network: all of its tensors must be there, and no others.

    Numbers that are not finite are refused, unless `finite` is false: a run that diverged is scored with 0.
    """
    own = network.state_dict()
    if not any(key.startswith("module.") for key in own):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    found = _part(own, state) or dict(state)
    if not own.keys() >= found.keys():
        found = {_renamed(key, _PARTS): value for key, value in found.items()}
    foreign = [key for key in found if key not in own]
    if foreign:
        raise _another(f"it has {len(foreign)} tensors that the network lacks, such as '{foreign[0]}'", where)
    _fill(network, found, where, found, finite)


def _part(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a part of a greater module, such as `model.` of Lightning's, by their names in that part;
    nothing, if none has all of them, or several have. torch.compile and DataParallel put such a prefix too.

    >>> _part({"a.weight": torch.ones(1)}, {"model.a.weight": torch.ones(1), "loss.scale": torch.ones(1)})
    {'a.weight': tensor([1.])}
    """
    wanted = [key for key in own if not key.endswith("num_batches_tracked")]
    ends = [key.removesuffix(wanted[0]) for key in state if key.endswith(f".{wanted[0]}")] if wanted else []
    prefixes = [prefix for prefix in ends if all(prefix + key in state for key in wanted)]
    if len(prefixes) != 1:
        return {}
    return {key: state[prefixes[0] + key] for key in own if prefixes[0] + key in state}


def _renamed(key: str, prefixes: Mapping[str, str]) -> str:
    for theirs, ours in prefixes.items():
        if key.startswith(theirs):
            return ours + key.removeprefix(theirs)
    return key


def _fill(
    module: nn.Module,
    found: Mapping[str, Tensor],
    where: str | os.PathLike[str],
    all_found: Mapping[str, Tensor],
    finite: bool = True,
) -> None:
    """Put tensors in place, or say all that does not fit: how many are missing or have other shapes, and examples."""
    wanted = {key: value for key, value in module.state_dict().items() if not key.endswith("num_batches_tracked")}
    missing = [key for key in wanted if key not in found]
    other = [key for key in wanted if key in found and found[key].shape != wanted[key].shape]
    wrong = []
    if missing:
        wrong.append(f"it lacks {len(missing)} of {len(wanted)} tensors, such as '{missing[0]}'")
        if len(missing) == len(wanted):
            wrong.append(f"its own {len(all_found)} have names such as '{next(iter(all_found), '')}'")
    if other:
        key, more = other[0], f" ({len(other)} of {len(wanted)} have other shapes)" if len(other) > 1 else ""
        wrong.append(f"'{key}' has shape {tuple(found[key].shape)}, the network's is {tuple(wanted[key].shape)}{more}")
    if wrong:
        raise _another("; ".join(wrong), where)
    for key, value in wanted.items():
        if value.is_floating_point() and (what := fault(found[key], finite)):
            raise InputError(f"'{key}' {what}", where=where, cure="take the file from where it came from, again")
    module.load_state_dict({key: found[key] for key in wanted}, strict=False)


def fault(tensor: Tensor, finite: bool = True) -> str:
    """Return why a tensor is no weight of a network, or nothing.

    >>> fault(torch.tensor([0.5, torch.nan])), fault(torch.tensor([1, 2])), fault(torch.ones(2))
    ('holds NaN or infinity', 'is of the type int64, not of floats', '')
    """
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return "is sparse, quantised or without data"
    if not tensor.is_floating_point():
        return f"is of the type {str(tensor.dtype).removeprefix('torch.')}, not of floats"
    return "" if not finite or bool(tensor.float().isfinite().all()) else "holds NaN or infinity"


def _another(what: str, where: str | os.PathLike[str]) -> InputError:
    cure = "give the weights of this network and this number of classes, or name the network that they are of"
    return InputError(what, where=where, cure=cure)
