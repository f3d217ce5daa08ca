"""Prompts: texts that a model continues, made from the records of a source."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from string import Formatter
from typing import TYPE_CHECKING, Any

from antislop.display import describe_count
from antislop.errors import InputError
from antislop.files.chats import (
    Message,
    check_variables,
    join_parts,
    list_turns,
    put_system,
    read_chat,
    read_content,
    read_variables,
    render_chat,
)
from antislop.files.sources import SourceRecord, name_source, read_records

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COLUMNS = ("prompt", "messages", "conversations", "conversation")
SYSTEM = ("system", "system_prompt")
"""Columns of a chat's system message."""
KEYS = ("id", "prompt_id", "key")
FIRST_RECORDS = 100
"""How many of the first records are searched for the requested columns."""


@dataclass(frozen=True)
class Prompt:
    """One prompt, or the error of a record without one.

    key: identifies the record within its source: the value of its key column, or else the fingerprint of its text;
        "x#2" for the second record with the key "x".
    text: the text for the model to continue; "" if there is an error.
    messages: the chat from which the text was made, without final replies; None for plain prompts.
    fields: columns of the record, as JSON values.
    error: the reason why the record can't be used, in one sentence with the record's place; None if it can.
    has_special_tokens: whether the text has special tokens of a chat template: then tokenize it without adding any.
    variables: the values for the chat template's variables with which the text was made.
    """

    key: str
    text: str
    messages: list[Message] | None
    fields: dict[str, Any]
    error: str | None = None
    has_special_tokens: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)


def read_prompts(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any] | str],
    *,
    column: str | None = None,
    key: str | None = None,
    split: str = "train",
    template: str | None = None,
    system: str | None = None,
    chat: bool = False,
    limit: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Iterator[Prompt]:
    r"""Read prompts one by one, with a bounded part of the source in memory.

    source: the path of a file (.jsonl, .ndjson, .json, .csv, .tsv, .txt with a prompt on each line, these also as .gz;
        .parquet) or a folder of them; a data set of the hub, owner/name or owner/name:configuration; or records.
    column: name of the prompts' column; by default `prompt`, else `messages`, `conversations` or `conversation`, else
        that of the only one with text. A chat is rendered with the columns `system`, `tools`, `chat_template_kwargs`.
    key: column that identifies records; by default the keys of a JSON object of records, else `id`, `prompt_id` or
        `key`. Records without a key are identified by their text.
    split: the split to read of a data set of the hub or of a folder.
    template: a text with {prompt}, and optionally other columns in braces, to put around a plain prompt or the last
        message of a chat; literal braces are doubled.
    system: system message of every chat, instead of the record's own ("" for none); plain prompts become chats.
    chat: turn plain prompts into chats, as messages of a user.
    limit: number of records to read, broken ones included.
    tokenizer: its chat template turns chats into texts.
    chat_template_kwargs: variables of that template, such as enable_thinking; they override a record's variables.

    Replies at the end of a chat are left out. Raises `InputError` if there is no prompt at all.
    A broken or empty record becomes a `Prompt` with an error.

    >>> [prompt.text for prompt in read_prompts([{"prompt": "rain"}, {"prompt": "hail"}], template="On {prompt}:")]
    ['On rain:', 'On hail:']
    """
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise InputError(f"limit is {limit!r}; a number from 1 was expected: leave it out to read all (--limit)")
    parts = _parse_template(template)
    is_chat, variables = chat or system is not None, chat_template_kwargs or {}
    variables = variables if tokenizer is None else check_variables(variables, tokenizer)
    writer = _Writer(parts=parts, system=system, is_chat=is_chat, tokenizer=tokenizer, variables=variables)
    options_by_column = {name: "--prompt-template" for _, name in parts or [] if name is not None and name != "prompt"}
    options_by_column |= {name: option for name, option in [(column, "--column"), (key, "--key")] if name is not None}
    records = islice(read_records(source, split=split), limit)
    first_records = _look_ahead(records, options_by_column, has_column=column is not None)
    names = list(dict.fromkeys(name for record in first_records for name in record.fields))
    column = column or _only_text(first_records, names, {*KEYS, key}, source=name_source(source))
    for name, option in options_by_column.items():
        if names and name not in names:
            raise InputError(
                f"{name_source(source)}: no column {name!r}; the first records have {', '.join(names)}: name one of "
                f"them ({option})"
            )
    writer.check([value for record in first_records if (value := _find_prompt(record.fields, column)) is not None])
    return _make_prompts(chain(first_records, records), writer, column=column, key=key)


