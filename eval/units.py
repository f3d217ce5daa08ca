"""What does it cost to draw more than the ban again: its word, its sentence, its paragraph or all, and what is gained?

The texts are kept in build/units: an interrupted run goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from antislop.measure.languages import ENGLISH
from antislop.measure.words import extract_words
from eval import ROOT, aprad
from eval.command import Work, answer_question, describe_size
from eval.qualities import Interval, estimate, mean_difference
from eval.reporting import Answer, Cell, Table
from eval.speed.measuring import Subject
from eval.unit_writers import KINDS, PLAIN, READ, STOP_WORDS, UNITS, Text, are_limited, write_texts


class Size(NamedTuple):
    """The texts of each kind of bans and unit, and their tokens, at most."""

    texts: int
    tokens: int


SIZES = {"full": Size(1000, 40), "quick": Size(8, 24), "smallest": Size(2, 8)}
LETTER = 'the letter "e"'
INSIDE = (PLAIN, "span", "word")
QUESTION = "What does each unit to which bans lead back cost, and what does the text gain?"
COLUMNS = (
    "bans",
    "rewind",
    "texts",
    "forward passes per kept token",
    "withdrawn per kept token",
    "excess, nats per kept token",
    "texts with a ban let through",
)
HALF = ("texts", "words", "not in wordfreq", "per 1,000 words", "above plain texts")
NOTES = (
    "Chat models draw at temperature 0.7 and top-p 0.95. Each text has all of its tokens: 40, 24 without the letter, "
    f"12 without the stop words ({', '.join(STOP_WORDS)}). All arms share their requests and their random numbers.",
    f"Excess: nats per kept token of the first {READ} texts under the untouched model, minus those of the plain texts "
    "after the same requests, with 95 % intervals by bootstrap over the texts.",
    "Constructions are rare in most answers. So the requests ask for one, and only those texts are written under the "
    "bans whose plain text contains one: the others would be the same.",
    "Limits: the sampler lets a ban through after 100 rewinds to one place, or after 16 withdrawn tokens for each that "
    "is asked for. Where that happens in half of the first texts or more, no more are written, and the row has no "
    "excess: the passes are a lower bound.",
    "Half words are letters in a row that wordfreq's list of English words does not contain. Names and foreign words "
    "are among them, in plain texts, too. Intervals of the difference by bootstrap over the texts.",
    "Beside AprAD: the divergence is KL(method to ideal) in nats; the ideal is the model conditioned on texts without "
    "a ban; means over 5 random models. That of the units and of constrained decoding is computed, that of AprAD and "
    "ASAp drawn, less the mean divergence of as many draws of the ideal. Both are written from the formulas of arXiv "
    "2410.01103, whose figures stand beside. In the paper's cases a ban is the whole text, so all units are the same. "
    "AprAD's curve goes from constrained decoding over AprAD to ASAp.",
)
LIMITS = (
    "This is one small model, with few texts where they are dear. To avoid what a model would write costs likelihood, "
    "so no method reaches an excess of 0. A lower excess says that the model finds a text more natural, not that a "
    "reader does."
)


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question("units", __doc__, answer, arguments)


def answer(work: Work) -> Answer:
    notes, tables, verdicts, settings = list(NOTES), list[Table](), list[str](), dict[str, Any]()
    points: dict[str, dict[str, Point]] = {}
    for subject, size in work.load_models(SIZES, notes):
        settings |= describe_size(subject, size)
        written = write_all(subject, size, work)
        rows = list[list[Cell]]()
        for name, texts in written.items():
            for unit in UNITS:
                point = measure(texts[unit], texts[PLAIN], seed=work.seed)
                rows.append([name, unit, len(texts[unit]), *point.describe(), sum(t.conceded > 0 for t in texts[unit])])
                points.setdefault(f"{subject.name}, {name}", {})[unit] = point
        tables.append(Table(f"{subject.name}: passes and likelihood", COLUMNS, rows))
        half, verdict = count_half_words(written[LETTER], seed=work.seed)
        tables.append(Table(f"{subject.name}: half words without {LETTER}", ("rewind", *HALF), half))
        verdicts.append(f"{subject.name}: {verdict}")
    beside, verdict = aprad.compare(work)
    work.out.mkdir(parents=True, exist_ok=True)
    draw_plot(points, work.out / "units.svg")
    return Answer("units", QUESTION, [*tables, beside], [*verdicts, verdict], LIMITS, notes, settings, "units.svg")


def write_all(subject: Subject, size: Size, work: Work) -> dict[str, dict[str, list[Text]]]:
    """Return the texts by kind and unit."""
    advance, written = work.begin(subject.name, len(KINDS) * (1 + len(UNITS))), dict[str, dict[str, list[Text]]]()
    for name in KINDS:
        for unit in (PLAIN, *UNITS):
            written.setdefault(name, {})[unit] = write_texts(
                subject, name, unit, ROOT / "build" / "units", seed=work.seed, most=size.texts, tokens=size.tokens
            )
            advance()
    return written


class Point(NamedTuple):
    """What a unit costs per kept token, and the excess of its texts; None where bans were let through."""

    passes: float
    withdrawn: float
    excess: Interval | None

    def describe(self) -> list[Cell]:
        return [self.passes, self.withdrawn, None if self.excess is None else str(self.excess)]


def measure(texts: Sequence[Text], plain: Sequence[Text], *, seed: int) -> Point:
    kept = max(1, sum(len(text.tokens) for text in texts))
    passes, withdrawn = (sum(getattr(text, name) for text in texts) / kept for name in ("passes", "withdrawn"))
    before = {text.number: text.nll for text in plain if text.nll is not None}
    pairs = [(text.nll, before[text.number]) for text in texts if text.nll is not None and text.number in before]
    if are_limited(texts) or len(pairs) < 2:
        return Point(passes, withdrawn, None)
    ours, theirs = np.array(pairs, dtype=float).T
    return Point(passes, withdrawn, estimate(mean_difference, ours, theirs, seed=seed))


def count_half_words(texts: Mapping[str, Sequence[Text]], *, seed: int) -> tuple[list[list[Cell]], str]:
    """Return the rows of plain texts and of two units, and whether `word` has no more half words than plain texts."""
    known, counts, rows = ENGLISH.frequencies, dict[str, Any](), list[list[Cell]]()
    for unit in INSIDE:
        words = [extract_words(text.text) for text in texts[unit]]
        counts[unit] = np.array([[len(own), sum(word not in known for word in own)] for own in words], dtype=float).T
        total, half = (int(figure) for figure in counts[unit].sum(axis=1))
        above = None if unit == PLAIN else estimate(differ, *counts[unit], *counts[PLAIN], seed=seed)
        rows.append([unit, len(words), total, half, 1000 * half / total, None if above is None else str(above)])
    assert above is not None
    met = "met" if above.low <= 0 else "missed"
    return rows, f'half words per 1,000 with rewind="word", above plain texts: {above} ({met}: 0 is in the interval)'


def differ(words: Any, half: Any, plain_words: Any, plain_half: Any, axis: int = -1) -> Any:
    return 1000 * (half.sum(axis) / words.sum(axis) - plain_half.sum(axis) / plain_words.sum(axis))


def draw_plot(points: Mapping[str, Mapping[str, Point]], path: Path) -> None:
    """Draw the excess over the passes, a line for each kind of bans with a mark for each unit."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "antislop"  # the same figures, the same file
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for name, own in points.items():
        shown = {unit: point for unit, point in own.items() if point.excess is not None}
        passes = [point.passes for point in shown.values()]
        line = panel.plot(passes, [point.excess.value for point in shown.values()], linewidth=1, label=name)  # type: ignore[union-attr]
        for mark, unit in zip("osD^v", UNITS, strict=True):
            if unit in shown:
                panel.plot(*[[shown[unit].passes], [shown[unit].excess.value]], mark, color=line[0].get_color())  # type: ignore[union-attr]
    for mark, unit in zip("osD^v", UNITS, strict=True):
        panel.plot([], [], mark, color="tab:gray", label=f'rewind="{unit}"')
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter("{x:g}")
    panel.set(xlabel="forward passes per kept token", ylabel="extra nats per kept token")
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=8, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
