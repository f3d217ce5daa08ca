"""Controllers over words: replace phrases, write units again, write the best of several; and tokens as their text."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from antislop.core.loop import Branch, Capabilities, Step, TokenSet
from antislop.errors import InputError

CONTEXT = 8
"""Number of tokens decoded before a passage: some tokenizers write the space of a word only after another word."""


class Passage:
    """The text of the generated tokens from `first` on; `before` is the end of the text before it, or of the prompt.

    tokenizer: only its `decode` and `encode` are used.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int], *, first: int = 0) -> None:
        self._tokenizer = tokenizer
        self._context = [*prompt[-CONTEXT:], *tokens[:first]][-CONTEXT:]
        self._tokens = tokens[first:]
        self.first = first
        self.before = self._read(self._context)
        self.text = self.cut(len(tokens))

    def cut(self, index: int) -> str:
        """Return the text of the passage before the token at an index."""
        return self._read([*self._context, *self._tokens[: index - self.first]])[len(self.before) :]

    def find_token(self, char: int) -> int:
        """Return the index of the token that contains a character of `text`, or of the first one behind it."""
        for index in range(self.first + len(self._tokens), self.first, -1):
            text = self.cut(index)
            if len(text) <= char and self.text.startswith(text):
                return index
        return self.first

    def find_end(self, char: int) -> int:
        """Return the end of the shortest tokens that contain the text before a character."""
        end = self.first + len(self._tokens)
        ends = range(self.find_token(char), end)
        return next((i for i in ends if char <= len(self.cut(i)) and self.text.startswith(self.cut(i))), end)

    def spell(self, index: int, text: str) -> tuple[int, tuple[int, ...]]:
        """Return the index to cut at, `index` or less, and the tokens that continue there with `text`.

        Raises `InputError` for a text that the tokenizer can't write there.
        """
        wanted = self.cut(index) + text
        for start in range(index, max(self.first, index - CONTEXT) - 1, -1):
            kept = [*self._context, *self._tokens[: start - self.first]]
            missing = wanted[len(self.cut(start)) :]
            for spelling in (missing, missing.removeprefix(" ")):  # some tokenizers begin each text with a space
                tokens = self._tokenizer.encode(spelling, add_special_tokens=False)
                if tokens and self._read([*kept, *tokens]) == self.before + wanted:
                    return start, tuple(tokens)
        raise InputError(f"the tokenizer can't write {text!r} after {self.cut(index)!r}")

    def _read(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)
        return text


Unit = Literal["sentence", "paragraph"]
_ENDS = {
    "sentence": re.compile(r"""(?<=\S)([.!?…]+["'”’»)\]]*(?=\s)|(?=\n))"""),
    "paragraph": re.compile(r"(?<=\S)(?=[^\S\n]*\n[^\S\n]*\n)"),
}
"""The end of each unit. A sentence ends with a mark and closing quotes before a space ("Mr. Fox" has two), or at a line
break; a paragraph before an empty line."""


class WrittenUnit(NamedTuple):
    """A sentence or paragraph that was written.

    end: the index of the first token after it and the spaces behind it.
    is_cut: the text was cut within it, at its maximum length for instance.
    """

    text: str
    end: int
    is_cut: bool = False


def check_unit(unit: str) -> str:
    if unit not in _ENDS:
        raise InputError(f"{unit!r} is not a unit: it is 'sentence' or 'paragraph'")
    return unit


def find_unit(tokenizer: Any, prompt: Sequence[int], step: Step, *, first: int, unit: str) -> WrittenUnit | None:
    """Return the unit that the tokens from `first` on begin with; None if its end is not known yet."""
    passage = Passage(tokenizer, prompt, step.tokens, first=first)
    if match := _ENDS[unit].search(passage.text):
        space = re.compile(r"\s*").match(passage.text, match.end())
        assert space is not None
        end = max(passage.find_end(match.end()), passage.find_token(space.end()))
        return WrittenUnit(passage.text[: match.end()].strip(), end)
    if not step.is_done:
        return None
    end, specials = len(step.tokens), set(tokenizer.all_special_ids)
    while end > first and step.tokens[end - 1] in specials:
        end -= 1
    text = passage.cut(end).strip()
    return WrittenUnit(text, end, is_cut=end == len(step.tokens)) if text else None


