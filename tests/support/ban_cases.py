"""Lists of every kind over vocabularies of a few strings, and the distribution of each, solved once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from antislop.core.bans.bans import Ban
from antislop.core.bans.scopes import Scope
from tests.support.oracles import rejection_distribution
from tests.support.toys import Markov, Words

LETTERS = Words("a", "b", "c", "d")
SPACED = Words("a ", "b ", "c ", "d ")
BRACKETS = Words("a", "b", "<", ">")
SENTENCES = Words("a.", " a.", " b.", " b")
EDGED = Words(" ", "cat", "s", ".", " cat", "the")
STOPS = Words("a", " b", ".", " c")
LINES = Words("a", " b", ".", "\n", " c. d")


def anywhere(phrase: str, weight: float = 0.0) -> Ban:
    """Return a ban that needs no word edges and leads back to its own first token."""
    return Ban(phrase, weight=weight, edges="anywhere", rewind="span")


UNIT_CASES: dict[str, tuple[Words, list[Ban]]] = {
    "words drawn again": (EDGED, [Ban("at", edges="anywhere")]),
    "words, and spans with weights": (
        EDGED,
        [Ban("at", edges="anywhere", rewind="word"), anywhere("s", 0.3)],
    ),
    "sentences drawn again": (STOPS, [Ban("b", rewind="sentence"), anywhere("ca")]),
    "sentences with weights": (STOPS, [Ban("b", 0.1, rewind="sentence"), Ban("c a", 0.2, rewind="sentence")]),
    "paragraphs, sentences and words": (
        LINES,
        [
            anywhere("d"),
            Ban("ab", edges="anywhere", rewind="word"),
            Ban("b", rewind="paragraph"),
            Ban("c", rewind="sentence"),
        ],
    ),
    "texts drawn again": (EDGED, [Ban("cat", 0.3, rewind="text"), anywhere("the", 0.5), Ban("s", edges="anywhere")]),
}
"""Lists whose bans lead back to the beginnings of words, sentences, paragraphs and texts."""
CASES: dict[str, tuple[Words, list[Ban]]] = {
    "one phrase": (LETTERS, [anywhere("ab")]),
    "one token": (LETTERS, [anywhere("a")]),
    "a weight of 0.3": (LETTERS, [anywhere("ab", 0.3)]),
    "a weight of 1": (LETTERS, [anywhere("ab", 1.0)]),
    "overlapping, one inside the other": (LETTERS, [anywhere("abc"), anywhere("b", 0.5)]),
    "overlapping, one after the other": (LETTERS, [anywhere("abc"), anywhere("bcd"), anywhere("cda")]),
    "nested starts": (LETTERS, [anywhere("abcd"), anywhere("bb"), anywhere("ca", 0.3)]),
    "a loop below a loop": (LETTERS, [anywhere("aab"), anywhere("ac"), anywhere("ad"), anywhere("aaa")]),
    "two completed at once, with weights": (LETTERS, [anywhere("abc", 0.3), anywhere("c", 0.4)]),
    "word edges": (EDGED, [Ban("cat")]),
    "word edges with weights": (EDGED, [Ban("cat", weight=0.3), Ban("the cat", weight=0.1)]),
    "a regex": (LETTERS, [Ban.regex("a[bc]", weight=0.3), Ban.regex("cd")]),
    "a regex with a greedy tail": (LETTERS, [Ban.regex("ab+"), Ban.regex("c.?d", weight=0.5)]),
    "a regex that looks ahead": (LETTERS, [Ban.regex("b(?!c)"), Ban.regex("d(?=a)", weight=0.5)]),
    "a regex with word edges": (EDGED, [Ban.regex(r"\bcat\b"), Ban.regex("the$", weight=0.3)]),
    "words with a gap": (SPACED, [Ban.words(["a", "b"], gap=1), Ban.words(["c", "d", "c"], weight=0.3)]),
    "words whose end is not known at once": (EDGED, [Ban.words(["the", "cat"], gap=1), Ban.wildcard("cat*")]),
    "an exempt phrase": (LETTERS, [replace(anywhere("ab"), exempt=("abc", "dab")), anywhere("cd", 0.5)]),
    "one free occurrence": (LETTERS, [replace(anywhere("a"), at_most=1), Ban.regex("bc", at_most=1, weight=0.3)]),
    "inside of brackets only": (BRACKETS, [replace(anywhere("a"), scopes=(Scope("inside", ("<", ">")),))]),
    "the first word only": (EDGED, [replace(anywhere("cat"), opening="word"), Ban("the", 0.3, opening="sentence")]),
    "regexes at the beginning only": (EDGED, [Ban.regex(r"\A\s*cat"), Ban.regex("^the?", weight=0.3)]),
    "a loop": (SPACED, [Ban.loop(2, 2, 4)]),
    "loops of sentences": (SENTENCES, [Ban.loop(2, 3, 9, weight=0.3), anywhere("b. b")]),
    "a repeat": (SPACED, [Ban.repeat(2)]),
    "repeats with weights, whose end is not known at once": (EDGED, [Ban.repeat(2, weight=0.3), Ban("cat the")]),
    "word edges inside a longer phrase": (EDGED, [Ban("cat"), Ban("the cat cat"), Ban("cat s")]),
    "a repeat of the prompt": (SPACED, [Ban.repeat(2, "prompt")]),
    "a repeat of the prompt or the text": (SPACED, [Ban.repeat(2, "both")]),
    **UNIT_CASES,
}


@cache
def expected_of(case: str, seed: int) -> dict[tuple[int, ...], float]:
    """Solve the chain of a case, once for all tests."""
    words, bans = CASES[case]
    return rejection_distribution(Markov(len(words), seed=seed), words, bans)


SPAN = ("<t>", "</t>")
RULES: tuple[dict[str, object], ...] = (
    {"exempt": ["ab"]},
    {"exempt": ["a b", "b a"]},
    {"exempt": ["b a b", "a b", "aab"]},
    {"scopes": [Scope("inside", "quotes")]},
    {"scopes": [Scope("outside", "quotes")]},
    {"scopes": [Scope("outside", "dialogue")]},
    {"scopes": [Scope("inside", "dialogue"), Scope("outside", "code")]},
    {"scopes": [Scope("outside", SPAN)]},
    {"scopes": [Scope("after", SPAN)]},
    {"scopes": [Scope("outside", "code"), Scope("inside", SPAN)]},
    {"at_most": 1},
    {"at_most": 2},
    {"at_most": 1, "per_words": 3},
    {"at_most": 2, "per_words": 4},
    {"at_most": 1, "per_words": 4, "exempt": ["a b"], "scopes": [Scope("outside", SPAN)]},
    {"opening": "word"},
    {"opening": "sentence", "exempt": ["a b"]},
    {"opening": "paragraph", "at_most": 1},
    {"opening": "word", "scopes": [Scope("outside", SPAN)]},
    {"opening": "sentence", "scopes": [Scope("outside", "quotes")]},
    {"opening": "paragraph", "scopes": [Scope("after", SPAN)]},
    {"opening": "word", "scopes": [Scope("outside", "code"), Scope("inside", SPAN)]},
)
"""Rules of a ban, of each kind and together."""
