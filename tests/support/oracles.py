"""The naive twins: obvious, slow, and independent of the code that they check."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import regex

from antislop.core.bans.bans import Ban
from antislop.core.bans.folding import BOUNDARY, fold
from antislop.core.bans.patterns.loop import LONG, MIN_OFFSET, Loop
from antislop.core.bans.patterns.near import HEAD
from antislop.core.bans.patterns.phrase import Phrase
from antislop.core.bans.patterns.regex import Regex
from antislop.core.bans.patterns.repeat import Repeat
from antislop.core.bans.patterns.words import WordSequence, stop_words
from antislop.core.bans.scopes import SPANS, Scope
from antislop.core.bans.text_matcher import TextMatcher
from tests.support.toys import PROMPT, Markov, Words

RULES = set("-=_*#~+|:.,;'\"`()[]{}<>/\\^&%$·•")
"""Signs that draw rules and tables or separate numbers."""
NEAR_WORD = r'\w[^\s"]*'


def occurrences(text: str, ban: Ban, *, is_final: bool = True) -> Iterator[tuple[int, int]]:
    """Find the occurrences of a ban in an ASCII text; at the end of an unfinished text, its right edge is open."""
    where, phrase = (text, ban.text) if ban.pattern.case_sensitive else (text.lower(), ban.text.lower())
    for start in range(len(text) - len(phrase) + 1):
        end = start + len(phrase)
        if where[start:end] != phrase:
            continue
        if isinstance(ban.pattern, Phrase) and ban.pattern.edges == "word":
            if start and text[start].isalnum() and text[start - 1].isalnum():
                continue
            if phrase[-1].isalnum() and (text[end].isalnum() if end < len(text) else not is_final):
                continue
        yield start, end


SHORT = r"(?<![A-Za-z0-9])(?<![A-Za-z0-9]')(?i:[a-z]|mrs?|ms|dr|st|vs|prof)"
"""A word of an ASCII text after which a full stop ends no sentence."""


def cut_at(text: str, places: Sequence[int]) -> list[str]:
    """Cut a text into pieces, some of which may be empty; the last piece ends with the text."""
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def sequence_occurrences(text: str, ban: Ban) -> Iterator[tuple[int, int]]:
    """Find a sequence of words in an ASCII text: from each first word to the nearest possible last one."""
    pattern = ban.pattern
    assert isinstance(pattern, WordSequence)
    items, skip_stop_words = pattern.items, pattern.skip_stop_words
    words = list(re.finditer(r"[a-z0-9]+", text.lower()))
    between = [text[a.end() : b.start()] for a, b in pairwise(words)]

    def count(word: int) -> bool:
        return between[word - 1] != "'" and not (skip_stop_words and words[word][0] in stop_words())

    def is_short(word: int) -> bool:
        return re.search(f"{SHORT}$", text[: words[word].end()]) is not None

    def reach(item: int, word: int) -> set[int]:
        """Return the last words of all ways to match the rest of the sequence from an item at a word."""
        if item + 1 == len(items):
            return {word}
        ends, passed = set(), 0
        for after in range(word + 1, len(words)):
            gap = between[after - 1]
            if (
                re.search("[.!?]", gap.removeprefix(".") if is_short(after - 1) else gap)
                or passed > items[item + 1].max_gap
            ):
                break
            if passed >= items[item + 1].min_gap and fnmatchcase(words[after][0], items[item + 1].word):
                ends |= reach(item + 1, after)
            passed += count(after)
        return ends

    for number, word in enumerate(words):
        if fnmatchcase(word[0], items[0].word) and (ends := reach(0, number)):
            yield word.start(), words[min(ends)].end()


def matches(pattern: str, text: str, *, max_span: int = 200) -> Iterator[tuple[int, int]]:
    """Find the matches of a regex, one after the other."""
    compiled, start = regex.compile(pattern), 0
    while start < len(text):
        match = compiled.match(text, start, start + max_span)
        if match and match.end() > start:
            yield match.span()
        start = max(start + 1, match.end() if match else 0)


def phrase_occurrences(text: str, ban: Ban) -> Iterator[tuple[int, int]]:
    """Find a phrase in a finished ASCII text without two white spaces in a row."""
    return occurrences(text.replace("\n", " "), ban)


def all_occurrences(text: str, ban: Ban) -> Iterator[tuple[int, int]]:
    """Find a ban of any kind, including occurrences that its rules exempt."""
    if isinstance(ban.pattern, Regex):
        return matches(ban.text, text, max_span=ban.pattern.max_span)
    return (phrase_occurrences if isinstance(ban.pattern, Phrase) else sequence_occurrences)(text, ban)


OPENINGS = {
    "word": r"[^a-z0-9]*[a-z0-9]*",
    "sentence": rf"[^a-z0-9]*((?=[a-z0-9])(?:[^.!?\n]|{SHORT}\.)*)?",
    "paragraph": r"(?s)[^a-z0-9]*([a-z0-9](.(?!\n[^\S\n]*\n))*(.\n[^\S\n]*)?)?",
}
"""What may stand in an ASCII text before a character of its first unit."""


def is_in_opening(text: str, place: int, ban: Ban) -> bool:
    """Return whether a character is in the opening, by what the scopes leave of the text before it."""
    counts = [scope_at(text[:place], scope) for scope in ban.scopes]
    marks = [delimiters_in(text[:place], scope) for scope in ban.scopes]
    places = (i for i in range(place) if all(each[i] for each in counts) and not any(i in each for each in marks))
    before = "".join(text[i] for i in places)
    ends_word = ban.opening == "word" and re.search("[a-z0-9]", before) and not re.match("[a-z0-9]", text[place])
    return not ends_word and re.fullmatch(OPENINGS[ban.opening], before) is not None


def delimiters_in(text: str, scope: Scope) -> set[int]:
    """Return the characters of a text that belong to delimiters."""
    found = set[int]()
    _read_spans(text, scope, found)
    return found


def scope_at(text: str, scope: Scope) -> list[bool]:
    """Return for each character whether the ban applies to it."""
    return _read_spans(text, scope, set())


def _read_spans(text: str, scope: Scope, delimiters: set[int]) -> list[bool]:
    """Read a text from one delimiter to the next."""
    if scope.span == "code":
        return [each is (scope.where == "inside") for each in read_code(text)]
    if scope.span == "dialogue":
        return [each is (scope.where == "inside") for each in read_dialogue(text)]
    span = SPANS[scope.span] if isinstance(scope.span, str) else {scope.span[0]: (scope.span[1],)}
    opened, ended, at, counts = "", False, 0, []
    while at < len(text):
        wanted = span[opened] if opened else tuple(span)
        mark = next((mark for mark in wanted if text.startswith(mark, at)), "")
        mark = "" if mark in ("»", "”") and not opened and not re.match(r"[\w…]", text[at + 1 :]) else mark
        counts += [{"inside": bool(opened), "outside": not opened, "after": ended}[scope.where]] * max(1, len(mark))
        delimiters |= {*range(at, at + len(mark))}
        ended = ended or bool(opened and mark)
        opened = opened if not mark else "" if opened else mark
        at += max(1, len(mark))
    return counts


def read_dialogue(text: str) -> list[bool]:
    """Return whether each character is in a line of dialogue, from the dash that begins it."""
    inside = []
    for line in text.splitlines(keepends=True):
        begins = (place for place in range(len(line)) if not place or line[:place].endswith((">", "[/INST]")))
        found = (re.match(r'[ \t]{0,32}(["«“„”»][ \t]?)?(?=[—–―])', line[place:]) and place for place in begins)
        start = next((place for place in found if place is not None), len(line))
        begun = re.match(r'[ \t]{0,32}(["«“„”»][ \t]?)?', line[start:])
        at = start + (begun.end() if begun else 0)
        inside += [at <= place and char != "\n" for place, char in enumerate(line)]
    return inside


def read_code(text: str) -> list[bool]:
    """Return whether each character is in code, line by line; the signs of a delimiter may be either."""
    inside, fence = [], ""
    for line in text.splitlines(keepends=True):
        begins = re.match(r"([ \t]{0,32})(`{3,64}(?!`)|~{3,64}(?!~))", line)
        if fence:
            run, indent = fence.strip(), len(fence) - len(fence.lstrip()) + 3
            inside += [True] * len(line)
            if re.match(rf"[ \t]{{0,{indent}}}{run}{run[0]}*[ \t]*\r?\n", line):
                inside[-1], fence = False, ""
        elif begins and (begins[2][0] == "~" or "`" not in line[begins.end() :]):
            inside += [False] * begins.end() + [True] * (len(line) - begins.end())
            fence = begins[0]
        else:
            opened = ""
            while line:
                part = re.match(r"`+" if opened else r"\\[^\n]|`+", line) or re.match("(?s).", line)
                was, line = opened, line[part.end() :]
                if part[0][0] == "`":
                    opened = "" if part[0] == opened else opened or part[0]
                inside += [bool(was or opened) and part[0] != "\n"] * part.end()
    return inside


def word_at(text: str, place: int) -> int:
    """Return the number of words that have begun up to a character."""
    return len(regex.findall(r"(?<![a-z])[a-z]", text[: place + 1]))


def counting(text: str, ban: Ban) -> Iterator[tuple[int, int]]:
    """The occurrences of a ban that count."""
    exempt = [span for phrase in ban.exempt for span in phrase_occurrences(text, Ban(phrase))]
    counts = [scope_at(text, scope) for scope in ban.scopes]
    before: list[int] = []
    for start, end in sorted(all_occurrences(text, ban), key=lambda span: (span[1], span[0])):
        if any(first <= start and end <= last for first, last in exempt) or not all(each[start] for each in counts):
            continue
        if ban.opening and not is_in_opening(text, start, ban):
            continue
        word = word_at(text, start)
        recent = [other for other in before if not ban.per_words or word - other < ban.per_words]
        before.append(word)
        if not ban.at_most or len(recent) >= ban.at_most:
            yield start, end


@cache
def decided(text: str, ban: Ban, letters: tuple[str, ...]) -> set[tuple[int, int]]:
    """The occurrences that count with every continuation; three more letters are tried."""
    found = set(counting(text, ban))
    for more in (more for size in range(1, 4) for more in product(letters, repeat=size)):
        if not found:
            break
        found &= set(counting(text + "".join(more), ban))
    return found


def standing(tokens: Sequence[int], words: Words, bans: Sequence[Ban], *, is_final: bool) -> set[tuple[int, int]]:
    """(start token, index of the ban) of each occurrence in the tokens; repeats are also of the toys' prompt."""
    owners = [i for i, token in enumerate(tokens) for _ in words.surface(token)]
    return {(owners[start], number) for start, number in _starts(tokens, words, bans, is_final=is_final)}


