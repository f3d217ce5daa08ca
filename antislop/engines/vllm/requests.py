r"""The bans that a request to vLLM asks for.

`SamplingParams(extra_args={"antislop": {"bans": ["a testament to"]}})`; on a server, JSON in a string, since vLLM takes
no objects there: `"vllm_xargs": {"antislop": "{\"bans\": [...]}"}`. What holds for all texts of an engine, its own list
included, comes from `additional_config["antislop"]`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from antislop.core.bans import (
    KINDS,
    SENT_LIMITS,
    Ban,
    BanList,
    Bans,
    BanScope,
    Regions,
    Scope,
    combine_bans,
    is_kind,
    loops,
    make_ban,
    read_bans,
    repeats,
)
from antislop.core.loop import OnExhausted, Policy
from antislop.errors import InputError

if TYPE_CHECKING:
    from antislop.core.hf import CompiledBans  # imports transformers, which the front end does not need

KEY = "antislop"
TESTED = ("0.32", "0.33")
"""Releases of vLLM."""
PLACE = f"extra_args[{KEY!r}]"
PARAMETERS = "antislop_parameters"
"""What the scheduler calls the new sampling parameters of resumed requests, in the output that it sends to runners."""
LOGPROBS_MODE, TELLS_DRAWN = "logprobs_mode", "processed_logprobs"
"""The option of vLLM, and its value, by which log-probabilities are those of the distribution that was drawn from."""
GRAMMAR_BACKEND = "xgrammar"
"""The one of vLLM's grammars that is taken back as far as a rewind goes."""
LISTS_KEPT = 64
"""Lists of requests that are kept, read and compiled, for later ones."""
COMPILER_THREADS = 2
EXAMPLE = '{"bans": ["a testament to"]}'
NO_BEAMS = "bans and beam search can't be combined inside vLLM: sample, with use_beam_search left out"
OnGreedy = Literal["refuse", "pass"]
Method = Literal["reject", "thin"]
Resume = Literal["hold", "preempt"]
FoundList: TypeAlias = "tuple[RequestOptions, CompiledBans | None]"
"""What a request asks for, and its compiled list; None if it has no bans."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What holds for all texts of an engine.

    bans: the default list; requests may replace it or add to it: phrases, or the path or address of a file.
    exempt: phrases that may be written.
    on_exhausted, max_rewinds: as in `AntiSlop`.
    method: "reject" draws withdrawn tokens anew from the whole distribution; "thin" first subtracts what led to a
        violation, as `AntiSlop` does, and needs an engine that tells the probabilities from which it drew.
    on_greedy: "pass" writes greedy requests under no bans unless they ask for some; "refuse" refuses them.
    resume: "hold" keeps the cache of a text that is rewound, and reads its last token again; "preempt" frees the cache,
        and reads what the prefix cache does not have. Models with other layers than full and sliding attention are
        always preempted.
    """

    bans: Bans = ()
    exempt: Sequence[str] = ()
    on_exhausted: OnExhausted = "concede"
    max_rewinds: int = Policy.max_rewinds
    method: Method = "thin"
    on_greedy: OnGreedy = "refuse"
    resume: Resume = "hold"

    @classmethod
    def read(cls, config: object) -> EngineSettings:
        options = cls(**_read_fields(config, {field.name for field in fields(cls)}, place="additional_config"))
        ends = tuple(end for end in get_args(OnExhausted) if end != "raise")  # which would end all texts of the engine
        choices_of = {"on_exhausted": ends, "method": get_args(Method), "on_greedy": get_args(OnGreedy)}
        for name, choices in (choices_of | {"resume": get_args(Resume)}).items():
            if (value := getattr(options, name)) not in choices:
                raise InputError(f"{name} is {value!r}; it is one of {', '.join(map(repr, choices))}")
        options.policy  # noqa: B018 - raises for others
        return options

    @property
    def policy(self) -> Policy:
        policy = Policy(True, "exact", self.on_exhausted, self.max_rewinds)
        return policy if self.method == "thin" else policy.for_rejection()


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestOptions:
    """What a request asks for. Requests that write the same share the object, which is hashed by identity.

    bans: its own bans, which are added to the engine's.
    use_global_bans: whether the engine's own list holds, too.
    ban_scope: the part of a chat message in which they hold; None for the default of the model.
    events: whether the output names what each ban did, not only the counts.
    """

    bans: BanList
    use_global_bans: bool
    events: bool
    ban_scope: BanScope | None

    @classmethod
    def read(cls, extra_args: Mapping[str, Any] | None) -> RequestOptions:
        """Return the options in the extra arguments of a request. Raises `InputError`."""
        return _read_request(_write_config(extra_args))