# -- columns ----------------------------------------------------------------------------------------------------------


def _look_ahead(
    records: Iterator[SourceRecord], options_by_column: Mapping[str, str], *, has_column: bool
) -> list[SourceRecord]:
    first_records: list[SourceRecord] = []
    for record in islice(records, FIRST_RECORDS):
        first_records.append(record)
        has_prompt = has_column or _find_prompt(record.fields, None) is not None
        if has_prompt and options_by_column.keys() <= record.fields.keys():
            break
    return first_records


def _only_text(
    first_records: list[SourceRecord], names: list[str], keys: set[str | None], *, source: str
) -> str | None:
    """Return the name of the only column with texts; None if a column is named as in `COLUMNS`, or without columns."""
    if not names or any(_find_prompt(record.fields, None) is not None for record in first_records):
        return None
    texts = {name for record in first_records for name, value in record.fields.items() if isinstance(value, str)} - keys
    if len(texts) == 1:
        return texts.pop()
    raise InputError(
        f"{source}: none of the columns {', '.join(names)} is named {', '.join(COLUMNS)}, and "
        f"{'several contain' if texts else 'none contains'} text: name the column of the prompts as column (--column)"
    )


def _find_prompt(fields: Mapping[str, Any], column: str | None) -> Any:
    if column is not None:
        return fields.get(column)
    return next((fields[name] for name in COLUMNS if fields.get(name) is not None), None)


# -- prompts ----------------------------------------------------------------------------------------------------------


def _make_prompts(
    records: Iterable[SourceRecord], writer: _Writer, *, column: str | None, key: str | None
) -> Iterator[Prompt]:
    uses: dict[str, int] = {}
    for record in records:
        record_key, text, messages, error = _find_key(record, key), "", None, record.error
        variables = writer.variables
        if error is None:
            try:
                value = _find_prompt(record.fields, column)
                if value is None:
                    raise InputError(f"no prompt: a column {column or ' or '.join(COLUMNS)} was expected")
                text, messages, variables = writer.write(value, record.fields)
            except InputError as reason:
                error = f"{record.place}: {reason}"
        name = record_key = record_key or (str(record.number) if error else fingerprint_text(text))
        while name in uses:  # a key's next uses are key#2, key#3, …
            uses[record_key] += 1
            name = f"{record_key}#{uses[record_key]}"
        uses[name] = 1
        has_special_tokens = messages is not None and writer.has_chat_template
        yield Prompt(name, text, messages, record.fields, error, has_special_tokens, variables)


def fingerprint_text(text: str) -> str:
    """Return a hash of a prompt's text, 16 hexadecimal digits.

    >>> fingerprint_text("The old house")
    'c38f25347a0ccef0'
    """
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _find_key(record: SourceRecord, column: str | None) -> str | None:
    if column is None and record.key is not None:
        return record.key
    values = [record.fields.get(name) for name in ([column] if column is not None else KEYS)]
    usable = [value for value in values if isinstance(value, (str, int)) and not isinstance(value, bool)]
    return next((str(value) for value in usable if str(value).strip()), None)


