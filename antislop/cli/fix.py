"""The command `antislop fix`: replace what bans flag in a finished text, or in a column of records."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from antislop import __version__
from antislop.cli import options, terminal
from antislop.cli.parsing import Conflicts, When
from antislop.cli.progress import ProgressBar
from antislop.cli.terminal import console, say
from antislop.core.bans import BanList
from antislop.display import describe_count
from antislop.errors import InputError
from antislop.files.chats import list_turns, map_replies, read_messages, render_chat
from antislop.files.disk import read_bytes, replace_text
from antislop.files.journal import Journal, Record, read_lines
from antislop.files.models import ModelSpec
from antislop.files.records import is_readable
from antislop.files.sources import read_records
from antislop.files.texts import BOOKS, COLUMNS, find_column
from antislop.measure.words import find_sentence_end

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from antislop.steer.fixing import Change, Fixed

AROUND = 40
"""Characters of a line that are shown on each side of a change."""


@dataclass(frozen=True)
class WriterOptions(options.ModelOptions):
    model: Annotated[
        str | None,
        options.model_option(metavar="NAME", help="Who finds other words: an id of the Hub, a folder, … (required)"),
    ] = None


@dataclass(frozen=True)
class FixOptions:
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="PATH", help="Write the fixed text here, or to -; of records, a .jsonl."),
    ] = None
    write: Annotated[bool, typer.Option("--write", help="Change the file itself.")] = False
    column: options.ColumnOption = None
    pairs: Annotated[Path | None, typer.Option(help="Of records: also write the changes as preference pairs.")] = None
    names: Annotated[bool, typer.Option("--names", help="Replace names, too, each in a text alike.")] = False
    n: Annotated[int, typer.Option(min=1, help="How often other words are drawn for a place.")] = 8
    seed: Annotated[
        int | None,
        typer.Option(min=0, show_default="the likeliest words; of records, 0", help="Draw among the words that fit."),
    ] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Texts of records fixed at a time.")] = 4


def _has_records(file: str, column: str | None) -> bool:
    return column is not None or (is_readable(Path(file)) and not file.removesuffix(".gz").endswith(BOOKS))


CONFLICTS: Conflicts = {
    "fix has no model of its own, as small ones ruin texts: pass --model smollm2-135m-instruct, or better a larger one "
    "of the Hub": When("", lambda o: o.model is None),
    f"both the text and --bans {options.READ_ONCE}": When("bans", lambda o: o.file == "-" and options.reads_stdin(o)),
    **options.TWO_LISTS,
    "--no-bans leaves nothing to replace: leave it out, or add --ban PHRASE": When("no_bans", options.bans_nothing),
    "--write changes a file of plain text, and {file} is none: pass -o FILE": When(
        "write", lambda o: o.file == "-" or o.file.endswith(".gz") or _has_records(o.file, o.column)
    ),
    "--write changes the file itself, and --out writes another one: leave one of them out": When(
        "write", lambda o: o.out
    ),
    "{option} is for records: pass a file of records, or leave it out": When(
        "pairs batch_size force", lambda o: not _has_records(o.file, o.column)
    ),
    "fixed records are kept in a file, so that a run can be resumed: pass -o out.jsonl": When(
        "", lambda o: _has_records(o.file, o.column) and o.out in (None, Path("-"))
    ),
    "records and pairs can't go into one file: choose another for --pairs": When("pairs", lambda o: o.pairs == o.out),
}


def fix(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A UTF-8 text, - for standard input, or records: .jsonl, .csv, …")
    ],
    *,
    model: WriterOptions,
    bans: options.BanOptions,
    choice: FixOptions,
    force: options.ForceOption = False,
) -> int:
    """Replace what a list flags in a finished text, and nothing else.

    Without --write and -o, shows what would change. Left and named are code, links, tags, names, and spans for which no
    other words fit. Of chats, all replies of the assistant are fixed. To resume records after an interruption, run the
    same command again.
    """
    banned = options.collect_bans(bans)
    run = _fix_records if _has_records(file, choice.column) else _fix_text
    return run(file, model.spec, banned, choice, force=force)


def _fix_text(file: str, model: ModelSpec, bans: BanList, choice: FixOptions, *, force: bool) -> int:  # noqa: ARG001
    out = Path(file) if choice.write else choice.out
    if out is not None:
        terminal.check_writable(out, or_stdout=True)
    text = terminal.read_input(file)
    from antislop.steer.fixing import fix_texts

    loaded = model.load()
    with ProgressBar(console(stderr=True), "fixing") as bar:
        bar.update()
        (fixed,) = fix_texts(*loaded, [text], bans, n=choice.n, seed=choice.seed, names=choice.names)
    left = [change for change in fixed.changes if change.left]
    replaced = len(fixed.changes) - len(left)
    if out is not None and (replaced or not choice.write):
        if choice.write and terminal.read_input(file) != text:
            raise InputError(f"{file}: has changed in the meantime, and stays as it is: run the command again")
        mark = "\ufeff" if file != "-" and read_bytes(file).startswith(BOM_UTF8) else ""
        with terminal.writing_or_stdout(out) as path:
            replace_text(path, mark + fixed.text)
    lines = [] if out else [line for change in fixed.changes if not change.left for line in _show(change, text, file)]
    lines += [line for change in left for line in _show(change, text, file)]
    unit = "; in brackets: nats by which the text is likelier than the original" if replaced and not out else ""
    for line in [*lines, Text(f"{replaced:,} replaced, {len(left):,} left{unit}")]:
        if out is None:
            terminal.print_line(line)
        else:
            say(line.plain)
    return int(bool(left))


def _show(change: Change, text: str, file: str) -> Iterator[Text]:
    """Yield the lines about a change: where it is, the words around it, and the best other words."""
    start, end = change.start, change.end
    begin, stop = text.rfind("\n", 0, start) + 1, (text + "\n").index("\n", end)
    place = f"{'<stdin>' if file == '-' else file}:{text.count(chr(10), 0, start) + 1}:{start - begin + 1}: "
    if change.left:
        yield Text(f"{place}“{change.before}” is left: {change.left}")
        return
    cut, rest = max(begin, start - AROUND), text[end:stop].rstrip("\r")
    line = Text(f"{place}{'…' * (cut > begin)}{text[cut:start]}")
    if console().is_terminal:
        line.append(change.before, "red strike").append(change.after, "green")
    else:
        line.append(f"[-{change.before}-]" + f"{{+{change.after}+}}" * bool(change.after))
    yield line.append(rest[:AROUND] + "…" * (len(rest) > AROUND))
    gains = [
        f"({gain:+.1f})".replace("-", "−") for gain in (change.gain, *(other.gain for other in change.alternatives))
    ]
    others = zip((other.text or "nothing" for other in change.alternatives[:3]), gains[1:], strict=False)
    named = ", ".join(f"{words} {gain}" for words, gain in others)
    yield Text(f"    {gains[0]}{named and f' or: {named}'}", "dim")


# -- records ----------------------------------------------------------------------------------------------------------


def _read(source: str, column: str | None) -> Iterator[tuple[Record, str, list[tuple[str, Any]]]]:
    """Yield each record, the name of its column, and the texts there, each with what came before it in a chat.

    Raises `InputError`, with path:line, for a record that is broken or has no such column.
    """
    for record in read_records(source):
        if record.error is not None:
            raise InputError(record.error)
        name, texts = find_column(record, column), list[tuple[str, Any]]()
        try:
            _put(record.fields, name, lambda *text, found=texts: str(found.append(text)))
        except InputError as reason:
            raise InputError(f"{record.place}: {reason}") from reason
        yield record.fields, name, texts


def _put(fields: Record, name: str, change: Callable[[str, Any], str]) -> Record:
    """Return a record with each text of a column changed; what a column of responses has is no chat."""
    value = fields[name]
    is_response = name in COLUMNS and isinstance(value, str)
    return {**fields, name: change(value, "") if is_response else map_replies(value, change)}


def _fix_records(source: str, model: ModelSpec, bans: BanList, choice: FixOptions, *, force: bool) -> int:
    out, seed = choice.out or Path(), choice.seed or 0
    for path in filter(None, (out, choice.pairs)):
        terminal.check_suffix(path, ".jsonl")
        terminal.check_writable(path)
        if Path(source).exists() and path.resolve().is_relative_to(Path(source).resolve()):
            raise InputError(f"{path}: is a source of the records: choose another path")
    digest, total = blake2b(digest_size=8), 0
    for fields, _, _ in _read(source, choice.column):  # refuses all broken records before the model is loaded
        digest.update(json.dumps(fields).encode())
        total += 1
    # The records that are made are known by their number, so all lines but one that was being written have to be whole.
    lines = enumerate(read_lines(out), start=1) if out.exists() else ()
    if damaged := [number for number, (line, record) in lines if record is None and line.endswith(b"\n")]:
        raise InputError(f"{out}:{damaged[0]}: is damaged: remove this line and all after it, and run it again")
    from antislop.datasets.samples import fingerprint_bans
    from antislop.datasets.writing import PairFile
    from antislop.steer.fixing import fix_texts

    loaded, numbers = model.load(), count()
    settings = {
        "source": source,
        "records": digest.hexdigest(),
        **model.content,
        "bans": f"{describe_count(len(bans), 'ban')}, {fingerprint_bans(bans)}",
        **{name: getattr(choice, name) for name in ("column", "names", "n")},
        "seed": seed,
        "antislop": __version__,
        **({"pairs": str(choice.pairs)} if choice.pairs else {}),
    }
    reasons, replaced = Counter[str](), 0
    with Journal(
        out, settings, identify=lambda _: (str(next(numbers)), 0, "banned"), additions=["pairs"], force=force
    ) as journal:
        pairs, is_own = None, "pairs" in journal.previous
        if choice.pairs is not None:
            pairs = PairFile(choice.pairs, journal, kind="dpo", is_own=is_own)
        done, rows = len(journal), _read(source, choice.column)
        if done:
            say(f"resuming: {describe_count(done, 'record exists', 'records exist')} already")
        # A text's words depend on its number and, by the last digits, on its batch: the batch that was cut is repeated.
        made = sum(len(texts) for *_, texts in islice(rows, done))
        begin = made - made % choice.batch_size
        texts = (text for *_, texts in _read(source, choice.column) for text, _ in texts)
        how = {"n": choice.n, "seed": seed + begin, "names": choice.names, "batch_size": choice.batch_size}
        fixed = islice(fix_texts(*loaded, islice(texts, begin, None), bans, **how), made - begin, None)
        try:
            with ProgressBar(console(stderr=True), f"{done:,}/{total:,}", total=total) as bar:
                bar.update(done=done)
                for number, (fields, name, asked) in enumerate(rows, start=done):
                    results = [*islice(fixed, len(asked))]
                    words = (result.text for result in results)
                    record = _put(fields, name, lambda *_, words=words: next(words))
                    if pairs is not None:
                        about = {"key": str(number), "sample": 0}
                        prompts = (_find_prompt(before, fields, name, loaded[1]) for _, before in asked)
                        found = zip(results, prompts, strict=True)
                        pairs.append({**row, **about} for one, prompt in found for row in _make_pairs(one, prompt))
                    journal.append(record)
                    changes = [change for result in results for change in result.changes]
                    reasons.update(change.left for change in changes if change.left)
                    replaced += sum(not change.left for change in changes)
                    bar.update(done=number + 1, title=f"{number + 1:,}/{total:,}", note=f"{replaced:,} replaced")
        except KeyboardInterrupt:
            say(f"stopped: {len(journal):,} of {total:,} records in {out}; run the same command again to make the rest")
            return 130
        if pairs is not None:
            say(f"{describe_count(pairs.finish(), 'pair')} in {choice.pairs}")
    named = "".join(f"; {number:,} left: {reason}" for reason, number in reasons.most_common())
    left = sum(bool(bans.find(text)) for *_, texts in _read(str(out), choice.column) for text, _ in texts)
    say(f"{replaced:,} replaced{named}; {describe_count(left, 'text')} of {total:,} {'records'} with a banned phrase")
    return int(bool(left))


def _find_prompt(before: Any, fields: Record, name: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what came before a text: of a chat, what the tokenizer's template makes of the messages before."""
    asked = before or ("" if name == "prompt" else fields.get("prompt")) or ""
    turns = list_turns(asked)
    return str(asked) if turns is None else render_chat(read_messages(turns), tokenizer)


def _make_pairs(fixed: Fixed, prompt: str) -> Iterator[Record]:
    """Yield a preference pair for each change: the rest of a sentence with the new words, and with the old ones."""
    grown = 0
    for change in fixed.changes:
        start, end = change.start + grown, change.start + grown + len(change.after)
        grown += len(change.after) - len(change.before)
        left, rest = fixed.text[:start].rstrip(" "), fixed.text[end : find_sentence_end(fixed.text, end)]
        space = fixed.text[len(left) : start]  # tokenizers cut before it
        if not change.left and (chosen := space + change.after + rest).strip():
            sides = {"chosen": chosen, "rejected": space + change.before + rest}
            yield {"prompt": prompt + left, **sides, "ban": change.ban}
