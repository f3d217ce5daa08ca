"""Count the bundled constructions in texts by people and by models, per 1,000 words, as a Markdown table.

python data/constructions/measure.py --models LLM --humans HUMAN

Counted is what `BanList.find` finds, in the texts that the bundled list was measured on.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from antislop import BanList
from antislop.lists.bundled import read_constructions

FICTION = ("eqbench_creative_v3", "eqbench_longform")
ESSAYS = 150  # the prompts of slop_score from here on ask for essays, those before for fiction


def read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield models' texts, except those of models that were trained not to write slop."""
    for path in sorted(folder.glob("*.jsonl.gz")):
        if "antislop" not in path.name:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                yield from map(json.loads, lines)


def read_corpora(models: Path, humans: Path) -> dict[str, list[str]]:
    scored = list(read_rows(models / "slop_score"))
    fiction = [row["output"] or "" for source in FICTION for row in read_rows(models / source)]
    with gzip.open(models / "writingprompts_pairs" / "gpt-4.jsonl.gz", "rt", encoding="utf-8") as lines:
        prompted = [json.loads(line)["human"] for line in lines]
    return {
        "novels": [gzip.decompress(path.read_bytes()).decode() for path in sorted(humans.rglob("*.txt.gz"))],
        "human answers": prompted,
        "models' fiction": fiction + [row["output"] or "" for row in scored if int(row["prompt_index"]) < ESSAYS],
        "models' essays": [row["output"] or "" for row in scored if int(row["prompt_index"]) >= ESSAYS],
    }


def count(bans: BanList, texts: Sequence[str]) -> int:
    return sum(len(bans.find(text)) for text in texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--humans", type=Path, required=True)
    arguments = parser.parse_args()

    corpora = read_corpora(arguments.models, arguments.humans)
    words = {name: sum(len(text.split()) for text in texts) for name, texts in corpora.items()}
    print("| |", " | ".join(f"{name}, {words[name]:,} words" for name in corpora), "|")
    print("|---|" + "---|" * len(corpora))
    for each in read_constructions():
        found = {name: count(BanList([each.ban]), texts) for name, texts in corpora.items()}
        rates = (f"{1000 * number / words[name]:.4f} ({number})" for name, number in found.items())
        print(f"| {each.name} |", " | ".join(rates), "|")


if __name__ == "__main__":
    main()
