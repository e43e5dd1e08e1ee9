"""Write the sampler as a package for OptunaHub: the files of ppo2/ here, and the code from autoseg/."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = (
    *(
        "search/sampler.py",
        "search/frozen.py",
        "search/box.py",
        "search/foreign.py",
        "search/ppo2.py",
        "search/guided.py",
        "search/model.py",
    ),
    "errors.py",
)


def assemble(out: Path) -> Path:
    """Write `package/samplers/ppo2` below `out`, anew, and return it."""
    package = out / "package" / "samplers" / "ppo2"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "hub" / "ppo2", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "LICENSE", package / "LICENSE")
    for name in CODE:
        text = (ROOT / "autoseg" / name).read_text(encoding="utf-8")
        text = text.replace("from autoseg.search.", "from .").replace("from autoseg.", "from .")
        (package / Path(name).name).write_text(text, encoding="utf-8")
    _in_the_registrys_style(package)
    return package


def _in_the_registrys_style(package: Path) -> None:
    """Sort the imports and break the lines as the registry's lint asks."""
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--no-cache", "--quiet", "--config", str(ROOT / "hub" / "registry-ruff.toml"), str(package)]
    for verb in (["check", "--fix"], ["format"]):
        subprocess.run([*ruff, *verb, *options], check=True)


if __name__ == "__main__":
    print(assemble(Path(sys.argv[1] if len(sys.argv) > 1 else "dist/optunahub")))
