"""Patterns are values, and a new kind of ban is one class and one line of registration."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import groupby, pairwise
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, strategies as st

import antislop.core.bans.patterns
from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import KINDS, Ban
from antislop.core.bans.patterns.pattern import Pattern, PatternMatch, PieceResult, TextSearch, check_number, check_text
from antislop.core.bans.token_matcher import Matcher
from antislop.errors import BanError
from antislop.measure.lint import lint
from tests.support.oracles import cut_at
from tests.support.toys import Words


class RunSearch(TextSearch[tuple[int, ...]]):
    """Find runs of one character. A state is the length of the run that the text ends with, for each pattern."""

    def __init__(self, patterns: Sequence[Run]) -> None:
        self._patterns = patterns
        self.start = (0,) * len(patterns)

    def read(self, state: tuple[int, ...], piece: str, *, final: bool = False) -> tuple[tuple[int, ...], PieceResult]:
        lengths, matches = list(state), []
        for index, char in enumerate(piece):
            for number, pattern in enumerate(self._patterns):
                lengths[number] = lengths[number] + 1 if char == pattern.text else 0
                if lengths[number] == pattern.length:
                    back = len(piece) - index
                    matches.append(PatternMatch(number, back + pattern.length - 1, back))
        open_ = (length for length, pattern in zip(lengths, self._patterns, strict=True) if length < pattern.length)
        return tuple(lengths), PieceResult(tuple(matches), () if final else tuple(filter(None, open_)))

    def forget(self, state: tuple[int, ...]) -> tuple[int, ...]:
        return (0,) * len(state)


@dataclass(frozen=True, slots=True)
class Run(Pattern):
    """A toy: a character that is written `length` times in a row."""

    kind: ClassVar[str] = "run"
    search = RunSearch

    text: str
    length: int = 3

    def __post_init__(self) -> None:
        check_text(self.text)
        check_number("length", self.text, self.length)


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, Run.kind, Run)


TOY = Ban(Run("z", length=4), weight=0.5)


@pytest.mark.usefixtures("_registered")
class TestANewKind:
    def test_is_found_beside_the_others_as_a_naive_search_finds_it(self) -> None:
        bans = BanList(["cat", TOY, Ban.regex("z+"), Ban(Run("a", length=2), exempt=["baa"])])
        text = "zzzz cat aa baa zz zzzzz"
        hits = [(match.ban, match.start) for match in bans.find(text) if isinstance(match.ban.pattern, Run)]
        assert hits == [(TOY, 0), (bans[3], 9), (TOY, 19)]

    @pytest.mark.parametrize("text", ["zzzz", "azzzzzzb zzz zzzz"])
    def test_is_found_however_a_text_is_cut(self, text: str) -> None:
        begins = [0]
        for _, run in groupby(text):
            begins.append(begins[-1] + len(list(run)))
        naive = [a for a, b in pairwise(begins) if text[a] == "z" and b - a >= 4]
        for cuts in ([], [1], [2, 3], [1, 1, 2, 5], range(len(text))):
            found = list(BanList([TOY]).search(cut_at(text, cuts)))
            assert [match.start for step in found for match in step.matches] == naive

    def test_is_a_violation_at_its_first_token(self) -> None:
        matcher = Matcher([TOY], Words("a", "zz", "z", "zb", "zzzz"))
        state = matcher.start()
        for token in (0, 1, 2):
            state = matcher.feed(state, token)
        assert (state.violations, state.earliest_start) == ((), 1)
        (violation,) = matcher.feed(state, 3).violations
        assert violation[:3] == (TOY, 1, 3)

    def test_is_written_and_read_back(self, tmp_path: Path) -> None:
        bans = BanList([TOY, "zz", Ban(Run("a"), at_most=2)])
        bans.save(tmp_path / "list.txt")
        lines = (tmp_path / "list.txt").read_text(encoding="utf-8").splitlines()
        assert lines[1:] == ["z\trun weight=0.5 length=4", "zz", "a\trun at_most=2"]
        assert BanList.load(tmp_path / "list.txt") == bans
        (tmp_path / "list.txt").write_text("a\trun gap=2\n", encoding="utf-8")
        with pytest.raises(BanError, match=r"list.txt:1: the run 'a' has no option gap: it has length$"):
            BanList.load(tmp_path / "list.txt")

    def test_is_linted(self) -> None:
        findings = lint([TOY, Ban("zzz"), Ban(Run("z", length=4))], frequencies={"pizzzza": 1e-4, "cat": 1e-3})
        assert [(finding.index, finding.kind) for finding in findings] == [(2, "duplicate")]
        (finding,) = lint([Ban(Run("z"))], frequencies={"pizzza": 1e-4})
        assert finding.kind == "common"
        (finding,) = lint([Ban("stop!!!"), Ban(Run("!")), Ban("wait!!"), Ban("zzz"), Ban(Run("z"))])
        assert finding.fault == "'stop!!!' is matched by the run '!', which forbids it already"

    def test_is_compared_with_its_own_options(self) -> None:
        other = Ban(Run("z", length=5), weight=0.5)
        assert BanList([TOY]).diff(BanList([other])).changed == ((TOY, other),)
        assert BanList([TOY]).with_options(length=5)[0] == other
        assert repr(TOY) == "Ban(Run(text='z', length=4), weight=0.5)"


EVERY = {
    "phrase": Ban("a Cat", case_sensitive=True, edges="anywhere"),
    "wildcard": Ban.wildcard("a * of*", gap=2, case_sensitive=True),
    "words": Ban.words(["a", "cat"], gap=1, skip_stop_words=True),
    "regex": Ban.regex(r"a\b", max_span=9, weight=0.5),
    "tokens": Ban.tokens([5, 17], count=3),
    "loop": Ban.loop(4, max_passage=200, weight=0.5),
    "repeat": Ban.repeat(5, of="both", weight=0.5),
}


def test_every_kind_in_the_folder_is_registered() -> None:
    folder = Path(antislop.core.bans.patterns.__file__).parent
    modules = [import_module(f"antislop.core.bans.patterns.{path.stem}") for path in folder.glob("*.py")]
    classes = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    named = {kind for kind in classes if issubclass(kind, Pattern) and "kind" in vars(kind)}
    assert named == set(KINDS.values())
    assert set(KINDS) == set(EVERY)


@pytest.mark.parametrize("kind", EVERY)
def test_a_ban_of_any_kind_is_a_value_that_outlives_its_process(kind: str) -> None:
    ban = EVERY[kind]
    assert type(ban.pattern) is KINDS[kind]
    assert eval(repr(ban), {"Ban": Ban}) == ban
    copy = pickle.loads(pickle.dumps(ban))
    assert (copy, hash(copy), copy.count) == (ban, hash(ban), ban.count)
    with pytest.raises(AttributeError):
        ban.pattern.text = "other"


@pytest.mark.parametrize("kind", EVERY)
def test_every_kind_describes_itself(kind: str) -> None:
    pattern = EVERY[kind].pattern
    names = ("a passage 4 times in a row", "5 words of the prompt or the text again")
    assert pattern.describe() in (repr(pattern.text), f"the tokens {pattern.text}", *names)
    assert pattern.key == replace(pattern).key  # type: ignore[type-var]
    with pytest.raises(BanError, match=f"^the {kind} .* has no option colour: "):
        Ban(pattern, colour=1)  # type: ignore[call-arg]


@given(text=st.text(st.sampled_from("az"), max_size=12), places=st.lists(st.integers(0, 12), max_size=4))
def test_the_base_search_never_times_out_and_needs_no_preparation(text: str, places: list[int]) -> None:
    search, size = RunSearch([Run("a"), Run("z", length=1)]), 0
    search.begin()
    assert list(search.timed_out) == []
    state, found = search.start, []
    for piece in cut_at(text, places):
        state, result = search.read(state, piece)
        size += len(piece)
        found += [(hit.pattern, size - hit.start_back) for hit in result.matches]
    whole = RunSearch([Run("a"), Run("z", length=1)])
    _, once = whole.read(whole.start, text)
    assert found == [(hit.pattern, len(text) - hit.start_back) for hit in once.matches]


def test_equal_sequences_of_words_count_once_however_they_are_written() -> None:
    bans = [Ban.words(["Voice", "low"]), Ban.wildcard("voice  LOW"), Ban.words(["voice", "low"], gap=1)]
    assert [match.ban for match in BanList(bans).find("a voice, low")] == [bans[0], bans[2]]


@pytest.mark.parametrize(
    ("bans", "recurs"),
    [([], True), ([Ban("a", exempt=["a b"])], True), ([Ban("a", at_most=1)], False), ([EVERY["words"]], False)],
)
def test_what_hardly_comes_again_is_not_remembered(bans: list[Ban], recurs: bool) -> None:
    """A state with a rest of its own is read anew at each token, and costs no memory of the matcher."""
    assert (Matcher(bans, Words("a")).start()._rest is None) is recurs
