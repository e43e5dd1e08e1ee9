"""The zoo: searched surrogates with where they came from and what they scored, by name: "zoo:mDice". No torch here.

An entry is a small JSON file. Those that come with the package are in `autoseg/losses/entries`, a group's own in the
folder that `AUTOSEG_ZOO` names, or in ~/.local/share/autoseg/zoo; its own come first. After those, the authors'
published surrogates answer to their names.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, FiniteFloat, field_validator

from autoseg.errors import InputError, unknown
from autoseg.files import Document, Part, in_words, read_json
from autoseg.losses.published import PUBLISHED, published
from autoseg.losses.surrogate import Surrogate

logger = logging.getLogger(__name__)

VARIABLE = "AUTOSEG_ZOO"
SHIPPED = Path(__file__).parent / "entries"
MEASURED = SHIPPED / "published"  # what the published surrogates scored here


class Searched(Part):
    """Where a surrogate was searched."""

    data: str = Field(description="the data set, and its version")
    network: str = Field(description="the proxy task's network, and how long it was trained")
    trials: int = Field(ge=1, description="trainings that the search took")
    config: dict[str, Any] = Field(description="the settings of the search, which make it again")
    command: str = Field(description="what to type to make it again")


class Evidence(Part):
    """What the loss scored, beside others, on data that it was not searched on: a score for each seed, in percent."""

    data: str
    network: str
    metric: str
    command: str = Field(description="the benchmark that measured it")
    scores: dict[str, dict[str, FiniteFloat]] = Field(description="loss -> seed -> score; 'this' is the entry's")

    @field_validator("scores")
    @classmethod
    def _with_this(cls, scores: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        seeds = [list(by_seed) for by_seed in scores.values()]
        known = all(re.fullmatch(r"[0-9]{1,18}", seed) for each in seeds for seed in each)
        if "this" not in scores or not all(seeds) or not known:
            raise InputError(f"found {sorted(scores)}", expected="'this' and other losses, each with scores by seed")
        return scores


class Entry(Document):
    """`<name>.json` of the zoo: a surrogate, where it was searched, and what it scored elsewhere."""

    SCHEMA: ClassVar[str] = "autoseg/zoo-entry/1"
    model_config = ConfigDict(strict=True)

    name: str
    surrogate: dict[str, Any] = Field(description="the content of its surrogate.json")
    searched: Searched | None = Field(default=None, description="null: not known")
    evidence: list[Evidence] = Field(default=[], description="[]: nothing was measured")

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            raise InputError(
                f"found '{name}'", expected="letters, digits, '.', '_' and '-', at most 100, such as NSD-liver"
            )
        return name

    @property
    def loss(self) -> Surrogate:
        """The surrogate, checked."""
        return Surrogate.read(self.surrogate, f"zoo entry '{self.name}'")

    @classmethod
    def read(cls, content: Any, where: str | os.PathLike[str]) -> Entry:
        """Check what was read from a file, the surrogate too."""
        found = super().read(content, where)
        Surrogate.read(found.surrogate, where)
        return found


def own_folder() -> Path:
    """Return where a group's own entries are."""
    return Path(os.environ.get(VARIABLE) or "~/.local/share/autoseg/zoo").expanduser()


def entries() -> dict[str, Entry]:
    """Return all entries of files by name: the group's own, then those that come with the package.

    Names that differ in the case of letters are one name. A file that is no entry, or one for a metric that is not
    registered here, is left out, and a warning names it: it must not keep others from their entries.
    """
    return _read()[0]


def _read() -> tuple[dict[str, Entry], dict[str, InputError]]:
    """Return all entries by name, and what is wrong with the other files, by their names in lower case."""
    found: dict[str, Entry] = {}
    wrong: dict[str, InputError] = {}
    for folder in (own_folder(), SHIPPED):
        for path in sorted(folder.glob("*.json")):
            try:
                entry = Entry.load(path)
            except InputError as error:
                wrong.setdefault(path.stem.lower(), error)
                logger.warning("Left out of the zoo: %s", error)
            else:
                found.setdefault(entry.name.lower(), entry)
    return {entry.name: entry for entry in found.values()}, wrong


def measured(name: str) -> list[Evidence]:
    """Return what a published surrogate scored here, on data that its authors never saw."""
    path = MEASURED / f"{name}.json"
    return Entry.load(path).evidence if path.exists() else []


def from_zoo(name: str) -> Surrogate:
    """Return a surrogate of the zoo by its name, in any case of letters.

    >>> from_zoo("miou-paper").metric
    'mIoU'
    """
    known, wrong = _read()
    match = {one.lower(): one for one in known}.get(str(name).lower())
    if str(name).lower() in wrong:  # also if another folder has one of that name: it is not the one that is meant
        raise wrong[str(name).lower()]
    if match is not None:
        entry = known[match]
        return entry.loss.model_copy(update={"source": entry.loss.source or f"zoo entry '{match}'"})
    if str(name).lower() in {one.lower() for one in PUBLISHED}:
        return published(name)
    others = [one for one in PUBLISHED if one.lower() not in {own.lower() for own in known}]
    raise unknown("loss of the zoo", str(name), [*known, *others])


def add(file: str | os.PathLike[str], name: str | None = None, *, replace: bool = False) -> Path:
    """Put an entry, or a bare surrogate.json, into the group's own folder; return the file that was written."""
    content = read_json(file)
    schema = content.get("schema") if isinstance(content, Mapping) else None
    if schema == Surrogate.SCHEMA:
        surrogate = Surrogate.read(content, file)
        named = {"name": name or surrogate.metric, "surrogate": surrogate.content()}
        entry = Entry.read({"schema": Entry.SCHEMA, **named}, file)
    elif schema == Entry.SCHEMA:
        entry = Entry.read(content, file)
        entry = entry if name is None else Entry.read({**entry.content(), "name": name}, file)
    else:
        expected = f"'{Entry.SCHEMA}' or '{Surrogate.SCHEMA}'"
        raise InputError(f"key 'schema' is {schema!r}", where=file, expected=expected)
    folder = own_folder()
    path = folder / f"{entry.name}.json"
    before = [old for old in folder.glob("*.json") if old.stem.lower() == entry.name.lower()]
    if before and not replace:
        raise InputError(
            f"'{before[0].stem}' is there already", where=before[0], cure="give --replace, or another --name"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entry.save(path)
        for old in before:
            if not old.samefile(path):  # where files have no case, it is the same one
                old.unlink()
    except (OSError, InputError) as error:
        told = in_words(error, folder) if isinstance(error, OSError) else error
        raise InputError(told.what, where=told.where, cure=f"choose another folder with {VARIABLE}") from error
    return path
