"""Command-line options that several commands share: each group is a dataclass, which `main.expand_options` expands."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antislop.cli.parsing import Conflicts, When
from antislop.cli.terminal import read_input, say, warn
from antislop.core.bans import BanList, BanScope, Edges, Opening, read_bans
from antislop.core.loop import Sampling
from antislop.core.trace import BATCH_SIZE
from antislop.display import describe_count
from antislop.errors import InputError
from antislop.files.models import Dtype, ModelSpec
from antislop.lists import bundled_bans, looks_like_regex

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from antislop.measure.languages import Language

MAX_NAMED = 20
"""The most entries that a remark about a list names; the entries beyond are only counted."""


# -- the model --------------------------------------------------------------------------------------------------------


model_option = partial(typer.Option, rich_help_panel="Model")
RevisionOption = Annotated[str | None, model_option(metavar="NAME", help="A branch, tag or commit of the model.")]
TrustRemoteCodeOption = Annotated[bool, model_option(help="Run code that the model ships.")]
MaxModelLenOption = Annotated[
    int | None, model_option(min=2, help="Maximum tokens of a prompt and its text.", show_default="the model's")
]
TokenizerOption = Annotated[
    str | None, model_option(metavar="NAME", help="The server's tokenizer.", show_default="that of --model")
]


@dataclass(frozen=True)
class ModelOptions:
    model: Annotated[
        str | None,
        model_option(
            metavar="NAME",
            show_default="bundled",
            help="bundled, smollm2-135m-instruct, an id of the Hub, or a folder.",
        ),
    ] = None
    revision: RevisionOption = None
    dtype: Annotated[Dtype, model_option(metavar="NAME", help="float32, bfloat16, float16; auto: as saved.")] = "auto"
    device: Annotated[
        str, model_option(metavar="NAME", help="cpu, cuda, cuda:1 or mps; auto: the first there is of cuda, mps, cpu.")
    ] = "auto"
    device_map: Annotated[
        str | None, model_option(metavar="NAME", help="Spread the model with accelerate: auto, balanced, sequential.")
    ] = None
    attention: Annotated[str | None, model_option(metavar="NAME", help="Attention kernel: sdpa, eager, …")] = None
    trust_remote_code: TrustRemoteCodeOption = False

    @property
    def spec(self) -> ModelSpec:
        options = asdict(self)
        return ModelSpec(options.pop("model"), **options)


# -- bans -------------------------------------------------------------------------------------------------------------

ban_option = partial(typer.Option, rich_help_panel="Bans")
LenientOption = Annotated[bool, ban_option(help="Skip unusable entries, with a warning each.")]
GroupOption = Annotated[
    list[str] | None,
    ban_option(
        metavar="NAME", help="This group of a list in JSON is its bans. Repeatable.", show_default="by its name"
    ),
]


@dataclass(frozen=True)
class BanOptions:
    bans: Annotated[
        list[Path] | None,
        ban_option(metavar="LIST", help="Use this list, or - for standard input, not the bundled one. Repeatable."),
    ] = None
    ban: Annotated[
        list[str] | None, ban_option(metavar="PHRASE", help="Also ban this; * stands for words. Repeatable.")
    ] = None
    opening: Annotated[
        Opening | None,
        ban_option(metavar="UNIT", help="Phrases of --ban hold in a reply's first word, sentence or paragraph only."),
    ] = None
    no_bans: Annotated[bool, ban_option(help="Don't use the bundled list.")] = False
    constructions: Annotated[bool, ban_option(help="Also ban forms like: it's not X; it's Y.")] = False
    loops: Annotated[bool, ban_option(help="Also ban passages written 3 times in a row.")] = False
    repeats: Annotated[bool, ban_option(help="Also ban 8 words in a row that came before.")] = False
    no_dashes: Annotated[bool, ban_option(help="Also ban dashes: —, –, -- and a lone hyphen.")] = False
    language: Annotated[str, ban_option(metavar="CODE", help="The language of --no-dashes.")] = "en"
    never: Annotated[bool, ban_option(help="Also forbid what weights let through.")] = False
    lenient: LenientOption = False
    group: GroupOption = None


TWO_LISTS: Conflicts = {
    "--no-bans and --bans exclude each other: --bans LIST already replaces the bundled list": When(
        "no_bans", lambda o: o.bans
    ),
    "--group chooses a group of a list: pass the list by --bans": When(
        "group", lambda o: not (o.bans or getattr(o, "lists", None))
    ),
    "--language is the language of --no-dashes: pass both": When("language", lambda o: not o.no_dashes),
}
READ_ONCE = "are -, but standard input can be read only once: save one of them to a file"


def reads_stdin(options: Any) -> bool:
    return Path("-") in (options.bans or [])


def bans_nothing(options: Any) -> bool:
    names = ("ban", "bans", "constructions", "loops", "repeats", "no_dashes")
    return options.no_bans and not any(getattr(options, name) for name in names)


ScopeOption = Annotated[
    BanScope | None,
    ban_option(
        help="Where bans apply in a chat's reply, never in calls of tools.",
        show_default="answer if the model thinks or calls tools, else all",
    ),
]


def limit_bans(bans: BanList, where: BanScope | None, tokenizer: PreTrainedTokenizerBase) -> BanList:
    """Limit bans to one part of each reply, such as the answer; without a response template, to the whole reply."""
    from antislop.core.hf import choose_scopes, find_response_template

    return read_bans(bans, scopes=choose_scopes(where, find_response_template(tokenizer)))


def collect_bans(options: BanOptions) -> BanList:
    """Return the bans of all lists and phrases on the command line. The result's `source` names these lists."""
    files, phrases = options.bans or [], options.ban or []
    lists = [load_bans(path, lenient=options.lenient, group=options.group) for path in files]
    names = [path.name for path in files]
    for name, title, is_chosen in (
        ("slop", "the bundled list", not files and not options.no_bans),
        ("constructions", "the bundled constructions", options.constructions),
        ("loops", "loops", options.loops),
        ("repeats", "repeats", options.repeats),
        ("dashes", "dashes", options.no_dashes),
    ):
        if is_chosen:
            lists, names = [*lists, bundled_bans(name, language=options.language)], [*names, title]
    for phrase in phrases:
        if looks_like_regex(phrase):
            raise InputError(
                f"--ban {phrase[:80]} looks like a regex, and as a phrase it would not occur: write it into a list as "
                "a regex, and pass --bans LIST"
            )
    if options.opening and not phrases:
        raise InputError("--opening is of the phrases of --ban: pass --ban PHRASE, or write opening=… into the list")
    if phrases:
        lists = [*lists, BanList(phrases).with_options(opening=options.opening or "")]
        names = [*names, f"{describe_count(len(phrases), 'phrase')} of the command line"]
    collected = BanList([ban for bans in lists for ban in bans], source=", ".join(names) or None)
    return collected.with_options(weight=0) if options.never else collected


