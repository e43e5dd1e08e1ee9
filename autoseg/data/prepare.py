"""Read a data set once, check every file, and write index, statistics and packed cache.

Every sample has its place in the packed file before the first is read, so neither the number of workers nor a kill
changes a byte; a journal beside it remembers what is done.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from autoseg.data.cache import cache_paths, cached_size, shrink
from autoseg.data.check import check_whole, decode, in_parallel, leaked, survey
from autoseg.data.model import CacheLayout, Entry, Index, Slot, SourcePaths, Statistics
from autoseg.data.prepared import Prepared
from autoseg.data.reading import sha256
from autoseg.data.source import Sample, Source
from autoseg.errors import InputError
from autoseg.files import fingerprint, writing
from autoseg.problems import Problem, listing, refuse, warnings
from autoseg.versions import PREPARE_VERSION

_BYTES_PER_ENTRY = 1500  # index.json and cache.json together, roughly


@dataclass(frozen=True)
class _Item:
    """A sample with its place in the packed file; `key` changes when anything it depends on does."""

    sample: Sample
    height: int
    width: int
    offset: int
    key: str

    @property
    def nbytes(self) -> int:
        return 4 * self.height * self.width


@dataclass(frozen=True)
class _Record:
    """A finished sample, as the journal keeps it."""

    key: str
    entry: Entry
    checksum: str
    warnings: list[Problem]

    def to_line(self) -> str:
        notes = [[p.where, p.what, p.cure] for p in self.warnings]
        return json.dumps([self.key, self.entry.model_dump(mode="json"), self.checksum, notes]) + "\n"

    @classmethod
    def from_line(cls, line: str) -> _Record:
        key, entry, checksum, notes = json.loads(line)
        return cls(
            key,
            Entry.model_validate(entry),
            checksum,
            [Problem(where, what, cure, "warning") for where, what, cure in notes],
        )


def prepare(
    source: Source,
    out: str | os.PathLike[str],
    short_side: int = 256,
    workers: int = 1,
    leave_out_copies: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Prepared:
    """Prepare a data set into the folder `out`; do nothing if that is done, go on if it was begun."""
    out = Path(out)
    if short_side < 1:
        raise InputError(f"the cache's short side is {short_side}; it must be at least 1 pixel.")
    refuse(f"the data set '{source.dataset}'", source.problems)
    with writing(out):
        _keep_others(out, source, say)
        items = _lay_out(source, short_side, workers)
        meaning = [source.dataset, [info.model_dump(mode="json") for info in source.classes]]
        keys = [item.key for item in items]
        state = fingerprint([PREPARE_VERSION, meaning, short_side, leave_out_copies, keys])
        if _is_done(out, source, short_side, state):  # before the lock: the folder may be read-only by now
            say(f"{out}: already prepared, nothing to do.")
            return Prepared.open(out)
        with _alone(out, say):
            return _run(source, out, short_side, workers, leave_out_copies, items, state, say)


def require_room(folder: Path, need: int, say: Callable[[str], None]) -> None:
    """Say how much disk is needed, and refuse if there is less."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    say(f"{folder}: needs {readable(need)} of disk, {readable(free)} are free.")
    if need > free:
        raise InputError(
            f"{folder}: {readable(need)} of disk are needed, {readable(free)} are free; "
            "free some, choose another `--out`, or a smaller `--proxy-size`."
        )


def readable(nbytes: int) -> str:
    """Return a number of bytes as one reads it.

    >>> readable(3_141_592_653), readable(20_000)
    ('3.14 GB', '0.02 MB')
    """
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.2f} MB"


