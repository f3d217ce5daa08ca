"""Makers of records: a model, in this process or on a server, answers prompts, many at the same time.

A record depends on its prompt, its key and the settings, not on other prompts, their order or the batch size.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, count
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antislop.core.bans import Ban, BanList
from antislop.core.hf import StopStrings, Vocabulary, encode, fingerprint_tokenizer, max_positions, refuse_lengths
from antislop.core.sampler import AntiSlop
from antislop.core.trace import BATCH_SIZE, Completion, Conceded, Rewound
from antislop.datasets.pair_maker import PairMaker, Pairs
from antislop.datasets.pairs import PairFormat, PairSource
from antislop.datasets.samples import UNBANNED, Arm, MadeRecord, SampleSpec
from antislop.display import describe_count
from antislop.engines.endpoint.endpoint import Endpoint, EndpointMethod
from antislop.engines.endpoint.sampler import EndpointCompletion, EndpointSampler
from antislop.errors import InputError
from antislop.files.chats import join_parts, put_system, render_chat
from antislop.files.journal import Record
from antislop.files.prompts import Prompt
from antislop.steer.grammar.compilation import compile_llguidance, fingerprint_grammar
from antislop.steer.grammar.grammar import Grammar
from antislop.steer.samplers import add_samplers

NO_TOKEN = "the prompt has no token: give it some text"
"""The error of a record with an empty prompt."""
BATCHES_OF_CONTINUATIONS = 4
"""Rejected texts of pairs are continued once they fill this many batches: the last batch runs half empty."""


class _Begun(NamedTuple):
    """A text that is being written. ids: the token ids of its prompt."""

    spec: SampleSpec
    ids: list[int]
    is_chat: bool
    since: float


class RecordMakerBase(ABC):
    """Makes records of prompts; a subclass writes the texts in `write`, and may refuse prompts in `find_error`.

    settings: arguments of `generate` for each text; `max_new_tokens` is required.
    pairs: the format of preference pairs; None makes no pairs.
    arms: all arms that will be passed to `make`.
    options: further arguments of `AntiSlop`, which raises an `InputError` for options that can't be used.
    """

    _owner, _remedy = "the model's", "shorten it or ask for fewer"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        bans: BanList | Iterable[str | Ban],
        *,
        seed: int = 0,
        batch_size: int = BATCH_SIZE,
        settings: dict[str, Any],
        pairs: PairFormat | None = None,
        arms: Sequence[Arm] = ("banned", "plain"),
        **options: Any,
    ) -> None:
        if not isinstance(new := settings.get("max_new_tokens"), int):
            raise InputError(
                f"settings is {settings}: add the limit of each text, {{'max_new_tokens': 300}} for instance"
            )
        self._new = new
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary.of(tokenizer)
        bans = bans if isinstance(bans, BanList) else BanList(bans)
        sampled_arms: tuple[Arm, ...] = (*arms, "plain") if pairs == "dpo" else tuple(arms)
        self._samplers = {}
        for arm in sampled_arms:
            own = {**options, "method": "token"} if arm == "token" else options
            # An arm without bans gets no options either: its texts are what the model writes by itself.
            self._samplers[arm] = AntiSlop(tokenizer, []) if arm in UNBANNED else AntiSlop(tokenizer, bans, **own)
        self._instruction = AvoidanceInstruction(bans, tokenizer) if "prompt-only" in arms else None
        self._asked_phrases: dict[tuple[str, int, str], int] = {}
        self._seed = seed
        self._batch_size = batch_size
        self._settings = settings
        self._pair_maker = (
            None
            if pairs is None
            else PairMaker(
                kind=pairs,
                vocabulary=self._vocabulary,
                bans=bans,
                fingerprint=fingerprint_tokenizer(tokenizer),
                settings=settings,
                write=partial(self.write, arm="plain"),
                find_room=self._find_room,
                find_ends=self._find_ends,
            )
        )

    @abstractmethod
    def write(
        self, prompts: Iterator[list[int]], seeds: Iterator[int], *, arm: Arm, settings: dict[str, Any]
    ) -> Iterator[Completion]:
        """Yield a text for each prompt, drawn with the prompt's seed; take each seed from `seeds` after its prompt."""

    def _find_ends(self) -> Collection[int]:
        end = self._tokenizer.eos_token_id
        return () if end is None else (end,)

    def _find_room(self, new_tokens: int) -> int | None:  # noqa: ARG002
        """Return how many tokens a prompt may have if `new_tokens` are to follow it; None if unknown."""
        return None

    def find_error(self, ids: Sequence[int]) -> str | None:
        """Return why a prompt can't be used; None if it can. ids: one token or more."""
        room = self._find_room(self._new)
        if room is None or len(ids) <= room:
            return None
        total = f"the prompt has {describe_count(len(ids), 'token')}, with {describe_count(self._new, 'new one')} more"
        return f"{total} than {self._owner} {room + self._new:,}: {self._remedy}"

    def make(self, specs: Iterable[SampleSpec], *, arm: Arm = "banned") -> Iterator[MadeRecord]:
        """Yield records as texts are finished; specs are read as places in the batch become free.

        A spec whose text can't be written gives a record with an error.
        """
        refused: list[MadeRecord] = []
        begun: dict[int, _Begun] = {}
        numbers = count()

        def prompts() -> Iterator[list[int]]:
            for spec in specs:
                prompt = spec.prompt
                if spec.arm == "prompt-only" and not prompt.error:
                    assert self._instruction is not None, "the arm prompt-only is not among arms"
                    room = self._find_room(self._new)
                    prompt, self._asked_phrases[spec.identity] = self._instruction.add_to(prompt, room=room)
                ids = [] if spec.prompt.error else self._encode(prompt)
                if error := spec.prompt.error or (self.find_error(ids) if ids else NO_TOKEN):
                    refused.append(MadeRecord(self._describe(spec, status="error", error=error)))
                else:
                    begun[next(numbers)] = _Begun(spec, ids, prompt.has_special_tokens, time.perf_counter())
                    yield ids

        seeds = (begun[number].spec.seed(self._seed) for number in count())
        waiting: list[tuple[SampleSpec, Record, Pairs]] = []
        for completion in self.write(prompts(), seeds, arm=arm, settings=self._settings):
            yield from refused
            refused.clear()
            text = begun.pop(completion.number)
            if text.is_chat:  # a reply is decoded without the prompt before it
                completion = replace(completion, text=self._vocabulary.decode(completion.tokens))
            record = self.make_record(text.spec, completion, ids=text.ids, since=text.since)
            # A record with an error will be made again by the next run, and then its pairs, too.
            pairs = Pairs()
            if self._pair_maker is not None and text.spec.arm == "banned" and record["status"] != "error":
                prompt, bos_token = text.spec.prompt.text, self._tokenizer.bos_token or ""
                if bos_token and self._tokenizer(prompt)["input_ids"] != text.ids:
                    prompt = prompt.removeprefix(bos_token)  # trainers add it themselves
                source = PairSource(prompt, text.ids, completion.tokens)
                pairs = self._pair_maker.begin(source, completion.report.events, seed=text.spec.seed(self._seed))
            waiting.append((text.spec, record, pairs))
            if not pairs.drafts:
                yield from self._finish_pairs([waiting.pop()])
            elif sum(len(pairs.drafts) for _, _, pairs in waiting) >= BATCHES_OF_CONTINUATIONS * self._batch_size:
                yield from self._finish_pairs(waiting)
                waiting.clear()
        yield from refused
        yield from self._finish_pairs(waiting)

    def _encode(self, prompt: Prompt) -> list[int]:
        return encode(prompt.text, self._tokenizer, special_tokens=not prompt.has_special_tokens)

    def make_record(self, spec: SampleSpec, completion: Completion, *, ids: list[int], since: float) -> Record:
        report = completion.report
        conceded = Counter(event.violation.ban.text for event in report.let_through if isinstance(event, Conceded))
        violations, withdrawn = Counter[str](), Counter[str]()
        for event in report.events:
            if isinstance(event, (Conceded, Rewound)):
                violations[event.violation.ban.text] += 1
            if isinstance(event, Rewound):
                withdrawn[event.violation.ban.text] += len(event.withdrawn)
        reply = {"role": "assistant", "content": self._vocabulary.decode(completion.tokens)}
        chat = {} if spec.prompt.messages is None else {"messages": [*spec.prompt.messages, reply]}
        asked = {"asked_phrases": self._asked_phrases.pop(spec.identity)} if spec.arm == "prompt-only" else {}
        return self._describe(
            spec,
            status="error" if completion.error is not None else "conceded" if conceded else "ok",
            error=None if completion.error is None else str(completion.error),
            response=completion.text,
            finish_reason=None if completion.error else self._find_finish(ids, completion),
            **chat,
            **asked,
            prompt_tokens=len(ids),
            tokens=len(completion.tokens),
            withdrawn_tokens=report.withdrawn_tokens,
            violations=dict(violations),
            withdrawn=dict(withdrawn),
            conceded=dict(conceded),
            **({"rewinds_by_part": dict(report.rewinds_by_part)} if report.rewinds_by_part else {}),
            seconds=round(time.perf_counter() - since, 3),
        )

    def _find_finish(self, ids: list[int], completion: Completion) -> str | None:
        """Return why a text ended: "length" (of max_new_tokens), "stop", or by a ban "exhausted" or "repetition"."""
        tokens, stops = completion.tokens, self._settings.get("stop_strings")
        if completion.report.reason != "done":
            return completion.report.reason
        if len(tokens) < self._new or tokens[-1] in self._find_ends():
            return "stop"
        is_stopped = stops and StopStrings.read(stops, self._vocabulary.spell).end([*ids, *tokens])
        return "stop" if is_stopped else "length"  # the last token that is allowed may complete a stop string

    def _finish_pairs(self, waiting: Sequence[tuple[SampleSpec, Record, Pairs]]) -> Iterator[MadeRecord]:
        """Yield records with their pairs; a record gets an error if the text of a pair could not be continued."""
        if self._pair_maker is not None:
            self._pair_maker.finish([pairs for _, _, pairs in waiting])
        for spec, record, pairs in waiting:
            columns = {"key": spec.prompt.key, "sample": spec.sample}
            if pairs.error is None:
                yield MadeRecord(record, [{**row, **columns} for row in pairs.rows], pairs.counts)
            else:
                yield MadeRecord({**record, "status": "error", "error": pairs.error})

    def _describe(self, spec: SampleSpec, *, status: str, **columns: Any) -> Record:
        spec_columns: Record = {
            "key": spec.prompt.key,
            "sample": spec.sample,
            "arm": spec.arm,
            "seed": spec.seed(self._seed),
            "status": status,
            "error": None,
            "response": None,
            "finish_reason": None,
        }
        return {**spec.prompt.fields, "prompt": spec.prompt.text, **spec_columns, **columns}


