"""`antislop export` makes a folder of links with a list and a `generate`, and nothing where that would not obey."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antislop import BanList
from antislop.core.hf import pretrained
from tests.support.commands import assert_refused, invoke


def export(folder: Path, *arguments: str) -> Any:
    return invoke("export", *arguments, "-o", str(folder / "model"), "--no-bans", "--ban", "the")


@pytest.mark.parametrize("option", [(), ("--copy",)])
def test_the_folder_has_links_or_copies_and_a_list_and_a_generate(option: tuple[str, ...], tmp_path: Path) -> None:
    result = export(tmp_path, *option)
    assert result.exit_code == 0 and "trust_remote_code" in result.stderr
    names = {path.name for path in pretrained.TINY.iterdir()}
    assert {path.name for path in (tmp_path / "model").iterdir()} == {*names, "bans.txt", "custom_generate"}
    for name in names:
        path = tmp_path / "model" / name
        assert path.is_symlink() == (option == ()) and path.read_bytes() == (pretrained.TINY / name).read_bytes()
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
