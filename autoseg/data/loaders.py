"""Batches for training and scoring; a batch depends on (seed, iteration) alone, not on the number of loading processes.

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

from autoseg.data.augment import Augmenter, CenterView, WholeView, normalize, pad
from autoseg.data.reading import Array
from autoseg.errors import InputError

Read = Callable[[str], tuple[Array, Array]]  # `Cache.read` or `Prepared.read`
Key = tuple[int, int]  # (epoch, index)
Batch = tuple[torch.Tensor, torch.Tensor]  # images (N, 3, H, W) float32, masks (N, H, W) int64


class Batches(Sampler[list[Key]]):
    """The keys of batches `start` to `stop` of an endless sequence of shuffled epochs; any start costs nothing.

    The sequence of samples does not depend on the batch size, so four batches of 8 are one of 32. With several
    processes, each takes its share of every batch: the next images in the sequence, so that groups of neighbours, over
    which a loss may take its sums, are the same with any number of processes.
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
            raise InputError("there are no images to train on", cure="check the split")
        if batch_size < max(1, world_size):
            expected = f"at least one image for each of {world_size} processes"
            raise InputError(f"is {batch_size}", where="batch_size", expected=expected)
        if seed < 0:
            raise InputError(f"is {seed}", where="seed", expected="0 or more")
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
            bounds = [len(keys) * rank // self.world_size for rank in (self.rank, self.rank + 1)]
            yield keys[slice(*bounds)]


class Samples(Dataset[Any]):
    """Samples of a data set by key; a file that cannot be used gives an InputError as its value.

    The error is not raised here: of an error that a worker raises, torch's DataLoader passes on the text alone.
    """

    def __init__(self, load: Callable[[Any], tuple[Array, Array]], size: int) -> None:
        self.load, self.size = load, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> tuple[Array, Array] | InputError:
        try:
            return self.load(key)
        except InputError as error:
            return error


class Loader(DataLoader[Any]):
    """A DataLoader that raises the error of a file with all its fields."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # a generator is an iterator too
        for batch in super().__iter__():
            if isinstance(batch, InputError):
                raise batch
            yield batch


def train_loader(
    read: Read,
    ids: Sequence[str],
    augmentation: Augmenter,
    *,
    batch_size: int,
    seed: int,
    stop: int,
    start: int = 0,
    loaders: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> DataLoader[Any]:
    """Return a loader of `Batch`es `start` to `stop`; with several processes, `batch_size` is that of all together."""
    return Loader(
        Samples(partial(_augmented, read, list(ids), augmentation, seed), len(ids)),
        batch_sampler=Batches(len(ids), batch_size, seed, stop, start, rank, world_size),
        **_common(loaders, augmentation.crop),
    )


def eval_loader(
    read: Read,
    ids: Sequence[str],
    view: CenterView | WholeView | None = None,
    *,
    batch_size: int = 1,
    loaders: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> DataLoader[Any]:
    """Return a loader of `Batch`es over `ids` in order (each process its share).

    But for a `CenterView`, images keep their aspect, and a batch is one image.
    """
    if not isinstance(view, CenterView) and batch_size > 1:
        raise InputError(f"is {batch_size}", where="batch_size", expected="1, as sizes of whole images differ")
    own = ids[rank::world_size]
    samples = Samples(partial(_viewed, read, list(own), view), len(own))
    return Loader(samples, batch_size=batch_size, shuffle=False, **_common(loaders))


def _augmented(read: Read, ids: list[str], augmentation: Augmenter, seed: int, key: Key) -> tuple[Array, Array]:
    epoch, index = key
    return augmentation(*read(ids[index]), sample_seed(seed, epoch, index))


def _viewed(read: Read, ids: list[str], view: CenterView | WholeView | None, index: int) -> tuple[Array, Array]:
    image, mask = read(ids[index])
    return (image, mask) if view is None else view(image, mask)


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Return the seed of one sample's augmentation.

    >>> sample_seed(0, 0, 1) == sample_seed(0, 1, 0)
    False
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}:{epoch}:{index}".encode(), digest_size=8).digest(), "little")


def collate(samples: Sequence[tuple[Array, Array]], size: tuple[int, int] | None = None) -> Batch:
    """Make a batch of samples: images normalised, masks as torch's losses want them, smaller ones padded to `size`."""
    images, masks = zip(*samples, strict=True)
    planes, labels = normalize(images, size or images[0].shape[:2]), pad(masks, size or masks[0].shape)
    return torch.from_numpy(planes), torch.from_numpy(labels).long()


def _collate_or_fail(
    samples: Sequence[tuple[Array, Array] | InputError], size: tuple[int, int] | None
) -> Batch | InputError:
    """Return a batch, or the first error among its samples."""
    failed = next((sample for sample in samples if isinstance(sample, InputError)), None)
    return failed or collate(samples, size)  # type: ignore[arg-type]  # no sample is an error


def _common(loaders: int, size: tuple[int, int] | None = None) -> dict[str, Any]:
    # A generator of its own: otherwise each start of a loader draws from torch's global one, and a resumed training
    # differs from one that was never stopped.
    return {
        "num_workers": loaders,
        "collate_fn": partial(_collate_or_fail, size=size),
        "generator": torch.Generator(),
        "pin_memory": torch.cuda.is_available(),
        "worker_init_fn": _outlive_signals,
    }


def _outlive_signals(worker: int) -> None:
    """Let a loading process ignore the signals of a preemption, which a cluster sends to every process of a job.

    The main process reacts to them and ends its loading processes itself, perhaps by SIGTERM. So a loading process ends
    if the signal comes from its parent. If it ignored that signal too, a failed job would wait for it for ever.
    """
    if not hasattr(signal, "sigwaitinfo"):  # macOS is no cluster: torch's own handlers stay
        return
    numbers, parent = (signal.SIGTERM, signal.SIGUSR1), os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # in all threads: those started later inherit it

    def wait() -> None:
        while signal.sigwaitinfo(numbers).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
