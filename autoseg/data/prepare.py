"""Read a data set once, check every file, and write index and packed cache.

The place of every sample in the packed file is known before the first sample is read, so neither the number of threads
nor a kill changes a byte. A journal beside the packed file lists the samples that are finished.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from autoseg.data.cache import cache_paths, cached_size, shrink
from autoseg.data.check import check_whole_set, decode, in_parallel, leaked, survey
from autoseg.data.model import CacheLayout, Index, IndexEntry, Slot, SourcePaths
from autoseg.data.prepared import Prepared
from autoseg.data.reading import sha256
from autoseg.data.source import Sample, Source
from autoseg.errors import InputError, Problem, refuse, summary, warnings
from autoseg.files import fingerprint, writing
from autoseg.versions import PREPARE_VERSION

logger = logging.getLogger(__name__)

_BYTES_PER_ENTRY = 1500  # index.json and cache-<n>.json together, roughly


@dataclass(frozen=True)
class _Planned:
    """A sample with its place in the packed file, and a fingerprint of all that its bytes there depend on."""

    sample: Sample
    height: int
    width: int
    offset: int
    fingerprint: str

    @property
    def nbytes(self) -> int:
        return 4 * self.height * self.width


@dataclass(frozen=True)
class _Finished:
    """A sample that lies in the packed file, as a line of the journal."""

    fingerprint: str
    entry: IndexEntry
    checksum: str
    warnings: list[Problem]

    def to_line(self) -> str:
        notes = [[p.where, p.what, p.cure] for p in self.warnings]
        return json.dumps([self.fingerprint, self.entry.model_dump(mode="json"), self.checksum, notes]) + "\n"

    @classmethod
    def from_line(cls, line: str) -> _Finished:
        fingerprint, entry, checksum, notes = json.loads(line)
        found = [Problem(where, what, cure, "warning") for where, what, cure in notes]
        return cls(fingerprint, IndexEntry.model_validate(entry), checksum, found)


def prepare(
    source: Source,
    out: str | os.PathLike[str],
    short_side: int = 256,
    threads: int = 1,
    leave_out_copies: bool = False,
) -> Prepared:
    """Prepare a data set into the folder `out`; continue if it was begun, do nothing if it is finished."""
    out = Path(out)
    if short_side < 1:
        raise InputError(f"is {short_side}", where="short_side", expected="at least 1 pixel")
    refuse(f"the data set '{source.dataset}'", source.problems)
    with writing(out):
        _refuse_other_content(out, source)
        planned = _plan(source, short_side, threads)
        meaning = [source.dataset, [info.model_dump(mode="json") for info in source.classes]]
        samples = [plan.fingerprint for plan in planned]
        whole = fingerprint([PREPARE_VERSION, meaning, short_side, leave_out_copies, samples])
        if _is_done(out, source, short_side, whole):  # before the lock: the folder may be read-only by now
            logger.info("%s: already prepared, nothing to do.", out)
            return Prepared.open(out)
        with _alone(out):
            return _run(source, out, short_side, threads, leave_out_copies, planned, whole)


def require_room(folder: Path, need: int) -> None:
    """Log how much disk is needed; refuse if there is less."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free
    logger.info("%s: needs %s of disk, %s are free.", folder, readable(need), readable(free))
    if need > free:
        raise InputError(
            f"{readable(need)} of disk are needed, {readable(free)} are free",
            where=folder,
            cure="free some, choose another `--out`, or a smaller `--proxy-size`",
        )


def readable(nbytes: int) -> str:
    """Return a number of bytes in MB or GB.

    >>> readable(3_141_592_653), readable(20_000)
    ('3.14 GB', '0.02 MB')
    """
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.2f} MB"


def _refuse_other_content(out: Path, source: Source) -> None:
    """Refuse a file, and a folder that holds another data set: no image, or no class, in common."""
    if out.exists() and not out.is_dir():
        raise InputError("this is a file", where=out, cure="give a folder with `--out`")
    try:
        known = Index.load(out / "index.json")
    except InputError:  # none, or damaged, or of another version: it is written again
        return
    names, new_names = ([info.name for info in classes] for classes in (known.classes, source.classes))
    ids = {entry.id for entry in known.entries()}
    if (
        known.dataset != source.dataset
        or set(names).isdisjoint(new_names)
        or ids.isdisjoint(sample.id for sample in source.samples)
    ):
        raise InputError(
            f"holds another data set, '{known.dataset}' of {len(ids)} images and {len(names)} classes",
            where=out,
            cure="choose another folder with `--out`",
        )
    if names != new_names:
        logger.info("%s: the class list changed; the data set is prepared again.", out)


