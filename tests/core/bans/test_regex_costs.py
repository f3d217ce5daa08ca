"""No regex takes more than bounded memory when it is compiled, or more than bounded time when it is searched for."""

from __future__ import annotations

import pickle
import time
from copy import deepcopy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import NamedTuple

import pytest
import regex
from hypothesis import given, strategies as st

import antislop.core.bans.patterns.incremental_regex
from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.patterns.incremental_regex import FEW_PATHS, LETTERS, IncrementalRegex, measure
from antislop.core.bans.patterns.regex import Regex, RegexSearch
from antislop.core.bans.token_matcher import Matcher
from antislop.core.trace.text_pieces import find_spans
from antislop.errors import BanError
from antislop.measure.lint import lint
from tests.support.toys import Bytes


class Written(NamedTuple):
    """A regex, and its number of characters with all repetitions written out."""

    pattern: str
    size: int


def repeated(part: Written, suffix: tuple[str, int]) -> Written:
    mark, copies = suffix
    return Written(f"(?:{part.pattern}){mark}", (part.size + 3) * copies)  # the brackets and the colon


ATOMS = {"a": 1, r"\(": 2, r"\)": 2, "[)(]": 4, "[^]()]": 6, "(?#(:)b": 1, r"\w": 2, r"[\[(]": 5, "{": 1}
SUFFIXES = {"*": 1, "+": 2, "?": 1, "{3}": 4, "{2,}": 3, "{0,5}": 1, "{1}": 1, "+?": 2, "++": 2, "{2,4}?": 3}
written = st.recursive(
    st.sampled_from([*ATOMS.items()]).map(lambda atom: Written(*atom)),
    lambda parts: (
        st.builds(repeated, parts, st.sampled_from([*SUFFIXES.items()]))
        | st.builds(lambda a, b: Written(a.pattern + b.pattern, a.size + b.size), parts, parts)
        | st.builds(lambda a, b: Written(f"({a.pattern}|{b.pattern})", a.size + b.size + 3), parts, parts)
    ),
    max_leaves=8,
)


@given(written)
def test_the_length_of_a_regex_includes_its_repetitions_written_out(one: Written) -> None:
    assert measure(one.pattern).characters == one.size


@given(written, st.sampled_from(["(?x){}", "(?V1){}[a[b]]", "(?x) ( {} # )\n) +"]))
def test_if_a_regex_can_not_be_read_part_by_part_its_length_is_not_underestimated(one: Written, around: str) -> None:
    assert measure(around.format(one.pattern)).characters >= one.size


