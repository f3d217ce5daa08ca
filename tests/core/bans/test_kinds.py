r"""Regexes, sequences of words, wildcards and token ids match as a naive search of the whole text does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise

import pytest
import regex
from hypothesis import assume, example, given, strategies as st

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.scopes import Scope
from antislop.core.bans.text_matcher import TextMatcher
from antislop.core.bans.token_matcher import Matcher, Violation
from antislop.errors import BanError
from tests.support.oracles import cut_at, find_in_pieces, matches, sequence_occurrences
from tests.support.refusals import refused
from tests.support.toys import Bytes, Markov, Words, run

PATTERNS = (
    r"ab", r"a+", r"a+?b", r"\bab?\b", r"a$", r"(?m)a$", r"(?m)^b", r"^a", r"b\Z", r"a(?!b)", r"a(?=.*b)",
    r"(?s)a.*b", r"a.{0,3}b", r"(?<=b)a", r"(?<!b)a\b", r"(?<=^.{2})a", r"(a|b)\1", r"(?P<x>a)b(?P=x)", r"\Bb",
    r"(?i)AB+", r"[^.\n]+\.", r"a(?:ba)*b?", r"(?>a+)b", r"a++", r"(a)?(?(1)b|\.)", r"not .{0,9}?but",
    r"(?x) a b # $ \b", r"a|ab|abb", r"[$\b]a", r"\.\s", r"(?s)a.{2,}?b", r"(?:a|aa)+\.", r"\S+\n", r"(?i)(?:s|ß)+",
)  # fmt: skip
REMEMBERED = [pattern for pattern in PATTERNS if "(?<" not in pattern]  # look-behinds depend on more
texts = st.text(st.sampled_from("aab b.\nsS"), max_size=24)
places = st.lists(st.integers(0, 40), max_size=8)


@given(text=texts, cuts=places, pattern=st.sampled_from(PATTERNS))
def test_matches_do_not_depend_on_how_a_text_is_cut(text: str, cuts: list[int], pattern: str) -> None:
    expected = [(0, *span) for span in matches(pattern, text)]
    assert find_in_pieces([Ban.regex(pattern)], cut_at(text, cuts)) == expected


@given(text=texts, cuts=places, chosen=st.sets(st.sampled_from(PATTERNS), min_size=2))
def test_regexes_together_match_as_each_does_alone(text: str, cuts: list[int], chosen: set[str]) -> None:
    patterns = sorted(chosen)
    expected = sorted((i, *span) for i, pattern in enumerate(patterns) for span in matches(pattern, text))
    assert find_in_pieces([Ban.regex(pattern) for pattern in patterns], cut_at(text, cuts)) == expected


@given(
    read=st.lists(st.tuples(texts, places), min_size=2, max_size=4),
    chosen=st.sets(st.sampled_from(REMEMBERED), min_size=1, max_size=3),
)
@example(read=[("ba.", [1, 2]), (" a.", [1, 2])], chosen={r"\bab?\b"})
def test_a_search_remembers_nothing_wrong_of_the_texts_that_it_has_read(
    read: list[tuple[str, list[int]]], chosen: set[str]
) -> None:
    bans = [Ban.regex(pattern) for pattern in sorted(chosen)]
    matcher = TextMatcher(bans)
    for text, cuts in read:
        pieces = cut_at(text, cuts)
        assert find_in_pieces(bans, pieces, matcher=matcher) == find_in_pieces(bans, pieces)


@given(text=texts, cuts=places, pattern=st.sampled_from([r"ab", r"a.*", r"a.*b", r"a+", r"(?s)a.*?\."]))
@pytest.mark.parametrize("max_span", [1, 2, 5])
def test_a_match_is_found_up_to_its_max_span(max_span: int, text: str, cuts: list[int], pattern: str) -> None:
    expected = [(0, *span) for span in matches(pattern, text, max_span=max_span)]
    assert find_in_pieces([Ban.regex(pattern, max_span=max_span)], cut_at(text, cuts)) == expected


SEQUENCES = (
    Ban.words(["a", "b"]),
    Ban.words(["a", "b", "c"], gap=1),
    Ban.words(["a", "a", "b"], gap=2),
    Ban.words(["b", "c"], gap=1, skip_stop_words=True),
    Ban.words(["ab"], gap=3),
    Ban.words(["a'b", "c"], gap=1),
    Ban.wildcard("b * c", gap=2),
    Ban.wildcard("b * * c", gap=2),
    Ban.wildcard("a* c"),
    Ban.wildcard("*b c*"),
    Ban.wildcard("a*b"),
    Ban.wildcard("b c", gap=0),
)
sentences = st.text(st.sampled_from("aabc   .'-tTBC\n"), max_size=30)


@given(text=sentences, cuts=places, ban=st.sampled_from(SEQUENCES))
@example(text="b'c a the c", cuts=[], ban=SEQUENCES[3])
def test_sequences_match_as_in_a_naive_search_however_the_text_is_cut(text: str, cuts: list[int], ban: Ban) -> None:
    expected = [(0, *span) for span in sorted(sequence_occurrences(text, ban))]
    assert find_in_pieces([ban], cut_at(text, cuts)) == expected


@given(text=sentences, cuts=places)
def test_sequences_together_match_as_each_does_alone(text: str, cuts: list[int]) -> None:
    expected = sorted((i, *span) for i, ban in enumerate(SEQUENCES) for span in sequence_occurrences(text, ban))
    assert find_in_pieces(SEQUENCES, cut_at(text, cuts)) == expected


# In tokens


def violations(
    bans: Sequence[Ban], words: Words, tokens: Sequence[int], *, prompt: Sequence[int] = (), **options: bool
) -> list[Violation]:
    """Return every violation of a text that ends after the tokens."""
    matcher = Matcher(bans, words)
    states = list(accumulate(tokens, matcher.feed, initial=matcher.start(prompt, **options)))
    return [*chain.from_iterable(state.violations for state in states[1:]), *matcher.finish(states[-1])]


KINDS = (
    Ban.regex("é+b"),
    Ban.regex(r"\bb\b"),
    Ban.words(["a", "é"], gap=1),
    Ban.wildcard("b*"),
    Ban("aé", edges="anywhere", exempt=["aéb", "b aé"]),
    Ban("b", at_most=1, per_words=3),
    Ban("é", edges="anywhere", scopes=[Scope("inside", "quotes")]),
    Ban("a b"),
)


@given(text=st.text(st.sampled_from('abé "'), max_size=16), cuts=places, bans=st.sets(st.sampled_from(KINDS)))
def test_a_violation_begins_in_the_token_of_its_first_character_or_byte(
    text: str, cuts: list[int], bans: set[Ban]
) -> None:
    data = text.encode()
    edges = [0, *sorted(place % (len(data) + 1) for place in cuts), len(data)]
    words = Words(*(data[start:end] for start, end in pairwise(edges)))
    listed = sorted(bans, key=str)
    matcher = Matcher(listed, words)
    states = list(accumulate(range(len(words)), matcher.feed, initial=matcher.start()))
    owner = [sum(edge <= len(text[:i].encode()) for edge in edges[1:-1]) for i in range(len(text))]
    while_empty = {i for i, edge in enumerate(edges[:-1]) if edge == edges[i + 1]}
    found = sorted(
        (listed.index(violation.ban), violation.start) for violation in violations(listed, words, range(len(words)))
    )
    assert not while_empty & {start for _, start in found}
    for violation in chain.from_iterable(state.violations for state in states):
        assert all(state.earliest_start <= violation.start for state in states[: violation.end + 1]), (
            "its text was released too early"
        )
    assert all(states[-1].earliest_start <= violation.start for violation in matcher.finish(states[-1]))
    expected = [(i, owner[start]) for i, start, _ in find_in_pieces(listed, [text])]
    assert len(found) <= len(expected)  # a token may complete a ban twice, as '"b"b"' does: one violation
    assert set(found) == set(expected)


def test_a_match_at_the_end_of_an_unfinished_text_is_decided_by_the_text_after_it() -> None:
    for pattern, rest in ((r"cat\b", " "), (r"cats?", " "), (r"cat$", None), (r"cat(?!s)", "."), (r"cat(?= )", " ")):
        matcher = Matcher([Ban.regex(pattern)], Bytes())
        state = list(accumulate(b"a cat", matcher.feed, initial=matcher.start()))[-1]
        assert (state.violations, state.earliest_start) == ((), 2), pattern
        after = matcher.finish(state) if rest is None else matcher.feed(state, ord(rest)).violations
        assert [violation.start for violation in after] == [2], pattern


def test_a_text_in_which_no_regex_has_begun_is_not_held_back() -> None:
    bans = [Ban.regex(r"\bnot just\b.{0,20}but"), Ban.regex("(?i)delve"), Ban.words(["barely", "whisper"], gap=2)]
    matcher = Matcher(bans, Bytes())
    state = matcher.start()
    for length, byte in enumerate(b"Rain fell softly all through the night.", start=1):
        state = matcher.feed(state, byte)
        if byte == ord(" "):
            assert state.earliest_start == length


def test_edges_and_look_behinds_refer_to_the_whole_text() -> None:
    long = "x" * 1000
    assert violations([Ban.regex("^x")], Bytes(), long.encode())[0].start == 0
    assert len(violations([Ban.regex("^x")], Bytes(), long.encode())) == 1
    assert len(violations([Ban.regex(r"(?<=^x{999})x")], Bytes(), long.encode())) == 1
    assert not violations([Ban.regex(r"\bx\b")], Bytes(), long.encode())
    assert [v.start for v in violations([Ban.regex(r"\bb")], Bytes(), b"b", prompt=b"a")] == []
    assert [v.start for v in violations([Ban.regex(r"^b")], Bytes(), b"b", prompt=b"a")] == [0]


# A reply begins behind its prompt, whatever that ends with

CHARS = Words(*(chr(i) for i in range(128)), None)
PROMPTS = {
    "a chat that ends with a line": "\x80user\na{}\x80assistant\n",
    "a chat that ends with an empty line": "\x80user\x80\n\na{}\x80assistant\x80\n\n",
    "a chat that ends with a special token": "\x80a{}\x80",
    "a chat that ends with a bracket": "[INST] a{} [/INST]",
    "instructions": "### Instruction:\na{}\n\n### Response:\n",
    "a text": "a{}",
}
atoms = st.sampled_from(
    ["a", "b", ".", r"\s", r"\s*", r"\b", "$", r"\Z", "(?<=a)", "(?<!b)", "(?<!.)", "[^a]", "\n", " ?"]
)
parts = st.lists(atoms, max_size=3).map("".join)
anchors = st.sampled_from([r"\A", "^", "(?m:^)", "(?:^|b)", r"(?<=^.)", r"(?<!\A)"])
anchored = st.builds("{}{}{}{}{}".format, st.sampled_from(["", "(?m)", "a|", r"b\b|"]), parts, anchors, parts, atoms)


@pytest.mark.parametrize("prompt", PROMPTS)
@given(
    end=st.sampled_from([" ", "\n", "b", ""]),
    pattern=anchored,
    reply=st.text(st.sampled_from("ab.\n "), max_size=9),
    drops_space=st.booleans(),
)
@example(end="b", pattern=r"\Aa", reply=" a", drops_space=True)
@example(end="b", pattern=r"\Aa", reply=" a", drops_space=False)
@example(end=" ", pattern=r"(?m)^\s*b", reply="a\n  b", drops_space=False)
def test_an_anchored_regex_finds_in_a_reply_what_it_finds_in_its_text_alone(
    prompt: str, end: str, pattern: str, reply: str, drops_space: bool
) -> None:
    try:
        ban = Ban.regex(pattern)
    except BanError:
        assume(False)
    shown = reply.removeprefix(" ") if drops_space else reply
    matcher = Matcher([ban], CHARS)
    before = [min(128, ord(char)) for char in PROMPTS[prompt].format(end)]
    states = list(accumulate(map(ord, reply), matcher.feed, initial=matcher.start(before, drops_space=drops_space)))
    found = [*chain.from_iterable(state.violations for state in states[1:]), *matcher.finish(states[-1])]
    expected = [start + len(reply) - len(shown) for start, _ in matches(pattern, shown)]
    assert sorted(violation.start for violation in found) == expected
    assert [match.start for match in BanList([ban]).find(shown)] == [start for start, _ in matches(pattern, shown)]


def test_a_reply_begins_once_and_not_behind_a_special_token() -> None:
    words = Words("a", None, "\n", "b")
    bans = [Ban.regex(r"\Aa"), Ban.regex("(?m)^b")]
    assert [v.start for v in violations(bans, words, [1, 0, 1, 0, 3, 1, 3], prompt=[3, 1])] == [1]
    assert [v.start for v in violations(bans, words, [3, 2, 1, 3, 0], prompt=[0])] == [0, 3]


def test_special_tokens_end_the_text_for_a_regex_and_a_sequence() -> None:
    words = Words("a", None, "b", " ")
    assert violations([Ban.regex("ab"), Ban.words(["a", "b"])], words, [0, 1, 2]) == []
    assert [v.start for v in violations([Ban.regex("a$")], words, [0, 1, 2])] == [0]


def test_scopes_and_allowed_occurrences_continue_after_a_special_token() -> None:
    words = Words("<t>", "a", None, " ")
    bans = [Ban("a", scopes=[Scope("inside", ("<t>", "</t>"))]), Ban("a", at_most=1)]
    assert [(v.ban, v.start) for v in violations(bans, words, [0, 1, 2, 1])] == [
        (bans[0], 1),
        (bans[0], 3),
        (bans[1], 3),
    ]


def test_token_ids_are_found_whatever_their_text() -> None:
    words = Words("a", "a", "b", None)
    bans = [Ban.tokens([0, 2]), Ban.tokens([3]), Ban.tokens([2, 2])]
    found = [(v.ban.pattern.token_ids, v.start, v.end) for v in violations(bans, words, [1, 2, 0, 2, 2, 3])]
    assert found == [((0, 2), 2, 3), ((2, 2), 3, 4), ((3,), 5, 5)]
    assert [v.start for v in violations([Ban.tokens([0, 2])], words, [2], prompt=[0])] == [0]
    assert violations([Ban.tokens([0, 2])], words, [2], prompt=[0], lookback=False) == []


def test_incomplete_token_ids_are_held_back() -> None:
    matcher = Matcher([Ban.tokens([1, 2, 3])], Bytes())
    states = list(accumulate([7, 1, 2, 7], matcher.feed, initial=matcher.start()))
    assert [state.earliest_start for state in states] == [0, 1, 1, 1, 4]


def test_a_ban_applies_only_from_the_given_token_on() -> None:
    words = Words("a", " ")
    assert [v.start for v in violations([Ban("a", from_token=2)], words, [0, 1, 0, 1, 0])] == [2, 4]
    assert [v.start for v in violations([Ban.tokens([0]), Ban.regex("a", from_token=3)], words, [0, 1, 0, 1, 0])].count(
        4
    ) == 2


def test_exempt_prompt_allows_the_bans_of_the_prompt() -> None:
    bans = [Ban("a"), Ban.regex("b"), Ban.words(["a", "b"])]
    words = Words("a", "b", " ")
    options = {"prompt": [0, 2], "exempt_prompt": True}
    assert [v.ban for v in violations(bans, words, [1, 2, 0, 2], **options)] == [bans[1], bans[2]]
    assert [v.ban for v in violations(bans, words, [2, 0], prompt=[1, 2, 0], exempt_prompt=True)] == []
    assert bans[0] in [v.ban for v in violations(bans, words, [0], prompt=[0, 2])]


def test_a_prompt_does_not_use_up_allowed_occurrences() -> None:
    words = Words("a", " ")
    assert [v.start for v in violations([Ban("a", at_most=1)], words, [0, 1, 0], prompt=[0, 1])] == [2]


def test_a_rewind_restores_allowed_occurrences() -> None:
    matcher = Matcher([Ban("a", at_most=1)], Words("a", " ", "b"))
    before = matcher.feed(matcher.start(), 2)
    once = matcher.feed(matcher.feed(matcher.feed(before, 1), 0), 1)
    assert not once.violations
    assert matcher.feed(matcher.feed(once, 0), 1).violations
    again = matcher.feed(matcher.feed(matcher.feed(once.back_to(1), 1), 0), 1)
    assert not again.violations


# Slow regexes, and bans that are refused


def test_a_regex_that_takes_too_long_is_dropped_once_and_named() -> None:
    slow, quick = Ban.regex("(?:a|aa)+b", max_span=100), Ban.regex("ac")
    matcher, began = Matcher([slow, quick], Bytes()), time.perf_counter()
    with pytest.warns(RuntimeWarning, match=r"^the regex '\(\?:a\|aa\)\+b' took longer than 0.25 seconds"):
        state = list(accumulate(b"a" * 90 + b"c", matcher.feed, initial=matcher.start()))[-1]
    assert matcher.timed_out == [slow]
    assert [violation.ban for violation in state.violations] == [quick]
    assert time.perf_counter() - began < 10


def test_a_dropped_regex_is_in_the_report_of_every_text_from_then_on() -> None:
    slow, words = Ban.regex("(?:a|aa)+b", max_span=100), Words("a")
    matcher = Matcher([slow], words)
    with pytest.warns(RuntimeWarning):
        _, report = run(Markov(1, length=60), words, [slow], matcher=matcher)
    assert report.timed_out == [slow]
    _, report = run(Markov(1, length=3), words, [slow], matcher=matcher)
    assert report.timed_out == [slow]
    matcher.restore()
    assert matcher.timed_out == []
    _, report = run(Markov(1, length=3), words, [slow], matcher=matcher)
    assert report.timed_out == []


def test_a_search_of_a_text_names_the_regex_that_is_too_slow() -> None:
    with pytest.warns(RuntimeWarning), pytest.raises(BanError, match=r"^the regex '\(\?:a\|aa\)\+b' took longer"):
        BanList([Ban.regex("(?:a|aa)+b", max_span=100)]).find("a" * 90)


NO_REGEXES = {
    "x*": "matches the empty text",
    r"\b": "matches the empty text",
    "(?=a)": "matches the empty text",
    "(": "does not compile",
    "(?r)ab": "has the flag r or w",
    "(?w)ab": "has the flag r or w",
    "a(?R)?b": "calls itself as a whole",
    r"a\Kb": r"contains \\K or \\G",
    "(?:a?){1000000000}b": "becomes too large",
    "(" * 5000 + "a" + ")" * 5000: "too complicated",
}
REFUSED: list[tuple[Callable[[], Ban], str]] = [
    *((partial(Ban.regex, pattern), why) for pattern, why in NO_REGEXES.items()),
    *(
        (partial(Ban.regex, "ab", max_span=span), "it counts characters, 1 or more")  # type: ignore[arg-type]
        for span in (0, -1, True, 1.5, "9")
    ),
    (lambda: Ban.regex("a", flags=regex.DEBUG), "^flags of 'a' are regex.D; known are i, m, s"),
    (lambda: Ban.regex("a", flags="i"), "^flags of 'a' are 'i'; known are i, m, s"),  # type: ignore[arg-type]
    (lambda: Ban("a", max_span=7), "^the phrase 'a' has no option max_span: "),
    (lambda: Ban("a", skip_stop_words=True), "^the phrase 'a' has no option skip_stop_words: "),
    (lambda: Ban.words("ab"), "^words were expected, not 'ab': write Ban.words"),
    (lambda: Ban.words(5), "^words were expected, not 5: write Ban.words"),  # type: ignore[arg-type]
    (lambda: Ban.words(["."]), "^'.' contains no word: name one, with a letter or digit$"),
    (lambda: Ban.words([]), "^the ban '' contains no visible character"),
    (lambda: Ban.words(["a"], gap=-1), "^gap of 'a' is -1; it is a whole number, 0 or more$"),
    (lambda: Ban.wildcard("*"), r"^'\*' contains no word: .* or write \\\* for the character$"),
    (lambda: Ban.wildcard("* a"), r"^'\* a' begins or ends with a gap: leave out the \* there, or write"),
    (lambda: Ban.wildcard("a *"), r"^'a \*' begins or ends with a gap: leave out the \* there, or write"),
    (lambda: Ban.wildcard("a", edges="anywhere"), "^the wildcard 'a' has no option edges: "),  # type: ignore[call-arg]
    (lambda: Ban.tokens([]), r"^token ids were expected, numbers from 0 on, not '': write Ban.tokens\(\[5, 17\]\)$"),
    (lambda: Ban.tokens([-1]), "^token ids were expected, numbers from 0 on, not '-1': "),
    (lambda: Ban.tokens("12"), r"^token ids were expected, not '12': write Ban.tokens\(\[5, 17\]\)$"),  # type: ignore[arg-type]
    (lambda: Ban.tokens(5), r"^token ids were expected, not 5: write Ban.tokens\(\[5, 17\]\)$"),  # type: ignore[arg-type]
    (lambda: Ban.tokens([2_000_000]), "^token ids were expected, numbers from 0 on, not '2000000': "),
    (lambda: Ban.tokens([1, 2], case_sensitive=True), "^the tokens '1 2' has no option case_sensitive: leave it out$"),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("make", "sentence"), REFUSED)
def test_an_impossible_ban_is_refused_in_one_sentence(make: Callable[[], Ban], sentence: str) -> None:
    refused(sentence, make)


def test_the_repr_of_a_ban_is_the_code_that_makes_it() -> None:
    bans = [
        *SEQUENCES,
        *KINDS,
        Ban.tokens([1, 2]),
        Ban.regex("a", max_span=9, weight=0.5),
        Ban("x", count=3),
        Ban(r"f\*ck"),
    ]
    names = {"Ban": Ban, "Scope": Scope}
    assert [eval(repr(ban), names) for ban in bans] == bans


def test_flags_become_part_of_the_pattern() -> None:
    assert Ban.regex("a.b", flags=regex.IGNORECASE | regex.DOTALL).text == "(?is)a.b"


# The cases of test_token_matcher.py in which other samplers failed, for the other kinds


def starts(bans: Sequence[Ban], *pieces: str | None, prompt: Sequence[str] = (), **options: bool) -> list[int]:
    words = Words(*prompt, *pieces)
    tokens = range(len(words))
    return [v.start for v in violations(bans, words, tokens[len(prompt) :], prompt=tokens[: len(prompt)], **options)]


FORBIDDEN = (Ban.regex("a cat"), Ban.words(["a", "cat"]), Ban.wildcard("a c*"), Ban("a cat", exempt=["a cat b"]))


STARTS: dict[str, tuple[list[str], list[str | None], list[int]]] = {  # by what it shows: the prompt, the text and hits
    "a hit inside one token is the whole token": ([], ["It is", " a cat sat", "."], [1]),
    "a hit at the end of the text is caught": ([], ["is", " a", " cat"], [1]),
    "a hit before a special token is caught": ([], ["is", " a", " cat", None], [1]),
    "a mere beginning is no hit": ([], ["is", " a", " "], []),
    "bans that begin in the prompt count with lookback": (["is a"], [" cat", "."], [0]),
    "text of the prompt alone is not a hit": (["is", " a cat"], [" sat", "."], []),
    "special tokens separate": ([], ["a", None, " cat", "."], []),
    "one hit does not hide the next one": ([], ["a", " cat", ". ", "a", " cat", "."], [0, 3]),
}


@pytest.mark.parametrize("ban", FORBIDDEN, ids=str)
def test_all_kinds_are_found_in_the_tokens_of_their_matches(ban: Ban) -> None:
    for rule, (prompt, pieces, expected) in STARTS.items():
        assert starts([ban], *pieces, prompt=prompt) == expected, rule
        assert starts([ban, ban], *pieces, prompt=prompt) == expected, "duplicates count once"
    assert starts([ban], " cat", ".", prompt=["is a"], lookback=False) == []
    ordered = starts([Ban("cat"), ban, Ban.regex("s a cat")], "is", " a", " cat", ".")
    assert ordered == [0, 1, 2], "two hits that one token completes are ordered by their start"


def test_a_pattern_ignores_case_only_on_request() -> None:
    assert starts([Ban.regex("Elara")], "Elara ELARA elara") == [0]
    assert len(starts([Ban.regex("(?i)elara")], "Elara", " ELARA", " elara")) == 3
    assert len(starts([Ban.words(["Elara", "X"], case_sensitive=True)], "Elara X", " elara x", " ELARA X")) == 1


def test_folding_that_changes_lengths_does_not_shift_matches() -> None:
    text = "İİİİ straße a STRASSE b"
    bans = [Ban.words(["straße", "a"]), Ban.regex("(?if)strasse b"), Ban.wildcard("stras*")]
    assert find_in_pieces(bans, [text]) == [(0, 5, 13), (1, 14, 23), (2, 5, 11), (2, 14, 21)]


def test_without_lookback_the_rest_of_a_word_of_the_prompt_is_not_a_word() -> None:
    assert starts([Ban.wildcard("*ly")], "ly", ".", prompt=["quick"], lookback=False) == []
    assert starts([Ban.wildcard("*ly")], "ly", ".", prompt=["quick"]) == [0]


def test_an_incomplete_match_of_one_regex_does_not_hide_another() -> None:
    assert starts([Ban.regex("f g h"), Ban.regex("d e f")], "d", " e", " f") == [0]
    assert starts([Ban.regex("(?s)d.{0,90}zz"), Ban.regex("e f")], "d", " e", " f", " x") == [1]


@pytest.mark.parametrize("prompt", ["The café", "The cafe\u0300", "ñ", "İ", "\u0645\u064e", "The \u0300"])
def test_a_loop_without_lookback_may_follow_a_prompt_that_ends_in_a_mark(prompt: str) -> None:
    """The mark may still move, and the text that the search reads begins with it."""
    loop = Ban.loop(3, 9, 9)
    assert starts([loop], " x.", *[" go it."] * 4, prompt=[prompt], lookback=False) == [2]
    assert starts([loop], *[" go it."] * 3, prompt=[prompt + " go it."], lookback=False) == [1]
