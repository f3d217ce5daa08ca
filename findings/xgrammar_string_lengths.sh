#!/usr/bin/env bash
# With `maxLength`, xgrammar lets a string hold control characters as they are, which no JSON may, and no escapes.
#
# Expected: "a\tb" with the escape, and never with the character itself.
# Seen: the other way round, for minLength, too; without a length it is right.
# Why it matters: a text under a grammar then is no JSON at all; and where it is, quotes and line feeds are missing: in a
# field with a length nobody says "…".
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
for bounds, expected in (({}, (False, True)), ({"maxLength": 9}, (True, False)), ({"minLength": 1}, (True, False))):
    seen = tuple(accepts({"type": "string", **bounds}, text) for text in ('"a\tb"', '"a\\tb"'))
    print(f"{bounds}: the character itself, and its escape: expected (False, True), seen {seen}")
    assert seen == expected
PYTHON
