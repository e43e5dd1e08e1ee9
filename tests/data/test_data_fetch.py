"""`autoseg fetch`: from a server on this machine; killed, broken off, wrong bytes, no room, archives that escape."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest
from data_trees import pets_tree, voc_tree

from autoseg.cli import main
from autoseg.data import fetch
from autoseg.data.fetch import ARCHIVES, Archive


class Handler(http.server.BaseHTTPRequestHandler):
    """Sends files with ranges, and notes what it was asked for; slow, broken off or without ranges, if told so."""

    def do_GET(self):
        server = self.server
        server.asked.append(self.headers.get("Range"))
        path = server.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        content, start = path.read_bytes(), 0
        if server.ranges and (wanted := self.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        rest = content[start:]
        if server.broken:
            rest = rest[: server.broken.pop(0)]
        for place in range(0, len(rest), 4096):
            try:
                self.wfile.write(rest[place : place + 4096])
                self.wfile.flush()
            except OSError:
                return
            time.sleep(server.pause)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.folder, served.asked, served.broken, served.ranges, served.pause = tmp_path / "server", [], [], True, 0.0
    served.folder.mkdir()
    served.url = f"http://127.0.0.1:{served.server_port}"
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield served
    served.shutdown()
    served.server_close()


def publish(server, name: str, tree: Path, members: list[str]) -> Archive:
    """Pack folders of a tree as the official archive has them."""
    path = server.folder / name
    with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as file:
        for member in members:
            file.add(tree / member, member)
    return Archive(f"https://example.invalid/{name}", hashlib.md5(path.read_bytes()).hexdigest())


@pytest.fixture
def archives(server, tmp_path, monkeypatch):
    tree = pets_tree(tmp_path / "made")
    found = (
        publish(server, "annotations.tar.gz", tree, ["annotations"]),
        publish(server, "images.tar.gz", tree, ["images"]),
    )
    monkeypatch.setitem(ARCHIVES, "pets", found)
    monkeypatch.setattr(fetch, "_PAUSE", 0.0)
    return found


def run(root: Path, source: str, dataset: str = "pets") -> int:
    return main(["fetch", dataset, "--root", str(root), "--from", source, "--threads", "1"])


def test_pets_are_fetched_unpacked_and_examined_once(tmp_path, server, archives, capsys):
    root = tmp_path / "a/pets"
    assert run(root, server.url) == 0
    said = capsys.readouterr()
    assert said.out.endswith("pets: no problem found.\n")
    assert "images.tar.gz: 100%" in said.err
    assert (root / "images/pug_10.jpg").read_bytes() == (tmp_path / "made/images/pug_10.jpg").read_bytes()
    assert not list(root.glob("[!.]*.gz*"))
    assert run(root, server.url + "/") == 0
    assert len(server.asked) == 2
    assert "images.tar.gz was fetched before; remove " in capsys.readouterr().err


def test_voc_and_sbd_are_fetched_into_one_folder_in_any_order(tmp_path, server, monkeypatch, capsys):
    tree = voc_tree(tmp_path / "made", "torchvision")
    (tree / "benchmark_RELEASE").mkdir()
    (tree / "sbd").rename(tree / "benchmark_RELEASE/dataset")
    monkeypatch.setitem(ARCHIVES, "voc", (publish(server, "VOC.tar", tree, ["VOCdevkit"]),))
    monkeypatch.setitem(ARCHIVES, "sbd", (publish(server, "benchmark.tgz", tree, ["benchmark_RELEASE"]),))
    root = tmp_path / "sets"
    assert run(root, server.url, "sbd") == 0
    assert f"`autoseg fetch voc --root {root}`" in capsys.readouterr().out
    assert run(root, server.url, "voc") == 0
    assert "train has 4 images, the published set 10,582" in capsys.readouterr().out
    assert run(tmp_path / "alone", server.url, "voc") == 0
    assert "train has 2 images, the published set 1,464" in capsys.readouterr().out


def test_a_killed_fetch_goes_on_where_it_was(tmp_path, server, archives, capsys):
    server.pause = 0.4
    root = tmp_path / "pets"
    arguments = ["fetch", "pets", "--root", str(root), "--from", server.url]
    code = (
        "from autoseg.data.fetch import ARCHIVES, Archive; from autoseg.cli import main\n"
        f"ARCHIVES['pets'] = ({', '.join(map(repr, archives))},)\nmain({arguments!r})"
    )
    part = root / "images.tar.gz.part"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size > 0):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    have = part.stat().st_size
    assert 0 < have < (server.folder / "images.tar.gz").stat().st_size
    server.pause = 0.0
    assert run(root, server.url) == 0
    assert server.asked[-1] == f"bytes={have}-"
    assert (root / "images/pug_10.jpg").exists()


def test_a_connection_that_breaks_is_made_again_and_one_that_gives_nothing_is_a_sentence(
    tmp_path, server, archives, capsys
):
    server.broken = [100, 50, 0, 100]  # the third time nothing at all
    assert run(tmp_path / "pets", server.url) == 0
    assert server.asked[:5] == [None, "bytes=100-", "bytes=150-", "bytes=150-", "bytes=250-"]
    capsys.readouterr()
    server.broken = [100, 0, 0, 0, 0, 0]
    assert run(tmp_path / "other", server.url) == 2
    *retried, said = capsys.readouterr().err.splitlines()
    assert sum("does not answer; trying again in" in line for line in retried) == 4
    assert "the server cannot be reached, after 0.0 MB (the connection ended" in said
    assert "the same command again, which continues" in said
    assert run(tmp_path / "other", server.url) == 0
    assert server.asked[-2] == "bytes=100-"


def test_a_server_without_ranges_or_with_another_file_begins_anew(tmp_path, server, archives):
    root = tmp_path / "pets"
    root.mkdir()
    (root / "annotations.tar.gz.part").write_bytes(b"of another file")
    (root / "images.tar.gz.part").write_bytes((server.folder / "images.tar.gz").read_bytes() + b"too long")
    assert run(root, server.url) == 0
    assert server.asked[:2] == ["bytes=15-", None]
    server.ranges, root = False, tmp_path / "again"
    root.mkdir()
    (root / "images.tar.gz.part").write_bytes(b"of another file")
    assert run(root, server.url) == 0


def test_bytes_with_another_checksum_are_refused_and_not_unpacked(tmp_path, server, archives, capsys):
    path, root = server.folder / "images.tar.gz", tmp_path / "pets"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert run(root, server.url) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{server.url}/images.tar.gz: the archive has the MD5 checksum " in said
    assert f"expected {archives[1].md5}; it was removed; try again later" in said
    assert not (root / "images").exists()
    assert not list(root.glob("images*"))
    (root / "images.tar.gz").write_bytes(b"copied here by hand")
    assert run(root, server.url) == 2
    assert "remove the file, and run the same command again" in capsys.readouterr().err


def test_archives_that_were_copied_here_or_to_a_folder_need_no_server(tmp_path, server, archives):
    assert run(tmp_path / "pets", str(server.folder)) == 0
    assert (server.folder / "images.tar.gz").exists()
    root = tmp_path / "by hand"
    root.mkdir()
    for archive in archives:
        (root / archive.name).write_bytes((server.folder / archive.name).read_bytes())
    assert run(root, server.url) == 0
    assert not server.asked
    assert not (root / "images.tar.gz").exists()


def test_a_full_disk_is_a_sentence_and_the_same_command_goes_on(tmp_path, server, archives, monkeypatch, capsys):
    root, usage = tmp_path / "pets", namedtuple("usage", "total used free")
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: usage(10, 10, 1000))
    assert run(root, server.url) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "no room left: archive and images need " in said
    assert "free some and run the same command again, which continues." in said
    monkeypatch.undo()


@pytest.mark.parametrize("target", ["../outside.txt", "/outside.txt", "link/outside.txt"])
def test_an_archive_that_leaves_the_folder_is_refused(tmp_path, server, monkeypatch, capsys, target):
    path = server.folder / "evil.tar"
    with tarfile.open(path, "w") as file:
        if target.startswith("link"):
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
            file.addfile(link)
        info = tarfile.TarInfo(target)
        info.size = 4
        file.addfile(info, io.BytesIO(b"evil"))
    archive = Archive("https://example.invalid/evil.tar", hashlib.md5(path.read_bytes()).hexdigest())
    monkeypatch.setitem(ARCHIVES, "pets", (archive,))
    code = run(tmp_path / "deep/pets", server.url)
    said = capsys.readouterr().err
    assert code == 2
    if target.startswith("/"):  # taken as a path below the folder
        assert (tmp_path / "deep/pets/outside.txt").exists()
    else:
        assert "evil.tar: a member of the archive would be written elsewhere" in said
    assert not os.path.exists("/outside.txt")
    assert not [path for path in tmp_path.rglob("outside.txt") if "pets" not in path.parts]


def test_what_is_no_archive_address_or_folder_is_answered(tmp_path, server, monkeypatch, capsys):
    monkeypatch.setattr(fetch, "_PAUSE", 0.0)
    path = server.folder / "annotations.tar.gz"
    path.write_bytes(b"no archive")
    archive = Archive("https://example.invalid/annotations.tar.gz", hashlib.md5(b"no archive").hexdigest())
    monkeypatch.setitem(ARCHIVES, "pets", (archive,))
    for source, said in (
        (server.url, "the archive cannot be unpacked"),
        (server.url + "/nowhere", "the server answered 404"),
        ("gopher://nowhere", "gopher://nowhere/annotations.tar.gz: "),
        (str(tmp_path / "nowhere"), "there is no such archive; give the folder that holds it"),
        ("http://127.0.0.1:9", "the server cannot be reached, after 0.0 MB ("),
    ):
        assert run(tmp_path / "pets", source) == 2
        assert said in capsys.readouterr().err
        assert not list((tmp_path / "pets").glob(".*.lock"))
        (tmp_path / "pets/annotations.tar.gz").unlink(missing_ok=True)
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file", server.url) == 2
    said = capsys.readouterr().err
    assert "a file is in the place of a folder" in said
    assert "`--root`" in said


def test_a_second_fetch_into_the_same_folder_is_refused(tmp_path, server, archives, capsys):
    (tmp_path / "pets").mkdir()
    with fetch._alone(tmp_path / "pets/.annotations.tar.gz.lock"):
        assert run(tmp_path / "pets", server.url) == 2
    assert "another `autoseg fetch` is at work here; wait for it" in capsys.readouterr().err


def test_cityscapes_says_what_to_do_by_hand(tmp_path, capsys):
    assert main(["fetch", "cityscapes", "--root", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "leftImg8bit_trainvaltest.zip" in said
    assert f"`autoseg doctor cityscapes --root {tmp_path}`" in said
    assert main(["fetch", "cityscapes"]) == 2
    assert "`autoseg doctor cityscapes --root DIR`" in capsys.readouterr().err
    assert main(["fetch", "pets"]) == 2
    assert "--root: is not given" in capsys.readouterr().err


def test_the_official_addresses_are_those_of_torchvision():
    import autoseg.training._torchvision  # noqa: F401  # lets torchvision be imported beside a CPU-only torch

    datasets = pytest.importorskip("torchvision.datasets")
    known = {(resource[0], resource[1]) for resource in datasets.OxfordIIITPet._RESOURCES}
    known.add((datasets.SBDataset.url, datasets.SBDataset.md5))
    known |= {(year["url"], year["md5"]) for year in datasets.voc.DATASET_YEAR_DICT.values()}
    assert {(a.url, a.md5) for found in ARCHIVES.values() for a in found} <= known
