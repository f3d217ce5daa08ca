"""What bans with then="force" write where they have used up their tries, in the tokens of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.scopes import THOUGHTS
from antislop.core.hf.response_templates import chat_scope, find_response_template, read_response_template
from antislop.core.hf.vocabulary import Vocabulary
from antislop.errors import BanError


def name_forced(bans: BanList, tokenizer: PreTrainedTokenizerBase) -> BanList:
    """Replace each ban that forces text without naming it by two: within thoughts it ends these, elsewhere the text.

    Raises `BanError` if nobody says how the model's thoughts end.
    """
    nameless = [ban for ban in bans if _is_nameless(ban)]
    if not nameless:
        return bans
    if tokens := [ban.pattern.describe() for ban in nameless if not ban.pattern.occurs_in_text]:
        raise BanError(f"then='force' needs a text for {tokens[0]}, which have no place in thoughts: pass force")
    template = find_response_template(tokenizer)
    fields = read_response_template(template).fields if template else {}
    ends = [field.close_literals[0] for name, field in fields.items() if name in THOUGHTS and field.close_literals]
    if template is None or not ends:
        raise BanError(
            "then='force' needs a text, and no response template says how this model's thoughts end: pass force"
        )
    inside, outside = chat_scope(template, "thinking"), replace(chat_scope(template, "thinking"), where="outside")

    def split() -> Iterator[Ban]:
        for ban in bans:
            if _is_nameless(ban):
                yield replace(ban, force=ends[0], scopes=(*ban.scopes, inside))
                yield replace(ban, then="stop", scopes=(*ban.scopes, outside))
            else:
                yield ban

    return BanList(split(), source=bans.source, license=bans.license)


def _is_nameless(ban: Ban) -> bool:
    return ban.then == "force" and not ban.force


def encode_forced(
    bans: Iterable[Ban], tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary
) -> dict[str, tuple[int, ...]]:
    """Return the tokens of all texts that bans force. Raises `BanError` for a text that no tokens have."""
    return {text: _encode(text, tokenizer, vocabulary) for text in {ban.force for ban in bans if ban.force}}


def _encode(text: str, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> tuple[int, ...]:
    before, *tries = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (".", text, "." + text))
    for ids in (tries[0], tries[1][len(before) :]):  # some tokenizers put a space before a text
        surfaces = (
            vocabulary.breaks[token].encode() if token in vocabulary.breaks else vocabulary.surface(token)
            for token in ids
        )
        if b"".join(surfaces) == text.encode():
            return tuple(ids)
    raise BanError(f"force is {text!r}, which this tokenizer does not write as it stands: choose another text")
