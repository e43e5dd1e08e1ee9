"""Tests against the real frameworks: `pytest.mark.frameworks("lightning", ...)` names the packages that a test needs.

Without them a test is skipped and says so. `make test-frameworks` sets AUTOSEG_FRAMEWORKS=required: there a missing
package, or another version than the pinned one, is a failure.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

import pytest
from example_files import ROOT

PINS = [
    line.split("==")
    for file in ("envs/constraints.txt", "envs/frameworks.txt")
    for line in (ROOT / file).read_text().splitlines()
    if "==" in line
]
PINNED = {name.lower().replace("_", "-"): pin for name, pin in PINS}


@pytest.fixture(autouse=True)
def _packages(request: pytest.FixtureRequest) -> None:
    required = os.environ.get("AUTOSEG_FRAMEWORKS") == "required"
    for mark in request.node.iter_markers("frameworks"):
        for package in mark.args:
            try:
                found = version(package)
            except PackageNotFoundError:
                found = "none"
            if required and found != PINNED[package]:
                pytest.fail(f"{package}: found {found}, pinned {PINNED[package]}")
            if found == "none":
                pytest.skip(f"{package} is not installed; `make test-frameworks` installs it")
