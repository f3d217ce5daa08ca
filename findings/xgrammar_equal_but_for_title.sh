#!/usr/bin/env bash
# xgrammar takes two schemas for one that differ only in the schema of a property named "title".
#
# Expected: a title that is an integer in one object and a string in the other one, as the schema has them.
# Seen: the second object gets the grammar of the first one. So with "description", "default" and "examples".
# Why it matters: xgrammar remembers schemas without their annotations, and takes the names of properties for
# annotations, too. Titles and descriptions are what structured output is mostly asked for.
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
for name in ("title", "description", "default", "examples", "size"):
    parts = {key: {"type": "object", "properties": {name: {"type": kind}}, "required": [name]} for key, kind in (("a", "integer"), ("b", "string"))}
    schema = {"type": "object", "properties": parts, "required": ["a", "b"]}
    valid, invalid = ({"a": {name: 1}, "b": {name: value}} for value in ("x", 2))
    seen = accepts(schema, json.dumps(valid)), accepts(schema, json.dumps(invalid))
    print(f"{name}: expected (True, False), seen {seen}")
    assert seen == ((True, False) if name == "size" else (False, True))
PYTHON
