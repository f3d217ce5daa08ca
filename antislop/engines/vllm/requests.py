r"""The bans that a request to vLLM asks for.

In Python: `SamplingParams(extra_args={"antislop": {"bans": ["a testament to"]}})`. To a server: JSON in a string, since
vLLM takes no objects there, `"vllm_xargs": {"antislop": "{\"bans\": [...]}"}`; or plain fields of the body. Settings of
all texts of an engine, its own lists included, come from `additional_config["antislop"]`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from antislop.core.bans import BanList, Bans, BanScope, Scope, read_bans
from antislop.core.loop import OnExhausted, Policy
from antislop.engines.sent_bans import SentBans
from antislop.errors import InputError
from antislop.lists import SENT_LIMITS

if TYPE_CHECKING:
    from antislop.core.hf import CompiledBans  # imports transformers, which the front end does not need

T = TypeVar("T")
KEY = "antislop"
TESTED = ("0.32", "0.33")
"""Releases of vLLM."""
NAMES = Path(__file__).with_name("names.yaml")
"""The file that lists the names in vLLM which this package uses."""
PLACE = f"extra_args[{KEY!r}]"
PARAMETERS = "antislop_parameters"
"""The attribute of the scheduler's output that brings model runners the new parameters of resumed requests."""
LOGPROBS_MODE, TELLS_DRAWN = "logprobs_mode", "processed_logprobs"
"""The option of vLLM, and the value with which its log-probabilities are those of the distribution it draws from."""
GRAMMAR_BACKEND = "xgrammar"
"""The only grammar backend of vLLM that can be rolled back as far as a rewind goes."""
LISTS_KEPT = 64
"""How many requests' lists are kept compiled, for later requests with the same list."""
COMPILER_THREADS = 2
EXAMPLE = '{"bans": ["a testament to"]}'
SWITCHES = ("use_global_bans", "events", "loops", "repeats")
LISTS = ("bans", "exempt", "banned_strings", "banned_regex")
FIELDS = frozenset({"ban_list", "ban_scope", "custom_token_bans", *LISTS, *SWITCHES})
"""The fields with which a request may ask for bans."""
NO_BEAMS = "bans and beam search can't be combined inside vLLM: sample, with use_beam_search left out"
OnGreedy = Literal["refuse", "pass"]
Method = Literal["reject", "thin"]
Resume = Literal["hold", "preempt"]
FoundList: TypeAlias = "tuple[RequestOptions, CompiledBans | None]"
"""The options of a request, and its compiled list; None in place of a list without bans."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The settings that hold for all texts of an engine.

    bans: the default list, as phrases, or the path or address of a file; requests may replace it or add to it.
    lists: further lists by name; a request may choose one in the place of `bans`, by `ban_list`.
    exempt: phrases that may be written, whatever a list bans.
    on_exhausted, max_rewinds: as in `AntiSlop`.
    method: "reject" draws withdrawn tokens anew from the whole distribution; "thin" first subtracts what led to a
        violation, as `AntiSlop` does, and needs an engine that reports the probabilities by which it draws.
    on_greedy: "pass" writes greedy requests and beams without bans, unless they ask for some; "refuse" refuses beams,
        and with method="reject" also greedy requests, which method="thin" writes as `AntiSlop` does.
    resume: "hold" keeps the cache of a rewound text, and reads only its last token again; "preempt" frees the cache,
        and reads all that the prefix cache does not have. Texts of models with other layers than full and sliding
        attention are always preempted.
    """

    bans: Bans = ()
    lists: Mapping[str, Bans] = field(default_factory=dict)
    exempt: Sequence[str] = ()
    on_exhausted: OnExhausted = "concede"
    max_rewinds: int = Policy.max_rewinds
    method: Method = "thin"
    on_greedy: OnGreedy = "refuse"
    resume: Resume = "hold"

    @classmethod
    def read(cls, config: object) -> EngineSettings:
        options = cls(**_read_fields(config, {each.name for each in fields(cls)}, place="additional_config"))
        if not isinstance(options.lists, Mapping):
            raise InputError(f"lists is {options.lists!r}: pass an object of names, each with the path of a list")
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

    def tells(self, params: Any) -> bool:
        """Return whether the engine reports a text's likeliest tokens; `logprob_token_ids` would take their place."""
        return self.method == "thin" and not params.logprob_token_ids


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestOptions:
    """The bans that a request asks for. Requests with equal JSON share the object, which is hashed by identity.

    bans: the request's own bans.
    ban_list: the name of the engine's list to use; "" for the default list.
    use_global_bans: whether that list of the engine holds, too.
    ban_scope: the part of a chat message in which bans hold; None for the default of the model.
    events: whether the output names what each ban did, not only the counts.
    """

    bans: BanList
    ban_list: str
    use_global_bans: bool
    events: bool
    ban_scope: BanScope | None


