"""`make bench-data`: the proxy loader against decoding JPEGs every time, and the share of a step spent waiting."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image
from torch import nn

from autoseg.data import voc
from autoseg.data.augment import Augmentation
from autoseg.data.cache import cached_size, resize_mask
from autoseg.data.loaders import Read, train_loader
from autoseg.data.model import cache_short_side
from autoseg.data.prepare import prepare
from autoseg.data.prepared import Prepared
from autoseg.data.source import locate
from autoseg.data.synthetic import scene
from benchmarks.shared import interleave, table, write_section

SIZE, IMAGES, BATCH, BATCHES, ROUNDS = 128, 96, 32, 6, 9
STEP_BATCH, STEPS = 4, 6


def make_tree(root: Path) -> Path:
    """Write a VOC tree of 500 x 375 JPEGs and palette masks."""
    base = root / "VOCdevkit" / "VOC2012"
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (base / folder).mkdir(parents=True)
    names = {split: [f"{split}_{number:04d}" for number in range(IMAGES)] for split in ("train", "val")}
    palette = [channel for color in voc.palette(256) for channel in color]
    for split, listed in names.items():
        (base / "ImageSets" / "Segmentation" / f"{split}.txt").write_text("\n".join(listed))
        for number, name in enumerate(listed):
            image, labels = scene(500, seed=7, split=split, number=number)
            mask = Image.fromarray(labels[:375])
            mask.putpalette(palette)
            mask.save(base / "SegmentationClass" / f"{name}.png")
            Image.fromarray(image[:375]).save(base / "JPEGImages" / f"{name}.jpg", quality=90)
    return root


def decoder(data: Prepared, resize: bool) -> Read:
    """Return a reader that does by hand, as fast as OpenCV can, what the cache has done beforehand."""

    def read(name: str) -> tuple[np.ndarray, np.ndarray]:
        entry = data.entry(name)
        jpeg = np.frombuffer(locate(data.roots, entry.image).read_bytes(), np.uint8)
        image = cv2.imdecode(jpeg, cv2.IMREAD_COLOR_RGB)
        assert image is not None, name
        mask = np.array(Image.open(io.BytesIO(locate(data.roots, entry.mask).read_bytes())))
        if resize:
            height, width = cached_size(mask.shape[0], mask.shape[1], cache_short_side(SIZE))
            image, mask = cv2.resize(image, (width, height)), resize_mask(mask, height, width)
        return image, mask

    return read


def consume(read: Read, ids: list[str]) -> Callable[[], None]:
    loader = train_loader(read, ids, Augmentation(SIZE, (SIZE, SIZE)), batch_size=BATCH, seed=0, stop=BATCHES)

    def run() -> None:
        for _ in loader:
            pass

    return run


def proxy_network(num_classes: int) -> nn.Module:
    """Return the proxy's DeepLabv3+ with ResNet-50, output stride 16 as smp builds it, without weights."""
    import autoseg.training._torchvision  # noqa: F401, I001  # first: lets smp import torchvision beside a CPU-only torch
    import segmentation_models_pytorch as smp

    return smp.DeepLabV3Plus("resnet50", encoder_weights=None, classes=num_classes)


def waiting_share(data: Prepared, ids: list[str]) -> tuple[float, float]:
    """Return seconds per training step, and the share of it spent in the loader (in the same process)."""
    network = proxy_network(data.num_classes)
    loss = nn.CrossEntropyLoss(ignore_index=data.ignore_index)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
    batches = iter(
        train_loader(
            data.cache(cache_short_side(SIZE)).read,
            ids,
            Augmentation(SIZE, (SIZE, SIZE)),
            batch_size=STEP_BATCH,
            seed=0,
            stop=STEPS + 1,
        )
    )
    waited = total = 0.0
    for step in range(STEPS + 1):
        start = time.perf_counter()
        images, masks = next(batches)
        there = time.perf_counter()
        optimiser.zero_grad()
        loss(network(images), masks).backward()
        optimiser.step()
        if step:  # the first one warms up
            waited += there - start
            total += time.perf_counter() - start
    return total / STEPS, waited / total


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = make_tree(Path(folder) / "tree")
        start = time.perf_counter()
        data = prepare(voc.find(root, sbd="none"), Path(folder) / "prepared", cache_short_side(SIZE))
        preparing = 2 * IMAGES / (time.perf_counter() - start)
        ids = data.ids("train")
        seconds = interleave(
            {
                "cache": consume(data.cache(cache_short_side(SIZE)).read, ids),
                "decode, resize": consume(decoder(data, resize=True), ids),
                "decode": consume(decoder(data, resize=False), ids),
            },
            ROUNDS,
        )
        step, share = waiting_share(data, ids)
    rate = {name: BATCH * BATCHES / value for name, value in seconds.items()}
    gain = rate["cache"] / rate["decode, resize"]
    rows = [
        ["from the packed cache", f"{rate['cache']:.0f}", "1"],
        ["JPEG and PNG decoded, resized to the cache's size", f"{rate['decode, resize']:.0f}", f"1/{gain:.1f}"],
        [
            "JPEG and PNG decoded, the augmentation alone resizes",
            f"{rate['decode']:.0f}",
            f"1/{rate['cache'] / rate['decode']:.1f}",
        ],
    ]
    text = (
        "## Data\n\n"
        f"`make bench-data`: {IMAGES} images of 500 x 375, proxy crop {SIZE}, the full augmentation, batches of "
        f"{BATCH} in one process and one thread, medians of {ROUNDS} rounds in turn. The proxy loader is "
        f"**{gain:.1f}x faster** from the packed cache than decoding every time.\n\n"
        f"{table(['', 'images/s per core', 'relative'], rows)}\n\n"
        f"A training step of DeepLabv3+ with ResNet-50 (crop {SIZE}, batch {STEP_BATCH}, one CPU thread, loader in the "
        f"same process) takes {step:.2f} s, of which **{100 * share:.2f} %** is waiting for data. "
        f"`autoseg prepare` reads, checks and packs {preparing:.0f} images/s on one core."
    )
    write_section("data", text)


if __name__ == "__main__":
    main()
