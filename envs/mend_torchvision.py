"""Lets torchvision be imported beside a CPU-only torch in the virtual environments of this repository.

`make venv` and `make test-frameworks` run it once. The torchvision of the package index is built against CUDA; beside a
CPU-only torch, importing it fails, and so do smp, timm, Lightning, torchmetrics and transformers, which import it. A
line of a .pth file, which Python reads at its start, declares what is missing as soon as torchvision is imported. An
environment whose torchvision imports is left as it is.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

HOOK = '''"""Written by envs/mend_torchvision.py of autoseg: before torchvision is imported, declares its operators."""

import sys


class BeforeTorchvision:
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import autoseg.training._torchvision


sys.meta_path.insert(0, BeforeTorchvision())
'''


def imports(*modules: str) -> bool:
    """Tell whether a fresh Python can import the modules."""
    command = [sys.executable, "-c", f"import {', '.join(modules)}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def main() -> None:
    """Write the two files, where they are needed."""
    if sys.prefix == sys.base_prefix:
        raise SystemExit("envs/mend_torchvision.py: this Python is of no virtual environment; nothing was changed")
    if imports("torchvision"):
        return
    folder = Path(sysconfig.get_path("purelib"))
    (folder / "autoseg_before_torchvision.py").write_text(HOOK)
    (folder / "autoseg_before_torchvision.pth").write_text("import autoseg_before_torchvision\n")
    if not imports("torchvision"):
        raise SystemExit(
            "envs/mend_torchvision.py: torchvision cannot be imported; see `python -c 'import torchvision'`"
        )


if __name__ == "__main__":
    main()
