"""The command `antislop generate`: continue a text without what is banned.

Data goes to standard output, everything else to standard error. torch and transformers are imported when the model is
loaded, so that what can be refused before is refused at once.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from antislop.cli import jobs
from antislop.cli.jobs import collect_bans
from antislop.cli.main import app as app  # the command line as a whole
from antislop.cli.terminal import as_refusal, check_writable, complain, console, read, writing
from antislop.display import escape_json
from antislop.errors import InputError
from antislop.files import replace_text
from antislop.hf.pretrained import ModelSpec, load_model
from antislop.lists.ban_list import BanList
from antislop.trace.console import ConsoleWriter, list_bans, save_svg, summarize, to_rich
from antislop.trace.events import Conceded, Event, Settled
from antislop.trace.report import Report
from antislop.trace.text_pieces import TextPiece, TextPieces, mark_conceded

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antislop.hf.vocabulary import Vocabulary

TEMPERATURE = 1.0
MIN_P = 0.05


class Method(str, Enum):
    """`antislop.decoding.walker.Method`, which can't be imported without torch."""

    EXACT = "exact"
    TOKEN = "token"


class OnExhausted(str, Enum):
    """`antislop.decoding.walker.OnExhausted`, which can't be imported without torch."""

    CONCEDE = "concede"
    STOP = "stop"
    RAISE = "raise"


@dataclass(frozen=True)
class _Settings:
    """The arguments of `generate`; their meaning is in its help."""

    prompt: str
    chat: bool
    system: str | None
    max_new_tokens: int
    stop: list[str] | None
    model: str | None
    revision: str | None
    dtype: jobs.Dtype
    device: str
    device_map: str | None
    attention: str | None
    trust_remote_code: bool
    bans: list[Path] | None
    ban: list[str] | None
    no_bans: bool
    constructions: bool
    lenient: bool
    method: Method
    on_exhausted: OnExhausted
    greedy: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | None
    show: bool
    compare: bool
    svg: Path | None
    report: Path | None

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(
            self.model,
            revision=self.revision,
            dtype=self.dtype.value,
            device=self.device,
            device_map=self.device_map,
            attention=self.attention,
            trust_remote_code=self.trust_remote_code,
        )


_METHOD_HELP = "exact: all else stays as frequent as before; token: the first-token rule."
_MIN_P_HELP = "Keep tokens at least p times as likely as the likeliest; 0 is off."
_REPORT_HELP = "Write what was withdrawn and what it cost as JSON; - is standard error."
_option = typer.Option
_ban_option = partial(typer.Option, rich_help_panel="Bans")
_sampling_option = partial(typer.Option, rich_help_panel="Sampling")
_output_option = partial(typer.Option, rich_help_panel="Output")


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on from; - reads it from standard input.")],
    chat: Annotated[bool, _option("--chat", help="Put the prompt into the tokenizer's chat template.")] = False,
    system: Annotated[str | None, _option(metavar="TEXT", help="The system message of the chat.")] = None,
    max_new_tokens: Annotated[int, _option(min=1, help="The most to generate; what is withdrawn doesn't count.")] = 200,
    stop: Annotated[list[str] | None, _option(metavar="STRING", help="End with this string. Repeatable.")] = None,
    model: jobs.Model = None,
    revision: jobs.Revision = None,
    dtype: jobs.DtypeName = jobs.Dtype.AUTO,
    device: jobs.Device = "auto",
    device_map: jobs.DeviceMap = None,
    attention: jobs.Attention = None,
    trust_remote_code: jobs.TrustRemoteCode = False,
    bans: jobs.Bans = None,
    ban: jobs.Ban = None,
    no_bans: jobs.NoBans = False,
    constructions: jobs.Constructions = False,
    lenient: jobs.Lenient = False,
    method: Annotated[Method, _ban_option(help=_METHOD_HELP)] = Method.EXACT,
    on_exhausted: Annotated[
        OnExhausted, _ban_option(help="What to do where only bans are left to say.")
    ] = OnExhausted.CONCEDE,
    greedy: Annotated[bool, _sampling_option("--greedy", help="Take the likeliest token, draw nothing.")] = False,
    temperature: Annotated[
        float | None, _sampling_option(min=0, show_default=str(TEMPERATURE), help="Above 1 bolder.")
    ] = None,
    top_k: Annotated[
        int | None, _sampling_option(min=1, show_default="off", help="Keep the k likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None, _sampling_option(min=0, max=1, show_default="off", help="Keep the likeliest that make up p.")
    ] = None,
    min_p: Annotated[float | None, _sampling_option(min=0, max=1, show_default=str(MIN_P), help=_MIN_P_HELP)] = None,
    repetition_penalty: Annotated[
        float | None, _sampling_option(show_default="off", help="Above 1, repeat less.")
    ] = None,
    seed: Annotated[
        int | None, _sampling_option(min=0, max=2**63 - 1, show_default="a new one", help="Same seed, same text.")
    ] = None,
    show: Annotated[bool, _output_option("--show", help="Show what was withdrawn, mark what was conceded.")] = False,
    compare: Annotated[bool, _output_option("--compare", help="Generate without bans too, and count both.")] = False,
    svg: Annotated[Path | None, _output_option(metavar="FILE", help="Save the picture that --show shows.")] = None,
    report: Annotated[Path | None, _output_option(metavar="FILE", help=_REPORT_HELP)] = None,
) -> int:
    """Continue a text without what is banned.

    On a terminal the text comes as it settles, after the prompt; anywhere else only the continuation is written, and
    what --show adds stands in brackets. The sampling options replace the model's own defaults.
    """
    return _generate(_Settings(**locals()))


