"""From a folder of images and masks to a loss searched for one metric on it, in Python.

    python examples/search_own_folder.py                                        # on made-up images, a few minutes
    python examples/search_own_folder.py --root my_images --classes classes.txt  # on yours

docs/own-data.md does the same on the command line, and says what the folder may look like and how to add a metric.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

from autoseg.data import folder
from autoseg.data.prepare import prepare
from autoseg.data.split import make_split
from autoseg.data.synthetic import CLASSES, scene
from autoseg.losses.surrogate_loss import SurrogateLoss
from autoseg.search.runner import run
from autoseg.search.settings import Search
from autoseg.training.settings import Task, Training
from autoseg.training.trial import ProxyObjective


def make_up(root: Path, images: int) -> Path:
    """Write scenes as images/{train,val} and masks/{train,val}, in the place of your own; return the class list."""
    for split, count in (("train", images), ("val", max(1, images // 4))):
        for number in range(count):
            for kind, picture in zip(("images", "masks"), scene(96, 0, split, number), strict=True):
                path = root / kind / split / f"{number:04d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture).save(path)
    (root / "classes.txt").write_text("".join(f"{info.name}\n" for info in CLASSES))
    return root / "classes.txt"


def main() -> None:
    """Prepare, split, search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="your images and masks (default: made-up ones)")
    parser.add_argument("--classes", type=Path, help="your class list")
    parser.add_argument("--out", type=Path, default=Path("results/own"))
    parser.add_argument("--metric", default="mIoU")
    parser.add_argument("--images", type=int, default=80, help="how many to make up")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--trials", type=int, default=8, help="in a step")
    parser.add_argument("--iterations", type=int, default=60, help="of a trial's training")
    parser.add_argument("--workers", type=int, default=2, help="trials at once")
    args = parser.parse_args()

    root = args.root or args.out / "my_images"
    classes = args.classes or make_up(root, args.images)
    data = args.out / "data"
    prepared = prepare(folder.find(root, classes), data, short_side=96)  # twice the proxy task's crop
    make_split(prepared.index, hold_out=0.25).save(data / "split.json")

    size = {"crop": (48, 48), "short_side": 48}
    settings = Training.of_protocol(
        "paper-proxy", **size, iterations=args.iterations, batch_size=8, lr=0.05, head_lr=1.0, loaders=0
    )
    task = Task(data=str(data), network="small", training=settings)
    search = Search(name="own", metric=args.metric, preset="recommended", steps=args.steps, trials_per_step=args.trials)
    found = run(args.out / "search", search, ProxyObjective(task), workers=args.workers)
    print(f"{args.out}/search/surrogate.json: {found.source}")
    print(SurrogateLoss.load(args.out / "search" / "surrogate.json"))


if __name__ == "__main__":
    main()
