"""How far is each way to ban phrases from rejection sampling with replacement?

The models are so small that the distribution of whole texts can be computed: for the oracle, for plain sampling, for
the first-token rule and for transformers' own processors. Only the sampler's own texts are drawn, since the sampler is
under test; the distance of equally many draws from the computed distribution is printed beside them.

Two more tables repeat what papers report of whole texts: the distance and the cost of AprAD's three cases, and the
passes that the bundled model needs for a text without a ban.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import NoBadWordsLogitsProcessor, SequenceBiasLogitsProcessor

from antislop import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.loop.sampling import Method
from antislop.measure.languages import ENGLISH
from antislop.measure.words import extract_words
from eval import qualities
from eval.command import Work, answer_question
from eval.reporting import Answer, Cell, Table
from eval.speed import measuring
from eval.writers import Task, write_banned, write_plain
from tests.support import oracles, toys

Tokens = tuple[int, ...]
Distribution = Mapping[Tokens, float]
State = tuple[Tokens, frozenset[tuple[Tokens, int]]]
"""A state of the first-token rule: the text, and the bans whose weights were applied to tokens."""

DRAWS = {"full": 40_000, "quick": 4_000, "smallest": 200}
APRAD_DRAWS = {"full": 10_000, "quick": 1_000, "smallest": 50}
RARE = 1e-9  # the probability of a state that is not followed
REPETITIONS = 200  # of the oracle's own draws
NOTHING = -1  # stands for the prompt where a processor would read it: equal to no token
QUANTILES = (2.5, 97.5)


class Case(NamedTuple):
    """A vocabulary, its bans, and the tokenizations of them that one would pass to transformers.

    sharpness: of the model's logits; with 0, all texts are equally likely.
    """

    name: str
    words: toys.Words
    bans: Sequence[Ban]
    spelled: Sequence[Tokens] = ()
    length: int = 4
    sharpness: float = 1.0

    def model(self, seed: int, processors: Sequence[Any] = ()) -> toys.Markov:
        """Return a random model for it."""
        size = len(self.words)
        return toys.Markov(size, seed=seed, sharpness=self.sharpness, length=self.length, processors=processors)


def anywhere(phrase: str, weight: float = 0.0) -> Ban:
    """Return a ban that ignores word edges, since the vocabularies have no spaces."""
    return Ban(phrase, weight=weight, edges="anywhere", rewind="span")


LETTERS = toys.Words("a", "b", "c", "d")
CASES = (
    Case("single words", LETTERS, [anywhere("a")], [(0,)]),
    Case("a phrase", LETTERS, [anywhere("ab")], [(0, 1)]),
    Case(
        "overlapping", LETTERS, [anywhere("abc"), anywhere("bcd"), anywhere("cda")], [(0, 1, 2), (1, 2, 3), (2, 3, 0)]
    ),
    Case(
        "shared prefixes", LETTERS, [anywhere("ab"), anywhere("acd"), anywhere("aca")], [(0, 1), (0, 2, 3), (0, 2, 0)]
    ),
    Case("weights", LETTERS, [anywhere("ab", 0.3), anywhere("cd", 0.1)], [(0, 1), (2, 3)]),
    Case("several tokenizations", toys.Words("a", "b", "ab", "c"), [anywhere("abc")], [(2, 3)]),
)


class Published(NamedTuple):
    """A case of AprAD's Table 1.

    figures: the divergence and the model calls per token that the paper reports, by method.
    """

    case: Case
    figures: Mapping[str, tuple[float, float]]


def allow(name: str, is_allowed: Callable[[str], bool]) -> Case:
    """Return a case whose texts are three letters out of three; it bans each text that is not allowed."""
    texts = map("".join, product("ABC", repeat=3))
    bans = [anywhere(text) for text in texts if not is_allowed(text)]
    return Case(name, toys.Words("A", "B", "C"), bans, length=3, sharpness=0.0)


APRAD = (
    Published(
        allow("AAA banned", lambda text: text != "AAA"),
        {"ASAp": (0.0014, 1.020), "constrained": (0.0075, 1.000), "AprAD": (0.0046, 1.004)},
    ),
    Published(
        allow("A** banned, but for AAC", lambda text: text[0] != "A" or text == "AAC"),
        {"ASAp": (0.0014, 1.232), "constrained": (0.384, 1.113), "AprAD": (0.154, 1.205)},
    ),
    Published(
        allow("*** banned, but for four", lambda text: text in ("AAA", "AAB", "ABA", "BAA")),
        {"ASAp": (0.0, 3.64), "constrained": (0.177, 1.67), "AprAD": (0.052, 2.14)},
    ),
)
METHODS: tuple[Method, ...] = ("token", "exact", "text")


class Size(NamedTuple):
    """The acceptance rates to come near, the texts of each method, and the plain texts that are accepted or not."""

    rates: tuple[float, ...]
    texts: int
    plain: int


SIZES = {
    "full": Size((0.9, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01), 200, 4000),
    "quick": Size((0.9, 0.5, 0.1), 24, 800),
    "smallest": Size((0.5,), 4, 32),
}
TOKENS = 24
PATIENCE = 100_000  # rewinds of one text: no ban is to be conceded


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question("exactness", __doc__, answer, arguments)


def answer(work: Work) -> Answer:
    """Measure all methods in all cases."""
    draws = DRAWS[work.setting]
    cases = CASES[1:2] + CASES[-1:] if work.setting == "smallest" else CASES
    advance = work.begin("cases", len(cases))
    rows: list[list[Cell]] = []
    sampled: list[Sampled] = []
    for case in cases:
        found, ours = measure_case(case, draws, work.seed)
        rows += found
        sampled.append(ours)
        advance()
    published, said = repeat_published(work)
    tables = [Table("Total variation to the oracle", COLUMNS, rows), published, measure_passes(work)]
    names = [case.name for case in cases]
    verdicts = [judge('method="exact"', "the oracle", names, sampled), said]
    settings = {"draws": draws, "draws of AprAD's cases": APRAD_DRAWS[work.setting], "model of the passes": "tiny"}
    return Answer("exactness", QUESTION, tables, verdicts, LIMITS, NOTES, settings)


QUESTION = (
    "How far is the output of each method from rejection sampling with replacement, in total variation over "
    "whole texts (0: the same, 1: no text in common)?"
)
COLUMNS = (
    "case",
    "method",
    "how",
    "total variation",
    "of equally many draws from the solved distribution",
    "banned texts, %",
)
NOTES = (
    "Solved: the method's distribution is computed, not sampled, so the figure has no sampling error. Drawn: texts of "
    "the sampler itself are counted. The next column is the distance of equally many draws from the solved "
    f"distribution itself: mean, and the range of the middle 95 % of {REPETITIONS} repetitions.",
    "Banned texts: the total probability of texts that contain a ban, including bans with a weight.",
    "plain bans nothing, so its distance is the whole effect of the bans; exact should have none beyond the noise.",
    "token, the first-token rule, may differ: it takes the probability from the first token, and so from all "
    "texts that begin with that token.",
    "bad_words_ids and sequence_bias may differ: they act on the last token of a given tokenization, so a text "
    "that contains the tokens before it continues with another token instead of rewinding to the start of the "
    "phrase, and other tokenizations of the phrase are not found. bad_words_ids has no weights; sequence_bias "
    "gets the logarithm of the weight, and -100 for 0.",
    "Neither the processors nor the bans see the prompt: here all of them read the output alone.",
    "AprAD's cases are those of Table 1 of arXiv 2410.01103: a text has three of three letters, and all 27 texts are "
    "equally likely. The ideal is the model conditioned on texts that are not banned; the divergence is KL(method to "
    "ideal), in nats. constrained masks a token if no allowed text can follow it; its divergence is "
    "computed. Drawn and published figures contain the noise of their draws: the ideal's own draws are not at 0.",
    "Each ban is a whole text there, so a violation begins at the first token, and exact equals text. token takes the "
    "first token's probability to 0 at the first violation. If that happens to all first tokens that begin an "
    "allowed text, it writes banned texts, and its divergence is infinite, which is printed as a dash.",
    "Model calls per token: forward passes of the sampler, divided by the tokens of the kept texts. The sampler stores "
    "the distribution at each position, so it asks a position once per text however often it returns there; a pass "
    "may read several tokens again. A rejection also takes out the other tokens that complete a ban at the same "
    "position. Both explain why text needs fewer calls than ASAp, which has the same distribution. "
    "constrained, as computed here, knows which tokens are dead ends, so it asks each position once.",
    f"Passes per valid text: the bundled model writes {TOKENS} tokens after its beginning-of-text token at temperature "
    "1. The words that it writes most often are banned, except function words. The acceptance rate is the share of "
    f"plain texts without any of them. Rejection writes a text of {TOKENS} tokens to its end, then discards it; or it "
    "stops at the token that completes a ban. Means, with 95 % intervals by bootstrap.",
    "exact solves another problem: it redraws the phrase, not the text before it, so its passes hardly depend on "
    "the acceptance rate. text has the distribution of rejection.",
    "CARS (arXiv 2510.01902) has the distribution of text, and counts the same: forward passes per valid text. It "
    "keeps the rejected beginnings of a prompt for all samples of this prompt; text forgets them with each text. "
    "Its authors measured grammars on models of billions of parameters, so their figures can't be compared with these.",
)
LIMITS = (
    "These are Markov models of 4 tokens that write 4 tokens, sampled at temperature 1. They show the kind of "
    "error of each rule, not its size in a language model: bans are much more frequent here than in any text. A "
    "total variation within the noise does not prove that it is zero; the tests compare more cases with the same "
    "oracle by a chi-square test, and docs/exactness.md explains why it should be zero. Concessions, for which "
    "all alternatives are used up, don't occur in these cases."
)


class Sampled(NamedTuple):
    """The distance of the sampler from the oracle, and the middle 95 % of the distances of the oracle's own draws."""

    distance: float
    low: float
    high: float


