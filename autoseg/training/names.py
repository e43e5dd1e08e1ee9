"""Names of networks, known without torch: a config is checked, and fingerprints are made, before anything is loaded.

A name is one of this toolkit's own, one that a plugin registered, `smp:<Architecture>/<encoder>` (any model of
segmentation_models_pytorch), or `module:callable` (anyone's own). What stands behind it is loaded by
`autoseg.training.networks.build_network`.

>>> check_network("smp:FPN/mobilenet_v2", {"decoder_dropout": 0.1})
>>> check_network("my_networks:make")
>>> check_network("deeplabv3plus-r81")  # doctest: +ELLIPSIS
Traceback (most recent call last):
autoseg.errors.InputError: unknown network 'deeplabv3plus-r81'; did you mean 'deeplabv3plus-r18'? Expected one of ...
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from autoseg.errors import InputError, unknown
from autoseg.files import fingerprint
from autoseg.plugins import names_callable, source_of

BUILT_IN = (
    *("deeplabv3plus-r50c", "deeplabv3plus-r101c", "pspnet-r101c", "hrnetv2-w48"),
    *("deeplabv3plus-r50", "deeplabv3plus-r101", "pspnet-r101", "deeplabv3plus-r18", "small", "tiny"),
)
"""The names in `autoseg.training.networks.NETWORKS`; written here too, to check a config without torch."""

WHAT = "one of this toolkit's, smp:<Architecture>/<encoder>, my_module:make, or a registered name"

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SMP = re.compile(r"smp:([A-Za-z0-9+]+)/([A-Za-z0-9._-]+)")

_registered: dict[str, Callable[..., Any]] = {}


def register_network(name: str, make: Callable[..., Any]) -> None:
    """Make a network known by a name of its own, in configs and on the command line, when its module is a plugin.

    Args:
        name: letters, digits, dots, dashes and underscores.
        make: as the callable of a `module:callable`: takes the number of classes, and `network_options`, and returns an
            `nn.Module`.

    >>> register_network("my-net", dict)
    >>> check_network("my-net")
    >>> unregister_network("my-net")
    """
    if not _PLAIN.fullmatch(name):
        raise InputError(f"'{name}'", where="register_network", expected="letters, digits, dots, dashes, underscores")
    if not callable(make):
        cure = f"choose no name: '{make}' is one" if isinstance(make, str) and names_callable(make) else ""
        raise InputError(f"found {make!r}", where="register_network", expected="a callable", cure=cure)
    if name in BUILT_IN or _same(_registered.get(name, make)) != _same(make):
        raise InputError(f"there is a network '{name}' already", where="register_network", cure="choose another name")
    _registered[name] = make


def unregister_network(name: str) -> None:
    """Forget a registered network."""
    _registered.pop(name, None)


def _same(make: Callable[..., Any]) -> tuple[str | None, str, dict[str, str]]:
    function, bound = _unwrapped(make)
    return function.__module__, getattr(function, "__qualname__", repr(function)), bound


def _unwrapped(make: Callable[..., Any]) -> tuple[Callable[..., Any], dict[str, str]]:
    """Return the function in a `functools.partial`, which itself has the module `functools`, and what it binds."""
    if not isinstance(make, functools.partial):
        return make, {}
    bound = {**{str(place): value for place, value in enumerate(make.args)}, **make.keywords}
    return make.func, {name: re.sub(r" at 0x[0-9a-f]+", "", repr(value)) for name, value in bound.items()}


def kind_of(name: str) -> Literal["built-in", "registered", "smp", "own"]:
    """Return which kind of name it is; nothing is loaded."""
    if name in _registered:
        return "registered"
    if name in BUILT_IN:
        return "built-in"
    if _SMP.fullmatch(name):
        return "smp"
    if name.startswith("smp:"):
        what = "smp:<Architecture>/<encoder>, such as smp:FPN/mobilenet_v2 or smp:UPerNet/tu-convnext_tiny"
        raise InputError(f"'{name}'", where="network", expected=what)
    if names_callable(name):
        return "own"
    if ":" in name or "/" in name:
        raise InputError(f"'{name}'", where="network", expected=WHAT)
    raise unknown("network", name, [*BUILT_IN, *_registered, "smp:<Architecture>/<encoder>", "module:callable"])


def check_network(name: str, options: Mapping[str, Any] | None = None) -> None:
    """Refuse a name that can be no network's, and options of a network that takes none; nothing is loaded."""
    if kind_of(name) == "built-in" and options:
        what = f"network '{name}' has no options, found {', '.join(options)}"
        raise InputError(what, where="network_options", cure="leave them out")


def smp_parts(name: str) -> tuple[str, str]:
    """Return the architecture and the encoder that a name of smp's says.

    >>> smp_parts("smp:UPerNet/tu-convnext_tiny")
    ('UPerNet', 'tu-convnext_tiny')
    """
    found = _SMP.fullmatch(name)
    assert found, name
    return found[1], found[2]


def registered(name: str) -> Callable[..., Any]:
    """Return what makes a registered network."""
    return _registered[name]


def network_identity(name: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what a network is beside its name, for fingerprints: its options, its source, or the library's version.

    Nothing for a network of this toolkit: `TRAINING_VERSION` speaks for those.

    >>> network_identity("tiny")
    {}
    """
    found: dict[str, Any] = {"network_options": dict(options)} if options else {}
    kind = kind_of(name)
    if kind == "smp":
        found["libraries"] = {package: _version(package) for package in ("segmentation-models-pytorch", "timm")}
    elif kind == "own":
        found["network_source"] = fingerprint(source_of(name.partition(":")[0], f"network '{name}'"))
    elif kind == "registered":
        function, bound = _unwrapped(_registered[name])
        source = source_of(function.__module__, f"network '{name}'")
        found["network_source"] = fingerprint({"source": source, "bound": bound} if bound else source)
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        cure = "install it: pip install 'autoseg[train]'"
        raise InputError(f"the package {package} is not installed", where="network", cure=cure) from None
