"""Fetch the ImageNet weights of a network's encoder into a file, on a machine with network.

Compute nodes are often offline: fetch once on the login node, and give the file to every job by --weights FILE.
"""

from __future__ import annotations

import argparse
import sys

HELP = "fetch ImageNet weights into a file, for offline nodes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("network", help="the network's name, such as deeplabv3plus-r101")
    parser.add_argument("--out", required=True, metavar="FILE", help="where to write them (.safetensors)")
    parser.add_argument("--from", dest="source", default="imagenet", help="the hub (imagenet), or a file to convert")


def run(args: argparse.Namespace) -> None:
    """Run this verb."""
    from safetensors.torch import save

    from autoseg.errors import InputError
    from autoseg.files import atomic, writing
    from autoseg.networks import build_network, encoder_weights, load_encoder_weights

    if not args.out.endswith(".safetensors"):  # by the name the file is known for what it is when it is read
        raise InputError(f"--out {args.out}: the name must end in .safetensors.")
    network = build_network(args.network, 2)
    load_encoder_weights(network, encoder_weights(args.network, args.source), args.source)
    state = {name: value.contiguous() for name, value in network.encoder.state_dict().items()}
    with writing(args.out), atomic(args.out, "wb") as file:
        file.write(save(state))
    print(f"{args.out}: {len(state)} tensors for the encoder of {args.network}.", file=sys.stderr)
