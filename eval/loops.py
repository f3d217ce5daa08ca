"""Do texts end in a loop, with `antislop.loops()` and with other ways against repetition, and what do they say instead?

The texts are kept in build/loops: an interrupted run goes on, and more texts or arms are added to those that are there.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import antislop
from eval import ROOT
from eval.command import Work, answer_question, describe_size
from eval.loop_writers import ARMS, GREEDY, TEMPERATURES, Text, choose_openings, write_texts
from eval.people import quote
from eval.qualities import estimate
from eval.repetition import HELD, Ending, count_held, describe_held, find_ending, measure_own_distinct, read_end
from eval.reporting import Answer, Cell, Table
from eval.speed.measuring import Subject

END = 200  # tokens at the end of a text, whose words and likelihood are compared
GRAM = 3  # words of the n-grams
SHOWN, EXCERPT = 3, 150  # texts of which the table shows what they say, and characters of each
COLORS = {GREEDY: "tab:blue", 0.3: "tab:cyan"}


class Size(NamedTuple):
    """The texts of each arm and temperature, and how many of them the untouched model reads."""

    texts: int
    tokens: int
    read: int


SIZES = {
    "full": Size(200, 480, 10),  # the bundled model has 512 positions
    "quick": Size(10, 200, 4),
    "smallest": Size(2, 24, 2),
    "large, full": Size(20, 1000, 5),
    "chat, full": Size(100, 400, 10),
}
OPTIONS = {
    "texts": {"type": int, "help": "of each arm and temperature (default: by setting)"},
    "tokens": {"type": int, "help": "of a text at most (default: by setting)"},
    "temperatures": {"nargs": "+", "type": float, "choices": list(TEMPERATURES), "help": "0 is greedy (default: all)"},
    "arms": {"nargs": "+", "choices": list(ARMS), "help": "ways to write (default: all)"},
}
QUESTION = "How many texts end in a loop, and what do they say if they don't?"
COLUMNS = (
    "method",
    "texts",
    "end in copies, %",
    "end in a loop by loops(), %",
    "a loop anywhere, %",
    "withdrawn per kept token",
    "conceded",
    "tokens per text",
    f"distinct-{GRAM} of the end",
    "NLL of the end, nats per token",
)
NOTES = (
    "Texts end with the model's own end token, or at the most tokens. Nothing is cut from the distribution. Intervals "
    "are of 95 %: Wilson's for shares, by bootstrap over the texts for means.",
    "End in copies: of the last 300 characters, or of twice a passage of up to 1,000 characters if that is longer, "
    "90 % equal those one passage earlier. This measure knows nothing of the matcher. End in a loop by loops(): a loop "
    "as the guide defines it reaches into the last 300 characters.",
    f"The end: a text's last {END} tokens. Distinct-{GRAM}: the share of distinct {GRAM}-grams of words in it, mean of "
    "the texts. NLL: minus the logarithm of the tokens' probabilities under the untouched model, given all before; of "
    "the first texts only. A loop is likely once it has begun: its NLL is near 0, and less is not better.",
    "DRY: as in llama.cpp, over prompt and text, with its usual breakers (line feed, colon, quote, asterisk).",
    "Held back: how many tokens a stream of the texts under loops() has not yet shown after each of their tokens; "
    "1 is the least, with any list.",
)
LIMITS = (
    "These are small models, without truncation. Base models write from openings alone; larger models that follow "
    "instructions loop less, and in other shapes. Neither measure judges meaning: a text that ends in no loop may "
    "still say little."
)


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question("loops", __doc__, answer, arguments, options=OPTIONS)


def answer(work: Work) -> Answer:
    """Let each model write in all ways, and compare how their texts end."""
    notes, verdicts, tables, held = list(NOTES), list[str](), list[Table](), list[Sequence[Cell]]()
    settings: dict[str, Any] = {}
    shares: dict[str, dict[float, dict[str, float]]] = {}
    for subject, size in work.load_models(choose_sizes(work), notes):
        settings |= describe_size(subject, size)
        written = write_all(subject, size, work)
        for temperature, texts in written.items():
            title = f"{subject.name}, {TEMPERATURES[temperature]}"
            endings = {arm: [find_ending(text.text) for text in own] for arm, own in texts.items()}
            rows = [describe(subject, arm, texts[arm], endings[arm], size, work.seed) for arm in texts]
            tables.append(Table(title, COLUMNS, rows))
            verdicts += judge(title, endings)
            sizes = [size for text in texts.get("loops", ()) for size in count_held(subject, text.opening, text.tokens)]
            held += [[title, *describe_held(sizes)]] if sizes else []
            own_shares = {arm: float(np.mean([ending.is_copied for ending in own])) for arm, own in endings.items()}
            shares.setdefault(subject.name, {})[temperature] = own_shares
        tables += show_texts(subject.name, written.get(GREEDY, {}))
    tables.append(Table("Held back from streams, tokens", HELD, held))
    work.out.mkdir(parents=True, exist_ok=True)
    draw_plot(shares, work.out / "loops.svg")
    return Answer("loops", QUESTION, [t for t in tables if t.rows], verdicts, LIMITS, notes, settings, "loops.svg")


def choose_sizes(work: Work) -> dict[str, Size]:
    """Return the sizes, with what the command line gives in place of theirs."""
    given = {name: work.options[name] for name in ("texts", "tokens") if work.options.get(name)}
    return {name: size._replace(**given) for name, size in SIZES.items()}


def write_all(subject: Subject, size: Size, work: Work) -> dict[float, dict[str, list[Text]]]:
    """Return the texts by temperature and arm."""
    arms, temperatures = (work.options.get(name) for name in ("arms", "temperatures"))
    tasks = list(product(temperatures or TEMPERATURES, arms or ARMS))
    openings, folder = choose_openings(subject, size.texts), ROOT / "build" / "loops"
    write = partial(write_texts, subject, openings=openings, folder=folder, seed=work.seed)
    advance = work.begin(subject.name, len(tasks))
    written: dict[float, dict[str, list[Text]]] = {}
    for temperature, arm in tasks:
        written.setdefault(temperature, {})[arm] = write(arm, temperature)
        advance()
    return written


def describe(
    subject: Subject, arm: str, texts: Sequence[Text], endings: Sequence[Ending], size: Size, seed: int
) -> list[Cell]:
    """Return the row of a method."""
    kept = sum(len(text.tokens) for text in texts)
    ends = [subject.tokenizer.decode(text.tokens[-END:], skip_special_tokens=True) for text in texts]
    distinct = np.array([measure_own_distinct(end, GRAM) for end in ends])
    read = [text for text in texts if text.tokens][: size.read]
    nll = np.array([read_end(subject, text.opening, text.tokens, last=END) for text in read])
    has_bans = ARMS[arm].bans is not None
    return [
        ARMS[arm].label,
        len(texts),
        show_share([ending.is_copied for ending in endings]),
        show_share([ending.is_loop for ending in endings]),
        show_share([bool(antislop.loops().find(text.text)) for text in texts]),
        sum(text.withdrawn for text in texts) / max(1, kept) if has_bans else None,
        sum(text.conceded for text in texts) if has_bans else None,
        kept / len(texts),
        str(estimate(np.mean, distinct, seed=seed)),
        str(estimate(np.mean, nll, seed=seed)),
    ]


def show_share(hits: Sequence[bool]) -> str:
    """Return a share in percent with its 95 % interval by Wilson.

    >>> show_share([True, False])
    '50.0 (9.5 … 90.5)'
    """
    from scipy.stats import binomtest

    share = binomtest(sum(hits), len(hits)).proportion_ci(method="wilson")
    return f"{100 * np.mean(hits):.1f} ({100 * share.low:.1f} … {100 * share.high:.1f})"


def judge(title: str, endings: Mapping[str, Sequence[Ending]]) -> list[str]:
    """Return how many texts end in a loop under the ban, and how often the two measures disagree."""
    both = Counter(ending for own in endings.values() for ending in own)
    verdicts = [
        f"{title}: of {both.total()} texts of all methods, {both[True, True]} end in a loop by both measures, "
        f"{both[True, False]} in copies alone, {both[False, True]} by loops() alone."
    ]
    if own := endings.get("loops"):
        looping = sum(map(any, own))
        met = "missed" if looping else "met"
        verdicts.insert(
            0, f"{title}: {looping} of {len(own)} texts end in a loop under loops(), by any measure ({met})."
        )
    return verdicts


def show_texts(name: str, texts: Mapping[str, Sequence[Text]]) -> list[Table]:
    """Return what the first looping texts say from the loop's second copy on, and what they say under loops()."""
    rows: list[list[Cell]] = []
    for plain, banned in zip(texts.get("plain", ()), texts.get("loops", ()), strict=False):
        if len(rows) < SHOWN and (found := antislop.loops().find(plain.text)):
            start = found[0].start
            rows.append(
                [
                    quote(text, EXCERPT)
                    for text in (plain.text[:start][-EXCERPT:], plain.text[start:], banned.text[start:])
                ]
            )
    return [Table(f"{name}: what greedy texts say", ("before the loop", "plain", "with loops()"), rows)]


