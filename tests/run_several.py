"""Run several `autoseg` commands, each a JSON list, in the same processes of a torchrun."""

from __future__ import annotations

import json
import sys

import torch.distributed as dist

from autoseg.cli import main

if __name__ == "__main__":
    dist.init_process_group("gloo")
    codes = [main(json.loads(command)) for command in sys.argv[1:]]
    dist.destroy_process_group()
    sys.exit(max(codes))
