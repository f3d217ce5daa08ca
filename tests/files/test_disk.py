"""A file is replaced as a whole or not at all; its mode and its links are kept; no other file is changed.

Only the module `antislop.files.disk` opens files.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import antislop
from antislop import BanList
from antislop.errors import InputError
from antislop.files.disk import (
    MIN_BOUND,
    decode,
    open_text,
    read_bytes,
    read_json,
    read_text,
    read_text_pieces,
    replace_text,
    replacing,
)
from antislop.files.journal import Journal
from antislop.measure.profiles.profiles import Profile
from antislop.measure.profiles.rates import Baseline

needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs modes and links of POSIX")


@pytest.fixture(autouse=True)
def mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def write_journal(path: Path) -> None:
    with Journal(path, {"seed": 1}, identify=lambda record: record["key"], force=True) as journal:
        journal.append({"key": len(journal)})


WRITERS: list[Callable[[Path], Any]] = [
    lambda path: replace_text(path, "new"),
    lambda path: BanList(["a cat"]).save(path),
    lambda path: Baseline("books", 9, 1, {}, {}).save(path),
    lambda path: Profile(1, 1, 1, 1, None, {}, ()).save(path),
    write_journal,
]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@needs_posix
@pytest.mark.parametrize("write", WRITERS)
def test_a_file_that_only_its_owner_may_read_stays_so(write: Callable[[Path], Any], tmp_path: Path) -> None:
    path, new = tmp_path / "kept", tmp_path / "new"
    path.write_text('{"key": "old"}\ntorn')
    path.chmod(0o600)
    write(path)
    write(new)
    assert b"torn" not in path.read_bytes()
    assert (mode_of(path), mode_of(new)) == (0o600, 0o644)


@pytest.mark.parametrize("write", WRITERS)
def test_missing_folders_are_made(write: Callable[[Path], Any], tmp_path: Path) -> None:
    write(tmp_path / "new" / "folder" / "out")
    assert (tmp_path / "new" / "folder" / "out").exists()


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    with pytest.raises(OSError) as caught, replacing(path.with_suffix(".long")):
        pass
    assert caught.value.filename == str(path.with_suffix(".long"))


@needs_posix
@pytest.mark.parametrize("write", WRITERS)
def test_a_link_stays_and_its_target_is_replaced(write: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    target.write_text('{"key": "old"}\ntorn')
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert b"torn" not in target.read_bytes()


@needs_posix
@pytest.mark.parametrize("write", WRITERS)
def test_no_name_that_a_stranger_could_guess_is_written_to(write: Callable[[Path], Any], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("out.new", "out.part", "out.tmp", ".out.tmp", "out.run.json.new"):
        (tmp_path / name).symlink_to(victim)
    write(tmp_path / "out")
    assert victim.read_text() == "mine"


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as file:
            file.write(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


class HeldFile:
    """`Path.replace` of a system that refuses to replace a file while another program has it open, as Windows does."""

    def __init__(self, attempts: int, *, number: int) -> None:
        self.left, self.number = attempts, number
        self.replace = Path.replace

    def __call__(self, path: Path, target: Path) -> Path:
        self.left -= 1
        if self.left >= 0:
            error = PermissionError(13, "Access is denied", str(target))
            error.winerror = self.number  # type: ignore[attr-defined]
            raise error
        return self.replace(path, target)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("number", [5, 32])
def test_a_file_that_another_program_has_open_for_a_moment_is_replaced_after_it(
    write: Callable[[Path], Any], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, held = tmp_path / "out", HeldFile(2, number=number)
    path.write_text('{"key": "old"}\ntorn')
    monkeypatch.setattr(Path, "replace", lambda *paths: held(*paths))
    write(path)
    assert held.left < 0 and b"torn" not in path.read_bytes()


def test_a_file_that_stays_open_elsewhere_is_kept_and_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, held = tmp_path / "out", HeldFile(100, number=32)
    path.write_text("old")
    monkeypatch.setattr(Path, "replace", lambda *paths: held(*paths))
    monkeypatch.setattr("antislop.files.disk.time.sleep", lambda _: None)
    with pytest.raises(PermissionError, match="another program has it open: close it there, and try again"):
        replace_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    held.number = 0  # any other error is not tried again
    left = held.left
    with pytest.raises(PermissionError, match="Access is denied"):
        replace_text(path, "new")
    assert held.left == left - 1


@needs_posix
def test_a_device_is_written_to_and_not_replaced() -> None:
    replace_text("/dev/null", "x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@needs_posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(0o400)
    with pytest.raises(PermissionError):
        replace_text(path, "new")


def test_a_name_of_any_length_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    replace_text(path, "one")
    replace_text(path, "two")
    assert path.read_text() == "two"


def test_a_compressed_file_is_unpacked_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "texts.gz"
    path.write_bytes(gzip.compress(json.dumps(["a cat"] * 9).encode()))
    assert json.loads(read_bytes(path)) == ["a cat"] * 9
    path.write_bytes(gzip.compress(b" " * (MIN_BOUND + 1)))
    with pytest.raises(OSError, match="unpacks to more than 16,777,216 bytes"):
        read_bytes(path)


DAMAGED = {
    "no gzip": b"no",
    "cut at its end": gzip.compress(b"abc" * 99)[:-9],
    "cut": gzip.compress(bytes(range(256)))[:40],
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_raises_an_os_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(OSError, match="not gzip, or cut off"):
        read_bytes(tmp_path / "a.gz")


def test_lines_before_damage_are_read(tmp_path: Path) -> None:
    lines = "".join(f"{number * number}\n" for number in range(90_000))
    (tmp_path / "a.gz").write_bytes(gzip.compress(lines.encode())[:-1000])
    found = []

    def read() -> None:
        with open_text(tmp_path / "a.gz") as file:
            found.extend(file)

    with pytest.raises(OSError, match="not gzip, or cut off"):
        read()
    assert len(found) > 80_000
    assert lines.startswith("".join(found))


def test_a_list_saved_under_a_compressed_name_is_compressed_and_loads(tmp_path: Path) -> None:
    for name in ("a.txt", "a.txt.gz", "a.txt.GZ"):
        BanList(["a cat"]).save(tmp_path / name)
        assert list(BanList.load(tmp_path / name)) == list(BanList(["a cat"]))
    assert gzip.decompress((tmp_path / "a.txt.gz").read_bytes()) == (tmp_path / "a.txt").read_bytes()
    assert (tmp_path / "a.txt.gz").read_bytes() == (tmp_path / "a.txt.GZ").read_bytes(), "no time, no name"
    assert read_bytes(tmp_path / "a.txt.gz", unpack=False) == (tmp_path / "a.txt.gz").read_bytes()


def test_text_loses_its_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf["\xc3\xa9"]')
    assert read_text(tmp_path / "a.json") == '["é"]'
    assert read_json(tmp_path / "a.json") == ["é"]


REFUSED = {
    "no file": (None, r"a.json: can't be read \(No such file or directory\): ask"),
    "no UTF-8": (b'["a",\n"\xff"]', "a.json:2: not UTF-8"),
    "no JSON": (b'["a",\n"b"', r"a.json:2: not JSON \(Expecting ',' delimiter\): ask"),
    "nothing": (b"", "a.json:1: not JSON .*: ask"),
    "too deep": (b"[" * 100_000, "a.json:1: not JSON .*: ask"),
    "a number of thousands of digits": (b"1" * 5000, "a.json:1: not JSON .*: ask"),
}


@pytest.mark.parametrize(("data", "sentence"), REFUSED.values(), ids=REFUSED)
def test_invalid_json_is_refused_in_a_sentence(data: bytes | None, sentence: str, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(InputError, match=sentence) as caught:
        read_json(tmp_path / "a.json", advice="ask")
    assert "\n" not in str(caught.value)


OPENERS = {"open", "fdopen", "read_text", "read_bytes", "write_text", "write_bytes", "rename"}
MODULES = {"gzip", "bz2", "lzma", "shutil", "tempfile"}
ALLOWED = {
    "antislop/__main__.py: os.fdopen(os.open(os.devnull, flag), mode)": "in place of a standard stream that is closed",
    "antislop/__main__.py: os.open(os.devnull, flag)": "the same",
    "antislop/cli/export.py: whole.rename(place / whole.name)": "the folder is there as a whole or not at all",
    "antislop/cli/export.py: shutil": "copies a model's files",
    "antislop/cli/export.py: tempfile.TemporaryDirectory": "a folder of its own beside the one to make",
    "antislop/cli/main.py: os.open(os.devnull, os.O_WRONLY)": "standard output, whose reader has left",
    "antislop/cli/terminal.py: tempfile.TemporaryDirectory": "a folder alone",
    "antislop/files/models.py: (unfinished / 'README.md').write_text(card, encoding='utf-8')": "a folder alone",
    "antislop/files/models.py: shutil": "deletes that folder if it is unfinished",
    "antislop/files/models.py: unfinished.rename(folder)": "the folder is there as a whole or not at all",
    "antislop/datasets/vllm_maker.py: tempfile.TemporaryDirectory": "vLLM takes a list by its path",
    "antislop/files/packages.py: path.read_text(encoding='utf-8')": "the sources of a package, perhaps within a wheel",
    "antislop/files/packages.py: table.read_text(encoding='utf-8')": "its own table",
    **{
        f"antislop/{module}.py: Path(__file__).with_name('{name}').read_text(encoding='utf-8')": "its own table"
        for module, name in (
            ("core/hf/refusals", "refusals.yaml"),
            ("core/hf/releases", "needed_names.txt"),
            ("evaluation/evaluation", "metrics.yaml"),
            ("cli/main", "commands.json"),
            ("serve/bodies/foreign_fields", "foreign_fields.yaml"),
        )
    },
    "antislop/errors.py: Path(module).with_name('refusals.yaml').read_text(encoding='utf-8')": "its own tables",
    "antislop/display.py: (folder / name).read_text('utf-8')": "the package's own files; `files` stands above",
    "antislop/display.py: (folder / script).read_text('utf-8')": "the package's own files; `files` stands above",
    "antislop/tuning/tuning.py: shutil": "deletes the checkpoints of a run, a folder of its own",
    "antislop/explain/forward_result.py: tempfile.NamedTemporaryFile": "a page for a browser that was given no name",
    "antislop/explain/forward_result.py: webbrowser.open(Path(path).resolve().as_uri())": "a browser opens it",
}


def find_openers(tree: ast.AST) -> Iterator[str]:
    """Yield the calls that open or move files without `antislop.files.disk`, and the imports of modules that do."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name in MODULES)
            case ast.ImportFrom(module=str(module), names=names) if module in MODULES:
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Call(func=ast.Name(id="open")):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="files"))):
                pass
            case ast.Call(func=ast.Attribute(attr=name)) if name in OPENERS:
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="load" | "dump", value=ast.Name(id="json"))):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="replace", value=value), args=args, keywords=[]):
                if len(args) == 1 or ast.unparse(value) == "os":  # that of texts has two
                    yield ast.unparse(node)