def _plan(source: Source, short_side: int, threads: int) -> list[_Planned]:
    """Return each sample's place in the packed file, from the sizes in the images' headers."""
    sizes = list(in_parallel(lambda sample: survey(source, sample), source.samples, threads, "looking"))
    refuse(f"the data set '{source.dataset}'", [p for size in sizes if isinstance(size, list) for p in size])
    labels = source.labels.model_dump(mode="json")
    planned = []
    offset = 0
    for sample, size in zip(source.samples, sizes, strict=True):
        assert isinstance(size, tuple)  # the lists were refused above
        height, width = cached_size(*size, short_side)
        stats = [source.locate(file).stat() for file in (sample.image, sample.mask)]
        files = [[repr(sample), stat.st_size, stat.st_mtime_ns] for stat in stats]
        own = fingerprint([PREPARE_VERSION, labels, files, height, width, offset])
        planned.append(_Planned(sample, height, width, offset, own))
        offset += planned[-1].nbytes
    return planned


def _is_done(out: Path, source: Source, short_side: int, whole: str) -> bool:
    """Return whether all files are there and fit together; if only the originals moved, write their new place."""
    packed, layout_path = cache_paths(out, short_side)
    try:
        paths, index = SourcePaths.load(out / "source.json"), Index.load(out / "index.json")
        layout = CacheLayout.load(layout_path)
        size = packed.stat().st_size
    except (InputError, FileNotFoundError):  # one of our own files is lost or damaged: make it again
        return False
    known = paths.fingerprints.get(str(short_side))
    if known != whole or layout.index != index.checksum() or size != layout.nbytes:
        return False
    if paths.roots != (roots := _written_roots(source, out)):
        SourcePaths(roots=roots, fingerprints=paths.fingerprints).save(out / "source.json")
    return True


def _run(
    source: Source,
    out: Path,
    short_side: int,
    threads: int,
    leave_out_copies: bool,
    planned: list[_Planned],
    whole: str,
) -> Prepared:
    """Read and pack all samples that are not finished yet, check the set as a whole, and write the files."""
    packed, _ = cache_paths(out, short_side)
    part, journal = packed.with_name(f".{packed.name}.part"), packed.with_name(f".{packed.name}.journal")
    if journal.exists() and packed.exists() and not part.exists():
        packed.rename(part)  # killed between the last sample and the index
    total = sum(plan.nbytes for plan in planned)
    begun = part.stat().st_blocks * 512 if part.exists() else 0
    require_room(out, max(0, total - begun) + _BYTES_PER_ENTRY * len(planned))
    file = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.ftruncate(file, total)
        done = _resume(file, journal, planned)
        if done:
            logger.info("%s: going on after %d of %d images.", out, len(done), len(planned))
        finished, problems = _read_all(source, file, journal, planned, done, threads)
        os.fsync(file)
    finally:
        os.close(file)
    refuse(f"the data set '{source.dataset}'", problems)

    splits: dict[str, list[IndexEntry]] = {split: [] for split in sorted({plan.sample.split for plan in planned})}
    for plan in planned:
        splits[plan.sample.split].append(finished[plan.fingerprint].entry)
    copied = leaked(splits) if leave_out_copies else set()
    splits["train"] = [entry for entry in splits["train"] if entry.id not in copied]
    notes = [warning for sample in finished.values() for warning in sample.warnings]
    problems = [*source.problems, *notes, *check_whole_set(source, splits)]
    refuse(f"the data set '{source.dataset}'", problems)
    if copied:
        names = ", ".join(sorted(copied))
        logger.info("%d training images left out, copies of images in other splits: %s.", len(copied), names)
    if found := warnings(problems):
        logger.warning("%d remark%s:\n%s", len(found), "s" * (len(found) > 1), summary(found))

    index = Index(dataset=source.dataset, classes=source.classes, labels=source.labels, splits=splits)
    slots = [
        Slot(
            id=plan.sample.id,
            offset=plan.offset,
            height=plan.height,
            width=plan.width,
            checksum=finished[plan.fingerprint].checksum,
        )
        for plan in planned
    ]
    _publish(source, out, index, CacheLayout(short_side=short_side, index=index.checksum(), slots=slots), whole)
    journal.unlink()
    counts = ", ".join(f"{len(entries)} {name}" for name, entries in splits.items())
    logger.info("%s: %s images prepared.", out, counts)
    return Prepared.open(out)


