"""Small files. Writing is atomic: a kill leaves the old file or the new one. An error in reading names file and key.

Equal content has equal bytes (`to_json`), and a fingerprint is the checksum of those bytes. Every JSON file that one
command writes and another reads is a `Document`; `parse` turns pydantic's errors into an `InputError`, for documents,
configs and arguments alike.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import stat
import tempfile
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from autoseg import strict
from autoseg.errors import InputError, located, unknown

LARGEST = 16 << 20
"""The greatest size of a text file, in bytes; the files of a data set may be larger, see `Document.LARGEST`."""

LARGEST_SETTINGS = 1 << 20
"""The greatest size of a config or of settings, in bytes."""

# What the system says, in words: (what, cure) by the number of the error.
_IN_WORDS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT),
        ("no room left", "free some and run the same command again, which continues"),
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM), ("no permission", "change the permissions, or choose another place with `--out`")
    ),
    errno.EROFS: ("cannot be written", "choose another place with `--out`"),
    errno.ENOENT: ("no such file or folder", ""),
    errno.ENOTDIR: ("a file is in the place of a folder", "move it away, or choose another place with `--out`"),
    errno.EEXIST: ("a file is in the place of a folder", "move it away, or choose another place with `--out`"),
    errno.EISDIR: ("a folder is in the place of a file", "move it away, or choose another place with `--out`"),
    errno.ENOTEMPTY: ("a folder is in the place of a file", "move it away, or choose another place with `--out`"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter one with `--out`"),
    errno.ELOOP: ("the link leads back to itself", "remove it"),
}


def in_words(error: OSError, where: str | os.PathLike[str] = "") -> InputError:
    """Return what the system refused as an InputError; this is the one place that does.

    >>> print(in_words(OSError(28, "No space left on device"), "results/demo"))
    results/demo: no room left (No space left on device); free some and run the same command again, which continues.
    """
    reason = error.strerror or str(error) or type(error).__name__
    what, cure = _IN_WORDS.get(
        error.errno or 0, ("the system refused", "correct that, or choose another place with `--out`")
    )
    named = error.filename if isinstance(error.filename, str | bytes) else ""
    place = os.fspath(where) or os.fsdecode(named)
    return InputError(f"{what} ({reason})", where=place.encode("utf-8", "backslashreplace").decode(), cure=cure)


@contextmanager
def atomic(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path` that replaces it when the block ends, or vanishes if the block fails.

    What the system refuses, such as a full disk, is an InputError, and the old file stays as it was.
    """
    path = Path(path)
    with writing(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
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
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the system refuses while `path` is written, such as a full disk, into an InputError."""
    try:
        yield
    except OSError as error:
        raise in_words(error, path) from None
    except UnicodeEncodeError:
        raise InputError("a name or text in it is not UTF-8", where=_shown(path)) from None


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


def read_text(path: str | os.PathLike[str], largest: int = LARGEST) -> str:
    """Return a text file's content; a missing, unreadable or too large one raises an InputError that names it."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"found {path!r}", expected="the path of a file")
    try:
        refuse_pipe(path)
        with open(path, "rb") as file:
            content = file.read(largest + 1)  # not its size, which a device has not
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError("no such file", where=path) from None
    except OSError as error:
        problem = in_words(error, path)
        raise problem.replace(what=f"not readable: {problem.what}") from None
    except ValueError as error:  # a path that the system does not take
        raise InputError(f"not readable ({error})", where=_shown(path)) from None
    if len(content) > largest:
        raise InputError("the file is too large", where=path, expected=f"{largest >> 20} MiB at most")
    try:
        return content.decode("utf-8")
    except ValueError as error:
        raise InputError(f"not readable ({error})", where=path, cure="save it as UTF-8 text") from None


def refuse_pipe(path: str | os.PathLike[str]) -> None:
    """Refuse a named pipe among files, on which a reader may wait for ever; a shell's own, `<(...)`, is in /dev."""
    if stat.S_ISFIFO(os.stat(path).st_mode) and not os.fspath(path).startswith(("/dev/", "/proc/")):
        raise InputError("this is a named pipe", where=path, expected="a file", cure="remove it")


def _shown(path: str | os.PathLike[str]) -> str:
    return repr(os.fspath(path))[1:-1]


def read_json(path: str | os.PathLike[str], largest: int = LARGEST) -> Any:
    """Return the content of a JSON file, read strictly (`autoseg.strict`)."""
    text = read_text(path, largest)
    with located(path):
        return strict.loads(text)


def read_settings(path: str | os.PathLike[str]) -> Any:
    """Return the content of a YAML or JSON file, read strictly (`autoseg.strict`)."""
    if str(path).endswith(".json"):
        return read_json(path, LARGEST_SETTINGS)
    text = read_text(path, LARGEST_SETTINGS)
    with located(path):
        try:
            return strict.loads_yaml(text)
        except ImportError:
            raise InputError("reading YAML needs the package pyyaml", cure="install it, or write JSON") from None


def fingerprint(content: Any) -> str:
    """Return the SHA-256 of the canonical text of `content`, as 64 hex digits."""
    return hashlib.sha256(to_json(content).encode()).hexdigest()


def checksum(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes, as 64 hex digits."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise in_words(error, path) from None


Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], content: Any, where: str | os.PathLike[str] = "") -> Model:
    """Return `content` as a checked model; an error names the file, the key, and the nearest known key.

    >>> class Size(Part):
    ...     width: int
    >>> parse(Size, {"widht": 3}, "size.yaml")
    Traceback (most recent call last):
    autoseg.errors.InputError: size.yaml: unknown key 'widht'; did you mean 'width'? Expected one of width.
    """
    if not isinstance(content, Mapping):
        raise InputError(f"found {type(content).__name__}", where=where, expected="keys and values")
    try:
        return model.model_validate(dict(content))
    except ValidationError as error:
        with located(where) if where else nullcontext():
            raise _of_validation(model, error) from None


