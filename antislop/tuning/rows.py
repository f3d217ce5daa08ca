"""Rows for training: final-token rows, checked against a tokenizer and balanced, and pairs of texts for DPO."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple

from antislop.errors import InputError
from antislop.files.disk import read_path
from antislop.files.journal import Record
from antislop.files.records import read_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Loss = Literal["ftpo", "dpo"]
"""What a model is trained with: final-token preference optimization of `FTPORow`, or DPO of `TextPair`."""
COLUMNS = ("context_ids", "rejected_id", "chosen_ids", "tokenizer")


class FTPORow(NamedTuple):
    """The token ids of a context, of the token that began a ban after it, and of the tokens to prefer to that token."""

    context: tuple[int, ...]
    rejected: int
    chosen: tuple[int, ...]


class TextPair(NamedTuple):
    """A prompt, a continuation to prefer, and a continuation that contains a ban."""

    prompt: str
    chosen: str
    rejected: str


def load_pairs(
    path: str | os.PathLike[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    min_chosen: int = 2,
    max_chosen: int = 8,
    max_length: int | None = None,
    vocab_size: int | None = None,
    balance_chosen: float = 0.2,
    balance_rejected: float = 0.8,
    max_rows: int | None = None,
    seed: int = 0,
) -> list[FTPORow]:
    """Read the rows that `antislop dataset --pairs-format tokens` wrote.

    min_chosen, max_chosen: a row with fewer chosen tokens is left out; of a row with more, the likeliest are kept.
    max_length: the most tokens that a context may have.
    vocab_size: the number of the model's tokens; by default, the number of the tokenizer's tokens.
    balance_chosen, balance_rejected: the largest share of all chosen and of all rejected tokens that a token may have;
        but if few distinct tokens occur, a token may have twice as much as if all had the same share.
    max_rows: the most rows to return, chosen at random.

    Raises `InputError` for a file without such rows, rows of another tokenizer, ids that the model lacks, a rejected
    token among the chosen ones, contexts that are too long, and if no row is left.
    """
    if min_chosen > max_chosen:
        raise InputError(f"min_chosen is {min_chosen}, and max_chosen is {max_chosen}: no row can have as many tokens")
    path, rows, few = read_path(path), list[FTPORow](), 0
    from antislop.core.hf import fingerprint_tokenizer

    fingerprint, size = fingerprint_tokenizer(tokenizer), vocab_size or max(tokenizer.get_vocab().values()) + 1
    for place, record in _read_pairs(path):
        row = _read_row(record, fingerprint, vocab_size=size, place=place)
        if max_length is not None and len(row.context) > max_length:
            raise InputError(
                f"{place}: the context has {len(row.context):,} tokens, and the model reads {max_length:,}: make the "
                "pairs of shorter texts"
            )
        if len(row.chosen) < min_chosen:
            few += 1
        else:
            rows.append(row._replace(chosen=row.chosen[:max_chosen]))
    rows = balance(rows, chosen=balance_chosen, rejected=balance_rejected, min_chosen=min_chosen, seed=seed)
    if not rows:
        raise InputError(f"{path}: no row has enough chosen tokens, {min_chosen} ({few:,} have fewer): make more pairs")
    taken = len(rows) if max_rows is None else min(max_rows, len(rows))
    return [rows[number] for number in sorted(Random(seed).sample(range(len(rows)), taken))]


def load_text_pairs(
    path: str | os.PathLike[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    max_rows: int | None = None,
    seed: int = 0,
) -> list[TextPair]:
    """Read the pairs that `antislop dataset --pairs` writes; `max_length` and `max_rows` as in `load_pairs`.

    Raises `InputError` for a file without such pairs, for texts that are too long, and for a pair of equal texts.
    """
    path, pairs = Path(path), list[TextPair]()
    for place, record in _read_pairs(path):
        if missing := [name for name in TextPair._fields if not isinstance(record.get(name), str)]:
            raise InputError(f"{place}: the pair has no {missing[0]}: make pairs with antislop dataset --pairs")
        pair = TextPair(*(record[name] for name in TextPair._fields))
        if pair.chosen == pair.rejected:
            raise InputError(f"{place}: chosen and rejected are the same text: leave out the pair")
        length = max(len(tokenizer(pair.prompt + side)["input_ids"]) for side in pair[1:]) + 1  # the end of the text
        if max_length is not None and length > max_length:
            raise InputError(
                f"{place}: the text has {length:,} tokens, and the model reads {max_length:,}: make the pairs of "
                "shorter texts"
            )
        pairs.append(pair)
    return pairs if max_rows is None else Random(seed).sample(pairs, min(max_rows, len(pairs)))


def _read_pairs(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield each pair with its place, path:line.

    Raises `InputError` at a line that is not a JSON object, and for a file without pairs.
    """
    place = ""
    for place, record, _, error in read_file(path):
        if error is not None or not isinstance(record, dict):
            raise InputError(f"{place}: {error or 'not a JSON object: pass a file of antislop dataset --pairs'}")
        yield place, record
    if not place:
        raise InputError(f"{path}: the file has no pairs: make some with antislop dataset --pairs FILE")


