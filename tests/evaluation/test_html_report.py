"""The page is whole in a real browser: nothing is fetched, cut off or overlapping, and each number is that of the data.

The evaluation is of random texts, with long names and phrases, an undefined value, and an arm nobody knows.
"""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from antislop import BanList
from antislop.display import format_number
from antislop.evaluation.evaluation import LIST_METRICS, SUPPRESSION, ArmSize, EstimateRow, Evaluation, evaluate
from antislop.evaluation.figures import draw_figures
from antislop.evaluation.html_report import find_tables, inline, make_headline, render_page, summarize, write_report
from antislop.evaluation.outputs import Output, Piece
from antislop.measure.estimates import Estimate
from tests.support.browser import SIZES, open_browser

ABOUT = {
    "command": "antislop eval -o report/ --bans list.txt",
    "made_with": {"model": "a/model", "generation": {"max_new_tokens": 12}, "arms": ["plain", "banned"], "key": None},
    "lists": {"made_from": {"source": "list.txt", "bans": 2, "sha256": "0"}, "held_out": None},
    "versions": {"python": "3.11"},
    "machine": "a processor, 2 cores",
    "seed": 0,
    "date": "2026-01-01T00:00:00+00:00",
    "notes": ["A note with <b>markup</b> & more."],
}
PHRASES = {
    "plain": ["a shiny tapestry", "she whispered extraordinarily incomprehensible nothings to", "whisper"],
    "banned": ["the quiet hum of the refrigerator", "testament"],
    "token": ["uncharacteristically", "ozone"],
    "prompt-only": ["a shiny tapestry", "<script>alert(1)</script>"],
    "somebody else's arm": ["whisper", "of course"],
    "tuned-and-sampler": ["of course"],
}
OVERLAPS = """
() => [...document.querySelectorAll("svg")].flatMap(svg => {
  const texts = [...svg.querySelectorAll("text")].map(each => [each.textContent, each.getBoundingClientRect()]);
  const frame = svg.getBoundingClientRect();
  const found = [];
  texts.forEach(([name, box], i) => {
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
        || box.bottom > frame.bottom + 1) found.push([name, "is cut off"]);
    texts.slice(0, i).forEach(([other, rival]) => {
      const wide = Math.min(box.right, rival.right) - Math.max(box.left, rival.left);
      const high = Math.min(box.bottom, rival.bottom) - Math.max(box.top, rival.top);
      if (wide > 1 && high > 3) found.push([name, other]);
    });
  });
  return found;
})
"""


def write(arm: str, *, prompts: int = 30) -> list[Output]:
    dice = random.Random(arm)
    outputs = []
    for key in range(prompts):
        words = dice.choices([*PHRASES[arm], "the old house", "said nothing.", "\n\nThen it"], k=40)
        tokens = 60 + dice.randrange(20)
        costs = {"tokens": tokens, "nll": 2.1 * tokens + dice.random(), "violations": 1, "withdrawn_tokens": 3}
        costs |= {"conceded": 0, "forward_passes": tokens + 3}
        text = " ".join(words)
        pieces = [Piece(text, "kept"), Piece(" withdrawn <i>", "withdrawn")] if arm == "banned" else []
        outputs.append(Output(f"p{key}", 0, text, costs, "Write & tell <me> a story. " * 9, pieces))
    return outputs


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    bans = BanList(["a shiny tapestry", "she whispered extraordinarily incomprehensible nothings to", "whisper"])
    held_out = BanList(["whisper", "never seen"])
    return evaluate({arm: write(arm) for arm in PHRASES}, made_from=bans, held_out=held_out, resamples=100)


@pytest.fixture(scope="module")
def folder(evaluation: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(folder, evaluation, ABOUT)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module", params=[(size, scheme) for size in SIZES for scheme in ("light", "dark")])
def page(request: pytest.FixtureRequest, browser: Browser, folder: Path) -> Iterator[Page]:
    size, scheme = request.param
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda asked: messages.append(asked.url))
    page.goto((folder / "report.html").as_uri())
    assert messages == [(folder / "report.html").as_uri()], "nothing but the page is asked for"
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    yield page
    context.close()


