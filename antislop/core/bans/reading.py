"""What all formats of lists share: their interface, limits, entries, files and addresses.

An address is of a file on the Hugging Face hub, in a repository of data sets: hf://owner/name/file or
hf://owner/name@revision/file; without a file, it is `LIST`.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any, TypeAlias

import regex

from antislop.core.bans.bans import BAN_OPTIONS, KINDS, Ban, check_options
from antislop.core.bans.folding import Edges
from antislop.core.bans.marks import is_remark, names_replacements, refuse_signs, take_off_marks
from antislop.core.bans.patterns.incremental_regex import measure
from antislop.core.bans.patterns.pattern import find_options
from antislop.core.bans.patterns.phrase import Phrase, read_phrase
from antislop.core.bans.scopes import Regions, Scope
from antislop.errors import BanError, InputError, first_line
from antislop.files.disk import decode, open_bytes

Line: TypeAlias = "tuple[int, Ban | BanError]"
"""The number of the line on which a ban begins, and the ban or the reason why it is refused."""

MAX_CHARACTERS = 20_000_000
"""Characters of a whole list."""
MAX_ENTRIES = 500_000
"""Entries of a list."""
MAX_LENGTH = 100_000
"""Characters of an entry."""
MAX_DEPTH = 10
"""Levels of nested lists and groups."""
MAX_REGEXES = 10_000
"""Regexes of a list."""
MAX_WRITTEN_OUT = 2_000_000
"""Characters of all regexes of a list with their repetitions written out; compiled, each takes about 100 bytes."""
MAX_TIMED_OUT = 10
"""Regexes of a list that may time out when they are compiled."""

PHRASE_KEYS = ("phrase", "word", "ngram", "bigram", "trigram")
"""Keys for the phrase of an object."""
STRING_KEYS = ("text", "term", "string", "pattern", "ban", "keyword", "expression", "value")
"""More keys for the phrase, if their value is a string: any other value is not a phrase."""
COUNT_KEYS, WEIGHT_KEYS = ("count", "frequency"), ("weight", "factor")
"""Keys for the numbers of an object."""

TOKEN_IDS = regex.compile(r"\s*\[\s*\d+(?:\s*,\s*\d+)*\s*\],?\s*")
"""A line of token ids, such as [5, 17]."""

LIST = "bans.txt"
_PREFIX = regex.compile(r"hf:[/\\]+")  # a `Path` has one slash, or on Windows a backslash
_ADDRESS = regex.compile(r"(?:datasets/)?([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.+))?")


@dataclass(frozen=True)
class SentLimits:
    """What a request may bring to a server at most, since other requests wait while its list is compiled.

    entries: exempt phrases and ids too.
    characters: of an entry, unless it is a regex.
    regexes, regex_characters: how many of the entries, and the characters of one.
    written_out: characters of all regexes with their repetitions written out: 20 MB, compiled.
    size: bytes of all that the request brings.
    seconds: how long it waits for its list.
    """

    entries: int = 10_000
    characters: int = 256
    regexes: int = 100
    regex_characters: int = 1000
    written_out: int = 200_000
    size: int = 2**20
    seconds: float = 10.0

    def check(self, entries: int, phrases: Iterable[str], regexes: Sequence[str]) -> None:
        """Raise `BanError` for more than a request may bring. entries: how many it has of all kinds."""
        for size, limit, what in (
            (entries, self.entries, "bans and exempt phrases"),
            (len(regexes), self.regexes, "regexes"),
            (max(map(len, regexes), default=0), self.regex_characters, "characters in one regex"),
            (max(map(len, phrases), default=0), self.characters, "characters in one phrase"),
        ):
            if size > limit:
                raise BanError(
                    f"{size:,} {what} are too many for a request: at most {limit:,}, or a list of the server"
                )
        if (size := sum(measure(text).characters for text in regexes)) > self.written_out:
            raise BanError(
                f"{size:,} characters of regexes, with their repetitions written out, are too many for a request: at "
                f"most {self.written_out:,}, or a list of the server"
            )


SENT_LIMITS = SentLimits()


@dataclass(frozen=True)
class ListText:
    """The text of a list, and the properties by which its format is recognized.

    place: what messages call the list.
    suffix: of its file's name, in lower case.
    groups: names of the groups of an object that are bans, as the caller says.
    is_asked: whether the caller named the format.
    left_out: names of groups and texts beside those that are bans; parsing adds them.
    """

    text: str
    place: str = "<text>"
    suffix: str = ""
    groups: tuple[str, ...] = ()
    is_asked: bool = False
    left_out: list[str] = field(default_factory=list)

    @cached_property
    def lines(self) -> list[str]:
        """All but empty lines and comments."""
        return [line for _, line in self.numbered_lines]

    @cached_property
    def numbered_lines(self) -> list[tuple[int, str]]:
        lines = enumerate(self.text.split("\n"), start=1)
        return [(number, line) for number, line in lines if line.strip() and not line.lstrip().startswith("#")]

    @cached_property
    def unmarked(self) -> tuple[list[tuple[int, str | BanError]], tuple[str, ...]]:
        """The numbered lines without the marks that most of them have, and the names of these marks."""
        return take_off_marks(self.numbered_lines)

    @cached_property
    def is_json(self) -> bool:
        first, *others = self.text.strip().split("\n", 1)
        is_text = self.suffix == ".txt"
        if not first.startswith(("[", "{")) or ((others or is_text) and TOKEN_IDS.fullmatch(first)):
            return self.suffix == ".json"
        try:
            return not is_text or self.value is not None
        except BanError:
            return False

    @cached_property
    def are_json_lines(self) -> bool:
        """Whether the first of several lines is an object, or a phrase with a number; or the file's name says so."""
        if self.suffix in (".json", ".jsonl", ".ndjson"):
            return self.suffix != ".json"
        first, *others = self.text.strip().split("\n", 1)
        try:
            value = json.loads(first) if others else None
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) or is_pair(value)

    @cached_property
    def value(self) -> Any:
        """The JSON value of the text. Raises `BanError`."""
        try:
            value = json.loads(self.text)
        except (ValueError, RecursionError) as error:  # ValueError: not JSON, or a number of thousands of digits
            line = getattr(error, "lineno", 1)
            message = f"{self.place}:{line}: not JSON ({error}): correct it, or write one phrase per line"
            raise BanError(message) from error
        if isinstance(value, dict) and str(value.get("format")).startswith("antislop profile"):
            raise BanError(f"{self.place}:1: a profile, not a list: make a list of it with antislop bans-from")
        return value


