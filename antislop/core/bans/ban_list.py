"""`BanList`: an ordered list of bans, and the search for all of them in a text; `antislop.lists` reads its files."""

from __future__ import annotations

import os
import textwrap
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import IO, Any, NamedTuple, TypeAlias, overload

from antislop.core.bans.bans import Ban, Match, distinct, drop_overlaps, list_options
from antislop.core.bans.folding import Edges
from antislop.core.bans.patterns.incremental_regex import TIME_LIMIT
from antislop.core.bans.patterns.phrase import Phrase
from antislop.core.bans.refusals import sentence
from antislop.core.bans.scopes import Scope
from antislop.core.bans.text_matcher import TextMatcher
from antislop.core.bans.units import Opening, Unit
from antislop.display import make_visible, shorten, write_html_table
from antislop.errors import BanError
from antislop.files.disk import explain_write, find_scheme, replace_text

FORBIDDING_BIAS = -1e4
"""The highest bias of a logit that makes the token's probability 0, even in float64."""
PIECE = 4096
"""Characters per search step. Short steps are faster: for each match, the rules look at all changes in its step."""
ROWS_SHOWN = 20
"""Number of bans that a notebook shows of a list."""


class SearchStep(NamedTuple):
    """The matches that one more piece of a text decided, in order. settled: no later match begins before this index."""

    matches: list[Match]
    settled: int


class Refusal(NamedTuple):
    """An entry of a file that can't be used as a ban. place: "path:line"."""

    place: str
    reason: str


class Diff(NamedTuple):
    """The differences between two lists. changed: (before, after) of each ban whose weight or options differ."""

    added: tuple[Ban, ...]
    removed: tuple[Ban, ...]
    changed: tuple[tuple[Ban, Ban], ...]


