"""Do the metrics reproduce the published values? Eleven models of the slop-score leaderboard, and its human row.

    python -m eval.published --assets ASSETS

Measures the leaderboard's own texts with its own lists, and with the bundled scale; prints the tables and writes them
to eval/published.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import bootstrap, spearmanr

from antislop.files.texts import read_texts
from antislop.measure.estimates import Estimate
from antislop.measure.human_distance import Distance, load_human, measure_distance
from antislop.measure.metrics import Tally, measure
from antislop.measure.slop import PUBLISHED_RANGES, WEIGHTS, Scale
from antislop.measure.words import extract_words
from eval.passages import cut_passages

COMPARED = ("slop_words", "slop_trigrams", "contrasts", "repetition", "mattr_500", "slop_score")
HEAD = ("| | texts | " + " | ".join(COMPARED) + " |", "|---|---|" + "---|" * len(COMPARED))
SHORT = 300  # characters: the published score leaves out outputs that are no longer
HUMAN = "human-baseline"
ANSWERS = "answers to writing prompts"
HUMAN_TEXTS = 83  # of the published row
SEED = 0

Grouped = tuple[str | None, str]
"""What tells a text's prompt or book apart, None where no other text has it, and the text."""


class Measured(NamedTuple):
    estimates: dict[str, Estimate]
    distance: Distance
    texts: int


def read_leaderboard(path: Path) -> dict[str, dict[str, float]]:
    """Return the published values by model and metric, the score computed from the three that it is made of."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = json.load(file)["results"]
    return {row["model"].rsplit("/", maxsplit=1)[-1]: _name(row["metrics"]) for row in rows}


def _name(metrics: Mapping[str, Any]) -> dict[str, float]:
    values = {
        "slop_words": metrics["slop_list_matches_per_1k_words"],
        "slop_trigrams": metrics["slop_trigram_matches_per_1k_words"],
        "contrasts": metrics["not_x_but_y_per_1k_chars"],
        "repetition": metrics["ngram_repetition_score"],
        "mattr_500": metrics["lexical_diversity"]["mattr_500"],
    }
    score = 0.0
    for name, weight in WEIGHTS.items():
        low, high = PUBLISHED_RANGES[name].widen()
        score += 100 * weight * min(1.0, max(0.0, (values[name] - low) / (high - low)))
    return {**values, "slop_score": score}


def read_human(assets: Path) -> Iterator[tuple[str, list[Grouped]]]:
    """Yield the kinds of human texts with their texts."""
    books = list(read_texts([assets / "human"]))
    yield "novels before 1930, whole", [(None, book.text) for book in books]
    yield (
        "the same in passages of 500 words",
        [(book.place, passage) for book in books for passage in cut_passages(book.text)],
    )
    answers = read_texts([assets / "llm" / "writingprompts_pairs" / "gpt2-xl.jsonl.gz"], column="human")
    # the beginning of an answer stands for its prompt; answers may share one
    yield ANSWERS, [(" ".join(extract_words(text.text)[:10]), text.text) for text in answers]


def measure_texts(texts: Iterable[Grouped], scale: Scale) -> Measured:
    """Measure the texts that are long enough; the bootstrap resamples whole prompts or books."""
    tally = Tally(scale)
    for group, text in texts:
        if len(text) > SHORT:
            tally.add(text, group=group)
    return Measured(measure(tally, seed=SEED), measure_distance(tally, seed=SEED), len(tally))


def show(estimate: Estimate, *, digits: int | None = None) -> str:
    """Return a value with its interval, or a dash where it is undefined."""
    if estimate.value is None:
        return "–"
    if digits is None:
        digits = 3 if abs(estimate.value) < 1 else 2 if abs(estimate.value) < 10 else 1
    if estimate.low is None:
        return f"{estimate.value:.{digits}f}"
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f}–{estimate.high:.{digits}f})"


def tabulate(rows: Mapping[str, Measured], published: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a table of what was published, if it was, and what was measured."""
    lines = list(HEAD)
    for title, row in rows.items():
        if title in published:
            values = " | ".join(f"{published[title][name]:.3f}" for name in COMPARED)
            lines.append(f"| {title}, published | | {values} |")
        lines.append(
            f"| {title} | {row.texts:,} | " + " | ".join(show(row.estimates[name]) for name in COMPARED) + " |"
        )
    return lines


