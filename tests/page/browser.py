"""Chromium without a window, told what to do over WebDriver (JSON over HTTP): no package beside Debian's two."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)


def why_not() -> str | None:
    """Return why no browser can be started here; None: it can."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return (
        f"no {' and no '.join(missing)} on this machine: apt-get install chromium chromium-driver" if missing else None
    )


def install() -> None:
    """Install what is missing, where that can be done; else say in a line why not, and the test is skipped."""
    if why_not() is None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"the page is not tested: {why_not()} (only root on Debian is served here)")
        return
    packages = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "chromium-driver"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], packages):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"the page is not tested: {' '.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}")
            return


class Browser:
    """A session of the browser."""

    def __init__(self, port: int, profile: str) -> None:
        self.address = f"http://127.0.0.1:{port}/session"
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        found = self._call("POST", "", {"capabilities": {"alwaysMatch": {"browserName": "chrome", **wanted}}})
        self.address += f"/{found['sessionId']}"

    def _call(self, method: str, path: str, content: Any = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode(errors="replace")) from None

    def open(self, path: Path, width: int, height: int = 900) -> None:
        """Open a file in a window of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": size})
        self._call("POST", "/url", {"url": path.resolve().as_uri()})

    def prefer(self, scheme: str) -> None:
        """Let the reader prefer `light` or `dark` pages."""
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self._call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": media})

    def run(self, script: str) -> Any:
        """Return what a script returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": []})

    def messages(self) -> list[str]:
        """Return what the page complained of since it was asked last."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since it was asked last, without what the page itself holds."""
        entries = self._call("POST", "/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [
            address for address in asked if not address.startswith(("data:", "chrome:", "chrome-untrusted:"))
        ]  # its own tab

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        params = {"captureBeyondViewport": True}
        found = self._call("POST", "/goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": params})
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """End the session."""
        self._call("DELETE", "")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser of its own, and end it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        try:
            assert driver.stdout is not None
            started = (re.search(r"started successfully on port (\d+)", line) for line in driver.stdout)
            port = next(int(match[1]) for match in started if match)
            session = Browser(port, profile)
            try:
                yield session
            finally:
                session.close()
        finally:
            driver.terminate()
            driver.wait(30)


if __name__ == "__main__":
    install()