def _generate(settings: _Settings) -> int:
    _check(settings)
    bans = collect_bans(
        settings.bans,
        settings.ban,
        no_bans=settings.no_bans,
        with_constructions=settings.constructions,
        lenient=settings.lenient,
    )
    prompt = _read_prompt(settings.prompt)
    writer = _Writer.load(settings, bans, prompt)
    screen = console()
    show = settings.show
    runs = _compare(writer, screen, show=show) if settings.compare else [_write(writer, screen, show=show)]
    _save(settings, writer, runs)
    if show and (withdrawn := list_bans(runs[-1].report)):
        _say(f"withdrawn for {withdrawn}")
    if conceded := list_bans(runs[-1].report, Conceded):
        _say(f"let through, since nothing else was left to write: {conceded}")
    _say(runs[-1].summary + ("" if settings.greedy else f" (seed {writer.seed})"))
    return 0


def _say(sentence: str) -> None:
    console(stderr=True).print(sentence, style="dim", soft_wrap=True)


def _check(settings: _Settings) -> None:
    """Refuse what can be refused before anything is loaded."""
    drawn = ("temperature", "top_k", "top_p", "min_p", "seed")
    given = [f"--{name.replace('_', '-')}" for name in drawn if getattr(settings, name) is not None]
    if settings.greedy and given:
        raise InputError(f"{given[0]} has no effect with --greedy, which draws nothing: leave one of them out")
    if settings.system is not None and not settings.chat:
        raise InputError("--system is a message of a chat: add --chat, or put it into the prompt")
    if settings.temperature == 0:
        raise InputError("the temperature is 0, but must be above it: pass --greedy to take the likeliest token")
    if settings.repetition_penalty is not None and settings.repetition_penalty <= 0:
        raise InputError(
            f"the repetition penalty is {settings.repetition_penalty}, but must be above 0: 1 is none, 1.1 is common"
        )
    if settings.no_bans and not (settings.ban or settings.bans or settings.constructions) and settings.compare:
        raise InputError("--compare with --no-bans has nothing to compare: leave one of them out, or add --ban PHRASE")
    if settings.svg is not None:
        check_writable(settings.svg)
    if settings.report is not None:
        check_writable(settings.report, or_stdout=True)
    if settings.prompt == "-" and Path("-") in (settings.bans or []):
        raise InputError("both the prompt and --bans are -, and standard input can be read once: save one to a file")


def _read_prompt(prompt: str) -> str:
    if prompt == "-":
        return read("-").removesuffix("\n")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InputError("the prompt is not UTF-8: save it in a UTF-8 file, and pass - with < FILE") from None
    return prompt


