"""The blocks of code in README and docs, as a reader meets them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Block(NamedTuple):
    """A fenced block: where, of what language, its text, and the file it is, where the line before names one."""

    page: str
    language: str
    text: str
    file: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fences = re.finditer(r"(?:`([\w.-]+)`:\n\n)?^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(page.relative_to(ROOT).as_posix(), fence[2], fence[3], fence[1]) for fence in fences]


def commands(text: str) -> list[str]:
    """Return the commands of a block, without remarks and the line breaks within them."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = [re.sub(r"\s+#.*$", "", line).strip() for line in joined.splitlines()]
    return [" ".join(command.split()) for line in lines for command in line.split(" && ") if command]
