"""Make data sets: from prompts to records, in flight, each the same whatever it is batched with.

    maker = Maker(model, tokenizer, bans, settings={"max_new_tokens": 300, "do_sample": True})
    with open_journal("out.jsonl", {"seed": 0}) as journal:
        for record in write_records(maker, lambda: read_prompts("prompts.jsonl"), journal):
            print(record["response"])

A record depends on its prompt, its key and the settings; not on the other prompts, their order, or the size of a batch.
Reading prompts is in `prompts`, going on after a crash in `records`, preferences in `pairs`.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antislop.datasets.arms import UNBANNED as UNBANNED
from antislop.datasets.arms import Arm as Arm
from antislop.datasets.pair_maker import PairMaker, Pairs
from antislop.datasets.pairs import Count, PairFormat, Source, cap_per_ban, cap_per_token, drop_duplicates
from antislop.datasets.prompt_only import Request
from antislop.errors import InputError
from antislop.files import open_to_append
from antislop.hf.lengths import PromptLengths, refuse_lengths
from antislop.hf.vocabulary import Vocabulary, fingerprint_tokenizer
from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban
from antislop.records.journal import Journal, Record, read_lines, read_records, replace_lines
from antislop.records.prompts import Prompt, fingerprint_text
from antislop.sampler import AntiSlop, Completion
from antislop.trace.events import Conceded, Rewound

NO_TOKEN = "the prompt has no token: give it some text"
"""Why an empty prompt can't be used."""


class Order(NamedTuple):
    """One text that is wanted: the prompt, which of its responses, and under which arm."""

    prompt: Prompt
    sample: int
    arm: Arm

    @property
    def identity(self) -> tuple[str, int, str]:
        """What tells its record apart."""
        return self.prompt.key, self.sample, self.arm

    def seed(self, base: int) -> int:
        """Return its seed: the same in each arm, and dependent on nothing but key and number."""
        name = f"{base}/{self.sample}/{self.prompt.key}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(name, digest_size=7).digest(), "big")


def identify(record: Record) -> tuple[str, int, str]:
    """Return what tells a record apart, as `Order.identity`."""
    return record["key"], record["sample"], record["arm"]


def fingerprint(bans: BanList) -> str:
    """Return a hash of what a list forbids, the same for the same bans in the same order."""
    return hashlib.sha256("\n".join(map(repr, bans)).encode("utf-8", "surrogatepass")).hexdigest()


BATCHES_OF_CONTINUATIONS = 4
"""Withdrawn texts are continued when there are enough for this number of batches: one alone would run half empty."""


@dataclass(frozen=True)
class Made:
    """A record, the preference pairs that came about with it, and what was counted while they were made."""

    record: Record
    pairs: Sequence[Record] = ()
    counts: Mapping[Count, int] = field(default_factory=dict)


class _Begun(NamedTuple):
    """A text that is being written after a prompt of `ids`. is_chat: whether it is a reply, after a chat template."""

    order: Order
    ids: list[int]
    is_chat: bool
    since: float


class RecordMaker(Protocol):
    """What makes records of orders, here or elsewhere."""

    def make(self, orders: Iterable[Order], *, arm: Arm = "banned") -> Iterator[Made]:
        """Yield a record of each order, in any order."""


