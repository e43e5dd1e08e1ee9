"""Lets torchvision be imported beside a CPU-only torch: import this module first.

The torchvision wheel of the package index is built against CUDA; beside a CPU-only torch its compiled operators do not
load, and importing it fails at "operator torchvision::nms does not exist" when it registers shapes for them. Nothing
here (smp, timm) calls these operators, so it is enough that their schemas are known.
"""

from __future__ import annotations

import torch

SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def _declare_missing() -> torch.library.Library | None:
    """Declare the operators that torchvision's own library has not brought; return the holder of the declarations."""
    try:
        import importlib.util

        found = importlib.util.find_spec("torchvision")
    except ModuleNotFoundError:
        return None
    if found is None or not found.origin:
        return None
    _load_compiled(found.origin)
    missing = [name for name in SCHEMAS if not hasattr(torch.ops.torchvision, name)]
    if not missing:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in missing:
        library.define(name + SCHEMAS[name])
    return library


def _load_compiled(package: str) -> None:
    """Load torchvision's compiled operators, where they fit this torch, as importing torchvision would."""
    from pathlib import Path

    for path in Path(package).parent.glob("_C.*"):
        try:
            torch.ops.load_library(str(path))
        except OSError:
            return


LIBRARY = _declare_missing()  # kept: the declarations live as long as it does
