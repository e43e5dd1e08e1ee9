"""The surrogates that the authors published, and those without parameters, by name."""

from __future__ import annotations

from autoseg.errors import unknown
from autoseg.losses.surrogate import Surrogate

# ---- Published curves: absolute control points of the authors' release ---------------------------------------------

_PAPER_IOU = [
    *(3.65390355e-04, 0.984171689, 0.969491959, 0.992340326, 0.988328516, 0.995552719),
    *(0.354609758, 0.267221928, 0.560551465, 0.435290039, 0.565432191, 0.601448298),
]

_MACC = [0.021453928, 0.73905742, 0.41163361, 0.79865617, 0.91986191, 0.95041156]

_PUBLISHED: dict[str, tuple[str, list[float], str]] = {
    "mIoU": (
        "mIoU",
        [
            *(5.69728440e-04, 0.643720450, 0.338589169, 0.705543360, 0.625281252, 0.779551927),
            *(0.690375570, 0.0130628900, 0.834170515, 0.962431815, 0.942998269, 0.980038125),
        ],
        "release HEAD; its log: 80.78 mIoU",
    ),
    "mIoU-paper": ("mIoU", _PAPER_IOU, "the paper's row with 80.97 mIoU"),
    "FWIoU": (
        "FWIoU",
        [
            *(0.11907931, 0.669945, 0.19315827, 0.71179134, 0.46337387, 0.79494196),
            *(0.5266451, 0.29869753, 0.706645, 0.4485701, 0.86858255, 0.7261703),
        ],
        "the release's log with 91.93 FWIoU (its config holds another curve by mistake)",
    ),
    "BIoU": ("BIoU", _PAPER_IOU, "the release's config and log; the same numbers as mIoU-paper"),
    "BF1": (
        "BF1",
        [
            *(0.8113003373146057, 0.8526162505149841, 0.17164576053619385, 0.03164796531200409),
            *(0.20997394621372223, 0.44903290271759033, 0.07847517728805542, 0.8753038048744202),
        ],
        "the release; one curve of one piece for each operand of the edge's AND and OR",
    ),
    "mAcc": ("mAcc", _MACC, "the release"),
    "gAcc": ("gAcc", [0.221453928, *_MACC[1:]], "the release's log (its config has mAcc's u1)"),
}

PUBLISHED: tuple[str, ...] = tuple(_PUBLISHED)


def published(name: str) -> Surrogate:
    """Return a published surrogate by name, in any case of letters.

    >>> published("miou").source
    'Auto Seg-Loss, release HEAD; its log: 80.78 mIoU'
    """
    found = {known.lower(): known for known in PUBLISHED}.get(str(name).lower())
    if found is None:
        raise unknown("published surrogate", str(name), PUBLISHED)
    metric, points, source = _PUBLISHED[found]
    return Surrogate.make(metric, control_points=points, source=f"Auto Seg-Loss, {source}")


def naive(metric: str) -> Surrogate:
    """Return a metric's surrogate with identity curves, which has no parameters."""
    return Surrogate.make(metric, family="linear", pieces=1, source="identity curves (no parameters)")
