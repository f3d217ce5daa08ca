"""The command `antislop fix`: replace what bans flag in a finished text, or in a column of records."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
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
from antislop.core.bans import BanList
from antislop.display import describe_count
from antislop.errors import InputError
from antislop.files.disk import read_bytes, replace_text
from antislop.files.journal import Journal, read_lines
from antislop.files.models import ModelSpec
from antislop.files.records import is_readable
from antislop.files.texts import BOOKS, map_texts, read_to_map

if TYPE_CHECKING:
    from antislop.steer.fixing import Replacement

AROUND = 40
"""Characters of a line that are shown on each side of a change."""


@dataclass(frozen=True)
class WriterOptions(options.ModelOptions):
    model: Annotated[str | None, options.model_option(metavar="NAME", help="Larger is better.  [required]")] = None


@dataclass(frozen=True)
class FixOptions:
    file: Annotated[str, typer.Argument(metavar="FILE", help="A text, - for standard input, or records: .jsonl, …")]
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the fixed text or records here.")] = None
    write: Annotated[bool, typer.Option("--write", help="Change the file itself.")] = False
    column: options.ColumnOption = None
    pairs: Annotated[Path | None, typer.Option(help="Of records: also write the changes as preference pairs.")] = None
    names: Annotated[bool, typer.Option("--names", help="Replace names, too, each in a text alike.")] = False
    seed: Annotated[int | None, typer.Option(min=0, show_default="records: 0", help="Draw words at random.")] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Texts of records fixed at a time.")] = 4
    force: options.ForceOption = False


def _has_records(o: Any) -> bool:
    return o.column is not None or (is_readable(Path(o.file)) and not o.file.removesuffix(".gz").endswith(BOOKS))


CONFLICTS: Conflicts = {
    "fix has no model of its own, as small ones ruin texts: pass --model smollm2-135m-instruct, or better a larger one "
    "of the Hub": When("", lambda o: o.model is None),
    f"both the text and --bans {options.READ_ONCE}": When("bans", lambda o: o.file == "-" and options.reads_stdin(o)),
    **options.TWO_LISTS,
    "--no-bans leaves nothing to replace: leave it out, or add --ban PHRASE": When("no_bans", options.bans_nothing),
    "--write changes the file itself, which must be plain text and not packed: pass -o FILE in place of --write": When(
        "write", lambda o: o.out or o.file == "-" or o.file.endswith(".gz") or _has_records(o)
    ),
    "{option} is for records: pass a file of records, or leave it out": When(
        "pairs batch_size force", lambda o: not _has_records(o)
    ),
    "fixed records are kept in a file of their own, so that a run can be resumed: pass -o out.jsonl": When(
        "", lambda o: _has_records(o) and o.out in (None, Path("-"), o.pairs)
    ),
}


def fix(*, choice: FixOptions, model: WriterOptions, bans: options.BanOptions) -> int:
    """Replace what a list flags in a finished text, and nothing else.

    Without --write and -o, shows what would change. Code, links, tags, names, and spans for which no other words fit
    are left, and named. Of chats, all replies of the assistant are fixed. To resume records after an interruption, run
    the same command again.
    """
    return (_fix_records if _has_records(choice) else _fix_text)(choice, model.spec, options.collect_bans(bans))


def _fix_text(choice: FixOptions, model: ModelSpec, bans: BanList) -> int:
    from antislop.steer.fixing import fix_texts

    file, out, text = choice.file, Path(choice.file) if choice.write else choice.out, terminal.read_input(choice.file)
    if out is not None:
        terminal.check_suffix(out, *dict.fromkeys((".txt", ".md", Path(file).suffix.lower() or ".md")))
        terminal.check_writable(out, or_stdout=True)
    loaded = model.load()
    with ProgressBar(terminal.console(stderr=True), "fixing") as bar:
        bar.update()
        (fixed,) = fix_texts(*loaded, [text], bans, seed=choice.seed, names=choice.names)
    counts = Counter(bool(change.left) for change in fixed.changes)
    if out is not None and (counts[False] or not choice.write):
        if choice.write and terminal.read_input(file) != text:
            raise InputError(f"{file}: has changed in the meantime, and stays as it is: run the command again")
        mark = "\ufeff" if file != "-" and read_bytes(file).startswith(BOM_UTF8) else ""
        with terminal.writing_or_stdout(out) as path:
            replace_text(path, mark + fixed.text)
    changes = sorted(fixed.changes, key=lambda change: change.left != "")
    lines = [line for change in changes if change.left or out is None for line in _show(change, text, file)]
    unit = "; in brackets: nats by which the text is likelier than the original" * (out is None and counts[False] > 0)
    for line in [*lines, Text(f"{counts[False]:,} replaced, {counts[True]:,} left{unit}")]:
        terminal.print_line(line) if out is None else terminal.say(line.plain)
    return int(counts[True] > 0)


def _show(change: Replacement, text: str, file: str) -> Iterator[Text]:
    """Yield what is printed of a change: a line with its place and the words around it, and a line of other words."""
    start, begin = change.start, text.rfind("\n", 0, change.start) + 1
    place = f"{'<stdin>' if file == '-' else file}:{text.count(chr(10), 0, start) + 1}:{start - begin + 1}: "
    others = [f"{words or 'nothing'} ({f'{gain:+.1f}'.replace('-', '−')})" for words, gain in change.alternatives]
    if change.left:
        nearest = f"; the nearest: {', '.join(others)}" * bool(others)
        yield Text(f"{place}“{change.before}” is left: {change.left}{nearest}")
        return
    cut, rest = max(begin, start - AROUND), text[change.end :].split("\n", 1)[0].rstrip("\r")
    line = Text(f"{place}{'…' * (cut > begin)}{text[cut:start]}")
    if terminal.console().is_terminal:
        line.append(change.before, "red strike").append(change.after, "green")
    else:
        line.append(f"[-{change.before}-]" + f"{{+{change.after}+}}" * bool(change.after))
    yield line.append(rest[:AROUND] + "…" * (len(rest) > AROUND))
    first = f"{change.after or 'nothing'} ({f'{change.gain:+.1f}'.replace('-', '−')})"
    yield Text(f"    {first}" + f", or: {', '.join(others)}" * bool(others), "dim")


# -- records ----------------------------------------------------------------------------------------------------------


def _fix_records(choice: FixOptions, model: ModelSpec, bans: BanList) -> int:
    from antislop.datasets.pairs import pair_changes
    from antislop.datasets.samples import fingerprint_items
    from antislop.datasets.writing import PairFile
    from antislop.steer.fixing import fix_texts

    out, source, size, digest, total = choice.out or Path(), Path(choice.file), choice.batch_size, blake2b(), 0
    for path in filter(None, (out, choice.pairs)):
        terminal.check_suffix(path, ".jsonl")
        terminal.check_writable(path)
        if source.exists() and path.resolve().is_relative_to(source.resolve()):
            raise InputError(f"{path}: is a source of the records: choose another path")
    for fields, *_ in read_to_map(choice.file, choice.column):  # refuses broken records before a model is loaded
        digest.update(repr(fields).encode())
        total += 1
    for number, (line, made) in enumerate(read_lines(out), start=1) if out.exists() else ():
        if made is None and line.endswith(b"\n"):  # records are known by their number
            raise InputError(f"{out}:{number}: is damaged: remove this line and all after it, and run it again")
    loaded, seed = model.load(), choice.seed or 0
    fingerprints = {"records": digest.hexdigest()[:16], "bans": fingerprint_items(bans), "antislop": __version__}
    settings = {**fingerprints, **model.content, "column": choice.column, "names": choice.names, "seed": seed}
    settings |= {"pairs": str(choice.pairs)} if choice.pairs else {}
    reasons = Counter[str]()
    numbers = ((str(number), 0, "banned") for number in count())  # what a `PairFile` calls the records
    with Journal(out, settings, identify=lambda _: next(numbers), additions=["pairs"], force=choice.force) as journal:
        is_own, done, rows = "pairs" in journal.previous, len(journal), read_to_map(choice.file, choice.column)
        pairs = PairFile(choice.pairs, journal, kind="dpo", is_own=is_own) if choice.pairs else None
        # The words depend on a text's number and, in the last digits of logits, on the other texts of its batch. So a
        # resumed run fixes all texts of the batch in which the last run was cut.
        ready = sum(len(texts) for *_, texts in islice(rows, done))
        begin = ready - ready % size
        left = islice((text for *_, texts in read_to_map(choice.file, choice.column) for text, _ in texts), begin, None)
        every = fix_texts(*loaded, left, bans, seed=seed + begin, names=choice.names, batch_size=size)
        fixed = islice(every, ready - begin, None)
        try:
            with ProgressBar(terminal.console(stderr=True), total=total) as bar:
                for number, (fields, name, texts) in enumerate(rows, start=done):
                    bar.update(done=number, title=f"{number:,}/{total:,}", note=f"{reasons['']:,} replaced")
                    results = [*islice(fixed, len(texts))]
                    if pairs is not None:
                        each = zip(results, (before for _, before in texts), strict=True)
                        changed = (row for one in each for row in pair_changes(*one, tokenizer=loaded[1]))
                        pairs.append({**row, "key": str(number), "sample": 0} for row in changed)
                    reasons.update(change.left for result in results for change in result.changes)
                    words = (result.text for result in results)
                    journal.append(map_texts(fields, name, lambda *_, words=words: next(words)))
        except KeyboardInterrupt:
            terminal.say(f"stopped: {len(journal):,} of {total:,} records in {out}; the same command makes the rest")
            return 130
        if pairs is not None:
            terminal.say(f"{describe_count(pairs.finish(), 'pair')} in {pairs.path}")
    flagged = sum(bool(bans.find(text)) for *_, texts in read_to_map(str(out), choice.column) for text, _ in texts)
    named = "".join(f"; {number:,} left: {reason}" for reason, number in reasons.most_common() if reason)
    terminal.say(f"{reasons['']:,} replaced{named}; {describe_count(flagged, 'text')} with banned phrases in {out}")
    return int(flagged > 0)
