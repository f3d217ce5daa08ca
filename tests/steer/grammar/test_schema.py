"""JSON schemas are followed to the letter or refused by a keyword's name; the `jsonschema` package judges."""

from __future__ import annotations

import datetime
import ipaddress
import json
import pathlib
import random
import uuid
from collections.abc import Iterator
from functools import cache
from typing import Any

import pydantic
import pytest
import torch
from jsonschema import Draft202012Validator, SchemaError

import antislop
from antislop.errors import InputError
from antislop.steer import Grammar
from tests.support.depth import sample_size

TOKENIZER = antislop.tiny_model()[1]
WHOLE, TEXT = {"type": "integer"}, {"type": "string"}
BOTH = {"a": WHOLE, "b": TEXT}

KEYWORDS: list[tuple[str, Any, str, str]] = [
    # keyword, schema, what xgrammar and llguidance name in their refusals ("" if they follow)
    ("type", {"type": ["integer", "null"]}, "", ""),
    ("const", {"const": {"title": ["é/", 1.5, None]}}, "", ""),
    ("enum", {"enum": ['a\n"', 2, {"default": 1}]}, "", ""),
    ("enum beside type", {"type": "string", "enum": ["a", 1]}, "'type' beside 'enum'", ""),
    ("multipleOf", {"type": "integer", "multipleOf": 7}, "", ""),
    ("multipleOf of numbers", {"type": "number", "multipleOf": 0.5}, "'multipleOf'", ""),
    ("multipleOf and minimum", {"type": "integer", "multipleOf": 7, "minimum": 3}, "'multipleOf'", ""),
    ("minimum", {"type": "number", "minimum": -1.5, "maximum": 120}, "", ""),
    ("minimum without type", {"minimum": 3}, "", ""),
    ("minimum of 7 places", {"type": "number", "minimum": 0.0000001, "maximum": 0.0000002}, "a bound", ""),
    ("exclusiveMinimum", {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 25}, "", ""),
    ("maxLength", {"type": "string", "minLength": 2, "maxLength": 4}, "", ""),
    ("pattern", {"type": "string", "pattern": r"^[^\s\d]{1,3}@\w{2,5}\.[a-z]$"}, "", ""),
    ("pattern of a part", {"type": "string", "pattern": "(ab|c)..?$|^c"}, "the pattern", ""),
    ("pattern of a beginning", {"type": "string", "pattern": "^ab."}, "", ""),
    ("pattern of any", {"type": "string", "pattern": "^.{2,9}é[ -~]$"}, "", ""),
    ("pattern that looks ahead", {"type": "string", "pattern": "^(?=ab)a.$"}, "the pattern", "can't compile it"),
    ("pattern with a quote", {"type": "string", "pattern": '^a"b$'}, "the pattern", ""),
    (
        "pattern and maxLength",
        {"type": "string", "pattern": "^[ab]+$", "maxLength": 3},
        "'pattern' beside 'maxLength'",
        "",
    ),
    ("format", {"type": "string", "format": "date"}, "", ""),
    ("format and maxLength", {"type": "string", "format": "email", "maxLength": 9}, "'format' beside 'maxLength'", ""),
    ("contentMediaType", {"type": "string", "contentMediaType": "text/html", "contentEncoding": "base64"}, "", ""),
    ("items", {"type": "array", "items": WHOLE, "minItems": 1, "maxItems": 3}, "", ""),
    ("maxItems", {"type": "array", "maxItems": 2}, "", ""),
    ("prefixItems", {"type": "array", "prefixItems": [WHOLE, TEXT], "minItems": 2}, "", ""),
    ("prefixItems and items", {"type": "array", "prefixItems": [WHOLE], "items": {"type": "boolean"}}, "", ""),
    ("unevaluatedItems", {"type": "array", "prefixItems": [WHOLE], "unevaluatedItems": TEXT}, "", "unevaluatedItems"),
    ("uniqueItems", {"type": "array", "items": WHOLE, "uniqueItems": True}, "'uniqueItems'", "uniqueItems"),
    ("contains", {"type": "array", "items": WHOLE, "contains": {"const": 1}}, "'contains'", "contains"),
    ("minContains", {"type": "array", "contains": WHOLE, "minContains": 2}, "'contains'", "minContains"),
    ("maxContains", {"type": "array", "contains": WHOLE, "maxContains": 2}, "'contains'", "maxContains"),
    ("properties", {"type": "object", "properties": BOTH}, "", ""),
    ("required", {"type": "object", "properties": BOTH, "required": ["b"]}, "", ""),
    ("required alone", {"type": "object", "required": ["b"]}, "'required' for 'b'", ""),
    ("additionalProperties", {"type": "object", "additionalProperties": WHOLE}, "", ""),
    ("additionalProperties false", {"properties": BOTH, "additionalProperties": False, "required": ["a"]}, "", ""),
    ("others beside named", {"type": "object", "properties": BOTH, "additionalProperties": WHOLE}, "keys other", ""),
    ("unevaluatedProperties", {"properties": BOTH, "unevaluatedProperties": False}, "", "unevaluatedProperties"),
    ("patternProperties", {"type": "object", "patternProperties": {"^a.?$": WHOLE}}, "", ""),
    ("others beside patterns", {"patternProperties": {"^a": WHOLE}, "additionalProperties": TEXT}, "keys other", ""),
    (
        "named beside patterns",
        {"properties": BOTH, "patternProperties": {"^a": {"minimum": 3}}},
        "'patternProperties'",
        "",
    ),
    ("propertyNames", {"type": "object", "propertyNames": {"maxLength": 2}}, "", "propertyNames"),
    ("minProperties", {"type": "object", "properties": BOTH, "minProperties": 1}, "", "maxProperties"),
    ("minProperties of any", {"type": "object", "minProperties": 2}, "'minProperties'", "'minProperties'"),
    ("maxProperties", {"type": "object", "maxProperties": 1}, "", ""),
    ("dependentRequired", {"properties": BOTH, "dependentRequired": {"a": ["b"]}}, "'dependentRequired'", "dependent"),
    ("dependentSchemas", {"properties": BOTH, "dependentSchemas": {"a": {}}}, "'dependentSchemas'", "dependentSchemas"),
    ("dependencies", {"properties": BOTH, "dependencies": {"a": ["b"]}}, "'dependencies'", "dependencies"),
    ("allOf", {"allOf": [{"type": "integer", "minimum": 1}, {"maximum": 9}]}, "'allOf'", ""),
    ("allOf of one", {"allOf": [{"type": "string", "maxLength": 2}]}, "", ""),
    (
        "allOf and properties",
        {"type": "object", "properties": BOTH, "allOf": [{"required": ["a"]}]},
        "beside 'allOf'",
        "",
    ),
    ("anyOf", {"anyOf": [{"type": "string", "maxLength": 2}, WHOLE]}, "", ""),
    ("anyOf and type", {"type": "string", "anyOf": [{"maxLength": 2}, WHOLE]}, "'type' beside 'anyOf'", ""),
    ("oneOf", {"oneOf": [WHOLE, {"type": "number"}]}, "write 'anyOf'", "write 'anyOf'"),
    ("oneOf of two types", {"oneOf": [WHOLE, TEXT]}, "write 'anyOf'", ""),
    ("not", {"type": "integer", "not": {"const": 1}}, "'not'", "not"),
    ("if", {"if": WHOLE, "then": {"minimum": 5}, "else": TEXT}, "'if'", "if"),
    ("$ref", {"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}}}, "", ""),
    (
        "$ref and maxLength",
        {"$ref": "#/$defs/t", "maxLength": 2, "$defs": {"t": TEXT}},
        "'maxLength' beside '$ref'",
        "",
    ),
    ("$ref that is escaped", {"$ref": "#/$defs/a~1b", "$defs": {"a/b": WHOLE}}, "'$ref' to '#/$defs/a~1b'", ""),
    ("$ref to itself", {"anyOf": [{"$ref": "#"}, WHOLE]}, "leads back to itself", "leads back to itself"),
    ("$anchor", {"$ref": "#t", "$defs": {"t": {"$anchor": "t", **TEXT}}}, "'$ref' to '#t'", ""),
    (
        "$dynamicRef",
        {"$dynamicRef": "#t", "$defs": {"t": {"$dynamicAnchor": "t", **TEXT}}},
        "'$dynamicRef'",
        "$dynamic",
    ),
    ("$id", {"items": {"$id": "http://a.b/c", "items": {"$ref": "#"}}}, "'$id'", ""),
    ("$schema", {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": "", **WHOLE}, "", ""),
    ("title", {"title": "t", "description": "d", "default": "", "examples": [1], "deprecated": True, **WHOLE}, "", ""),
    ("readOnly", {"readOnly": True, "writeOnly": False, "discriminator": {}, **TEXT}, "", ""),
    (
        "a key 'title'",
        {
            "properties": {k: {"properties": {"title": t}, "required": ["title"]} for k, t in BOTH.items()},
            "required": ["a", "b"],
        },
        "",
        "",
    ),
    ("x-guidance", {"not": WHOLE, "x-guidance": {"lenient": True}}, "'not'", "'x-guidance'"),
    ("a number beyond doubles", {"const": 9007199254740993}, "", "rounds the number 9007199254740993"),
    ("a number beyond 64 bits", {"const": 9223372036854775809}, "rounds the number", "rounds the number"),
]
"""One schema for each keyword of JSON Schema 2020-12, and for those that go wrong together."""


@pytest.fixture(params=["llguidance", "xgrammar"], scope="module")
def engine(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed") and request.param


@cache
def make_instances() -> list[str]:
    """Some 300 JSON values, as texts: each that a grammar accepts must be valid."""
    scalars = [
        0,
        1,
        2,
        3,
        7,
        -2,
        25,
        0.5,
        2.5,
        -1.5,
        1e3,
        "",
        "a",
        "ab",
        "abc",
        "ba",
        "a b",
        "é",
        "2020-02-30",
        True,
        None,
    ]
    few = [1, 7, -2, 2.5, "", "a", "abc", None, {"title": 1}, {"title": "a"}, [1]]
    draw = random.Random(0)
    values: list[Any] = [*scalars, [], {}, [1, 1], [1, "a"], [1, True], *([a] for a in scalars)]
    values += [{key: value} for key in ("a", "b", "ab", "title", "c") for value in few]
    values += [{key: draw.choice(few) for key in draw.sample(["a", "b", "ab", "abc"], 2)} for _ in range(80)]
    values += [[draw.choice(few) for _ in range(draw.choice([2, 3, 4]))] for _ in range(60)]
    return [json.dumps(value, ensure_ascii=False) for value in values]


def write(grammar: Grammar, *, seed: int) -> str | None:
    """Draw a text from what a grammar allows, each token alike but for ends, which come soon; None if it is long."""
    draw, ids, ends = torch.Generator().manual_seed(seed), [7], find_ends()
    for length in range(150):
        allowed = grammar(torch.tensor([ids]), torch.zeros(1, len(TOKENIZER)))[0].isfinite()
        weights = allowed.float() * (1 + ends * (30 if length < 30 else 1e4))
        ids.append(int(torch.multinomial(weights, 1, generator=draw)))
        if ids[-1] == TOKENIZER.eos_token_id:
            return str(TOKENIZER.decode(ids[1:-1]))
    return None


@cache
def find_ends() -> torch.Tensor:
    texts = [TOKENIZER.decode([token]).strip() for token in range(len(TOKENIZER))]
    return torch.tensor([text in ('"', "}", "]", '"}', TOKENIZER.eos_token) for text in texts])


def check(schema: Any, grammar: Grammar, *, texts: int) -> int:
    """Check that texts of a grammar, and accepted instances, are valid by a schema; return how many were."""
    judge, count = Draft202012Validator(schema), 0
    for seed in range(texts):
        text = write(grammar.copy(), seed=seed)
        if text is not None:
            judge.validate(json.loads(text))
            count += 1
    for text in make_instances():
        if grammar.accepts(TOKENIZER.encode(text, add_special_tokens=False)):
            judge.validate(json.loads(text))
            count += 1
    return count


@pytest.mark.parametrize(("schema", "xgrammar", "llguidance"), [c[1:] for c in KEYWORDS], ids=[c[0] for c in KEYWORDS])
def test_a_keyword_is_followed_or_refused_by_its_name(engine: Any, schema: Any, xgrammar: str, llguidance: str) -> None:
    if refused := {"xgrammar": xgrammar, "llguidance": llguidance}[engine]:
        with pytest.raises(InputError) as caught:
            Grammar.from_json_schema(schema, TOKENIZER, engine=engine)
        assert refused in str(caught.value) and engine in str(caught.value)
    else:
        assert check(schema, Grammar.from_json_schema(schema, TOKENIZER, engine=engine), texts=10)


def test_keywords_that_meet_are_followed_or_refused(engine: Any) -> None:
    draw, followed, count = random.Random(1), 0, sample_size(120)
    cases = [schema for _, schema, *_ in KEYWORDS]
    for _ in range(count):
        one, other = draw.choice(cases), draw.choice(cases)
        schema = {**one, **other, "$defs": {**one.get("$defs", {}), **other.get("$defs", {})}}
        try:
            grammar = Grammar.from_json_schema(schema, TOKENIZER, engine=engine)
        except InputError:
            continue
        followed += 1
        check(schema, grammar, texts=1)
    assert followed > count // 8


class Typed(pydantic.BaseModel):
    """Types whose formats no engine knows, and two that both know."""

    path: pathlib.Path
    file: pydantic.FilePath
    secret: pydantic.SecretStr
    data: bytes
    encoded: pydantic.Base64Bytes
    network: ipaddress.IPv4Network
    interface: ipaddress.IPv6Interface
    address: pydantic.IPvAnyAddress
    url: pydantic.AnyUrl
    day: datetime.date
    key: uuid.UUID


def test_an_unknown_format_is_an_annotation_and_a_known_one_is_followed(engine: Any) -> None:
    schema = Typed.model_json_schema()
    for name, part in schema["properties"].items():
        grammar = Grammar.from_json_schema(part, TOKENIZER, engine=engine)
        is_known = name in ("url", "day", "key")
        assert grammar.accepts(TOKENIZER.encode('"any text"', add_special_tokens=False)) == (not is_known)
    assert Grammar.from_json_schema(schema, TOKENIZER, engine=engine)


def test_a_format_that_names_a_property_stays(engine: Any) -> None:
    grammar = Grammar.from_json_schema(
        {"properties": {"format": WHOLE}, "required": ["format"]}, TOKENIZER, engine=engine
    )
    assert not grammar.accepts(TOKENIZER.encode("{}", add_special_tokens=False))


def find_deep_schemas() -> Iterator[Any]:
    for keyword in ("items", "not"):
        schema: Any = {"const": 1}
        for _ in range(200):
            schema = {"type": "array", keyword: schema}
        yield schema
    yield '{"const": ' + "[" * 5000 + "]" * 5000 + "}"


@pytest.mark.parametrize("schema", list(find_deep_schemas()), ids=["items", "not", "const"])
def test_a_deep_schema_is_refused(engine: Any, schema: Any) -> None:
    with pytest.raises(InputError, match=r"nests deeper than 60|does not follow|can't compile it"):
        Grammar.from_json_schema(schema, TOKENIZER, engine=engine)


@pytest.mark.parametrize(
    "keyword", ["maxLength", "minItems", "required", "properties", "pattern", "enum", "allOf", "$ref"]
)
def test_a_keyword_with_a_value_of_another_type_is_refused(engine: Any, keyword: str) -> None:
    for value in (None, True, 1.5, "x", [1], {"a": 1}):
        try:
            Draft202012Validator.check_schema({"type": ["string", "object", "array"], keyword: value})
        except SchemaError:
            with pytest.raises(InputError):
                Grammar.from_json_schema({keyword: value}, TOKENIZER, engine=engine)