def load_bans(
    path: Path,
    *,
    lenient: bool = False,
    group: Sequence[str] | None = None,
    format_name: str | None = None,
    edges: Edges | None = None,
) -> BanList:
    """Load a list of bans ("-": from standard input). Refuse unusable entries, or warn and skip them if `lenient`."""
    source = sys.stdin.buffer if str(path) == "-" else path
    bans = BanList.load(source, format=format_name, edges=edges, group=group or (), strict=False)
    if bans.refused and not lenient:
        place, reason = bans.refused[0]
        total = f"{len(bans.refused):,} entries" if len(bans.refused) > 1 else "this entry"
        raise InputError(f"{place}: {reason} ({total} can't be used; --lenient skips them)")
    for place, reason in bans.refused[:MAX_NAMED]:
        warn(f"{place}: {reason}")
    if len(bans.refused) > MAX_NAMED:
        warn(f"{path}: {len(bans.refused) - MAX_NAMED:,} more can't be used: skipped")
    say_what_was_left_out(bans, path)
    if not bans:
        raise InputError(f"{path}: contains no usable ban: write one phrase per line")
    return bans


def say_what_was_left_out(bans: BanList, path: Path) -> None:
    if bans.marks:
        say(f"{path}: the {' and '.join(bans.marks)} that most lines have are not part of the phrases")
    if bans.left_out:
        names, more = ", ".join(bans.left_out[:MAX_NAMED]), len(bans.left_out) - MAX_NAMED
        more_names = f" and {more:,} more" if more > 0 else ""
        say(f"{path}: left out, since these names don't say bans: {names}{more_names}; --group NAME chooses others")