def _resume(file: int, journal: Path, planned: list[_Planned]) -> dict[str, _Finished]:
    """Return the samples of the journal that are still valid: equal fingerprint, and their bytes are on disk."""
    wanted = {plan.fingerprint: plan for plan in planned}
    done: dict[str, _Finished] = {}
    for line in journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []:
        try:
            sample = _Finished.from_line(line)
        except ValueError:  # a line that was cut by a kill
            continue
        plan = wanted.get(sample.fingerprint)
        if plan and sha256(os.pread(file, plan.nbytes, plan.offset)) == sample.checksum:
            done[sample.fingerprint] = sample
    with open(journal, "w", encoding="utf-8") as kept:
        kept.writelines(sample.to_line() for sample in done.values())
    return done


def _read_all(
    source: Source, file: int, journal: Path, planned: list[_Planned], done: dict[str, _Finished], threads: int
) -> tuple[dict[str, _Finished], list[Problem]]:
    """Read and pack the samples that are not done; return all finished ones by fingerprint, and the problems."""

    def work(plan: _Planned) -> _Finished | list[Problem]:
        decoded = decode(source, plan.sample)
        if isinstance(decoded, list):
            return decoded
        image, mask = shrink(decoded.image, decoded.mask, plan.height, plan.width)
        content = image.tobytes() + mask.tobytes()
        if os.pwrite(file, content, plan.offset) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return _Finished(plan.fingerprint, decoded.entry, sha256(content), decoded.warnings)

    finished = dict(done)
    problems: list[Problem] = []
    with open(journal, "a", encoding="utf-8", buffering=1) as lines:
        todo = [plan for plan in planned if plan.fingerprint not in done]
        for result in in_parallel(work, todo, threads, "preparing"):
            if isinstance(result, list):
                problems += result
            else:
                finished[result.fingerprint] = result
                lines.write(result.to_line())
    return finished, problems


def _publish(source: Source, out: Path, index: Index, layout: CacheLayout, whole: str) -> None:
    """Put the finished files in place, the index last: a folder without it is not prepared."""
    packed, layout_path = cache_paths(out, layout.short_side)
    index_path, source_path = out / "index.json", out / "source.json"
    others: dict[str, str] = {}
    try:
        kept = Index.load(index_path) == index
    except InputError:  # lost or damaged
        kept = False
    if kept:
        with suppress(InputError):  # without it, caches of other sizes are made again when they are asked for
            others = SourcePaths.load(source_path).fingerprints
    else:
        index_path.unlink(missing_ok=True)
    packed.with_name(f".{packed.name}.part").replace(packed)
    layout.save(layout_path)
    roots = _written_roots(source, out)
    SourcePaths(roots=roots, fingerprints={**others, str(layout.short_side): whole}).save(source_path)
    if not kept:  # an index that has not changed keeps its date, so that a cache of another size re-runs no other rule
        index.save(index_path)
    for path in (layout_path, source_path, index_path):
        for torn in out.glob(f".{path.name}.*.part"):  # a kill during an atomic write leaves such a file
            torn.unlink()


def _written_roots(source: Source, out: Path) -> dict[str, str]:
    """Return where the original files lie: relative to `out` if inside it, so that both can be moved together."""
    written, base = {}, out.resolve()
    for name, root in source.roots.items():
        path = root.resolve()
        written[name] = path.relative_to(base).as_posix() if path.is_relative_to(base) else str(path)
    return written


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keep a second `prepare` out of the folder; the system removes the lock when the process ends or is killed."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = "another `autoseg prepare` is at work in this folder"
            raise InputError(what, where=out, cure="wait for it") from None
        except OSError as error:
            advice = "do not run a second `prepare` in it"
            logger.warning("%s: this file system has no locks (%s); %s.", out, error.strerror, advice)
        yield
