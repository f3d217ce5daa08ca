"""A list is read from the hub by its address."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from antislop import Ban, BanList
from antislop.lists.reading import parse_address
from tests.support.depth import first_quick
from tests.support.refusals import refused

BANS = BanList([Ban("a testament to", weight=0.5), Ban.regex(r"not just (\w+|it)"), "`del|ve`"], license="CC0-1.0")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Repository(SimpleHTTPRequestHandler):
    """The routes of the hub's server by which huggingface_hub downloads a file, for data sets in a folder."""

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.partition("?")[0].replace("/datasets/", "/").replace("/resolve/main", ""))

    def end_headers(self) -> None:
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", '"etag"')
        super().end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    BANS.save(make_folder(tmp_path / "hub" / "me" / "slop") / "bans.txt")
    handler = partial(Repository, directory=str(tmp_path / "hub"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def make_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def run(server: str, cache: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process whose hub is the server: huggingface_hub reads its address once, when it is imported."""
    settings = {"HF_ENDPOINT": server, "HF_HUB_OFFLINE": "0", "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1"}
    code = f"import os; os.environ |= {settings}; {code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "address", first_quick(["hf://me/slop", "hf://me/slop/bans.txt", "hf://datasets/me/slop@main/bans.txt"])
)
def test_a_list_is_read_from_the_hub_by_its_address(server: str, tmp_path: Path, address: str) -> None:
    load = f"import antislop; bans = antislop.BanList.load({address!r}); bans.save({str(tmp_path / 'read.txt')!r})"
    done = run(server, tmp_path / "cache", load)
    assert done.returncode == 0, done.stderr
    assert list(BanList.load(tmp_path / "read.txt")) == list(BANS)


def test_the_command_line_takes_an_address(server: str, tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text("It was a testament to him.")
    arguments = ["antislop", "scan", str(tmp_path / "story.txt"), "--bans", "hf://me/slop"]
    done = run(
        server, tmp_path / "cache", f"import sys; sys.argv = {arguments}; from antislop.__main__ import main; main()"
    )
    assert "story.txt:1:8: a testament to" in done.stdout, done.stderr


def test_a_file_that_is_not_there_is_one_sentence(server: str, tmp_path: Path) -> None:
    done = run(server, tmp_path / "cache", "import antislop; antislop.BanList.load('hf://me/slop/none.txt')")
    assert "BanError: hf://me/slop/none.txt: can't be downloaded (" in done.stderr


def test_without_the_package_of_the_hub_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(r"^hf://me/slop: lists of the hub need the package huggingface_hub: ", BanList.load, "hf://me/slop")


@pytest.mark.parametrize("address", ["hf://", "hf://me", "hf://me/", "hf:///"])
def test_an_address_without_a_repository_is_refused(address: str) -> None:
    refused("write hf://owner/name/file", BanList.load, address)


@pytest.mark.parametrize(
    "source", ["hf://me/slop@v1/a/b.json", "hf:/me/slop@v1/a/b.json", "hf:\\me\\slop@v1\\a\\b.json"]
)
def test_a_path_made_of_an_address_is_the_same_address(source: str) -> None:
    assert parse_address(source) == ("me/slop", "v1", "a/b.json")