# -- grammars ---------------------------------------------------------------------------------------------------------

_grammar_option = partial(typer.Option, rich_help_panel="Structure")


@dataclass(frozen=True)
class GrammarOptions:
    json_schema: Annotated[Path | None, _grammar_option(help="Write one line of JSON that fits this schema.")] = None
    grammar: Annotated[
        Path | None,
        _grammar_option(help="Write what this grammar allows: Lark of llguidance (.lark), or GBNF (.gbnf, .ebnf)."),
    ] = None

    def read(self) -> str | None:
        """Return the chosen grammar in llguidance's format; None if none was chosen."""
        path = self.json_schema or self.grammar
        if path is None:
            return None
        from antislop.steer.grammar import compilation
        from antislop.steer.grammar.schema import GrammarError

        readers = {".lark": compilation.read_lark, ".gbnf": compilation.read_gbnf, ".ebnf": compilation.read_gbnf}
        read = compilation.read_json_schema if self.json_schema else readers.get(path.suffix)
        if read is None:
            raise InputError(f"{path}: a grammar in a file .lark, .gbnf or .ebnf was expected: rename it")
        text = read_input(str(path))
        try:
            return read(text)
        except GrammarError as error:
            raise InputError(f"{path}{f':{error.line}' if error.line else ''}: {error}") from error


TWO_GRAMMARS: Conflicts = {
    "--json-schema and --grammar exclude each other: a text fits one grammar": When("json_schema", lambda o: o.grammar)
}


# -- prompts and generation -------------------------------------------------------------------------------------------


def _refuse_empty(stops: list[str] | None) -> list[str] | None:
    if stops and "" in stops:
        raise InputError("--stop is empty, and would end each text after one token: name a string, or leave it out")
    return stops


StopOption = Annotated[
    list[str] | None, typer.Option("--stop", callback=_refuse_empty, help="Stop after this string. Repeatable.")
]
ForceOption = Annotated[bool, typer.Option(help="Resume despite other settings, bans, prompts or model.")]
MaxNewTokensOption = Annotated[int, typer.Option(min=1, help="Maximum tokens kept per text.")]
LicenseOption = Annotated[str | None, typer.Option(help="The license of the list, for its header.")]
ColumnOption = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The column of the texts.", show_default="response, output, …")
]
ChatsOption = Annotated[
    bool, typer.Option("--chats", help="Read only the replies of texts that contain turns of the user, too.")
]
LanguageOption = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="The language: de, zh, …", show_default="found by script and function words"),
]
PromptColumnOption = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The column that identifies a text's prompt.", show_default="key, prompt, …"),
]


def choose_language(code: str | None, texts: Iterable[str]) -> Language:
    """Return the language that `code` names; without a code, that of the texts, which is said if it is not English."""
    from antislop.measure.languages import ENGLISH, find_language, recognize

    if code is not None:
        return find_language(code)
    language = recognize(texts) or ENGLISH
    if not language.is_english:
        warn(f"these are texts in {language.name}, by their script and function words; --language chooses another")
    return language