def read_own_bans(settings: EngineSettings) -> BanList:
    """Return the engine's own list. Raises `InputError` for a ban that forces text."""
    bans = combine_bans(read_bans(settings.bans), exempt=settings.exempt)
    for ban in bans:
        _refuse_forced(ban)
    return bans


def _refuse_forced(ban: Ban) -> Ban:
    if ban.then == "force":
        raise InputError(f"{ban.text!r} has then='force', and inside vLLM no text can be forced: choose then='stop'")
    return ban


def _write_config(extra_args: Mapping[str, Any] | None) -> str:
    config = (extra_args or {}).get(KEY, {})
    try:
        return config if isinstance(config, str) else json.dumps(config)
    except TypeError as error:
        raise InputError(f"{PLACE} is {config!r}, which is not JSON ({error}): pass strings and numbers") from None


@lru_cache(LISTS_KEPT)
def _read_request(config: str) -> RequestOptions:
    switches = {"use_global_bans": True, "events": False, "loops": False, "repeats": False}
    found = _read_fields(config, {"bans", "exempt", "ban_scope", *switches}, place=PLACE)
    entries, exempt = found.get("bans", []), found.get("exempt", [])
    if not isinstance(entries, list):
        raise InputError(f"bans is {entries!r}: pass a list of phrases, or of objects with a text, a kind and options")
    if not isinstance(exempt, list):
        raise InputError(f"exempt is {exempt!r}: pass a list of phrases")
    for name in switches:
        switches[name] = found.get(name, switches[name])
        if not isinstance(switches[name], bool):
            raise InputError(f"{name} is {switches[name]!r}: pass true or false")
    scope, scopes = found.get("ban_scope"), get_args(BanScope)
    if scope is not None and scope not in scopes:
        raise InputError(f"ban_scope is {scope!r}; it is one of {', '.join(map(repr, scopes))}")
    _check_size(config, entries, exempt)
    bundled = [*(loops() if switches.pop("loops") else ()), *(repeats() if switches.pop("repeats") else ())]
    bans = combine_bans(BanList([*map(_read_entry, entries), *bundled]), exempt=exempt)
    return RequestOptions(bans=bans, ban_scope=scope, **switches)


def _check_size(config: str, entries: Sequence[object], exempt: Sequence[object]) -> None:
    """Raise `InputError` for more than a request may bring to a server."""
    objects = [entry for entry in entries if isinstance(entry, Mapping)]
    regexes = [str(entry.get("text")) for entry in objects if entry.get("kind") == "regex"]
    phrases = [str(entry.get("text")) for entry in objects if entry.get("kind") != "regex"]
    lists = [own for entry in objects if isinstance(own := entry.get("exempt"), list)]
    exempt = [*exempt, *chain.from_iterable(lists)]
    phrases += [entry for entry in (*entries, *exempt) if isinstance(entry, str)]
    for size, limit, what in (
        (len(config), SENT_LIMITS.size, "characters of JSON"),
        (len(entries) + len(exempt), SENT_LIMITS.entries, "bans and exempt phrases"),
        (len(regexes), SENT_LIMITS.regexes, "regexes"),
        (max(map(len, regexes), default=0), SENT_LIMITS.regex_characters, "characters in one regex"),
        (max(map(len, phrases), default=0), SENT_LIMITS.characters, "characters in one phrase"),
    ):
        if size > limit:
            raise InputError(f"{size:,} {what} are too many for a request: at most {limit:,}, or a list of the engine")


def _read_entry(entry: object) -> Ban:
    if isinstance(entry, Mapping) and "text" in entry:
        options = {name: value for name, value in entry.items() if name not in ("text", "kind")}
        if entry.get("kind") is not None and not is_kind(entry["kind"]):
            raise InputError(f"the kind of {entry['text']!r} is {entry['kind']!r}; it is one of {', '.join(KINDS)}")
        ban = _refuse_forced(make_ban(entry["text"], kind=entry.get("kind"), options=options, edges="word"))
        if any(isinstance(scope.span, Regions) for scope in ban.scopes):
            raise InputError(f"a scope of {ban.text!r} has regexes, which only the engine's own list may have")
        return ban
    return make_ban(entry, options={}, edges="word")


def check_request(params: Any, *, has_own_list: bool = False) -> RequestOptions:
    """Return what a request asks for.

    params: its `SamplingParams`.
    has_own_list: whether the engine's own list holds for greedy requests and beams, too.

    Raises `InputError` for a bad list, and for bans with settings that rule them out.
    """
    options = RequestOptions.read(params.extra_args)
    check_settings(params, options, has_own_list=has_own_list)
    return options


