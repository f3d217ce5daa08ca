"""The command `antislop generate`: continue a text without banned phrases.

torch and transformers are imported when the model is loaded, so that bad input is refused immediately.
"""

from __future__ import annotations

import random
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from antislop.cli import options as shared
from antislop.cli.parsing import Conflicts, When
from antislop.cli.terminal import (
    as_input_error,
    check_suffix,
    check_writable,
    console,
    describe_command,
    read_input,
    save_json,
    say,
    warn,
    writing,
)
from antislop.core.bans import BanList, Unit
from antislop.core.loop import Method, OnExhausted, Sampling
from antislop.core.trace import Event, Report, TextPiece, TextPieces, mark_conceded
from antislop.display import describe_count
from antislop.errors import Exhausted, InputError
from antislop.explain.console import ConsoleWriter, describe_conceded, describe_endings, list_bans, summarize
from antislop.files.models import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antislop.core.hf import EventStream, Vocabulary


@dataclass(frozen=True)
class ContinuationOptions:
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The text to continue; - reads it from standard input.")
    ]
    chat: Annotated[bool, shared.prompt_option(help="Put the prompt into the tokenizer's chat template.")] = False
    system: shared.SystemOption = None
    chat_template_kwargs: shared.TemplateOption = None
    max_new_tokens: shared.MaxNewTokensOption = 200
    stop: shared.StopOption = None


@dataclass(frozen=True)
class PolicyOptions:
    method: Annotated[
        Method,
        shared.ban_option(
            help="exact: resample each banned span; token: ban its first token there, as antislop-sampler does; "
            "text: resample the text from its start."
        ),
    ] = "exact"
    rewind: Annotated[
        Unit | None,
        shared.ban_option(
            help="What is drawn again after a ban: the ban alone, or all from the beginning of the unit it is in.",
            show_default="word for parts of words, else span",
        ),
    ] = None
    on_exhausted: Annotated[OnExhausted, shared.ban_option(help="What to do if every continuation is banned.")] = (
        "concede"
    )
    scope: shared.ScopeOption = None


_output_option = partial(typer.Option, rich_help_panel="Output")


@dataclass(frozen=True)
class ShowOptions:
    show: Annotated[bool, _output_option(help="Show withdrawn text, and mark conceded bans.")] = False
    compare: Annotated[bool, _output_option(help="Write the plain text first, and count both.")] = False
    report: Annotated[
        Path | None, _output_option(help="Write rewinds and their cost as JSON; - is standard error.")
    ] = None
    trace: Annotated[Path | None, _output_option(help="Save all that happened, for antislop view.")] = None

    def check(self) -> None:
        if self.report is not None:
            check_suffix(self.report, ".json")
            check_writable(self.report, or_stdout=True)
        if self.trace is not None:
            check_suffix(self.trace, ".jsonl")
            check_writable(self.trace)
            if self.trace.is_file():
                raise InputError(f"{self.trace} exists already: pass another path, or remove it")


UNUSED = " ".join(
    field.name
    for field in fields(shared.SamplingOptions)
    if field.name in Sampling(temperature=0).unused - {"temperature"}
)
"""Options of sampling that greedy decoding ignores."""
CONFLICTS: Conflicts = {
    "{option} has no effect with --greedy, which takes no samples: leave one of them out": When(
        f"temperature {UNUSED} seed", lambda o: o.greedy
    ),
    "{option} has no effect with --temperature 0, which takes no samples: leave one of them out": When(
        f"{UNUSED} seed", lambda o: o.temperature == 0
    ),
    "--system is a message of a chat: add --chat, or put it into the prompt": When("system", lambda o: not o.chat),
    "{option} has no effect without --chat: add it, or leave this out": When(
        "chat_template_kwargs", lambda o: not o.chat
    ),
    "--compare with --no-bans has nothing to compare: leave one of them out, or add --ban PHRASE": When(
        "compare", shared.bans_nothing
    ),
    f"both the prompt and --bans {shared.READ_ONCE}": When("bans", lambda o: o.prompt == "-" and shared.reads_stdin(o)),
    **shared.TWO_LISTS,
    **shared.TWO_GRAMMARS,
    **shared.PARTS,
}


