"""Count hits of lists per 1,000 words: in the texts that the first list was made from, in others, and in people's.

python data/slop/measure.py ASSETS LIST…
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from gather import read

from antislop import BanList
from antislop.files.texts import Text, find_half, read_texts

TEXTS, CHARACTERS = 250, 60_000


def measure(texts: Iterable[str], bans: BanList) -> float:
    """Return hits per 1,000 words, of overlapping ones the first and longest."""
    hits = words = 0
    for text in texts:
        hits += len(bans.find(text, overlaps=False))
        words += len(text.split())
    return 1000 * hits / words


def gather_groups(assets: Path) -> dict[str, Sequence[str]]:
    """Return texts by their authors: a sample of models' texts, and the beginnings of novels."""
    records = [each for each in read(assets / "llm", essays=False) if each["text"].strip()]
    random.Random(1).shuffle(records)
    halves: dict[str, list[str]] = {}
    for each in records:
        half = find_half(Text(each["text"], each["prompt"], "", {}))
        halves.setdefault(f"models, prompts of the {half} half", []).append(each["text"])
    answers = read_texts([assets / "llm/writingprompts_pairs/gpt-4.jsonl.gz"], column="human")
    return {
        **{name: texts[:TEXTS] for name, texts in sorted(halves.items(), reverse=True)},
        "novels": [each.text[:CHARACTERS] for each in read_texts([assets / "human/gutenberg"])],
        "human answers to writing prompts": [each.text for each in answers],
    }


def main() -> None:
    lists = [BanList.load(path) for path in sys.argv[2:]]
    for name, texts in gather_groups(Path(sys.argv[1])).items():
        print(f"| {name} |", " | ".join(f"{measure(texts, bans):.2f}" for bans in lists), "|")
    print(len(set(lists[0]) & set(lists[1])), "in both;", *(len(bans) for bans in lists))


if __name__ == "__main__":
    main()
