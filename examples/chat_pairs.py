"""Write replies to chats, and preference pairs of kept and withdrawn text.

    python examples/chat_pairs.py                                    # the bundled model; seconds
    python examples/chat_pairs.py --model some/chat-model --chats my.jsonl --limit 50

The pairs have the columns prompt, chosen and rejected, as trainers of preferences read them (TRL's DPOTrainer, …).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import antislop
from antislop.datasets import ModelRecordMaker, PairFile, open_journal, write_records
from antislop.files import ModelSpec, read_prompts

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def main() -> None:
    """Write replies and pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face id or folder; the bundled model by default")
    parser.add_argument("--chats", type=Path, default=Path(__file__).with_name("chats.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("chats"), help="a folder")
    parser.add_argument("--limit", type=int, default=20, help="maximum number of pairs per ban")
    parser.add_argument("--max-new-tokens", type=int, default=100)
    arguments = parser.parse_args()

    model, tokenizer = ModelSpec(arguments.model).load()
    tokenizer.chat_template = tokenizer.chat_template or TEMPLATE  # the bundled model has no template
    settings = {"max_new_tokens": arguments.max_new_tokens, "do_sample": True, "min_p": 0.05, "top_k": 0}
    maker = ModelRecordMaker(model, tokenizer, antislop.default_bans(), seed=1, settings=settings, pairs="dpo")
    chats = partial(read_prompts, arguments.chats, system="Be brief.", chat=True, tokenizer=tokenizer)

    made_with = {"model": arguments.model, "chats": str(arguments.chats), **settings}
    with open_journal(arguments.out / "replies.jsonl", made_with) as journal:
        pairs = PairFile(arguments.out / "pairs.jsonl", journal, kind="dpo")
        for record in write_records(maker, chats, journal, samples=4, pairs=pairs):
            print(f"{record['key']}: {record['response'][:70]!r}")
        print(f"{pairs.finish(per_ban=arguments.limit)} pairs in {pairs.path}")


if __name__ == "__main__":
    main()