def _keep_others(out: Path, source: Source, say: Callable[[str], None]) -> None:
    """Refuse a folder that is taken: a file, or another data set (no image, or no class, in common)."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: this is a file; give a folder with `--out`.")
    try:
        known = Index.load(out / "index.json")
    except InputError:  # none, or damaged, or of another version: it is made anew
        return
    names, new_names = ([info.name for info in classes] for classes in (known.classes, source.classes))
    ids = {entry.id for entry in known.entries()}
    if (
        known.dataset != source.dataset
        or set(names).isdisjoint(new_names)
        or ids.isdisjoint(sample.id for sample in source.samples)
    ):
        raise InputError(
            f"{out}: holds the prepared data set '{known.dataset}' of {len(ids)} images and {len(names)} classes, "
            "which is another one; choose another folder with `--out`."
        )
    if names != new_names:
        say(f"{out}: the class list changed; the data set is prepared anew.")


def _lay_out(source: Source, short_side: int, workers: int) -> list[_Item]:
    sizes = list(in_parallel(lambda sample: survey(source, sample), source.samples, workers, "looking"))
    refuse(f"the data set '{source.dataset}'", [p for size in sizes if isinstance(size, list) for p in size])
    labels = source.labels.model_dump(mode="json")
    items = []
    offset = 0
    for sample, size in zip(source.samples, sizes, strict=True):
        assert isinstance(size, tuple)  # the lists were refused above
        height, width = cached_size(*size, short_side)
        stats = [source.locate(file).stat() for file in (sample.image, sample.mask)]
        files = [[repr(sample), stat.st_size, stat.st_mtime_ns] for stat in stats]
        key = fingerprint([PREPARE_VERSION, labels, files, height, width, offset])
        items.append(_Item(sample, height, width, offset, key))
        offset += items[-1].nbytes
    return items


def _is_done(out: Path, source: Source, short_side: int, state: str) -> bool:
    """Return whether all is there and fits together; roots that have moved are noted."""
    packed, layout_path = cache_paths(out, short_side)
    try:
        paths, index = SourcePaths.load(out / "source.json"), Index.load(out / "index.json")
        layout, statistics = CacheLayout.load(layout_path), Statistics.load(out / "statistics.json")
        size = packed.stat().st_size
    except (InputError, FileNotFoundError):  # one of our own files is lost or damaged: make it again
        return False
    if (
        paths.states.get(str(short_side)) != state
        or layout.index != index.fingerprint()
        or statistics != Statistics.of(index)
        or size != layout.nbytes
    ):
        return False
    if paths.roots != (roots := _written_roots(source, out)):
        SourcePaths(roots=roots, states=paths.states).save(out / "source.json")
    return True


def _run(
    source: Source,
    out: Path,
    short_side: int,
    workers: int,
    leave_out_copies: bool,
    items: list[_Item],
    state: str,
    say: Callable[[str], None],
) -> Prepared:
    packed, _ = cache_paths(out, short_side)
    part, journal = packed.with_name(f".{packed.name}.part"), packed.with_name(f".{packed.name}.journal")
    if journal.exists() and packed.exists() and not part.exists():
        packed.rename(part)  # killed between the last sample and the index
    total = sum(item.nbytes for item in items)
    begun = part.stat().st_blocks * 512 if part.exists() else 0
    require_room(out, max(0, total - begun) + _BYTES_PER_ENTRY * len(items), say)
    file = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.ftruncate(file, total)
        done = _resume(file, journal, items)
        if done:
            say(f"{out}: going on after {len(done)} of {len(items)} images.")
        records, problems = _read_all(source, file, journal, items, done, workers)
        os.fsync(file)
    finally:
        os.close(file)
    refuse(f"the data set '{source.dataset}'", problems)

    splits: dict[str, list[Entry]] = {split: [] for split in sorted({item.sample.split for item in items})}
    for item in items:
        splits[item.sample.split].append(records[item.key].entry)
    copied = leaked(splits) if leave_out_copies else set()
    splits["train"] = [entry for entry in splits["train"] if entry.id not in copied]
    notes = [warning for record in records.values() for warning in record.warnings]
    problems = [*source.problems, *notes, *check_whole(source, splits)]
    refuse(f"the data set '{source.dataset}'", problems)
    if copied:
        say(f"{len(copied)} training images left out, copies of images in other splits: {', '.join(sorted(copied))}.")
    if found := warnings(problems):
        say(f"{len(found)} remark{'s' * (len(found) > 1)}:\n{listing(found, limit=10)}")

    index = Index(dataset=source.dataset, classes=source.classes, labels=source.labels, splits=splits)
    slots = [
        Slot(
            id=item.sample.id,
            offset=item.offset,
            height=item.height,
            width=item.width,
            checksum=records[item.key].checksum,
        )
        for item in items
    ]
    _publish(source, out, index, CacheLayout(short_side=short_side, index=index.fingerprint(), slots=slots), state)
    journal.unlink()
    say(f"{out}: {', '.join(f'{len(entries)} {name}' for name, entries in splits.items())} images prepared.")
    return Prepared.open(out)


def _resume(file: int, journal: Path, items: list[_Item]) -> dict[str, _Record]:
    """Return the journal's records that still hold: nothing they depend on changed and their bytes are on disk."""
    wanted = {item.key: item for item in items}
    done: dict[str, _Record] = {}
    for line in journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []:
        try:
            record = _Record.from_line(line)
        except ValueError:  # the line a kill cut short
            continue
        item = wanted.get(record.key)
        if item and sha256(os.pread(file, item.nbytes, item.offset)) == record.checksum:
            done[record.key] = record
    with open(journal, "w", encoding="utf-8") as kept:
        kept.writelines(record.to_line() for record in done.values())
    return done