def is_pair(value: Any) -> bool:
    """Return whether a value is a list of a phrase and a number."""
    is_two = isinstance(value, list) and len(value) == 2
    return is_two and isinstance(value[0], str) and isinstance(value[1], (int, float))


def attempt(line: int, make: Callable[..., Ban], phrase: Any, **options: Any) -> Line:
    """Return the ban of an entry, or the reason why it is refused."""
    try:
        if isinstance(phrase, str) and len(phrase) > MAX_LENGTH:
            raise BanError(f"{phrase[:40]!r}… has {len(phrase)} characters, more than {MAX_LENGTH}: shorten it")
        return line, make(phrase, **options)
    except BanError as error:
        return line, error


def are_counts(numbers: Iterable[Any]) -> bool:
    """Return whether numbers are counts, not weights: whole, and some above 1."""
    values = list(numbers)
    return all(type(value) is int and value >= 0 for value in values) and any(value > 1 for value in values)


def refuse_ones(numbers: Sequence[Any], text: ListText) -> None:
    """Raise `BanError` for numbers without a name that say whether a phrase is in the list, not how much is kept."""
    if not text.is_asked and 1 in numbers and {*numbers} <= {0, 1}:
        raise BanError(
            f"{text.place}:1: a number is 1, as a weight it bans nothing: write the phrases alone, as one list, or "
            'pass format="counts"'
        )


def make_phrase(text: Any, *, edges: Edges, options: Mapping[str, Any]) -> Ban:
    """Return the ban of a phrase as people write it: `*` is a wildcard."""
    refuse_signs(text)
    return make_ban(text, options=options, edges=edges)


def to_words(text: Any, **options: Any) -> Ban:
    """Return the ban of an n-gram from which stop words were left out."""
    return Ban.words(text.split(), skip_stop_words=True, **options) if isinstance(text, str) else Ban(text)


def names_kind(entry: object) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("kind"), str) and entry["kind"] in KINDS


