#!/usr/bin/env bash
# xgrammar compiles schemas with keywords that it does not follow, and most of them without a warning.
#
# Expected: an error, or a grammar without the value beside each schema, which the schema forbids.
# Seen: each of these values is accepted.
# Why it matters: "valid by its schema" is true only for some keywords, and the caller isn't told for which.
# Versions: xgrammar 0.2.8 (0.2.9 alike), torch 2.13.0, transformers 5.23.0
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 pydantic==2.14.3 apache-tvm-ffi==0.1.15.post2
"$folder/venv/bin/pip" install --quiet --no-deps xgrammar==0.2.8  # its triton is for GPUs
"$folder/venv/bin/python" - <<'PYTHON'
import json
from importlib.metadata import version

import xgrammar

vocabulary = [bytes([byte]) for byte in range(256)] + [b"</s>"]
info = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256])
compiler = xgrammar.GrammarCompiler(info)


def accepts(schema, text):
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema), any_whitespace=False))
    return matcher.accept_string(text) and matcher.is_completed()


print("xgrammar", version("xgrammar"))
integer = {"type": "integer"}
FORBIDDEN = [
    ({"allOf": [integer, {"minimum": 3}]}, "x"),
    ({"type": "integer", "not": {"const": 1}}, 1),
    ({"oneOf": [integer, {"type": "number"}]}, 1),
    ({"$ref": "#/$defs/n", "minimum": 3, "$defs": {"n": integer}}, 1),
    ({"type": "string", "anyOf": [integer]}, 1),
    ({"type": "string", "enum": ["a", 1]}, 1),
    ({"minimum": 3}, 1),
    ({"type": "number", "multipleOf": 2}, 1),
    ({"type": "integer", "multipleOf": 2, "minimum": 0}, 1),
    ({"type": "object", "properties": {"a": integer}, "required": ["b"]}, {"a": 1}),
    ({"type": "object", "properties": {"a": integer}, "dependentRequired": {"a": ["b"]}}, {"a": 1}),
    ({"type": "array", "items": integer, "uniqueItems": True}, [1, 1]),
    ({"type": "array", "items": integer, "contains": {"const": 2}}, [1]),
    ({"type": "string", "pattern": "^[ab]+$", "maxLength": 2}, "abab"),
]
for schema, value in FORBIDDEN:
    seen = accepts(schema, json.dumps(value))
    print(f"{json.dumps(schema)}: expected no {json.dumps(value)}, seen {seen}")
    assert seen
PYTHON
