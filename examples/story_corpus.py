"""Write a corpus of stories to each opening, with and without bans, and count how often they occur.

    python examples/story_corpus.py                                  # the bundled model; seconds
    python examples/story_corpus.py --model some/model --prompts my.txt --samples 20 --max-new-tokens 400

If it is killed, the same command resumes. A line has a prompt, its response, and the withdrawn tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import antislop
from antislop.datasets import ModelRecordMaker, measure_slop, open_journal, write_records
from antislop.hf.pretrained import load_model
from antislop.records.journal import read_records
from antislop.records.prompts import read_prompts


def main() -> None:
    """Write the corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face id or folder; the bundled model by default")
    parser.add_argument("--prompts", type=Path, default=Path(__file__).with_name("stories.txt"))
    parser.add_argument("--out", type=Path, default=Path("stories.jsonl"))
    parser.add_argument("--samples", type=int, default=2, help="stories to each opening")
    parser.add_argument("--max-new-tokens", type=int, default=100)
    asked = parser.parse_args()

    bans = antislop.default_bans() | antislop.constructions()
    drawn = {"max_new_tokens": asked.max_new_tokens, "do_sample": True, "min_p": 0.05, "top_k": 0}
    maker = ModelRecordMaker(*load_model(asked.model), bans, seed=1, batch_size=16, settings=drawn)

    made_with = {"model": asked.model, "prompts": str(asked.prompts), "samples": asked.samples, **drawn}
    with open_journal(asked.out, made_with) as journal:
        for record in write_records(
            maker, lambda: read_prompts(asked.prompts), journal, samples=asked.samples, arms=("plain", "banned")
        ):
            print(f"{record['arm']}: {record['prompt']} …{record['response'][-40:]!r}")

    for arm, slop in measure_slop(read_records(asked.out), bans).items():
        print(f"{arm}: {slop:.2f} banned phrases per 1,000 words")


if __name__ == "__main__":
    main()
