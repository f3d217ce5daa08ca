#!/usr/bin/env bash
# wordfreq 3.1.1 answers for Khmer with English, and for other languages that it does not know with an error.
#
# Expected: a LookupError for each language without a list, or rates of Khmer words.
# Seen: `get_frequency_dict("km")` is the English dictionary, with one line in the log; "th" raises LookupError.
# Why it matters: a list of overused words is judged by rates of another language, and nothing in the numbers shows it.
# Versions: wordfreq 3.1.1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile wordfreq==3.1.1
"$folder/venv/bin/python" - <<'PYTHON'
import wordfreq

english, khmer = map(wordfreq.get_frequency_dict, ("en", "km"))
try:
    thai = f"{len(wordfreq.get_frequency_dict('th'))} words"
except LookupError as error:
    thai = f"LookupError: {error}"
print("wordfreq 3.1.1: expected no answer for languages without a list, as km and th are:")
print(f"listed: km {'km' in wordfreq.available_languages()}, th {'th' in wordfreq.available_languages()}")
print(f"seen: km {len(khmer):,} words, of which the first is {next(iter(khmer))!r}; th {thai}")
assert "km" not in wordfreq.available_languages()
assert khmer == english and thai.startswith("LookupError")
PYTHON