# -- replace -----------------------------------------------------------------------------------------------------------

LOOK_AHEAD = 8
"""Number of tokens behind a phrase that tell where its last word ends, however they spell the next character."""


class Replace:
    """Replace phrases by others in what the model writes; `antislop.core.loop.Controller`.

    phrases: each phrase and its replacement, which gets a capital where the phrase has one. Only whole words are
        replaced: "utilizes" is another word than "utilize".
    tokenizer: the model's, of Hugging Face.

    A phrase is replaced once the token after it shows that its last word has ended; that token stays. A phrase that
    begins in the prompt is not replaced. A stream is late by as many tokens as a phrase may have.

    Raises `InputError` for an empty phrase or replacement, and for a replacement that contains a phrase.
    """

    def __init__(self, phrases: Mapping[str, str], tokenizer: Any, *, case_sensitive: bool = False) -> None:
        is_named = isinstance(phrases, Mapping) and phrases
        if not is_named or not all(isinstance(text, str) and text for text in (*phrases, *phrases.values())):
            raise InputError("Replace takes phrases and replacements that aren't empty: to write neither, ban a phrase")
        self._phrases = sorted(phrases.items(), key=lambda item: len(item[0]), reverse=True)
        self._pattern = re.compile(
            "|".join(_match_words(phrase) for phrase, _ in self._phrases), 0 if case_sensitive else re.IGNORECASE
        )
        if found := next(filter(self._pattern.search, phrases.values()), None):
            raise InputError(f"the replacement {found!r} contains a phrase, so it would be replaced again")
        self._tokenizer = tokenizer
        self._prompt: Sequence[int] = ()
        longest = sum(max(len(text.encode()) for text in texts) for texts in (phrases, phrases.values()))
        self.needs = Capabilities(backtrack=longest + LOOK_AHEAD)  # if each byte is a token

    def start(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt

    def fork(self) -> Replace:
        return copy.copy(self)

    def mid_process(self, step: Step) -> list[Branch]:
        first = max(0, len(step.tokens) - (self.needs.backtrack or 0))
        passage = Passage(self._tokenizer, self._prompt, step.tokens, first=first)
        match = self._pattern.search(passage.before + passage.text, len(passage.before))
        if match is None or not self._is_complete(match, is_done=step.is_done):
            return [Branch(sample_mask=TokenSet.all())]
        start, end = (place - len(passage.before) for place in match.span())
        cut, after = passage.find_token(start), passage.find_end(end)
        text = passage.cut(after)  # a token may also contain what precedes the phrase, or follows it
        kept = len(passage.cut(cut))
        assert match.lastindex is not None  # each phrase is a group of the pattern
        replacement = self._phrases[match.lastindex - 1][1]
        if match[0][0].isupper():
            replacement = replacement[0].upper() + replacement[1:]
        cut, tokens = passage.spell(cut, text[kept:start] + replacement + text[end:])
        return [Branch(backtrack=len(step.tokens) - cut, ff_tokens=(*tokens, *step.tokens[after:]))]

    def _is_complete(self, match: re.Match[str], *, is_done: bool) -> bool:
        """Return whether a phrase can't become another word or a longer phrase."""
        written = match.string[match.start() :].casefold()
        if is_done:
            return True
        if any(phrase.casefold().startswith(written) for phrase, _ in self._phrases if len(phrase) > len(match[0])):
            return False
        return match.string[match.end() :].strip("\ufffd") != ""  # of a character whose other bytes are missing


def _match_words(phrase: str) -> str:
    left, right = (r"(?<!\w)" if phrase[0].isalnum() else "", r"(?!\w)" if phrase[-1].isalnum() else "")
    return f"{left}({re.escape(phrase)}){right}"


# -- write again -------------------------------------------------------------------------------------------------------


class Regenerate:
    """Write each sentence or paragraph again until a function accepts it; `antislop.core.loop.Controller`.

    check: returns whether a unit, stripped of spaces, may stay. Called once for each attempt.
    tokenizer: the model's, of Hugging Face.
    attempts: maximum attempts at a unit; the last one stays even if it is rejected.
    rejected: the rejected units of all texts so far.
    conceded: the rejected units that stayed.

    Sampled units are drawn again, so they are distributed as the model's units that pass. Greedy attempts must begin
    with other tokens than the rejected ones. A unit in which the text was cut is not checked. Nothing is streamed
    before the end.
    """

    needs = Capabilities()

    def __init__(
        self, check: Callable[[str], bool], tokenizer: Any, *, unit: Unit = "sentence", attempts: int = 5
    ) -> None:
        if not isinstance(attempts, int) or attempts < 1 or not callable(check):
            raise InputError(f"attempts is {attempts!r}, check {check!r:.40}; 1 or more and a function were expected")
        self._check, self._tokenizer, self._unit, self._limit = check, tokenizer, check_unit(unit), attempts
        self.rejected: list[str] = []
        self.conceded: list[str] = []
        self.start(())

    def start(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._starts = [0]  # of the accepted units, and of the one that is being written
        self._attempts: dict[tuple[int, ...], list[tuple[int, ...]]] = {}  # rejected ones, by the text before them
        self._repeating: set[tuple[int, ...]] = set()

    def fork(self) -> Regenerate:
        """Return a copy that continues independently, and adds to the same lists."""
        other = copy.copy(self)
        other._starts, other._repeating = list(self._starts), set(self._repeating)
        other._attempts = {place: list(attempts) for place, attempts in self._attempts.items()}
        return other

    def mid_process(self, step: Step) -> list[Branch]:
        while self._starts[-1] > len(step.tokens) - len(step.last_append):  # a ban removed the end of an accepted unit
            self._starts.pop()
        while unit := find_unit(self._tokenizer, self._prompt, step, first=self._starts[-1], unit=self._unit):
            if unit.is_cut:
                break
            if not self._accepts(unit, step):
                start = self._starts[-1]
                return [Branch(len(step.tokens) - start, sample_mask=self._list_starts(step.tokens[:start]))]
            self._starts.append(unit.end)
        return [Branch(sample_mask=self._list_starts(step.tokens))]

    def _accepts(self, unit: WrittenUnit, step: Step) -> bool:
        start = self._starts[-1]
        place, attempt = tuple(step.tokens[:start]), tuple(step.tokens[start : unit.end])
        rejected = self._attempts.setdefault(place, [])
        is_repeated = attempt in rejected and len(rejected) < self._limit
        if is_repeated and step.is_greedy and place not in self._repeating:
            self._repeating.add(place)  # a rejected attempt was written again: it is not counted
            return False
        if attempt not in rejected and self._check(unit.text):
            return True
        rejected.append(attempt)
        self.rejected.append(unit.text)
        if len(rejected) >= self._limit:
            self.conceded.append(unit.text)
        return len(rejected) >= self._limit

    def _list_starts(self, tokens: Sequence[int]) -> TokenSet:
        """Return the allowed next tokens: where greedy attempts repeat, exclude the first tokens of rejected ones.

        The result depends on the tokens alone: bans may bring the text back here.
        """
        place = tuple(tokens)
        ruled_out = {attempt[0] for attempt in self._attempts[place]} if place in self._repeating else ()
        return ~TokenSet(sorted(ruled_out))


# -- the best of several -----------------------------------------------------------------------------------------------


@dataclass
class Contest:
    """A round of `count` candidates for the next unit, shared by the copies of one text's controller.

    scores: of the candidates that are whole.
    finished: the tokens of the candidates with which their text ends.
    ended: the candidates that are not continued.
    """

    count: int
    scores: dict[int, float] = field(default_factory=dict)
    finished: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    @property
    def winner(self) -> int | None:
        """The candidate with the highest score, the first of equals; None until all are whole."""
        if len(self.scores) < self.count:
            return None
        return max(sorted(self.scores), key=lambda number: self.scores[number])

    def begin_round(self) -> None:
        self.scores.clear()
        self.finished.clear()
        self.ended.clear()


class BestOf:
    """Write n candidates of each sentence or paragraph, and continue the best one; `antislop.core.loop.Controller`.

    n: the number of candidates; call `generate` with max_forks=n, and sampled: greedy candidates are the same.
    score: returns a number for a unit, stripped of spaces; the highest one wins.
    tokenizer: the model's, of Hugging Face.

    The candidates are rows of one batch, written until all have finished the unit. Losers end there; the winner's
    continuation becomes the first candidate of the next round. The output has a row for each candidate; `winners` has
    the tokens of the best ones.
    """

    def __init__(self, n: int, score: Callable[[str], float], tokenizer: Any, *, unit: Unit = "paragraph") -> None:
        if not isinstance(n, int) or n < 1 or not callable(score):
            raise InputError(f"n is {n!r} and score {score!r:.40}; a number of 1 or more and a function were expected")
        self._score, self._tokenizer, self._unit = score, tokenizer, check_unit(unit)
        self._contest = Contest(n)
        self._contests: list[Contest] = []  # shared by all copies
        self._prompt: Sequence[int] = ()

    @property
    def needs(self) -> Capabilities:
        return Capabilities(has_forks=self._contest.count > 1)

    @property
    def winners(self) -> list[tuple[int, ...]]:
        """The winner's tokens for each prompt so far; empty for an unfinished text."""
        return [
            contest.finished.get(-1 if contest.winner is None else contest.winner, ()) for contest in self._contests
        ]

    def start(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._contest = Contest(self._contest.count)
        self._contests.append(self._contest)
        self._number: int | None = None  # among the candidates; known at the first step of a round
        self._is_open = False
        self._first = 0  # of the unit of this round
        self._end: int | None = None  # of that unit once it is whole

    def fork(self) -> BestOf:
        """Return a copy that takes part in the same contest."""
        return copy.copy(self)

    def mid_process(self, step: Step) -> list[Branch]:
        """Enter a whole unit in the contest; once all are whole, end as a loser, or open a round as the winner."""
        if not self._is_open:
            return self._open_round(step)
        if self._number is None:
            self._number = step.branch_idx
        contest, number = self._contest, self._number
        kept = len(step.tokens) - len(step.last_append)
        if self._end is not None and kept < self._end:  # a ban removed the unit's end: it leaves the contest
            self._end = None if contest.winner is None else kept
            if self._end is None:
                contest.scores.pop(number)
        if self._end is None:
            self._enter(step, number)
        elif step.is_done and contest.winner == number:  # nothing can be written after its unit
            self._finish(step, number)
        if contest.winner is not None and (contest.winner != number or number in contest.finished):
            contest.ended.add(number)
            return []
        if contest.winner == number and len(contest.ended | contest.finished.keys()) == contest.count - 1:
            return self._open_round(step)
        if step.is_done and self._end is not None and not self._finish(step, number):  # wait: write the rest again
            return [Branch(backtrack=len(step.tokens) - self._end, sample_mask=TokenSet.all())]
        return [Branch(sample_mask=TokenSet.all())]

    def _open_round(self, step: Step) -> list[Branch]:
        """Continue here, and write the other candidates for what comes after the last round's unit."""
        if self._end is not None:
            self._first, self._end = self._end, None
            self._contest.begin_round()
        self._is_open, self._number = True, None
        other = Branch(backtrack=len(step.tokens) - self._first, sample_mask=TokenSet.all())
        own = other if step.is_done else Branch(sample_mask=TokenSet.all())
        return [own, *[other] * (self._contest.count - 1)]

    def _enter(self, step: Step, number: int) -> None:
        unit = find_unit(self._tokenizer, self._prompt, step, first=self._first, unit=self._unit)
        if unit is None and step.is_done:
            unit = WrittenUnit("", len(step.tokens))
        if unit is not None:
            self._end = unit.end
            self._contest.scores[number] = self._score(unit.text) if unit.text else -math.inf
            if step.is_done:
                self._finish(step, number)

    def _finish(self, step: Step, number: int) -> bool:
        """End the text with its unit, unless more than one token follows it; return whether it ends.

        A single token would be drawn again without a forward pass, so the other candidates could not go on meanwhile.
        """
        if len(step.tokens) - (self._end or 0) > 1:
            return False
        self._contest.finished[number] = tuple(step.tokens)
        return True
