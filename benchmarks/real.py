"""`make bench-real`: real photographs of pets; are the searched losses worth it, against every rival, over three seeds?

The study is workflow/config/pets.yaml. It needs the data and the weights that the config names, or others:
`make bench-real PETS=DIR WEIGHTS=FILE`. Where they are not there, it says so and does nothing. `--quick` runs the same
study with next to no training, to see that it runs; it writes no section.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from autoseg.data.model import Index
from autoseg.report.comparison import LEVEL, paired
from autoseg.report.results import Results
from autoseg.report.searches import search_so_far
from autoseg.report.verdict import verdicts
from benchmarks.shared import table, write_section

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "workflow/config/pets.yaml"
METRICS = ("mIoU", "BF1", "BIoU")


def places() -> tuple[Path, Path]:
    """Return where the photographs and the weights are, or would be: PETS and WEIGHTS of the environment name them."""
    pets, weights = (os.environ.get(name) for name in ("PETS", "WEIGHTS"))
    return (ROOT / (pets or "data/pets")).resolve(), (ROOT / (weights or "data/mobilenet_v2.safetensors")).resolve()


def config(pets: str, weights: str, quick: bool) -> dict[str, Any]:
    """Return the study with the places of its data and weights."""
    content: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    content["datasets"]["pets"]["options"]["root"] = pets
    for how in (*content["proxies"].values(), *content["retrainings"].values()):
        how["weights"] = weights
        if quick:
            how["training"] = {**how["training"], "iterations": 4}
    if quick:
        content["name"] = "pets-quick"
        plan = content["searches"]["{metric}"]
        plan["search"] |= {"steps": 1, "trials_per_step": 2}
        plan["for"] = {"metric": ["mIoU"]}
        content["tunings"]["ce"] |= {"trials": 2}
        content["figures"] = {}
        wanted = ("ce", "lovasz", "searched:mIoU")
        rows = [row for row in content["tables"]["main"]["rows"] if row["loss"] in wanted]
        rows = [row for row in rows if row.get("retraining", "tuned-mIoU") == "tuned-mIoU"]
        content["tables"]["main"] |= {"rows": rows, "seeds": [0, 1]}
    return content


def main() -> None:
    """Run what is missing, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    pets, weights = places()
    if missing := [place for place in (pets, weights) if not place.exists()]:
        print(
            f"bench-real: {missing[0]} is not here, so nothing was run; the head of {CONFIG.name} says how to fetch it."
        )
        return
    content = config(str(pets), str(weights), quick)
    path = ROOT / f"results/{content['name']}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    command = [sys.executable, "-m", "snakemake", "--cores", "all", "--quiet", "rules", "host", "--rerun-incomplete"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    began = time.perf_counter()
    subprocess.run([*command, "--configfile", str(path)], cwd=ROOT, env=environment, check=True)
    minutes = (time.perf_counter() - began) / 60
    os.chdir(ROOT)
    results = Results.open(path)
    text = section(results, minutes)
    print(text) if quick else write_section("real", text)


def answers(results: Results) -> list[list[str]]:
    """Return what each search could answer with, from the best on the hold-out images to the worst."""
    rows = []
    for metric in results.pipeline.searches:
        found = search_so_far(results.layout.search(metric), results.pipeline.search(metric)).answers()
        ranked = sorted(found, key=lambda answer: -(answer.score or 0.0))
        rows.append([metric, "; ".join(f"{one.origin}: {100 * (one.score or 0.0):.1f}" for one in ranked)])
    return rows


def decided(results: Results) -> list[list[str]]:
    """Return what RankSEG changes in mIoU on the same networks, and how the losses compare under both decisions."""
    main = results.table("main")
    (block,) = main.columns
    read = results.read(dict.fromkeys(main.runs), main.metrics)

    def scores(label: str) -> dict[int, float]:
        row = next(row for row in main.rows if row.label == label)
        runs = [block.run(row, seed) for seed in main.seeds]
        return {run.seed: read.scores[run].scores["mIoU"] for run in runs}

    losses = ("Cross entropy", "Cross entropy + Dice", "Searched mIoU")
    pairs = [(f"{loss}, RankSEG", loss) for loss in losses]
    pairs += [(f"{losses[2]}, RankSEG", f"{loss}, RankSEG") for loss in losses[:2]]
    gains = [(ours, theirs, paired(scores(ours), scores(theirs))) for ours, theirs in pairs]
    return [[ours, theirs, gain.text] for ours, theirs, gain in gains if gain]


def section(results: Results, minutes: float) -> str:
    """Return the section: the table, the differences, and what is said of each searched loss."""
    filled, _ = results.filled("main")
    shown = [filled.metrics.index(metric) for metric in METRICS]
    rows = [[row.label, *(row.blocks[0][k].text for k in shown)] for row in filled.rows]
    found = verdicts(results)
    claims = [
        [one.ours, one.metric, comparison.rival, comparison.difference.text]
        for one in found
        for comparison in dict.fromkeys(filter(None, (one.ce, one.tuned, one.best)))
    ]
    said = "\n".join(f"- {one.headline}" for one in found)
    proxy = results.pipeline.proxy_training(next(iter(results.pipeline.searches)))
    run = results.pipeline.run_training("mobile", 0)
    trainings = sorted({one.trainings for one in found})
    cost = " to ".join(dict.fromkeys(map(str, (trainings[0], trainings[-1]))))
    tuned = results.pipeline.tunings["ce"].trials
    images = len(Index.load(results.layout.index("pets")).entries())
    return f"""## Real photographs

`make bench-real`: `{CONFIG.relative_to(ROOT)}` on {images:,} photographs of Oxford-IIIT Pet (background, cat,
dog; borders are void), {results.pipeline.retrainings["mobile"].network} from ImageNet weights, crops of {run.crop[0]},
{run.iterations} steps of {run.batch_size}, seeds {", ".join(map(str, results.table("main").seeds))}. Each search cost
as much as {cost} trainings of {proxy.iterations} steps, and tuning the learning rate of cross entropy {tuned}.
Percent on the validation images, mean and standard deviation.

{table(["Loss", *METRICS], rows)}

Differences over paired seeds: the mean, its {100 * LEVEL:.0f} % interval by Student's t, and in how many seeds the
searched loss is better. The last rival is the best of all on that metric.

{table(["searched", "on", "against", "difference"], claims)}

{said}

Each search began at the published curves, and in the end its possible answers were trained for {run.iterations} steps:
percent on the hold-out images, the best first, which is the answer.

{table(["search", "answers"], answers(results))}

An earlier study had trials of 64 steps, and its answers were not trained longer: what it searched for mIoU led by 8.5
points on the hold-out after 64 steps, and was 6.1 [−10.3, −1.9] behind cross entropy after 320. That is why trials are
longer now; the validation images are the same, so another data set would say more.

RankSEG decides each image's labels by the best expected IoU, on the same trained networks. mIoU:

{table(["decided by", "against", "difference"], decided(results))}

Minutes on {os.cpu_count()} cores, of what was not there yet: {minutes:.0f}."""


if __name__ == "__main__":
    main()
