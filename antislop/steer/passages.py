"""Controllers that read text: `Replace` phrases, `Regenerate` sentences, keep the `BestOf` several candidates."""

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
"""Number of tokens to decode before a passage: some tokenizers write the space before a word only behind other text."""


class Passage:
    """The text of the generated tokens from `first` on. `before` is the end of the text (or prompt) before them.

    tokenizer: an object with `decode` and `encode`.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int], *, first: int = 0) -> None:
        self._tokenizer = tokenizer
        self._context = [*prompt[-CONTEXT:], *tokens[:first]][-CONTEXT:]
        self._tokens = tokens[first:]
        self.first = first
        self.before = self._read(self._context)
        self.text = self.cut(len(tokens))

    def cut(self, index: int) -> str:
        """Return the text of the passage's tokens before the token `index` (counted from the first generated token)."""
        return self._read([*self._context, *self._tokens[: index - self.first]])[len(self.before) :]

    def find_token(self, char: int) -> int:
        """Return the index of the token that contains `text[char]`, or of the first token behind that character."""
        for index in range(self.first + len(self._tokens), self.first, -1):
            text = self.cut(index)
            if len(text) <= char and self.text.startswith(text):
                return index
        return self.first

    def find_end(self, char: int) -> int:
        """Return the index after the fewest tokens whose text contains `text[:char]`."""
        end = self.first + len(self._tokens)
        ends = range(self.find_token(char), end)
        return next((i for i in ends if char <= len(self.cut(i)) and self.text.startswith(self.cut(i))), end)

    def spell(self, index: int, text: str) -> tuple[int, tuple[int, ...]]:
        """Find tokens that write `text` in place of the tokens from `index` on; return (index to cut at, the tokens).

        The cut is at `index`, or earlier if only other tokens can write the text. Raises `InputError` if none can.
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
"""A regex for the end of each unit. A sentence ends with a mark and closing quotes before a space (so "Mr. Fox" is two
sentences), or at a line break; a paragraph ends before an empty line."""


class WrittenUnit(NamedTuple):
    """A sentence or paragraph that was written.

    end: index of the first token after the unit and the spaces that follow it.
    is_cut: whether the text was cut within the unit, at its maximum length for instance.
    """

    text: str
    end: int
    is_cut: bool = False


def check_unit(unit: str) -> str:
    if unit not in _ENDS:
        raise InputError(f"{unit!r} is not a unit: it is 'sentence' or 'paragraph'")
    return unit


def find_unit(tokenizer: Any, prompt: Sequence[int], step: Step, *, first: int, unit: str) -> WrittenUnit | None:
    """Return the unit that begins with the token `first`; None if it is not known yet where the unit ends."""
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
"""Maximum number of tokens read behind a phrase before it is replaced: the next character may be several tokens."""


class Replace:
    """An `antislop.core.loop.Controller` that replaces phrases in what the model writes by other phrases.

    phrases: for each phrase its replacement, which gets a capital where the phrase has one. Only whole words are
        replaced: "utilize" does not replace a part of "utilizes".
    tokenizer: the model's tokenizer, of Hugging Face.

    A phrase is replaced once the next token shows that the phrase's last word has ended; this token is kept. A phrase
    that begins in the prompt is not replaced. A stream is delayed by as many tokens as a phrase may have.

    Raises `InputError` for an empty phrase or replacement, and for a replacement that contains a phrase.
    """

    def __init__(self, phrases: Mapping[str, str], tokenizer: Any, *, case_sensitive: bool = False) -> None:
        is_named = isinstance(phrases, Mapping) and phrases
        if not is_named or not all(isinstance(text, str) and text for text in (*phrases, *phrases.values())):
            raise InputError("Replace takes phrases and replacements that aren't empty: to write neither, ban a phrase")
        self._phrases = sorted(phrases.items(), key=lambda item: len(item[0]), reverse=True)
        # The edge of a word is asked for only where the phrase begins or ends with a letter or digit.
        whole = (rf"(?:(?<!\w)|(?![^\W_]))({re.escape(phrase)})(?:(?!\w)|(?<![^\W_]))" for phrase, _ in self._phrases)
        self._pattern = re.compile("|".join(whole), 0 if case_sensitive else re.IGNORECASE)
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
        """Return whether the text after a match shows that it can't become another word, or a longer phrase."""
        written = match.string[match.start() :].casefold()
        if is_done:
            return True
        if any(phrase.casefold().startswith(written) for phrase, _ in self._phrases if len(phrase) > len(match[0])):
            return False
        return match.string[match.end() :].strip("\ufffd") != ""  # of a character whose other bytes are missing