def find_phrase_key(entry: Mapping[str, Any]) -> str:
    """Return the key of an object's phrase or regex; an empty string if there is none."""
    if isinstance(entry.get("regex"), str):
        return "regex"
    strings = (name for name in STRING_KEYS if isinstance(entry.get(name), str))
    return next((name for name in PHRASE_KEYS if name in entry), next(strings, ""))


def read_object(line: int, entry: Mapping[str, Any], edges: Edges, *, kind: str | None = None) -> Line:
    """Return the ban of an object.

    kind: of an object that names none; "words" is an n-gram without stop words.
    """
    name = find_phrase_key(entry)
    if names_kind(entry):
        options = {key: value for key, value in entry.items() if key not in ("kind", name)}
        return attempt(line, make_ban, entry.get(name, ""), kind=entry["kind"], options=options, edges=edges)
    text, options = entry[name], {}
    for key, value in entry.items():
        if key in COUNT_KEYS:
            is_count = type(value) is int and value >= 0
            options |= {"count": value} if is_count and "count" not in options else {}
        elif key in WEIGHT_KEYS or key in list_keys():
            options |= {"weight" if key in WEIGHT_KEYS else key: value} if value is not None else {}
        elif key not in (name, "kind") and not (key == "regex" and isinstance(value, bool)) and not is_remark(key):
            advice = "name it weight, count, or as another option is, or leave it out"
            return line, BanError(f"the key {key[:40]!r} of {str(text)[:80]!r} is unknown: {advice}")
    if name == "regex" or entry.get("regex") is True or kind == "regex":
        return attempt(line, make_ban, text, kind="regex", options=options, edges=edges)
    if "gram" in name or kind == "words":
        return attempt(line, to_words, text, **options)
    return attempt(line, make_phrase, text, edges=edges, options=options)


def says_more(entry: Mapping[str, Any]) -> bool:
    """Return whether an object without a phrase says its number, an option of its ban, or what to write instead."""
    known = {key: key in (*COUNT_KEYS, *WEIGHT_KEYS) or key in list_keys() or names_replacements(key) for key in entry}
    return any(known.values()) and all(is_known or is_remark(key) for key, is_known in known.items())


@cache
def list_keys() -> frozenset[str]:
    """Return the names of all options of all kinds, as objects and columns have them."""
    return frozenset((*BAN_OPTIONS, *(option.name for kind in KINDS.values() for option in find_options(kind))))


def make_ban(text: Any, *, kind: str | None = None, options: Mapping[str, Any], edges: Edges) -> Ban:
    """Return the ban of an entry.

    kind: None for a phrase as people write it.
    options: of the pattern and the ban; a scope is [where, span].
    edges: of a phrase that names none.
    """
    rules = {name: value for name, value in options.items() if name in BAN_OPTIONS}
    of_pattern = {name: value for name, value in options.items() if name not in BAN_OPTIONS}
    for name in ("exempt", "scopes"):
        if not isinstance(rules.get(name, []), list):
            raise BanError(f"{name} of {text!r} is {rules[name]!r}; a list was expected: write it in brackets")
    if "scopes" in rules:
        rules["scopes"] = [_read_scope(scope, text) for scope in rules["scopes"]]
    pattern_kind, text = read_phrase(text) if kind is None else (KINDS[kind], text)
    if pattern_kind is Phrase:
        of_pattern.setdefault("edges", edges)
    check_options(pattern_kind, text, of_pattern)
    pattern = pattern_kind(text, **of_pattern)  # type: ignore[call-arg]  # the fields of the subclass
    if text and pattern.text != text:  # the text of a loop or a repeat says its options, too
        raise BanError(f"{text!r} has the options of {pattern.text!r}: correct the text, or the options")
    return Ban(pattern, **rules)


def read_sent_ban(entry: object) -> Ban:
    """Return the ban of a request: a phrase as people write it, or an object with a text, a kind and options."""
    if not (isinstance(entry, Mapping) and "text" in entry):
        return make_ban(entry, options={}, edges="word")
    options = {name: value for name, value in entry.items() if name not in ("text", "kind")}
    if entry.get("kind") is not None and not names_kind(entry):
        raise BanError(f"the kind of {entry['text']!r} is {entry['kind']!r}; it is one of {', '.join(KINDS)}")
    ban = make_ban(entry["text"], kind=entry.get("kind"), options=options, edges="word")
    if any(isinstance(scope.span, Regions) for scope in ban.scopes):
        raise BanError(f"a scope of {ban.text!r} has regexes, which only the engine's own list may have")
    return ban


