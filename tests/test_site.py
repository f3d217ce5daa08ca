"""The site of docs/ builds without a warning, its links lead somewhere, and a browser shows it as intended."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Literal
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser
from typer.testing import CliRunner

import antislop
from antislop.cli.main import COMMANDS, app
from antislop.measure.definitions import METRICS
from tests.support.browser import FIND_PALE_TEXTS, SIZES, open_browser
from tests.support.documents import ROOT

pytestmark = pytest.mark.slow


class Site(HTMLParser):
    """The ids and links of a page of the site, and the files that a browser loads with it."""

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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'antislop-lm[docs]'")
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
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> dict[Path, Site]:
    return {path: Site(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The address of a local server of the site."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.mark.parametrize("size", SIZES)
def test_a_browser_shows_the_site_without_an_error(size: str, address: str, browser: Browser) -> None:
    """Nothing is wider than the screen, nothing is loaded from elsewhere, the console stays silent, search finds."""
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height})
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith((address, "data:")) else errors.append(request.url)
    )
    page.on("response", lambda response: errors.append(response.url) if response.status >= 400 else None)
    for path in ("index", "reference/antislop", "reference/commands", "explanation/comparison", "families"):
        page.goto(f"{address}/{path}.html")
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, path
    page.keyboard.press("/")  # opens the search
    page.keyboard.type("mass_floor")
    page.locator(".md-search-result__item").first.wait_for(timeout=20_000)
    page.close()
    assert errors == []


@pytest.mark.parametrize("size", SIZES)
def test_the_first_page_says_what_it_is_and_shows_it(size: str, address: str, browser: Browser) -> None:
    """One sentence, the line that installs it and two buttons on the first screen; a picture that needs no zooming."""
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(f"{address}/index.html")
    for selector in ("h1", "pre code:text('pip install')", "a:text('Get started')", "a:text('GitHub')"):
        box = page.locator(f".hero {selector}").bounding_box()
        assert box and box["y"] + box["height"] <= height, selector
    picture = page.locator(".hero img")
    box = picture.bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= width
    assert 20 * box["width"] / picture.evaluate("image => image.naturalWidth") >= 12, "letters of 20 units, in pixels"
    table = page.locator("table").evaluate(
        "table => [table.parentElement.scrollWidth, table.parentElement.clientWidth]"
    )
    assert table[0] <= table[1]
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_links_have_one_color(scheme: Literal["light", "dark"], address: str, browser: Browser) -> None:
    """The one under the pointer and the current page of the menu, too."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page.goto(f"{address}/limits.html")
    text = page.locator(".md-content li a:not(.headerlink)")
    text.first.hover()
    page.wait_for_timeout(300)  # of the transition
    read = "links => links.map(link => getComputedStyle(link).color)"
    colors = text.evaluate_all(read)
    assert len(colors) > 3
    assert len({*colors, *page.locator("a.md-nav__link--active:visible").evaluate_all(read)}) == 1
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["index", "guides/lists", "reference/commands"])
def test_everybody_can_read_texts_see_links_and_hear_what_the_search_is(
    path: str, scheme: Literal["light", "dark"], address: str, browser: Browser
) -> None:
    """Code included, by the contrast of 4.5; links by a line under them; the search by the name of its dialog."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page.goto(f"{address}/{path}.html")
    found = page.evaluate(FIND_PALE_TEXTS)
    assert found["count"] > 100 and found["pale"] == []
    links = page.locator(".md-content a:not(.headerlink, .md-button)")
    lines = links.evaluate_all("links => links.map(link => getComputedStyle(link).textDecorationLine)")
    assert {*lines} <= {"underline"}
    assert page.get_by_role("dialog", name="Search", exact=True).count() == 1
    page.close()


def test_the_menu_has_four_parts(folder: Path) -> None:
    text = (folder / "index.html").read_text(encoding="utf-8")
    tabs = re.findall(r'<a [^>]*class="md-tabs__link">\s*(\w+)\s*</a>', text)
    assert tabs == ["Start", "Guides", "Reference", "Explanation"]
    assert 'href="log.html"' not in text
    assert (folder / "log.html").exists()


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
    ids = find_page(site, "antislop").ids
    assert {f"antislop.{name}" for name in antislop.__all__} <= ids


def test_every_name_of_a_package_is_in_the_reference(site: dict[Path, Site]) -> None:
    """The rooms of the core, and `lists`, show what doors of the package take, which is promised to nobody else."""
    ids = set().union(*(page.ids for page in site.values()))
    root = Path(antislop.__file__).parents[1]
    for path in {*(root / "antislop").rglob("__init__.pyi")} - {
        *(root / "antislop" / "core").glob("*/__init__.pyi"),
        root / "antislop" / "lists" / "__init__.pyi",
    }:
        package = ".".join(path.parent.relative_to(root).parts)
        names = {f"{package}.{name}" for name in importlib.import_module(package).__all__}
        assert {name for name in names if find_spec(name) is None} <= ids


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
