"""A profile as one self-contained page."""

from __future__ import annotations

from math import log

from antislop.display import describe_count, fill_page, format_number
from antislop.measure.profiles.ngrams import cut_words
from antislop.measure.profiles.profiles import Entry, Profile
from antislop.measure.words import drop_stop_words

SHOWN_AT_ONCE, MAX_SHOWN = 20, 500
"""Entries of a section that are shown at once, and with a click; the others are only in the profile as JSON."""

_SECTIONS = {
    "word": "Words",
    "phrase": "Phrases",
    "content": "Content words in sequence",
    "construction": "Constructions",
    "name": "Names",
    "function": "Function words alone",
}


def render_page(profile: Profile) -> str:
    sections: dict[str, list[Entry]] = {name: [] for name in _SECTIONS}
    for entry in profile.entries:
        sections[_find_section(entry)].append(entry)
    page, _ = fill_page(
        "profile.html",
        styles=("page.css", "report.css"),
        headline=make_headline(profile),
        profile=profile,
        sections=[
            {"name": name, "title": _SECTIONS[name], "size": len(entries), "entries": entries[:MAX_SHOWN]}
            for name, entries in sections.items()
            if entries
        ],
        first=SHOWN_AT_ONCE,
        max_ratio=max((entry.ratio or 1.0 for entry in profile.entries), default=1.0),
        scale=_scale,
    )
    return page


def _find_section(entry: Entry) -> str:
    """Return where an entry is shown: apart if it depends on what a text is about, or on its person and tense."""
    if entry.kind in ("word", "phrase") and not drop_stop_words(cut_words(entry.text)):
        return "function"
    return "name" if entry.is_name and entry.kind == "word" else entry.kind


def make_headline(profile: Profile) -> str:
    """Return the number of entries, and the most certain one without names that says something, as a sentence."""
    telling = (entry for entry in profile.entries if _find_section(entry) in ("word", "phrase") and not entry.is_name)
    entry = next(telling, None)
    size = sum(_find_section(entry) != "function" for entry in profile.entries)
    if entry is None or entry.ratio is None or entry.low is None:
        return f"{describe_count(size, 'entry', 'entries')} in {describe_count(profile.words, 'word')}"
    number = describe_count(size, "entry is", "entries are")
    times = format_number(entry.ratio) if entry.high is not None else f"at least {format_number(entry.low)}"
    return f"{number} overused: “{entry.text}” occurs {times} times as often as in human writing"


def _scale(ratio: float, max_ratio: float) -> float:
    """Return the width of a ratio's bar in percent: logarithmic, 0 for 1."""
    return round(100 * log(max(1.0, ratio)) / max(log(max_ratio), 1e-9), 1)