def measure_case(case: Case, draws: int, seed: int) -> tuple[list[list[Cell]], Sampled]:
    """Return the rows of a case, and the distance of method="exact"."""
    model = case.model(seed)
    expected = oracles.rejection_distribution(model, case.words, case.bans)
    solved = {"plain": solve(model), "token": solve_token_rule(model, case)}
    if not any(ban.weight for ban in case.bans):
        solved["bad_words_ids"] = solve(case.model(seed, [forbid(case)]))
    solved["sequence_bias"] = solve(case.model(seed, [bias(case)]))
    rows = [
        [case.name, method, "solved", total_variation(shares, expected), None, 100 * banned_share(shares, case)]
        for method, shares in solved.items()
    ]
    targets = {"exact": expected, "token": solved["token"]}
    ours = {method: draw(model, case, method, draws, seed) for method in targets}
    floors = {method: noise(target, expected, draws, seed) for method, target in targets.items()}
    for method, drawn in ours.items():
        mean, low, high = floors[method]
        off = total_variation(drawn, expected)
        rows.append(
            [case.name, method, "drawn", off, f"{mean:.3g} ({low:.3g} … {high:.3g})", 100 * banned_share(drawn, case)]
        )
    _, low, high = floors["exact"]
    return rows, Sampled(total_variation(ours["exact"], expected), low, high)


