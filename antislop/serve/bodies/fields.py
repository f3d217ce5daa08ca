"""The fields of request bodies: read as JSON, checked by pydantic."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect, Request

from antislop.core.bans import BanScope, Opening, Unit
from antislop.core.loop import Method, Policy, Sampling
from antislop.lists import SENT_LIMITS
from antislop.serve.bodies.foreign_fields import ORDERS, keeps_order, translate_fields
from antislop.serve.request_errors import RequestError, shorten

MAX_CHOICES = 128
"""The most texts of one request."""
MAX_STOPS = 64
MOST_REWINDS = 1000
"""The highest `max_rewinds` that a body may set; with method "text", `max_rewinds` alone limits the work for a text."""
MAX_ALTERNATIVES = 20
MAX_BIASES = 1024
MAX_SCHEMA = 65_536
"""The most characters of a JSON schema."""
MAX_TOOLS = 128
MAX_TEMPLATE_VARIABLES = 16_384
"""The most characters of a chat template's variables, as JSON."""
MIN_TEMPERATURE = 0.01
"""The lowest temperature above 0: logits divided by a lower one leave the range of half precision."""


def _reads(sent: object, meant: object) -> BeforeValidator:
    """Return a validator that replaces the value `sent` by `meant`, such as -1, which other servers take for "off"."""

    def read(value: Any) -> Any:
        # In Python, False == 0.
        return meant if value == sent and isinstance(value, bool) == isinstance(sent, bool) else value

    return BeforeValidator(read)


def _read_list(value: Any) -> Any:
    """Return a list that some clients send as a string of JSON; return other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return from_json(value or "[]")
    except ValueError:
        raise ValueError('is a text; write a list, ["…"]') from None


def _read_ids(value: Any) -> Any:
    """Return the token ids in a string such as "5, 17"; return other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return [int(part) for part in value.split(",") if part.strip()]
    except ValueError:
        raise ValueError("is a text other than ids with commas between them") from None


def _read_stop(value: Any) -> Any:
    """Return stop strings as a list, without the empty strings that some clients send for no stop string."""
    values = [value] if isinstance(value, str) else value
    return [each for each in values if each != ""] if isinstance(values, list) else values


def _read_biases(value: Any) -> Any:
    if not isinstance(value, dict):
        return {} if value == [] else value
    biases = {int(name): bias for name, bias in value.items() if name.isascii() and name.isdecimal() and len(name) < 11}
    if len(biases) < len(value):
        raise ValueError('is not a bias for each of some token ids; write {"5": -10}')
    return biases


def _read_tool_choice(value: Any) -> Any:
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    is_named = isinstance(function, dict) and isinstance(function.get("name"), str)
    if not is_named and value not in ("auto", "none", "required"):
        raise ValueError('is not "auto", "none", "required" or {"type": "function", "function": {"name": …}}')
    return value


def _read_phrases_or_ids(value: Any) -> Any:
    """Return the list in a string: JSON, as for KoboldCpp, or token ids such as "5, 17", as for TabbyAPI."""
    is_json = isinstance(value, str) and value.lstrip().startswith("[")
    return _read_list(value) if is_json else _read_ids(value)


Phrases = Annotated[list[str], BeforeValidator(_read_list)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]
Breaker = Annotated[str, Field(max_length=256)]
Breakers = Annotated[list[Breaker], Field(max_length=64), BeforeValidator(_read_list)]
Cutoff = Annotated[float, Field(ge=0, le=9900), AfterValidator(lambda value: value / 10_000)]  # sent times 10,000
Penalty = Annotated[float, Field(ge=-100, le=100)]


class _StrictModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


class StreamOptions(_StrictModel):
    include_usage: bool = False
    include_obfuscation: bool = False


