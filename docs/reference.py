"""What is written from code: the config's JSON schema for editors, the references of config and command line, and the
table of settings in docs/fidelity.md.

`make reference` writes all; a test fails when they are not what the models and parsers say.
"""

from __future__ import annotations

import argparse
import sys
import types
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from autoseg.cli import build_parser
from autoseg.data.kinds import KINDS
from autoseg.files import atomic, to_json
from autoseg.metrics.conventions import Conventions, LossConventions
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.outputs import Columns, Figure, Row, Table
from autoseg.pipeline.partial import Partial
from autoseg.pipeline.sections import Dataset, Proxy, Retraining, SearchPlan, Tuning
from autoseg.search.settings import Search
from autoseg.training.settings import PROTOCOLS, Training

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # as a script, this file's own folder is there instead
from docs import fidelity  # noqa: E402

SCHEMA = "workflow/schemas/config.schema.json"
REFERENCE = "docs/config.md"
COMMANDS = "docs/cli.md"

# In the order of the data flow, each with the key that holds it.
_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("The whole file", Pipeline),
    ("datasets.&lt;name&gt;", Dataset),
    *((f"datasets.&lt;name&gt;.options, kind: {name}", kind) for name, kind in KINDS.items()),
    ("datasets.&lt;name&gt;.conventions", Conventions),
    ("datasets.&lt;name&gt;.loss_conventions", LossConventions),
    ("proxies.&lt;name&gt;", Proxy),
    ("searches.&lt;name&gt;", SearchPlan),
    ("tunings.&lt;name&gt;", Tuning),
    ("searches.&lt;name&gt;.search", Search),
    ("retrainings.&lt;name&gt;", Retraining),
    ("proxies.&lt;name&gt;.training, retrainings.&lt;name&gt;.training", Training),
    ("tables.&lt;name&gt;", Table),
    ("tables.&lt;name&gt;.columns", Columns),
    ("tables.&lt;name&gt;.rows", Row),
    *(
        (f"figures.&lt;name&gt;, kind: {typing.get_args(figure.model_fields['kind'].annotation)[0]}", figure)
        for figure in typing.get_args(typing.get_args(Figure)[0])
    ),
)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a config."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Pipeline.model_json_schema()}


def config_reference() -> str:
    """Return the reference of all keys, in markdown."""
    parts = [
        "# Config reference\n",
        "Written by `make reference` from the models of `autoseg/pipeline/config.py`; so is the JSON schema, "
        f"`{SCHEMA}`. A key that is not known is refused with the nearest known one.\n",
    ]
    for title, model in _SECTIONS:
        parts.append(f"## {title}\n")
        parts.append(f"{(model.__doc__ or '').split(chr(10) + chr(10))[0].strip()}\n")
        parts += ["| key | type | default | |", "|---|---|---|---|"]
        parts += [
            f"| `{field.alias or name}` | {_type(field.annotation)} | {_default(field)} | {_text(field)} |"
            for name, field in model.model_fields.items()
        ]
        parts.append("")
    parts += ["## Protocols\n", "| protocol | settings | from |", "|---|---|---|"]
    parts += [
        f"| `{name}` | {', '.join(f'{key} {_plain(value)}' for key, value in settings.items())} | {source} |"
        for name, (settings, source) in PROTOCOLS.items()
    ]
    return "\n".join(parts) + "\n"


def _type(annotation: Any) -> str:
    """Return a type as people write it.

    >>> _type(int | None), _type(typing.Literal["a", "b"]), _type(dict[str, list[str]])
    ('int or null', 'a, b', 'names with list of str')
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(str(value) for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if kind is type(None) else _type(kind) for kind in inner)
    if origin is dict:
        return f"names with {_type(inner[1])}"
    if origin is list:
        return f"list of {_type(inner[0])}"
    if origin is tuple:
        return f"list of {len(inner)} {_type(inner[0])}"
    if origin is typing.Annotated:
        return _type(inner[0])
    if isinstance(annotation, type) and issubclass(annotation, Partial):
        return "keys, see below"
    return {"Any": "anything"}.get(
        getattr(annotation, "__name__", ""), getattr(annotation, "__name__", str(annotation))
    )


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, Partial):
        return "`{}`"
    if isinstance(field.default, BaseModel):
        return "see below"
    return f"`{_plain(field.default)}`"


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_plain(item) for item in value)}]"
    return str(value) if value != "" else '""'


def _text(field: FieldInfo) -> str:
    limits = [
        f"{sign} {value}" for name, sign in _LIMITS.items() for value in [_limit(field, name)] if value is not None
    ]
    return _plain_markdown(field.description or "") + (f" ({', '.join(limits)})" if limits else "")


_LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def _limit(field: FieldInfo, name: str) -> Any:
    return next((getattr(limit, name) for limit in field.metadata if hasattr(limit, name)), None)


def cli_reference() -> str:
    """Return the reference of all verbs and their arguments, in markdown."""
    parser = build_parser()
    parts = [
        "# Command line\n",
        "Written by `make reference` from the parsers in `autoseg/cli`. `autoseg VERB --help` shows the same.\n",
        *_arguments(parser),
    ]
    for name, verb in _children(parser).items():
        parts += [f"## autoseg {name}\n", *_description(verb.description or ""), *_arguments(verb)]
        for kind, child in _children(verb).items():
            parts += [f"### autoseg {name} {kind}\n", f"{_plain_markdown(_help(verb, kind))}\n", *_arguments(child)]
    return "\n".join(parts).rstrip() + "\n"


def _children(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def _help(parser: argparse.ArgumentParser, name: str) -> str:
    found = [action._choices_actions for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return next(choice.help or "" for choice in found[0] if choice.dest == name)


def _description(text: str) -> list[str]:
    """Return a verb's description; commands, and lines that are set in, such as a list of files, stay as they are."""
    parts: list[str] = []
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        inset = [line for line in lines if line.startswith(("  ", "autoseg "))]
        prose = [line for line in lines if line not in inset]
        parts += ["\n".join(map(_plain_markdown, prose)) + "\n"] if prose else []
        parts += ["```text", *inset, "```\n"] if inset else []
    return parts


def _arguments(parser: argparse.ArgumentParser) -> list[str]:
    """Return a table of a parser's arguments, the required ones marked."""
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._VersionAction | argparse._SubParsersAction):
            continue
        value = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
        if action.choices is not None:
            value = "{" + ",".join(map(str, action.choices)) + "}"
        words = (" ".join(value) if isinstance(value, tuple) else value).replace("|", " or ")  # it ends a cell
        names = ", ".join(action.option_strings)
        shown = f"{names} {words}" if names and action.nargs != 0 else names or words
        required = ", **required**" if action.required and action.option_strings else ""
        rows.append(f"| `{shown}`{required} | {_plain_markdown(action.help or '')} |")
    return ["| argument | |", "|---|---|", *rows, ""] if rows else []


def _plain_markdown(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;").replace("%%", "%")


def pages() -> dict[str, str]:
    """Return every file that is written from code, by its place below the project's folder."""
    settings = fidelity.page((ROOT / fidelity.PAGE).read_text(encoding="utf-8"))
    return {
        SCHEMA: to_json(schema()),
        REFERENCE: config_reference(),
        COMMANDS: cli_reference(),
        fidelity.PAGE: settings,
    }


def write(root: Path) -> None:
    """Write them below the project's folder."""
    for path, text in pages().items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        with atomic(root / path) as file:
            file.write(text)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