def read_own_lists(settings: EngineSettings) -> dict[str, BanList]:
    """Return an engine's own lists by name, the default list as "". Raises `InputError` for a ban that forces text."""
    given = {**settings.lists, "": settings.bans}
    lists = {name: read_bans(bans, exempt=settings.exempt) for name, bans in given.items()}
    return {name: _refuse_forced(bans) for name, bans in lists.items()}


def _refuse_forced(bans: BanList) -> BanList:
    for ban in bans:
        if ban.then == "force":
            raise InputError(
                f"{ban.text!r} has then='force', and inside vLLM no text can be forced: choose then='stop'"
            )
    return bans


def _write_config(extra_args: Mapping[str, Any] | None) -> str:
    config = (extra_args or {}).get(KEY, {})
    try:
        return config if isinstance(config, str) else json.dumps(config)
    except TypeError as error:
        raise InputError(f"{PLACE} is {config!r}, which is not JSON ({error}): pass strings and numbers") from None


@lru_cache(LISTS_KEPT)
def _read_request(config: str) -> RequestOptions:
    found = _read_fields(config, FIELDS, place=PLACE)
    for name, value in found.items():
        if name in SWITCHES and not isinstance(value, bool):
            raise InputError(f"{name} is {value!r}: pass true or false")
        if name in LISTS and not isinstance(value, list):
            raise InputError(f"{name} is {value!r}: pass a list of phrases, or bans of objects with a text and a kind")
    scope, ban_list, events = found.pop("ban_scope", None), found.pop("ban_list", ""), found.pop("events", False)
    if scope not in (None, *get_args(BanScope)):
        raise InputError(f"ban_scope is {scope!r}; it is one of {', '.join(map(repr, get_args(BanScope)))}")
    if not isinstance(ban_list, str):
        raise InputError(f"ban_list is {ban_list!r}: pass the name of a list of the engine")
    if len(config) > (limit := SENT_LIMITS.size):
        raise InputError(f"{len(config):,} characters of JSON are too many for a request: at most {limit:,}")
    ids = found.get("custom_token_bans", [])
    try:  # a list, or a text with commas between the ids
        tokens = [*map(int, filter(str.strip, ids.split(",")) if isinstance(ids, str) else ids)]
    except (TypeError, ValueError):
        raise InputError(f"custom_token_bans is {ids!r:.60}: pass a list of token ids") from None
    sent = SentBans(**found | {"custom_token_bans": tokens})
    bans, is_global = _refuse_forced(sent.read()), sent.use_global_bans
    return RequestOptions(bans=bans, ban_list=ban_list, use_global_bans=is_global, events=events, ban_scope=scope)


def check_request(params: Any, *, has_own_list: bool = False, settings: EngineSettings | None = None) -> RequestOptions:
    """Return the bans that a request asks for.

    params: the request's `SamplingParams`.
    has_own_list: whether the engine has a list that also holds for greedy requests and beams, which may rule them out.
    settings: the settings of the engine, if they are known.

    Raises `InputError` for a bad list, and for bans with settings that rule them out.
    """
    options, tells = _read_request(_write_config(params.extra_args)), True
    if settings is not None:
        find_list(dict.fromkeys(["", *settings.lists]), options.ban_list)
        tells = settings.tells(params)
    check_settings(params, options, has_own_list=has_own_list, tells=tells)
    return options


def find_list(lists: Mapping[str, T], name: str) -> T:
    """Return one of an engine's lists by its name. Raises `InputError` if there is none."""
    if name not in lists:
        names = ", ".join(repr(each) for each in lists if each) or "none"
        raise InputError(f"the engine has no list {name!r:.60}, but {names}: leave ban_list out, or add it to lists")
    return lists[name]


def check_settings(params: Any, options: RequestOptions, *, has_own_list: bool, tells: bool = True) -> None:
    """Raise `InputError` if a request has bans and sampling settings that exclude bans. See `check_request`, too.

    options: what `check_request` returns. tells: whether the engine reports the likeliest tokens.
    """
    if len(options.bans) or ((has_own_list or options.ban_list) and options.use_global_bans):
        if params.max_tokens == 1 and params.logprobs and not params.detokenize:
            raise InputError(NO_BEAMS)  # vLLM's beam search sends such requests, and takes their likeliest tokens
        if params.temperature == 0 and not tells:
            raise InputError(
                "bans need sampling here, and temperature is 0: pass a temperature above 0, "
                '{"antislop": {"use_global_bans": false}} for a text under no bans, or start the engine with '
                "method='thin', which tells the next likeliest token unless a request has logprob_token_ids"
            )
        backend = params.structured_outputs and params.structured_outputs._backend
        if backend not in (None, GRAMMAR_BACKEND):
            raise InputError(
                f"bans and structured outputs of {backend} can't be combined inside vLLM: start it with "
                f"structured_outputs_config={{'backend': {GRAMMAR_BACKEND!r}}}, or ask for a schema that it reads"
            )


