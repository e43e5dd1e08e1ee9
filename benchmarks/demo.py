"""`make bench-demo`: the demo with three seeds, and how often a searched loss beats the others on its own metric."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import yaml
from PIL import Image

from autoseg.files import read_json
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.outputs import Run
from benchmarks.shared import table, write_section

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1, 2)  # settled on with seeds from 100 up
METRICS = ("mIoU", "BIoU", "mAcc")


def name_of(seed: int) -> str:
    """Return where the results of a seed go: the demo itself has seed 0."""
    return f"demo-{seed}" if seed else "demo"


def main() -> None:
    """Run what is missing, and write the section."""
    config = yaml.safe_load((ROOT / "workflow/config/demo.yaml").read_text())
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    minutes: list[str] = []
    scores: dict[str, list[dict[str, float]]] = {}
    for seed in SEEDS:
        command = [
            sys.executable,
            "-m",
            "snakemake",
            "--cores",
            "all",
            "--quiet",
            "rules",
            "host",
            "--rerun-incomplete",
        ]
        new, began = not (ROOT / f"results/{name_of(seed)}").exists(), time.perf_counter()
        subprocess.run(
            [*command, "--config", f"seed={seed}", f"name={name_of(seed)}"], cwd=ROOT, env=environment, check=True
        )
        if new:
            minutes.append(f"{(time.perf_counter() - began) / 60:.1f}")
        pipeline = load_pipeline({**config, "seed": seed}, "demo.yaml")
        for row in pipeline.tables["main"].rows:
            run = Run("scenes", "small", row.loss, seed)
            found = read_json(ROOT / f"results/{name_of(seed)}/runs/{run.name}/scores.json")["scores"]
            scores.setdefault(row.label or row.loss, []).append(found)

    gallery = Image.open(ROOT / "results/demo/figures/gallery.png").convert("RGB")
    gallery.quantize(128, dither=Image.Dither.NONE).save(ROOT / "docs/demo.png", optimize=True)  # README's picture

    def spread(values: list[float]) -> str:
        return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"

    rows = [[label, *(spread([found[m] for found in runs]) for m in METRICS)] for label, runs in scores.items()]
    claims = []
    for metric in METRICS:
        for other in ("Cross entropy", f"Naive {metric}"):
            gains = [a[metric] - b[metric] for a, b in zip(scores[f"Searched {metric}"], scores[other], strict=True)]
            wins = sum(gain > 0 for gain in gains)
            claims.append([f"Searched {metric}", other, metric, f"{wins} of {len(SEEDS)}", spread(gains)])
    write_section(
        "demo",
        f"""## The demo

`make bench-demo`: `workflow/config/demo.yaml` with seeds {", ".join(map(str, SEEDS))} (scenes, split, searches and
networks); its settings were chosen on seeds from 100 up. Percent on the validation images, mean and standard deviation.

{table(["Loss", *METRICS], rows)}

{table(["searched", "against", "on", "better", "by"], claims)}

Minutes on {os.cpu_count()} cores, of those that were not yet there: {", ".join(minutes) or "none"}.""",
    )


if __name__ == "__main__":
    main()
