"""What does a method change besides the banned phrases?

All methods suppress the same phrases, and the untouched model reads their texts. Its surprise at plain samples is its
own entropy rate; the additional surprise at the texts of a method is that method's excess. The excess of the oracle,
rejection sampling with replacement, run naively, is the part that avoiding the phrases must cost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from antislop import BanList
from eval import qualities
from eval.command import Work, answer_question, describe_size
from eval.phrase_lists import RATE, STUDIED, list_phrases
from eval.qualities import Interval, Surprise, estimate, excess_ratio, mean_difference
from eval.reporting import Answer, Cell, Table
from eval.speed import measuring
from eval.writers import (
    BIAS,
    ROOM,
    Task,
    Written,
    draw_prompts,
    instruct,
    write_bad_words,
    write_banned,
    write_biased,
    write_instructed,
    write_masked,
    write_oracle,
    write_plain,
)


class Size(NamedTuple):
    """The number of texts, their length in tokens, the lengths of the lists, and the texts that the lists are from."""

    texts: int
    tokens: int
    lists: tuple[int, ...]
    studied: int = STUDIED


SIZES = {
    "full": Size(400, 150, (20, 200, 2000, 8000)),
    "quick": Size(48, 60, (20, 2000)),
    "smallest": Size(4, 12, (20,)),
    "large, full": Size(128, 60, (500,), studied=256),
}
METHODS: Mapping[str, Callable[[Task, Sequence[str]], Written]] = {
    "exact": write_banned,
    "oracle": write_oracle,
    "token": lambda task, phrases: write_banned(task, phrases, "token"),
    "bad_words_ids": write_bad_words,
    "sequence_bias": write_biased,
    "masking": write_masked,
    "prompt-only": write_instructed,
}


class Measured(NamedTuple):
    """The texts of a method, and the untouched model's surprise at them."""

    written: Written
    texts: list[str]
    surprise: Surprise


class Point(NamedTuple):
    """The excess of a method under a list of `phrases` phrases."""

    phrases: int
    method: str
    excess: Interval