def _starts(tokens: Sequence[int], words: Words, bans: Sequence[Ban], *, is_final: bool) -> set[tuple[int, int]]:
    text = words.text(tokens)
    found = ((_find(text, ban, words, is_final=is_final), number) for number, ban in enumerate(bans))
    return {(start, number) for places, number in found for start, _ in places}


UNIT_BEGINS = {
    "span": r"",
    "word": r"(?<![A-Za-z0-9])|(?![A-Za-z0-9])",
    "sentence": rf"(?<=(?:\A|[!?\n]|(?<!{SHORT})\.)[^A-Za-z0-9]*)",
    "paragraph": r"(?<=(?:\A|\n[^\S\n]*\n)\s*)",
    "text": r"\A",
}
"""Where units begin in an ASCII text."""


def find_target(tokens: Sequence[int], start: int, words: Words, ban: Ban) -> int:
    """The token in which the unit begins of an occurrence that starts at a character; 0 in the toys' prompt."""
    prompt = words.text(PROMPT)
    begins = regex.finditer(UNIT_BEGINS[ban.unit], prompt + words.text(tokens))
    begin = max(match.start() for match in begins if match.start() <= len(prompt) + start)
    owners = [i for i, token in enumerate(tokens) for _ in words.surface(token)]
    return owners[max(0, begin - len(prompt))]


