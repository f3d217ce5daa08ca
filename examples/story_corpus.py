"""Write stories from each opening, plain and under bans, and count how often banned phrases occur.

    python examples/story_corpus.py                                  # the bundled model; seconds
    python examples/story_corpus.py --model some/model --prompts my.txt --samples 20 --max-new-tokens 400

If it is killed, the same command resumes. Each line of the file is a record: prompt, response, arm, counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import antislop
from antislop.datasets import ModelRecordMaker, measure_slop, open_journal, write_records
from antislop.files import ModelSpec, read_prompts, read_records


def main() -> None:
    """Write the corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face id or folder; the bundled model by default")
    parser.add_argument("--prompts", type=Path, default=Path(__file__).with_name("stories.txt"))
    parser.add_argument("--out", type=Path, default=Path("stories.jsonl"))
    parser.add_argument("--samples", type=int, default=2, help="stories per opening")
    parser.add_argument("--max-new-tokens", type=int, default=100)
    arguments = parser.parse_args()

    bans = antislop.default_bans() | antislop.constructions()
    settings = {"max_new_tokens": arguments.max_new_tokens, "do_sample": True, "min_p": 0.05, "top_k": 0}
    maker = ModelRecordMaker(*ModelSpec(arguments.model).load(), bans, seed=1, batch_size=16, settings=settings)

    made_with = {"model": arguments.model, "prompts": str(arguments.prompts), "samples": arguments.samples, **settings}
    with open_journal(arguments.out, made_with) as journal:
        for record in write_records(
            maker, lambda: read_prompts(arguments.prompts), journal, samples=arguments.samples, arms=("plain", "banned")
        ):
            print(f"{record['arm']}: {record['prompt']} …{record['response'][-40:]!r}")

    for arm, slop in measure_slop(read_records(arguments.out), bans).items():
        print(f"{arm}: {slop:.2f} banned phrases per 1,000 words")


if __name__ == "__main__":
    main()