class ModelRecordMaker(RecordMakerBase):
    """Makes records with a model in this process. options: see `RecordMakerBase`; `settings` may also be those of DRY.

    grammar: that each text follows, as a function of `antislop.steer.grammar.compilation` returned it. Each record then
        has the grammar's fingerprint in the column `grammar`, and the status "cut" if it ended within the grammar.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        bans: BanList | Iterable[str | Ban],
        *,
        grammar: str | None = None,
        **options: Any,
    ) -> None:
        if grammar is not None and options.get("pairs") == "dpo":
            raise InputError(
                "pairs of the format dpo are cut at the ends of sentences, where a grammar does not end: make pairs of "
                "the format tokens, or none"
            )
        super().__init__(tokenizer, bans, **options)
        self._model = model
        self._grammar: Grammar | None = None
        if grammar is not None:
            ends = list(self._find_ends()) or None
            self._grammar = Grammar(compile_llguidance(grammar, tokenizer, end_tokens=ends))
            self._fingerprint = fingerprint_grammar(grammar)
            processors = [*(self._settings.get("logits_processor") or []), self._grammar]
            self._settings = {**self._settings, "logits_processor": processors}

    def write(
        self, prompts: Iterator[list[int]], seeds: Iterator[int], *, arm: Arm, settings: dict[str, Any]
    ) -> Iterator[Completion]:
        sampler, settings = self._samplers[arm], add_samplers(settings, self._tokenizer)
        return sampler.generate_many(self._model, prompts, batch_size=self._batch_size, seeds=seeds, **settings)

    def make_record(self, spec: SampleSpec, completion: Completion, *, ids: list[int], since: float) -> Record:
        record = super().make_record(spec, completion, ids=ids, since=since)
        if self._grammar is None:
            return record
        is_cut = completion.error is None and not self._grammar.accepts(completion.tokens)
        return {**record, "status": "cut" if is_cut else record["status"], "grammar": self._fingerprint}

    def _find_ends(self) -> Collection[int]:
        ends = self._settings.get("eos_token_id", self._model.generation_config.eos_token_id)
        return (ends,) if isinstance(ends, int) else tuple(ends or ())

    def _find_room(self, new_tokens: int) -> int | None:
        positions = max_positions(self._model)
        return None if positions is None else positions - new_tokens

    def find_error(self, ids: Sequence[int]) -> str | None:
        if error := super().find_error(ids):
            return error
        try:
            refuse_lengths(self._model, [len(ids)], new=self._new, in_flight=True)
        except ValueError as fault:
            return str(fault)
        return None


class EndpointMaker(RecordMakerBase):
    """Makes records with a model on a server; a record gets an error if the server fails.

    A record also has `method`, and per kept token the requests (`requests_per_token`) and the tokens received from the
    server (`written_per_token`).

    tokenizer: of the model on the server.
    method, options: see `EndpointSampler`, also for `settings`, and `RecordMakerBase`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tokenizer: PreTrainedTokenizerBase,
        bans: BanList | Iterable[str | Ban],
        *,
        method: EndpointMethod = "auto",
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, bans, **options)
        self._served = {
            arm: EndpointSampler(sampler, endpoint, method=method) for arm, sampler in self._samplers.items()
        }

    def describe_server(self) -> str:
        """Return a line on what the server can do. Raises `EndpointError` if it can't be reached."""
        return next(iter(self._served.values())).describe_server()

    def write(
        self, prompts: Iterator[list[int]], seeds: Iterator[int], *, arm: Arm, settings: dict[str, Any]
    ) -> Iterator[Completion]:
        return self._served[arm].generate_many(prompts, batch_size=self._batch_size, seeds=seeds, **settings)

    def make_record(self, spec: SampleSpec, completion: Completion, *, ids: list[int], since: float) -> Record:
        record = super().make_record(spec, completion, ids=ids, since=since)
        assert isinstance(completion, EndpointCompletion)
        kept, traffic = max(1, len(completion.tokens)), completion.traffic
        return record | {
            "method": completion.method,
            "requests_per_token": round(traffic.requests / kept, 4),
            "written_per_token": round(traffic.received_tokens / kept, 4),
        }


