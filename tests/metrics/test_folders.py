"""A folder is searched as ripgrep does: what git ignores, hidden files and links are left out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from antislop.metrics.folders import is_text, list_files


def git(folder: Path, *args: str) -> None:
    subprocess.run(["git", "-C", str(folder), *args], check=True, capture_output=True)


def write(folder: Path, *names: str, text: str = "a cat") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def listed(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in list_files(folder)]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    write(folder, "a.md", "docs/ä b.md", "docs/drafts/c.md", "docs/drafts/kept.md", "out/d.md", "out/e/f.md", "g.log")
    write(folder, "kept.log", "gone.md", ".hidden/h.md", "docs/.i.md")
    write(folder, ".gitignore", text="*.log\nout/\n")
    write(folder, "docs/.gitignore", text="drafts/*\n!kept.md\n")
    git(folder, "init", "-q")
    write(folder / ".git", "info/exclude", text="private.md\n")
    write(folder, "private.md")
    git(folder, "add", "-f", "kept.log", "gone.md")
    (folder / "gone.md").unlink()
    return folder


def test_what_git_ignores_is_left_out(repository: Path) -> None:
    assert listed(repository) == ["a.md", "docs/drafts/kept.md", "docs/ä b.md", "kept.log"]
    assert listed(repository / "docs") == ["drafts/kept.md", "ä b.md"]


def test_each_file_is_listed_that_git_does_not_ignore_when_asked_for_it_alone(repository: Path) -> None:
    """The naive twin: one question for each file."""

    def is_ignored(path: Path) -> bool:
        return subprocess.run(["git", "-C", str(repository), "check-ignore", "-q", str(path)]).returncode == 0

    visible = [path for path in repository.rglob("*") if "/." not in path.as_posix().removeprefix(str(repository))]
    assert list_files(repository) == sorted(path for path in visible if path.is_file() and not is_ignored(path))


def test_a_folder_that_git_ignores_is_listed_if_it_is_named(repository: Path) -> None:
    assert listed(repository / "out") == ["d.md", "e/f.md"]


def test_a_repository_in_a_folder_and_one_in_a_repository_keep_their_own_rules(repository: Path) -> None:
    inner = repository / "inner"
    write(inner, "j.md", "k.tmp")
    write(inner, ".gitignore", text="*.tmp\n")
    git(inner, "init", "-q")
    assert "inner/j.md" in listed(repository) and "inner/k.tmp" not in listed(repository)
    around = repository.parent
    write(around, "l.log")
    assert [name for name in listed(around) if name.count("/") < 2] == [
        "l.log",
        "repository/a.md",
        "repository/kept.log",
    ]


@pytest.mark.parametrize("is_repository", [True, False])
def test_links_are_not_followed(tmp_path: Path, is_repository: bool) -> None:
    write(tmp_path, "a.md", "sub/b.md")
    if is_repository:
        git(tmp_path, "init", "-q")
    for link, target in (("c.md", "a.md"), ("folder", "sub"), ("broken", "nowhere")):
        (tmp_path / link).symlink_to(tmp_path / target)
    assert listed(tmp_path) == ["a.md", "sub/b.md"]


def test_without_git_all_files_are_listed_that_are_not_hidden(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert {"g.log", "out/d.md", "private.md"} < set(listed(repository))
    assert not [name for name in listed(repository) if name.startswith(".") or "/." in name]


def test_a_repository_runs_no_program_of_its_own(repository: Path) -> None:
    git(repository, "config", "core.fsmonitor", f"touch {repository}/ran; false")
    list_files(repository)
    assert not (repository / "ran").exists()
    git(repository, "status")
    assert (repository / "ran").exists()  # the config is one that git runs


def test_a_text_begins_as_utf_8_without_null_characters(tmp_path: Path) -> None:
    for content, answer in (
        (b"a cat", True),
        (b"", True),
        (b"a\0cat", False),
        (b"\xff\xfea\0", False),
        (b"\xe9t", False),
    ):
        (tmp_path / "file").write_bytes(content)
        assert is_text(tmp_path / "file") is answer
    assert not is_text(tmp_path / "nowhere")