@pytest.mark.parametrize("suffix", ["+", "+?", "++", "{2}", "{2,}", "{1,3}"])
@pytest.mark.parametrize("around", ["{}", "(?x){}", "(?V1)[[a]b]{}", "(?#\\)){}", "[[:^alpha:](]{}"])
def test_nested_repetitions_are_refused_before_they_are_compiled(
    suffix: str, around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("it would take gigabytes")

    monkeypatch.setattr(regex, "compile", fail)
    with pytest.raises(BanError, match=r"becomes too large, more than 20000 characters .*: shorten it, or nest fewer"):
        Ban.regex(around.format("(?:" * 26 + "a" + f"{suffix})" * 26))


def test_repetitions_one_after_the_other_are_not_too_many() -> None:
    Ban.regex(r"(?:a\w+ )+" * 40)
    Ban.regex(r"\w{1,30}" * 40)


def test_the_total_length_of_the_regexes_of_a_list_is_limited(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    path = tmp_path / "list.json"  # type: ignore[operator]
    path.write_text('["a\\\\w{50}", "b\\\\w{50}"]')
    assert len(BanList.load(path, format="regexes")) == 2
    monkeypatch.setattr("antislop.lists.reading.MAX_WRITTEN_OUT", 200)
    with pytest.raises(BanError, match=r"more than 200 characters in regexes, with their repetitions written out: spl"):
        BanList.load(path, format="regexes")


@pytest.mark.parametrize(
    "pattern", ["(?:a|aa)+b", "(a+)+", "(?:a+b?)*", ".*" * 20 + "b", "(?:a|b|)" * 12, r"(a?)\1", "(?<=a+)b", "(?x)a+"]
)
def test_a_pattern_that_can_be_slow_in_a_short_text_is_always_timed(pattern: str) -> None:
    assert IncrementalRegex(pattern + "c").brief == 0


@pytest.mark.parametrize("pattern", ["delve", r"\bnot (?:just|only) \w+(?: \w+)?, but\b", "a{3}b", "(?:a|b){3}"])
def test_a_pattern_that_can_not_be_slow_is_searched_without_timing(pattern: str) -> None:
    assert IncrementalRegex(pattern).brief == LETTERS
    assert measure(pattern).paths <= FEW_PATHS


# Clocks that advance with every read at them


@dataclass
class Clocks:
    """wall, processor: the seconds by which each reading advances a clock."""

    wall: float = 0.0
    processor: float = 0.0
    time: float = 0.0
    readings: int = 0

    def read(self, step: float) -> float:
        self.readings += 1
        self.time += step
        return self.time


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    timing = antislop.core.bans.patterns.incremental_regex
    monkeypatch.setattr(timing, "perf_counter", lambda: clocks.read(clocks.wall))
    monkeypatch.setattr(
        antislop.core.bans.patterns.incremental_regex, "thread_time", lambda: clocks.read(clocks.processor)
    )
    return clocks


TEXT = b"a text that is long enough for a clock, and longer " * 4
OPEN = Ban.regex(r"(?s)text.*\d")


def read(bans: list[Ban], text: bytes = TEXT, *, matcher: Matcher | None = None) -> Matcher:
    matcher = matcher or Matcher(bans, Bytes())
    list(accumulate(text, matcher.feed, initial=matcher.start()))
    return matcher


def test_a_regex_is_dropped_when_all_of_its_searches_took_too_long(clocks: Clocks) -> None:
    clocks.wall = clocks.processor = 0.02
    with pytest.warns(RuntimeWarning, match=r"took longer than 0.25 seconds in all and is no longer searched for"):
        assert read([OPEN, Ban("cat")]).timed_out == [OPEN]


@pytest.mark.parametrize(("wall", "text"), [(0.5, TEXT), (1e-5, TEXT * 15)])
def test_a_regex_that_takes_little_of_the_processor_is_never_dropped(clocks: Clocks, wall: float, text: bytes) -> None:
    """Even if other processes use the processor meanwhile, or the text is long."""
    clocks.wall, clocks.processor = wall, 1e-5
    assert read([OPEN], text).timed_out == []


def test_a_regex_that_was_dropped_costs_no_more_time(clocks: Clocks) -> None:
    clocks.wall = clocks.processor = 0.02
    with pytest.warns(RuntimeWarning):
        matcher = read([OPEN])
    clocks.readings = 0
    read([OPEN], matcher=matcher)
    assert clocks.readings == 0


def test_the_time_limit_applies_to_each_text_anew(clocks: Clocks) -> None:
    clocks.wall = clocks.processor = 0.1
    bans = BanList([OPEN])
    for _ in range(10):
        assert bans.find("a text 7")


def test_a_slow_computer_refuses_no_regex(clocks: Clocks) -> None:
    clocks.wall, clocks.processor = 0.5, 1e-5
    assert Ban.regex("so+").text == "so+"


@pytest.mark.filterwarnings("error")
def test_a_report_compiles_nothing_and_waits_for_no_regex(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A former fault: a server compiled and tried the regex of each rewind anew, between the answers of all."""
    slow, quick = Ban.regex(r"text.*\d"), Ban.regex(r"\ba+\b")
    monkeypatch.setattr("regex.compile", lambda *_: pytest.fail("compiled"))
    assert find_spans(quick, "text a aa") == [(5, 6), (7, 9)]
    clocks.wall = clocks.processor = 0.002
    assert find_spans(slow, "a text that is long enough for a clock") == []
    assert clocks.time < 0.02


def test_bans_of_one_regex_share_what_was_compiled_and_are_found_apart() -> None:
    ban = Ban.regex("so+")
    shared = [ban, replace(ban, exempt=("so",))]
    assert [match.ban for match in BanList(shared).find("soo")] == shared
    for other in (pickle.loads(pickle.dumps(ban)), deepcopy(ban)):
        assert other == ban and BanList([other]).find("a soo")


# Real patterns, with a small limit


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(antislop.core.bans.patterns.incremental_regex, "TIME_LIMIT", 0.02)


@pytest.mark.usefixtures("hurried")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_search_has_one_time_limit_for_a_text_and_not_one_for_each_position() -> None:
    """A former fault: each position of the text took about the limit, without an error."""
    with pytest.raises(BanError, match=r"^the regex '\(a\+\)\+\$' took longer than .* in all: simplify it, or search"):
        BanList([Ban.regex("(a+)+$", max_span=60)]).find("a" * 300 + "b")


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("pattern", [r"(.+)(.+)\1\2x", "(a+)+$", "(?:(?:(?:(?:a+)+)+)+)+b"])
def test_a_matcher_drops_a_regex_whose_searches_take_too_long_in_all(pattern: str) -> None:
    text = b"a" * 150 + b"bx" * 20
    with pytest.warns(RuntimeWarning, match="is no longer searched for"):
        assert read([Ban.regex(pattern)], text).timed_out == [Ban.regex(pattern)]


@pytest.mark.usefixtures("hurried")
def test_lint_tries_a_slow_regex_for_a_bounded_time_and_reports_it() -> None:
    frequencies = {f"a{'a' * n}b": 1e-3 for n in range(60)}
    assert "slow" in {finding.kind for finding in lint([Ban.regex("(?:a|aa)+c")], frequencies=frequencies)}


@given(st.text("ab*", min_size=1, max_size=6).filter(lambda word: word.strip("*")), st.text("ab", max_size=8))
def test_a_wildcard_word_matches_as_in_a_naive_search(wanted: str, word: str) -> None:
    found = BanList([Ban.wildcard(wanted)]).find(word)
    assert bool(found) == (word != "" and fnmatchcase(word, wanted))


def test_a_wildcard_word_with_many_stars_is_fast() -> None:
    assert not BanList([Ban.wildcard("*a" * 6 + "*b")]).find("a" * 60)


@pytest.mark.usefixtures("hurried")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_many_slow_regexes_take_little_more_time_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to a server may bring a hundred of them, and the texts of others wait."""
    monkeypatch.setattr(antislop.core.bans.patterns.incremental_regex, "SHARED_LIMIT", 0.1)
    search = RegexSearch([Regex(f"(([a-z ])+)+[0-9{chr(200 + number)}][^-]") for number in range(60)])
    state, began = search.start, time.thread_time()
    for _ in range(40):
        state, _ = search.read(state, "a")
    assert len(search.timed_out) == 60
    assert time.thread_time() - began < 1.5