def _find(text: str, ban: Ban, words: Words, *, is_final: bool) -> Iterable[tuple[int, int]]:
    if isinstance(ban.pattern, Phrase) and ban.is_unconditional:
        return occurrences(text, ban, is_final=is_final)
    if isinstance(ban.pattern, Loop) and ban.is_unconditional:
        return loop_occurrences(text, ban)  # complete whatever follows
    if isinstance(ban.pattern, Repeat) and ban.is_unconditional:
        prompt = words.text(PROMPT)
        size = len(prompt)
        found = repeat_occurrences(prompt + text, ban, prompt_size=size, lookback=False, is_final=is_final)
        return ((start - size, end - size) for start, end in found)
    return counting(text, ban) if is_final else decided(text, ban, _letters(words))


@cache
def _letters(words: Words) -> tuple[str, ...]:
    """The characters of a vocabulary."""
    return tuple(sorted(set("".join(words.text([token]) for token in range(len(words))))))


def completed(tokens: Sequence[int], words: Words, bans: Sequence[Ban], *, is_final: bool) -> list[tuple[int, int]]:
    """The bans that the last token completes, with the tokens that they lead back to, in the order of these."""
    before = _starts(tokens[:-1], words, bans, is_final=False)
    found = _starts(tokens, words, bans, is_final=is_final) - before
    return sorted({(find_target(tokens, start, words, bans[number]), number) for start, number in found})