def read_variables(text: str | None) -> dict[str, Any]:
    """Return the variables of the chat template that --chat-template-kwargs gives as JSON."""
    try:
        variables = json.loads(text or "{}")
    except ValueError as error:
        raise InputError(
            f"--chat-template-kwargs is not JSON ({error}): write '{{\"enable_thinking\": false}}'"
        ) from error
    if not isinstance(variables, dict):
        raise InputError(f"--chat-template-kwargs is {text}: write an object, '{{\"enable_thinking\": false}}'")
    return variables


prompt_option = partial(typer.Option, rich_help_panel="Prompts")
SystemOption = Annotated[str | None, prompt_option(help="The system message of each chat.")]
TemplateOption = Annotated[
    str | None,
    prompt_option(metavar="JSON", help="Variables of the chat template, such as '{\"enable_thinking\": false}'."),
]


@dataclass(frozen=True)
class PromptOptions:
    column: Annotated[
        str | None,
        prompt_option(metavar="COLUMN", help="The column of the prompts.", show_default="prompt, messages, …"),
    ] = None
    key: Annotated[
        str | None,
        prompt_option(metavar="COLUMN", help="The column that identifies a record.", show_default="id, prompt_id, …"),
    ] = None
    split: Annotated[str, prompt_option(metavar="NAME", help="The split of a data set.")] = "train"
    prompt_template: Annotated[str | None, prompt_option(help="Text around each prompt: 'Write of {prompt}.'")] = None
    system: SystemOption = None
    chat_template_kwargs: TemplateOption = None
    limit: Annotated[int | None, prompt_option(min=1, help="Read only the first N records.")] = None


MIN_P = 0.05
"""The default of --min-p on the command line."""
RECORDED = ("temperature", "min_p", "top_p", "top_k")
"""Sampling settings that every journal records; other settings are recorded only if they were passed."""
_sampling_option = partial(typer.Option, rich_help_panel="Sampling")


def _setting(name: str, about: str, *, default: str | bool = True) -> Any:
    """Declare the command-line option for the `Sampling` field `name`. default: what the help shows as the default."""
    lowest, highest = Sampling.limits[name].lowest, Sampling.limits[name].highest
    return _sampling_option(min=lowest, max=None if highest == inf else highest, help=about, show_default=default)


@dataclass(frozen=True)
class SamplingOptions:
    """Command-line options, one per field of `Sampling`; None if the option is not given."""

    temperature: Annotated[float | None, _setting("temperature", "0: greedy; above 1: varied.", default="1.0")] = None
    min_p: Annotated[
        float | None,
        _setting("min_p", "Keep tokens at least X times as likely as the likeliest; 0 is off.", default=str(MIN_P)),
    ] = None
    top_p: Annotated[float | None, _setting("top_p", "Keep the likeliest tokens that add up to X.")] = None
    top_k: Annotated[int | None, _setting("top_k", "Keep the N likeliest tokens.")] = None
    repetition_penalty: Annotated[float | None, _setting("repetition_penalty", "Above 1, repeat less.")] = None
    presence_penalty: Annotated[float | None, _setting("presence_penalty", "Lower scores of written tokens.")] = None
    frequency_penalty: Annotated[float | None, _setting("frequency_penalty", "The same, for each time written.")] = None
    dry_multiplier: Annotated[float | None, _setting("dry_multiplier", "DRY: how much to lower repetitions.")] = None
    dry_base: Annotated[float | None, _setting("dry_base", "DRY: growth per token.", default="1.75")] = None
    dry_allowed_length: Annotated[
        int | None, _setting("dry_allowed_length", "DRY: shortest repeat lowered.", default="2")
    ] = None
    dry_penalty_last_n: Annotated[int | None, _setting("dry_penalty_last_n", "DRY: tokens seen.", default="all")] = None
    dry_sequence_breaker: Annotated[
        list[str] | None,
        _sampling_option(show_default=': " * ⏎', help="DRY: repetitions end here; none: nowhere. Repeatable."),
    ] = None
    top_n_sigma: Annotated[float | None, _setting("top_n_sigma", "Keep scores up to X σ below the best.")] = None
    xtc_probability: Annotated[float | None, _setting("xtc_probability", "XTC: how often to exclude the top.")] = None
    xtc_threshold: Annotated[float | None, _setting("xtc_threshold", "Least p of XTC's choices.", default="0.1")] = None

    min_keep: Annotated[int | None, _setting("min_keep", "The fewest tokens that top-p, min-p, XTC keep.")] = None

    def __post_init__(self) -> None:
        _ = self.sampling  # raises an error for an invalid value

    @property
    def sampling(self) -> Sampling:
        return Sampling(**{"min_p": MIN_P, **self._passed})

    @property
    def _passed(self) -> dict[str, Any]:
        breakers = [] if self.dry_sequence_breaker == ["none"] else self.dry_sequence_breaker or None
        values = {**vars(self), "dry_sequence_breakers": breakers}.items()
        return {name: value for name, value in values if name in Sampling.limits and value is not None}

    @property
    def settings(self) -> dict[str, Any]:
        """Sampling arguments of `generate`: `RECORDED` and those passed, so journals without newer options match."""
        sampling = self.sampling
        names = {*RECORDED, *self._passed} - sampling.unused
        settings = {**vars(sampling), "dry_sequence_breakers": list(sampling.dry_sequence_breakers)}  # as in a journal
        return {"do_sample": sampling.do_sample, **{name: settings[name] for name in Sampling.limits if name in names}}