def _of_validation(model: type[BaseModel], error: ValidationError) -> InputError:
    """Return pydantic's errors as one InputError: an unknown key, which may explain the others, or the first."""
    problems = error.errors()
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    cause = first.get("ctx", {}).get("error")
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        *path, last = first["loc"]
        return unknown("key", str(last), _keys(model, path), where=".".join(map(str, path)))
    if isinstance(cause, InputError):  # raised by a validator of ours, with its own fields
        return cause.at(key) if key else cause
    message = first["msg"].removeprefix("Value error, ")
    found = "" if first["type"] in ("missing", "value_error") else f" (found {first['input']!r})"
    return InputError(f"{message}{found}", where=key)


def _keys(annotation: Any, path: Sequence[Any]) -> list[str]:
    """Return the keys that are known at a place in a model."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        if not path:
            return [field.alias or name for name, field in fields.items()]
        return _keys(fields[path[0]].annotation, path[1:]) if path[0] in fields else _keys(annotation, path[1:])
    inner = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    if typing.get_origin(annotation) in (dict, list):
        return _keys(inner[-1], path[1:])
    of_kind = [kind for kind in inner if path and path[0] in typing.get_args(_annotation(kind, "kind"))]
    return [key for kind in of_kind or inner for key in _keys(kind, path)]


def _annotation(model: Any, field: str) -> Any:
    fields = getattr(model, "model_fields", {})
    return fields[field].annotation if field in fields else None


@functools.cache
def _takes_truth(model: type[BaseModel], name: str) -> bool:
    """Whether a field may hold true or false; an unknown one is refused elsewhere."""
    fields = {field.alias or key: field for key, field in model.model_fields.items()}
    return name not in fields or _mentions_truth(fields[name].annotation)


def _mentions_truth(annotation: Any) -> bool:
    return annotation in (bool, Any) or any(_mentions_truth(kind) for kind in typing.get_args(annotation))


class Part(BaseModel):
    """A part of a file or config: every key is known, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _truth_is_no_number(cls, content: Any) -> Any:
        """Refuse true and false in the place of a number, of which pydantic makes 1 and 0."""
        for name, value in content.items() if isinstance(content, dict) else ():
            flags = value if isinstance(value, list | tuple) else [value]
            if any(flag is True or flag is False for flag in flags) and not _takes_truth(cls, name):
                raise InputError(f"found {value!r}", where=str(name), expected="no true or false here")
        return content


class Document(Part):
    """A JSON file that names its format and version under the key `schema`, such as "autoseg/split/1"."""

    SCHEMA: ClassVar[str]
    CURE: ClassVar[str] = "make it again"
    LARGEST: ClassVar[int] = LARGEST

    def content(self) -> dict[str, Any]:
        """Return what is written to the file."""
        return {"schema": self.SCHEMA, **self.model_dump(mode="json")}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically, in its canonical text."""
        write_json(path, self.content())

    def checksum(self) -> str:
        """Return the SHA-256 of the canonical text, which is also the file's."""
        return fingerprint(self.content())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read and check the file; an error names the file and the key."""
        try:
            return cls.read(read_json(path, cls.LARGEST), path)
        except InputError as error:
            raise error.replace(cure=error.cure or cls.CURE) from None

    @classmethod
    def read(cls, content: Any, where: str | os.PathLike[str]) -> Self:
        """Check what was read from a file."""
        content = dict(content) if isinstance(content, Mapping) else {}
        if (found := content.pop("schema", None)) != cls.SCHEMA:
            raise InputError(f"key 'schema' is {found!r}", where=where, expected=f"'{cls.SCHEMA}'")
        return parse(cls, content, where)