def rejection_distribution(
    model: Markov, words: Words, bans: Sequence[Ban], *, whole: bool = False, coins: int = 2000
) -> dict[tuple[int, ...], float]:
    """Draw; on a violation that holds cut back to its start and draw again, with replacement: the chain, solved.

    A ban of a weight holds at a place, the text before it, by a coin that is tossed once. The result is the mean over
    all coins, or over random ones if there are too many.

    whole: cut back to nothing instead, and toss the coins anew each time.
    """
    prefixes: list[tuple[int, ...]] = [()]
    steps: list[tuple[tuple[int, ...], tuple[int, ...], float, list[tuple[tuple[int, ...], int]]]] = []
    texts: list[tuple[int, ...]] = []
    for prefix in prefixes:
        for token, mass in enumerate(model.probs(PROMPT, prefix).tolist()):
            path = (*prefix, token)
            is_final = model.ends(path)
            found = [(path[:start], number) for start, number in completed(path, words, bans, is_final=is_final)]
            steps.append((prefix, path, mass, found))
            if mass > 0 and all(bans[number].weight for _, number in found):
                (texts if is_final else prefixes).append(path)
    tossed = sorted({pair for *_, found in steps for pair in found if bans[pair[1]].weight and not whole})
    outcomes = list(toss([bans[number].weight for _, number in tossed], times=coins))
    holds = dict(zip(tossed, np.array([held for held, _ in outcomes], dtype=float).T, strict=True))
    # All outcomes of the coins are solved at once. ahead: the probability of each step that nothing holds back;
    # back: that of a step from a prefix back to each of its own prefixes, by their lengths.
    ahead: dict[tuple[int, ...], Any] = {}
    back = {prefix: np.zeros((len(prefix) + 1, len(outcomes))) for prefix in prefixes}
    for prefix, path, mass, found in steps:
        ahead[path] = np.full(len(outcomes), mass)
        for place, number in found:
            held = ahead[path] * (1 - bans[number].weight if whole else holds.get((place, number), 1.0))
            back[prefix][0 if whole else len(place)] += held
            ahead[path] = ahead[path] - held
    # The prefixes are a tree, and a chain that leaves a branch comes back above it: from the leaves to the root, a
    # branch becomes a step back. What comes back to a prefix itself is tried again.
    tries: dict[tuple[int, ...], Any] = {}
    for prefix in reversed(prefixes):
        tries[prefix] = 1 / (1 - back[prefix][-1])
        if prefix:
            back[prefix[:-1]] += ahead[prefix] * tries[prefix] * back[prefix][:-1]
    visits = {(): tries[()]}
    for prefix in prefixes[1:]:
        visits[prefix] = visits[prefix[:-1]] * ahead[prefix] * tries[prefix]
    shares = np.array([share for _, share in outcomes])
    return {text: float(shares @ (visits[text[:-1]] * ahead[text])) for text in texts}


def toss(weights: Sequence[float], *, times: int) -> Iterator[tuple[Sequence[bool], float]]:
    """Yield which of some coins let their bans hold, and the probability: all cases, or `times` random ones."""
    if 2 ** len(weights) <= times:
        for held in product((True, False), repeat=len(weights)):
            yield held, prod(1 - weight if is_held else weight for is_held, weight in zip(held, weights, strict=True))
    else:
        for numbers in np.random.default_rng(0).random((times, len(weights))):
            yield (numbers >= weights).tolist(), 1 / times


def conditioned_distribution(model: Markov, words: Words, bans: Sequence[Ban]) -> dict[tuple[int, ...], float]:
    """All texts by their probability times the weights of the bans that they contain, normalized."""
    texts: dict[tuple[int, ...], float] = {}
    prefixes: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for prefix, mass in prefixes:
        for token, share in enumerate(model.probs(PROMPT, prefix).tolist()):
            path, left = (*prefix, token), mass * share
            is_final = model.ends(path)
            for _, number in completed(path, words, bans, is_final=is_final):
                left *= bans[number].weight
            if left and is_final:
                texts[path] = left
            elif left:
                prefixes.append((path, left))
    total = sum(texts.values())
    return {text: mass / total for text, mass in texts.items()}


