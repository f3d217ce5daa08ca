"""Read finished texts, one by one: outputs of models, and books.

Each text keeps its prompt, since texts to one prompt are not independent.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

from antislop.errors import InputError
from antislop.files.chats import find_role, list_replies, list_requests, list_turns, map_replies, read_transcript
from antislop.files.disk import read_text_pieces
from antislop.files.sources import SourceRecord, read_records
from antislop.files.thoughts import drop_thoughts, drop_thoughts_of_pieces

COLUMNS = ("response", "output", "completion", "text", "mes")
BOOKS = (".txt", ".md")
"""Suffixes of files that are one text each."""
PROMPTS = ("key", "prompt", "prompt_id", "prompt_index")

_CHATS = ("messages", "conversations", "conversation")
_OF_CHATS = re.compile("message|conversation|turn|chat|dialog", re.IGNORECASE)  # columns whose texts are turns

LeftOut: TypeAlias = Counter[tuple[str, str]]
"""How many records of a source were unexpected, by (source, remark); in the remark, {} stands for the number."""
_REPLIES, _THOUGHTS = "left out {} without a reply of the assistant", "left out the thoughts of {}"
_ENDLESS = "left out {} of thoughts alone"
_TRANSCRIPTS = "{} with turns of the user, which are read, too: measure and profile leave them out with --chats"


@dataclass(frozen=True, slots=True)
class Text:
    """A finished text.

    text: without the model's thoughts, as `drop_thoughts` leaves them out.
    prompt: identifies the text's prompt; None if unknown.
    place: what errors call the text: path:line in a file of lines.
    fields: all columns of the text's record.
    """

    text: str
    prompt: str | None
    place: str
    fields: Mapping[str, Any]

    @property
    def asked(self) -> str:
        """The text of the prompt: if the record has a chat, of all messages except the assistant's.

        Raises `InputError` for a chat that can't be read.
        """
        name = next((name for name in ("prompt", *_CHATS) if self.fields.get(name)), None)
        value = self.prompt if name is None else self.fields[name]
        try:
            turns = None if name == "prompt" and isinstance(value, str) else list_turns(value)
        except InputError as reason:
            raise InputError(f"{self.place}: {reason}") from reason
        return "\n".join(list_requests(turns)) if turns is not None else str(value or "")


@dataclass(frozen=True, slots=True)
class LongText:
    """A finished text of any length, read on demand. read: yields the text in pieces. Other fields: as in `Text`."""

    read: Callable[[], Iterable[str]]
    place: str
    prompt: None = None
    asked: Literal[""] = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(self.read())


AnyText: TypeAlias = Text | LongText


def cut(text: AnyText) -> Iterable[str]:
    return text.read() if isinstance(text, LongText) else (text.text,)


def open_texts(
    sources: Iterable[str | os.PathLike[str]],
    *,
    column: str | None = None,
    prompt_column: str | None = None,
    split: str = "train",
    limit: int | None = None,
    chats: bool = False,
    left_out: LeftOut | None = None,
) -> Iterator[AnyText]:
    """Read texts from files, folders and data sets of the hub, one at a time.

    sources: .txt and .md files (also .gz) are one text each, a `LongText` that is not read yet; .jsonl, .json, .csv and
        .parquet have one per record.
    column: the texts' column; by default `response`, else `output`, `completion`, `text`, `mes`, else `messages`,
        `conversations` or `conversation`. Of a chat, the assistant's last reply that has a text is read; of a list of
        texts, each.
    prompt_column: identifies prompts; by default `key`, else `prompt`, else `prompt_id`, else `prompt_index`.
    limit: the number of texts to read from each source.
    chats: read only the replies of a text in which turns of the user are written, too.
    left_out: counts what is left out of each source: chats without such a reply, messages of others than the assistant
        (`role`), thoughts, and texts of endless thoughts. Also counts texts with turns of the user, which are read.

    Also left out are records whose `status` is "error", empty texts, and messages of the user and the system in chats
    of SillyTavern (`mes`).

    Raises `InputError`, with path:line, for a record that is broken or has no text column.
    """
    for source in list_sources(sources):
        path, name = Path(source).expanduser(), str(source)
        counts = LeftOut() if left_out is None else left_out
        if _is_book(path):
            books = [file for file in path.rglob("*") if file.is_file() and _is_book(file)] if path.is_dir() else [path]
            texts: Iterator[AnyText] = (LongText(partial(_read_book, book), str(book)) for book in sorted(books))
        else:
            texts = _read_records(name, column, prompt_column, split, chats, counts)
        yield from islice((text for text in texts if any(map(str.strip, cut(text)))), limit)


def read_texts(sources: Iterable[str | os.PathLike[str]], **options: Any) -> Iterator[Text]:
    """Read texts as `open_texts` does, but hold each text whole in memory. options: those of `open_texts`."""
    texts = open_texts(sources, **options)
    return (text if isinstance(text, Text) else Text(text.text, None, text.place, text.fields) for text in texts)


def list_sources(sources: Iterable[str | os.PathLike[str]]) -> Iterable[str | os.PathLike[str]]:
    """Return the sources unchanged. Raises `InputError` for a single path, and for any value but a list of paths."""
    if isinstance(sources, str | os.PathLike) or not isinstance(sources, Iterable):
        raise InputError(f"a list of paths was expected, not {sources!r}: write [path]")
    return sources


def _is_book(path: Path) -> bool:
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".")]
        return bool(files) and all(map(_is_book, files))
    return path.name.removesuffix(".gz").endswith(BOOKS)


def _read_book(path: Path) -> Iterator[str]:
    return drop_thoughts_of_pieces(read_text_pieces(path))


def _read_records(
    source: str, column: str | None, prompt_column: str | None, split: str, chats: bool, left_out: LeftOut
) -> Iterator[AnyText]:
    for record in read_records(source, split=split):
        if record.error is not None:
            raise InputError(record.error)
        fields = record.fields
        if fields.get("status") == "error" or ("mes" in fields and _is_of_others(fields)):
            continue
        texts = _find_texts(record, column)
        if not texts or _is_of_others(fields):
            left_out[source, _REPLIES] += 1
            continue
        name = prompt_column or next((name for name in PROMPTS if fields.get(name) is not None), None)
        if prompt_column is not None and prompt_column not in fields:
            raise InputError(f"{record.place}: no column {prompt_column!r}; there are {_name_columns(record)}")
        prompt = fields.get("prompt")  # its end may open the thoughts
        for text in texts:
            if (turns := read_transcript(text)) and not chats:
                left_out[source, _TRANSCRIPTS] += 1
            elif turns:
                text = "\n\n".join(list_replies(turns))
            answer = drop_thoughts(text, prompt if isinstance(prompt, str) else "")
            if len(answer) < len(text):
                left_out[source, _THOUGHTS if answer.strip() else _ENDLESS] += 1
            yield Text(answer, None if name is None else str(fields[name]), record.place, fields)


def _find_texts(record: SourceRecord, column: str | None) -> list[str]:
    """Return the texts of a record: a single text, all texts of a list, or the last reply of a chat, if it has one."""
    name = find_column(record, column)
    value = record.fields[name]
    if (texts := _list_texts(value)) is not None and not _OF_CHATS.search(name):
        return texts
    if name not in COLUMNS or not isinstance(value, str):  # a response may be a text about chats
        try:
            if (turns := list_turns(value)) is not None:
                return [reply for reply in list_replies(turns) if reply.strip()][-1:]
        except InputError as reason:
            raise InputError(f"{record.place}: {reason}") from reason
    if value is not None and not isinstance(value, str):
        raise InputError(f"{record.place}: {name} contains {type(value).__name__}, not a text: correct the record")
    return [value or ""]


def find_column(record: SourceRecord, column: str | None) -> str:
    """Return the column of a record's texts, `column` if it is passed. Raises `InputError` if the record lacks it."""
    name = column or next((column_name for column_name in (*COLUMNS, *_CHATS) if column_name in record.fields), None)
    if name is None or name not in record.fields:
        columns = column or " or ".join(COLUMNS)
        raise InputError(
            f"{record.place}: no column {columns}; there are {_name_columns(record)}: "
            "name the column of the texts (--column)"
        )
    return name