def test_no_other_module_opens_files() -> None:
    folder = Path(antislop.__file__).parent
    found = {
        f"antislop/{path.relative_to(folder).as_posix()}: {opener}"
        for path in folder.rglob("*.py")
        if path != Path(antislop.files.disk.__file__)
        for opener in find_openers(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == ALLOWED.keys(), "open it by antislop.files.disk, or say here why that can't be"


OPENING = ("open(path)", "path.open()", "Path(name).read_bytes()", "path.replace(other)", "os.replace(path, other)")
OPENING += ("import gzip", "from tempfile import NamedTemporaryFile", "json.load(file)")
OTHER = ("text.replace('a', 'b')", "files.read_text(path)", "read_bytes(path)", "import zlib")


@pytest.mark.parametrize("line", [*OPENING, *OTHER])
def test_opening_a_file_is_noticed_and_no_other_call(line: str) -> None:
    assert len(list(find_openers(ast.parse(line)))) == (line in OPENING)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_text_with_zero_bytes_is_refused_wherever_bytes_become_text(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    for data in ("an old house\n".encode(encoding), b"an old\0 house\n"):
        path.write_bytes(data)
        for read in (read_text, lambda path: "".join(read_text_pieces(path))):
            with pytest.raises(InputError, match=r"prompts.txt:1: not text but binary data: pass a text file$"):
                read(path)
        with pytest.raises(InputError, match=r"^a:1: not text but binary data"):
            decode(data, "a")