def correlate(rows: Mapping[str, Measured], published: Mapping[str, Mapping[str, float]]) -> dict[str, Estimate]:
    """Return Spearman's rank correlation of measured and published values by metric, bootstrapped over the models."""
    found = {}
    for name in COMPARED:
        pairs = ([row.estimates[name].value for row in rows.values()], [published[title][name] for title in rows])
        drawn = bootstrap(
            pairs, _correlate, paired=True, vectorized=False, method="percentile", n_resamples=1000, rng=SEED
        )
        found[name] = Estimate(_correlate(*pairs), *drawn.confidence_interval)
    return found


def _correlate(measured: Sequence[float], published: Sequence[float]) -> float:
    return float(spearmanr(measured, published).statistic)


def report(assets: Path) -> list[str]:
    """Measure all texts, and return the report's lines."""
    began = time.monotonic()
    lists = assets / "lists"
    published = read_leaderboard(lists / "slop_score_leaderboard.json.gz")
    theirs = Scale.read(
        lists / "slop_score_slop_list.json",
        lists / "slop_score_trigrams.json",
        lists / "forensics_human_slop_profile.json",
        ranges=PUBLISHED_RANGES,
    )
    scales = {"published lists": theirs, "the bundled scale": Scale.load()}
    paths = {path.name.removesuffix(".jsonl.gz"): path for path in sorted((assets / "llm/slop_score").glob("*.gz"))}
    outputs = {title: [(text.prompt, text.text) for text in read_texts([path])] for title, path in paths.items()}
    human = dict(read_human(assets))
    lines = ["# Do the metrics reproduce the published values?", "", *ABOUT]
    models: dict[str, dict[str, Measured]] = {}
    people: dict[str, dict[str, Measured]] = {}
    for name, scale in scales.items():
        models[name] = {title: measure_texts(texts, scale) for title, texts in outputs.items()}
        people[name] = {title: measure_texts(texts, scale) for title, texts in human.items()}
    lines += ["", "## Rank correlation with the published values, 11 models", ""]
    correlations = {name: correlate(rows, published) for name, rows in models.items()}
    lines += ["| Spearman's rho | " + " | ".join(COMPARED) + " |", "|---|" + "---|" * len(COMPARED)]
    for name, found in correlations.items():
        lines.append(f"| {name} | " + " | ".join(show(found[metric], digits=3) for metric in COMPARED) + " |")
    for name in scales:
        lines += ["", f"## Models, {name}", "", *tabulate(models[name], published)]
    lines += ["", "## People", "", *tabulate_people(people, published[HUMAN]), "", *ON_PEOPLE]
    lines += ["", "## Distance to human, the bundled scale", "", *tabulate_distance(models, people)]
    seconds = time.monotonic() - began
    return [*lines, "", *LIMITS, "", *describe_run(seconds)]


def tabulate_people(people: Mapping[str, Mapping[str, Measured]], published: Mapping[str, float]) -> list[str]:
    """Return the table of human texts: the published row, then those of both scales."""
    lines = list(HEAD)
    values = " | ".join(f"{published[name]:.3f}" for name in COMPARED)
    lines.append(f"| published | {HUMAN_TEXTS} | {values} |")
    for scale, rows in people.items():
        for title, row in rows.items():
            measured = " | ".join(show(row.estimates[name]) for name in COMPARED)
            lines.append(f"| {title}; {scale} | {row.texts:,} | {measured} |")
    return lines


