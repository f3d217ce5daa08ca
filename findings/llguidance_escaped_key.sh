#!/usr/bin/env bash
# A key that the schema names can be written again under llguidance, with an escape for a letter, and with any value.
#
# Expected: no text whose "a" is a string, since the schema says that it is an integer.
# Seen: {"a":1,"\u0061":"x"} is accepted, and a reader of JSON keeps the second one. Values of strings take no such escape;
# `json_allowed_escapes` without "u" closes the way for keys as well.
# Why it matters: models that were trained on json.dumps write "\u00e9" for "é", so this needs no ill will.
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
schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
text = '{"a":1,"\\u0061":"x"}'
strict = {**schema, "x-guidance": {"json_allowed_escapes": 'nrbtf\\"'}}
seen = accepts(schema, text), accepts(strict, text), accepts({"type": "string"}, '"\\u0061"')
print(f"{text}: expected not accepted, seen {seen[0]}; without u {seen[1]}; such a letter in a value {seen[2]}")
assert seen == (True, False, False) and json.loads(text)["a"] == "x"
PYTHON
