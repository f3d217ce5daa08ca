"""Preference pairs from the events of a run: the rejected text was withdrawn, and the chosen text replaced it.

A final-token row needs no forward pass; for a DPO pair, `pair_maker.py` lets the model continue the withdrawn text.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from antislop.core.bans import Ban, BanList, find_words, fold_text
from antislop.core.trace import Event, Report, TracedRow
from antislop.files.chats import list_turns, read_messages, render_chat
from antislop.files.journal import Record
from antislop.measure.words import find_sentence_end

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from antislop.core.hf import Vocabulary
    from antislop.steer.fixing import Fixed

LOOKBACK = 200
"""How many last characters of a prompt are searched for the beginning of a ban that the text completes."""

MIN_SHARE = 0.01
"""Smallest probability of an alternative in a final-token row."""

CHOSEN = ("multi_chosen_decoded", "chosen_ids", "chosen_shares")
"""The columns of a final-token row that list the chosen tokens: as texts, as ids, and their probabilities."""

PairFormat = Literal["dpo", "tokens"]
PairCount = Literal[
    "kept_unfinished",
    "kept_empty",
    "kept_banned",
    "withdrawn_unfinished",
    "continued_tokens",
    "respelled",
    "banned_too",
    "left_alone",
]

COUNTS: dict[PairCount, str] = {
    "kept_unfinished": "left out because the kept text does not reach the end of a sentence",
    "kept_empty": "left out because the text ends at the start of the withdrawn text",
    "kept_banned": "left out because the kept text contains the ban",
    "withdrawn_unfinished": "left out because the continued withdrawn text does not reach the end of a sentence",
    "continued_tokens": "tokens written to continue withdrawn text",
    "respelled": "alternatives left out that begin the withdrawn text in another spelling",
    "banned_too": "alternatives left out that complete a ban or were withdrawn at the same place",
    "left_alone": "left out because they have no alternative",
}
"""The phrases for counts in reports, each after a number."""


def describe_counts(counts: Mapping[PairCount, int]) -> list[str]:
    return [f"{counts[name]:,} {phrase}" for name, phrase in COUNTS.items() if counts.get(name)]


class PairSource(NamedTuple):
    """The text that pairs are made from.

    prompt, ids, tokens: the prompt as text and as token ids, and the token ids of the text.
    is_complete: whether the text ended by itself, not at a limit.
    """

    prompt: str
    ids: Sequence[int]
    tokens: Sequence[int]
    is_complete: bool = False


class Correction(NamedTuple):
    """A place in the final text at which the model had first written a ban.

    place: number of final tokens before this place.
    rejected: the withdrawn tokens, the first `banned` of which contain the ban.
    alternatives: tokens that the model could draw there instead, with their probabilities.
    """

    ban: Ban
    place: int
    rejected: tuple[int, ...]
    banned: int
    alternatives: tuple[tuple[int, float], ...]


class PairDraft(NamedTuple):
    """A DPO pair whose rejected text is to be continued.

    tokens: the generated tokens, up to the end of the withdrawn text.
    start: index of the first character of the rejected text.
    min_end: smallest index at which the rejected text may end.
    """

    row: Record
    tokens: list[int]
    start: int
    min_end: int


def find_corrections(events: Sequence[Event], tokens: Sequence[int]) -> Iterator[Correction]:
    """Yield a correction for each rewind to a place in the final text, unless a ban forced the token at this place.

    Several rewinds to the same place give several corrections.
    """
    yielded = set[tuple[int, tuple[int, ...]]]()
    forced = {violation.start for violation in Report.of(events).forced}
    for attempt in TracedRow((), events).history.attempts:
        violation, place, withdrawn = attempt.violation, attempt.token_index, attempt.tokens
        if violation is None:
            continue
        began_here = place == violation.start  # else the withdrawn text contains more than the ban
        is_kept = attempt.is_on_path and place < len(tokens) and place not in forced
        if began_here and is_kept and (place, withdrawn) not in yielded and tokens[place] != withdrawn[0]:
            yielded.add((place, withdrawn))
            yield Correction(violation.ban, place, withdrawn, violation.end + 1 - place, attempt.alternatives)


def draft_dpo(
    source: PairSource, corrections: Iterable[Correction], *, decoder: Vocabulary, counts: Counter[PairCount]
) -> Iterator[PairDraft]:
    """Yield a draft of a pair for each correction, with the columns of TRL's preference data sets.

    Trainers append an end-of-text token, so `chosen` ends with its sentence or paragraph; a pair without such an end is
    left out. The prompt includes the text up to the rewind. https://huggingface.co/docs/trl/dataset_formats#preference
    """
    final_text = decoder.decode(source.tokens, after=source.ids)
    for correction in corrections:
        context_tokens = list(source.tokens[: correction.place])
        withdrawn = [*context_tokens, *correction.rejected]
        context = decoder.decode(context_tokens, after=source.ids)
        withdrawn_text = decoder.decode(withdrawn, after=source.ids)
        # Shorter than `context` if the context ends within a character.
        differ = min(len(commonprefix([context, text])) for text in (final_text, withdrawn_text))  # noqa: RUF071 - no paths
        # A word that goes on after the shared text is moved into both sides, with the space before it: tokenizers
        # cut there, so the tokens of the prompt stay a prefix of those of prompt and side.
        shared, sides = context[:differ], (final_text[differ:], withdrawn_text[differ:])
        begins, is_in_word = find_words(shared, is_in_word=False)
        if is_in_word and any(find_words(side[:1], is_in_word=True) == ([], True) for side in sides):
            shared = shared[: begins[-1]]
        start = len(shared.rstrip(" "))
        end = find_sentence_end(final_text, differ + 1, is_complete=source.is_complete)
        prompt = source.prompt + final_text[:start]
        if end is None:
            counts["kept_unfinished" if final_text[differ:] else "kept_empty"] += 1
        elif _contains(prompt, final_text[start:end], BanList([correction.ban])):  # conceded, or admitted by its weight
            counts["kept_banned"] += 1
        else:
            banned = decoder.decode(withdrawn[: correction.place + correction.banned], after=source.ids)
            row = {"prompt": prompt, "chosen": final_text[start:end], "rejected": "", "ban": correction.ban.text}
            yield PairDraft(row, withdrawn, start, max(len(banned.rstrip()), differ + 1))


def finish_dpo(
    draft: PairDraft,
    continuation: Sequence[int],
    *,
    ids: Sequence[int],
    decoder: Vocabulary,
    is_complete: bool,
    counts: Counter[PairCount],
) -> Record | None:
    """Return a pair whose rejected text ends with a sentence or paragraph; None if that text has no such end."""
    text = decoder.decode([*draft.tokens, *continuation], after=ids)
    end = find_sentence_end(text, draft.min_end, is_complete=is_complete)
    counts["continued_tokens"] += len(continuation)
    if end is None:
        counts["withdrawn_unfinished"] += 1
        return None
    return {**draft.row, "rejected": text[draft.start : end]}


def pair_changes(fixed: Fixed, before: Any, *, tokenizer: PreTrainedTokenizerBase) -> Iterator[Record]:
    """Yield a DPO pair for each change of a text: the rest of its sentence with the new words, and with the old.

    before: what the text answers, a text or a chat.
    """
    turns = list_turns(before)
    prompt = str(before) if turns is None else render_chat(read_messages(turns), tokenizer)
    grown = 0
    for change in fixed.changes:
        start, end = change.start + grown, change.start + grown + len(change.after)
        grown += len(change.after) - len(change.before)
        context, rest = fixed.text[:start].rstrip(" "), fixed.text[end : find_sentence_end(fixed.text, end)]
        space = fixed.text[len(context) : start]  # tokenizers cut before it
        if not change.left and (chosen := space + change.after + rest).strip():
            rejected = space + change.before + rest
            yield {"prompt": prompt + context, "chosen": chosen, "rejected": rejected, "ban": change.ban}


def _contains(prompt: str, text: str, bans: BanList) -> bool:
    """Return whether a ban occurs in a text; the occurrence may begin in the prompt."""
    context = prompt[-LOOKBACK:]
    return any(match.end > len(context) for match in bans.find(context + text))


def make_tokens(
    source: PairSource,
    corrections: Iterable[Correction],
    *,
    bans: BanList,
    decoder: Vocabulary,
    tokenizer: str,
    counts: Counter[PairCount],
) -> Iterator[Record]:
    """Yield final-token rows: a context, the token that began a ban there, and the alternatives to that token.

    Leaves out an alternative if it is less likely than `MIN_SHARE`, begins the withdrawn text in another spelling,
    completes one of `bans`, or was withdrawn at the same place too. A row with no alternative left is left out.
    """
    all_corrections = list(corrections)
    withdrawn = {(correction.place, correction.rejected[0]) for correction in all_corrections}
    for correction in all_corrections:
        tokens = source.tokens[: correction.place]
        context, prompt = [*source.ids, *tokens], source.prompt + decoder.decode(tokens, after=source.ids)
        chosen = []
        for token, share in correction.alternatives:
            if share < MIN_SHARE or token == correction.rejected[0]:
                continue
            if _begins(token, correction, decoder):
                counts["respelled"] += 1
            elif (correction.place, token) in withdrawn or _contains(prompt, _read(token, context, decoder), bans):
                counts["banned_too"] += 1
            else:
                chosen.append((token, share))
        if not chosen:
            counts["left_alone"] += 1
        else:
            yield {
                "context_with_chat_template": prompt,
                "context_ids": context,
                "rejected_decoded": _read(correction.rejected[0], context, decoder),
                "rejected_id": correction.rejected[0],
                "multi_chosen_decoded": [_read(token, context, decoder) for token, _ in chosen],
                "chosen_ids": [token for token, _ in chosen],
                "chosen_shares": [round(share, 6) for _, share in chosen],
                "ban": correction.ban.text,
                "tokenizer": tokenizer,
            }


def _read(token: int, context: Sequence[int], decoder: Vocabulary) -> str:
    return decoder.decode([token], after=context)


def _begins(token: int, correction: Correction, decoder: Vocabulary) -> bool:
    """Return whether the withdrawn text begins with a token, in the same or an equivalent spelling."""
    surface, banned = decoder.surface(token), b"".join(map(decoder.surface, correction.rejected))
    if not surface:
        return False
    folding = correction.ban.pattern.folding
    folded, folded_ban = (fold_text(text.decode(errors="replace"), folding=folding) for text in (surface, banned))
    return banned.startswith(surface) or (folded != "" and folded_ban.startswith(folded))


def drop_duplicates(rows: Iterable[Record]) -> list[Record]:
    """Return one row for each context and rejected text; which row is kept depends on the rows, not on their order."""
    columns = ("prompt", "context_with_chat_template", "rejected", "rejected_id")
    all_rows = list(rows)
    return _keep(all_rows, lambda row: json.dumps([row.get(column) for column in columns]), limit=1, seed=0)


def cap_per_ban(rows: Sequence[Record], *, limit: int, seed: int = 0) -> list[Record]:
    """Return at most `limit` rows per ban, chosen at random, in the order of `rows`."""
    return _keep(rows, lambda row: row["ban"], limit=limit, seed=seed)


def cap_per_token(rows: Sequence[Record], *, limit: int, seed: int = 0) -> list[Record]:
    """Return final-token rows in which no token is rejected more than `limit` times, or chosen more than `limit` times.

    Rows are left out at random; a token that is chosen too often is removed from random rows.
    """
    rows = _keep(rows, lambda row: row["rejected_id"], limit=limit, seed=seed)
    used = Counter[int]()
    places: dict[int, list[int]] = {}
    for number in sorted(range(len(rows)), key=lambda number: _rank(rows[number], seed)):
        row = rows[number]
        places[number] = [i for i, token in enumerate(row["chosen_ids"]) if used[token] < limit]
        used.update(row["chosen_ids"][i] for i in places[number])
    kept = [(row, places[number]) for number, row in enumerate(rows) if places[number]]
    return [{**row, **{name: [row[name][i] for i in own] for name in CHOSEN}} for row, own in kept]


def _keep(rows: Sequence[Record], key: Callable[[Record], Any], *, limit: int, seed: int) -> list[Record]:
    """Return up to `limit` rows of each key, chosen at random by the seed and the rows, whatever their order."""
    used = Counter[Any]()
    numbers = set()
    for number in sorted(range(len(rows)), key=lambda number: _rank(rows[number], seed)):
        used[key(rows[number])] += 1
        if used[key(rows[number])] <= limit:
            numbers.add(number)
    return [row for number, row in enumerate(rows) if number in numbers]


def _rank(row: Record, seed: int) -> bytes:
    """Return a random number of a row, the same at any place in a file: a resumed run writes rows in another order."""
    # Leave out the alternatives: the last digits of their shares, and so their list, depend on the batch of the text.
    named = {name: value for name, value in row.items() if name not in CHOSEN}
    return hashlib.blake2b(f"{seed}{json.dumps(named, sort_keys=True)}".encode(), digest_size=8).digest()