def judge(method: str, ideal: str, cases: Sequence[str], sampled: Sequence[Sampled]) -> str:
    outside = [case for case, own in zip(cases, sampled, strict=True) if own.distance > own.high]
    within = len(cases) - len(outside)
    sentence = f"{method} is no further away than draws from {ideal} itself in {within} of {len(cases)} cases"
    chance = "by chance, 1 in 40 would be above it"
    return f"{sentence}: met." if not outside else f"{sentence}; above it: {', '.join(outside)} ({chance})."


def repeat_published(work: Work) -> tuple[Table, str]:
    """Return AprAD's Table 1 with the methods of the sampler, and the verdict on method="text"."""
    draws = APRAD_DRAWS[work.setting]
    advance = work.begin("AprAD's cases", len(APRAD))
    rows: list[list[Cell]] = []
    sampled: list[Sampled] = []
    for case, figures in APRAD:
        found, ours = measure_published(case, draws, work.seed)
        published = [[case.name, method, "published", *pair, None, None] for method, pair in figures.items()]
        rows += found + [[*row[:4], None, row[4], None] for row in published]
        sampled.append(ours)
        advance()
    columns = ("case", "method", "how", "KL to the ideal", f"of {draws:,} draws of the ideal")
    table = Table("AprAD's Table 1", (*columns, "model calls per token", "banned texts, %"), rows)
    return table, judge('method="text"', "the ideal of AprAD's Table 1", [each.case.name for each in APRAD], sampled)


def measure_published(case: Case, draws: int, seed: int) -> tuple[list[list[Cell]], Sampled]:
    """Return the rows of a case of AprAD's, and the divergence of method="text"."""
    ideal = oracles.conditioned_distribution(case.model(seed), case.words, case.bans)
    masked = solve(case.model(seed, [constrain(ideal)]))
    mean, low, high = noise(ideal, ideal, draws, seed, divergence)
    rows: list[list[Cell]] = [[case.name, "constrained", "solved", divergence(masked, ideal), None, 1.0, 0.0]]
    for method in METHODS:
        model = case.model(seed)
        drawn = draw(model, case, method, draws, seed)
        off, calls = divergence(drawn, ideal), len(model.fed) / (draws * case.length)
        beside = f"{mean:.3g} ({low:.3g} … {high:.3g})"
        shown = None if math.isinf(off) else off
        rows.append([case.name, method, "drawn", shown, beside, calls, 100 * banned_share(drawn, case)])
    return rows, Sampled(off, low, high)