def test_nothing_is_wider_than_the_screen(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    boxes = page.evaluate("[...document.querySelectorAll('p, figure, pre, h2, dl, article')].map(e => e.scrollWidth)")
    assert max(boxes) <= page.evaluate("innerWidth")


def test_figures_have_a_size_and_texts_that_can_be_read(page: Page) -> None:
    boxes = page.evaluate("[...document.querySelectorAll('svg, img')].map(e => e.getBoundingClientRect().toJSON())")
    assert len(boxes) >= 6
    assert all(box["width"] > 300 and box["height"] > 80 for box in boxes)
    sizes = page.evaluate(
        "[...document.querySelectorAll('svg')].flatMap(svg => [...svg.querySelectorAll('text')].map(e =>"
        " parseFloat(getComputedStyle(e).fontSize) * svg.getScreenCTM().a))"
    )
    assert min(sizes) > 8


def test_no_text_of_a_figure_lies_on_another_or_is_cut_off(page: Page) -> None:
    assert page.evaluate(OVERLAPS) == []


def test_no_number_of_a_table_is_broken_into_lines(page: Page) -> None:
    count_lines = """cells => cells.map(cell => {
        const content = document.createRange();
        content.selectNodeContents(cell);
        return content.getClientRects().length;
    })"""
    lines = [page.locator(cells).evaluate_all(count_lines) for cells in (".table:has(caption:text('arms')) td", "td b")]
    assert [set(counts) for counts in lines] == [{1}, {1}]


def test_figures_and_tables_have_accessible_names(page: Page) -> None:
    for figure in page.query_selector_all("svg"):
        title = page.query_selector(f"[id='{figure.get_attribute('aria-labelledby')}']")
        assert title is not None and title.inner_text()
    assert page.evaluate("[...document.querySelectorAll('figure')].every(e => e.querySelector('figcaption'))")
    assert page.evaluate("[...document.querySelectorAll('th')].every(e => e.getAttribute('scope'))")
    assert page.evaluate("[...document.querySelectorAll('table')].every(e => e.querySelector('caption'))")


def test_ink_stands_out_from_paper(page: Page) -> None:
    pairs = page.evaluate(
        "[...document.querySelectorAll('p, th, td, small, figcaption, .arm, svg text')].map(e => "
        "[e.closest('svg') ? getComputedStyle(e).fill : getComputedStyle(e).color,"
        " getComputedStyle(document.body).backgroundColor])"
    )
    for ink, paper in {tuple(pair) for pair in pairs}:
        assert contrast(ink, paper) >= 4.5, (ink, paper)


def contrast(ink: str, paper: str) -> float:
    """The contrast ratio of WCAG 2.2, https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""

    def luminance(color: str) -> float:
        parts = [float(part) for part in re.findall(r"[\d.]+", color)[:3]]
        scaled = parts if color.startswith("color(") else [part / 255 for part in parts]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in scaled]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


TABLES = """
() => [...document.querySelectorAll("table.estimates")].map(table => [
  [...table.querySelectorAll("thead th")].slice(1).map(head => head.innerText),
  table.getAttribute("data-against") || "",
  [...table.querySelectorAll("tbody tr")].map(line => [
    line.getAttribute("data-metric") || "", [...line.querySelectorAll("td")].map(cell => cell.innerText)
  ])
])
"""
"""Of each table: its arms, the arm that they are held against, and per line the metric and what each cell shows."""


def test_each_number_of_the_tables_is_that_of_the_data(page: Page, folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    known = {(row["arm"], row["metric"], row["against"] or ""): row for row in summary["rows"]}
    seen = set()
    for arms, against, lines in page.evaluate(TABLES):
        for metric, cells in lines:
            for arm, shown in zip(arms, cells, strict=True):
                name = arm, metric, against
                if name not in known:
                    assert shown == "–"
                    continue
                assert_shows(shown, known[name])
                seen.add(name)
    left_out = page.inner_text("body")
    for name in known.keys() - seen:
        assert known[name]["value"] is None and known[name]["why"] in left_out


def assert_shows(shown: str, row: dict[str, Any]) -> None:
    if row["value"] is None:
        assert shown == row["why"]
        return
    numbers = [format_number(row["value"])]
    numbers += [] if row["low"] is None else [format_number(row["low"]), format_number(row["high"])]
    assert re.findall(r"−?[\d.,]+", shown)[: len(numbers)] == numbers


def test_texts_of_others_are_shown_as_text_and_never_as_markup(page: Page) -> None:
    assert page.query_selector("script, i") is None
    assert "<script>alert(1)</script>" in page.inner_text("body")
    assert "A note with <b>markup</b> & more." in page.inner_text("body")
    assert page.query_selector("del") is not None
    assert page.query_selector("mark") is not None


def test_the_table_as_a_file_is_the_data_too(folder: Path) -> None:
    rows = json.loads((folder / "summary.json").read_text())["rows"]
    with (folder / "summary.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(rows)
    for line, row in zip(table, rows, strict=True):
        assert {name: line[name] for name in ("arm", "metric", "unit")} == {
            name: row[name] for name in ("arm", "metric", "unit")
        }
        for name in ("value", "low", "high"):
            assert (float(line[name]) if line[name] else None) == row[name]


def test_each_figure_is_a_file_of_both_kinds(folder: Path) -> None:
    changed = {
        f"changes-{arm}" for arm in ("banned", "token", "prompt-only", "somebody-else-s-arm", "tuned-and-sampler")
    }
    found = {path.stem for path in folder.glob("*.svg")}
    assert found == {"suppression", "excess", "distance", *changed}
    assert {path.stem for path in folder.glob("*.png")} == found
    for path in folder.glob("*.svg"):
        text = path.read_text()
        assert "<text" in text
        assert "var(" not in text
        assert "http://www.w3.org" in text


@pytest.mark.slow
def test_the_same_evaluation_makes_the_same_files(folder: Path, evaluation: Evaluation, tmp_path: Path) -> None:
    write_report(tmp_path, evaluation, ABOUT)
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_page_contains_nothing_about_the_machine(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert str(folder) not in page
    assert str(Path.home()) + "/" not in page


def test_a_reader_sees_the_headline_an_index_and_one_table_before_opening_the_details(
    browser: Browser, folder: Path
) -> None:
    page = browser.new_page()
    page.goto((folder / "report.html").as_uri())
    assert page.inner_text("h1").startswith("In the banned arm, hits of the list fell by 100")
    links = page.eval_on_selector_all("nav a[href^='#']", "links => links.map(link => link.hash)")
    assert links == ["#figures", "#examples", "#bans", "#tables", "#changes", "#method", "#made"]
    assert all(page.query_selector(link) for link in links)
    assert page.locator("table.estimates:visible").count() == 1
    assert page.locator("details:not([open])").count() > 5
    page.close()


def test_no_row_and_no_column_of_a_table_is_without_a_value() -> None:
    arms = {"plain": [Output("p", 0, "One short text.")], "banned": [Output("p", 0, "Another one.")]}
    tables = find_tables(evaluate(arms, made_from=BanList(["never"]), resamples=10))
    assert any(table["left_out"] for table in tables)
    for table in tables:
        values = [
            [cells[arm] is not None and cells[arm].value is not None for arm in table["arms"]]
            for _, cells in table["rows"]
        ]
        assert all(map(any, values)) and all(map(any, zip(*values, strict=True)))
        assert all(table["left_out"])


def test_a_figure_shows_more_than_two_changes(evaluation: Evaluation) -> None:
    changes = {arm: each[:2] for arm, each in evaluation.changes.items()}
    assert not any(name.startswith("changes") for name in draw_figures(replace(evaluation, changes=changes)))


def make_rows(arm: str, name: str, before: float, after: float, low: float, high: float) -> list[EstimateRow]:
    metrics = {metric.name: metric for metric in (*LIST_METRICS, *SUPPRESSION)}
    suppressed = Estimate(100 * (1 - after / before), low, high)
    return [
        EstimateRow("plain", metrics[name], None, Estimate(before, None, None)),
        EstimateRow(arm, metrics[name], None, Estimate(after, None, None)),
        EstimateRow(arm, metrics[f"{name}_suppressed"], "plain", suppressed),
    ]


@pytest.mark.parametrize(
    ("rows", "headline"),
    [
        (
            [("made_from", 38.1, 0.762, 95, 99), ("held_out_only", 7.63, 11.6, -130, 12)],
            "Hits of the list fell by 98 %, from 38.1 to 0.76 per 1,000 words; those of the held-out list alone rose "
            "by 52 %, from 7.63 to 11.6 per 1,000 words, which may be chance",
        ),
        ([("made_from", 10, 20, -150, -60)], "Hits of the list rose by 100 %, from 10.0 to 20.0 per 1,000 words"),
        ([("made_from", 500, 1, 99, 100)], "Hits of the list fell by more than 99 %, from 500 to 1.00 per 1,000 words"),
        ([("made_from", 10, 10, -20, 20)], "Hits of the list stayed at 10.0 per 1,000 words"),
        ([], "The plain texts contain no entry of the list"),
    ],
)
def test_the_headline_says_what_fell_what_rose_and_what_may_be_chance(
    rows: list[tuple[str, float, float, float, float]], headline: str, evaluation: Evaluation
) -> None:
    sizes = {arm: ArmSize(24, 24, 5000, 7000, 0) for arm in ("plain", "banned")}
    measured = [each for row in rows for each in make_rows("banned", *row)]
    assert make_headline(replace(evaluation, sizes=sizes, rows=measured)) == headline.replace(" %", "\u00a0%")


def test_a_page_without_figures_and_changes_is_whole() -> None:
    bare = evaluate({"mine": [Output(None, 0, "One text.")]}, made_from=BanList(["never"]), resamples=10)
    page = render_page(bare, ABOUT, {})
    assert "There is no plain arm" in page
    assert "no arm to compare with another" in summarize(bare)
    assert make_headline(bare) == "What bans change"
    assert "unknown" in page


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (100.0, "100"), (99.96, "100.0"), (0.0994, "0.099"), (-3.14159, "−3.14"), (12345.6, "12,346")],
)
def test_numbers_have_three_digits_or_so(value: float, shown: str) -> None:
    assert format_number(value) == shown


def test_inline_figures_share_no_ids() -> None:
    svg = '<?xml?><svg width="9" viewBox="0 0 9 9" x="1"><g id="a"/><use href="#a" clip-path="url(#b)"/></svg>'
    shown = inline(svg, "one", {})
    assert 'id="one-a"' in shown and 'href="#one-a"' in shown and "url(#one-b)" in shown
    assert "<?xml" not in shown and 'width="9"' not in shown
