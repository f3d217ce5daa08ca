"""The page of a trace in a browser: by keyboard, on a phone, in both color schemes, with hostile texts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page

from antislop import Ban
from antislop.core.bans.characters import decode
from antislop.core.bans.token_matcher import Violation
from antislop.core.trace import Admitted, Conceded, Drawn, Rewound, Trace
from antislop.core.trace.events import Event, TokenChoice
from antislop.display import make_visible
from tests.support.browser import FIND_PALE_TEXTS, open_browser
from tests.support.toys import Words
from tests.support.traces import EVIL, FALLBACK, NESTED, SPLIT, WORDS, make_marked, make_random_events, make_trace

Scheme = Literal["light", "dark"]

WORDED = ["place in the text", "drawn", "token id", "probability", "of what bans had left", "rank"]

READ_TEXTS = """() => [...document.querySelectorAll('.written')].map(text => {
    const copy = text.cloneNode(true);
    copy.querySelectorAll('del').forEach(attempt => attempt.remove());
    return copy.textContent;
})"""


class Viewer:
    """A browser that shows traces, and collects what a page must not do."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser, self._path = browser, folder / "trace.html"
        self.troubles: list[str] = []
        self.requests: list[str] = []

    def open(
        self, trace: Trace, *, width: int = 1280, scheme: Scheme = "light", fragment: str = "", **options: Any
    ) -> Page:
        """Show a trace in a page of its own."""
        self._path.write_text(trace.to_html(**options), encoding="utf-8")
        page = self._browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("console", lambda message: self.troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.troubles.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(self._path.as_uri() + fragment)
        return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def viewer(browser: Browser, tmp_path: Path) -> Iterator[Viewer]:
    """Show traces; afterwards nothing was logged, opened or loaded but the pages themselves."""
    viewer = Viewer(browser, tmp_path)
    yield viewer
    assert viewer.troubles == []
    assert {address.partition("#")[0] for address in viewer.requests} == {(tmp_path / "trace.html").as_uri()}


def make_full() -> Trace:
    """Return a trace with everything that a page shows, and words too long for a phone."""
    long = "x" * 200
    words = Words("I", " saw", " a", " cat", " dog", " emu", "s", None, long, " conceded", " admitted", "\n")
    choice = TokenChoice(0.5, 0.25, 2, ((8, 0.5), (1, 0.25)))
    events: list[Event] = [
        *NESTED[:-2],
        *(Drawn(token, choice) for token in (8, 11, 8)),
        Rewound(4, (11, 8), Violation(Ban(long), 4, 5)),
        *(Drawn(token, choice) for token in (11, 9, 10, 7)),
        Conceded(Violation(Ban("conceded"), 5, 5)),
        Admitted(Violation(Ban("admitted"), 6, 6)),
    ]
    about = {"model": {"name": long}, "settings": {f"setting_{i}": "w" * 50 for i in range(20)}, "seed": 1}
    return make_trace(words, *[events] * 4, prompt=[1] * 700, about=about)


def read_lines(page: Page) -> list[str]:
    """Return the lines of the tables in the panel."""
    return [" ".join(line.split()) for line in page.locator("#panel tbody tr").all_inner_texts()]


@pytest.mark.parametrize("words", [SPLIT, FALLBACK], ids=["stream", "fallback"])
def test_the_text_without_struck_parts_is_the_decoded_output(viewer: Viewer, words: Words) -> None:
    chance = random.Random(1)
    trace = make_trace(words, *(make_random_events(chance, words) for _ in range(30)), prompt=[0])
    shown = viewer.open(trace).evaluate(READ_TEXTS)
    assert shown == [make_visible(decode(words, row.tokens), keep_layout=True) for row in trace.rows]


def test_nothing_in_a_text_or_a_list_becomes_markup(viewer: Viewer) -> None:
    outlines = []
    for text in (EVIL, "quiet"):
        page = viewer.open(make_marked(text), title=text)
        for number in range(page.locator(".t").count()):
            page.locator(".t").nth(number).focus()
        outlines.append(page.evaluate("() => [...document.querySelectorAll('*')].map(e => e.tagName + e.className)"))
        assert page.evaluate(READ_TEXTS) == [make_visible(f"{text} {text}{text}", keep_layout=True)]
    assert outlines[0] == outlines[1]


@pytest.mark.parametrize("width", [320, 360, 1280])
def test_a_page_fits_the_screen(viewer: Viewer, width: int) -> None:
    page = viewer.open(make_full(), width=width, title="t" * 100)
    page.locator(".t").nth(5).focus()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    aside = page.locator("#details").bounding_box()
    assert aside is not None and aside["x"] >= 0 and aside["x"] + aside["width"] <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast(viewer: Viewer, scheme: Scheme) -> None:
    page = viewer.open(make_full(), scheme=scheme, relevance={(0, 4): [*[1, -1, 0.5, -0.5] * 176]})
    for step in (11, 3):  # the first has relevance, the second was withdrawn
        page.locator(".t").nth(step).focus()
        found = page.evaluate(FIND_PALE_TEXTS)
        assert found["count"] > 50
        assert found["pale"] == []


def test_tokens_and_their_details_are_reached_by_keyboard(viewer: Viewer) -> None:
    page = viewer.open(make_trace(WORDS, NESTED, prompt=[0]))

    def press(key: str) -> str:
        page.keyboard.press(key)
        return str(page.evaluate("document.activeElement.textContent"))

    page.locator("#struck").focus()
    assert press("Tab") == "I"
    assert press("ArrowRight") == " saw"
    assert press("End") == "s"
    assert press("Home") == "I"
    for _ in range(5):
        press("ArrowRight")
    panel = page.locator("#panel")
    assert page.evaluate("document.activeElement.textContent") == " cat"
    assert "The text before it was itself withdrawn later." in panel.inner_text()
    assert "Likeliest" not in panel.inner_text()
    assert press("ArrowRight") == " dog"
    assert "Withdrawn: saw a dog, 3 tokens, because of the ban “a dog”." in panel.inner_text()
    assert panel.locator("dt").all_inner_texts() == WORDED
    facts = ["after 3 tokens", "after 6 draws", "4", "20.0\u00a0%", "40.0\u00a0%", "2 in order of probability"]
    assert panel.locator("dd").all_inner_texts() == facts
    assert read_lines(page) == ["␣emu 60.0 %", "␣dog (drawn) 40.0 %"]
    assert page.locator("#status").inner_text() == "withdrawn: ␣dog, probability 20.0\u00a0%, rank 2"
    assert press("ArrowRight") == " emu"
    assert "Rejected in its place" in panel.inner_text()
    assert "saw a dog because of the ban “a dog”" in panel.inner_text()
    press("Escape")
    assert "Point to a token" in panel.inner_text()


def test_the_banned_part_of_withdrawn_text_is_red_and_the_rest_gray(viewer: Viewer) -> None:
    """In the text and in the panel; the space before an attempt is not struck through, and attempts are apart."""
    events = [Drawn(0), Drawn(2), Drawn(3), Drawn(1), Rewound(1, (2, 3, 1), Violation(Ban("cat"), 2, 2)), Drawn(4)]
    page = viewer.open(make_trace(WORDS, [*events[:-1], *events[1:]]))
    page.locator(".t").last.focus()
    read = """nodes => nodes.map(node => [...node.querySelectorAll('span[class]:not(.t)')].map(part =>
        [getComputedStyle(part).color, getComputedStyle(part).textDecorationLine, part.textContent]))"""
    red, gray = "rgb(179, 38, 30)", "rgb(95, 97, 100)"
    parts = [[gray, "a"], [gray, " "], [red, "cat"], [gray, " saw"]]
    expected = [[[color, "line-through", text] for color, text in parts]] * 2
    assert page.locator(".written del").evaluate_all(read) == expected
    assert page.locator("#panel del").evaluate_all(read) == expected
    assert page.locator(".written del").nth(1).evaluate("node => parseFloat(getComputedStyle(node).marginLeft)") > 0


@pytest.mark.parametrize(("ink", "paper"), [("#1b1c1e", "#ffffff"), ("#e8e8e6", "#111111")], ids=["light", "dark"])
def test_withdrawn_text_is_red_or_gray_in_notebooks_of_both_schemes(browser: Browser, ink: str, paper: str) -> None:
    """And has enough contrast, though the output does not know the scheme; successive attempts are apart."""
    cat = Violation(Ban("cat"), 2, 2)
    events: list[Event] = [Drawn(0), Drawn(2), Drawn(3), Drawn(1), Rewound(1, (2, 3, 1), cat)]
    trace = make_trace(WORDS, [*events, *events[1:], Drawn(4)])
    page = browser.new_page()
    page.set_content(f'<body style="color: {ink}; background: {paper}">{trace._repr_html_()}</body>')
    assert page.evaluate(FIND_PALE_TEXTS)["pale"] == []
    read = "parts => parts.map(part => getComputedStyle(part).color.match(/[\\d.]+/g).slice(0, 3).map(Number))"
    colors = [page.locator(f"del span:text-is('{text}')").evaluate_all(read) for text in ("cat", "saw")]
    assert [len(found) for found in colors] == [2, 2]
    assert all(red > 1.5 * max(green, blue) for red, green, blue in colors[0])
    assert all(max(color) < 1.05 * min(color) for color in colors[1])
    gaps = page.locator("del").evaluate_all("all => all.map(one => parseFloat(getComputedStyle(one).marginLeft))")
    assert [gap > 0 for gap in gaps] == [False, True]
    page.close()


def test_the_time_line_marks_each_rewind_with_a_dot(viewer: Viewer) -> None:
    mark = viewer.open(make_trace(WORDS, NESTED)).locator(".plot .mark")
    style = mark.evaluate(
        "node => { const s = getComputedStyle(node); return [s.strokeLinecap, s.strokeWidth, s.vectorEffect]; }"
    )
    assert style == ["round", "8px", "non-scaling-stroke"]
    assert (mark.get_attribute("d") or "").count("h0") == 3


def test_focus_is_visible_and_only_one_token_is_a_stop_of_the_tab_key(viewer: Viewer) -> None:
    page = viewer.open(make_trace(WORDS, NESTED, NESTED))
    page.locator("#struck").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("ArrowRight")
    assert page.locator(".t[tabindex='0']").count() == 2
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.written').dataset.row") == "1"


def test_pointing_shows_details_and_withdrawn_text_can_be_hidden(viewer: Viewer) -> None:
    page = viewer.open(make_trace(WORDS, NESTED))
    page.locator(".t").nth(6).hover()
    assert "60.0\u00a0%" in page.locator("#panel").inner_text()
    page.locator("#struck").uncheck()
    assert page.locator(".written").inner_text() == "I emus"
    page.locator(".t").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == " emu"


def test_relevance_shades_earlier_tokens_and_names_the_most_relevant(viewer: Viewer) -> None:
    page = viewer.open(make_trace(WORDS, NESTED, prompt=[0, 1]), relevance={(0, 2): [0.5, -0.25, 0.0, 1.0]})
    shaded = (
        "() => [...document.querySelectorAll('.more, .less')].map(e => [e.textContent, e.classList.contains('more')])"
    )
    assert page.evaluate(shaded) == [["I", True], [" saw", False], [" emu", True]]
    assert read_lines(page)[:3] == ["␣emu 1.00", "I 0.500", "␣saw -0.250"]
    assert page.locator(".jump button").all_inner_texts() == ["2 s"]
    page.locator(".t").first.click()
    assert page.evaluate(shaded) == []
    page.locator(".jump button").click()
    assert len(page.evaluate(shaded)) == 3


def test_a_text_without_tokens_has_a_page_too(viewer: Viewer) -> None:
    assert viewer.open(make_trace(WORDS, [])).evaluate(READ_TEXTS) == [""]
    assert viewer.open(make_trace(WORDS)).evaluate(READ_TEXTS) == []


def test_tokens_of_a_ban_that_stays_name_it(viewer: Viewer) -> None:
    cat, dog = (Violation(Ban(text), 0, 0) for text in ("cat", "dog"))
    events = [Drawn(3), Conceded(cat), Rewound(0, (3,), cat), Drawn(4), Admitted(dog), Drawn(5)]
    page = viewer.open(make_trace(WORDS, events))

    def read(step: int) -> str:
        page.locator(".t").nth(step).focus()
        return page.locator("#panel").inner_text()

    assert "Stays" not in read(0)
    assert "Stays in the text with the ban “dog”: admitted, as its weight allows." in read(1)
    assert "Stays" not in read(2)


def test_an_address_may_name_a_token(viewer: Viewer) -> None:
    trace = make_trace(WORDS, NESTED, NESTED)
    for fragment, row, text in (("#token-1", 0, " emu"), ("#text-1-token-2", 1, "s")):
        shown = viewer.open(trace, fragment=fragment).locator(".t.on")
        assert shown.inner_text() == text
        assert shown.evaluate("element => element.row") == row
    for fragment in ("#token-3", "#text-2-token-0", "#bans"):
        assert viewer.open(trace, fragment=fragment).locator(".t.on").count() == 0


def test_a_page_is_legible_without_its_script(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "trace.html").write_text(make_trace(WORDS, NESTED).to_html(), encoding="utf-8")
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto((tmp_path / "trace.html").as_uri())
        assert "These details need JavaScript" in page.locator("aside").inner_text()
        assert page.locator("del[title]").first.get_attribute("title") == "ban: a dog"
        assert page.locator("table.bans tbody tr").count() == 2


def test_the_page_is_marked_up_for_screen_readers(viewer: Viewer) -> None:
    page = viewer.open(make_trace(WORDS, NESTED))
    page.locator(".t").nth(6).focus()
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("h1").count() == 1
    assert page.evaluate("[...document.querySelectorAll('table')].every(t => t.caption && t.tHead.rows.length)")
    assert page.evaluate("[...document.querySelectorAll('th')].every(cell => cell.scope)")
    assert page.evaluate("[...document.querySelectorAll('svg')].every(svg => svg.getAttribute('aria-label'))")
    assert page.evaluate("[...document.querySelectorAll('input')].every(input => input.labels.length)")
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(heading => +heading.tagName[1])")
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(ids) == len(set(ids))