class BanList(Sequence[Ban]):
    r"""A list of bans. Bans that forbid the same, whatever their weights, count once, with the smallest weight.

    `bans | other` and `bans + other` add a phrase, a ban or a list of these; `bans - other` removes them. `entry in
    bans` tells whether the list has a ban that forbids the same as a phrase or a ban, whatever their weights.

    entries: phrases and `Ban`s, in any mixture; a `*` in a phrase is a wildcard, as in `Ban`.
    source: the origin of the bans, for messages and reports.
    license: the license under which the bans may be passed on, if known.

    These are set if the list was read from a file:

    format: name of the file's format.
    lines: the line of each ban, from 1.
    marks: names of what most lines had around their phrases, such as "bullets"; it was removed.
    refused: entries that were left out.
    left_out: names of groups and texts of a JSON object that were not read, since their names don't say "bans".

    >>> bans = BanList(["a testament to"]) | Ban("cat", edges="anywhere")
    >>> "A  Testament to" in bans, bans - "a testament to" == BanList([Ban("cat", edges="anywhere")])
    (True, True)
    >>> [(match.ban.text, match.start, match.end) for match in bans.find("A  TESTAMENT\nto bobcats")]
    [('a testament to', 0, 15), ('cat', 19, 22)]
    """

    def __init__(self, entries: Iterable[str | Ban], *, source: str | None = None, license: str | None = None) -> None:
        if isinstance(entries, (str, bytes)):
            raise BanError(sentence("one string as a list", start=entries[:40]))
        if isinstance(entries, Mapping) or not isinstance(entries, Iterable):
            shown = shorten(make_visible(repr(entries)), 40)
            advice = "AntiSlop(tokenizer, bans)" if hasattr(entries, "get_vocab") else "[phrase, Ban(phrase, weight=…)]"
            raise BanError(f"a list of bans was expected, not {shown}: write {advice}")
        self._bans = tuple(entry if isinstance(entry, Ban) else Ban(entry) for entry in entries)
        self.source = source
        self.license = license
        self.format: str | None = None
        self.lines: tuple[int, ...] = ()
        self.marks: tuple[str, ...] = ()
        self.refused: tuple[Refusal, ...] = ()
        self.left_out: tuple[str, ...] = ()

    @staticmethod
    def load(
        source: str | os.PathLike[str] | IO[str] | IO[bytes],
        *,
        format: str | None = None,  # noqa: A002
        edges: Edges | None = None,
        group: str | Sequence[str] = (),
        strict: bool = True,
    ) -> BanList:
        r"""Read a list in any of the formats of `antislop.lists`.

        source: path of a file, UTF-8; an open file; or hf://owner/name/file, in a data set repository of the Hugging
            Face hub (hf://owner/name@revision/file; without a file, bans.txt).
        format: by default, recognized by the file's name (.json, .jsonl, .csv, .txt) and by the text. A JSON
            list of strings is read as phrases: a list of n-grams in that shape needs format="ngrams".
        edges: the `edges` of phrases for which the file says none. Default: "anywhere" in SillyTavern's format, whose
            lists have stems, such as "sparkl"; "word" in all others.
        group: names of the groups of a JSON object that are bans; by default, those whose names say so ("banned").
        strict: False leaves out entries that can't be used, and keeps the reasons in `refused`.

        Numbers without a name are counts, which only rank bans, if all are whole and one is above 1; otherwise they
        are weights. A list may have 20,000,000 characters, 500,000 entries of up to 100,000 characters, 10,000 regexes.

        Raises `BanError`, with path:line, for the first entry that can't be used or does not look like a phrase, for a
        text that is not in the format, and for a list without bans, unless `save` wrote it.

        >>> import io
        >>> bans = BanList.load(io.StringIO('"shivers down"\n" eyes sparkl"\n'))
        >>> bans.format, list(bans)
        ('sillytavern', [Ban('shivers down', edges='anywhere'), Ban(' eyes sparkl', edges='anywhere')])
        """
        from antislop.lists import read_list  # no help needs it

        return read_list(source, format=format, edges=edges, group=group, strict=strict)

    @classmethod
    def from_transformers(
        cls,
        *,
        bad_words_ids: Sequence[Sequence[int]] | None = None,
        sequence_bias: Mapping[tuple[int, ...], float] | Sequence[Any] | None = None,
    ) -> BanList:
        """Make bans of token ids from arguments of `generate`.

        The same sequences are forbidden, but the sampler goes back to a sequence's first token, while `generate`
        excludes its last token. Raises `BanError` for a bias above -10,000: that does not forbid a sequence.

        >>> list(BanList.from_transformers(bad_words_ids=[[5, 17]], sequence_bias={(8,): float("-inf")}))
        [Ban.tokens([5, 17]), Ban.tokens([8])]
        """
        if bad_words_ids is None and sequence_bias is None:
            raise BanError("nothing was given: name bad_words_ids or sequence_bias")
        if not isinstance(bad_words_ids or [], (list, tuple)):
            raise BanError(f"bad_words_ids is {bad_words_ids!r}; it is a list of lists of token ids")
        biases = sequence_bias.items() if isinstance(sequence_bias, Mapping) else sequence_bias or []
        forbidden = [*(bad_words_ids or []), *(_forbidden(bias) for bias in biases)]
        for ids in forbidden:
            if not isinstance(ids, (list, tuple)):
                raise BanError(f"token ids were expected, not {ids!r}: write [[5, 17], …]")
        return cls(map(Ban.tokens, forbidden), source="transformers")

    def save(self, path: str | os.PathLike[str], *, license: str | None = None) -> None:
        r"""Write the list into a text file that `load` reads back as an equal list; a failure leaves an old file as is.

        license: the license to write; by default, that of the list.

        Raises `BanError` for a ban that could not be read back, and if the file can't be written.
        """
        from antislop.lists import write_lines

        if not isinstance(path, str | os.PathLike):
            raise BanError(f"the path of a file was expected, not {path!r}: write save('bans.txt')")
        lines = write_lines(self, source=self.source, license=license or self.license)
        try:
            replace_text(path, "".join(f"{line}\n" for line in lines))
        except OSError as error:
            raise BanError(f"{path}: {explain_write(error, advice='name a file in a folder of yours')}") from error

    def __or__(self, other: Operand) -> BanList:
        """Return the bans of both lists, in order; of bans that forbid the same, the one with the smallest weight."""
        added = _read_operand(other)
        return BanList(
            distinct([*self, *added]),
            source=_join_names(self.source, added.source),
            license=_join_names(self.license, added.license),
        )

    def __ror__(self, other: Operand) -> BanList:
        return _read_operand(other) | self

    __add__, __radd__ = __or__, __ror__

    def __sub__(self, other: Operand) -> BanList:
        """Return this list without the bans of another list; weights are not compared."""
        removed = _read_operand(other)
        return self.filter(lambda ban: ban not in removed)

    def __rsub__(self, other: Operand) -> BanList:
        return _read_operand(other) - self

    def top(self, n: int) -> BanList:
        """Return the n bans with the largest counts, largest first; bans without a count come last, in order.

        >>> [ban.text for ban in BanList([Ban("a"), Ban("b", count=3), Ban("c", count=9)]).top(2)]
        ['c', 'b']
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise BanError(f"n of top is {n!r}; it is a whole number, 0 or more")
        return self._with(sorted(self, key=lambda ban: -1 if ban.count is None else ban.count, reverse=True)[:n])

    def filter(self, predicate: Callable[[Ban], object]) -> BanList:
        """Return the bans for which a function returns true.

        >>> len(BanList(["a testament to", "delve"]).filter(lambda ban: " " in ban.text))
        1
        """
        if not callable(predicate):
            shown = shorten(repr(predicate), 40)
            raise BanError(f"filter takes a function of a ban, not {shown}: write filter(lambda ban: 'x' in ban.text)")
        return self._with(filter(predicate, self))

    def with_options(self, **options: Any) -> BanList:
        """Return the bans with new values for some options, such as weight, edges, exempt, scopes or at_most.

        Raises `BanError` for an option that one of the bans does not have.

        >>> list(BanList(["delve", "tapestry"]).with_options(at_most=1))
        [Ban('delve', at_most=1), Ban('tapestry', at_most=1)]
        """
        return self._with(replace(ban, **options) for ban in self)

    def diff(self, other: Operand) -> Diff:
        """Compare with another list: return the bans that it adds, lacks, or has with another weight or other options.

        >>> BanList(["cat", "dog"]).diff(BanList([Ban("cat", weight=0.5), "emu"]))
        Diff(added=(Ban('emu'),), removed=(Ban('dog'),), changed=((Ban('cat'), Ban('cat', weight=0.5)),))
        """
        other = _read_operand(other)
        old, new = set(self), set(other)
        added: dict[Any, deque[Ban]] = {}
        for ban in dict.fromkeys(other):
            if ban not in old:
                added.setdefault(ban.pattern.diff_key, deque()).append(ban)
        removed, changed = [], []
        for ban in dict.fromkeys(self):
            if ban not in new and (rivals := added.get(ban.pattern.diff_key)):
                changed.append((ban, rivals.popleft()))
            elif ban not in new:
                removed.append(ban)
        left = {ban for rivals in added.values() for ban in rivals}
        return Diff(tuple(ban for ban in dict.fromkeys(other) if ban in left), tuple(removed), tuple(changed))

    def _with(self, bans: Iterable[Ban]) -> BanList:
        return BanList(bans, source=self.source, license=self.license)

    @overload
    def __getitem__(self, index: int) -> Ban: ...
    @overload
    def __getitem__(self, index: slice) -> BanList: ...
    def __getitem__(self, index: int | slice) -> Ban | BanList:
        return self._bans[index] if isinstance(index, int) else self._with(self._bans[index])

    def __contains__(self, entry: object) -> bool:
        if not isinstance(entry, (str, Ban)):
            raise TypeError(f"a list of bans contains phrases and bans, not {entry!r}: write 'a phrase' in bans")
        return (entry if isinstance(entry, Ban) else Ban(entry)).key in self._keys

    def __len__(self) -> int:
        return len(self._bans)

    def __iter__(self) -> Iterator[Ban]:
        return iter(self._bans)

    def __eq__(self, other: object) -> bool:
        return self._bans == other._bans if isinstance(other, BanList) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._bans)

    def __repr__(self) -> str:
        shown = ", ".join(repr(ban.text) for ban in self._bans[:3]) + (", …" if len(self) > 3 else "")
        origin = f" from {shorten(make_visible(self.source), 40)}" if self.source else ""
        return shorten(f"<BanList of {len(self)}{origin}{shown and ': '}{shown}", 79) + ">"

    def _repr_html_(self) -> str:
        rows = []
        for ban in self._bans[:ROWS_SHOWN]:
            options = ", ".join(f"{name}={value!r}" for name, value in list_options(ban) if name != "weight")
            rows.append((ban.text, ban.pattern.kind, ban.weight, options))
        origin = f" from {textwrap.shorten(self.source, 80, placeholder=' …')}" if self.source else ""
        shown = f"the first {ROWS_SHOWN} of " if len(self) > ROWS_SHOWN else ""
        caption = f"{shown}{len(self):,} {'ban' if len(self) == 1 else 'bans'}{origin}"
        return write_html_table(("ban", "kind", "weight", "options"), rows, caption=caption)

    def __getstate__(self) -> dict[str, Any]:
        # A copy leaves out the compiled bans, which change as texts are read.
        return {name: value for name, value in vars(self).items() if name not in ("_matcher", "_distinct", "_keys")}

    def find(self, text: str, *, overlaps: bool = True) -> list[Match]:
        """Return every occurrence of every ban in a text, sorted by start, end and the ban's place in the list.

        overlaps: False leaves out matches that overlap an earlier match, or a longer one with the same start.
        """
        if not isinstance(text, str):
            raise BanError(f"find reads one text (str), not {shorten(repr(text), 40)}: call it for each text")
        return [match for step in self.search([text], overlaps=overlaps) for match in step.matches]

    def search(self, pieces: Iterable[str], *, overlaps: bool = True) -> Iterator[SearchStep]:
        """Yield step by step, for a text that comes in pieces, the matches that `find` returns for the whole text.

        Memory use does not grow with the text. Raises `BanError` for a regex that takes too long.

        >>> [step.matches for step in BanList(["a cat"]).search(["so a c", "at sat"])]
        [[], [Match(ban=Ban('a cat'), start=3, end=8)]]
        """
        matcher, size, end = self._matcher, 0, 0
        matcher.begin()
        phrases, rest = matcher.phrases.start, matcher.start
        pending: set[tuple[int, int, int]] = set()  # start, end, and the number of the ban
        parts = (piece[i : i + PIECE] for piece in pieces for i in range(0, len(piece), PIECE))
        piece: str | None = next(parts, "")
        while piece is not None:
            following = next(parts, None)
            phrases, rest, result = matcher.read(phrases, rest, piece, final=following is None)
            if timed_out := matcher.timed_out:
                raise BanError(sentence("slow search", text=self._distinct[timed_out[0]].text, seconds=TIME_LIMIT))
            size += len(piece)
            pending |= {(size - match.start_back, size - match.end_back + 1, match.pattern) for match in result.matches}
            settled = size if following is None else size - max(result.open, default=0)
            decided = {match for match in pending if match[0] < settled}
            pending -= decided
            matches = [Match(self._distinct[ban], *span) for *span, ban in sorted(decided)]
            if not overlaps:
                matches = drop_overlaps(matches, begin=end)
                end = matches[-1].end if matches else end
            yield SearchStep(matches, settled)
            piece = following

    @cached_property
    def _matcher(self) -> TextMatcher:
        from antislop.core.bans.prefilter import Prefilter  # imports numpy, which reading a list does not need

        return TextMatcher(self._distinct, prefilter=Prefilter)

    @cached_property
    def _distinct(self) -> list[Ban]:
        return distinct(self._bans)

    @cached_property
    def _keys(self) -> frozenset[Hashable]:
        return frozenset(ban.key for ban in self._bans)


Operand: TypeAlias = str | Ban | Iterable[str | Ban]
"""A phrase, a ban, or an iterable of these: what a `BanList` can be combined with."""


def _read_operand(operand: Operand) -> BanList:
    if isinstance(operand, BanList):
        return operand
    return BanList([operand] if isinstance(operand, (str, Ban)) else operand)


Bans: TypeAlias = BanList | Iterable[str | Ban] | os.PathLike[str] | str
"""A `BanList`, an iterable of phrases and bans, or the path or hf:// address of a file that `BanList.load` reads."""