def _read_all(
    source: Source, file: int, journal: Path, items: list[_Item], done: dict[str, _Record], workers: int
) -> tuple[dict[str, _Record], list[Problem]]:
    def work(item: _Item) -> _Record | list[Problem]:
        decoded = decode(source, item.sample)
        if isinstance(decoded, list):
            return decoded
        image, mask = shrink(decoded.image, decoded.mask, item.height, item.width)
        content = image.tobytes() + mask.tobytes()
        if os.pwrite(file, content, item.offset) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return _Record(item.key, decoded.entry, sha256(content), decoded.warnings)

    records = dict(done)
    problems: list[Problem] = []
    with open(journal, "a", encoding="utf-8", buffering=1) as lines:
        todo = [item for item in items if item.key not in done]
        for result in in_parallel(work, todo, workers, "preparing"):
            if isinstance(result, list):
                problems += result
            else:
                records[result.key] = result
                lines.write(result.to_line())
    return records, problems


def _publish(source: Source, out: Path, index: Index, layout: CacheLayout, state: str) -> None:
    """Put the finished files in place, the index last: without it the folder counts as not prepared."""
    packed, layout_path = cache_paths(out, layout.short_side)
    index_path, source_path = out / "index.json", out / "source.json"
    states: dict[str, str] = {}
    try:
        kept = Index.load(index_path) == index
    except InputError:  # lost or damaged
        kept = False
    if kept:
        with suppress(InputError):  # without it, caches of other sizes are made again when they are asked for
            states = SourcePaths.load(source_path).states
    else:
        index_path.unlink(missing_ok=True)
    packed.with_name(f".{packed.name}.part").replace(packed)
    layout.save(layout_path)
    roots = _written_roots(source, out)
    SourcePaths(roots=roots, states={**states, str(layout.short_side): state}).save(source_path)
    Statistics.of(index).save(out / "statistics.json")
    if not kept:  # what has not changed keeps its date: a cache of another size makes nothing else out of date
        index.save(index_path)
    for path in (layout_path, out / "statistics.json", source_path, index_path):
        for torn in out.glob(f".{path.name}.*.part"):  # what a kill left of an atomic write
            torn.unlink()


def _written_roots(source: Source, out: Path) -> dict[str, str]:
    """Return where the original files lie: relative to the folder if inside, so that both can be moved together."""
    written, base = {}, out.resolve()
    for name, root in source.roots.items():
        path = root.resolve()
        written[name] = path.relative_to(base).as_posix() if path.is_relative_to(base) else str(path)
    return written


@contextmanager
def _alone(out: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Keep a second `prepare` out of the folder; the lock ends with the process, however that ends."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{out}: another `autoseg prepare` is at work in this folder; wait for it.") from None
        except OSError as error:
            say(f"{out}: this file system has no locks ({error.strerror}); see that no second `prepare` runs in it.")
        yield
