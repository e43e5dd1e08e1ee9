"""Small files, written so that a kill leaves either the old one or the new one, and equal content equal bytes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from autoseg.errors import InputError


@contextmanager
def atomic(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path` that replaces it when the block ends, or vanishes if the block fails."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes it private; others on the cluster read results too
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@contextmanager
def writing(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a folder that cannot be written, a full disk or a used-up quota into a sentence; what was done is kept."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what, cure = "no room left", "make some and run the same command again, it goes on"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            what, cure = "cannot be written", "choose another folder with `--out`"
        else:
            what, cure = "writing failed", "mend that, or choose another folder with `--out`"
        raise InputError(f"{folder}: {what} ({error.strerror}); {cure}.") from None


def to_json(content: Any) -> str:
    """Return the canonical text of `content`: sorted keys, floats in full, no NaN.

    >>> print(to_json({"b": 0.1, "a": [1]}), end="")
    {
      "a": [
        1
      ],
      "b": 0.1
    }
    """
    return json.dumps(content, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write `content` to `path` atomically, in its canonical text."""
    text = to_json(content)
    with atomic(path) as file:
        file.write(text)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; a missing or broken one raises an InputError that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file.") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not readable as JSON ({error}).") from None


def fingerprint(content: Any) -> str:
    """Return the SHA-256 of the canonical text of `content`, as 64 hex digits."""
    return hashlib.sha256(to_json(content).encode()).hexdigest()


def checksum(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes, as 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