def absorb(
    prefixes: Sequence[tuple[int, ...]],
    jumps: Sequence[tuple[tuple[int, ...], tuple[int, ...], float]],
    texts: Sequence[tuple[int, ...]],
) -> dict[tuple[int, ...], float]:
    """The probability that a chain from the first prefix ends in each text."""
    row = {prefix: i for i, prefix in enumerate(prefixes)}
    among, ends = np.eye(len(prefixes)), dict.fromkeys(texts, 0.0)
    for source, target, mass in jumps:
        if target in row:
            among[row[source], row[target]] -= mass
    visits = np.linalg.solve(among.T, np.eye(len(prefixes))[0])
    for source, target, mass in jumps:
        if target in ends:
            ends[target] += visits[row[source]] * mass
    return ends


def first_token_text(
    model: Markov, words: Words, bans: Sequence[Ban], generator: np.random.Generator
) -> tuple[int, ...]:
    """The first-token rule: on a violation multiply its first token once by the weight, and draw again."""
    applied: set[tuple[tuple[int, ...], int]] = set()
    tokens: tuple[int, ...] = ()
    while not tokens or not model.ends(tokens):
        probs = model.probs(PROMPT, tokens).double().numpy().copy()
        for path, number in applied:
            if path[:-1] == tokens:
                probs[path[-1]] *= bans[number].weight
        tokens = (*tokens, int(generator.choice(len(probs), p=probs / probs.sum())))
        for start, number in completed(tokens, words, bans, is_final=model.ends(tokens)):
            if (tokens[: start + 1], number) not in applied:
                applied.add((tokens[: start + 1], number))
                tokens = tokens[:start]
                break
    return tokens


def repeat_occurrences(
    text: str, ban: Ban, *, prompt_size: int = 0, lookback: bool = True, is_final: bool = True
) -> Iterator[tuple[int, int]]:
    """Where words stand again in an ASCII text, which begins with a prompt, and in which a null is a special token."""
    repeat, before, floor = ban.pattern, set[tuple[str, ...]](), 0 if lookback else prompt_size
    assert isinstance(repeat, Repeat)
    words = list(re.finditer("[a-z0-9]+", text.lower()))
    if not is_final and text[-1:].isalnum():
        del words[-1]
    for number in range(len(words) - repeat.words + 1):
        span = words[number : number + repeat.words]
        start, end, row = span[0].start(), span[-1].end(), tuple(word[0] for word in span)
        if "\0" in text[start:end]:
            continue
        if start >= floor and row in before:
            yield start, end
            floor = end
        if {"text": start >= prompt_size, "prompt": span[-1].start() < prompt_size, "both": True}[repeat.of]:
            before.add(row)


