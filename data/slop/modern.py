"""Make a baseline of published counts: n-grams in 177,477 modern human texts of slop-forensics.

    python data/slop/modern.py forensics_human_slop_profile.json > modern.json

Published are the 200 most frequent bigrams and trigrams of content words, the number of texts and their mean length in
characters (https://github.com/sam-paech/slop-forensics, results/human_slop_profile.json). The number of words follows
from that at 5.4 characters a word, as in the novels.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from antislop.measure.profiles.rates import FORMAT

CHARACTERS = 5.4  # of a word and the characters after it


def main() -> None:
    known = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["human-authored"]
    listed = [*known["top_bigrams"], *known["top_trigrams"]]
    whole = {
        "format": FORMAT,
        "name": "slop-forensics' human texts",
        "words": round(known["num_texts_analyzed"] * known["avg_length"] / CHARACTERS),
        "least": min(each["frequency"] for each in listed),
        "made_with": {"source": "https://github.com/sam-paech/slop-forensics"},
        "counts": {"content": {each["ngram"]: each["frequency"] for each in listed}},
    }
    print(json.dumps(whole))


if __name__ == "__main__":
    main()