class JsonSchema(_StrictModel):
    """The schema of a text. It is always followed, whatever `strict` says; the name and description are ignored."""

    json_schema: Annotated[dict[str, Any], Field(alias="schema")]
    name: str = ""
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(_StrictModel):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    @property
    def schema_text(self) -> str | None:
        """The JSON schema that the text must follow; None if there is none. Raises `RequestError`."""
        if (self.type == "json_schema") != (self.json_schema is not None):
            message = 'response_format has a json_schema if its type is "json_schema", and only then'
            raise RequestError(400, message, param="response_format")
        if self.type == "text":
            return None
        schema = {"type": "object"} if self.json_schema is None else self.json_schema.json_schema
        text = json.dumps(schema)
        if len(text) > MAX_SCHEMA:
            message = f"the schema has {len(text):,} characters; at most {MAX_SCHEMA:,} are allowed"
            raise RequestError(400, message, param="response_format")
        return text


class GenerationBody(_StrictModel):
    """The fields that completions and chats share."""

    model_config = ConfigDict(allow_inf_nan=False)

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    best_of: int | None = None
    seed: Annotated[Annotated[int, Field(ge=0, lt=2**63)] | None, _reads(-1, None)] = None
    stop: Annotated[
        list[Annotated[str, Field(max_length=256)]], Field(max_length=MAX_STOPS), BeforeValidator(_read_stop)
    ] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Share = 1.0
    typical_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Share = 0.0
    top_k: Annotated[Annotated[int, Field(ge=0, lt=2**31)], _reads(-1, 0)] = 0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    encoder_repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    no_repeat_ngram_size: Annotated[int, Field(ge=0, lt=2**31)] = 0
    epsilon_cutoff: Cutoff = 0.0
    eta_cutoff: Cutoff = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    dry_multiplier: Annotated[float, Field(ge=0, le=100)] = 0.0
    dry_base: Annotated[float, Field(ge=1, le=100)] = 1.75
    dry_allowed_length: Annotated[int, Field(ge=0, lt=2**31)] = 2
    dry_penalty_last_n: Annotated[Annotated[int, Field(ge=-1, lt=2**31)], _reads(0, -1)] = -1  # 0 is all, as elsewhere
    dry_sequence_breakers: Breakers = [*Sampling.dry_sequence_breakers]
    top_n_sigma: Annotated[Annotated[float, Field(ge=0, le=100)], _reads(-1, 0)] = 0.0
    xtc_probability: Share = 0.0
    xtc_threshold: Share = 0.1
    min_keep: Annotated[int, Field(ge=0, lt=2**31)] = 0
    do_sample: bool = True
    response_format: ResponseFormat = ResponseFormat()
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=MAX_BIASES), BeforeValidator(_read_biases)] = {}

    banned_strings: Phrases = []
    banned_tokens: Annotated[list[str] | list[TokenId], BeforeValidator(_read_phrases_or_ids)] = []
    custom_token_bans: Annotated[list[TokenId], BeforeValidator(_read_ids)] = []
    banned_regex: Phrases = []
    loops: bool = False
    repeats: bool = False
    ban_weights: dict[str, Share] = {}
    ban_method: Method = "exact"
    ban_opening: Opening | None = None
    ban_rewind: Unit | None = None
    ban_scope: BanScope | None = None
    on_exhausted: Literal["concede", "stop"] = "concede"
    max_rewinds: Annotated[int, Field(ge=0, le=MOST_REWINDS)] = Policy.max_rewinds
    use_global_bans: bool = True
    ban_list: str = ""
    exempt: Phrases = []

    @property
    def alternatives(self) -> int | None:
        """How many of the likeliest tokens are listed beside each token; None if no log-probabilities are asked for."""
        raise NotImplementedError

    @property
    def has_calls(self) -> bool:
        """Whether the model may call tools; if not, text that looks like a call is content."""
        return True

    @property
    def sampling(self) -> Sampling:
        """The settings with which tokens are drawn. Raises `RequestError` for a temperature just above 0."""
        if 0 < self.temperature < MIN_TEMPERATURE:
            mend = f"pass 0 for the likeliest token, or at least {MIN_TEMPERATURE}"
            raise RequestError(400, f"temperature is {self.temperature}; {mend}", param="temperature")
        settings = {name: getattr(self, name) for name in Sampling.limits}
        if self.top_p == 0:  # for other servers: the likeliest token, which is always kept
            settings |= {"top_k": 1, "top_p": 1.0}
        return Sampling(**settings | ({} if self.do_sample else {"temperature": 0.0}))