@dataclass(frozen=True)
class _Writer:
    parts: list[tuple[str, str | None]] | None
    system: str | None
    is_chat: bool
    tokenizer: PreTrainedTokenizerBase | None
    variables: Mapping[str, Any]

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def check(self, values: list[Any]) -> None:
        """Refuse chats that can't be turned into texts."""
        if self.has_chat_template:
            return
        why = "no tokenizer was passed" if self.tokenizer is None else "the model's tokenizer has no chat template"
        if self.is_chat:
            raise InputError(f"{why}, which system and chat need: leave these out (--system, --chat)")
        if any(isinstance(value, (list, Mapping)) for value in values) and self.parts is None:
            raise InputError(
                f"the prompts are chats, and {why}: pass a text around them as template (--prompt-template "
                "'… {prompt} …'), or a column that contains text (--column)"
            )

    def write(self, value: Any, fields: Mapping[str, Any]) -> tuple[str, list[Message] | None, Mapping[str, Any]]:
        """Return the text of a prompt, the chat from which it was made, and the variables of its template."""
        turns = list_turns(value)
        if turns is None and not isinstance(value, str):
            raise InputError(f"the prompt is {value!r}; a text, or a chat as a list of messages, was expected")
        if turns is None:
            if not value.strip():
                raise InputError("the prompt is empty: write one, or leave the record out")
            if not self.is_chat:
                return self._fill(value, fields), None, self.variables
            turns = [{"role": "user", "content": value}]
        messages = self._put_system(read_chat(turns, template=getattr(self.tokenizer, "chat_template", None)), fields)
        variables = {**read_variables(fields, self.tokenizer), **self.variables}
        if self.parts is not None:
            messages[-1] = {**messages[-1], "content": self._fill(join_parts(messages[-1]["content"]), fields)}
        if self.has_chat_template:
            assert self.tokenizer is not None
            return render_chat(messages, self.tokenizer, variables=variables), messages, variables
        if len(messages) > 1 or self.parts is None or variables.get("tools"):
            chat = describe_count(len(messages), "message") + (" with tools" if variables.get("tools") else "")
            raise InputError(f"{chat} can't be written without a chat template: use another model")
        return str(messages[-1]["content"]), messages, variables

    def _put_system(self, messages: list[Message], fields: Mapping[str, Any]) -> list[Message]:
        """Put a system message in front: `self.system`, else the text of a `SYSTEM` column that `parts` don't use."""
        if self.system is not None:
            return put_system(messages, self.system)
        named = {name for _, name in self.parts or []}
        column = next((name for name in SYSTEM if fields.get(name) and name not in named), None)
        if column is None:
            return messages
        system = read_content(fields[column], f"the column {column}")
        if [message["content"] for message in messages if message["role"] == "system"] not in ([], [system]):
            raise InputError(
                f"the column {column} has another text than the chat's system message: leave one out, or pass system "
                "(--system)"
            )
        return put_system(messages, system)

    def _fill(self, prompt: str, fields: Mapping[str, Any]) -> str:
        if self.parts is None:
            return prompt
        filled = ""
        for text, name in self.parts:
            value = "" if name is None else prompt if name == "prompt" else fields.get(name)
            if not isinstance(value, (str, int, float)):
                was = "nothing" if value is None else type(value).__name__
                raise InputError(
                    f"the template names {{{name}}}, and the record has {was} in that column: a text was expected"
                )
            filled += f"{text}{value}"
        return filled


def _parse_template(template: str | None) -> list[tuple[str, str | None]] | None:
    """Split a template: "On {prompt}:" becomes [("On ", "prompt"), (":", None)], texts with the columns after them."""
    if template is None:
        return None
    shown = template if len(template) < 60 else f"{template[:60]}…"
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"template {shown!r}: {error}: write literal braces twice, {{{{ and }}}}") from error
    for _, name, form, conversion in parts:
        if name is not None and (not name or form or conversion or set(name) & set(".[]")):
            raise InputError(
                f"template {shown!r}: braces contain the name of a column and nothing else: write {{prompt}}"
            )
    if "prompt" not in [name for _, name, _, _ in parts]:
        raise InputError(f"template {shown!r}: {{prompt}} is missing: write it at the place of the prompt")
    return [(text, name) for text, name, _, _ in parts]