def measure_passes(work: Work) -> Table:
    """Return the bundled model's forward passes per valid text, over the share of its plain texts that are valid."""
    size, subject = SIZES[work.setting], measuring.load("tiny", TOKENS)
    advance = work.begin("passes", 2 * size.plain + 2 * size.texts * len(size.rates))
    prompts = [[int(subject.tokenizer.bos_token_id)]] * size.plain
    studied, plain = (write_plain(Task(subject, prompts, work.seed + n, advance), rows=400).texts for n in (1, 0))
    texts = qualities.decode(subject, studied)
    counted = Counter(word for text in texts for word in ENGLISH.drop_stop_words(extract_words(text)))
    words = [word for word, _ in counted.most_common()]
    first = sorted(rank(words, texts))
    rows: list[list[Cell]] = []
    for rate in size.rates:
        banned = words[: first[int((1 - rate) * len(first))]]
        bans = BanList(banned)
        read = [count_read(subject, text, bans) for text in plain]
        accepted = sum(each is None for each in read)
        stopped = sum(each or TOKENS for each in read)
        task = Task(subject, prompts[: size.texts], work.seed, advance)
        conditioned, exact = (write_banned(task, banned, method, max_rewinds=PATIENCE) for method in METHODS[:0:-1])
        means = [qualities.estimate(np.mean, np.array(own.passes), seed=work.seed) for own in (conditioned, exact)]
        rejected = [TOKENS * size.plain / accepted, stopped / accepted]
        rows.append([accepted / size.plain, len(banned), *map(str, means), *rejected, conditioned.conceded])
    return Table(f"Forward passes per valid text of {TOKENS} tokens", PASSES, rows)


PASSES = (
    "acceptance rate of plain texts",
    "words banned",
    "text",
    "exact",
    "rejection of whole texts",
    "rejection that stops at a ban",
    "conceded by text",
)


def rank(words: Sequence[str], texts: Sequence[str]) -> list[int]:
    """Return for each text the index of the first of the words that it contains, or the number of words."""
    bans, places = BanList(words), {word: place for place, word in enumerate(words)}
    return [min((places[match.ban.text] for match in bans.find(text)), default=len(words)) for text in texts]


def count_read(subject: measuring.Subject, tokens: Sequence[int], bans: BanList) -> int | None:
    """Return how many tokens are read until a ban is certain, or None if the text contains none."""
    end = min((match.end for match in bans.find(subject.tokenizer.decode(tokens))), default=None)
    if end is None:
        return None
    lengths = (len(subject.tokenizer.decode(tokens[:count])) for count in range(1, len(tokens)))
    return next((count for count, length in enumerate(lengths, start=1) if length > end), len(tokens))


def draw(model: toys.Markov, case: Case, method: str, times: int, seed: int) -> Distribution:
    """Return the shares of the texts that the sampler writes."""
    torch.manual_seed(seed)
    matcher = Matcher(case.bans, case.words)
    settings: dict[str, Any] = {"matcher": matcher, "lookback": False, "method": method}
    drawn = Counter(toys.run(model, case.words, case.bans, **settings)[0] for _ in range(times))
    return {text: count / times for text, count in drawn.items()}


def total_variation(shares: Distribution, others: Distribution) -> float:
    texts = set(shares) | set(others)
    return sum(abs(shares.get(text, 0.0) - others.get(text, 0.0)) for text in texts) / 2


def divergence(shares: Distribution, ideal: Distribution) -> float:
    """Return KL(shares to ideal) in nats; infinite if a text is impossible under the ideal."""
    return sum(
        share * math.log(share / ideal[text]) if ideal.get(text) else math.inf
        for text, share in shares.items()
        if share
    )


def noise(
    shares: Distribution,
    expected: Distribution,
    times: int,
    seed: int,
    distance: Callable[[Distribution, Distribution], float] = total_variation,
) -> tuple[float, float, float]:
    """Draw from known shares; return mean and middle 95 % of the distance to the expected shares."""
    texts = sorted(shares)
    each = np.array([shares[text] for text in texts])
    counts = np.random.default_rng(seed).multinomial(times, each / each.sum(), size=REPETITIONS)
    off = np.array([distance(dict(zip(texts, row / times, strict=True)), expected) for row in counts])
    low, high = np.percentile(off, QUANTILES)
    return float(off.mean()), float(low), float(high)