def generate(
    text: ContinuationOptions,
    model: shared.ModelOptions,
    bans: shared.BanOptions,
    policy: PolicyOptions,
    structure: shared.GrammarOptions,
    sampling: shared.DrawingOptions,
    output: ShowOptions,
) -> int:
    """Continue a text without banned phrases.

    On a terminal the prompt is shown, and the text appears as soon as no rewind can change it. Files and pipes receive
    only the continuation, with withdrawn text in brackets if --show is set.
    """
    output.check()
    banned = shared.collect_bans(bans)
    task = WritingTask(text, model.spec, policy, sampling, structure.read(), trace=output.trace)
    writer = TextWriter.load(task, banned, read_prompt(text.prompt))
    screen, show = console(), output.show
    if not output.compare:
        runs = [_write_text(writer, screen, show=show)]
    else:
        runs = []
        for title in _TITLES:
            screen.rule(title, align="left")
            runs.append(_write_text(writer, screen, show=show, with_bans=title == _TITLES[1]))
            screen.print()
        screen.print(_tabulate(runs, writer.bans))
        say(_describe_difference(*(run.text for run in runs)))
    if output.report is not None:
        with writing(output.report):
            save_json(output.report, _describe_run(writer, runs[-1]))
    if show and (withdrawn := list_bans(runs[-1].report)):
        say(f"withdrawn for {withdrawn}")
    if conceded := describe_conceded(runs[-1].report):
        say(conceded)
    if endings := describe_endings(runs[-1].report):
        say(endings)
    if task.grammar is not None and runs[-1].tokens >= text.max_new_tokens:
        length = describe_count(text.max_new_tokens, "token")
        warn(f"the text was cut at {length}, maybe inside of the grammar: raise --max-new-tokens")
    which = f"{_TITLES[1]}: " if output.compare else ""
    summary = summarize(runs[-1].report, seconds=runs[-1].seconds, kept_tokens=runs[-1].tokens)
    say(which + summary + (f" (seed {writer.seed})" if sampling.sampling.do_sample else ""))
    return 0


@dataclass
class _GenerationRun:
    """A generated text and its cost. The first of `pieces` is the prompt."""

    pieces: list[TextPiece]
    report: Report
    seconds: float = 0.0
    tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces[1:] if piece.kind != "withdrawn")


