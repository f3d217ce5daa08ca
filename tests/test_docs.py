"""The documentation's code runs, its links lead somewhere, and the site builds without a warning."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import get_args
from urllib.parse import unquote, urlsplit

import pytest
from typer.testing import CliRunner

import antislop
from antislop.cli.main import COMMANDS, app
from antislop.lists.ban_list import BanList
from antislop.lists.reading import Format
from antislop.metrics.definitions import METRICS
from tests.support.documents import DOCUMENTS, ROOT, prepare_folder, read_blocks, read_commands, run_command

DOCS = ROOT / "docs"
PAGES = [path for path in DOCUMENTS if path.is_relative_to(DOCS) and path.name != "engines.md"]  # runs with the engines
REPOSITORY = "https://github.com/antislop/antislop/"
PAGES_WITH_LINKS = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "eval" / "README.md", ROOT / "examples" / "README.md"]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if read_blocks(page, "python", "sh")], ids=name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks run in order: Python in one namespace, commands in one folder."""
    monkeypatch.chdir(tmp_path)
    prepare_folder(tmp_path)
    names: dict[str, object] = {}
    for block in read_blocks(page, "python", "sh"):
        if block.language == "sh":
            for command in read_commands(block):
                run_command(command)
        else:
            code = block.compile()
            if not block.title:
                exec(code, names)


def test_each_list_format_is_shown_as_it_is_read(tmp_path: Path) -> None:
    page = DOCS / "reference" / "formats.md"
    shown = set()
    for block in read_blocks(page, "text", "json", "csv", "yaml"):
        format_, _, name = block.title.removeprefix('title="').removesuffix('"').partition(": ")
        path = tmp_path / name
        path.write_text(block.text, encoding="utf-8")
        bans = BanList.load(path, format="ngrams" if "only if" in format_ else None)
        assert bans.format == format_.removesuffix(", only if asked for"), f"{page}:{block.line}"
        assert len(bans) > 0
        shown.add(bans.format)
    assert shown == set(get_args(Format))


def slug(heading: str) -> str:
    """Return the anchor of a heading, as the repository's host and the site both make it."""
    if custom := re.search(r"\{\s*#([\w-]+)\s*\}", heading):
        return custom[1]
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def find_anchors(path: Path) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES_WITH_LINKS, ids=name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        link = link.replace("https://raw.githubusercontent.com/antislop/antislop/main/", f"{REPOSITORY}blob/main/")
        if link.startswith(REPOSITORY):
            target, _, anchor = link.removeprefix(f"{REPOSITORY}blob/main/").partition("#")
            path = ROOT / target
        elif "://" in link:
            continue
        else:
            target, _, anchor = link.partition("#")
            path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{name(page)}: {link}"
        if anchor and path.suffix == ".md" and "reference" not in path.parts:
            assert anchor in find_anchors(path), f"{name(page)}: {link}"


def test_the_picture_of_the_house_shows_every_room() -> None:
    picture = (DOCS / "house.svg").read_text(encoding="utf-8")
    rooms = {path.name for path in Path(antislop.__file__).parent.iterdir() if not path.name.startswith(("_", "py."))}
    assert rooms <= set(re.findall(r"[\w.]+", " ".join(re.findall(r'font-weight="700"[^>]*>([^<]*)<', picture))))


class Site(HTMLParser):
    """What a page of the site names: ids, links, and what a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {value for key in ("id", "name") if (value := values.get(key))}
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        elif tag in ("img", "script", "link", "source", "iframe") and values.get("rel") not in (
            "canonical",
            "next",
            "prev",
        ):
            self.loaded += [value for key in ("src", "href") if (value := values.get(key))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Site]:
    """The pages of the site, built strictly."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'antislop[docs]'")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return {path: Site(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}


def test_no_link_of_the_site_is_dead(site: dict[Path, Site]) -> None:
    assert len(site) > 15
    for path, page in site.items():
        if path.name == "404.html":  # its links begin at the root of the host
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.name}: {link}"
            if parts.fragment and target in site:
                known = site[target].ids | {"__comments"}
                assert unquote(parts.fragment) in known, f"{path.name}: {link}"


def test_the_site_loads_nothing_from_elsewhere(site: dict[Path, Site]) -> None:
    for path, page in site.items():
        for link in page.loaded:
            assert not urlsplit(link).netloc, f"{path.name}: {link}"
            if path.name != "404.html":
                assert (path.parent / unquote(urlsplit(link).path)).exists(), f"{path.name}: {link}"


def find_page(site: dict[Path, Site], name: str) -> Site:
    return next(page for path, page in site.items() if path.name == f"{name}.html" and path.parent.name == "reference")


def test_every_public_name_is_in_the_reference(site: dict[Path, Site]) -> None:
    assert {f"antislop.{name}" for name in antislop.__all__} <= find_page(site, "antislop").ids


def test_every_name_of_a_package_is_in_the_reference(site: dict[Path, Site]) -> None:
    ids = set().union(*(page.ids for page in site.values()))
    for path in Path(antislop.__file__).parent.glob("*/__init__.py"):
        package = importlib.import_module(f"antislop.{path.parent.name}")
        assert {f"{package.__name__}.{name}" for name in getattr(package, "__all__", ())} <= ids


def test_every_metric_is_in_the_reference(site: dict[Path, Site]) -> None:
    path = next(path for path in site if path.name == "metrics.html")
    assert set(re.findall(r"<td><code>(\w+)</code>", path.read_text(encoding="utf-8"))) == {m.name for m in METRICS}


def test_every_command_is_in_the_reference(site: dict[Path, Site]) -> None:
    assert set(COMMANDS) <= find_page(site, "commands").ids


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_the_reference(command: str, site: dict[Path, Site]) -> None:
    path = next(path for path in site if path.name == "commands.html")
    section = path.read_text(encoding="utf-8").split(f'<h2 id="{command}">')[1].split("<h2 ")[0]
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    options = set(re.findall(r"^\W+(--[a-z-]+)", shown, flags=re.MULTILINE)) - {"--help"}
    assert options
    assert {option for option in options if not re.search(rf"{option}\b", section)} == set()