# -- write again -------------------------------------------------------------------------------------------------------


class Regenerate:
    """An `antislop.core.loop.Controller` that has each sentence or paragraph written again until a function accepts it.

    check: function of a unit (its text, stripped of spaces) that returns whether it may stay; called once per attempt.
    tokenizer: the model's tokenizer, of Hugging Face.
    attempts: maximum number of attempts at a unit; the last attempt stays even if it is rejected.
    rejected: the rejected units of all texts so far.
    conceded: those rejected units that stayed, as the last attempt.

    With sampling, the accepted units have the distribution of the model's units that pass. In greedy decoding, a new
    attempt must begin with another token than the rejected attempts. If the text is cut within a unit, this unit is not
    checked. Nothing is streamed before the end.
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
        self._starts = [0]  # first tokens of the accepted units, and of the unit that is being written
        self._attempts: dict[tuple[int, ...], list[tuple[int, ...]]] = {}  # rejected, by the tokens before them
        self._repeating: set[tuple[int, ...]] = set()

    def fork(self) -> Regenerate:
        """Return a copy for a text that continues independently; both add to the same `rejected` and `conceded`."""
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
        """Return the allowed next tokens: where greedy attempts repeat, not the first tokens of rejected attempts.

        The result depends on nothing but the place in the text, since bans may rewind the text to here again.
        """
        place = tuple(tokens)
        ruled_out = {attempt[0] for attempt in self._attempts[place]} if place in self._repeating else ()
        return ~TokenSet(sorted(ruled_out))


# -- the best of several -----------------------------------------------------------------------------------------------


@dataclass
class Contest:
    """A round of `count` candidates for the next unit of a text, shared by the controllers of the candidates.

    scores: the score of each complete candidate, by its number.
    finished: all tokens of the text for each candidate with which the text ends.
    ended: numbers of the candidates that are not continued.
    """

    count: int
    scores: dict[int, float] = field(default_factory=dict)
    finished: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    @property
    def winner(self) -> int | None:
        """The candidate with the highest score (of equal scores, the first); None until all candidates are complete."""
        if len(self.scores) < self.count:
            return None
        return max(sorted(self.scores), key=lambda number: self.scores[number])


class BestOf:
    """An `antislop.core.loop.Controller` that has n candidates of each unit written, and continues the best one.

    n: the number of candidates. Call `generate` with max_forks=n and do_sample=True: greedy candidates are all equal.
    score: function of a unit (its text, stripped of spaces) that returns a number; the highest number wins.
    tokenizer: the model's tokenizer, of Hugging Face.

    The candidates are rows of one batch, which are written until all have finished the unit. Losers end there; what the
    winner goes on with is the first candidate of the next round. The output has a row for each candidate; `winners` has
    the tokens of the best text for each prompt.
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
        """For each prompt so far, all tokens of the winning text; empty while the text is unfinished."""
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
        """Return a copy for another candidate in the same contest."""
        return copy.copy(self)

    def mid_process(self, step: Step) -> list[Branch]:
        """Score a complete unit; once all candidates are scored, end if this one lost, or begin the next round."""
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
        """Begin a round after the last round's unit: this text goes on as a candidate, and the others are forked."""
        if self._end is not None:
            self._first, self._end = self._end, None
            for kept in (self._contest.scores, self._contest.finished, self._contest.ended):
                kept.clear()
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
        """End the text with the current unit, unless more than one token follows the unit; return whether it ends.

        If one token follows, it stays: to draw it again takes no forward pass, without which other candidates wait.
        """
        if len(step.tokens) - (self._end or 0) > 1:
            return False
        self._contest.finished[number] = tuple(step.tokens)
        return True
