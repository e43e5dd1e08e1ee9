"""Archives of public data sets: fetched from their official places, checked, and unpacked; a stopped fetch goes on.

Addresses and checksums are those of torchvision's tables. Nothing but `autoseg fetch` uses this: no training and no job
of a pipeline needs a network.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import logging
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autoseg import __version__
from autoseg.errors import InputError
from autoseg.files import atomic, writing
from autoseg.progress import bar

logger = logging.getLogger(__name__)

_ATTEMPTS, _PAUSE, _TIMEOUT = 5, 2.0, 60.0  # connections without a byte in a row; seconds
_PIECE, _READ = 1 << 18, 1 << 22  # bytes that are received, and read, at a time
_GOES_ON = "run the same command again, which continues"


@dataclass(frozen=True)
class Archive:
    """An archive of a data set: where it is published, and the MD5 checksum of its bytes."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.url.rpartition("/")[2]


ARCHIVES: dict[str, tuple[Archive, ...]] = {
    "pets": (
        Archive(
            "https://www.robots.ox.ac.uk/~vgg/data/pets/data/annotations.tar.gz", "95a8c909bbe2e81eed6a22bccdf3f68f"
        ),
        Archive("https://www.robots.ox.ac.uk/~vgg/data/pets/data/images.tar.gz", "5c4f3ee8e5d25df40f4fd59a7f44e54c"),
    ),
    "voc": (
        Archive(
            "https://thor.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar",
            "6cd6e144f989b92b3379bac3b3de84fd",
        ),
    ),
    "sbd": (
        Archive(
            "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/semantic_contours/benchmark.tgz",
            "82b4d87ceb2ed10f6038a1cba92111cb",
        ),
    ),
}


def fetch(archive: Archive, root: Path, mirror: str | None = None) -> bool:
    """Fetch an archive and unpack it into `root`; return False if that was done before.

    `mirror` is an address or a folder that holds the archive under its own name. An archive that lies in `root` already
    is not fetched again. It is removed when all of it is unpacked; a small file beside it remembers that.
    """
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
    done = root / f".fetched-{archive.name}"
    with _alone(root / f".{archive.name}.lock"):
        if done.exists():
            return False
        here = root / archive.name
        if mirror is not None and "://" not in mirror:
            here = Path(mirror).expanduser() / archive.name
            if not here.is_file():
                raise InputError("there is no such archive", where=here, cure="give the folder that holds it")
        if here.is_file():
            if (found := _md5(here)) != archive.md5:
                raise _wrong_sum(here, found, archive, "remove the file, and run the same command again")
        else:
            _download(archive, mirror, here)
        _unpack(here, root)
        with atomic(done) as file:
            file.write(f"{archive.md5}\n")
        if here.parent == root:
            here.unlink()
    return True


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock while the block runs; that of another process is an error."""
    with writing(path):
        path.touch()
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = "another `autoseg fetch` is at work here"
            raise InputError(what, where=path.parent, cure="wait for it") from None
        except OSError as error:
            logger.warning("%s: this file system has no locks (%s); run no second fetch.", path.parent, error.strerror)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _download(archive: Archive, mirror: str | None, here: Path) -> None:
    """Fetch the bytes to `here`; what an earlier attempt fetched is kept."""
    url = f"{mirror.rstrip('/')}/{archive.name}" if mirror else archive.url
    part = here.with_name(f"{archive.name}.part")
    went_on = part.exists()
    _receive(url, part)
    if went_on and _md5(part) != archive.md5:  # the beginning may be of another file: once from the start
        part.unlink()
        _receive(url, part)
    if (found := _md5(part)) != archive.md5:
        part.unlink()
        cure = "it was removed; try again later, or name a mirror with `--from`"
        raise _wrong_sum(url, found, archive, cure)
    os.replace(part, here)


def _receive(url: str, part: Path) -> None:
    """Append to `part` until it is whole; a connection that breaks is made again as long as bytes come."""
    failed = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _receive_once(url, part)
            return
        except urllib.error.HTTPError as error:
            if error.code == 416 and before:  # nothing is left to be sent, unless the file is another one
                return
            cure = "name a mirror with `--from`, or fetch it by hand"
            if error.code in (429, 500, 502, 503, 504):
                cure = f"{_GOES_ON}, later"
            raise InputError(f"the server answered {error.code} ({error.reason})", where=url, cure=cure) from None
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            size = part.stat().st_size if part.exists() else 0
            failed = 0 if size > before else failed + 1
            if failed == _ATTEMPTS:
                reason = getattr(error, "reason", None) or str(error) or type(error).__name__
                what = f"the server cannot be reached, after {_megabytes(size)} ({reason})"
                cure = f"check the network, then {_GOES_ON}; or name a mirror with `--from`"
                raise InputError(what, where=url, cure=cure) from None
            if failed:
                logger.warning("%s does not answer; trying again in %.0f s.", url, _PAUSE * failed)
            time.sleep(_PAUSE * failed)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"this is no address ({error})", where=url, expected="https://...") from None


def _receive_once(url: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": f"autoseg/{__version__}"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        if have and not (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-"):
            have = 0  # a server that cannot go on sends the whole
        left = int(answer.headers.get("Content-Length") or 0)
        # The archive and what is unpacked from it take about the same room.
        _require_room(part.parent, left + have + left)
        unit = {"unit_scale": True, "unit_divisor": 1000, "initial": have, "total": have + left or None}
        with open(part, "ab" if have else "wb") as file, bar(part.stem, "B", **unit) as shown:
            received = 0
            while piece := answer.read1(_PIECE):  # as soon as there is some, so that a kill loses little
                with writing(part):
                    file.write(piece)
                    file.flush()
                received += len(piece)
                shown.update(len(piece))
        if received < left:
            raise ConnectionError(f"the connection ended {_megabytes(left - received)} before the end")


def _require_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        what = f"archive and images need {_megabytes(needed)} more, and {_megabytes(free)} are free"
        raise InputError(f"no room left: {what}", where=folder, cure=f"free some and {_GOES_ON}")


def _unpack(archive: Path, root: Path) -> None:
    """Unpack into `root`; a member that would lie elsewhere, or is no file, folder or inner link, is refused."""
    if not hasattr(tarfile, "data_filter"):  # Python 3.11.0 to 3.11.3
        raise InputError("this Python cannot unpack safely", where=archive, cure="install Python 3.11.4 or newer")
    try:
        with writing(root), tarfile.open(archive) as file:
            for member in bar(f"unpacking {archive.name}", "file", iterable=file):
                file.extract(member, root, filter="data")
    except tarfile.FilterError as error:
        what = f"a member of the archive would be written elsewhere ({error})"
        raise InputError(what, where=archive, cure="take the official archive") from None
    except (tarfile.TarError, EOFError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the archive cannot be unpacked ({error})", where=archive, cure="fetch it again") from None


def _md5(path: Path) -> str:
    found = hashlib.md5(usedforsecurity=False)
    with writing(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        with bar(f"checking {path.stem}", "B", unit_scale=True, unit_divisor=1000, total=size) as shown:
            while piece := file.read(_READ):
                found.update(piece)
                shown.update(len(piece))
    return found.hexdigest()


def _wrong_sum(where: str | Path, found: str, archive: Archive, cure: str) -> InputError:
    return InputError(f"the archive has the MD5 checksum {found}", where=where, expected=archive.md5, cure=cure)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
