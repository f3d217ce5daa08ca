#!/usr/bin/env bash
# llguidance rounds the numbers of a schema to doubles, also where they are integers.
#
# Expected: {"const": 9007199254740993} allows 9007199254740993 only.
# Seen: it allows 9007199254740992 only; bounds and enumerations are rounded alike.
# Why it matters: identifiers and 64-bit bounds are such numbers, and the text is not what the schema says.
# Versions: llguidance 1.9.1
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet llguidance==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import json
from importlib.metadata import version

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper


class Bytes:
    eos_token_id, bos_token_id = 256, None
    tokens = [bytes([byte]) for byte in range(256)] + [b"\xff</s>"]
    special_token_ids = [256]

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))


def accepts(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))
    assert not matcher.get_error(), matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


print("llguidance", version("llguidance"))
number = 2**53 + 1
seen = accepts({"const": number}, str(number)), accepts({"const": number}, str(number - 1))
print(f"{number} and {number - 1}: expected (True, False), seen {seen}")
assert seen == (False, True)
assert accepts({"type": "integer", "minimum": number, "maximum": number}, str(number - 1))
PYTHON
