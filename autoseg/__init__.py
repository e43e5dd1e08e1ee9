"""autoseg: search a loss function for the segmentation metric you care about.

    SurrogateLoss         a loss made of a metric and of searched curves; `SurrogateLoss.published("mIoU")`
    build_loss            any loss by its name: "ce", "dice", "published:mIoU + 0.5 * ce", a file
    SegmentationMetrics   gAcc mAcc mIoU FWIoU BIoU BF1 of label maps, exact over batches and GPUs
    Formula, register     a metric of your own, known wherever a metric is named
    PPO2Sampler           the search as a sampler of Optuna
    search                search(train, metric="mIoU"): a whole search from Python or a notebook

Importing the package loads neither torch nor optuna until one of these names is used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from autoseg.losses.build import build_loss
    from autoseg.losses.surrogate_loss import SurrogateLoss
    from autoseg.metrics.formula import Formula, register
    from autoseg.metrics.segmentation import SegmentationMetrics
    from autoseg.search.notebook import search as search
    from autoseg.search.sampler import PPO2Sampler

__version__ = "0.2.0"
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

    if name == "search":
        return importlib.import_module("autoseg.search")  # a package that can be called
    if name not in _HOMES:
        raise AttributeError(f"module 'autoseg' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "search", "__version__"]