def loop_occurrences(text: str, ban: Ban) -> Iterator[tuple[int, int]]:
    """Where a loop stands in a text of a script with spaces, by its definition."""
    loop = ban.pattern
    assert isinstance(loop, Loop)
    folded = fold(text, final=True)
    pairs = [pair for pair in zip(folded.symbols, folded.origins, strict=True) if pair[0] != BOUNDARY]
    symbols, origins = "".join(symbol for symbol, _ in pairs), [origin for _, origin in pairs]
    beginnings = [_begins(symbols, place, text, origins) for place in range(len(symbols))]
    room, floor, near_floor = min(MIN_OFFSET, loop.min_length // 2), 0, 0
    heads = [place for place, kind in enumerate(beginnings) if kind == "sentence" and symbols[place].isalpha()]
    for end in range(1, len(symbols) + 1):
        for period in range(-(-loop.min_length // loop.copies), loop.max_passage + 1):
            run = end
            while run > period and symbols[run - 1] == symbols[run - 1 - period]:
                run -= 1
            first = max(run, floor)
            starts = [
                place
                for place in range(first, end)
                if beginnings[place] == "sentence"
                or (beginnings[place] == "word" and place >= run + room)
                or place >= run + room + period
            ]
            least = (loop.copies - 1) * period
            if not any(map(str.isalpha, symbols[end - period : end])):
                least = max(least, LONG * loop.min_length - period)
                if not _has_sign(symbols[end - period : end]):
                    continue
            if end - first >= least and starts:
                yield origins[starts[0]], origins[end - 1] + 1
                floor = near_floor = end
                break
        else:
            starts = [start for start in _find_near(symbols, heads, end, loop) if near_floor <= start]
            if starts:
                yield origins[min(starts)], origins[end - 1] + 1
                near_floor = end


def _find_near(symbols: str, heads: Sequence[int], end: int, loop: Loop) -> Iterator[int]:
    """Where near copies that end at `end` begin to be loops: at the second copy, or the third of early differences."""
    for first, second in product(heads, heads):
        begin_alike = first < second <= end - HEAD and symbols[first : first + HEAD] == symbols[second : second + HEAD]
        if begin_alike and _is_near(symbols, first, second, end, loop):
            yield second
    for first, second, third in zip(heads, heads[1:], heads[2:], strict=False):
        if third < end and symbols[first : first + HEAD] != symbols[second : second + HEAD]:
            words, others = (re.findall(NEAR_WORD, symbols[a:b]) for a, b in ((first, second), (second, third)))
            same = symbols[first:second].split(" ")[0] == symbols[second:third].split(" ")[0]
            if same and len(words) == len(others) and _is_near(symbols, first, second, end, loop):
                yield third


def _is_near(symbols: str, first: int, second: int, end: int, loop: Loop) -> bool:
    """Whether copies that begin at `first` and `second`, and those after them, are near copies up to the end."""
    gap = symbols[max(0, second - HEAD) : second].rstrip(" \"'()[]*_")
    if not gap or gap[-1] not in ".!?":
        return False
    if not -(-loop.min_length // loop.copies) <= second - first <= loop.max_passage:
        return False
    if (
        not LONG * loop.min_length <= end - first <= (loop.copies + 1) * loop.max_passage
        or symbols[end - 1] not in ".!?"
    ):
        return False
    if re.search(r"[|{}<>#\\]|``|==", symbols[first:second]):
        return False
    period = len(re.findall(NEAR_WORD, symbols[first:second]))
    words = re.findall(NEAR_WORD, symbols[first:end])
    share = (100 - loop.similarity) / 100
    if share * period < 1 - 1e-9 or len(words) % period or len(words) < (loop.copies + 1) * period:
        return False
    for place in range(period, len(words), period):
        changes = [words[i] != words[i - period] for i in range(place, place + period)]
        if sum(changes) > share * period + 1e-9 or words[place + period - 1][-1] not in ".!?":
            return False
        if any(sum(changes[:count]) > share * count + 1 + 1e-9 for count in range(1, period)):
            return False
    return True


def _has_sign(passage: str) -> bool:
    """Whether a passage without letters has a sign that is not of rules and tables, or an operator after a number."""
    signs = [sign for sign in passage if not sign.isalnum() and sign not in RULES and not sign.isspace()]
    return bool(signs) or re.search(r"\d ?[=*+/^]", passage) is not None


def _begins(symbols: str, place: int, text: str, origins: Sequence[int]) -> str:
    """What begins with a symbol, or with the word after it, if there is only space or punctuation in between."""
    if symbols[place] in ".!?":
        return ""
    if symbols[place] == " " and text[origins[place]] in "\r\n":
        return "sentence"
    gap = ""
    for before in range(place - 1, -1, -1):
        if symbols[before].isalnum():
            return "word" if " " in gap + symbols[place] else ""
        if symbols[before] in ".!?":
            return "sentence" if " " in gap + symbols[place] else ""
        if symbols[before] == " " and text[origins[before]] in "\r\n":
            return "sentence"
        gap += symbols[before]
    return "sentence"


def find_in_pieces(
    bans: Sequence[Ban], pieces: Sequence[str], *, matcher: TextMatcher | None = None, **options: Any
) -> list[tuple[int, int, int]]:
    """Return (ban, start, end) of every match while a text is read piece by piece, in order of start.

    matcher: of the bans; by default a new one.
    """
    matcher, found, read = matcher or TextMatcher(bans, **options), [], 0
    phrases, others = matcher.phrases.start, matcher.start
    for number, piece in enumerate(pieces):
        phrases, others, result = matcher.read(phrases, others, piece, final=number == len(pieces) - 1)
        read += len(piece)
        found += [(hit.pattern, read - hit.start_back, read - hit.end_back + 1) for hit in result.matches]
    return sorted(found)
