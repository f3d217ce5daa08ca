"""Replace in finished texts what bans flag, and nothing else: `fix` one text, `fix_texts` many in one batch.

The words for a place are chosen by what stands on both sides of it. Among candidates c without bans, the weights
p(c | left) · p(right | left, c) are the model's distribution of what stands between left and right, restricted to these
candidates. Few candidates are drawn, so nothing is promised but the choice among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice, takewhile, zip_longest
from typing import Any, NamedTuple

import regex
import torch
from torch import Tensor
from torch.nn.functional import kl_div
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antislop.core.bans import SENTENCE_END, BanList, Bans, Scope, read_bans, stop_words
from antislop.core.hf import TransformersModel, Vocabulary, encode, max_positions
from antislop.core.loop import fill_left
from antislop.errors import InputError
from antislop.files.chats import render_chat

WORDS = 4
"""The most words of a span that is replaced. Longer spans are constructions: other words would build them again."""
LEFT, RIGHT, NEAR = 3000, 60, 1000
"""Characters: at most of the text before a place that the model reads; of the text after a place that chooses among the
candidates, about 12 tokens; on each side of a place that are searched for bans again."""
GREEDY, SCORED = 8, 12
"""How many of the likeliest first tokens are continued; how many candidates the text after the place chooses among."""
LIKELY, LONGEST, RESERVED = 64, 8, 150
"""Tokens: how many of the likeliest are considered at each step; the most of a candidate; kept for all but the left."""
DELETION, LEAST, MOVED = 3.0, -7.0, 0.2
"""Nats. DELETION: how much likelier than words a deletion must be, since deletions win too often. LEAST: the smallest
gain in likelihood of the text with other words, a loss. MOVED: how far other words may move the model's distribution of
each token after the place: 5 of 6 broken replacements moved this distribution further, and 17 of 87 good ones."""

# Scopes find code in backticks and thoughts; this finds addresses, link targets, tags, names of files and options.
_PROTECTED = regex.compile(
    r"\w+://\S+|www\.\S+|\]\([^)\n]*\)|<[^<>\n]+>|\S*[\p{L}\d][./\\@_][\p{L}\d]\S*|\S+ --\w\S*|--\w\S*|[&$]\w+;?"
)
_ARTICLES = {"a", "an"}
_CANDIDATE = regex.compile(r"\p{L}+(?:['’-]\p{L}+)*(?: \p{L}+(?:['’-]\p{L}+)*)*")
_STARTS = regex.compile(rf"(?:\A|\n|{SENTENCE_END})[\s\p{{Ps}}\p{{Pi}}\p{{Pf}}\"'*_#>-]*\Z")
_WORD = regex.compile(r"\p{L}+(?:['’-]\p{L}+)*")
_SENTENCES = regex.compile(rf"\n|(?<={SENTENCE_END})\s+")
_REQUEST = (
    "Rewrite this sentence. In place of “{span}”, use other words with the same meaning, and keep the rest: {line}"
)
_FAULTS = {
    "protected": "stands in code, in a thought (<think>), in a link, in a tag or in the name of a file",
    "name": "may be a name",
    "long": f"has more than {WORDS} words",
    "part": "is not made of whole words",
    "candidates": "no other words fit well enough",
}
"""Why a span is left as it is."""


class Wording(NamedTuple):
    """Other words for a span. gain: nats by which the text with them is likelier than the original; may be negative."""

    text: str
    gain: float


@dataclass(frozen=True)
class Replacement:
    """A flagged span of a text, `text[start:end]`, and what stands there now.

    left: why the span was left as it is; "" if it was replaced by `after`.
    gain: nats by which the text with `after` is likelier than the original; may be negative.
    alternatives: the best of the other words, at most three; of a span for which none fits, those that came nearest.
    """

    start: int
    end: int
    before: str
    after: str
    ban: str
    left: str = ""
    gain: float = 0.0
    alternatives: tuple[Wording, ...] = ()


class Fixed(NamedTuple):
    """A text after `fix`: it differs from the original in the changes that are not left, and nowhere else."""

    text: str
    changes: tuple[Replacement, ...]


@dataclass
class _Draft:
    """A text that is being fixed: its spans, and the text so far, which is fixed up to the place of the next span.

    named: how each single word with a capital was changed, which may be a name: the same way all over the text.
    grown: how many characters longer the text has become.
    begin: where the part of the text begins that the model reads.
    rows: the rows of the reader's cache that hold what was read for an earlier place; empty before the first place.
    """

    text: str
    spans: list[Replacement]
    generator: torch.Generator
    changes: list[Replacement] = field(default_factory=list)
    named: dict[str, Replacement] = field(default_factory=dict)
    grown: int = 0
    begin: int = 0
    rows: list[int] = field(default_factory=list)

    def find_place(self, *, most: int) -> _Place | None:
        """Return the place of the next span to fix, with up to `most` characters before it; None if there is none.

        What is left or decided before it becomes a change.
        """
        while self.spans and (decided := self.spans[0] if self.spans[0].left else self.named.get(self.spans[0].before)):
            self.apply(decided.left, decided.after)
        if not self.spans:
            return None
        text, (start, end) = self.text, (place + self.grown for place in (self.spans[0].start, self.spans[0].end))
        glue = " " if text[:start].endswith(" ") and not text[: start - 1][-1:].isspace() else ""
        if start - self.begin > most:  # begins further right, at a word: the model reads the new left once more
            self.begin = text.find(" ", start - most // 2, start) + 1 or start - most // 2
        # A text that begins with a span is read as if behind a line feed.
        return _Place(text[self.begin : start - len(glue)] or "\n", glue, text[start:end], text[end : end + NEAR])

    def apply(self, left: str, after: str, gain: float = 0.0, alternatives: Sequence[Wording] = ()) -> None:
        """Put other words in place of the next span, or the span itself with the reason for which it is left."""
        span = self.spans.pop(0)
        change = replace(span, left=left, after=after, gain=gain, alternatives=tuple(alternatives))
        if not after:  # a deletion takes the space before the span, too
            change = replace(change, start=span.start - 1, before=f" {span.before}")
        elif span.before[0].isupper() and " " not in span.before and not span.left:
            self.named[span.before] = change
        start, end = (place + self.grown for place in (change.start, change.end))
        self.text = self.text[:start] + after + self.text[end:]
        self.grown += len(after) - (end - start)
        self.changes.append(change)


class _Place(NamedTuple):
    """What stands beside a span. glue: the space that belongs to the words of the place, or ""."""

    left: str
    glue: str
    span: str
    after: str

    @property
    def right(self) -> str:
        """The text after the span that is read with each candidate: whole words, about 12 tokens."""
        cut = self.after[:RIGHT]
        return cut.rpartition(" ")[0] or cut if len(self.after) > RIGHT else cut


def fix(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    bans: Bans,
    *,
    n: int = 8,
    seed: int | None = None,
    names: bool = False,
) -> Fixed:
    """Replace what bans flag in a finished text by other words of a model, and leave every other character as it is.

    n: how many candidates are drawn for each span, beside those that continue the likeliest first tokens.
    seed: draws each choice by the candidates' likelihoods, as data sets need, in which the likeliest words would become
        new slop. None: takes the likeliest.
    names: whether names are replaced, too, all occurrences of a name in the text alike.

    Left as they are, and reported with the reason: spans in code, thoughts, links, tags and names of files, parts of
    words, spans of more than four words, and spans for which no candidate is good enough. In languages that write nouns
    with capitals, all nouns count as names. A ban's weight is ignored. Does not see whether a meaning is kept: read the
    changes. Raises `InputError` for other values.
    """
    return next(fix_texts(model, tokenizer, [text], bans, n=n, seed=seed, names=names))


def fix_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    bans: Bans,
    *,
    n: int = 8,
    seed: int | None = None,
    names: bool = False,
    batch_size: int = 4,
) -> Iterator[Fixed]:
    """Yield each text as `fix` returns it. batch_size: how many texts share the passes over their candidates.

    The seed of text k is seed + k. A pass has up to 26 rows of a text, and keeps the logits of some 18 tokens in each.
    """
    if isinstance(texts, str):
        raise InputError(f"texts is {texts[:40]!r}, one text, and each letter would be fixed: write [text]")
    if not isinstance(n, int) or not isinstance(batch_size, int) or min(n, batch_size) < 1:
        raise InputError(f"n is {n!r}, batch_size {batch_size!r}; whole numbers, at least 1, are expected")
    if model.config.is_encoder_decoder:
        raise InputError(f"{type(model).__name__} has an encoder, and a decoder alone was expected: pass another model")
    banned, rest = read_bans(bans), iter(texts)
    unprotected = read_bans(banned, scopes=[Scope("outside", "code"), Scope("outside", "think")])
    seeds = count(seed or 0)
    reader = _Reader(model, tokenizer)
    while chunk := list(islice(rest, batch_size)):
        spans = [_find_spans(text, banned, unprotected, names=names) for text in chunk]
        generators = [torch.Generator().manual_seed(next(seeds)) for _ in chunk]
        drafts = [*map(_Draft, chunk, spans, generators)]
        while unfixed := [(place, draft) for draft in drafts if (place := draft.find_place(most=reader.most))]:
            places, open_drafts = zip(*unfixed, strict=True)
            _fix_places(places, open_drafts, reader, banned, n=n, is_sampled=seed is not None)
        yield from (Fixed(draft.text, tuple(draft.changes)) for draft in drafts)


def _find_spans(text: str, bans: BanList, unprotected: BanList, *, names: bool) -> list[Replacement]:
    """Return the flagged spans, unions of overlapping matches, with the reasons for which some are left."""
    spans = list[Replacement]()
    for match in sorted(bans.find(text), key=lambda match: match.start):
        if spans and match.start < spans[-1].end:
            spans[-1] = replace(spans[-1], end=max(match.end, spans[-1].end))
        else:
            spans.append(Replacement(match.start, match.end, "", "", str(match.ban.pattern.text)))
    unguarded = {match.start for match in unprotected.find(text)}
    protected = [match.span() for match in _PROTECTED.finditer(text)]
    for number, span in enumerate(spans):
        start, end, found = span.start, span.end, text[span.start : span.end]
        faults = {
            "protected": start not in unguarded or any(low < end and start < high for low, high in protected),
            "part": not found[0].isalpha()
            or any(c.isalnum() or c == "-" for c in text[:start][-1:] + text[end : end + 1]),
            "long": len(found.split()) > WORDS or "\n" in found,
            # Where a sentence begins, any word has a capital: a single one may be a name.
            "name": not names and found[0].isupper() and (" " not in found or not _STARTS.search(text, 0, start)),
        }
        left = next((_FAULTS[name] for name, is_at_fault in faults.items() if is_at_fault), "")
        spans[number] = replace(span, before=found, after=found, left=left)
    return spans


# -- candidates --------------------------------------------------------------------------------------------------------


def _fix_places(
    places: Sequence[_Place], drafts: Sequence[_Draft], reader: _Reader, bans: BanList, *, n: int, is_sampled: bool
) -> None:
    """Fix one place of each draft, or leave it: some passes draw words for all places, one scores the words."""
    choices = [
        [*islice((text for text in texts if _fits(text, place, bans)), SCORED), *[""] * _may_delete(place)]
        for place, texts in zip(places, reader.draw(places, drafts, n=n), strict=True)
    ]
    for draft, place, scored in zip(drafts, places, reader.score(places, choices, drafts), strict=True):
        scores = [score for score in scored if score.gain >= LEAST and score.moved <= MOVED]
        if not scores:
            comparable = (score for score in scored if score.text and score.moved < math.inf)
            ranked = sorted(comparable, key=lambda score: -score.weight)[:3]
            nearest = [Wording(score.text, score.gain) for score in ranked]
            draft.apply(_FAULTS["candidates"], place.span, alternatives=nearest)
            continue
        weights = torch.tensor([score.weight - DELETION * (not score.text) for score in scores], dtype=torch.float64)
        order = weights.argsort(descending=True, stable=True).tolist()
        if is_sampled:
            chosen = int(torch.multinomial(weights.softmax(0), 1, generator=draft.generator))
            order.insert(0, order.pop(order.index(chosen)))
        best, *others = (Wording(scores[number].text, scores[number].gain) for number in order)
        draft.apply("", *best, alternatives=others[:3])


def _may_delete(place: _Place) -> bool:
    """Return whether a place may be left empty: never where a sentence begins, since a capital outside would change."""
    is_article = regex.search(r"(?i)\b(an?|the)\Z", place.left)
    return not (is_article or _STARTS.search(place.left + " ")) and bool(place.glue) and place.right[:1] in " .,;"


def _fits(text: str, place: _Place, bans: BanList) -> bool:
    """Return whether a candidate can stand at a place.

    It must be known words, one of them new and one of the span's gone, none like the words beside it, with the span's
    capital, with the vowel that the article before it asks for, and no ban may be found in it or across its edges.
    """
    words, old = text.casefold().split(), place.span.casefold().split()
    before, after = (_WORD.findall(side.casefold()) for side in (place.left[-80:], place.right))
    beside, article = [*before[-6:], *after[:6]], before[-1:] and before[-1] in _ARTICLES
    near = [word for word in beside if len(word) >= 5]
    # In words of the same stem, or with small words added, the phrase would still be there: hummed, was humming.
    adds, drops = _find_new(words, old), _find_new(old, words)
    if (
        not _CANDIDATE.fullmatch(text)
        or text != (text.capitalize() if place.span[0].isupper() else text.lower())
        or place.span.casefold() in text.casefold()
        or not (adds and drops)
        or any(_are_alike(word, other) for word in words if len(word) >= 5 for other in near)
        or _is_invented(words, beside=[*beside, *old])
        or (words[0] in _ARTICLES) != (old[0] in _ARTICLES)  # "a" fits no plural that may follow
        or (article and (words[0][0] in "aeiou") != (old[0][0] in "aeiou"))
    ):
        return False
    start = len(place.left[-NEAR:] + place.glue)
    found = bans.find(place.left[-NEAR:] + place.glue + text + place.after)
    return not any(match.start <= start + len(text) and match.end >= start for match in found)


def _is_invented(words: Iterable[str], *, beside: Sequence[str]) -> bool:
    """Return whether wordfreq lacks a word of an English text; False without this package, which is an extra."""
    try:
        from wordfreq import zipf_frequency
    except ImportError:
        return False
    # The mean log10 of words' occurrences in a billion English words is 4 to 6 in English, less in other languages.
    is_english = sum(zipf_frequency(word, "en") for word in beside) >= 4 * len(beside)
    return is_english and not all(zipf_frequency(word, "en") for word in words)


def _find_new(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the words that are like none of the others, without function words."""
    content = (word for word in words if word not in stop_words())
    return [word for word in content if not any(_are_alike(word, other) for other in others)]


