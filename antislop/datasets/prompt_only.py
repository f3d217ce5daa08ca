"""Ask a model in its prompt to avoid phrases: the baseline that a sampler has to beat.

Imports neither torch nor transformers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from antislop.matching.bans import Ban
from antislop.records.chats import put_system
from antislop.records.prompts import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SENTENCE = "Do not use any of these words or phrases: "


class Request:
    """Ask for texts without the phrases of bans, as many of them from the first on as fit into a prompt.

    Regexes and token ids can't be requested and are left out. A model with a chat template gets the request in its
    system message, after an existing one; any other model gets it before the text.
    """

    def __init__(self, bans: Iterable[Ban], tokenizer: PreTrainedTokenizerBase) -> None:
        self.phrases = [ban.phrase for ban in bans if ban.pattern.is_legible and ban.weight < 1]
        self._tokenizer = tokenizer
        parts = [f', "{phrase}"' for phrase in self.phrases]
        sizes = map(len, tokenizer(parts, add_special_tokens=False)["input_ids"]) if parts else []
        self._ends = list(accumulate(sizes))

    def put(self, prompt: Prompt, *, room: int | None) -> tuple[Prompt, int]:
        """Return the prompt with the request, and the number of phrases in it.

        room: limit of tokens of that prompt. If not even one phrase fits, the prompt is returned as it is.
        """
        asked = len(self.phrases)
        while asked:
            written = self._write(prompt, asked)
            excess = 0 if room is None else self._count(written) - room
            if excess <= 0:
                return written, asked
            asked = min(asked - 1, bisect_right(self._ends, self._ends[asked - 1] - excess))
        return prompt, 0

    def _write(self, prompt: Prompt, asked: int) -> Prompt:
        sentence = SENTENCE + ", ".join(f'"{phrase}"' for phrase in self.phrases[:asked]) + "."
        if not getattr(self._tokenizer, "chat_template", None):
            return replace(prompt, text=f"{sentence}\n\n{prompt.text}")
        messages = prompt.messages or [{"role": "user", "content": prompt.text}]
        before = [message["content"] for message in messages if message["role"] == "system"]
        messages = put_system(messages, "\n\n".join([*before, sentence]))
        text = str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        return replace(prompt, text=text, messages=messages, has_special_tokens=True)

    def _count(self, prompt: Prompt) -> int:
        ids: list[int] = self._tokenizer(prompt.text, add_special_tokens=not prompt.has_special_tokens)["input_ids"]
        return len(ids)
