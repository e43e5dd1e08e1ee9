"""Write the ImageNet weights of a network's encoder to a file, on a machine with internet access.

Compute nodes often have none: fetch the weights once on the login node, and give the file to every job by
--weights FILE.
"""

from __future__ import annotations

import argparse
import sys

HELP = "fetch ImageNet weights into a file, for offline nodes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("network", help="the network's name, such as deeplabv3plus-r101c or smp:FPN/mobilenet_v2")
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write (.safetensors)")
    parser.add_argument(
        "--from",
        dest="source",
        default="imagenet",
        metavar="NAME|FILE",
        help="imagenet (from the hub, the default), or a file to convert",
    )


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from safetensors.torch import save

    from autoseg.errors import InputError
    from autoseg.files import atomic, writing
    from autoseg.training.networks import build_network

    if not args.out.endswith(".safetensors"):  # readers tell the format by the file's name
        raise InputError("unknown format", where=f"--out {args.out}", expected="a name that ends in .safetensors")
    encoder = build_network(args.network, 2, args.source).encoder
    assert encoder is not None  # it has taken the weights
    state = {name: value.contiguous() for name, value in encoder.state_dict().items()}
    with writing(args.out), atomic(args.out, "wb") as file:
        file.write(save(state))
    print(f"{args.out}: {len(state)} tensors for the encoder of {args.network}.", file=sys.stderr)