class Recorder(ABC):
    """Makes records of the texts that something writes; what that is, is said in `_write` and `_find_error`.

    settings: of a text, max_new_tokens and sampling among it. pairs: which to make of what is withdrawn, if any.
    arms: those that will be asked for. options: those of `AntiSlop`, whose errors are raised.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        bans: BanList | Iterable[str | Ban],
        *,
        seed: int = 0,
        batch_size: int = 16,
        settings: dict[str, Any],
        pairs: PairFormat | None = None,
        arms: Sequence[Arm] = ("banned", "plain"),
        **options: Any,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary.of(tokenizer)
        bans = bans if isinstance(bans, BanList) else BanList(bans)
        written: tuple[Arm, ...] = (*arms, "plain") if pairs == "dpo" else tuple(arms)
        self._samplers = {arm: _make_sampler(tokenizer, bans, arm, options) for arm in written}
        self._request = Request(bans, tokenizer) if "prompt-only" in arms else None
        self._asked: dict[tuple[str, int, str], int] = {}
        self._seed = seed
        self._batch_size = batch_size
        self._settings = settings
        self._pairs = pairs
        self._pair_maker = (
            None
            if pairs is None
            else PairMaker(
                pairs,
                self._vocabulary,
                bans,
                fingerprint=fingerprint_tokenizer(tokenizer),
                settings=settings,
                write=partial(self._write, arm="plain"),
                find_room=self._find_room,
                find_ends=self._find_ends,
            )
        )

    @abstractmethod
    def _write(
        self, prompts: Iterator[list[int]], seeds: Iterator[int], *, arm: Arm, settings: dict[str, Any]
    ) -> Iterator[Completion]:
        """Write a text after each prompt, each with its own seed, which is there once its prompt was taken."""

    def _find_ends(self) -> Collection[int]:
        """Return the tokens that end a text."""
        end = self._tokenizer.eos_token_id
        return () if end is None else (end,)

    def _find_room(self, new: int) -> int | None:  # noqa: ARG002
        """Return the most tokens that a prompt may have before `new` ones; None where nobody knows."""
        return None

    @property
    def _new(self) -> int:
        return self._settings.get("max_new_tokens") or 1

    @abstractmethod
    def _find_error(self, ids: Sequence[int]) -> str | None:
        """Return why a prompt can't be used, if so."""

    def make(self, orders: Iterable[Order], *, arm: Arm = "banned") -> Iterator[Made]:
        """Yield records as texts are finished; orders are taken as places in the batch become free.

        What can't be done is a record with an error, in its turn.
        """
        refused: list[Made] = []
        begun: dict[int, _Begun] = {}
        numbers = count()

        def prompts() -> Iterator[list[int]]:
            for order in orders:
                prompt = order.prompt if order.prompt.error else self._complete(order)
                ids = [] if order.prompt.error else self._encode(prompt)
                if error := order.prompt.error or self._find_error(ids):
                    refused.append(Made(self._describe(order, status="error", error=error)))
                else:
                    begun[next(numbers)] = _Begun(order, ids, prompt.has_special_tokens, time.perf_counter())
                    yield ids

        seeds = (begun[number].order.seed(self._seed) for number in count())
        waiting: list[tuple[Order, Record, Pairs]] = []
        for done in self._write(prompts(), seeds, arm=arm, settings=self._settings):
            yield from refused
            refused.clear()
            own = begun.pop(done.number)
            if own.is_chat:  # the reply is a text of its own
                done = replace(done, text=self._vocabulary.decode(done.tokens))
            record = self._report(own.order, done, prompt_tokens=len(own.ids), since=own.since)
            # The text of a record with an error is made again, and so are its pairs.
            pairs = Pairs() if record["status"] == "error" else self._begin_pairs(own, done)
            waiting.append((own.order, record, pairs))
            if not pairs.drafts:
                yield from self._finish_pairs([waiting.pop()])
            elif sum(len(each.drafts) for _, _, each in waiting) >= BATCHES_OF_CONTINUATIONS * self._batch_size:
                yield from self._finish_pairs(waiting)
                waiting.clear()
        yield from refused
        yield from self._finish_pairs(waiting)

    def _complete(self, order: Order) -> Prompt:
        """Return the prompt that the model is to read."""
        if order.arm != "prompt-only":
            return order.prompt
        assert self._request is not None, "asked for an arm that was not named before"
        prompt, self._asked[order.identity] = self._request.put(order.prompt, room=self._find_room(self._new))
        return prompt

    def _encode(self, prompt: Prompt) -> list[int]:
        ids: list[int] = self._tokenizer(prompt.text, add_special_tokens=not prompt.has_special_tokens)["input_ids"]
        return ids

    def _report(self, order: Order, done: Completion, *, prompt_tokens: int, since: float) -> Record:
        report = done.report
        conceded = Counter(event.violation.ban.phrase for event in report.events if isinstance(event, Conceded))
        violations, withdrawn = conceded.copy(), Counter[str]()
        for event in report.events:
            if isinstance(event, Rewound):
                violations[event.violation.ban.phrase] += 1
                withdrawn[event.violation.ban.phrase] += len(event.withdrawn)
        reply = {"role": "assistant", "content": self._vocabulary.decode(done.tokens)}
        chat = {} if order.prompt.messages is None else {"messages": [*order.prompt.messages, reply]}
        asked = {"asked_phrases": self._asked.pop(order.identity)} if order.arm == "prompt-only" else {}
        return self._describe(
            order,
            status="error" if done.error is not None else "conceded" if conceded else "ok",
            error=None if done.error is None else str(done.error),
            response=done.text,
            **chat,
            **asked,
            prompt_tokens=prompt_tokens,
            tokens=len(done.tokens),
            withdrawn_tokens=report.withdrawn_tokens,
            violations=dict(violations),
            withdrawn=dict(withdrawn),
            conceded=dict(conceded),
            seconds=round(time.perf_counter() - since, 3),
        )

    def _begin_pairs(self, begun: _Begun, done: Completion) -> Pairs:
        if self._pair_maker is None or begun.order.arm != "banned":
            return Pairs()
        source = Source(self._read_prompt(begun.order.prompt, begun.ids), begun.ids, done.tokens)
        return self._pair_maker.begin(source, done.report.events, seed=begun.order.seed(self._seed))

    def _finish_pairs(self, waiting: Sequence[tuple[Order, Record, Pairs]]) -> Iterator[Made]:
        """Yield records with their pairs; a record is one with an error if a text was not continued for one."""
        if self._pair_maker is not None:
            self._pair_maker.finish([pairs for _, _, pairs in waiting])
        for order, record, pairs in waiting:
            own = {"key": order.prompt.key, "sample": order.sample}
            if pairs.error is None:
                yield Made(record, [{**row, **own} for row in pairs.rows], pairs.counts)
            else:
                yield Made({**record, "status": "error", "error": pairs.error})

    def _read_prompt(self, prompt: Prompt, ids: Sequence[int]) -> str:
        """Return the text of a prompt for trainers, which put the first special token in front of it by themselves."""
        first = self._tokenizer.bos_token
        if prompt.has_special_tokens and first and self._tokenizer(prompt.text)["input_ids"] != ids:
            return prompt.text.removeprefix(first)
        return prompt.text

    def _describe(self, order: Order, *, status: str, **more: Any) -> Record:
        """Return a record: the input's own columns, then what is known of the text."""
        known: Record = {
            "key": order.prompt.key,
            "sample": order.sample,
            "arm": order.arm,
            "seed": order.seed(self._seed),
            "status": status,
            "error": None,
            "response": None,
        }
        return {**order.prompt.fields, "prompt": order.prompt.text, **known, **more}


