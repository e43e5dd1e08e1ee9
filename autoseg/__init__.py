"""autoseg: search a loss function for the segmentation metric you care about.

The public names are below; importing the package loads neither torch nor optuna until one of them is used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from autoseg.losses.build import build_loss
    from autoseg.losses.surrogate_loss import SurrogateLoss
    from autoseg.metrics.formula import Formula, register
    from autoseg.metrics.segmentation import SegmentationMetrics
    from autoseg.search.sampler import PPO2Sampler

__version__ = "0.1.0"
__all__ = ["Formula", "PPO2Sampler", "SegmentationMetrics", "SurrogateLoss", "build_loss", "register"]

_HOMES = {
    "Formula": "autoseg.metrics.formula",
    "PPO2Sampler": "autoseg.search.sampler",
    "SegmentationMetrics": "autoseg.metrics.segmentation",
    "SurrogateLoss": "autoseg.losses.surrogate_loss",
    "build_loss": "autoseg.losses.build",
    "register": "autoseg.metrics.formula",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'autoseg' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
