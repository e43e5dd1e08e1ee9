"""Shared by all benchmarks: timing in turn, and writing a section of `benchmarks/README.md`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

README = Path(__file__).parent / "README.md"


def interleave(
    candidates: Mapping[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the median seconds of each candidate, all measured in turn in each round, after one warm-up.

    With `time.process_time` as the clock, what other processes take from a busy machine is not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        call()
    for _ in range(rounds):
        for name, call in candidates.items():
            start = clock()
            call()
            times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def write_section(name: str, markdown: str) -> None:
    """Print a section and put it between its markers in `benchmarks/README.md`."""
    print(markdown)
    begin, end = f"<!-- bench-{name}:begin -->", f"<!-- bench-{name}:end -->"
    text = README.read_text(encoding="utf-8") if README.exists() else "# Benchmarks\n"
    section = f"{begin}\n{markdown.strip()}\n{end}"
    if begin in text:
        head, rest = text.split(begin)
        text = head + section + rest.split(end)[1]
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    README.write_text(text, encoding="utf-8")
