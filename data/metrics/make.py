"""Make the reference values of metrics: the scale, the human n-grams, and the human values of all metrics.

    python -m data.metrics.make --profile profile.json --models LLM --humans HUMAN --out antislop/data

The scale's words and trigrams are those of a profile that models surely overuse, by the lower bound of their ratio,
and that the novels don't hold as often. Everything human is counted in the novels. Writes scale.json,
human_ngrams.json.gz and human_metrics.json.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from antislop.files.texts import read_texts
from antislop.measure.definitions import METRICS, compute_metrics
from antislop.measure.human_distance import FORMAT
from antislop.measure.metrics import Tally, measure
from antislop.measure.slop import Range, Scale
from antislop.measure.words import drop_stop_words, extract_words
from eval.passages import PASSAGE, cut_passages

WORDS, TRIGRAMS, NGRAMS = 1200, 600, 20_000
KINDS = {"word": ("word",), "content": ("content", "phrase")}
LEAST_PROMPTS = {"word": 10, "content": 5}
LEAST_LOW = {"word": 5.0, "content": 1.0}  # of the ratio's lower bound; few trigrams occur in the novels at all
LEAST_RATIO = 5.0  # against the novels alone: the baseline of a profile need not be fiction
NOT_HUMAN = ("repetition",)  # it depends on the amount of text, and the n-grams are counted in the same novels
RANGED = ("slop_words", "slop_trigrams", "contrasts")


def choose(profile: dict[str, Any], kind: str, n: int, most: int, *, novels: Counter[str]) -> list[str]:
    """Return the most overused entries of n words in the profile, by the lower bound of their ratio.

    kind: of content n-grams also those that a phrase is made of: where a phrase says as much, profiles list it alone.
    novels: how often each stands in the novels; one occurrence is added, against luck.
    """
    unit = 1e6 / novels.total()
    bounds: dict[str, float] = {}
    for entry in profile["entries"]:
        text = " ".join(drop_stop_words(entry["text"].split())) if kind == "content" else entry["text"]
        if (
            entry["kind"] in KINDS[kind]
            and len(text.split()) == n
            and entry["prompts"] >= LEAST_PROMPTS[kind]
            and entry["low"] >= LEAST_LOW[kind]
            and entry["per_million"] >= LEAST_RATIO * unit * (novels[text] + 1)
        ):
            bounds[text] = max(entry["low"], bounds.get(text, 0.0))
    return sorted(sorted(bounds, key=lambda text: (-bounds[text], text))[:most])


def count_ngrams(texts: Iterable[str], n: int) -> Counter[str]:
    """Count the n-grams of content words in texts."""
    counts: Counter[str] = Counter()
    for text in texts:
        words = drop_stop_words(extract_words(text))
        counts.update(map(" ".join, zip(*(words[i:] for i in range(n)), strict=False)))
    return counts


def keep_frequent(counts: Counter[str]) -> dict[str, Any]:
    """Return the most frequent n-grams, and the number of all."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:NGRAMS]
    return {"total": counts.total(), "counts": dict(ordered)}


def tally_all(texts: Iterable[str], scale: Scale) -> Tally:
    tally = Tally(scale)
    for text in texts:
        tally.add(text)
    return tally


def read_groups(models: Path, books: dict[str, str]) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the sets of texts that the ranges are measured over: each model's, the novels, the human answers."""
    for path in sorted((models / "slop_score").glob("*.jsonl.gz")):
        yield path.name, (text.text for text in read_texts([path]))
    yield "novels", books.values()
    yield (
        "answers",
        (text.text for text in read_texts([models / "writingprompts_pairs" / "gpt2-xl.jsonl.gz"], column="human")),
    )


