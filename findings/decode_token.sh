#!/usr/bin/env bash
# Tokens decoded one by one lose the spaces that all together have.
#
# Expected: the text of a list of ids is that of its tokens, joined.
# Seen: the Metaspace decoder drops the space before the first token of each call; `DecodeStream` keeps it.
# Why it matters: streams and matchers that decode each new token see "theoldhouse".
# Versions: tokenizers 0.23.3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
import tokenizers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import Unigram

tokenizer = Tokenizer(Unigram([("<unk>", 0.0), ("▁the", -1.0), ("▁old", -1.0), ("▁house", -1.0)], unk_id=0))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
ids = tokenizer.encode("the old house").ids
whole, pieces = tokenizer.decode(ids), "".join(tokenizer.decode([token]) for token in ids)
stream = decoders.DecodeStream()
streamed = "".join(stream.step(tokenizer, token) or "" for token in ids)
print(f"tokenizers {tokenizers.__version__}: expected the text from tokens decoded one by one, as from all together")
print(f"seen: together {whole!r}, one by one {pieces!r}, by DecodeStream {streamed!r}")
assert (whole, pieces, streamed) == ("the old house", "theoldhouse", "the old house")
PYTHON