def _is_of_others(fields: Mapping[str, Any]) -> bool:
    """Return whether a record is one message of another than the assistant, as in SillyTavern's or OpenAssistant's."""
    role = fields.get("role")
    is_role = isinstance(role, str) and find_role(role) in ("system", "user", "tool")
    return is_role or ("mes" in fields and bool(fields.get("is_user") or fields.get("is_system")))


def read_to_map(source: str, column: str | None) -> Iterator[tuple[dict[str, Any], str, list[tuple[str, Any]]]]:
    """Yield each record, the name of its column, and the texts that `map_texts` changes there, each with its prompt.

    Raises `InputError`, with path:line, for a record that is broken or has no text column.
    """
    for record in read_records(source):
        if record.error is not None:
            raise InputError(record.error)
        name, texts = find_column(record, column), list[tuple[str, Any]]()
        try:
            map_texts(record.fields, name, lambda *text, found=texts: str(found.append(text)))
        except InputError as reason:
            raise InputError(f"{record.place}: {reason}") from reason
        prompt = "" if name == "prompt" else record.fields.get("prompt") or ""
        yield record.fields, name, [(text, before or prompt) for text, before in texts]


def map_texts(fields: dict[str, Any], name: str, change: Callable[[str, Any], str]) -> dict[str, Any]:
    """Return a record with each text of a column changed, as `map_replies` does; a response is never read as a chat."""
    if _is_of_others(fields):
        return fields
    value = fields[name]
    is_response = name in COLUMNS and isinstance(value, str)
    return {**fields, name: change(value, "") if is_response else map_replies(value, change)}


def _list_texts(value: Any) -> list[str] | None:
    """Return all texts of a list of texts, or of nested lists of texts; None for any other value."""
    parts = (
        [[part] if isinstance(part, str) else _list_texts(part) for part in value] if isinstance(value, list) else []
    )
    return list(chain.from_iterable(part or () for part in parts)) if parts and None not in parts else None


def _name_columns(record: SourceRecord) -> str:
    return ", ".join(record.fields) or "none"


Half = Literal["made-from", "held-out"]
"""One half of the prompts; no prompt is in both."""


def hash_prompt(text: AnyText) -> int:
    """Return a hash of 62 bits of a text's prompt, or of the text itself if it has no prompt."""
    digest = blake2b(digest_size=8)
    parts = chain("t", cut(text)) if text.prompt is None else ("p", text.prompt)
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest(), "little") >> 2


def find_half(text: AnyText) -> Half:
    """Return which half a text's prompt belongs to, or the text itself if it has no prompt.

    >>> from antislop.files.texts import Text
    >>> find_half(Text("A cat sat.", "Write about a cat.", "texts.jsonl:1", {}))
    'held-out'
    """
    return "held-out" if hash_prompt(text) & 1 else "made-from"
