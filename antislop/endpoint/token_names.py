"""Token ids from the texts or numbers by which a server names tokens."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedTokenizerBase

from antislop.endpoint.old_dialects import Key
from antislop.hf.vocabulary import Vocabulary


class TokenNames:
    """A lookup of token ids by the names that servers use."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> None:
        self.size = len(vocabulary.surfaces)
        self._ids: dict[bytes, int | None] = {}  # None: several tokens have this text
        texts = [(i, surface) for i, surface in enumerate(vocabulary.surfaces) if surface]
        texts += [(i, tokenizer.convert_ids_to_tokens(i).encode()) for i in vocabulary.breaks if i < self.size]
        for token_id, text in texts:
            self._ids[text] = None if text in self._ids else token_id

    def find(self, key: Key) -> int | None:
        """Return the id of a token; None if there is none, or several."""
        if isinstance(key, int):
            return key if 0 <= key < self.size else None
        return self._ids.get(key)

    def read(self, logprobs: Mapping[Key, float], *, limit: int) -> dict[int, float]:
        """Return the likeliest alternatives by id; after the first `limit`, servers add the token that they wrote."""
        entries = sorted(logprobs.items(), key=lambda item: item[1], reverse=True)[:limit]
        return {token: value for key, value in entries if (token := self.find(key)) is not None}