PARTS: Conflicts = {
    "{option} has no effect without --dry-multiplier: add it, or leave {option} out": When(
        "dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breaker", lambda o: not o.dry_multiplier
    ),
    "--xtc-threshold has no effect without --xtc-probability: add it, or leave --xtc-threshold out": When(
        "xtc_threshold", lambda o: not o.xtc_probability
    ),
    "--min-keep has no effect without --top-p, --min-p or --xtc-probability: add one, or leave --min-keep out": When(
        "min_keep", lambda o: o.min_p == 0 and o.top_p in (None, 1) and not o.xtc_probability
    ),
}


@dataclass(frozen=True)
class GenerationOptions(SamplingOptions):
    n: Annotated[int, typer.Option(min=1, help="Responses per prompt.")] = 1
    max_new_tokens: MaxNewTokensOption = 300
    stop: StopOption = None
    batch_size: Annotated[int, typer.Option(min=1, help="Texts generated at a time.")] = BATCH_SIZE
    seed: Annotated[int, typer.Option(help="Decides each text, with its prompt's key.")] = 0

    @property
    def settings(self) -> dict[str, Any]:
        stop = {"stop_strings": self.stop} if self.stop else {}
        return {"max_new_tokens": self.max_new_tokens, **super().settings, **stop}


EQUAL_SAMPLES: Conflicts = {
    "with --temperature 0 all {n} responses to a prompt are the same: leave out --n": When(
        "n", lambda o: o.temperature == 0
    )
}


@dataclass(frozen=True)
class DrawingOptions(SamplingOptions):
    greedy: Annotated[bool, _sampling_option(help="Always take the likeliest token.")] = False
    seed: Annotated[
        int | None, _sampling_option(min=0, max=2**63 - 1, show_default="random", help="Same seed, same text.")
    ] = None

    @property
    def sampling(self) -> Sampling:
        return replace(super().sampling, temperature=0.0) if self.greedy else super().sampling

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `generate` that override every sampling default in the model's generation config."""
        return {"repetition_penalty": 1.0, **super().settings}


def list_options(options: Any) -> list[str]:
    """Return the command-line arguments that set these options; options with their default value are left out."""
    arguments = []
    for field in fields(options):
        value = getattr(options, field.name)
        if value != field.default:
            name = f"--{field.name.replace('_', '-')}"
            values = value if isinstance(value, list) else [value]
            arguments += [name] if value is True else [part for each in values for part in (name, str(each))]
    return arguments
