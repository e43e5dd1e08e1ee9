"""Galleries: images, their ground truth, and what trained networks predict. The one kind of figure that needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from autoseg.data.augment import WholeView
from autoseg.data.loaders import eval_loader
from autoseg.data.model import VOID, ClassInfo
from autoseg.data.prepared import Prepared
from autoseg.data.reading import Array
from autoseg.data.split import load_split
from autoseg.errors import InputError, Problem
from autoseg.pipeline.layout import Layout
from autoseg.pipeline.outputs import GalleryFigure
from autoseg.report import drawing
from autoseg.training import evaluation
from autoseg.training.run import load_network, load_trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LONGEST = 320  # pixels of a picture's longer side in the figure


def spread(ids: Sequence[str], count: int) -> list[str]:
    """Return `count` ids, evenly spread.

    >>> spread(["a", "b", "c", "d", "e"], 2)
    ['a', 'e']
    """
    count = min(count, len(ids))
    return [ids[round(k * (len(ids) - 1) / max(count - 1, 1))] for k in range(count)]


def gallery_figure(
    config: GalleryFigure,
    layout: Layout,
    window: tuple[int, int] | None = None,
    network: str | None = None,
    device: str = "cpu",
) -> tuple[Figure, list[Problem]]:
    """Draw images, ground truth and what the network of each loss predicts, from the runs' weights.

    A network that is code of the user's, `module:callable`, must be named.
    """
    data = Prepared.open(layout.data(config.dataset))
    ids = spread(load_split(layout.split(config.dataset), data).val, config.images)
    samples = [data.read(name) for name in ids]
    palette = np.array([*(info.color for info in data.index.classes)], np.uint8)
    columns: dict[str, list[Array]] = {
        "Image": [image for image, _ in samples],
        "Ground truth": [_colours(mask, palette) for _, mask in samples],
    }
    lacks: list[Problem] = []
    seen = {int(label) for _, mask in samples for label in np.unique(mask)}
    for (label, _), run in zip(config.losses.items(), config.runs, strict=True):
        try:
            labels = predict(Path(layout.run(run.name)), data, ids, window, torch.device(device), network)
        except InputError as error:
            lacks.append(error.at(f"'{label}' is not shown").problem)
            continue
        columns[label] = [_colours(found, palette) for found in labels]
        seen |= {int(c) for found in labels for c in np.unique(found)}
    ratios = [image.shape[0] / image.shape[1] for image, _ in samples]
    figure = drawing.new_figure(1.75 * len(columns), 1.75 * sum(ratios) + 0.75)
    places = figure.subplots(len(ids), len(columns), squeeze=False, gridspec_kw={"height_ratios": ratios})
    for column, (label, pictures) in zip(places.T, columns.items(), strict=True):
        column[0].set_title(label)
        for place, picture in zip(column, pictures, strict=True):
            place.imshow(_smaller(picture))
            place.set_axis_off()
    _legend(figure, [data.index.classes[label] for label in sorted(seen - {VOID})], VOID in seen)
    return figure, lacks


@torch.inference_mode()
def predict(
    run: Path,
    data: Prepared,
    ids: Sequence[str],
    window: tuple[int, int] | None,
    device: torch.device,
    network: str | None = None,
) -> list[Array]:
    """Return what a run's network predicts for images, as `autoseg evaluate` does it, at their original size."""
    trained = load_trained(run)
    if trained.num_classes != data.num_classes:
        raise InputError(f"trained for {trained.num_classes} classes", where=run, expected=f"{data.num_classes}")
    module = load_network(run, trained, device, network)
    view = WholeView(trained.test_scale) if trained.test_scale else None
    found = []
    for images, masks in eval_loader(data.read, ids, view, loaders=0):
        labels = evaluation.predict(module, images.to(device), masks.shape[-2:], window)
        found += [label.cpu().numpy() for label in labels]
    return found


def _colours(labels: Array, palette: Array) -> Array:
    """Return labels in their classes' colours, void in white; dark lines between areas show them in grey too."""
    shown = np.full((*labels.shape, 3), 255, np.uint8)
    known = labels < len(palette)
    shown[known] = palette[labels[known]]
    border = np.zeros(labels.shape, bool)
    border[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    border[1:] |= labels[1:] != labels[:-1]
    shown[border] = shown[border] // 3
    return shown


def _smaller(picture: Array) -> Array:
    """Return every k-th pixel of a picture, so that it fits the figure and no colours are mixed."""
    step = -(-max(picture.shape[:2]) // LONGEST)
    return picture[::step, ::step]


def _hex(colour: tuple[int, int, int]) -> str:
    return "#" + "".join(f"{c:02x}" for c in colour)


def _legend(figure: Figure, classes: Sequence[ClassInfo], void: bool) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=_hex(info.color), edgecolor="0.3", label=info.name) for info in classes]
    if void:
        patches.append(Patch(facecolor="white", edgecolor="0.3", label="void, not scored"))
    columns = max(1, int(figure.get_figwidth() / 1.2))  # inches of a name
    figure.legend(handles=patches, loc="outside lower center", ncols=columns, fontsize=7)
