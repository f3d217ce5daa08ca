"""Fit JSON schemas to an engine: rewrite a schema so that the engine follows each keyword, or refuse the keyword.

xgrammar ignores keywords that it can't follow, mostly without a message. So only keywords that it was measured to
follow (releases 0.2.8 and 0.2.9) are let through. llguidance itself refuses others, except for the few cases here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from antislop.errors import InputError
from antislop.files.disk import read_text

GrammarEngine = Literal["llguidance", "xgrammar"]
Schema = dict[str, Any]

DEPTH = 60
"""Maximum depth of nested schemas: with more, xgrammar gets slow, and llguidance reads only 128 levels of JSON."""

_KEYWORDS: dict[str, Any] = yaml.safe_load(read_text(Path(__file__).with_name("keywords.yaml")))
_FORMATS, _READ_ALONE, _UNREAD, _IN_PLACE, _BY_KEY, _WITHIN = (
    tuple(_KEYWORDS[name]) for name in ("formats", "read_alone", "unread", "in_place", "by_key", "within")
)
_OF_TYPE: dict[str, list[str]] = _KEYWORDS["of_type"]
_CONSTRAINTS = {"type", *_READ_ALONE, *_UNREAD}.union(*_OF_TYPE.values())
_KINDS = {"object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float)}
_KINDS["string or array"] = (str, list)
_VALUES = {keyword: _KINDS[kind] for kind, keywords in _KEYWORDS["values"].items() for keyword in keywords}
_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}


class GrammarError(InputError):
    """Raised for a schema or grammar that an engine can't compile.

    line: the line of the error in the schema or grammar; None if the engine does not tell it.
    """

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def fit_schema(text: str, engine: GrammarEngine) -> str:
    """Rewrite a JSON schema so that an engine follows all of it; raise `GrammarError` if the engine would not."""

    def read_integer(digits: str) -> int:
        if len(digits) > 20 or abs(int(digits)) >= 2 ** (53 if engine == "llguidance" else 63):
            raise GrammarError(f"{engine} rounds the number {digits[:40]} of the schema: leave it out")
        return int(digits)

    try:
        root = json.loads(text, parse_int=read_integer)
    except json.JSONDecodeError as error:
        raise GrammarError(f"a JSON schema was expected, and this is not JSON: {error}", line=error.lineno) from error
    except RecursionError as error:
        raise GrammarError(f"the schema nests deeper than {DEPTH} levels") from error
    pending: list[tuple[Any, str, int, tuple[int, ...]]] = [(root, "#", 0, ())]
    seen: set[int] = set()
    while pending:
        schema, place, depth, holders = pending.pop()
        if id(schema) in holders:
            raise GrammarError(f"{place} of the schema leads back to itself, which {engine} does not follow")
        if id(schema) in seen or not isinstance(schema, dict):
            continue
        seen.add(id(schema))
        if depth > DEPTH:
            raise GrammarError(f"the schema nests deeper than {DEPTH} levels")
        if isinstance(schema.get("format"), str) and schema["format"] not in _FORMATS:
            del schema["format"]
        if problem := _find_doubt(schema) if engine == "llguidance" else _fit_to_xgrammar(schema, root, len(seen)):
            other = "" if engine == "llguidance" else "use engine='llguidance', or "
            raise GrammarError(f"{engine} does not follow {problem}, at {place} of the schema: {other}leave it out")
        inner = (*holders, id(schema))
        pending.append((_resolve(schema.get("$ref"), root), str(schema.get("$ref")), 0, inner))
        for keyword, key, part in _find_parts(schema):
            if engine == "llguidance" or keyword not in ("$defs", "definitions"):  # these once something refers to them
                pending.append((part, f"{place}/{keyword}{key}", depth + 1, inner if keyword in _IN_PLACE else ()))
    return json.dumps(root)


def _find_parts(schema: Schema) -> Iterator[tuple[str, str, Any]]:
    """Yield (keyword, place under it, such as "/name", schema) for each schema directly within a schema."""
    for keyword, value in schema.items():
        if keyword in _BY_KEY and isinstance(value, dict):
            yield from ((keyword, f"/{key}", part) for key, part in value.items())
        elif keyword in _WITHIN and isinstance(value, list):
            yield from ((keyword, f"/{number}", part) for number, part in enumerate(value))
        elif keyword in _WITHIN:
            yield keyword, "", value


def _resolve(reference: Any, root: Any) -> Any:
    """Return what a reference such as "#/$defs/a" names in the schema `root`; None for references of other forms."""
    if not isinstance(reference, str) or not re.fullmatch(r"#(/[^/~%]+)*", reference):
        return None
    part = root
    for name in reference.split("/")[1:]:
        part = part.get(name) if isinstance(part, dict) else None
    return part


def _find_doubt(schema: Schema) -> str | None:
    if "x-guidance" in schema:
        return "schemas with 'x-guidance', which may switch its checks off"
    if schema.get("minProperties", 0) not in (0, 1) and schema.get("additionalProperties") is not False:
        return "'minProperties' where a key may be written twice"
    return None


def _fit_to_xgrammar(schema: Schema, root: Any, number: int) -> str | None:
    """Rewrite a schema, but not schemas within it; return what xgrammar does not follow, or None if it follows all."""
    for keyword, kinds in _VALUES.items():
        if keyword in schema and type(schema[keyword]) not in kinds:
            return f"{keyword!r} of {schema[keyword]!r}"
    if "$id" in schema and schema is not root:
        return "'$id' within a schema"
    constraints = [keyword for keyword in schema if keyword in _CONSTRAINTS]
    if schema.keys() & {"properties", "const", "enum"}:
        # Without a number, xgrammar confuses two schemas that differ only below a key named "title", "default", ….
        schema["x-number"] = number
    given = schema.get("type", [])
    types = [name for name in _OF_TYPE if name in ([given] if isinstance(given, str) else given)]
    if first := next((keyword for keyword in _READ_ALONE if keyword in schema), None):
        beside = [keyword for keyword in constraints if keyword != first]
        values = [schema["const"]] if first == "const" else schema.get("enum", [])
        if beside == ["type"] and first in ("const", "enum") and all(_has_type(value, types) for value in values):
            return None
        if beside:
            return f"{beside[0]!r} beside {first!r}"
        if first == "$ref":
            return None if _resolve(schema["$ref"], root) is not None else f"'$ref' to {schema['$ref']!r}"
        if first == "oneOf":
            return "'oneOf' (write 'anyOf' if no value fits two of its schemas)"
        return "'allOf' of several schemas" if first == "allOf" and len(schema["allOf"]) != 1 else None
    if unread := next((keyword for keyword in constraints if keyword in _UNREAD), None):
        return repr(unread)
    if "type" not in schema and constraints:
        types = [next(name for name in _OF_TYPE if set(constraints) & set(_OF_TYPE[name]))]
        schema["type"] = types[0]  # from some keywords, xgrammar does not infer the type, and allows any value
    if "array" in types and ("unevaluatedItems" in schema or not schema.get("prefixItems")):
        schema.setdefault("items", schema.pop("unevaluatedItems", True))  # without it, xgrammar allows no other items
    problem = _fit_object(schema) if "object" in types else None
    problem = problem or (_fit_string(schema) if "string" in types else None)
    return problem or (_find_bound(schema, types) if {"number", "integer"} & set(types) else None)


def _has_type(value: Any, types: Sequence[str]) -> bool:
    is_whole = type(value) in (int, float) and float(value).is_integer()
    return _TYPES.get(type(value), "number") in types or (is_whole and "integer" in types)


def _fit_object(schema: Schema) -> str | None:
    named = [keyword for keyword in ("properties", "patternProperties", "propertyNames") if schema.get(keyword)]
    if len(named) > 1:
        return f"{named[1]!r} beside {named[0]!r}"
    names = schema.get("properties", {})
    if unnamed := [name for name in schema.get("required", []) if not (isinstance(name, str) and name in names)]:
        return f"'required' for {unnamed[0]!r}, which 'properties' lacks"
    others = schema.pop("additionalProperties", schema.pop("unevaluatedProperties", True))
    schema["additionalProperties"] = others  # "unevaluatedProperties" has an effect only without the other keyword
    if named and named[0] != "propertyNames":
        if isinstance(others, dict) and others:
            return f"keys other than those of {named[0]!r}"
        schema["additionalProperties"] = False  # another key could be a named key, with a letter written as an escape
    if not names and schema.get("minProperties", 0) > 1:
        return "'minProperties' where a key may be written twice"
    if "patternProperties" in schema:
        patterns = {_anchor(pattern): part for pattern, part in schema["patternProperties"].items()}
        schema["patternProperties"] = patterns
        if len(patterns) > 1 or None in patterns:
            return "these 'patternProperties'"
    if schema["additionalProperties"] is False:
        schema.pop("propertyNames", None)  # no keys are allowed; beside this keyword, xgrammar would allow some
    if "propertyNames" in schema:
        of_key = schema["propertyNames"]
        if not isinstance(of_key, dict) or of_key.get("type", "string") != "string" or {*_READ_ALONE} & of_key.keys():
            return "'propertyNames' with more than a length or a pattern"
        of_key["type"] = "string"
    return None


def _fit_string(schema: Schema) -> str | None:
    if "format" in schema and schema.get("minLength", 2) < 2:
        del schema["minLength"]  # each text of these formats has at least one character
    given = [keyword for keyword in _OF_TYPE["string"] if keyword in schema]
    if len(given) > 1 and given != ["minLength", "maxLength"]:
        return f"{given[-1]!r} beside {given[0]!r}"
    if "pattern" in schema:
        pattern = _anchor(schema["pattern"])
        if pattern is None:
            return f"the pattern {schema['pattern']!r}"
        schema["pattern"] = pattern
    elif given and given != ["format"]:  # for a length, xgrammar would allow control characters, which JSON does not
        schema["pattern"] = f"^{_ANY}{{{schema.pop('minLength', 0)},{schema.pop('maxLength', '')}}}$"
    return None


def _find_bound(schema: Schema, types: Sequence[str]) -> str | None:
    bounds = [schema[keyword] for keyword in _OF_TYPE["number"][:-1] if keyword in schema]
    if "number" in types and any(abs(bound) >= 1e15 or round(bound, 6) != bound for bound in bounds):
        return "a bound of more than 15 digits, or more than 6 after the point"
    step = schema.get("multipleOf")
    if step is not None and ("number" in types or bounds or type(step) is not int or step > 1024):
        return "'multipleOf', but alone, for integers, and up to 1,024"
    return None


# -- patterns ----------------------------------------------------------------------------------------------------------

# Characters that no JSON string has unescaped, and surrogates, which xgrammar writes as bytes that are not UTF-8. The
# last character is not written as an escape: so xgrammar builds no automaton, which takes seconds for {0,2000}.
_NEVER = '"\\\\\\x00-\\x1f\\ud800-\\udfff\x7f'
_ANY = f"[^{_NEVER}]"
_SETS = {"d": [(0x30, 0x39)], "w": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)], "s": [(0x20, 0x20)]}
_BEYOND = {  # characters that belong to \d, \w and \s in some dialects of regexes only
    "d": [(0x80, 0x10FFFF)],
    "w": [(0x80, 0x10FFFF)],
    "s": [(0x80, 0xA0), (0x1680, 0x1680), (0x2000, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)],
}
_CONTROLS = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\f": "\f", "\\v": "\v"}
_MEMBER = re.compile(r"\\(?P<set>[dws])|(?P<low>\\[nrtfv]|\\[^\w\s]|[^\\])(?:-(?P<high>\\[^\w\s]|[^\\]))?")
_TOKEN = re.compile(
    r"(?P<first>\A\^)|(?P<last>\$\Z)|(?P<any>\.)|\\(?P<set>[dwsDWS])|\\(?P<escaped>[^\w\s\"\\])"
    r"|\[(?P<negation>\^?)(?P<members>(?:\\[dwsnrtfv]|\\[^\w\s]|[^\\\[\]])+)\]"
    r"|(?P<kept>\((?!\?)|\(\?:|[)|]|(?:[*+?]|\{\d+(?:,\d*)?\})\??(?![*+?{])|[^\\\"^$.|?*+()\[\]{}\x00-\x1f])"
)


def _anchor(pattern: str) -> str | None:
    """Return an anchored regex for whole strings that have a match of a pattern; None if xgrammar may misread it."""
    pieces, tokens = [], list(_TOKEN.finditer(pattern))
    if "".join(token[0] for token in tokens) != pattern:
        return None
    for token in tokens:
        if members := token["members"] or (token["set"] and f"\\{token['set'].lower()}"):
            is_negated = bool(token["negation"]) or (token["set"] or "").isupper()
            pieces.append(_write_set(members, is_negated=is_negated))
        elif token["escaped"]:
            pieces.append(f"[\\x{ord(token['escaped']):02x}]")
        else:
            pieces.append(_ANY if token["any"] else token["kept"] or "")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None
    if "[]" in pieces:
        return None
    before = "" if tokens and tokens[0]["first"] else f"{_ANY}*"
    after = "" if tokens and tokens[-1]["last"] else f"{_ANY}*"
    whole = "".join(pieces)
    return f"^{before}{whole and f'(?:{whole})'}{after}$"


def _write_set(members: str, *, is_negated: bool) -> str:
    """Return a character set for xgrammar that allows only characters which all dialects of regexes allow there."""
    ranges = []
    for member in _MEMBER.finditer(members):
        if name := member["set"]:
            ranges += [*_SETS[name], *(_BEYOND[name] if is_negated else [])]
        else:
            low, high = (_CONTROLS.get(end, end[-1]) for end in (member["low"], member["high"] or member["low"]))
            ranges.append((ord(low), ord(high)))
    if not is_negated:
        free = [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF)]
        ranges = [(max(a, low), min(b, high)) for a, b in ranges for low, high in free if max(a, low) <= min(b, high)]
    ends = ((f"\\x{code:02x}" if code < 0x80 else chr(code) for code in pair) for pair in ranges)
    return f"[{f'^{_NEVER}' if is_negated else ''}{''.join('-'.join(pair) for pair in ends)}]"
