"""The shapes of loops that engines' users report are found, and texts that repeat on purpose are not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import antislop

NUMBER = 40  # texts of each kind
NOUNS = [
    "gate",
    "river",
    "lamp",
    "boat",
    "garden",
    "letter",
    "window",
    "market",
    "bridge",
    "kettle",
    "orchard",
    "ladder",
]
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


@pytest.mark.parametrize(
    "write",
    [
        count_table,
        count_rows,
        write_zeros,
        laugh,
        indent,
        assert_sums,
        document_methods,
        draw_rules,
        list_rules,
        sing,
        speak,
        log,
        cook,
    ],
)
def test_texts_that_repeat_on_purpose_are_not_loops(write: Callable[[random.Random], str]) -> None:
    for seed in range(NUMBER):
        text = write(random.Random(seed))
        assert [text[match.start : match.end] for match in antislop.loops().find(text)] == [], text