def check_settings(params: Any, options: RequestOptions, *, has_own_list: bool) -> None:
    """Raise `InputError` for bans with settings that rule them out. The arguments are those of `check_request`."""
    if len(options.bans) or (has_own_list and options.use_global_bans):
        if params.max_tokens == 1 and params.logprobs and not params.detokenize:
            raise InputError(NO_BEAMS)  # vLLM searches by such requests, whose likeliest tokens it takes, not the drawn
        if params.temperature == 0:
            raise InputError(
                "bans need sampling, and temperature is 0: pass a temperature above 0, or "
                '{"antislop": {"use_global_bans": false}} for a text under no bans'
            )
        backend = params.structured_outputs and params.structured_outputs._backend
        if backend not in (None, GRAMMAR_BACKEND):
            raise InputError(
                f"bans and structured outputs of {backend} can't be combined inside vLLM: start it with "
                f"structured_outputs_config={{'backend': {GRAMMAR_BACKEND!r}}}, or ask for a schema that it reads"
            )


def _read_fields(config: object, known: set[str], *, place: str) -> dict[str, Any]:
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError as error:
            raise InputError(f"{place} is not JSON ({error}): write an object such as {EXAMPLE}") from None
    if not isinstance(config, Mapping):
        raise InputError(f"{place} is {config!r}: an object was expected, such as {EXAMPLE}")
    if unknown := sorted(set(config) - known):
        raise InputError(f"{place} has {unknown[0]!r}, which is none of {', '.join(sorted(known))}")
    return dict(config)


class ListCache:
    """Reads and compiles the lists of requests in threads; equal ones share a compiled one.

    own: the engine's list, compiled.
    exempt: phrases that all requests may write.
    choose_scopes: returns the scopes of a request's bans, as in `antislop.core.hf.response_templates`.
    """

    def __init__(
        self,
        own: CompiledBans,
        *,
        exempt: Sequence[str] = (),
        choose_scopes: Callable[[BanScope | None], tuple[Scope, ...]] = lambda _: (),
    ) -> None:
        self.has_own = len(own.bans) > 0
        self._own = own
        self._exempt = exempt
        self._choose_scopes = choose_scopes
        self._limit_own = lru_cache(self._compile_own)
        self._unasked: Future[FoundList] = Future()  # done, so that requests without a list wait for no thread
        self._unasked.set_result(self._find(_write_config(None)))
        self._pool = ThreadPoolExecutor(COMPILER_THREADS, thread_name_prefix="antislop-lists")
        self._begin = lru_cache(LISTS_KEPT)(lambda config: self._pool.submit(self._find, config))

    def find(self, extra_args: Mapping[str, Any] | None) -> Future[FoundList]:
        """Return the work on the list of a request, which is done if the list is known. Raises `InputError`."""
        return self._begin(_write_config(extra_args)) if KEY in (extra_args or {}) else self._unasked

    def _find(self, config: str) -> FoundList:
        options = _read_request(config)
        scopes = self._choose_scopes(options.ban_scope)
        own = self._limit_own(scopes)
        if options.use_global_bans and not len(options.bans):
            return options, own if self.has_own else None
        bans = combine_bans(options.bans, exempt=self._exempt, scopes=scopes)
        bans = own.bans | bans if options.use_global_bans else bans
        return options, own.with_bans(bans) if len(bans) else None

    def _compile_own(self, scopes: tuple[Scope, ...]) -> CompiledBans:
        return self._own.with_bans(combine_bans(self._own.bans, scopes=scopes)) if scopes else self._own


def banning(bans: Bans = (), *, on_greedy: OnGreedy = "refuse", **options: Any) -> dict[str, Any]:
    """Return the arguments with which `vllm.LLM` writes under bans.

    bans: phrases, or the path or address of a list, for all requests that don't leave it out.
    method: "reject" draws withdrawn tokens anew from the whole distribution; "thin" first subtracts what led to a
        violation, as `AntiSlop` does, and needs an engine that tells the probabilities from which it drew.
    on_greedy: "pass" writes greedy requests under no bans; "refuse" refuses them, since no token can be drawn again.
    options: as of `EngineSettings`; exempt, on_exhausted and max_rewinds are those of `AntiSlop`.

    Raises `InputError` for options that can't be used. Changes nothing in this process.

    >>> sorted(banning(["a testament to"]))
    ['additional_config', 'logits_processors', 'logprobs_mode', 'scheduler_cls']
    """
    config = {"bans": bans, "on_greedy": on_greedy, **options}
    settings = EngineSettings.read(config)
    has_own_list = len(read_own_bans(settings)) > 0 and on_greedy == "refuse"
    arguments = {LOGPROBS_MODE: TELLS_DRAWN} if settings.method == "thin" else {}
    return arguments | {
        "scheduler_cls": "antislop.engines.vllm.BanningScheduler",
        "logits_processors": [f"antislop.engines.vllm:{'CheckBans' if has_own_list else 'CheckRequestBans'}"],
        "additional_config": {KEY: config},
    }