class Maker(Recorder):
    """Makes records with one model. options: those of `Recorder`; settings: what `generate` takes."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        bans: BanList | Iterable[str | Ban],
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, bans, **options)
        self._model = model

    def _write(
        self, prompts: Iterator[list[int]], seeds: Iterator[int], *, arm: Arm, settings: dict[str, Any]
    ) -> Iterator[Completion]:
        sampler = self._samplers[arm]
        return sampler.generate_many(self._model, prompts, batch_size=self._batch_size, seeds=seeds, **settings)

    def _find_ends(self) -> Collection[int]:
        own = self._settings.get("eos_token_id", self._model.generation_config.eos_token_id)
        return (own,) if isinstance(own, int) else tuple(own or ())

    def _find_room(self, new: int) -> int | None:
        positions = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        return None if positions is None else positions - new

    def _find_error(self, ids: Sequence[int]) -> str | None:
        room = self._find_room(self._new)
        if not ids:
            return NO_TOKEN
        if room is not None and len(ids) > room:
            return (
                f"the prompt has {len(ids):,} tokens, with {self._new:,} new ones more than the model's "
                f"{room + self._new:,}: shorten it or ask for fewer"
            )
        try:
            refuse_lengths(self._model, PromptLengths((len(ids),)), new=self._new, in_flight=True)
        except ValueError as error:
            return str(error)
        return None


def _make_sampler(tokenizer: PreTrainedTokenizerBase, bans: BanList, arm: Arm, options: Mapping[str, Any]) -> AntiSlop:
    if arm in UNBANNED:
        return AntiSlop(tokenizer, [])
    return AntiSlop(tokenizer, bans, **{**options, **({"method": "token"} if arm == "token" else {})})


def take_orders(prompts: Iterable[Prompt], *, samples: int, arm: Arm) -> Iterator[Order]:
    """Yield an order for each response that is wanted of each prompt."""
    return (Order(prompt, sample, arm) for prompt in prompts for sample in range(samples))


def open_journal(
    path: str | os.PathLike[str], settings: Mapping[str, Any], *, additions: Collection[str] = (), force: bool = False
) -> Journal:
    """Open a journal of records as makers make them: those that failed are made again. See `Journal`."""
    return Journal(
        path,
        settings,
        identify=identify,
        is_done=lambda record: record["status"] != "error",
        fingerprint=lambda record: fingerprint_text(record["prompt"]),
        additions=additions,
        force=force,
    )


class Resumed(NamedTuple):
    """What a run finds in its journal.

    changed: records that were taken out, since their prompts have changed. unasked: records of prompts, samples or arms
    that this run does not ask for.
    """

    changed: int
    unasked: int


def resume(journal: Journal, orders: Iterable[Order], *, force: bool = False) -> Resumed:
    """Compare the prompts of a journal's records with those of all orders, before any text is made.

    Raises `InputError` where a prompt has changed under its key; with `force`, its records are taken out instead.
    """
    if not len(journal):
        return Resumed(0, 0)
    changed, unasked = [], len(journal)
    for order in orders:
        if order.identity in journal:
            unasked -= 1
            if _has_changed(order, journal):
                changed.append(order)
    if changed and not force:
        raise _describe_change(changed, journal)
    journal.drop([order.identity for order in changed])
    return Resumed(len(changed), unasked)


def _has_changed(order: Order, journal: Journal) -> bool:
    before = journal.fingerprint_of(order.identity)
    return before is not None and before != fingerprint_text(order.prompt.text)


def _describe_change(changed: Sequence[Order], journal: Journal) -> InputError:
    """Return an error that shows where the first of the prompts that have changed differs from its record's."""
    first = changed[0]
    before = next(record["prompt"] for record in read_records(journal.path) if identify(record) == first.identity)
    after = first.prompt.text
    same = next((i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(after))
    was, now = (repr(text[max(0, same - 20) : same + 40]) for text in (before, after))
    return InputError(
        f"{journal.path}: {len(changed):,} of its records answer prompts that have changed; {first.prompt.key!r} had "
        f"{was}, and now has {first.prompt.error or now}: put the prompts back, choose another file, or use --force to "
        "make these records again"
    )


class PairFile:
    """Preference pairs of the records of a journal, each record's once, whenever the process was killed.

    The pairs of a record are written before it; what belongs to no record of the journal was torn and is taken out.
    is_own: the journal's settings say that its pairs are in this file. Raises `InputError` for a file that holds
    something else.
    """

    def __init__(self, path: Path, journal: Journal, *, kind: PairFormat, is_own: bool = False) -> None:
        self.path = path
        self.counts = Counter[Count]()
        self._kind = kind
        journal.lock(path)
        lines = list(read_lines(path)) if path.exists() else []
        self._check(lines, journal, is_own=is_own)
        replace_lines(path, (line for line, row in lines if row and _owner(row) in journal))

    def _check(self, lines: Sequence[tuple[bytes, Record | None]], journal: Journal, *, is_own: bool) -> None:
        """Refuse a file with anything in it but pairs of the journal's records, and of those that it has lost.

        A file that may be another's has pairs of one such record at most: the one that was not written any more.
        """
        is_torn = bool(lines) and lines[-1][1] is None
        rows = [row or {} for _, row in (lines[:-1] if is_torn else lines)]
        if not all({"ban", "key", "sample"} <= row.keys() for row in rows):
            raise InputError(f"{self.path}: holds something else than pairs: choose another file")
        if any(("rejected_id" in row) != (self._kind == "tokens") for row in rows):
            raise InputError(f"{self.path}: holds pairs of another format: choose another file, or the same format")
        strangers = {owner for row in rows if (owner := _owner(row)) not in journal} - journal.dropped
        if len(strangers) > 1 + journal.damaged and not is_own:
            raise InputError(
                f"{self.path}: holds pairs of texts that are not in {journal.path}: choose another file, or remove it"
            )

    def append(self, rows: Iterable[Record], counts: Mapping[Count, int] | None = None) -> None:
        """Write the pairs of a text; raises `InputError` where there is no room. counts: added to those so far."""
        self.counts.update(counts or {})
        try:
            with open_to_append(self.path) as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        except OSError as error:
            raise InputError(f"{self.path}: can't be written to ({error.strerror}); run it again to go on") from error

    def finish(self, *, per_ban: int | None = None, per_token: int | None = None, seed: int = 0) -> int:
        """Leave out duplicates and what is too frequent, and return how many pairs are left.

        per_ban: pairs of each ban. per_token: rows in which a token is rejected, and those in which it is chosen.
        """
        rows = drop_duplicates(read_records(self.path))
        rows = rows if per_ban is None else cap_per_ban(rows, limit=per_ban, seed=seed)
        rows = rows if per_token is None else cap_per_token(rows, limit=per_token, seed=seed)
        replace_lines(self.path, (json.dumps(row).encode() + b"\n" for row in rows))
        return len(rows)


def _owner(row: Record) -> tuple[Any, ...]:
    return row.get("key"), row.get("sample"), "banned"


def write_records(
    maker: RecordMaker,
    prompts: Callable[[], Iterable[Prompt]],
    journal: Journal,
    *,
    samples: int = 1,
    arms: Sequence[Arm] = ("banned",),
    pairs: PairFile | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Record]:
    """Make what a journal does not have, and yield each record when it is written.

    prompts: gives the prompts from the beginning each time it is called: once for each arm. is_stopped: asked before
    each text; once it is true, only the texts in flight are finished. Raises `InputError` at a prompt that is not the
    one which the journal's record answers: see `resume`.
    """
    for arm in arms:
        orders = takewhile(lambda _: not is_stopped(), take_orders(prompts(), samples=samples, arm=arm))
        for made in maker.make((order for order in orders if not _is_made(order, journal)), arm=arm):
            if identify(made.record) in journal:
                continue
            if pairs is not None:
                pairs.append(made.pairs, made.counts)
            journal.append(made.record)
            yield made.record


def _is_made(order: Order, journal: Journal) -> bool:
    if order.identity in journal and _has_changed(order, journal):
        raise _describe_change([order], journal)
    return order.identity in journal


@dataclass
class Summary:
    """Count what was written.

    words: of texts under bans. unbanned: tokens of texts without. conceded: bans that were let through.
    """

    records: int = 0
    failed: int = 0
    tokens: int = 0
    withdrawn: int = 0
    violations: int = 0
    conceded: int = 0
    words: int = 0
    unbanned: int = 0
    began: float = field(default_factory=time.monotonic)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one more record."""
        if record["status"] == "error":
            self.failed += 1
            return
        self.records += 1
        self.tokens += record["tokens"]
        self.withdrawn += record["withdrawn_tokens"]
        self.violations += sum(record["violations"].values())
        self.conceded += sum(record["conceded"].values())
        if record["arm"] in UNBANNED:
            self.unbanned += record["tokens"]
        else:
            self.words += len(record["response"].split())

    def describe(self) -> str:
        """Return it in one line."""
        return f"{self.records:,} {'record' if self.records == 1 else 'records'}, {self.describe_rates()}"

    def describe_rates(self) -> str:
        """Return it without the number of records."""
        seconds = max(1e-9, time.monotonic() - self.began)
        parts = [f"{self.tokens / seconds:,.0f} tokens/s"]
        drawn = self.tokens - self.unbanned + self.withdrawn
        if drawn:
            parts += [
                f"{1000 * self.violations / max(1, self.words):.1f} violations per 1,000 words",
                f"{self.withdrawn / drawn:.1%} withdrawn",
            ]
        parts += [
            f"{count:,} {what}" for count, what in ((self.conceded, "conceded"), (self.failed, "failed")) if count
        ]
        return ", ".join(parts)


def measure_slop(records: Iterable[Mapping[str, Any]], bans: BanList) -> dict[str, float]:
    """Return per arm how many occurrences of the bans stand in 1,000 words of the responses."""
    words: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for record in records:
        if record["response"] is not None:
            words[record["arm"]] += len(record["response"].split())
            found[record["arm"]] += len(bans.find(record["response"]))
    return {arm: 1000 * found[arm] / max(1, words[arm]) for arm in words}
