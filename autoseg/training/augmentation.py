"""The augmentation that the settings name: the built-in one, or an albumentations pipeline of the user's.

A pipeline is a file in albumentations' own format (`albumentations.save(compose, "mine.yaml", data_format="yaml")`), or
`module:callable`, which returns one. It takes the place of all built-in steps, the crop too, and is seeded as they are:
by (seed, epoch, image). Neither torch nor albumentations is loaded before one is made.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from autoseg.errors import InputError, Problem, first_line
from autoseg.files import checksum, fingerprint, read_settings
from autoseg.plugins import described, import_callable, names_callable, source_of

if TYPE_CHECKING:
    import numpy as np

    from autoseg.data.augment import Augmenter
    from autoseg.training.settings import Training

_FILES = (".yaml", ".yml", ".json")
_EXPECTED = "a .yaml or .json file that albumentations saved, or module:callable"


def check_augmentation(spec: str | None) -> None:
    """Refuse what can be no pipeline; nothing is read or loaded."""
    if spec is not None and not spec.endswith(_FILES) and not names_callable(spec):
        raise InputError(f"'{spec}'", where="augmentation", expected=_EXPECTED)


def pipeline_identity(spec: str) -> dict[str, Any]:
    """Return what a pipeline is, for fingerprints: the file's content or the module's source, and the library."""
    library = {"albumentations": version("albumentations")}
    if not spec.endswith(_FILES):
        return {"source": fingerprint(source_of(spec.partition(":")[0], f"augmentation '{spec}'")), **library}
    try:
        return {"file": checksum(spec), **library}
    except OSError as error:
        raise InputError(f"not readable ({error.strerror})", where=spec, expected=_EXPECTED) from None


def make_augmentation(settings: Training) -> Augmenter:
    """Return the augmentation of a training."""
    from autoseg.data.augment import Augmentation

    s = settings
    if s.augmentation is not None:
        return own_pipeline(s.augmentation, s.crop)
    return Augmentation(
        s.short_side, s.crop, scale=s.scale, max_share=s.max_share, flip=s.flip, photometric=s.photometric
    )


def own_pipeline(spec: str, crop: tuple[int, int]) -> Augmenter:
    """Return a user's pipeline, whose crops are checked."""
    import albumentations as A  # type: ignore[import-untyped]

    from autoseg.data.augment import Augmenter

    class Own(Augmenter):
        def __call__(self, image: np.ndarray, mask: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
            try:
                image, mask = super().__call__(image, mask, seed)
            except Exception as error:  # whatever a step may raise
                what = f"fails on an image of {mask.shape[0]} x {mask.shape[1]}: {described(error)}"
                raise InputError(what, where=f"augmentation '{spec}'") from error
            _check(image, mask, self.crop, spec)
            return image, mask

    where = f"augmentation '{spec}'"
    if not spec.endswith(_FILES):
        make = import_callable(spec, "augmentation")
        try:
            found = make()
        except Exception as error:  # whatever a user's code may raise
            raise InputError(described(error), where=where, expected="a callable without arguments") from error
    else:
        content = read_settings(spec)
        try:
            found = A.from_dict(content)
        except Exception as error:  # a foreign file fails in many ways
            what = f"no pipeline of albumentations ({first_line(error)})"
            raise InputError(what, where=where, expected=_EXPECTED) from None
    if not isinstance(found, A.BasicTransform | A.BaseCompose):
        raise InputError(f"gives a {type(found).__name__}", where=where, expected="an albumentations.Compose")
    return Own(found if isinstance(found, A.Compose) else A.Compose([found]), crop)


def _check(image: np.ndarray, mask: np.ndarray, crop: tuple[int, int], spec: str) -> None:
    where = f"augmentation '{spec}'"
    if str(image.dtype) != "uint8" or str(mask.dtype) != "uint8":
        cure = "leave out Normalize and ToTensorV2: images are normalised when they are batched"
        raise InputError(f"gives {image.dtype} images and {mask.dtype} masks", where=where, expected="uint8", cure=cure)
    if image.shape != (*mask.shape, 3):
        what = f"gives images {image.shape} with masks {mask.shape}"
        raise InputError(what, where=where, expected="(H, W, 3) and (H, W)")
    if mask.shape[0] > crop[0] or mask.shape[1] > crop[1]:
        what = f"gives crops of {mask.shape[0]} x {mask.shape[1]}"
        cure = "end it with RandomCrop, or set crop; smaller crops are padded with void"
        raise InputError(what, where=where, expected=f"at most `crop`, {crop[0]} x {crop[1]}", cure=cure)


def remarks_on_augmentation(settings: Training) -> list[Problem]:
    """Return a remark on each step of a user's pipeline that fills masks with a class where the image has no pixel."""
    if settings.augmentation is None:
        return []
    from autoseg.data.model import VOID

    remarks = []
    waiting = list(own_pipeline(settings.augmentation, settings.crop).compose.transforms)
    while waiting:
        step = waiting.pop(0)
        waiting += list(getattr(step, "transforms", []))
        fill = getattr(step, "fill_mask", None)
        if fill is not None and fill != VOID:
            shown = f"{fill:g}" if isinstance(fill, int | float) else fill
            what = f"{type(step).__name__} fills masks with class {shown} where there is no image"
            remarks.append(Problem("augmentation", what, f"fill_mask={VOID} makes that void", "warning"))
    return remarks
