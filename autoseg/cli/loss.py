"""Show a loss, or write it out for use elsewhere: a published one (mIoU), naive:METRIC, a surrogate.json, or a sum.

autoseg loss show mIoU                                 its curves in the terminal
autoseg loss show results/demo/searches/mIoU/surrogate.json --out mIoU.png
autoseg loss export mIoU --out my_loss.py              a file that needs torch alone
autoseg loss export mIoU --out my_loss.json            its parameters, for SurrogateLoss.load
"""

from __future__ import annotations

import argparse

HELP = "show a surrogate loss, or export it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    what = parser.add_subparsers(dest="what", metavar="show|export", required=True)
    loss = "a published surrogate such as mIoU, naive:METRIC, a surrogate.json, or a sum: 'mIoU + 0.5 * BIoU'"
    show = what.add_parser("show", help="its curves in the terminal, or as a picture")
    show.add_argument("loss", metavar="NAME|FILE", help=loss)
    show.add_argument("--out", metavar="FILE", help="draw curves and logic to this .png, .svg or .pdf instead")
    export = what.add_parser("export", help="as a Python file that needs torch alone, or as JSON")
    export.add_argument("loss", metavar="NAME|FILE", help=loss)
    export.add_argument("--out", metavar="FILE", required=True, help="where to write: .py or .json")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from pathlib import Path

    from autoseg import loss_text
    from autoseg.errors import InputError
    from autoseg.files import atomic, writing

    terms = loss_text.find_surrogates(args.loss)
    suffix = Path(args.out).suffix.lower() if args.out else ""
    if args.what == "show" and not args.out:
        print(loss_text.describe(args.loss), end="")
        return
    expected = (".png", ".svg", ".pdf") if args.what == "show" else (".py", ".json")
    if suffix not in expected:
        raise InputError(f"--out {args.out}: expected a name that ends in {' or '.join(expected)}.")
    if suffix != ".py" and len(terms) > 1:
        raise InputError(
            f"'{args.loss}' is a sum; a picture or a JSON file holds one surrogate: take the terms one by one."
        )
    with writing(args.out):
        if args.what == "show":
            from autoseg.paper import drawing
            from autoseg.paper.figures import surrogate_figure

            loss = terms[0][1]
            with drawing.style(), atomic(args.out, "wb") as file:
                figure = surrogate_figure(loss)
                figure.suptitle(
                    f"Surrogate of {loss.metric}" if args.loss.endswith(".json") else args.loss, fontsize=10
                )
                file.write(drawing.picture(figure, suffix[1:]))
        elif suffix == ".json":
            terms[0][1].save(args.out)
        else:
            text = loss_text.as_python(args.loss)
            with atomic(args.out) as file:
                file.write(text)
