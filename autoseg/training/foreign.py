"""Networks that are not this toolkit's: any model of segmentation_models_pytorch (smp), and anyone's own module.

`Foreign` gives them all the one shape that the training knows: logits at the size of the images, in training mode a
tuple of them and the auxiliary ones. Nothing here knows names of settings or files.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from autoseg.errors import InputError, first_line, unknown, whole_number
from autoseg.plugins import described
from autoseg.training.encoders import resize

EXPECTED = (
    "logits (N, classes, H, W) at any resolution; or a tuple of them and auxiliary logits; an object with `.logits`; "
    "or a mapping with 'out' or 'logits'"
)


class Foreign(nn.Module):
    """A module of somebody else as a network: images of any size in, logits of that size out.

    Images are padded with zeros, right and below, to what the module wants (see `_sizes`), and the logits cut back.
    State dicts are those of the module itself: a file written here fits the module elsewhere.

    Args:
        module: gives what `EXPECTED` says.
        num_classes: how many channels its logits must have.
        name: what messages call it.
    """

    def __init__(self, module: nn.Module, num_classes: int, name: str) -> None:
        super().__init__()
        self.module, self.num_classes, self.name = module, num_classes, name
        self.multiple, self.least = _sizes(module)

    @property
    def encoder(self) -> nn.Module | None:
        """The module's `.encoder`, or else its `.backbone`; None if it has neither."""
        for name in ("encoder", "backbone"):
            if isinstance(found := getattr(self.module, name, None), nn.Module):
                return found
        return None

    def parameter_groups(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the encoder's parameters and all others; of a module without an encoder, all are the encoder's."""
        if self.encoder is None:
            return list(self.parameters()), []
        encoder = list(self.encoder.parameters())
        known = {id(parameter) for parameter in encoder}
        return encoder, [parameter for parameter in self.parameters() if id(parameter) not in known]

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return logits (N, C, H, W); in training mode a tuple of them and the auxiliary ones, if any."""
        height, width = images.shape[-2:]
        below, right = (max(side, self.least) - side for side in (height, width))
        below, right = below + -(height + below) % self.multiple, right + -(width + right) % self.multiple
        padded = F.pad(images, (0, right, 0, below)) if below or right else images
        found = logits_of(self._output(padded))
        found = found if self.training else found[:1]  # what comes after the logits may then be anything
        for logits in found:
            fits = isinstance(logits, Tensor) and logits.ndim == 4 and logits.shape[1] == self.num_classes
            if not fits or not logits.is_floating_point():
                shape = f"a {type(logits).__name__}"
                if isinstance(logits, Tensor):
                    shape = f"shape {tuple(logits.shape)} of {logits.dtype}"
                what = f"network '{self.name}' gives {shape} for images {tuple(padded.shape)}"
                raise InputError(what, expected=f"{EXPECTED}; classes are {self.num_classes}")
        if self.training and torch.is_grad_enabled() and not any(logits.requires_grad for logits in found):
            self._refuse_without_gradient()
        sized = [_sized(logits, padded)[..., :height, :width] for logits in found]
        return tuple(sized) if self.training else sized[0]

    def _output(self, images: Tensor) -> Any:
        if torch.compiler.is_compiling():
            return self.module(images)
        try:
            return self.module(images)
        except InputError:
            raise
        except Exception as error:  # whatever a module may raise
            if _not_its_own(error):
                raise
            raise self.failure(images, error) from error

    def _refuse_without_gradient(self) -> None:
        if any(parameter.requires_grad for parameter in self.parameters()):
            what = "gives logits without a gradient in training mode, though it has parameters that learn"
            cure = "look for `torch.no_grad()` or `.detach()` in its forward"
            raise InputError(what, where=f"network '{self.name}'", cure=cure)

    def failure(self, images: Tensor, error: Exception) -> InputError:
        """Return, in a sentence, an error that the module raised when it was given images."""
        mode = "training" if self.training else "evaluation"
        what = f"fails on images {tuple(images.shape)} in {mode} mode: {described(error)}"
        cure = ""
        if any(weight.is_floating_point() and weight.dtype != images.dtype for weight in self.parameters()):
            kind = str(images.dtype).removeprefix("torch.")
            cure = f"images are {kind}: give the module such weights where it is made; `precision` is a setting"
        elif isinstance(error, RuntimeError | ValueError | AssertionError):
            cure = "if sides must be multiples of a number, give the module an attribute `size_multiple`"
        return InputError(what, where=f"network '{self.name}'", cure=cure)

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """Return the module's own state."""
        return self.module.state_dict(*args, **options)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        """Put a state of the module's into it."""
        return self.module.load_state_dict(dict(state_dict), *args, **options)  # a copy: smp renames keys in place


def logits_of(output: Any) -> list[Any]:
    """Return the logits in what a module gives, and the auxiliary ones after them.

    >>> logits_of({"out": 1, "aux": 2}), logits_of((1, 2, 3)), logits_of(1)
    ([1, 2], [1, 2, 3], [1])
    """
    if hasattr(output, "logits"):  # Hugging Face's outputs are mappings too
        return [output.logits]
    found: list[Any] = [output]
    if isinstance(output, Mapping):
        found = [output[key] for key in ("out", "logits", "aux") if key in output] or found
    elif isinstance(output, tuple | list) and output:
        found = list(output)
    return [logits for place, logits in enumerate(found) if place == 0 or logits is not None]


def _not_its_own(error: Exception) -> bool:
    """Return whether an error of a module is that of the machine, or of a batch too small: the training knows those."""
    known = ("can't allocate memory", "CUDA", "cuDNN", "NCCL", "Expected more than 1 value per channel")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(text in str(error) for text in known)


def _sized(logits: Tensor, images: Tensor) -> Tensor:
    return logits if logits.shape[-2:] == images.shape[-2:] else resize(logits, images)


def _sizes(module: nn.Module) -> tuple[int, int]:
    """Return what the sides of an image must be multiples of, and their least length.

    A module says so by an attribute `size_multiple`; a model of smp, also in a user's `make`, has a stride.
    """
    stated = getattr(module, "size_multiple", None)
    if stated is not None or not hasattr(module, "requires_divisible_input_shape"):
        return whole_number(1 if stated is None else stated, "size_multiple", least=1), 1
    architecture, stride = type(module).__name__, int(getattr(module.encoder, "output_stride", 1))
    if architecture == "DPT":  # its coarsest map has twice the stride of the patches
        stride *= 2
    return stride, 8 * stride if architecture == "PAN" else 1  # PAN halves its features three times


# ------------------------------------------------------------------------------------------------------------- smp


_GIVEN = {"encoder_name", "encoder_weights", "in_channels", "classes", "activation", "aux_params"}


def smp_model(architecture: str, encoder: str, num_classes: int, options: Mapping[str, Any]) -> nn.Module:
    """Return a model of segmentation_models_pytorch, as initialised."""
    smp = _smp()
    known = _architectures(smp)
    if architecture not in known:
        raise unknown("architecture of smp", architecture, known, where="network")
    if taken := _GIVEN & set(options):
        cure = "leave it out: the encoder is in the network's name, the rest follows from the data"
        raise InputError(f"'{min(taken)}' is no choice here", where="network_options", cure=cure)
    # smp drops what an encoder of its own does not know; timm's, by "tu-", take more and refuse the rest.
    takes = set(inspect.signature(known[architecture].__init__).parameters) - {"self", "kwargs", *_GIVEN}
    for key in options:
        if key not in takes and not encoder.startswith("tu-"):
            raise unknown("option", key, takes, where="network_options")
    try:
        return _build(known[architecture], encoder, num_classes, options, None)
    except Exception as error:  # smp and timm refuse names and options in many ways
        for said, kind, names in (("Wrong encoder name", "smp", _encoders), ("Unknown model", "timm", _timm_models)):
            if said in str(error):
                what = unknown(f"encoder of {kind}", encoder, names()).what
                raise InputError(what, where="network", expected="a name of smp's, or tu-<name in timm>") from None
        asked = f" with {', '.join(f'{key}={value!r}' for key, value in options.items())}" if options else ""
        what = f"smp cannot build {architecture} on '{encoder}'{asked} ({first_line(error)})"
        raise InputError(what, where="network", cure="change the name, or network_options") from None


def smp_imagenet(
    architecture: str, encoder: str, options: Mapping[str, Any], cure: str = "give a file, or 'none'"
) -> dict[str, Tensor]:
    """Return the weights that smp's hub, or its cache, has of an encoder, by their names in it."""
    weights = True if encoder.startswith("tu-") else "imagenet"
    try:
        return _build(_architectures(_smp())[architecture], encoder, 1, options, weights).encoder.state_dict()  # type: ignore[union-attr]
    except Exception as error:  # the network fails in many ways, and not every encoder has such weights
        what = f"the ImageNet weights of '{encoder}' cannot be fetched here ({first_line(error)})"
        raise InputError(what, where="weights", cure=cure) from None


def _build(
    make: Callable[..., nn.Module], encoder: str, num_classes: int, options: Mapping[str, Any], weights: Any
) -> nn.Module:
    own: dict[str, Any] = {}  # what lets transformers with positions or windows take images of any size
    if make.__name__ == "DPT":
        own["dynamic_img_size"] = True
    elif encoder.startswith("tu-swin"):
        own["strict_img_size"] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old names of encoders are as good as new ones
        return make(encoder, encoder_weights=weights, in_channels=3, classes=num_classes, **{**own, **options})


def _encoders() -> list[str]:
    return list(_smp().encoders.get_encoder_names())


def _timm_models() -> list[str]:
    import timm

    return [f"tu-{name}" for name in timm.list_models()]


def _smp() -> Any:
    import autoseg.training._torchvision  # noqa: F401  # before smp: it then loads beside a CPU-only torch too

    try:
        import segmentation_models_pytorch
    except ModuleNotFoundError as error:
        raise InputError(str(error), where="network", cure="install it: pip install 'autoseg[train]'") from None
    return segmentation_models_pytorch


def _architectures(smp: Any) -> dict[str, Any]:
    base = smp.base.SegmentationModel
    return {name: found for name, found in vars(smp).items() if isinstance(found, type) and issubclass(found, base)}


# ------------------------------------------------------------------------------------------------------ anyone's own


def own_module(make: Callable[..., Any], num_classes: int, options: Mapping[str, Any], name: str) -> nn.Module:
    """Return what a user's callable makes for so many classes."""
    if isinstance(make, nn.Module):
        what = f"is a {type(make).__name__}, not a function that makes one"
        raise InputError(what, where=f"network '{name}'", expected="a callable, given the number of classes")
    if why := _why_not_called(make, options):
        what = f"{why}; it is {getattr(make, '__name__', make)}{inspect.signature(make)}"
        cure = "it is called with the number of classes, and network_options by name: change these, or the function"
        raise InputError(what, where=f"network '{name}'", cure=cure)
    try:
        module = make(num_classes, **options)
    except InputError:
        raise
    except Exception as error:  # whatever a user's code may raise
        raise InputError(described(error), where=f"network '{name}'") from error
    if not isinstance(module, nn.Module):
        what = f"gives a {type(module).__name__}"
        raise InputError(what, where=f"network '{name}'", expected="a torch.nn.Module, given the number of classes")
    for key, value in module.state_dict().items():
        if is_lazy(value):
            cure = "give images to the module once where it is made"
            raise InputError(f"has weights without a size: '{key}'", where=f"network '{name}'", cure=cure)
        if not isinstance(value, Tensor):  # files of weights hold tensors alone
            cure = "do without `get_extra_state`, or return a tensor there"
            raise InputError(f"has a state that is no tensor: '{key}'", where=f"network '{name}'", cure=cure)
    return module


def _why_not_called(make: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """Return why a function does not take a number and these options, or ""."""
    try:
        inspect.signature(make).bind(0, **options)
    except TypeError as error:
        return f"does not take {', '.join(options)}" if "unexpected" in str(error) else str(error)
    except ValueError:  # has no signature to look at
        pass
    return ""
