#!/bin/sh
# Make the bundled lists and the human counts, from texts that are not in the repository:
#   antislop/data/human.json.gz      counts of 20 novels
#   antislop/data/slop.txt           overused words and phrases, from half of the prompts
#   antislop/data/slop_held_out.txt  the same from the other half, for evaluation only
#
#   data/slop/make.sh ASSETS         (needs the package with its extra eval; see data/slop/README.md)
set -eu
assets=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}

"$python" -m antislop profile "$assets/human/gutenberg" --as-baseline --min-count 3 -o antislop/data/human.json.gz

models=$folder/eqbench_and_slop_score.jsonl
"$python" data/slop/gather.py "$assets/llm" >"$models"
zcat "$assets/llm/writingprompts_pairs/gpt-4.jsonl.gz" >"$folder/writingprompts.jsonl"
"$python" data/slop/modern.py "$assets/lists/forensics_human_slop_profile.json" >"$folder/modern.json"

make_list() { # half, file
    "$python" -m antislop profile "$models" --half "$1" --baseline antislop/data/human.json.gz \
        --also-human "$folder/writingprompts.jsonl" --also-human "$folder/modern.json" --also-column human --min-ratio 2 -o "$folder/$1.json"
    "$python" -m antislop bans-from "$folder/$1.json" --min-ratio 6 --min-prompts 8 --max-zipf 3.3 --names words \
        --top 1000 --license Apache-2.0 -o "$2"
}
make_list made-from antislop/data/slop.txt
make_list held-out antislop/data/slop_held_out.txt
