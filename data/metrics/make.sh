#!/bin/sh
# Make the reference values of metrics, from texts that are not in the repository: scale.json, human_ngrams.json.gz and
# human_metrics.json in antislop/data. The scale's words and trigrams come from half of the prompts, essays included.
#
#   data/metrics/make.sh ASSETS      (needs the package with its extra eval; see data/metrics/README.md)
set -eu
assets=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}

models=$folder/eqbench_and_slop_score.jsonl
"$python" data/slop/gather.py "$assets/llm" --essays >"$models"
zcat "$assets/llm/writingprompts_pairs/gpt-4.jsonl.gz" >"$folder/writingprompts.jsonl"
"$python" data/slop/modern.py "$assets/lists/forensics_human_slop_profile.json" >"$folder/modern.json"
"$python" -m antislop profile "$models" --half made-from --also-human "$folder/writingprompts.jsonl" \
    --also-human "$folder/modern.json" --also-column human --min-ratio 2 -o "$folder/profile.json"
"$python" -m data.metrics.make --profile "$folder/profile.json" --models "$assets/llm" --humans "$assets/human" \
    --out antislop/data