def _read_fields(config: object, known: Collection[str], *, place: str) -> dict[str, Any]:
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError as error:
            raise InputError(f"{place} is not JSON ({error}): write an object such as {EXAMPLE}") from None
    if not isinstance(config, Mapping):
        raise InputError(f"{place} is {config!r}: an object was expected, such as {EXAMPLE}")
    if unknown := sorted(set(config).difference(known)):
        raise InputError(f"{place} has {unknown[0]!r}, which is none of {', '.join(sorted(known))}")
    return dict(config)


class ListCache:
    """Reads and compiles the lists of requests in threads; equal lists are compiled once.

    own: the engine's default list, compiled.
    lists: the engine's other lists, by name.
    exempt: phrases that all requests may write.
    choose_scopes: returns the scopes of a request's bans, as in `antislop.core.hf.compiled_bans`.
    """

    def __init__(
        self,
        own: CompiledBans,
        *,
        lists: Mapping[str, BanList] | None = None,
        exempt: Sequence[str] = (),
        choose_scopes: Callable[[BanScope | None], tuple[Scope, ...]] = lambda _: (),
    ) -> None:
        self.has_own = len(own.bans) > 0
        self._own = own
        self._lists = {**(lists or {}), "": own.bans}
        self._exempt = exempt
        self._choose_scopes = choose_scopes
        self._limit_own = lru_cache(self._compile_own)
        self._unasked: Future[FoundList] = Future()  # done, so that requests without a list wait for no thread
        self._unasked.set_result(self._find(_write_config(None)))
        self._pool = ThreadPoolExecutor(COMPILER_THREADS, thread_name_prefix="antislop-lists")
        self._begin = lru_cache(LISTS_KEPT)(lambda config: self._pool.submit(self._find, config))

    def find(self, extra_args: Mapping[str, Any] | None) -> Future[FoundList]:
        """Return a future of a request's list, which is done if the list is known. Raises `InputError`."""
        return self._begin(_write_config(extra_args)) if KEY in (extra_args or {}) else self._unasked

    def _find(self, config: str) -> FoundList:
        options = _read_request(config)
        scopes = self._choose_scopes(options.ban_scope)
        own = self._limit_own(options.ban_list, scopes)
        if options.use_global_bans and not len(options.bans):
            return options, own if len(own.bans) else None
        bans = read_bans(options.bans, exempt=self._exempt, scopes=scopes)
        bans = own.bans | bans if options.use_global_bans else bans
        return options, own.with_bans(bans) if len(bans) else None

    def _compile_own(self, name: str, scopes: tuple[Scope, ...]) -> CompiledBans:
        bans = find_list(self._lists, name)
        return self._own.with_bans(read_bans(bans, scopes=scopes)) if name or scopes else self._own


def banning(bans: Bans = (), *, on_greedy: OnGreedy = "refuse", **options: Any) -> dict[str, Any]:
    """Return the arguments with which `vllm.LLM` writes under bans.

    bans: phrases, or the path or address of a list, for all requests that don't leave it out.
    method: "reject" draws withdrawn tokens anew from the whole distribution; "thin" first subtracts what led to a
        violation, as `AntiSlop` does, and needs an engine that reports the probabilities by which it draws.
    on_greedy: as in `EngineSettings`.
    options: as in `EngineSettings`; exempt, on_exhausted and max_rewinds are those of `AntiSlop`.

    Raises `InputError` for options that can't be used. Changes nothing in this process.

    >>> sorted(banning(["a testament to"]))
    ['additional_config', 'logits_processors', 'logprobs_mode', 'scheduler_cls']
    """
    config = {"bans": bans, "on_greedy": on_greedy, **options}
    return list_arguments(config) | {"additional_config": {KEY: config}}


def list_arguments(config: object) -> dict[str, Any]:
    """Return the arguments that an engine needs beside `additional_config["antislop"]`. Raises `InputError`."""
    settings = EngineSettings.read(config)
    has_own_list = len(read_own_lists(settings)[""]) > 0 and settings.on_greedy == "refuse"
    arguments = {LOGPROBS_MODE: TELLS_DRAWN} if settings.method == "thin" else {}
    return arguments | {
        "scheduler_cls": "antislop.engines.vllm.BanningScheduler",
        "logits_processors": [f"antislop.engines.vllm:{'CheckBans' if has_own_list else 'CheckRequestBans'}"],
    }