LINES = {  # what a method is called in the picture, its color and its dashes; not all, so that it stays readable
    "bad_words_ids": ("bad_words_ids (lets some through)", "tab:gray", "-"),
    "masking": ("masking the completing token", "tab:red", "-"),
    "token": ("first-token rule", "tab:orange", "-"),
    "exact": ("antislop", "tab:blue", "-"),
    "oracle": ("rejection sampling, the oracle", "black", ":"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question("fidelity", __doc__, answer, arguments)


def answer(work: Work) -> Answer:
    tables: list[Table] = []
    verdicts: list[str] = []
    points: dict[str, list[Point]] = {}
    notes = list(NOTES)
    settings: dict[str, Any] = {}
    for subject, size in work.load_models(SIZES, notes):
        settings |= describe_size(subject, size) | {f"{subject.name}, temperature": subject.temperature}
        table, said, points[subject.name] = measure_model(subject, size, work)
        tables.append(table)
        verdicts += said
    work.out.mkdir(parents=True, exist_ok=True)
    draw_plot(points, work.out / "fidelity.svg")
    return Answer("fidelity", QUESTION, tables, verdicts, LIMITS, notes, settings, "fidelity.svg")


QUESTION = (
    "At equal suppression, how much less natural are the texts of each method, in nats per kept token under the "
    "untouched model, and how much less diverse?"
)
COLUMNS = (
    "phrases",
    "method",
    "leaks per 1,000 tokens",
    "violations per 1,000 tokens",
    "conceded",
    "excess NLL, nats per token",
    "NLL above entropy",
    "distinct-2",
    "distinct-3",
    "shared 4-grams",
)
NOTES = (
    "Excess NLL: the mean over the texts of a method's NLL per token minus that of plain sampling from the same "
    "prompt; 95 % intervals by bootstrap over the prompts. For plain the column contains its NLL itself.",
    "NLL above entropy: NLL per token minus the entropy of the model's distribution at the same positions. It is "
    "0 for plain in expectation, and varies less between texts; it does not count a cost of positions at which "
    "the model is less sure.",
    f"The lists: frequent phrases that occur up to about {RATE} times in 1,000 tokens of plain text (20, or more of a "
    "model that repeats itself little), then phrases that are rare in it; each shorter list is the beginning of a "
    "longer one. All are n-grams of two to four words that the model writes itself, in texts from other seeds.",
    "Leaks are counted in the finished text, in any case and tokenization, by the same rule for all. bad_words_ids and "
    f"sequence_bias (a logit bias of {BIAS:g}) got each phrase in lower case and capitalized, with and without a space "
    "before; both are the same code of transformers, so the same random numbers give nearly the same texts.",
    "masking forbids each token that would write the last letter of a phrase, in the decoded text and so in any "
    "tokenization, as NCO (arXiv 2605.10065) and most logits processors do; it is written for this comparison. "
    "It forbids a token that ends with a phrase even if the next token would go on with the word. bad_words_ids, "
    "sequence_bias and masking also forbid a phrase that begins in the prompt, since a processor can't tell.",
    "prompt-only is plain sampling after the instruction not to use the phrases, as many as fit into "
    f"{ROOM} tokens with the prompt; its texts are read given the prompt alone. A base model obeys no instruction, and "
    "naming a phrase makes it likelier.",
    "distinct-n and shared 4-grams (the share of 4-grams that another text of the method contains, as in "
    "self-BLEU) are computed over all texts of a method, with the same number of tokens for each method.",
    "The sampler with an empty list writes plain, bad_words_ids, sequence_bias, masking and prompt-only; it draws as "
    "generate does. So all methods share their random numbers, and a text is the same under each of them, except "
    "prompt-only, up to its first violation.",
    "If a phrase is a single token of the model, the first-token rule is exact: so the difference between the two "
    "methods is smaller for lists of single words, such as antislop-sampler's largest, than for phrases.",
    "Each interval excludes the true value 1 time in 20 by chance, so one of many goals may be missed by chance, too.",
    "The prompts are openings of the model's own texts; phrases that begin in the prompt don't count. No text "
    "ends early: end tokens are treated like other tokens. Chat models answer requests for the beginnings of stories.",
)
LIMITS = (
    "Small models were sampled without truncation, at temperature 1, where their texts make little sense, and chat "
    "models at 0.7: with min-p or a large model, violations and the cost of avoiding them differ. NLL under the "
    "model that wrote a text measures how natural the text is to that model, not to a reader, and lower is not "
    "better: a method that repeats itself would have a low NLL. The oracle's figure is an estimate too. The lists "
    "are made so that violations are frequent; with rarer violations all differences shrink."
)


def measure_model(subject: measuring.Subject, size: Size, work: Work) -> tuple[Table, list[str], list[Point]]:
    """Return the table of a model, its verdicts on the goal, and the points of its picture.

    All of the vocabulary is drawn from, since the oracle would never end where a list bans all that a truncation keeps.
    """
    subject = replace(subject, sampling={"temperature": subject.temperature, "top_k": 0})
    runs = 1 + len(size.lists) * len(METHODS)
    advance = work.begin(subject.name, runs * size.texts)
    prompts = draw_prompts(subject, max(size.texts, size.studied), work.seed)
    task = Task(subject, prompts[: size.texts], work.seed, advance)
    studied = Task(subject, prompts[: size.studied], work.seed + 1, lambda: None)
    phrases = list_phrases(subject, qualities.decode(subject, write_plain(studied).texts), max(size.lists))
    plain = read(task, Written(write_banned(task, ()).texts))
    level = estimate(mean_difference, plain.surprise.nll, 0 * plain.surprise.nll, seed=work.seed)
    rows: list[list[Cell]] = [describe("–", "plain", plain, f"{level} in all", BanList([]), work.seed)]
    verdicts: list[str] = []
    points: list[Point] = []
    for count in size.lists:
        measured = {name: read(task, write(task, phrases[:count])) for name, write in METHODS.items()}
        bans = BanList(phrases[:count])
        stand = 1000 * qualities.count_leaks(bans, plain.texts) / sum(map(len, plain.written.texts))
        rows.append([f"{count:,}", "plain", stand, *[None] * (len(COLUMNS) - 3)])
        for name, own in measured.items():
            excess = estimate(mean_difference, own.surprise.nll, plain.surprise.nll, seed=work.seed)
            rows.append(describe(f"{count:,}", name, own, str(excess), bans, work.seed))
            points.append(Point(count, name, excess))
        named = instruct(task, phrases[:count])[1]
        verdicts.append(
            f"{subject.name}, {count:,} phrases: {judge(measured, plain, work.seed)}; "
            f"prompt-only names {named:,} of them"
        )
    return Table(subject.name, COLUMNS, rows), verdicts, points


def read(task: Task, written: Written) -> Measured:
    texts = qualities.decode(task.subject, written.texts)
    return Measured(written, texts, qualities.read_surprise(task.subject, task.prompts, written.texts))


def describe(count: str, name: str, own: Measured, excess: str, bans: BanList, seed: int) -> list[Cell]:
    tokens = sum(map(len, own.written.texts))
    violations = own.written.violations
    return [
        count,
        name,
        1000 * qualities.count_leaks(bans, own.texts) / tokens if len(bans) else None,
        None if violations is None else 1000 * violations / tokens,
        own.written.conceded,
        excess,
        str(estimate(mean_difference, own.surprise.nll, own.surprise.entropy, seed=seed)),
        qualities.measure_distinct(own.texts, 2),
        qualities.measure_distinct(own.texts, 3),
        qualities.measure_overlap(own.texts),
    ]


def judge(measured: Mapping[str, Measured], plain: Measured, seed: int) -> str:
    """Say whether the exact method's excess is the oracle's, and below the first-token rule's."""
    exact, oracle, token = (measured[name].surprise for name in ("exact", "oracle", "token"))
    same = estimate(mean_difference, exact.nll, oracle.nll, seed=seed)
    below = estimate(mean_difference, exact.nll, token.nll, seed=seed)
    surer = estimate(mean_difference, exact.nll - exact.entropy, token.nll - token.entropy, seed=seed)
    ratio = estimate(excess_ratio, exact.nll, token.nll, plain.surprise.nll, seed=seed)
    return (
        f"exact minus oracle {same}: {'met' if same.low <= 0 <= same.high else 'missed'} (0 is in the interval); "
        f"exact minus token {below}: {judge_below(below)}; above the entropy {surer}: {judge_below(surer)}; "
        f"exact's excess is {ratio} of token's (0.69 in a prototype)"
    )


def judge_below(difference: Interval) -> str:
    return "met" if difference.high < 0 else "missed" if difference.low > 0 else "not decided by this number of texts"


def draw_plot(points: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Draw the excess of each method over the length of the list, a panel for each model."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "antislop"  # the same figures, the same file
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, max(1, len(points)), figsize=(9, 3.8), sharey=True, squeeze=False)
    for panel, (model, own) in zip(panels[0], points.items(), strict=False):
        lists = sorted({point.phrases for point in own})
        for method, (label, color, dashes) in LINES.items():
            excesses = [point.excess for point in own if point.method == method]
            spread = [[e.value - e.low for e in excesses], [e.high - e.value for e in excesses]]
            places = [place + 0.06 * (list(LINES).index(method) - 2) for place in range(len(excesses))]
            panel.errorbar(
                places, [e.value for e in excesses], yerr=spread, label=label, color=color, linestyle=dashes,
                marker="o", markersize=4, capsize=2,
            )  # fmt: skip
        panel.set_xticks(range(len(lists)), [f"{count:,}" for count in lists])
        panel.set(title=model, xlabel="phrases banned")
        panel.grid(axis="y", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("extra nats per token, 95 % intervals")
    panels[0][0].set_ylim(0, None)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
