"""What goes wrong in the cluster's tests: a plugin that every `autoseg` of a job imports first ($AUTOSEG_PLUGINS).

In the folder $AUTOSEG_FAULTS it notes where it runs (`seen.jsonl`), and does what a fault says whose words are all in
its command line: {"words": ["train", "ce"], "do": "hang"}. A fault that hangs does so once. A fault that holds does so
until it is no longer among the faults. A fault that stamps gives written files the time of the process's own clock, as
file systems do that leave it to their clients.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = "AUTOSEG_FAULTS"
kept: list[bytearray] = []


def note(folder: Path) -> None:
    """Add a line on this process."""
    names = {"job": "SLURM_JOB_ID", "node": "SLURMD_NODENAME", "gpus": "CUDA_VISIBLE_DEVICES"}
    line = {"command": sys.argv[1:], "clock": time.time(), **{key: os.environ.get(name) for key, name in names.items()}}
    with open(folder / "seen.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def happen(folder: Path, fault: dict[str, Any]) -> None:
    """Let something go wrong."""
    if fault["do"] == "eat":  # more memory than a first attempt has
        kept.append(bytearray(os.urandom(1 << 20)) * 900)
    elif fault["do"] == "hang":
        try:
            (folder / f"hung {fault['words']}".replace("/", "_")).touch(exist_ok=False)
        except FileExistsError:
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    elif fault["do"] == "exit":
        sys.exit("a fault of the test")
    elif fault["do"] == "stamp":
        replace = os.replace

        def stamped(source: Any, target: Any) -> None:
            os.utime(source, (time.time(), time.time()))
            replace(source, target)

        os.replace = stamped
    elif fault["do"] == "hold":
        while fault in listed(folder):
            time.sleep(0.1)


def listed(folder: Path) -> list[dict[str, Any]]:
    """Return what is to go wrong now."""
    path = folder / "faults.json"
    return json.loads(path.read_text()) if path.exists() else []


def main() -> None:
    """Note, and look for faults."""
    folder = Path(os.environ[FOLDER])
    if "SLURM_JOB_ID" in os.environ:
        note(folder)
        for fault in listed(folder):
            if all(any(word in given for given in sys.argv) for word in fault["words"]):
                happen(folder, fault)


if FOLDER in os.environ:
    main()
