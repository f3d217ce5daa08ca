"""Loops are found by their definition, however a text is cut, and text that may belong to one is held back."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import example, given, strategies as st

import antislop
from antislop.core.bans.bans import Ban
from antislop.core.bans.patterns.loop import Loop, LoopSearch
from antislop.core.bans.text_matcher import TextMatcher
from antislop.errors import BanError
from antislop.lists.bundled import read_constructions
from antislop.lists.own import parse_ban, write_ban
from tests.support.oracles import cut_at, loop_occurrences

# By their definition


@st.composite
def looping_texts(draw: st.DrawFn) -> str:
    """Texts of passages that repeat, also within passages that repeat, and break off."""
    letters = st.text(
        st.sampled_from(
            draw(st.sampled_from(["ab", "ab ", "aB .", 'a ."', "ab. -", "a\n", "aé́ .ß", "!- ", "1 =.", " \n"]))
        ),
        max_size=8,
    )
    text = ""
    for _ in range(draw(st.integers(1, 4))):
        passage = draw(letters) * draw(st.integers(1, 3)) + draw(letters)
        text += (passage * draw(st.integers(1, 6)))[: draw(st.integers(1, 60))]
        text *= draw(st.integers(1, 2))
    return re.sub(r"(\s{40})\s+", r"\1", text)[:120]  # what follows more white space, the oracle does not know


@st.composite
def varied_copies(draw: st.DrawFn) -> str:
    """Texts of sentences that are written several times with words changed, among them such that are not loops."""
    words = st.sampled_from(["ab", "go", "So", "it", "3", "4", "no.", "e", "a|b"])
    passage = draw(st.lists(words, min_size=7, max_size=9))
    begins_differ = draw(st.booleans())
    ends = st.sampled_from([". "] if begins_differ else [". ", ". ", ". ", '." "', "! ", ".\n", " "])
    text = draw(st.sampled_from(["", "He ran. ", "Go it.\n"]))
    for _ in range(draw(st.integers(2, 7))):
        copy = list(passage)
        for place, word in draw(st.lists(st.tuples(st.integers(0, len(copy) - 1), words), max_size=2 - begins_differ)):
            copy[1 if begins_differ else place] = word
        text += " ".join(copy) + draw(ends)
    return text


loops = st.builds(
    lambda copies, period, share: Ban.loop(copies, max(1, copies * period * share // 4), period),
    st.integers(2, 4),
    st.sampled_from([2, 4, 9, 30]),
    st.integers(0, 4),
)


near_loops = st.builds(
    Ban.loop, st.integers(2, 3), st.integers(1, 14), st.sampled_from([30, 60]), st.sampled_from([70, 85, 100])
)


@given(
    case=st.tuples(looping_texts(), loops) | st.tuples(varied_copies(), near_loops),
    cuts=st.lists(st.integers(0, 200), max_size=30),
)
@example(case=("ab ab. ab ab. ab ab. ", Ban.loop(3, 9, 9)), cuts=[])
@example(
    case=("".join(f"So {word} go it it go. " for word in ("ab", "cd", "ef", "gh")), Ban.loop(3, 15, 60)), cuts=[30, 48]
)
def test_loops_are_found_by_their_definition_and_held_back_from_their_start(
    case: tuple[str, Ban], cuts: list[int]
) -> None:
    text, ban = case
    matcher, read = TextMatcher([ban]), 0
    phrases, others = matcher.phrases.start, matcher.start
    found, promises = [], []
    pieces = cut_at(text, cuts)
    for number, piece in enumerate(pieces):
        phrases, others, result = matcher.read(phrases, others, piece, final=number == len(pieces) - 1)
        for hit in result.matches:
            start = read + len(piece) - hit.start_back
            found.append((start, read + len(piece) - hit.end_back + 1))
            assert all(settled <= start for at, settled in promises if at > start)
        read += len(piece)
        promises.append((read, read - max(result.open, default=0)))
    assert sorted(found) == sorted(loop_occurrences(text, ban))


@pytest.mark.parametrize(
    "text", ["ha ha ha ha ha ha ha", "-" * 500, "| --- " * 40, "0, " * 99, "No. No. No. No. No.", "so, " * 9, "\n" * 99]
)
def test_intended_repetitions_are_not_loops(text: str) -> None:
    assert antislop.loops().find(text) == []


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("Tom ran. I was so happy. I was so happy. I was SO happy. I left.", "Tom ran. I was so happy."),
        ("glad. He was sad and so on. He was sad and so on. He was sad and so on.", "glad. He was sad and so on."),
        ('"I don\'t know you." “I don’t know you.” "I don\'t know you." ', '"I don\'t know you."'),
        ("- one more apple\n- one more apple\n- one more apple\n", "- one more apple"),
        ("彼は東京に行きました。" * 7, "彼は東京に行きました。" * 2),
        # Without spaces each character begins a word; a passage in another script has no word to begin at.
        ("他在城里走了很久才找到那家小店。" * 3, "他在城里走了很久才找到那家小店。"),
        ("彼は町を長い間歩いて小さな店を見つけ" * 3, "彼は町を長い間歩いて小さな店を見つけ彼は町を長い間歩"),
        ("เขาเดินในเมืองเป็นเวลานาน" * 3, "เขาเดินในเมืองเป็นเวลานานเขาเดินใ"),
        ("hewalkedinthetown" * 3, "hewalkedinthetownhewalkedinthetownhewalked"),
    ],
)
def test_the_first_copy_stays(text: str, stays: str) -> None:
    first = antislop.loops().find(text)[0]
    assert text[: first.start].rstrip() == stays


def test_a_loop_is_saved_and_loaded_without_a_phrase() -> None:
    ban = Ban.loop(4, max_passage=200, weight=0.5)
    assert write_ban(ban) == "a passage 4 times in a row\tloop weight=0.5 copies=4 max_passage=200"
    assert parse_ban(write_ban(ban)) == ban
    assert parse_ban("a passage 3 times in a row\tloop") == Ban.loop() == Ban(Ban.loop().pattern)
    assert eval(repr(ban), {"Ban": Ban}) == ban


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda: Ban.loop(1), "2 or more"),
        (lambda: Ban.loop(3, 0), "1 or more"),
        (lambda: Ban.loop(3, 40, 10), "raise max_passage"),
        (lambda: Ban.loop(500, 40, 1000), "together"),
        (lambda: Ban.loop(similarity=101), "100 or less"),
        (lambda: Ban.loop(3.5), "whole number"),  # type: ignore[arg-type]
        (lambda: parse_ban("he ran\tloop"), "a loop has no text of its own"),
    ],
)
def test_impossible_options_of_loops_are_refused(make: object, fix: str) -> None:
    with pytest.raises(BanError, match=fix):
        make()  # type: ignore[operator]


def test_a_state_keeps_a_bounded_part_of_a_text() -> None:
    search = LoopSearch([Loop(max_passage=50)])
    state = search.start
    for number in range(3000):
        state, _ = search.read(state, f"word {number} ")
    assert len(state.old.text) + len(state.new.text) < 1000


def test_prose_is_hardly_held_back() -> None:
    text = " ".join(sentence for construction in read_constructions() for sentence in construction.examples)
    search = LoopSearch([Loop()])
    state, held = search.start, []
    for word in text.split(" "):
        state, result = search.read(state, f"{word} ")
        held.append(max(result.open, default=0))
    assert sum(held) / len(held) < 3  # characters
    assert max(held) > 3


# The shapes that engines' users report, and texts that repeat on purpose


NUMBER = 40  # texts of each kind
NOUNS = ["gate", "river", "lamp", "boat", "garden", "letter", "window", "market", "bridge", "kettle", "orchard", "barn"]
VERBS = ["opened", "painted", "followed", "carried", "mended", "watched", "counted", "covered", "found", "sold"]
ADJECTIVES = ["old", "green", "narrow", "quiet", "broken", "wide", "early", "wooden", "cold", "bright"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def say(rng: random.Random) -> str:
    """Return a clause without its full stop."""
    subject, verb, thing = rng.choice(NOUNS), rng.choice(VERBS), rng.choice(NOUNS)
    return f"the {rng.choice(ADJECTIVES)} {subject} was {verb} near the {rng.choice(ADJECTIVES)} {thing}"


def write_paragraph(rng: random.Random) -> list[str]:
    return ". ".join(say(rng).capitalize() for _ in range(rng.randint(2, 5))).split(" ")


@pytest.mark.parametrize(
    ("text", "copy"),
    [
        ("items " * 60, 40),
        ("the " * 80, 40),
        ("He went to the door. Then he came back again. " * 10, 46),
        ("1.614 * 10^(-3.5) = " * 12, 40),
        ("!" * 300, 40),
        ("\xa0" * 300, 60),
        (
            "".join(
                f"The council met on {day} to talk about the cost of a new roof. It did not agree. " for day in DAYS
            ),
            82,
        ),
        ("".join(f"The {adjective} man walked slowly down the road to the river. " for adjective in ADJECTIVES), 110),
        ("".join(f"Wait, maybe I should check step {step} again. " for step in range(1, 9)), 41),
    ],
    ids=["word", "article", "sentences", "formula", "sign", "white", "paragraph", "second word", "steps"],
)
def test_the_nine_reported_shapes_are_found_at_their_second_copy(text: str, copy: int) -> None:
    first = antislop.loops().find(text)[0]
    assert 14 < first.start <= copy
    assert first.end <= max(240, 4 * copy + 40)


def vary(paragraph: list[str], rng: random.Random) -> str:
    """Return a paragraph with one or two words changed."""
    copy = list(paragraph)
    for place in rng.sample(range(3, len(copy) - 1), rng.randint(1, 2)):
        copy[place] = rng.choice(NOUNS) + "." * copy[place].endswith(".")
    return " ".join(copy) + ". "


def test_paragraphs_with_a_word_or_two_varied_are_found() -> None:
    missed = []
    for seed in range(NUMBER):
        rng = random.Random(seed)
        paragraph = write_paragraph(rng)
        text = "".join(vary(paragraph, rng) for _ in range(8))
        found = antislop.loops().find(text)
        if not found:
            missed.append(text)
    assert len(missed) <= 1, missed  # two copies that both vary may differ by four words within a few


def count_table(rng: random.Random) -> str:
    thing = rng.choice(NOUNS)
    rows = "".join(f"| {row} | The {thing} of day {row}. | {rng.randint(1, 9)} kg |\n" for row in range(1, 30))
    return f"| no | what | weight |\n|{'-' * 4}|{'-' * 6}|{'-' * 8}|\n{rows}"


def count_rows(rng: random.Random) -> str:
    width, step = rng.randint(2, 20), rng.randint(1, 5)
    return "".join(f"{row * step}{' ' * width}{row * 0.5:.2f}{' ' * width}0.00\n" for row in range(60))


def write_zeros(rng: random.Random) -> str:
    row = rng.choice(["0, ", "0 0 0\n", "[0, 0, 0], ", "| 0 | 0.0 |\n", "1.5; ", "(1, 2), ", '"": 0,\n', "10% 0%\t"])
    return row * rng.randint(20, 99)


def laugh(rng: random.Random) -> str:
    sound, tail = rng.choice(["ha", "no", "la", "ho", "so"]), rng.choice([" ", ", ", "! ", ". "])
    return (sound + tail) * rng.randint(2, 39 // len(sound + tail))


def indent(rng: random.Random) -> str:
    lines, depth = [], 0
    for _ in range(40):
        depth = max(0, min(12, depth + rng.randint(-2, 2)))
        lines.append(f"{'    ' * depth}if {rng.choice(NOUNS)} > {rng.randint(0, 99)}:" + "\n" * rng.randint(1, 9))
    return "".join(lines)


def assert_sums(rng: random.Random) -> str:
    name = rng.choice(VERBS)
    lines = "".join(f"        self.assertEqual({name}({row}, {row + 1}), {2 * row + 1})\n" for row in range(30))
    return f'class Test{name.title()}:\n    """{say(rng).capitalize()}."""\n\n    def test_sums(self) -> None:\n{lines}'


def document_methods(rng: random.Random) -> str:
    return "".join(
        f'    def {noun}(self) -> int:\n        """Return the number of the {noun}."""\n        return self._{noun}\n\n'
        for noun in rng.sample(NOUNS, 8)
    )


def draw_rules(rng: random.Random) -> str:
    sign = rng.choice(["-", "=", "_", "*", "#", "~", "- ", "* * ", "+--", "| --- ", "─", "═", "·", ". ", "```\n"])
    return f"{say(rng)}\n{sign * rng.randint(50, 200)}\n{say(rng)}\n"


def list_rules(rng: random.Random) -> str:
    return "".join(f"{row}. Never forget that {say(rng)}.\n" for row in range(1, 16))


def sing(rng: random.Random) -> str:
    refrain = f"Oh, {say(rng)},\nand we all go home.\nOh, we all go home.\n\n"
    return "".join(f"{say(rng).capitalize()},\n{say(rng)}.\n{refrain}" for _ in range(6))


def speak(rng: random.Random) -> str:
    """Sentences that begin alike, three in a row."""
    days, noun = rng.sample(["days", "weeks", "months", "years"], 3), rng.choice(NOUNS)
    return say(rng) + ". " + "".join(f"I was at the {noun} for three {days_}. " for days_ in days) + say(rng)


def log(rng: random.Random) -> str:
    noun = rng.choice(NOUNS)
    return "".join(
        f"2026-01-02 10:{row:02}:00 INFO {noun} {row} done in {rng.randint(1, 99)} ms\n" for row in range(40)
    )


def cook(rng: random.Random) -> str:
    return "".join(f"Step {row}: {say(rng)}. Wait for {row} minutes.\n" for row in range(1, 12))


ON_PURPOSE = (
    *(count_table, count_rows, write_zeros, laugh, indent, assert_sums, document_methods),
    *(draw_rules, list_rules, sing, speak, log, cook),
)


@pytest.mark.parametrize("write", ON_PURPOSE)
def test_texts_that_repeat_on_purpose_are_not_loops(write: Callable[[random.Random], str]) -> None:
    for seed in range(NUMBER):
        text = write(random.Random(seed))
        assert [text[match.start : match.end] for match in antislop.loops().find(text)] == [], text