def _read_row(record: Record, fingerprint: str, *, vocab_size: int, place: str) -> FTPORow:
    if missing := [name for name in COLUMNS if name not in record]:
        if {"chosen", "rejected"} <= record.keys():
            raise InputError(f"{place}: a pair of texts, and ftpo reads final-token pairs: pass --loss dpo")
        raise InputError(
            f"{place}: the pair has no {missing[0]}: make pairs with antislop dataset --pairs-format tokens"
        )
    if record["tokenizer"] != fingerprint:
        raise InputError(
            f"{place}: the pair belongs to the tokenizer {record['tokenizer']}, and the model has {fingerprint}: make "
            "pairs with this model"
        )
    context, rejected, chosen = (record[name] for name in COLUMNS[:3])
    if not all(isinstance(ids, list) and all(type(i) is int for i in ids) for ids in (context, [rejected], chosen)):
        raise InputError(f"{place}: the pair has other values than ids: make it with antislop dataset --pairs")
    if not context:
        raise InputError(f"{place}: the context is empty: the model needs a token to begin after")
    if wrong := [i for i in (*context, rejected, *chosen) if not 0 <= i < vocab_size]:
        raise InputError(
            f"{place}: the pair has the id {wrong[0]:,}, and the model has {vocab_size:,} tokens: make pairs with this "
            "model"
        )
    # antislop writes neither of these, so the file was changed: which of the two was meant, nobody here can know.
    if rejected in chosen:
        raise InputError(f"{place}: the rejected id {rejected} is among the chosen ones: leave out the pair")
    if again := [i for i, count in Counter(chosen).items() if count > 1]:
        raise InputError(f"{place}: the chosen id {again[0]} comes twice: leave out one of them")
    return FTPORow(tuple(context), rejected, tuple(chosen))


def balance(
    rows: Sequence[FTPORow], *, chosen: float, rejected: float, min_chosen: int, seed: int = 0
) -> list[FTPORow]:
    """Leave out rows and chosen tokens at random until no token has more than its allowed share.

    Rows that all reject the same token, or all choose the same token, would teach that token and nothing else.
    """
    kept = list(rows)
    while True:
        before = len(kept), sum(len(row.chosen) for row in kept)
        left = _cap([(row.rejected,) for row in kept], share=rejected, seed=seed)
        kept = [row for row, tokens in zip(kept, left, strict=True) if tokens]
        left = _cap([row.chosen for row in kept], share=chosen, seed=seed)
        kept = [row._replace(chosen=some) for row, some in zip(kept, left, strict=True) if len(some) >= min_chosen]
        if (len(kept), sum(len(row.chosen) for row in kept)) == before:
            return kept


def _cap(groups: Sequence[Sequence[int]], *, share: float, seed: int) -> list[tuple[int, ...]]:
    """Return the tokens of each group; groups come in random order, and a token is left out once its share is used."""
    uses = Counter(token for group in groups for token in group)
    share = max(share, 2 / max(1, len(uses)))

    def is_too_often(limit: int) -> bool:  # then larger limits are, too: uses grow more slowly
        return limit > share * sum(min(count, limit) for count in uses.values())

    limit = max(1, bisect_left(range(1, max(uses.values(), default=0) + 1), True, key=is_too_often))
    used, kept = Counter[int](), dict[int, tuple[int, ...]]()
    for number in Random(seed).sample(range(len(groups)), len(groups)):
        kept[number] = tuple(token for token in groups[number] if used[token] < limit)
        used.update(kept[number])
    return [kept[number] for number in range(len(groups))]