def banned_share(shares: Distribution, case: Case) -> float:
    return sum(
        share
        for text, share in shares.items()
        if share and oracles.standing(text, case.words, case.bans, is_final=True)
    )


def solve(model: toys.Markov) -> Distribution:
    """Return the probability of each text of a model, its processors included."""
    texts: dict[Tokens, float] = {}
    prefixes: list[tuple[Tokens, float]] = [((), 1.0)]
    for prefix, mass in prefixes:
        for token, probability in enumerate(model.probs(toys.PROMPT, prefix).tolist()):
            path, share = (*prefix, token), mass * probability
            if model.ends(path):
                texts[path] = share
            elif share:
                prefixes.append((path, share))
    return texts


def solve_token_rule(model: toys.Markov, case: Case) -> Distribution:
    """Return the probability of each text under `oracles.first_token_text`, whose states can only grow.

    A state is the text, and the weights that were applied to tokens. A violation adds weights, and any other token
    extends the text, so visiting the states in the order of both lengths visits each state once. States less likely
    than `RARE` are dropped; the probability of their texts is missing in the sum.
    """
    step = cache(lambda tokens: list(_follow(model, case, tokens)))
    texts: dict[Tokens, float] = {}
    levels: dict[tuple[int, int], dict[State, float]] = {(0, 0): {((), frozenset()): 1.0}}
    while levels:
        for (tokens, applied), mass in _likely(levels.pop(min(levels))):
            shares = [probability * _weigh(path, applied, case) for path, probability, _, _ in step(tokens)]
            for share, (path, _, found, is_final) in zip(shares, step(tokens), strict=True):
                back = next((each for each in found if each not in applied), None)
                after = (path, applied) if back is None else (back[0][:-1], applied | {back})
                if back is None and is_final:
                    texts[path] = texts.get(path, 0.0) + mass * share / sum(shares)
                elif share:
                    level = levels.setdefault((len(after[1]), len(after[0])), {})
                    level[after] = level.get(after, 0.0) + mass * share / sum(shares)
    return texts


def _likely(states: Mapping[State, float]) -> list[tuple[State, float]]:
    return [(state, mass) for state, mass in states.items() if mass > RARE]


def _follow(
    model: toys.Markov, case: Case, tokens: Tokens
) -> Iterator[tuple[Tokens, float, list[tuple[Tokens, int]], bool]]:
    """Yield each longer text with its token's probability, the first tokens of the bans completed, and if it ends."""
    for token, probability in enumerate(model.probs(toys.PROMPT, tokens).tolist()):
        path = (*tokens, token)
        found = oracles.completed(path, case.words, case.bans, is_final=model.ends(path))
        yield path, probability, [(path[: start + 1], number) for start, number in found], model.ends(path)


def _weigh(path: Tokens, applied: frozenset[tuple[Tokens, int]], case: Case) -> float:
    return math.prod(ban.weight for number, ban in enumerate(case.bans) if (path, number) in applied)


def forbid(case: Case) -> Callable[[Tensor, Tensor], Tensor]:
    """Return transformers' `bad_words_ids` for a case."""
    return hide_prompt(NoBadWordsLogitsProcessor([list(tokens) for tokens in case.spelled]))


def bias(case: Case) -> Callable[[Tensor, Tensor], Tensor]:
    """Return transformers' `sequence_bias` for a case: the logarithm of the weight."""
    biases = [math.log(ban.weight) if ban.weight else -100.0 for ban in case.bans]
    pairs = zip(case.spelled, biases, strict=True)
    return hide_prompt(SequenceBiasLogitsProcessor([[list(tokens), each] for tokens, each in pairs]))


def constrain(allowed: Iterable[Tokens]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a processor that masks each token after which none of the allowed texts is possible."""
    beginnings = {text[:length] for text in allowed for length in range(1, len(text) + 1)}

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        written = tuple(ids[0, len(toys.PROMPT) :].tolist())
        dead = [token for token in range(scores.shape[-1]) if (*written, token) not in beginnings]
        return scores.index_fill(-1, torch.tensor(dead, dtype=torch.long), -math.inf)

    return process


def hide_prompt(processor: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Replace the prompt that a processor sees by ids that equal no token."""

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        seen = ids.clone()
        seen[:, : len(toys.PROMPT)] = NOTHING
        shown: Tensor = processor(seen, scores)
        return shown

    return process


if __name__ == "__main__":
    sys.exit(main())