def _are_alike(word: str, other: str) -> bool:
    """Return whether two words share a beginning of three letters, and of 60 % of the shorter word: raced, racing."""
    return _count_shared(word, other) >= max(3, 0.6 * min(len(word), len(other)))


class _Score(NamedTuple):
    """Scores of a candidate in nats. From weight and gain, those of the original words are subtracted.

    weight: what chooses. With a chat template: log p(c, the next third of right | request) + log p(right | left, c).
    gain: log p(c, right | left).
    moved: the mean over the tokens of right of D(p || q), p being the model's distribution of the token behind the
        original words, q behind the candidate: https://doi.org/10.1214/aoms/1177729694.
    """

    text: str
    weight: float
    gain: float
    moved: float


@dataclass
class _Draw:
    """Words that are drawn for a place, token by token.

    context: the tokens before the words. row: the row of the cache that holds these.
    longest: the most tokens of the words. More may be drawn, while lines of other texts go on; these are not read.
    ends: after each token of the words, log p of the words so far and of the token that follows the place.
    """

    place: _Place
    context: list[int]
    row: int
    longest: int
    is_greedy: bool
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    prior: float = 0.0
    ends: list[float] = field(default_factory=list)

    def take(self, values: Tensor, tokens: Tensor, *, pick: int = 0) -> None:
        """Add a token: of the likeliest, number `pick` for a greedy line, else one that is drawn."""
        if not self.is_greedy and len(self.tokens) <= self.longest:
            pick = int(torch.multinomial(values.exp(), 1, generator=self.generator))
        self.tokens.append(int(tokens[pick]))
        self.prior += float(values[pick])


