"""Ask a model in its prompt to avoid phrases: the baseline of comparisons with the sampler."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from antislop.core.bans import Ban
from antislop.files.chats import join_parts, put_system, render_chat
from antislop.files.prompts import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

INSTRUCTION = "Do not use any of these words or phrases: "


class AvoidanceInstruction:
    """Adds to prompts the instruction to avoid the phrases of bans: the first ones, as many as fit.

    Regexes and token ids are left out. With a chat template, the instruction ends the system message; else it precedes
    the text.
    """

    def __init__(self, bans: Iterable[Ban], tokenizer: PreTrainedTokenizerBase) -> None:
        self.phrases = [ban.text for ban in bans if ban.pattern.is_legible and ban.weight < 1]
        self._tokenizer = tokenizer
        parts = [f', "{phrase}"' for phrase in self.phrases]
        sizes = map(len, tokenizer(parts, add_special_tokens=False)["input_ids"]) if parts else []
        self._ends = list(accumulate(sizes))

    def add_to(self, prompt: Prompt, *, room: int | None) -> tuple[Prompt, int]:
        """Return the prompt with the instruction, and the number of phrases in it; unchanged if no phrase fits.

        room: maximum tokens of the result.
        """
        count = len(self.phrases)
        while count:
            instructed = self._write(prompt, count)
            excess = 0 if room is None else self._count(instructed) - room
            if excess <= 0:
                return instructed, count
            count = min(count - 1, bisect_right(self._ends, self._ends[count - 1] - excess))
        return prompt, 0

    def _write(self, prompt: Prompt, count: int) -> Prompt:
        sentence = INSTRUCTION + ", ".join(f'"{phrase}"' for phrase in self.phrases[:count]) + "."
        if not getattr(self._tokenizer, "chat_template", None):
            return replace(prompt, text=f"{sentence}\n\n{prompt.text}")
        messages = prompt.messages or [{"role": "user", "content": prompt.text}]
        system_texts = [join_parts(message["content"]) for message in messages if message["role"] == "system"]
        messages = put_system(messages, "\n\n".join([*system_texts, sentence]))
        text = render_chat(messages, self._tokenizer, variables=prompt.variables)
        return replace(prompt, text=text, messages=messages, has_special_tokens=True)

    def _count(self, prompt: Prompt) -> int:
        ids: list[int] = self._tokenizer(prompt.text, add_special_tokens=not prompt.has_special_tokens)["input_ids"]
        return len(ids)
