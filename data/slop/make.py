"""Choose the bundled list: published slop phrases that language models overuse by measure.

    python data/slop/make.py --lists LISTS --models LLM --humans HUMAN --out antislop/data/slop.txt

Candidates are the phrases of antislop-sampler's two lists. Each is counted, as the sampler itself matches, in the
models' fiction and in human writing; kept are those that models use often and much more often than people. A single
word must also be rare in English at large (wordfreq's Zipf frequency), or the list would ban "nodded" and "Sarah".
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wordfreq import zipf_frequency

from antislop import Ban, BanList

PUBLISHED = ("antislop_sampler_slop_phrases_2025-04-07.json", "antislop_sampler_slop_phrase_prob_adjustments.json")
RARE = 3.3
FICTION = ("eqbench_creative_v3", "eqbench_longform", "slop_score")


class Counts(NamedTuple):
    """Occurrences per phrase, texts per phrase, and the words they were counted in."""

    phrases: Counter[str]
    texts: Counter[str]
    words: int


def read_candidates(folder: Path) -> BanList:
    """Return the published phrases, the first list's order first."""
    entries = (phrase for name in PUBLISHED for phrase, _ in json.loads((folder / name).read_text(encoding="utf-8")))
    return BanList(list(dict.fromkeys(phrase.strip().lower() for phrase in entries)))


def read_models(folder: Path) -> Iterator[str]:
    """Yield what models wrote, without those that were trained to write otherwise."""
    for source in FICTION:
        for path in sorted((folder / source).glob("*.jsonl.gz")):
            if "antislop" not in path.name:
                with gzip.open(path, "rt", encoding="utf-8") as lines:
                    yield from (json.loads(line)["output"] or "" for line in lines)


def read_humans(folder: Path, pairs: Path) -> Iterator[str]:
    """Yield novels and the human side of the writing prompts."""
    for path in sorted(folder.rglob("*.txt.gz")):
        yield gzip.decompress(path.read_bytes()).decode()
    with gzip.open(pairs / "gpt-4.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from (json.loads(line)["human"] for line in lines)


def count(texts: Iterator[str], *, bans: BanList) -> Counts:
    """Count every candidate in every text."""
    phrases: Counter[str] = Counter()
    holding: Counter[str] = Counter()
    words = 0
    for text in texts:
        words += len(text.split())
        found = Counter(match.ban.phrase for match in bans.find(text))
        phrases.update(found)
        holding.update(found.keys())
    return Counts(phrases, holding, words)


def ratio(phrase: str, *, models: Counts, humans: Counts) -> float:
    """Return how much more often models write a phrase than people; one human occurrence is added, against luck."""
    return (models.phrases[phrase] / models.words) / ((humans.phrases[phrase] + 1) / humans.words)


def is_telling(phrase: str) -> bool:
    """Tell whether a phrase is more than one word, or a word that people hardly use: under 2 in a million."""
    return " " in phrase or zipf_frequency(phrase, "en") < RARE


def choose(bans: BanList, *, models: Counts, humans: Counts, texts: int, least: float) -> list[Ban]:
    """Return the phrases found in enough texts at a high enough ratio, the most frequent first."""
    kept = [
        ban
        for ban in bans
        if is_telling(ban.phrase)
        and models.texts[ban.phrase] >= texts
        and ratio(ban.phrase, models=models, humans=humans) >= least
    ]
    return sorted(kept, key=lambda ban: -models.phrases[ban.phrase])


def describe(arguments: argparse.Namespace, *, kept: int, published: int, models: int, humans: int) -> list[str]:
    """Return where the list comes from, as comments on top of it."""
    hashes = ((name, hashlib.sha256((arguments.lists / name).read_bytes()).hexdigest()) for name in PUBLISHED)
    return [
        "# Phrases that language models overuse in English fiction, the most frequent first.",
        "# source: https://github.com/sam-paech/antislop-sampler, two of its lists:",
        *(f"#   {name}  sha256 {digest}" for name, digest in hashes),
        f"# made by: data/slop/make.py --texts {arguments.texts} --least {arguments.least:g}",
        f"# kept: {kept} of {published} published phrases, which stand in at least {arguments.texts} models' texts",
        f"# ({models} words) and are at least {arguments.least:g} times as frequent as in human fiction",
        f"# ({humans} words);",
        f"# single words only with a Zipf frequency under {RARE} in wordfreq.",
        "# licence: the source repository holds no licence file; this selection and its counts are Apache-2.0",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--humans", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=10, help="models' texts that must hold a phrase")
    parser.add_argument("--least", type=float, default=10, help="smallest ratio of models' rate to the human rate")
    arguments = parser.parse_args()

    bans = read_candidates(arguments.lists)
    models = count(read_models(arguments.models), bans=bans)
    humans = count(read_humans(arguments.humans, arguments.models / "writingprompts_pairs"), bans=bans)
    kept = choose(bans, models=models, humans=humans, texts=arguments.texts, least=arguments.least)
    header = describe(arguments, kept=len(kept), published=len(bans), models=models.words, humans=humans.words)
    arguments.out.write_text("\n".join([*header, *(ban.phrase for ban in kept)]) + "\n", encoding="utf-8")
    print(f"{len(kept)} of {len(bans)} phrases kept in {arguments.out}")


if __name__ == "__main__":
    main()
