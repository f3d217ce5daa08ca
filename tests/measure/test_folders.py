"""A folder is searched as ripgrep does: what .gitignore names, hidden files and links are left out; git is not run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from antislop.errors import InputError
from antislop.measure import folders
from antislop.measure.folders import is_text, list_files
from tests.support.depth import sample_size


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


def test_what_git_ignores_is_left_out_even_if_git_tracks_it(repository: Path) -> None:
    assert listed(repository) == ["a.md", "docs/drafts/kept.md", "docs/ä b.md"]
    assert listed(repository / "docs") == ["drafts/kept.md", "ä b.md"]


PARTS = [
    "a",
    "b",
    "*",
    "**",
    "***",
    "?",
    "a*",
    "*a",
    "[ab]",
    "[!a]",
    "[^b]",
    "[]a]",
    "[z-a]",
    r"\a",
    r"\[",
    "*.md",
    "?*b",
]


@pytest.mark.parametrize("seed", range(sample_size(40)))
def test_the_files_are_those_that_git_lists(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The naive twin: git itself, for random patterns in random folders."""
    random = Random(seed)
    for _ in range(25):
        parts = [random.choice(["a", "b", "ab"]) for _ in range(random.randrange(4))]
        write(tmp_path, "/".join([*parts, random.choice(["a.md", "b.md", "ab.txt", "ba"])]))
    places = [tmp_path, *(path for path in sorted(tmp_path.rglob("*")) if path.is_dir())]
    for place in random.sample(places, min(3, len(places))):
        lines = [
            random.choice(["", "", "!", "/", "!/"])
            + "/".join(random.choices(PARTS, k=random.choice([1, 1, 2, 3])))
            + random.choice(["", "", "/", "  ", "\r"])
            for _ in range(4)
        ]
        write(place, ".gitignore", text="\n".join(lines))
    git(tmp_path, "init", "-q")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    command = ["git", "-C", str(tmp_path), "ls-files", "-oz", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    assert sorted(listed(tmp_path)) == sorted(name for name in names if name and not name.endswith(".gitignore"))


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
    assert [name for name in listed(around) if name.count("/") < 2] == ["l.log", "repository/a.md"]


@pytest.mark.parametrize("is_repository", [True, False])
def test_links_are_not_followed(tmp_path: Path, is_repository: bool) -> None:
    write(tmp_path, "a.md", "sub/b.md")
    if is_repository:
        git(tmp_path, "init", "-q")
    for link, target in (("c.md", "a.md"), ("folder", "sub"), ("broken", "nowhere")):
        (tmp_path / link).symlink_to(tmp_path / target)
    assert listed(tmp_path) == ["a.md", "sub/b.md"]


def test_outside_of_repositories_all_files_are_listed_that_are_not_hidden(repository: Path) -> None:
    (repository / ".git").rename(repository / ".not")
    assert {"g.log", "out/d.md", "private.md"} < set(listed(repository))
    assert not [name for name in listed(repository) if name.startswith(".") or "/." in name]


# -- repositories of strangers -----------------------------------------------------------------------------------------

RUN = "touch {marker}; false"
PROGRAMS = {
    "ssh": {"remote.origin.url": "ssh://host/path", "core.sshCommand": RUN},
    "upload pack": {"remote.origin.url": "/", "remote.origin.uploadpack": RUN},
    "ext": {"remote.origin.url": "ext::touch {marker}", "protocol.ext.allow": "always"},
    "fsmonitor": {"core.fsmonitor": RUN},
}
"""Settings of a repository that name a program, which git runs when it lists files."""


@pytest.mark.parametrize("is_bare", [False, True], ids=["a repository", "a bare one that is committed in docs"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_repository_runs_no_program(tmp_path: Path, program: str, is_bare: bool) -> None:
    """A .gitignore that git has to fetch first, since its object is missing in a partial clone."""
    folder, marker = tmp_path / "docs", tmp_path / "ran"
    write(folder, "a.md")
    git(folder, "init", "-q")
    git(folder, "update-index", "--add", "--cacheinfo", "100644", "1" * 40, ".gitignore")
    git(folder, "update-index", "--skip-worktree", ".gitignore")
    settings = {"core.repositoryFormatVersion": "1", "extensions.partialClone": "origin", **PROGRAMS[program]}
    for name, value in settings.items():
        git(folder, "config", name, value.format(marker=marker))
    if is_bare:
        for path in (folder / ".git").iterdir():
            path.rename(folder / path.name)
        (folder / ".git").rmdir()
        git(folder, "config", "core.worktree", str(folder))
    marker.unlink(missing_ok=True)
    assert "a.md" in listed(folder)
    assert not marker.exists()
    subprocess.run(["git", "-C", str(folder), "ls-files", "-o", "--exclude-standard"], capture_output=True)
    assert marker.exists()  # git does run it


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")
@pytest.mark.parametrize("place", [".gitignore", ".git/info/exclude", "pipe.md", "excludes"])
def test_a_pipe_in_a_repository_is_not_read(tmp_path: Path, place: str) -> None:
    write(tmp_path, "a.md")
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "core.excludesFile", str(tmp_path / "excludes"))
    (tmp_path / place).unlink(missing_ok=True)
    os.mkfifo(tmp_path / place)
    found: list[str] = []
    thread = Thread(target=lambda: found.extend(listed(tmp_path)), daemon=True)
    thread.start()
    thread.join(timeout=5)
    assert found == ["a.md"]


def test_a_gitignore_that_is_a_link_or_a_folder_names_nothing(repository: Path) -> None:
    write(repository.parent, "rules", text="*.md\n")
    (repository / "docs" / ".gitignore").unlink()
    (repository / "docs" / ".gitignore").symlink_to(repository.parent / "rules")
    (repository / ".gitignore").unlink()
    (repository / ".gitignore").mkdir()
    assert {"a.md", "docs/drafts/c.md", "g.log"} < set(listed(repository))


def test_a_gitignore_takes_no_time_by_its_form_and_is_refused_by_its_length(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository, "a" * 200, "/".join("a" * 100))
    lines = ["*a" * 30 + "b", "**/a/" * 30 + "b", "[" * 5000, "*" * 5000 + "b", "!", "\\", "[z-a]"]
    write(repository, ".gitignore", text="\n".join(lines))
    assert "a" * 200 in listed(repository)
    monkeypatch.setattr(folders, "MAX_IGNORE", 10_000)
    with pytest.raises(InputError, match=r"repository/\.gitignore: has more than 10,000 characters: shorten it"):
        listed(repository)


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