class CompletionBody(GenerationBody):
    """A body of /v1/completions.

    max_tokens: may be 0 with `echo`.
    echo: begin the text with the prompt; `logprobs` then lists its tokens, too.
    logprobs: the number of alternatives per token.
    add_bos_token: whether the tokenizer adds its special tokens to a text.
    """

    prompt: Any = None
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    echo: bool = False
    logprobs: Annotated[Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None, _reads(False, None)] = None
    add_bos_token: bool = True

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class _ToolFunction(_StrictModel):
    model_config = ConfigDict(extra="allow")
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str = ""
    parameters: dict[str, Any] = {}


class Tool(_StrictModel):
    """A function that the model may call. Chat templates get all its fields, unknown ones included."""

    model_config = ConfigDict(extra="allow")
    type: Literal["function"]
    function: _ToolFunction


class ChatBody(GenerationBody):
    """A body of /v1/chat/completions.

    chat_template_kwargs: variables of the chat template.
    response_prefix: text after the rendered chat, with which the answer begins.
    continue_final_message: whether the answer continues the last message, which is the assistant's.
    """

    messages: Any = None
    echo: Literal[False] = False
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = []
    tool_choice: Annotated[str | dict[str, Any], BeforeValidator(_read_tool_choice)] = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: Annotated[str, Field(max_length=32)] | None = None
    response_prefix: str = ""
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def has_calls(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"


Generation = TypeVar("Generation", bound=GenerationBody)


async def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in a request's body, without keys whose value is null. Raises `RequestError`."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > SENT_LIMITS.size:
                message = f"the body has more than {SENT_LIMITS.size:,} bytes: send a shorter prompt or list"
                raise RequestError(413, message)
    except ClientDisconnect:
        raise RequestError(499, "the client closed the connection") from None
    if content_type != "application/json":  # JSON, which a page of another site can't send without a CORS preflight
        raise RequestError(415, f"the content type is {content_type!r}; send JSON with Content-Type: application/json")
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(400, f"the body is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise RequestError(400, f"the body is a JSON {type(value).__name__}; an object was expected")
    return {key: item for key, item in value.items() if item is not None}


def read_body(kind: type[Generation], fields: dict[str, Any]) -> tuple[Generation, list[str]]:
    """Return a checked body, and the names of the ignored fields. Raises `RequestError` for the first invalid field."""
    kept, ignored = translate_fields(fields, kind.model_fields.keys())
    try:
        body = kind.model_validate(kept)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        places = [str(part) for part in first["loc"] if not str(part).startswith("list[")]  # "list[str]" is a type
        name = ".".join(places if first["type"] == "missing" else places[:2])[:80] or "the body"
        raise RequestError(400, f"{name} is {_explain(first)}", param=name) from None
    if body.best_of not in (None, body.n):
        raise RequestError(400, f"best_of is {body.best_of}, but is not supported: leave it out", param="best_of")
    ignored += [name for name in ORDERS if name in fields and not keeps_order(name, fields[name], body.sampling)]
    return body, ignored


def _explain(fault: ErrorDetails) -> str:
    """Return the end of the sentence "FIELD is …" for a pydantic error, with JSON's words instead of Python's."""
    value = shorten(fault["input"])
    match fault["type"]:
        case "missing":
            return "missing: send it"
        case "extra_forbidden":
            return "unknown: leave it out"
        case "value_error":
            return f"{value}, which {fault['msg'].removeprefix('Value error, ')}"
        case "dict_type" | "model_type":
            return f"{value}: an object was expected"
        case _:
            return f"{value}: {fault['msg']}"
