"""`antislop export` makes a folder of links with a list and a `generate`, and nothing where that would not obey."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antislop import BanList
from antislop.files import models
from tests.support.commands import assert_refused, invoke


def export(folder: Path, *arguments: str) -> Any:
    return invoke("export", *arguments, "-o", str(folder / "model"), "--no-bans", "--ban", "the")


@pytest.mark.parametrize("option", [(), ("--copy",)])
def test_the_folder_has_links_or_copies_and_a_list_and_a_generate(option: tuple[str, ...], tmp_path: Path) -> None:
    result = export(tmp_path, *option)
    assert result.exit_code == 0 and "trust_remote_code" in result.stderr
    names = {path.name for path in models.TINY.iterdir()}
    assert {path.name for path in (tmp_path / "model").iterdir()} == {*names, "bans.txt", "custom_generate"}
    for name in names:
        path = tmp_path / "model" / name
        assert path.is_symlink() == (option == ()) and path.read_bytes() == (models.TINY / name).read_bytes()
    assert BanList.load(tmp_path / "model" / "bans.txt") == BanList(["the"])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_would_not_obey_or_is_there_already_is_refused(tmp_path: Path) -> None:
    assert_refused(invoke("export", "-o", str(tmp_path / "model"), "--no-bans"), "nothing is banned")
    assert export(tmp_path).exit_code == 0
    assert_refused(export(tmp_path), "exists already: pass another path, or remove it first")
    (tmp_path / "second").mkdir()
    again = export(tmp_path / "second", str(tmp_path / "model"))
    assert_refused(again, "has a custom_generate of its own: export the model that it was made from")
    (tmp_path / "model" / "adapter_config.json").write_text(json.dumps({}), encoding="utf-8")
    assert_refused(export(tmp_path / "second", str(tmp_path / "model")), "is an adapter", "merge it first")
    assert_refused(export(tmp_path / "second", "absent/model"), "absent/model", "can't be loaded")
    assert list((tmp_path / "second").iterdir()) == []


def test_a_file_system_without_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("A required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert_refused(export(tmp_path), "takes no links", "A required privilege", "pass --copy")
    assert list(tmp_path.iterdir()) == []


def list_paths(folder: Path) -> dict[str, str]:
    """Return each path below a folder with what it is: where a link leads, the size of a file, or a folder."""
    kinds = {}
    for path in folder.rglob("*"):
        size = "folder" if path.is_dir() else str(path.lstat().st_size)
        kinds[path.relative_to(folder).as_posix()] = str(path.readlink()) if path.is_symlink() else size
    return kinds


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder with a folder in it, and links within it and out of it: to a folder, to a file, to nothing.

    A link to its own parent would be a copy without end, if a copy entered it: a folder beside it does as well.
    """
    folder = tmp_path / "parent" / "source"
    shutil.copytree(models.TINY, folder)
    (folder / "part").mkdir()
    (folder / "part" / "notes.txt").write_text("notes", encoding="utf-8")
    (folder / "part" / "empty").mkdir()
    (folder / ".git").mkdir()
    (tmp_path / "parent" / "beside").mkdir()
    (tmp_path / "parent" / "beside" / "elsewhere.txt").write_text("elsewhere", encoding="utf-8")
    for name, aim in {
        "beside": "../beside",
        "itself": "itself",
        "part/beside": "../../beside",
        "part/config": "../config.json",
        "absolute": str(folder / "config.json"),
        "out.txt": "../beside/elsewhere.txt",
        "missing": "../missing",
    }.items():
        (folder / name).symlink_to(aim)
    return folder


@pytest.mark.parametrize("option", [(), ("--copy",)])
def test_a_copy_keeps_links_and_follows_none(option: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    before, out = list_paths(tmp_path), tmp_path / "new" / "deeper" / "model"
    result = invoke("export", str(model), *option, "-o", str(out), "--no-bans", "--ban", "the")
    assert result.exit_code == 0, result.stderr
    made = list_paths(out)
    beside = str(model.parent / "beside")
    if option:
        expected = {name: kind for name, kind in list_paths(model).items() if not name.startswith(".")}
        expected |= {"beside": beside, "part/beside": beside, "out.txt": f"{beside}/elsewhere.txt"}
        expected |= {"missing": str(model.parent / "missing"), "absolute": "config.json"}
        assert expected["itself"] == "itself" and expected["part/config"] == "../config.json"
    else:
        expected = {path.name: str(path) for path in model.iterdir() if path.name != ".git"}
    own = ("bans.txt", "custom_generate", "custom_generate/generate.py")
    assert {name: aim for name, aim in made.items() if name not in own} == expected
    assert {name: kind for name, kind in list_paths(tmp_path).items() if name.partition("/")[0] != "new"} == before


def test_a_copy_of_the_hubs_cache_has_the_files_that_its_links_name(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in models.TINY.iterdir():
        shutil.copyfile(path, blobs / f"hash of {path.name}")
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", f"hash of {path.name}"))
    assert export(tmp_path, str(snapshot), "--copy").exit_code == 0
    for path in models.TINY.iterdir():
        copied = tmp_path / "model" / path.name
        assert not copied.is_symlink() and copied.read_bytes() == path.read_bytes()


def test_a_copy_within_a_folder_of_the_model_is_no_copy_of_itself(model: Path) -> None:
    assert invoke("export", str(model), "--copy", "-o", str(model / "part" / "model"), "--ban", "the").exit_code == 0
    assert list_paths(model / "part" / "model" / "part").keys() == {"notes.txt", "empty", "beside", "config"}


def stop(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def fail(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("interrupt", [stop, fail])
@pytest.mark.parametrize("where", ["shutil.copyfile", "pathlib.Path.symlink_to", "pathlib.Path.rename"])
def test_an_interruption_leaves_nothing_and_touches_nothing(
    where: str, interrupt: Callable[..., None], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What another program, or a user, may have put where an export once worked: a folder, and a link to one.
    (tmp_path / ".new").mkdir()
    (tmp_path / ".new" / "mine.txt").write_text("mine", encoding="utf-8")
    (tmp_path / ".model.part").symlink_to(tmp_path / ".new")
    before = list_paths(tmp_path)
    monkeypatch.setattr(where, interrupt)
    for out in (tmp_path / "model", tmp_path / "new" / "deeper" / "model"):
        assert invoke("export", str(model), "--copy", "-o", str(out), "--ban", "the").exit_code != 0
        assert list_paths(tmp_path) == before


def test_a_folder_of_the_user_beside_the_target_stays(model: Path, tmp_path: Path) -> None:
    (tmp_path / ".model.part").mkdir()
    (tmp_path / ".model.part" / "mine.txt").write_text("mine", encoding="utf-8")
    assert export(tmp_path, str(model)).exit_code == 0
    assert (tmp_path / ".model.part" / "mine.txt").read_text(encoding="utf-8") == "mine"
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "parent").stat().st_mode, "other users may read it"
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    refused = invoke("export", str(model), "-o", str(tmp_path / "dangling"), "--ban", "the")
    assert_refused(refused, "exists already")
    assert not (tmp_path / "absent").exists()
