"""Show a surrogate loss, or export it: a published one (mIoU), zoo:NAME, naive:METRIC, a surrogate.json, or a sum.

autoseg loss show mIoU                                 shows its curves in the terminal
autoseg loss show results/demo/searches/mIoU/surrogate.json --out mIoU.png
autoseg loss export mIoU --out my_loss.py              a Python file that needs only torch
autoseg loss export mIoU --out my_loss.json            its parameters, for SurrogateLoss.load
autoseg loss list                                      all surrogates that have a name, and what they scored
autoseg loss list NSD                                  those for one metric
autoseg loss add surrogate.json --name NSD             gives one a name of your own: zoo:NSD
"""

from __future__ import annotations

import argparse

HELP = "show a surrogate loss, export it, or name it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    what = parser.add_subparsers(dest="what", metavar="show|export|list|add", required=True)
    loss = "a published surrogate such as mIoU, zoo:NAME, naive:METRIC, a surrogate.json, or a sum: 'mIoU + 0.5 * BIoU'"
    show = what.add_parser("show", help="show its curves in the terminal, or draw them")
    show.add_argument("loss", metavar="NAME|FILE", help=loss)
    show.add_argument(
        "--out", metavar="FILE", help="draw the curves and operators to this .png, .svg or .pdf file instead"
    )
    export = what.add_parser("export", help="write it as a Python file that needs only torch, or as JSON")
    export.add_argument("loss", metavar="NAME|FILE", help=loss)
    export.add_argument("--out", metavar="FILE", required=True, help="the file to write: .py or .json")
    listing = what.add_parser("list", help="list the zoo and the published surrogates, and what they scored")
    listing.add_argument("only", nargs="*", metavar="NAME", help="only these: zoo:mDice, or a metric such as NSD")
    add = what.add_parser("add", help="add a surrogate.json, or an entry with its evidence, to your own zoo")
    add.add_argument("file", metavar="FILE", help="a surrogate.json, or a file of another zoo")
    add.add_argument("--name", help="its name (default: the entry's, or the metric)")
    add.add_argument("--replace", action="store_true", help="replace an entry of that name")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from pathlib import Path

    from autoseg.errors import InputError
    from autoseg.files import atomic, writing
    from autoseg.losses.export import as_python
    from autoseg.losses.names import parse_loss
    from autoseg.losses.show import describe, find_surrogates

    if args.what == "list":
        from autoseg.report.zoo import describe as describe_zoo

        print(describe_zoo(args.only), end="")
        return
    if args.what == "add":
        from autoseg.losses.zoo import add

        print(add(args.file, args.name, replace=args.replace))
        return
    terms = find_surrogates(args.loss)
    suffix = Path(args.out).suffix.lower() if args.out else ""
    if args.what == "show" and not args.out:
        print(describe(args.loss), end="")
        return
    expected = (".png", ".svg", ".pdf") if args.what == "show" else (".py", ".json")
    if suffix not in expected:
        raise InputError(f"found {args.out}", where="--out", expected=f"a name that ends in {' or '.join(expected)}")
    if suffix != ".py" and len(terms) > 1:
        raise InputError(
            f"'{args.loss}' is a sum, and this kind of file holds one surrogate", cure="give its terms one by one"
        )
    with writing(args.out):
        if args.what == "show":
            from autoseg.report import drawing
            from autoseg.report.figures import surrogate_figure

            loss = terms[0][1]
            with drawing.style(), atomic(args.out, "wb") as file:
                figure = surrogate_figure(loss)
                named = parse_loss(args.loss, bare="published")[0].kind != "file"
                figure.suptitle(args.loss if named else f"Surrogate of {loss.metric}", fontsize=10)
                file.write(drawing.picture(figure, suffix[1:]))
        elif suffix == ".json":
            terms[0][1].save(args.out)
        else:
            text = as_python(args.loss)
            with atomic(args.out) as file:
                file.write(text)