def _read_scope(value: Any, text: object) -> Scope:
    where, span = value if isinstance(value, list) and len(value) == 2 else (None, None)
    try:
        if isinstance(span, list):  # three are regions of a chat message, two a pair of delimiters
            span = Regions.read(*span) if len(span) == 3 else tuple(span)
    except (ValueError, TypeError, regex.error) as error:
        raise BanError(f"scopes of {text!r}: the regions of a scope can't be read: {error}") from None
    try:
        return Scope(where, span if isinstance(span, tuple) else str(span))  # type: ignore[arg-type]
    except ValueError as error:
        raise BanError(f"scopes of {text!r}: {error}") from None


# -- files ------------------------------------------------------------------------------------------------------------


def read_text(source: str | os.PathLike[str] | IO[str] | IO[bytes]) -> tuple[str, str]:
    """Return the name and the text of a file, an open one, or an address of the hub. Line ends become line feeds."""
    is_open = callable(getattr(source, "read", None))
    if not (is_open or isinstance(source, (str, os.PathLike))):
        raise BanError(f"a path or an open text file was expected, not {source!r}: write BanList([…]) for phrases")
    name = getattr(source, "name", None) if is_open else os.fsdecode(source)  # type: ignore[arg-type]
    place = name if isinstance(name, str) else "<text>"
    try:
        with nullcontext(source) if is_open else open_bytes(download(place) if is_address(place) else place) as file:
            content = _read_file(file, place)
        text = decode(content, place) if isinstance(content, bytes) else content.removeprefix("\ufeff")
    except BanError:
        raise
    except InputError as error:
        raise BanError(str(error)) from error
    except UnicodeDecodeError as error:
        raise BanError(f"{place}:1: not {error.encoding} ({error.reason}): open it with its encoding") from error
    except (OSError, ValueError, EOFError, zlib.error) as error:  # ValueError: a closed file, a path with a null
        reason = getattr(error, "strerror", None) or error
        raise BanError(f"{place}: can't be read ({reason}): give the path of a text or JSON file") from error
    return place, text.replace("\r\n", "\n").replace("\r", "\n")


def _read_file(file: Any, place: str) -> str | bytes:
    pieces: list[Any] = []
    size = 0
    while piece := file.read(MAX_CHARACTERS + 1 - size):
        if not isinstance(piece, type(pieces[0]) if pieces else (str, bytes)):
            raise BanError(f"{place}: an open text file was expected, not {file!r}: give a path, or open(path)")
        pieces.append(piece)
        size += len(piece)
        if size > MAX_CHARACTERS:
            raise BanError(f"{place}: longer than {MAX_CHARACTERS} characters: split the list")
    return b"".join(pieces) if pieces and isinstance(pieces[0], bytes) else "".join(pieces)


# -- addresses on the hub ---------------------------------------------------------------------------------------------


def is_address(source: str) -> bool:
    return _PREFIX.match(source) is not None


def parse_address(source: str) -> tuple[str, str | None, str]:
    """Return the repository, the revision (a commit, branch or tag; None is the newest) and the file of an address.

    >>> parse_address("hf://me/slop@v1/lists/mine.txt")
    ('me/slop', 'v1', 'lists/mine.txt')
    """
    match = _ADDRESS.fullmatch(_PREFIX.sub("", source, count=1).replace("\\", "/"))
    if match is None:
        raise BanError(f"{source}: the address of a list on the hub was expected: write hf://owner/name/file")
    return match[1], match[2], match[3] or LIST


def download(source: str) -> Path:
    """Return the path of a list in the cache of huggingface_hub."""
    repo, revision, name = parse_address(source)
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(repo, name, revision=revision, repo_type="dataset"))
    except ModuleNotFoundError:
        raise BanError(f"{source}: lists of the hub need the package huggingface_hub: pip install it") from None
    except Exception as error:  # names, logins and networks fail with many types of errors
        raise BanError(
            f"{source}: can't be downloaded ({first_line(error)}): check the name, the network, and for a private "
            "repository hf auth login"
        ) from error
