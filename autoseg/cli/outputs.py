"""The one check of where a verb writes: not to nothing, and not over what it or another verb reads."""

from __future__ import annotations

import argparse
import errno
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from autoseg.errors import InputError

# Files of the project's own formats, by name: the verbs that are named here write them, and others only read them.
_WRITTEN_BY = {
    "index.json": ("prepare",),
    "source.json": ("prepare",),
    "cache-*.json": ("prepare",),
    "cache-*.bin": ("prepare",),
    "split*.json": ("split",),
    "search.json": (),
    "proposals.json": (),
    "trial-*.json": (),
    "run.json": (),
    "checkpoint*.pt": (),
    "weights.safetensors": ("weights",),
    "surrogate.json": ("select", "loss"),
    "scores.json": ("evaluate",),
    "chunk-*.json": ("trials", "tune"),
    "tuning.json": ("tune",),
}

# A folder with such a file in it belongs to these verbs alone.
_FOLDER_OF = {
    "index.json": ("a data set", ("prepare",)),
    "source.json": ("a data set", ("prepare",)),
    "search.json": ("a search", ("search", "ask")),
    "step-001": ("a search", ("search", "ask")),
    "run.json": ("a run", ("train",)),
    "Snakefile": ("a project", ()),
}

# Verbs that write a folder, and its argument.
_FOLDERS = {"prepare": "out", "train": "out", "search": "folder", "ask": "folder", "tune": "folder", "auto": "out"}
_STEMS = ("table", "figure")  # verbs that add an ending to the path


def check_out(args: argparse.Namespace) -> None:
    """Refuse an output that is empty, that is also an input, or that another verb's files are in."""
    for name in ("out", "predictions", "tensorboard", "folder"):
        given = getattr(args, name, None)
        if isinstance(given, str) and (not given.strip() or any(ord(letter) < 32 for letter in given)):
            what = "is empty" if not given.strip() else f"is {given!r}"
            raise InputError(what, where=_flag(name), expected="a path without line breaks")
    _check_places(args)
    if (folder := getattr(args, _FOLDERS.get(args.verb, ""), None)) is not None:
        _check_folder(args.verb, Path(folder))
    elif (out := getattr(args, "out", None)) is not None and args.verb != "doctor":
        _check_file(args, Path(out))


def _check_places(args: argparse.Namespace) -> None:
    """Refuse a place that cannot be written, before hours of work are done for it."""
    out = getattr(args, "out", None)
    if out is not None and args.verb not in _STEMS:
        _check_place(Path(out), folder=args.verb == "doctor" or _FOLDERS.get(args.verb) == "out")
    elif out is not None:
        _check_place(Path(out).parent, folder=True)
    for name in ("predictions", "tensorboard"):
        if (place := getattr(args, name, None)) is not None:
            _check_folder(args.verb, Path(place))
            _check_place(Path(place), folder=True)


def _check_place(path: Path, *, folder: bool) -> None:
    for place in (path, *path.parents):
        try:
            is_folder = stat.S_ISDIR(os.stat(place).st_mode)
            if place == path and is_folder and not folder:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not is_folder and (folder or place != path):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if is_folder and not os.access(place, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        except FileNotFoundError:
            continue
        except OSError as error:
            from autoseg.files import in_words  # not at the top: `autoseg --help` does without pydantic

            raise in_words(error, path) from None


def _check_folder(verb: str, folder: Path) -> None:
    for name, (what, verbs) in _FOLDER_OF.items():
        if verb not in verbs and os.path.lexists(folder / name):
            found = f"it is the folder of {what} ({name} is in it)"
            raise InputError(found, where=folder, cure="choose another folder, new or empty")


def _check_file(args: argparse.Namespace, out: Path) -> None:
    if not os.path.exists(out):
        return
    for name, path in _inputs(args):
        if os.path.isfile(path) and os.path.samefile(path, out):
            raise InputError(f"it is also {name}, which is read", where=out, cure="choose another file")
    for pattern, verbs in _WRITTEN_BY.items():
        if fnmatch(out.name, pattern) and args.verb not in verbs:
            what = f"there is a {out.name}, which `autoseg {args.verb}` would write over"
            raise InputError(what, where=out, cure="choose another file")


def _inputs(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield every argument that can be a path, but for those that are written."""
    for name, value in vars(args).items():
        if name not in ("out", "predictions", "tensorboard", "verb", "run", "plugin"):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str):
                    yield _flag(name), one


def _flag(name: str) -> str:
    flags = {"folder": "the folder", "scores": "a score file", "run_folder": "RUN", "loss": "the loss"}
    return flags.get(name, "--" + name.replace("_", "-"))