def _write_text(writer: TextWriter, screen: Console, *, show: bool, with_bans: bool = True) -> _GenerationRun:
    prompt = TextPiece(writer.prompt + "\n\n" * writer.task.text.chat, "prompt")
    page, text_pieces = ConsoleWriter(screen, show_withdrawn=show), TextPieces(writer.vocabulary)
    run = _GenerationRun([prompt], Report(surfaces=writer.vocabulary))
    events, began = writer.events(with_bans=with_bans), time.perf_counter()
    page.write([prompt])
    try:
        with ExitStack() as endings:
            if with_bans:
                endings.callback(writer.save_trace)
            endings.callback(page.end)  # called before `save_trace`; raises if the output's reader has closed it
            for event in events:
                run.report.add(event)
                pieces = text_pieces.add(event)
                run.pieces += pieces
                run.tokens = text_pieces.settled
                page.write(pieces)
    except Exhausted as error:
        warn(str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        written = f"{describe_count(run.tokens, 'token')} of at most {writer.task.text.max_new_tokens:,}"
        say(f"interrupted after {written} (seed {writer.seed})")
        raise
    run.seconds = time.perf_counter() - began
    return run


_TITLES = ("plain model", "under the bans")


def _describe_difference(plain_text: str, banned_text: str) -> str:
    """Return a sentence that says from which word on two texts differ.

    >>> _describe_difference("a sly cat sat", "a sly dog sat")
    'the texts differ from word 3 on, since after a rewind the model goes on from other words'
    """
    if plain_text == banned_text:
        return "the texts are the same: there was nothing to withdraw"
    pairs = zip(plain_text.split(), banned_text.split(), strict=False)
    words = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return f"the texts differ from word {words + 1:,} on, since after a rewind the model goes on from other words"


def _tabulate(runs: list[_GenerationRun], bans: BanList) -> Table:
    table = Table("", *_TITLES, box=None, padding=(0, 2, 0, 0))
    hits = [len(bans.find(run.text, overlaps=False)) for run in runs]
    words = [len(run.text.split()) for run in runs]
    rates = [1000 * count / max(1, total) for count, total in zip(hits, words, strict=True)]
    table.add_row("banned phrases", *map(str, hits))
    table.add_row("per 1,000 words", *(f"{rate:.1f}" for rate in rates), style="bold")
    table.add_row("words", *map(str, words))
    table.add_row("forward passes", *(str(run.report.forward_passes) for run in runs))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _describe_run(writer: TextWriter, run: _GenerationRun) -> dict[str, Any]:
    return {
        **writer.task.model.content,
        "device": str(writer.model.device),
        "bans": len(writer.bans),
        "method": writer.task.policy.method,
        **({"rewind": rewind} if (rewind := writer.task.policy.rewind) else {}),
        "seed": writer.seed,
        **writer.task.settings,
        "prompt": writer.prompt,
        "text": run.text,
        "tokens": run.tokens,
        "seconds": run.seconds,
        **run.report.to_dict(),
    }


# -- the model --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WritingTask:
    text: ContinuationOptions
    model: ModelSpec
    policy: PolicyOptions
    sampling: shared.DrawingOptions
    grammar: str | None
    trace: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments for the model's `generate`."""
        text = {"max_new_tokens": self.text.max_new_tokens, "stop_strings": self.text.stop or None}
        return {**text, **self.sampling.settings}


def read_prompt(prompt: str) -> str:
    if prompt == "-":
        return read_input("-").removesuffix("\n")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InputError("the prompt is not UTF-8: save it in a UTF-8 file, and pass - with < FILE") from None
    return prompt


@dataclass
class TextWriter:
    """A loaded model that continues one prompt any number of times."""

    task: WritingTask
    bans: BanList
    prompt: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary
    ids: list[int]  # of the prompt
    seed: int
    stream: EventStream | None = field(default=None, init=False)

    @classmethod
    def load(cls, task: WritingTask, bans: BanList, prompt: str) -> TextWriter:
        with console(stderr=True).status("loading the model"):
            model, tokenizer = task.model.load()
            from antislop.core.hf import Vocabulary, encode, max_positions

            with as_input_error():
                vocabulary = Vocabulary.of(tokenizer)
        if not task.text.chat:
            ids = encode(prompt, tokenizer)
        elif tokenizer.chat_template is None:
            raise InputError("--chat needs a chat template, which this model's tokenizer doesn't have: leave it out")
        else:
            system = [] if task.text.system is None else [{"role": "system", "content": task.text.system}]
            messages = [*system, {"role": "user", "content": prompt}]
            ids = encode(messages, tokenizer, variables=shared.read_variables(task.text.chat_template_kwargs))
        if not ids:
            raise InputError("the prompt is empty, and this model needs at least one token to continue: write one")
        new, limit = task.text.max_new_tokens, max_positions(model)
        if limit is not None and len(ids) + new > limit:
            advice = f"pass --max-new-tokens {limit - len(ids)} or less" if len(ids) < limit else "shorten the prompt"
            total = f"the prompt has {describe_count(len(ids), 'token')}, which with {describe_count(new, 'new one')}"
            raise InputError(f"{total} exceeds the model's {limit:,} positions: {advice}")
        seed = random.randrange(2**32) if task.sampling.seed is None else task.sampling.seed
        bans = shared.limit_bans(bans, task.policy.scope, tokenizer)
        return cls(task, bans, prompt, model, tokenizer, vocabulary, ids, seed)

    def events(self, *, with_bans: bool = True) -> Iterator[Event]:
        """Continue the prompt, yielding events. Without bans, what they would withdraw stays and counts as conceded."""
        import torch

        from antislop.core.sampler import AntiSlop
        from antislop.steer.samplers import add_samplers

        torch.manual_seed(self.seed)
        with as_input_error():
            sampler = AntiSlop(
                self.tokenizer,
                self.bans if with_bans else [],
                method=self.task.policy.method,
                rewind=self.task.policy.rewind,
                on_exhausted=self.task.policy.on_exhausted,
            )
            processors: list[Any] = []
            if self.task.grammar is not None:
                from antislop.steer.grammar.compilation import compile_llguidance
                from antislop.steer.grammar.grammar import Grammar

                ends = self.model.generation_config.eos_token_id
                end_tokens = [ends] if isinstance(ends, int) else ends
                processors = [Grammar(compile_llguidance(self.task.grammar, self.tokenizer, end_tokens=end_tokens))]
            ids = torch.tensor([self.ids], device=self.model.device)
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            arguments = {**inputs, **self.task.settings, "logits_processor": processors}
            settings = add_samplers(arguments, self.tokenizer)
            self.stream = sampler.events(self.model, record="top" if self.task.trace else "events", **settings)
        if with_bans:
            return self.stream
        from antislop.core.bans import Matcher

        matcher = Matcher(self.bans, self.vocabulary)
        begun = matcher.start(self.ids, drops_space=self.vocabulary.drops_space_after(self.ids))
        return mark_conceded(self.stream, matcher, begun)

    def save_trace(self) -> None:
        """Save the trace of the latest run, even an interrupted one, if the task names a file for the trace."""
        path, trace = self.task.trace, None if self.stream is None else self.stream.trace
        if path is None or trace is None:
            return
        facts = {**trace.about, "command": describe_command(), "grammar": self.task.grammar}
        with writing(path):
            replace(trace, describe=lambda: facts).save(path)
        unfinished = "" if all(row.is_finished for row in trace.rows) else " of the unfinished text"
        say(f"saved the trace{unfinished} to {path}: look at it with antislop view {shlex.quote(str(path))}")