@dataclass
class _Writer:
    """A model and all that it takes to write the continuation of one prompt, any number of times."""

    settings: _Settings
    bans: BanList
    prompt: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary
    inputs: dict[str, Tensor]
    seed: int

    @classmethod
    def load(cls, settings: _Settings, bans: BanList, prompt: str) -> _Writer:
        with console(stderr=True).status("loading the model"):
            model, tokenizer = load_model(settings.spec)
            from antislop.hf.vocabulary import Vocabulary

            with as_refusal():
                vocabulary = Vocabulary.of(tokenizer)
        inputs = _encode(tokenizer, prompt, chat=settings.chat, system=settings.system)
        _check_length(model, inputs["input_ids"].shape[1], settings.max_new_tokens)
        seed = random.randrange(2**32) if settings.seed is None else settings.seed
        inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
        return cls(settings, bans, prompt, model, tokenizer, vocabulary, inputs, seed)

    def events(self, *, with_bans: bool = True) -> Iterator[Event]:
        """Yield what happens. Without bans it is what the model writes by itself, where bans stand as conceded."""
        import torch

        from antislop.sampler import AntiSlop

        torch.manual_seed(self.seed)
        with as_refusal():
            sampler = AntiSlop(
                self.tokenizer,
                self.bans if with_bans else [],
                method=self.settings.method.value,
                on_exhausted=self.settings.on_exhausted.value,
            )
            events = sampler.events(self.model, **{**self.inputs, **_sampling(self.settings)})
        return events if with_bans else self._point_out(events)

    def _point_out(self, events: Iterator[Event]) -> Iterator[Event]:
        from antislop.matching.token_matcher import Matcher

        matcher = Matcher(self.bans, self.vocabulary)
        return mark_conceded(events, matcher, matcher.start(self.inputs["input_ids"][0].tolist()))


def _encode(tokenizer: PreTrainedTokenizerBase, prompt: str, *, chat: bool, system: str | None) -> dict[str, Tensor]:
    if not chat:
        encoded = tokenizer(prompt, return_tensors="pt")
    elif tokenizer.chat_template is None:
        raise InputError("--chat needs a chat template, which this model's tokenizer has not: leave it out")
    else:
        messages = [{"role": "user", "content": prompt}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        encoded = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    if encoded["input_ids"].shape[1] == 0:
        raise InputError("the prompt is empty, and this model needs at least one token to go on from: write one")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}  # the rest is not every model's


def _check_length(model: PreTrainedModel, prompt: int, new: int) -> None:
    most = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if most is None or prompt + new <= most:
        return
    advice = f"pass --max-new-tokens {most - prompt} or less" if prompt < most else "shorten the prompt"
    fault = f"the prompt has {prompt:,} tokens, which with {new:,} new ones exceeds the model's {most:,} positions"
    raise InputError(f"{fault}: {advice}")


def _sampling(settings: _Settings) -> dict[str, Any]:
    """Return arguments of `generate` that leave nothing about drawing to the model's own defaults."""
    chosen: dict[str, Any] = {
        "max_new_tokens": settings.max_new_tokens,
        "stop_strings": settings.stop or None,
        "repetition_penalty": settings.repetition_penalty or 1.0,
        "do_sample": not settings.greedy,
    }
    if not settings.greedy:
        chosen["temperature"] = TEMPERATURE if settings.temperature is None else settings.temperature
        chosen["min_p"] = MIN_P if settings.min_p is None else settings.min_p
        chosen["top_k"] = settings.top_k or 0
        chosen["top_p"] = 1.0 if settings.top_p is None else settings.top_p
    return chosen


@dataclass
class _Run:
    """A text that was written, and how; the first piece is the prompt."""

    pieces: list[TextPiece]
    report: Report
    seconds: float = 0.0
    tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces[1:] if piece.kind != "withdrawn")

    @property
    def summary(self) -> str:
        return summarize(self.report, seconds=self.seconds, kept_tokens=self.tokens)


