"""Make a `Ban` of an entry of a list: a phrase with options, a JSON object with a phrase, or an entry of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeAlias

import regex

from antislop.core.bans.bans import BAN_OPTIONS, KINDS, Ban, check_options
from antislop.core.bans.folding import Edges
from antislop.core.bans.patterns.pattern import DOTTED, find_options
from antislop.core.bans.patterns.phrase import Phrase, read_phrase
from antislop.core.bans.scopes import Regions, Scope
from antislop.errors import BanError
from antislop.lists.limits import MAX_LENGTH
from antislop.lists.signs import is_remark, names_replacements, refuse_signs

Line: TypeAlias = "tuple[int, Ban | BanError]"
"""(number of the line on which an entry begins; the ban, or the error that says why the entry is refused)."""

PHRASE_KEYS = ("phrase", "word", "ngram", "bigram", "trigram")
"""Keys under which an object may have its phrase."""
STRING_KEYS = ("text", "term", "string", "pattern", "ban", "keyword", "expression", "value")
"""More keys under which an object may have its phrase, but only if the value is a string."""
COUNT_KEYS, WEIGHT_KEYS = ("count", "frequency"), ("weight", "factor")
"""Keys under which an object may have its count and its weight."""


def is_pair(value: Any) -> bool:
    """Return whether a value is a list of a phrase and a number."""
    is_two = isinstance(value, list) and len(value) == 2
    return is_two and isinstance(value[0], str) and isinstance(value[1], (int, float))


def attempt(line: int, make: Callable[..., Ban], phrase: Any, **options: Any) -> Line:
    """Return the line with the ban that `make` makes of a phrase, or with the error that it raises."""
    try:
        if isinstance(phrase, str) and len(phrase) > MAX_LENGTH:
            raise BanError(f"{phrase[:40]!r}… has {len(phrase)} characters, more than {MAX_LENGTH}: shorten it")
        return line, make(phrase, **options)
    except BanError as error:
        return line, error


def are_counts(numbers: Iterable[Any]) -> bool:
    """Return whether numbers are counts and not weights: all are whole, and at least one is above 1."""
    values = list(numbers)
    return all(type(value) is int and value >= 0 for value in values) and any(value > 1 for value in values)


def make_phrase(text: Any, *, edges: Edges, options: Mapping[str, Any]) -> Ban:
    """Return the ban of a phrase as people write it, in which `*` is a wildcard."""
    refuse_signs(text)
    return make_ban(text, options=options, edges=edges)


def to_words(text: Any, **options: Any) -> Ban:
    """Return the ban of an n-gram from which stop words were left out."""
    return Ban.words(text.split(), skip_stop_words=True, **options) if isinstance(text, str) else Ban(text)


def names_kind(entry: object) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("kind"), str) and entry["kind"] in KINDS


def find_phrase_key(entry: Mapping[str, Any]) -> str:
    """Return the key under which an object has its phrase or regex; an empty string if it has none."""
    if isinstance(entry.get("regex"), str):
        return "regex"
    strings = (name for name in STRING_KEYS if isinstance(entry.get(name), str))
    return next((name for name in PHRASE_KEYS if name in entry), next(strings, ""))


def read_object(line: int, entry: Mapping[str, Any], edges: Edges, *, kind: str | None = None) -> Line:
    """Return the ban of a JSON object.

    kind: the kind of ban if the object names none; "words" is for n-grams from which stop words were left out.
    """
    name = find_phrase_key(entry)
    if names_kind(entry):
        options = {key: value for key, value in entry.items() if key not in ("kind", name)}
        return attempt(line, make_ban, entry.get(name, ""), kind=entry["kind"], options=options, edges=edges)
    text, options, known = entry[name], {}, list_defaults(tuple(KINDS))
    is_language = entry.get("language") in DOTTED and "regex" not in (kind, *entry)  # else the key is a remark
    for key, value in entry.items():
        if key in COUNT_KEYS:
            is_count = type(value) is int and value >= 0
            options |= {"count": value} if is_count and "count" not in options else {}
        elif key in WEIGHT_KEYS or (key in known and (key != "language" or is_language)):
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
    """Return whether an object describes a phrase that stands elsewhere: by a number, an option, or a replacement."""
    names = {*COUNT_KEYS, *WEIGHT_KEYS, *list_defaults(tuple(KINDS))}
    known = {key: key in names or names_replacements(key) for key in entry}
    return any(known.values()) and all(is_known or is_remark(key) for key, is_known in known.items())


@cache
def list_defaults(kinds: tuple[str, ...]) -> dict[str, Any]:
    """Return the default of each option that bans of these kinds have, by the name that lists use for the option."""
    return {option.name: option.default for name in kinds for option in find_options(KINDS[name])} | BAN_OPTIONS


def make_ban(
    text: Any, *, kind: str | None = None, options: Mapping[str, Any], edges: Edges, language: str = ""
) -> Ban:
    """Return the ban of an entry.

    kind: the kind of pattern; None for a phrase as people write it, in which `*` is a wildcard.
    options: options of the pattern and the ban; a scope is written [where, span].
    edges, language: those of a phrase whose options have none.
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
    if language and "language" in list_defaults((pattern_kind.kind,)):
        of_pattern.setdefault("language", language)
    check_options(pattern_kind, text, of_pattern)
    pattern = pattern_kind(text, **of_pattern)  # type: ignore[call-arg]  # the fields of the subclass
    if text and pattern.text != text:  # the text of a loop or a repeat says its options, too
        raise BanError(f"{text!r} has the options of {pattern.text!r}: correct the text, or the options")
    return Ban(pattern, **rules)


def read_sent_ban(entry: object) -> Ban:
    """Return the ban of a request's entry: a phrase as people write it, or an object with text, kind and options."""
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
        if isinstance(span, list):  # three items are the fields of `Regions`; two are a pair of delimiters
            span = Regions.read(*span) if len(span) == 3 else tuple(span)
    except (ValueError, TypeError, regex.error) as error:
        raise BanError(f"scopes of {text!r}: the regions of a scope can't be read: {error}") from None
    try:
        return Scope(where, span if isinstance(span, tuple) else str(span))  # type: ignore[arg-type]
    except ValueError as error:
        raise BanError(f"scopes of {text!r}: {error}") from None
