"""Batches for training and scoring; what is in a batch follows from (seed, iteration), never from the workers.

>>> stream = Batches(size=5, batch_size=2, seed=0, stop=5)
>>> list(stream)[3:] == list(Batches(size=5, batch_size=2, seed=0, start=3, stop=5))
True
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from autoseg.data.augment import Augmentation, CenterView, normalize, pad
from autoseg.data.reading import Array
from autoseg.errors import InputError

Read = Callable[[str], tuple[Array, Array]]  # `Cache.read` or `Prepared.read`
Key = tuple[int, int]  # (epoch, index)
Batch = tuple[torch.Tensor, torch.Tensor]  # images (N, 3, H, W) float32, masks (N, H, W) int64


class Batches(Sampler[list[Key]]):
    """The keys of batches `start` to `stop` of an endless walk through shuffled epochs; any start costs nothing.

    Samples are counted through, so four batches of 8 are one of 32; with several processes each takes its share of
    every batch.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        seed: int,
        stop: int,
        start: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if size < 1:
            raise InputError("there are no images to train on; check the split.")
        if batch_size < max(1, world_size):
            raise InputError(f"a batch of {batch_size} images: each of {world_size} processes needs at least one.")
        if seed < 0:
            raise InputError(f"seed {seed}: a seed is 0 or more.")
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.start, self.stop, self.rank, self.world_size = start, stop, rank, world_size

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    def __iter__(self) -> Iterator[list[Key]]:
        epoch, order = -1, np.empty(0, np.int64)
        for iteration in range(self.start, self.stop):
            keys = []
            for position in range(iteration * self.batch_size, (iteration + 1) * self.batch_size):
                if position // self.size != epoch:
                    epoch = position // self.size
                    order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
                keys.append((epoch, int(order[position % self.size])))
            yield keys[self.rank :: self.world_size]


class TrainSamples(Dataset[Any]):
    """Augmented samples by (epoch, index)."""

    def __init__(self, read: Read, ids: Sequence[str], augmentation: Augmentation, seed: int) -> None:
        self.read, self.ids, self.augmentation, self.seed = read, list(ids), augmentation, seed

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, key: Key) -> tuple[Array, Array]:
        epoch, index = key
        return self.augmentation(*self.read(self.ids[index]), sample_seed(self.seed, epoch, index))


class EvalSamples(Dataset[Any]):
    """Samples to be scored, in the order of `ids`: through `view`, or as they are."""

    def __init__(self, read: Read, ids: Sequence[str], view: CenterView | None = None) -> None:
        self.read, self.ids, self.view = read, list(ids), view

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        image, mask = self.read(self.ids[index])
        return (image, mask) if self.view is None else self.view(image, mask)


class Loader(DataLoader[Any]):
    """A DataLoader that passes on what is wrong with a file as the sentence it is."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # a generator does all that an iterator must
        try:
            yield from super().__iter__()
        except InputError as error:  # a worker's arrives wrapped in its traceback, the sentence last
            raise InputError(str(error).rpartition("InputError: ")[2].strip()) from None


def train_loader(
    read: Read,
    ids: Sequence[str],
    augmentation: Augmentation,
    *,
    batch_size: int,
    seed: int,
    stop: int,
    start: int = 0,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> DataLoader[Any]:
    """Return a loader of `Batch`es `start` to `stop`; with several processes, `batch_size` is that of all together."""
    return Loader(
        TrainSamples(read, ids, augmentation, seed),
        batch_sampler=Batches(len(ids), batch_size, seed, stop, start, rank, world_size),
        **_common(workers, augmentation.crop),
    )


def eval_loader(
    read: Read,
    ids: Sequence[str],
    view: CenterView | None = None,
    *,
    batch_size: int = 1,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> DataLoader[Any]:
    """Return a loader of `Batch`es over `ids` in order (each process its share); sizes differ without a `view`."""
    if view is None and batch_size > 1:
        raise InputError(f"a batch of {batch_size} images at original size: sizes differ; score one at a time.")
    samples = EvalSamples(read, ids[rank::world_size], view)
    return Loader(samples, batch_size=batch_size, shuffle=False, **_common(workers))


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Return the seed of one sample's augmentation.

    >>> sample_seed(0, 0, 1) == sample_seed(0, 1, 0)
    False
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}:{epoch}:{index}".encode(), digest_size=8).digest(), "little")


def collate(samples: Sequence[tuple[Array, Array]], size: tuple[int, int] | None = None) -> Batch:
    """Make a batch of samples: images normalised, masks as torch's losses want them, smaller ones padded to `size`."""
    images, masks = zip(*samples, strict=True)
    size = size or masks[0].shape
    return torch.from_numpy(normalize(images, size)), torch.from_numpy(pad(masks, size)).long()


def _common(workers: int, size: tuple[int, int] | None = None) -> dict[str, Any]:
    # A generator of its own: starting an epoch would otherwise draw from torch's global one, and a resumed training
    # would differ from one that went through.
    return {
        "num_workers": workers,
        "collate_fn": partial(collate, size=size),
        "generator": torch.Generator(),
        "pin_memory": torch.cuda.is_available(),
        "worker_init_fn": _outlive_signals,
    }


def _outlive_signals(worker: int) -> None:
    """Let a worker outlive the signals of a preemption, which a cluster sends to every process of a job.

    The main process answers them, and ends its workers itself: by SIGTERM too where it failed, so a worker must tell
    who sent one. Ignoring them all would keep a failed job waiting for its workers for ever.
    """
    if not hasattr(signal, "sigwaitinfo"):  # macOS, which is no cluster: torch's own handlers stay
        return
    numbers, parent = (signal.SIGTERM, signal.SIGUSR1), os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # in all threads: those started later inherit it

    def wait() -> None:
        while signal.sigwaitinfo(numbers).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