def _write(writer: _Writer, screen: Console, *, show: bool, with_bans: bool = True) -> _Run:
    """Generate, and write to the console what is certain."""
    from antislop.decoding.walker import Exhausted

    prompt = TextPiece(writer.prompt + "\n\n" * writer.settings.chat, "prompt")
    page, trail = ConsoleWriter(screen, show_withdrawn=show), TextPieces(writer.vocabulary)
    run = _Run([prompt], Report(surfaces=writer.vocabulary))
    events, began = writer.events(with_bans=with_bans), time.perf_counter()
    exhausted: Exhausted | None = None
    page.write([prompt])
    try:
        for event in events:
            run.report.add(event)
            run.tokens += len(event.tokens) if isinstance(event, Settled) else 0
            pieces = trail.add(event)
            run.pieces += pieces
            page.write(pieces)
    except Exhausted as error:
        exhausted = error
    finally:
        page.end()
    if exhausted is not None:
        complain(str(exhausted))
        raise typer.Exit(1) from exhausted
    run.seconds = time.perf_counter() - began
    return run


def _compare(writer: _Writer, screen: Console, *, show: bool) -> list[_Run]:
    runs = []
    for title in _TITLES:
        screen.rule(title, align="left")
        runs.append(_write(writer, screen, show=show, with_bans=title == _TITLES[1]))
        screen.print()
    screen.print(_tabulate(runs, writer.bans))
    screen.print()
    screen.print(_say_where_they_part(*(run.text for run in runs)), style="dim", soft_wrap=True)
    return runs


_TITLES = ("without bans", "with bans")


def _say_where_they_part(plain: str, banned: str) -> str:
    """Say how far two texts agree, and why no further.

    >>> _say_where_they_part("a sly cat sat", "a sly dog sat")[:45]
    'The texts agree in their first 2 words only: '
    """
    if plain == banned:
        return "The texts are the same: there was nothing to withdraw."
    pairs = zip(plain.split(), banned.split(), strict=False)
    words = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return (
        f"The texts agree in their first {words:,} words only: after a rewind the model continues from other words, so "
        "the second is another text, not the first without its slop."
    )


def _tabulate(runs: list[_Run], bans: BanList) -> Table:
    table = Table("", *_TITLES, box=None, padding=(0, 2, 0, 0))
    found = [len(bans.find(run.text)) for run in runs]
    words = [len(run.text.split()) for run in runs]
    rates = [1000 * count / max(1, total) for count, total in zip(found, words, strict=True)]
    table.add_row("banned phrases", *map(str, found))
    table.add_row("per 1,000 words", *(f"{rate:.1f}" for rate in rates), style="bold")
    table.add_row("words", *map(str, words))
    table.add_row("forward passes", *(str(run.report.forward_passes) for run in runs))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _save(settings: _Settings, writer: _Writer, runs: list[_Run]) -> None:
    if settings.svg is not None:
        with writing(settings.svg):
            save_svg(_draw(runs), settings.svg)
    if settings.report is not None:
        with writing(settings.report):
            _save_report(settings.report, _describe(writer, runs[-1]))


def _draw(runs: list[_Run]) -> Text:
    if len(runs) == 1:
        return to_rich(runs[0].pieces)
    plain, banned = (to_rich(run.pieces) for run in runs)
    return Text.assemble((f"{_TITLES[0]}\n", "bold"), plain, (f"\n\n{_TITLES[1]}\n", "bold"), banned)


def _save_report(path: Path, report: dict[str, Any]) -> None:
    text = escape_json(json.dumps(report, indent=2, ensure_ascii=False))
    if path == Path("-"):
        typer.echo(text, err=True)
    else:
        replace_text(path, text + "\n")


def _describe(writer: _Writer, run: _Run) -> dict[str, Any]:
    """Return a run as plain data: how to repeat it, its text, the counts of its report, and the bans it met."""
    return {
        **writer.settings.spec.content,
        "device": str(writer.model.device),
        "bans": len(writer.bans),
        "method": writer.settings.method.value,
        "seed": writer.seed,
        **_sampling(writer.settings),
        "prompt": writer.prompt,
        "text": run.text,
        "tokens": run.tokens,
        "seconds": run.seconds,
        **run.report.to_dict(),
    }
