"""Find and replace while the text is written: cut a phrase as soon as it is complete, and force another one."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from antislop.core.loop import Branch, Capabilities, Step, TokenSet
from antislop.errors import InputError
from antislop.steer.passages import Passage

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