def tabulate_distance(
    models: Mapping[str, Mapping[str, Measured]], people: Mapping[str, Mapping[str, Measured]]
) -> list[str]:
    """Return the distances to the novels, the nearest texts first, with their farthest metrics."""
    scale = "the bundled scale"
    rows = {**models[scale], f"*{ANSWERS}*": people[scale][ANSWERS]}
    ordered = sorted(rows.items(), key=lambda item: item[1].distance.overall.value or 0.0)
    lines = ["| texts | overall | farthest |", "|---|---|---|"]
    for title, row in ordered:
        parts = [(name, each.value) for name, each in row.distance.metrics.items() if each.value is not None]
        farthest = sorted(parts, key=lambda part: -abs(part[1]))[:3]
        named = ", ".join(f"{name} {value:+.1f}" for name, value in farthest)
        lines.append(f"| {title} | {show(row.distance.overall)} | {named} |")
    return lines


def describe_run(seconds: float) -> list[str]:
    """Return the command, the machine, the versions and the date of the measurement."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "regex"))
    day = datetime.now(timezone.utc).date().isoformat()
    scale = Scale.load().fingerprint
    return [
        f"`python -m eval.published --assets ASSETS`: {day}, {seconds:.0f} s on one core of {platform.machine()}, "
        f"Python {platform.python_version()}, {packages}; seed {SEED}, 1,000 resamples of prompts or books, "
        f"95 % intervals; scale {scale}, human values of scale {load_human().scale}.",
    ]


ABOUT = (
    "The leaderboard of slop-score (https://github.com/sam-paech/slop-score, commit 289264ab2a, MIT) has 23 rows. "
    "For 11 of them the models' outputs are published: answers to the same 300 prompts, half of them fiction and "
    "half essays (claude-sonnet-4-5 and gemma-3-4b-it: the 150 of fiction). They are measured here with the "
    "published lists and with the bundled scale. Intervals are 95 % intervals by bootstrap over prompts, with one "
    "text per model and prompt, and over books. Outputs of up to 300 characters are left out, as in the published "
    "score.",
    "",
    "The published trigrams are counted over all words, three in a row, per 1,000 words, although the list "
    "contains no stop words; counted over content words they are 1.5 to 3.8 times as many. The bundled scale "
    "counts them over content words.",
)
ON_PEOPLE = (
    "The published human row was computed from 83 texts, 17.2 million words, that are not published; by their "
    "length they are whole books. Compared with it, MATTR-500 lies within the interval of the novels here, and "
    "trigrams and contrasts within those of the answers. Slop words don't: both novels and answers contain fewer. "
    "The novels are from before 1930, and the list contains words that were not in fashion then; the answers are "
    "about 157 words long, lack their paragraphs, and come from one forum. Repetition doesn't either: it falls "
    "with the amount of text, and is computed against 200 bigrams and 200 trigrams, outside of which all n-grams "
    "count as equally rare. Against the bundled 20,000 of each, which were counted in the same novels, the "
    "novels' own repetition is low, 1.2 to 1.7, by construction.",
)
LIMITS = (
    "This does not show that the score measures what readers dislike. Eleven models are few, and some are "
    "versions of each other; the wide intervals of the correlations reflect that. Levels of contrasts and "
    "repetition differ from the published ones: there are eight regexes here and 45 patterns there, 35 of them on "
    "parts of speech; the list of stop words is another, and n-grams here don't cross from one text into the "
    "next. Of the bundled scale the trigrams agree least: they are other trigrams, counted over content words. "
    "The published words were chosen on outputs of such models, and the bundled ones on half of the prompts of "
    "these same texts, so no model's score here is held out. Nor are all of the answers: 150 of the 500 were "
    "among the human texts that the bundled words were chosen against. gemma-3-27b-it-antislop was trained not to "
    "write the published words: compared with gemma-3-27b-it, its score falls by over two thirds with the "
    "published lists, and by less with the bundled scale, which it was not trained on. The distance to human "
    "writing counts standard deviations between pages of old novels; the bundled words were chosen for being "
    "absent from these, so distances in slop are high by construction. Compare them with the distance of the "
    "answers.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets", type=Path, required=True, help="the folder with human, llm and lists")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    text = "\n".join(report(arguments.assets)) + "\n"
    arguments.out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