INSTRUCTION = "Do not use any of these words or phrases: "


class AvoidanceInstruction:
    """Adds to a prompt the instruction not to use the phrases of a list: as many as fit, from the start of the list.

    The instruction names no regexes and token ids. It ends the system message if there is a chat template, else it
    precedes the text.
    """

    def __init__(self, bans: Iterable[Ban], tokenizer: PreTrainedTokenizerBase) -> None:
        self.phrases = [ban.text for ban in bans if ban.pattern.is_legible and ban.weight < 1]
        self._tokenizer = tokenizer
        parts = [f', "{phrase}"' for phrase in self.phrases]
        sizes = map(len, tokenizer(parts, add_special_tokens=False)["input_ids"]) if parts else []
        self._ends = list(accumulate(sizes))

    def add_to(self, prompt: Prompt, *, room: int | None) -> tuple[Prompt, int]:
        """Return the prompt with the instruction and the number of phrases named; if none fits, the same prompt and 0.

        room: the most tokens that the returned prompt may have; None for any number.
        """
        count = len(self.phrases)
        while count:
            instructed = self._write(prompt, count)
            ids = encode(instructed.text, self._tokenizer, special_tokens=not instructed.has_special_tokens)
            excess = 0 if room is None else len(ids) - room
            if excess <= 0:
                return instructed, count
            count = min(count - 1, bisect_right(self._ends, self._ends[count - 1] - excess))
        return prompt, 0

    def _write(self, prompt: Prompt, count: int) -> Prompt:
        sentence = INSTRUCTION + ", ".join(f'"{phrase}"' for phrase in self.phrases[:count]) + "."
        if not getattr(self._tokenizer, "chat_template", None):
            return replace(prompt, text=f"{sentence}\n\n{prompt.text.removeprefix(self._tokenizer.bos_token or '')}")
        messages = prompt.messages or [{"role": "user", "content": prompt.text}]
        system_texts = [join_parts(message["content"]) for message in messages if message["role"] == "system"]
        messages = put_system(messages, "\n\n".join([*system_texts, sentence]))
        text = render_chat(messages, self._tokenizer, variables=prompt.variables)
        return replace(prompt, text=text, messages=messages, has_special_tokens=True)
