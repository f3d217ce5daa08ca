"""Preference pairs from the events of a run: withdrawn text against the text in its place.

A final-token row needs no forward pass. A DPO pair needs the text that would have followed the withdrawn tokens: it is
drafted here, continued by the owner of the model, and finished here. Tokens are ids, and text comes from a `Decoder`;
imports neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban
from antislop.matching.folding import BOUNDARY, find_words, fold
from antislop.metrics.segmentation import find_sentence_end
from antislop.records.journal import Record
from antislop.trace.events import Drawn, Event, Rewound

LOOKBACK = 200
"""Characters of a prompt in which a ban may begin that its continuation completes."""

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
    "kept_unfinished": "left out whose kept text does not reach the end of a sentence",
    "kept_empty": "left out whose text ends where the withdrawn text began",
    "kept_banned": "left out whose kept text has the ban in it",
    "withdrawn_unfinished": "left out whose withdrawn text, continued, does not reach the end of a sentence",
    "continued_tokens": "tokens written to continue withdrawn text",
    "respelled": "alternatives left out that begin the withdrawn text in another spelling",
    "banned_too": "alternatives left out that are banned themselves or were withdrawn at the same place",
    "left_alone": "left out that have no alternative",
}
"""The counts of a run, as reports describe them."""


class Decoder(Protocol):
    """Turns tokens into text, as `Vocabulary` does."""

    def surface(self, token_id: int, /) -> bytes:
        """Return the bytes that a token adds to a text."""

    def decode(self, token_ids: Iterable[int], /, *, after: Sequence[int] = ()) -> str:
        """Return the text that tokens add after those of a prompt."""


def describe_counts(counts: Mapping[PairCount, int]) -> list[str]:
    """Return a phrase for each count above 0: pairs left out, and tokens written to continue withdrawn text."""
    return [f"{counts[name]:,} {phrase}" for name, phrase in COUNTS.items() if counts.get(name)]


class PairSource(NamedTuple):
    """The text that pairs are made from.

    prompt: its text. ids: its tokens. tokens: the final ones, generated. is_complete: whether the text has reached its
    own end, rather than a limit.
    """

    prompt: str
    ids: Sequence[int]
    tokens: Sequence[int]
    is_complete: bool = False


class Correction(NamedTuple):
    """A place in the final text where the model had first written something else.

    place: number of tokens before it. rejected: the tokens that were withdrawn, of which the first `banned` hold the
    ban. alternatives: tokens that might have followed, with their shares.
    """

    ban: Ban
    place: int
    rejected: tuple[int, ...]
    banned: int
    alternatives: tuple[tuple[int, float], ...]


class PairDraft(NamedTuple):
    """A DPO pair whose rejected text is to be continued.

    row: the pair so far. tokens: the generated ones up to the end of what was withdrawn; what follows them is missing.
    start, least: the rejected text begins at the first of these characters and ends at the second or later.
    """

    row: Record
    tokens: list[int]
    start: int
    least: int


def find_corrections(events: Iterable[Event], tokens: Sequence[int]) -> Iterator[Correction]:
    """Yield the rewinds of a run whose context is still part of its final tokens.

    If a run rewound several times to one place, each withdrawn text counts, with the text that is there in the end.
    """
    text: list[int] = []
    rewinds: list[tuple[Rewound, tuple[int, ...]]] = []
    for event in events:
        if isinstance(event, Drawn):
            text.append(event.token)
        elif isinstance(event, Rewound):
            del text[event.length :]
            rewinds.append((event, tuple(text)))
    seen = set[tuple[int, tuple[int, ...]]]()
    for event, before in rewinds:
        place = event.length
        began_here = place == event.violation.start  # else what was withdrawn holds more than the ban
        is_kept = place < len(tokens) and before == tuple(tokens[:place])
        is_new = (place, event.withdrawn) not in seen
        if began_here and is_kept and is_new and tokens[place] != event.withdrawn[0]:
            seen.add((place, event.withdrawn))
            banned = event.violation.end + 1 - place
            yield Correction(event.violation.ban, place, event.withdrawn, banned, event.alternatives)


def draft_dpo(
    source: PairSource, corrections: Iterable[Correction], *, decoder: Decoder, counts: Counter[PairCount]
) -> Iterator[PairDraft]:
    """Yield a pair for each correction, with the columns of TRL's preference data sets, its rejected text unfinished.

    Trainers take both sides for whole completions and append an end-of-text token. So `chosen` is the kept text up to
    the end of its sentence or paragraph; where there is none, the pair is left out. The prompt holds the text up to the
    rewind; https://huggingface.co/docs/trl/dataset_formats#preference.
    """
    kept = decoder.decode(source.tokens, after=source.ids)
    for correction in corrections:
        before = list(source.tokens[: correction.place])
        withdrawn = [*before, *correction.rejected]
        first = decoder.decode(before, after=source.ids)
        other = decoder.decode(withdrawn, after=source.ids)
        # Less than all of `first` where that ends within a character.
        differ = min(_count_shared(first, kept), _count_shared(first, other))
        start = _find_word_edge(first[:differ], [kept[differ:], other[differ:]])
        end = find_sentence_end(kept, differ + 1, is_complete=source.is_complete)
        prompt = source.prompt + kept[:start]
        if end is None:
            counts["kept_unfinished" if kept[differ:] else "kept_empty"] += 1
        elif _contains(prompt, kept[start:end], BanList([correction.ban])):  # conceded, or admitted by its weight
            counts["kept_banned"] += 1
        else:
            banned = decoder.decode(withdrawn[: correction.place + correction.banned], after=source.ids)
            row = {"prompt": prompt, "chosen": kept[start:end], "rejected": "", "ban": correction.ban.phrase}
            yield PairDraft(row, withdrawn, start, max(len(banned.rstrip()), differ + 1))


def finish_dpo(
    draft: PairDraft,
    continuation: Sequence[int],
    *,
    ids: Sequence[int],
    decoder: Decoder,
    is_complete: bool,
    counts: Counter[PairCount],
) -> Record | None:
    """Return a pair whose rejected text ends with its sentence or paragraph; None if the continuation has no such end.

    continuation: the tokens that follow those of the draft; ids: the prompt's. is_complete: whether they reached the
    end of the text.
    """
    whole = decoder.decode([*draft.tokens, *continuation], after=ids)
    end = find_sentence_end(whole, draft.least, is_complete=is_complete)
    counts["continued_tokens"] += len(continuation)
    if end is None:
        counts["withdrawn_unfinished"] += 1
        return None
    return {**draft.row, "rejected": whole[draft.start : end]}


def _find_word_edge(before: str, after: Sequence[str]) -> int:
    """Return where both sides of a pair are to begin, at most at the end of `before`, the text that they share.

    A word that continues in one of them belongs to both, and so does a space: tokenizers cut in front of these, so that
    the tokens of the prompt are a prefix of those of prompt and completion.
    """
    begins, is_in_word = find_words(before, is_in_word=False)
    if is_in_word and any(find_words(text[:1], is_in_word=True) == ([], True) for text in after):
        before = before[: begins[-1]]
    return len(before.rstrip(" "))


def _count_shared(text: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(other)))


def _contains(prompt: str, text: str, bans: BanList) -> bool:
    """Return whether a ban occurs in a text; it may begin in the prompt."""
    before = prompt[-LOOKBACK:]
    return any(match.end > len(before) for match in bans.find(before + text))


def make_tokens(
    source: PairSource,
    corrections: Iterable[Correction],
    *,
    bans: BanList,
    decoder: Decoder,
    tokenizer: str,
    counts: Counter[PairCount],
    floor: float = 0.01,
) -> Iterator[Record]:
    """Yield final-token rows: a context, the token that began a ban, and the tokens that may come instead.

    Ids are those that the model read and wrote; texts are for reading. tokenizer: a fingerprint of what the ids mean.
    floor: the smallest share of an alternative. Left out are alternatives that begin the withdrawn text in another
    spelling, that complete one of `bans`, or that were withdrawn at the same place; and rows without any alternative.
    """
    every = list(corrections)
    withdrawn = {(correction.place, correction.rejected[0]) for correction in every}
    for correction in every:
        before = source.tokens[: correction.place]
        context, prompt = [*source.ids, *before], source.prompt + decoder.decode(before, after=source.ids)
        chosen = []
        for token, share in correction.alternatives:
            if share < floor or token == correction.rejected[0]:
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
                "ban": correction.ban.phrase,
                "tokenizer": tokenizer,
            }


def _read(token: int, context: Sequence[int], decoder: Decoder) -> str:
    return decoder.decode([token], after=context)


def _begins(token: int, correction: Correction, decoder: Decoder) -> bool:
    """Return whether a token begins the withdrawn text, in its own spelling or in one that compares as equal."""
    surface, banned = decoder.surface(token), b"".join(map(decoder.surface, correction.rejected))
    if not surface:
        return False
    folded, folded_ban = (_fold(text.decode(errors="replace"), correction.ban) for text in (surface, banned))
    return banned.startswith(surface) or (folded != "" and folded_ban.startswith(folded))


def _fold(text: str, ban: Ban) -> str:
    return fold(text, case_sensitive=ban.pattern.case_sensitive, final=True).symbols.replace(BOUNDARY, "")


def drop_duplicates(rows: Iterable[Record]) -> list[Record]:
    """Return rows without those whose context and rejected text occur twice; which one stays depends on the rows."""
    columns = ("prompt", "context_with_chat_template", "rejected", "rejected_id")
    every = list(rows)
    return _keep(every, lambda row: json.dumps([row.get(column) for column in columns]), limit=1, seed=0)


def cap_per_ban(rows: Sequence[Record], *, limit: int, seed: int = 0) -> list[Record]:
    """Return at most `limit` rows of each ban, chosen at random, in their order."""
    return _keep(rows, lambda row: row["ban"], limit=limit, seed=seed)


def cap_per_token(rows: Sequence[Record], *, limit: int, seed: int = 0) -> list[Record]:
    """Return final-token rows in which no token is rejected more than `limit` times, nor chosen more often than that.

    Which rows stay is chosen at random, and so is where a token that was chosen too often is taken out. Rows that have
    no chosen token then are left out.
    """
    rows = _keep(rows, lambda row: row["rejected_id"], limit=limit, seed=seed)
    used = Counter[int]()
    places: dict[int, list[int]] = {}
    for number in sorted(range(len(rows)), key=lambda number: _rank(rows[number], seed)):
        row = rows[number]
        places[number] = [i for i, token in enumerate(row["chosen_ids"]) if used[token] < limit]
        used.update(row["chosen_ids"][i] for i in places[number])
    return [_choose(row, places[number]) for number, row in enumerate(rows) if places[number]]


def _choose(row: Record, places: Sequence[int]) -> Record:
    lists = ("multi_chosen_decoded", "chosen_ids", "chosen_shares")
    return {**row, **{name: [row[name][i] for i in places] for name in lists}}


def _keep(rows: Sequence[Record], key: Callable[[Record], Any], *, limit: int, seed: int) -> list[Record]:
    """Return the first `limit` rows of each key in an order that is random and depends on nothing but the rows."""
    used = Counter[Any]()
    kept = set()
    for number in sorted(range(len(rows)), key=lambda number: _rank(rows[number], seed)):
        used[key(rows[number])] += 1
        if used[key(rows[number])] <= limit:
            kept.add(number)
    return [row for number, row in enumerate(rows) if number in kept]


def _rank(row: Record, seed: int) -> bytes:
    """Return a random number that a row has wherever it is in a file: a run that was stopped writes another order."""
    return hashlib.blake2b(f"{seed}{json.dumps(row, sort_keys=True)}".encode(), digest_size=8).digest()