def measure_ranges(groups: Iterable[tuple[str, Iterable[str]]], scale: Scale) -> dict[str, Range]:
    """Return the lowest and the highest value of each part of the slop score."""
    found: dict[str, list[float]] = {name: [] for name in RANGED}
    for title, texts in groups:
        estimates = measure(tally_all(texts, scale), resamples=0)
        for name in RANGED:
            found[name].append(round(estimates[name].value or 0.0, 4))
        print(title, {name: found[name][-1] for name in RANGED})
    return {name: Range(min(values), max(values)) for name, values in found.items()}


def describe_human(books: dict[str, str], scale: Scale) -> dict[str, dict[str, float]]:
    """Return each metric's value in all passages, and its standard deviation between passages and between books."""
    passages = {title: list(cut_passages(text)) for title, text in books.items()}
    tally = tally_all((passage for some in passages.values() for passage in some), scale)
    sums = tally.sum_up()
    owners = np.repeat(np.arange(len(passages)), [len(some) for some in passages.values()])
    by_book = {name: np.bincount(owners, column, minlength=len(passages)) for name, column in sums.items()}
    whole = measure(tally)
    between = {
        "passages": compute_metrics(METRICS, sums, scale),
        "books": compute_metrics(METRICS, by_book, scale),
    }
    described = {}
    for name, (value, low, high, _) in whole.items():
        if name not in NOT_HUMAN and value is not None and low is not None and high is not None:
            spreads = {of: float(np.nanstd(values[name], ddof=1)) for of, values in between.items()}
            numbers = {"value": value, "low": low, "high": high, **spreads}
            described[name] = {key: round(number, 5) for key, number in numbers.items()}
    return described


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--humans", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    files = {path.name.split(".")[0]: path for path in sorted(arguments.humans.rglob("*.txt.gz"))}
    books = {title: gzip.decompress(path.read_bytes()).decode("utf-8-sig") for title, path in files.items()}
    trigrams_of_novels = count_ngrams(books.values(), 3)
    ngrams = {"bigrams": count_ngrams(books.values(), 2), "trigrams": trigrams_of_novels}
    write_ngrams(arguments.out / "human_ngrams.json.gz", {name: keep_frequent(each) for name, each in ngrams.items()})

    profile = json.loads(arguments.profile.read_text(encoding="utf-8"))
    words_of_novels = Counter(word for text in books.values() for word in extract_words(text))
    words = choose(profile, "word", 1, WORDS, novels=words_of_novels)
    trigrams = choose(profile, "content", 3, TRIGRAMS, novels=trigrams_of_novels)
    scale = Scale(frozenset(words), frozenset(tuple(trigram.split()) for trigram in trigrams))
    ranges = measure_ranges(read_groups(arguments.models, books), scale)
    write(arguments.out / "scale.json", {"words": words, "trigrams": trigrams, "ranges": ranges})

    scale = Scale(scale.words, scale.trigrams, ranges=ranges)
    texts = [
        {
            "title": title,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "words": len(extract_words(text)),
            "passages": len(list(cut_passages(text))),
        }
        for title, text in books.items()
    ]
    how = f"passages of at least {PASSAGE} words that end with a paragraph; spreads are standard deviations"
    human = {"format": FORMAT, "scale": scale.fingerprint, "how": how, "texts": texts}
    described = describe_human(books, scale)
    write(arguments.out / "human_metrics.json", {**human, "metrics": described})
    for name, numbers in described.items():
        print("|", name, "|", " | ".join(f"{numbers[key]:.3f}" for key in ("value", "passages", "books")), "|")


def write(path: Path, whole: Any) -> None:
    """Write JSON, and print its sha256."""
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"| `{path.name}` | `{hashlib.sha256(path.read_bytes()).hexdigest()}` |")


def write_ngrams(path: Path, whole: Any) -> None:
    """Write compressed JSON without a time stamp, so that equal values give equal bytes."""
    data = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, mtime=0))
    print(f"| `{path.name}` | `{hashlib.sha256(path.read_bytes()).hexdigest()}` |")


if __name__ == "__main__":
    main()
