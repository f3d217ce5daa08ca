"""The page of a profile shows each entry with its ratio, loads nothing, and fits a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from antislop.display import format_number
from antislop.measure.profiles.profiles import MAX_SHOWN, SHOWN_AT_ONCE, Entry, Profile, make_headline, render_page
from tests.support.browser import FIND_PALE_TEXTS, SIZES, open_browser


def make_entry(kind: str, text: str, number: int, **options: object) -> Entry:
    figures = {"human_count": 3, "human_per_million": 2.0, "ratio": 900.0 / number, "low": 300.0 / number}
    figures |= {"high": 2000.0 / number, "examples": ("…it was <b>his</b> testament to…",)}
    return Entry(kind, text, 100, 50, 20, 100.0, 0.1, **{**figures, **options})  # type: ignore[arg-type]


def make_profile(size: int) -> Profile:
    entries = [
        make_entry("word", "elara", 1, is_name=True),
        make_entry("phrase", "<script>alert(1)</script>", 2, high=None, human_count=None),
        *(make_entry("word", f"unquestionableness{number}", number) for number in range(3, size)),
        make_entry("content", "voice barely", size),
        make_entry("construction", "not X but Y", size + 1),
    ]
    made_with = {"min_count": 5, "min_prompts": 2, "min_ratio": 2.0, "command": "antislop profile a.jsonl", "also": []}
    return Profile(40, 10, 5000, 30_000, {"name": "gutenberg", "words": 1_514_457}, made_with, tuple(entries))


def test_the_headline_names_the_most_certain_entry_that_is_no_name() -> None:
    assert make_headline(make_profile(4)) == (
        "5 entries are overused: “<script>alert(1)</script>” occurs at least 150 times as often as in human writing"
    )
    assert make_headline(Profile(1, 1, 12, 60, None, {}, ())) == "0 entries in 12 words"


def test_function_words_alone_are_not_called_overused() -> None:
    entries = [make_entry("word", "the", 1), make_entry("phrase", "it was", 2), make_entry("phrase", "it was deep", 3)]
    profile = Profile(40, 10, 5000, 30_000, None, make_profile(4).made_with, tuple(entries))
    assert make_headline(profile).startswith("1 entry is overused: “it was deep” occurs 300 times")
    page = render_page(profile)
    assert page.index(">it was deep<") < page.index("Function words alone <small>2 entries") < page.index(">the<")


def test_each_entry_is_on_the_page_with_its_ratio_and_the_rest_is_counted() -> None:
    profile = make_profile(MAX_SHOWN + 30)
    page = render_page(profile)
    words = [entry for entry in profile.entries if entry.text.startswith("unq")]
    for entry in words[:MAX_SHOWN]:
        assert f">{entry.text}<" in page and f"<b>{format_number(entry.ratio or 0)}</b>" in page
    assert f">{words[MAX_SHOWN].text}<" not in page
    assert f"{MAX_SHOWN - SHOWN_AT_ONCE} more of {len(words) - SHOWN_AT_ONCE}; the JSON file has all" in page
    assert page.index('id="construction"') < page.index('id="name"') < page.index(">elara<")


def test_a_profile_without_entries_or_a_baseline_has_a_page() -> None:
    page = render_page(Profile(1, 1, 12, 60, None, {"min_count": 5, "min_prompts": 2, "min_ratio": 0.0}, ()))
    assert "Nothing is overused" in page


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_loads_nothing_and_shows_texts_as_texts(tmp_path: Path, scheme: str) -> None:
    (tmp_path / "page.html").write_text(render_page(make_profile(60)), encoding="utf-8")
    asked: list[str] = []
    with open_browser() as browser:
        width, height = SIZES["phone"]
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "page.html").as_uri())
        assert len(asked) == 1
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator(".table").first.evaluate("table => table.scrollWidth <= table.clientWidth"), "all columns"
        assert page.query_selector("script, td b b, th b") is None
        assert page.evaluate(FIND_PALE_TEXTS)["pale"] == []
        assert page.locator("tr:visible", has_text="unquestionableness59").count() == 0
        page.locator("summary").first.click()
        assert page.locator("tr:visible", has_text="unquestionableness59").count() == 1