def read_bans(
    bans: Bans,
    *,
    strings: Sequence[str] = (),
    patterns: Sequence[str] = (),
    exempt: Sequence[str] = (),
    scopes: Sequence[Scope] = (),
    rewind: Unit | None = None,
    opening: Opening | None = None,
) -> BanList:
    """Return `bans` as a list, with bans of `strings` and `patterns` (regexes). Each ban gets `exempt` and `scopes`.

    strings: phrases to ban, which match within words, too. Without `rewind`, only the string itself is drawn again.
    opening: the `Ban.opening` of `strings` and `patterns`.

    A ban with a scope "inside" or "after" gets no more scopes; bans of token ids get neither scopes nor exempt phrases.
    """
    given = {"banned_strings": strings, "banned_regex": patterns, "exempt": exempt, "scopes": scopes}
    for name, value in given.items():
        if not isinstance(value, Iterable):
            raise BanError(f"{name} is {value!r:.60}; a list is expected: write [{name}]")
        if isinstance(value, str):
            raise BanError(sentence("one string as an option", name=name, start=value[:40]))
    is_file = isinstance(bans, str) and (find_scheme(bans) == "hf" or os.path.isfile(bans))  # noqa: PTH113 - never raises
    if isinstance(bans, os.PathLike) or is_file:
        bans = BanList.load(bans)  # type: ignore[arg-type]
    elif isinstance(bans, str):
        raise BanError(sentence("one string as bans", start=bans[:40]))
    elif not isinstance(bans, BanList):
        bans = BanList(bans)
    if not (strings or patterns or exempt or scopes) and rewind is None:
        return bans
    # As in other programs with such strings, the text is rewound to where the string begins, and line feeds compare
    # as they are.
    phrases = (Phrase(string, edges="anywhere", line_feeds=True) for string in strings)
    found_anywhere = (Ban(phrase, opening=opening or "", rewind=rewind or "span") for phrase in phrases)
    more = [*found_anywhere, *(Ban.regex(pattern, opening=opening or "") for pattern in patterns)]
    return BanList((_limit(ban, exempt, scopes, rewind) for ban in (*bans, *more)), source=bans.source)


def _limit(ban: Ban, exempt: Sequence[str], scopes: Sequence[Scope], rewind: Unit | None) -> Ban:
    unit = ban.rewind or ("" if rewind is None or rewind == ban.unit else rewind)
    if not ban.pattern.occurs_in_text:
        return replace(ban, rewind=unit)
    more = scopes if all(scope.where == "outside" for scope in ban.scopes) else ()
    return replace(ban, exempt=(*ban.exempt, *exempt), scopes=(*ban.scopes, *more), rewind=unit)


def _join_names(*names: str | None) -> str | None:
    return ", ".join(dict.fromkeys(name for name in names if name)) or None


def _forbidden(bias: Any) -> Sequence[int]:
    token_ids, value = bias if isinstance(bias, (list, tuple)) and len(bias) == 2 else (None, None)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isinstance(token_ids, (list, tuple)):
        raise BanError(f"sequence_bias contains {bias!r}; token ids and a number were expected: {{(5, 17): -math.inf}}")
    if not value <= FORBIDDING_BIAS:
        raise BanError(sentence("bias that does not forbid", bias=value, tokens=list(token_ids), most=FORBIDDING_BIAS))
    return token_ids