def draw_plot(ends: Mapping[str, Mapping[float, Mapping[str, float]]], path: Path) -> None:
    """Draw the share of texts that end in copies, by method; a panel for each model, a bar for each temperature."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "antislop"  # the same figures, the same file
    import matplotlib.pyplot as plt

    if not ends:
        return
    figure, panels = plt.subplots(1, len(ends), figsize=(8, 2.6), sharey=True, squeeze=False, layout="constrained")
    for panel, (name, shares) in zip(panels[0], ends.items(), strict=True):
        for place, (temperature, by_arm) in enumerate(shares.items()):
            values = [100 * share for share in reversed(by_arm.values())]
            height = 0.8 / len(shares)
            places = [number - place * height for number in range(len(values))]
            label = TEMPERATURES[temperature]
            bars = panel.barh(places, values, height=height, color=COLORS[temperature], label=label)
            panel.bar_label(bars, [f"{value:.3g} %" for value in values], padding=3, fontsize=8)
        middles = [number - 0.4 + height / 2 for number in range(len(by_arm))]
        panel.set_yticks(middles, [ARMS[arm].label for arm in reversed(by_arm)])
        panel.set_title(f"texts that end in copies of a passage, {name}", fontsize=9)
        panel.margins(x=0.15)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
        panel.tick_params(bottom=False, labelbottom=False, left=False)
    panels[0, -1].legend(fontsize=8, frameon=False, loc="lower right")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
