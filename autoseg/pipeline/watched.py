"""Run the pipeline of one config under a single line of progress: what is done, and the time that is left."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autoseg.errors import MOST_LINES, InputError
from autoseg.pipeline import project, resume
from autoseg.pipeline.config import Pipeline
from autoseg.pipeline.layout import Layout

LOG = Path("snakemake.log")
SCORED = "scored"
_EVERY = 1.0  # seconds between two looks at the results
_LINES = 60.0  # seconds between two lines of a log
_TRUSTED = 20.0  # seconds of work after which the time that is left follows the work, not the plan
_LAST_LINES = 6
_OURS = "autoseg: "  # begins what the project's own rules say


@dataclass(frozen=True)
class Work:
    """Files of one kind that the run makes: what is said of them, how many, where, and the seconds of each."""

    what: str
    count: int
    folder: Path
    pattern: str
    seconds: float
    end: Path | None = None
    """A file that is made when there is no more to do, with fewer than counted: answers of a search may be equal."""

    def done(self) -> int:
        """Return how many are there."""
        if self.end is not None and self.end.exists():
            return self.count
        return min(sum(1 for _ in self.folder.rglob(self.pattern)), self.count) if self.folder.is_dir() else 0


def work(pipeline: Pipeline, seconds: Mapping[str, float]) -> list[Work]:
    """Return all work of a pipeline.

    `seconds`: of a `step` of training (that of a loss by its name), a job's `start`, an `image` scored.
    """
    layout = Layout.named(pipeline.name)
    step, start = seconds.get("step", 0.1), seconds.get("start", 5.0)
    found = []
    for name in pipeline.searches:
        search, training = pipeline.search(name), pipeline.proxy_training(name)
        trials = search.total_steps * search.settings.trials_per_step
        count, place = trials + search.most_rescored, Path(layout.search(name))
        alike = (f"{kind}:{search.metric}" for kind in ("published", "naive"))  # losses of such steps
        of_step = next((seconds[loss] for loss in alike if loss in seconds), step)
        each = of_step * training.iterations * (trials + search.rescored_trainings) / count
        end = Path(layout.surrogate(name))
        found.append(Work(f"search for {search.metric}", count, place, "trial-*.json", each, end))
    for name, tuning in pipeline.tunings.items():
        each = seconds.get(tuning.loss, step) * pipeline.tuning_training(name).iterations
        found.append(Work(f"tuning of {tuning.loss}", tuning.trials, Path(layout.tuning(name)), "trial-*.json", each))
    runs = pipeline.runs.values()
    if runs:
        longest = max(pipeline.run_training(run.retraining, run.seed).iterations for run in runs)
        place = Path(layout.runs)
        found.append(
            Work(
                "trainings for the table", len({run.trained for run in runs}), place, "run.json", step * longest + start
            )
        )
        found.append(Work(SCORED, len(runs), place, "scores.json", start))
    return found


def command(arguments: Sequence[str]) -> list[str]:
    """Return Snakemake's command line on the project's rules."""
    return [sys.executable, "-m", "snakemake", "--snakefile", str(project.source() / "Snakefile"), *arguments]


def run(pipeline: Pipeline, arguments: Sequence[str], seconds: Mapping[str, float], places: int) -> None:
    """Run Snakemake in this folder to its end, after what an earlier start has left is put in order."""
    given = command(arguments)[3:]
    resume.prepare(pipeline.name, given)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    with open(LOG, "a", encoding="utf-8") as log:
        if any(Path(".snakemake/locks").glob("*")):
            subprocess.run([*command(arguments), "--unlock"], stdout=log, stderr=log, env=environment, check=False)
        begins = log.tell()
        process = subprocess.Popen(
            command(arguments), stdout=log, stderr=subprocess.STDOUT, env=environment, preexec_fn=_die_with_parent
        )
        try:
            _watch(process, work(pipeline, seconds), places)
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    if process.returncode:
        raise InputError(_reason(begins), where=f"{Path.cwd() / LOG}", cure="mend it, and the same command goes on")


def _die_with_parent() -> None:
    """Let Snakemake end with this process, however that ends: the next start puts in order what is left."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of prctl(2)


def _watch(process: subprocess.Popen[bytes], parts: list[Work], places: int) -> None:
    began, last = time.monotonic(), -_LINES
    total = sum(part.count * part.seconds for part in parts) / places
    before = sum(part.done() * part.seconds for part in parts) / places
    terminal = sys.stderr.isatty()
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_EVERY)
        over = process.poll() is not None
        now = time.monotonic()
        if over or terminal or now - last >= _LINES:
            last = now
            counts = [(part, part.done()) for part in parts]
            done = sum(number * part.seconds for part, number in counts) / places
            columns = shutil.get_terminal_size().columns - 1 if terminal else None
            line = _line(counts, done, total, left(total - done, now - began, done - before), columns)
            print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
        if over:
            if terminal:
                print(file=sys.stderr)
            return


def left(planned: float, spent: float, done: float) -> float:
    """Return the seconds that are left: as planned, and after a while as the work went until now.

    >>> left(100.0, 5.0, 1.0), left(100.0, 60.0, 40.0)
    (100.0, 150.0)
    """
    return planned * spent / done if spent > _TRUSTED and done > _TRUSTED / 2 else planned


def _line(
    counts: Sequence[tuple[Work, int]], done: float, total: float, seconds: float, columns: int | None = None
) -> str:
    """Return the line of progress; where it is too long for a terminal, only with what has begun and is not done."""
    share = 100 * min(done / total, 1) if total else 100
    begun = [(part, number) for part, number in counts if 0 < number < part.count]
    line = ""
    for parts in (counts, begun, begun[:1]):
        shown = ", ".join(f"{part.what} {number}/{part.count}" for part, number in parts)
        line = f"{share:3.0f} %, {_minutes(seconds)} left{': ' if shown else ''}{shown}"
        if columns is None or len(line) <= columns:
            break
    return line[:columns]


def _minutes(seconds: float) -> str:
    """Return a time in words.

    >>> _minutes(40), _minutes(1000), _minutes(9000)
    ('40 s', '17 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _reason(begins: int) -> str:
    """Return why Snakemake failed: what the first job that failed says at the end of its log, or Snakemake itself."""
    with open(LOG, encoding="utf-8", errors="replace") as file:
        file.seek(begins)
        text = file.read()
    for path in _logs(text):
        said = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
        if said:
            return f"a job failed ({path}):\n" + "\n".join(said[-_LAST_LINES:])
    lines = [line for line in text.splitlines() if line.strip()]
    ours = max((k for k, line in enumerate(lines) if line.startswith(_OURS)), default=0)
    if lines and lines[ours].startswith(_OURS) and len(lines) - ours <= MOST_LINES:
        return "\n".join(lines[ours:]).removeprefix(_OURS)  # the check before the first job
    return "\n".join(["Snakemake failed:", *lines[-_LAST_LINES:]])


def _logs(text: str) -> Iterator[Path]:
    for found in re.finditer(r"Error in rule .*?\n(?:.*\n)*?\s+log: (\S+)", text):
        path = Path(found[1].rstrip(","))
        if path.is_file():
            yield path
