#!/usr/bin/env bash
# What a `pattern` means in xgrammar depends on characters that have nothing to do with it.
#
# Expected: `.` and `[ -~]` never stand for a quote in a JSON string, which would need an escape.
# Seen: so it is, until the pattern holds a letter beyond ASCII, or a count is large: then a raw quote is accepted, and the text
# is no JSON. A look-ahead is left out, with a line on stderr.
# Why it matters: there are two readers of patterns, of which one knows that it is within a string.
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
for pattern, text, expected in (
    ("^e.b$", '"e"b"', False),
    ("^\u00e9.b$", '"\u00e9"b"', True),
    ("^[ -~]b$", '""b"', False),
    ("^[ -~]\u00e9$", '""\u00e9"', True),
    ("^.{3,20}$", '"a"bcd"', False),
    ("^.{3,20000}$", '"a"bcd"', True),
    ("^(?=ab)a.$", '"ac"', True),
):
    seen = accepts({"type": "string", "pattern": pattern}, text)
    print(f"{pattern!a}: expected no {text!a}, seen {seen}")
    assert seen == expected
PYTHON