class _Reader:
    """A model that reads texts into the rows of a cache. What a row's next text shares with it is not read again."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model = TransformersModel(model)
        self._tokenizer = tokenizer
        self._encode = partial(encode, tokenizer=tokenizer)
        self._surfaces = Vocabulary.of(tokenizer).surfaces
        # Characters before a place, of which some scripts need two tokens; then come the request and the candidates.
        self.most = min(LEFT, ((max_positions(model) or 2 * LEFT) - RESERVED) // 2)
        self._cache: Any = None
        self._held: list[list[int]] = []

    def list_contexts(self, place: _Place) -> list[str]:
        """Return what the model reads before the words of a place: the left, and with a chat template, also a request
        for other words, with the place's sentence up to the span as the beginning of the answer.
        """
        if not getattr(self._tokenizer, "chat_template", None):
            return [place.left]
        begun = _SENTENCES.split(place.left)[-1].lstrip()
        line = begun + place.glue + place.span + _SENTENCES.split(place.right)[0]
        chat = [{"role": "user", "content": _REQUEST.format(span=place.span, line=line)}]
        return [place.left, render_chat(chat, self._tokenizer) + begun]

    def draw(self, places: Sequence[_Place], drafts: Sequence[_Draft], *, n: int) -> list[list[str]]:
        """Return candidates for each place, the most promising first.

        The likeliest first tokens are continued after each context, and n lines are drawn after the last one, the
        request if there is one. What a candidate promises is known without a pass of its own.
        """
        contexts = [self.list_contexts(place) for place in places]
        texts = [self._encode(text) for each in contexts for text in each]
        if not all(draft.rows for draft in drafts):
            self._cache, self._held = self._model.new_cache(len(texts)), [[] for _ in texts]
        rows = [row for draft in drafts for row in draft.rows] or [*range(len(texts))]
        values, tokens = self._find_likeliest(self._read(texts, rows, is_prompt=True))
        longest = [min(len(self._encode(place.glue + place.span)) + 1, LONGEST) for place in places]
        lines = list[_Draw]()
        for row, text in enumerate(texts):
            number, context = divmod(row, len(contexts[0]))
            # Behind a space, words that are glued to the word before it would be likely, and wrong.
            begin = regex.compile(rf"{places[number].glue}\p{{L}}")
            fits = [pick for pick, token in enumerate(tokens[row]) if begin.match(self._spell([int(token)]))] or [0]
            for pick in range(GREEDY + (n if context == len(contexts[0]) - 1 else 0)):
                lines.append(_Draw(places[number], text, row, longest[number], pick < GREEDY, drafts[number].generator))
                lines[-1].take(values[row][fits], tokens[row][fits], pick=min(pick, len(fits) - 1))
        after = [(self._split(line.place)[1] or [0])[0] for line in lines]
        rows = [line.row for line in lines]
        for _ in range(max(longest)):
            scores = self._read([[*line.context, *line.tokens] for line in lines], rows)
            values, tokens = self._find_likeliest(scores)
            shares = scores[:, -1].float().log_softmax(-1)[range(len(lines)), after].tolist()
            for line, share, *likely in zip(lines, shares, values, tokens, strict=True):
                line.ends.append(line.prior + share)
                line.take(*likely)
            rows = [*range(len(lines))]
        first = [next(number for number, line in enumerate(lines) if line.row == row) for row in range(len(texts))]
        for number, draft in enumerate(drafts):
            draft.rows = first[number * len(contexts[0]) : (number + 1) * len(contexts[0])]
        return [self._rank([line for line in lines if line.place is place]) for place in places]

    def _rank(self, lines: Sequence[_Draw]) -> list[str]:
        """Return what is whole words at the beginning of lines, the lines of each context in turn, best first."""
        promises: dict[int, dict[str, float]] = {}
        for line in lines:
            found = promises.setdefault(line.row, {})
            for length in range(1, line.longest + 1):
                text, more = (self._spell(line.tokens[:end]) for end in (length, length + 1))
                if more.startswith(text) and not more[len(text) :][:1].isalpha():
                    text = text.removeprefix(line.place.glue)
                    found[text] = max(line.ends[length - 1], found.get(text, -math.inf))
        ranked = [sorted(found, key=lambda text: -found[text]) for found in reversed(promises.values())]
        return [*dict.fromkeys(text for group in zip_longest(*ranked) for text in group if text is not None)]

    def score(
        self, places: Sequence[_Place], choices: Sequence[Sequence[str]], drafts: Sequence[_Draft]
    ) -> list[list[_Score]]:
        """Return the scores of each place's candidates, by one pass over all candidates and the original words."""
        texts, rows, since = list[list[int]](), list[int](), list[int]()
        for place, words, draft in zip(places, choices, drafts, strict=True):
            sources, draft.rows = draft.rows, []
            for context, row in zip(self.list_contexts(place), sources, strict=True):
                ends = [place.glue * bool(text) + text + place.right for text in (place.span, *words)]
                options, begun = [self._encode(context + end) for end in ends], self._encode(context)
                draft.rows.append(len(texts))
                texts += options
                rows += [row] * len(options)
                since += [max(1, min(_count_shared(begun, ids) for ids in options))] * len(options)
        logits, scored = self._read(texts, rows, since=since), list[list[_Score]]()
        for place, words, draft in zip(places, choices, drafts, strict=True):
            right = self._split(place)[1]
            most = len(right) - len(right) // 3  # of the text after the place, what is read after the request, too
            found, expected = list[_Score](), torch.empty(0)
            for number, text in enumerate((place.span, *words)):
                tables, shares = [], []  # log p after each token from `since` on, of one row: the vocabulary is large
                for row in (first + number for first in draft.rows):
                    told = texts[row][since[row] :]
                    tables.append(logits[row, -len(told) - 1 : -1].float().log_softmax(-1).cpu())
                    shares.append(tables[-1][range(len(told)), told])
                plain, behind = shares[0], tables[0][len(tables[0]) - len(right) :]
                expected, moved = expected if found else behind, math.inf
                # Tokens that join the candidate to the text after it can't be compared: the candidate is refused.
                if texts[draft.rows[0] + number][-len(right) :] == right or not right:
                    each = kl_div(behind, expected, reduction="none", log_target=True).nan_to_num(0)  # −∞ − −∞
                    moved = float(each.sum()) / max(1, len(right))
                asked = shares[-1][: len(told) - len(right) + most].sum() + plain[len(plain) - len(right) :].sum()
                weight = asked if shares[1:] else plain.sum()
                found.append(_Score(text, float(weight), float(plain.sum()), moved))
            (_, *base), *others = found
            scored.append([_Score(text, *(a - b for a, b in zip(sums, base, strict=True))) for text, *sums in others])
        return scored

    @torch.no_grad()
    def _read(
        self, texts: Sequence[list[int]], rows: list[int], *, since: Sequence[int] = (), is_prompt: bool = False
    ) -> Tensor:
        """Make row i of the cache, a copy of row rows[i], hold texts[i]; return logits [texts, tokens read, vocab].

        The last tokens of a row are on the right. since: for each row, a token whose probability is to be told.
        is_prompt: whether the last logits are enough.
        """
        held = [self._held[row] for row in rows]
        if rows != [*range(len(self._held))]:
            self._cache.select(rows)
        queries = []
        for row, (ids, old) in enumerate(zip(texts, held, strict=True)):
            kept = min([_count_shared(old, ids), len(ids) - 1, *(start - 1 for start in since[row : row + 1])])
            kept = self._cache.rewind(row, kept) if kept < len(old) else kept
            queries.append(ids[kept:])
        self._cache.reads_prompts = is_prompt
        self._held = [*texts]
        return self._model.forward(fill_left(queries), self._cache)

    def _find_likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p [rows, LIKELY] and ids of the likeliest next tokens, on the CPU."""
        scores = logits[:, -1, : len(self._surfaces)].float().log_softmax(-1)  # some models have more tokens than texts
        found = scores.topk(min(LIKELY, scores.shape[-1]))
        return found.values.cpu(), found.indices.cpu()

    def _split(self, place: _Place) -> tuple[list[int], list[int]]:
        """Return the tokens of a place's left and span, and those of its right."""
        begun, whole = (self._encode(place.left + place.glue + place.span + right) for right in ("", place.right))
        end = _count_shared(begun, whole)
        return whole[:end], whole[end:]

    def _spell(self, tokens: Sequence[int]) -> str:
        return b"".join(self._surfaces[token] for token in tokens).decode("utf-8", "replace")


def _count_shared(tokens: Sequence[object], others: Sequence[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tokens, others, strict=False)))
