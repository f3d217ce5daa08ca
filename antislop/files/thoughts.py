"""Remove a model's thoughts from its answers.

A tag in a text may be a delimiter, or only be mentioned: its place decides which, and the prompt, if that is known.
Each search begins where the previous search ended, so the time is linear in the length of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

import regex

from antislop.files.delimiters import THOUGHT_DELIMITERS


def _write(mark: str) -> str:
    """Return a regex for a delimiter outside of quotes; a delimiter that is a tag may have any case and attributes."""
    tag = regex.fullmatch(r"<(/?[\w:|]+)>", mark)
    pattern = rf"(?i:<{regex.escape(tag[1])}(?:\s[^<>]*)?>)" if tag else regex.escape(mark)
    return rf"""(?<!["'“‘«(*](?={pattern}["'”’»)*])){pattern}(?![:,])"""


_LINE = r"^[ \t]*"
_MARKS = {f"kind{number}": marks for number, marks in enumerate(THOUGHT_DELIMITERS.items())}
_STARTS = {kind: _write(start.strip()) for kind, (start, _) in _MARKS.items()}
_ENDS = {kind: regex.compile("|".join(map(_write, ends))) for kind, (_, ends) in _MARKS.items()}
# Sentences may mention tags, but not special tokens: a tag is a delimiter after the end of a line, tag or sentence.
_OPENING = "|".join(
    rf"{'' if marks[0].startswith(('<|', '◁')) else f'(?<={_LINE}|[>.!?…])'}(?P<{kind}>{_STARTS[kind]})"
    for kind, marks in _MARKS.items()
)
_CLOSING = tuple(end for _, ends in _MARKS.values() for end in ends if regex.search("(?i)think|thought|reason", end))
"""The delimiters that close thoughts and nothing else."""
_MARK = regex.compile(
    "(?=[`<\\[◁H])(?:"  # all of the following begin with one of these
    + "|".join(
        [
            rf"(?<={_LINE})```.*?{_LINE}```|`[^`\n]*`",  # code
            _OPENING,
            r"[<\[](?P<tag>[\w:|]+)[\]>][^\n]{0,200}?[<\[]/(?i:(?P=tag))[\]>]",  # an example, or other tags
            rf"(?<={_LINE}|\S)(?P<end>{'|'.join(map(_write, _CLOSING))})",
        ]
    )
    + ")",
    regex.MULTILINE | regex.DOTALL,
)
_FIRST = regex.compile(  # what the prompt ends with may be the beginning of a delimiter
    "|".join(
        rf"(?:{regex.escape(before)}assistant)?\s*(?P<{kind}>{_write(rest.strip())})"
        for kind, (start, _) in _MARKS.items()
        for before, _, rest in [start.rpartition("assistant")]
    )
)
_BARE_HARMONY = regex.compile(r"(?s)\s*analysis(?:(?=\S).*assistantfinal|(?=(?:We|The|User|I|Need|Let|Okay|So)\b).*)")
"""The thoughts of gpt-oss in a text that was decoded without special tokens."""
_FRAME = regex.compile(r"<\|\w+\|>(?:(?:assistant|final|commentary|response|message)?(?: to=\w+)?(?=<\||\Z))?")
"""A special token around an answer, and the name after it."""


def drop_thoughts(text: str, prompt: str = "") -> str:
    r"""Return a text without its thoughts and the delimiters of its answer; "" if the thoughts never end.

    prompt: the text's prompt, if known. A chat template may open thoughts at the prompt's end, or close them.

    >>> drop_thoughts("Hm.\n</think>\n\nA cat."), drop_thoughts("The tag </think> ends thoughts.")
    ('A cat.', 'The tag </think> ends thoughts.')
    """
    spans = [*_find_thoughts(text, prompt.rstrip())]
    gaps = pairwise([(0, 0), *spans, (len(text), len(text))])
    answer = "".join(text[start:end] for (_, start), (end, _) in gaps)
    if text.lstrip().startswith("<|channel|>") or any(text.endswith("|>", 0, end) for _, end in spans):
        answer = _FRAME.sub("", answer)
    if not spans:
        return answer
    answer = answer.lstrip()
    for tag in ("answer", "response"):  # Hunyuan, ERNIE
        if answer.startswith(f"<{tag}>"):
            answer = answer.removeprefix(f"<{tag}>").strip().removesuffix(f"</{tag}>").rstrip()
    return answer


def drop_thoughts_of_pieces(pieces: Iterable[str]) -> Iterator[str]:
    """Yield a text without its thoughts: in the given pieces, or as one piece if the first piece has thoughts."""
    rest = iter(pieces)
    first = next(rest, "")
    if drop_thoughts(first) == first:
        yield from chain([first], rest)
    else:
        yield drop_thoughts("".join([first, *rest]))


def _find_thoughts(text: str, prompt: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each passage of thoughts, delimiters included."""
    if bare := _BARE_HARMONY.match(text):
        yield bare.span()
        return
    kind = next((kind for kind, (start, _) in _MARKS.items() if prompt.endswith(start.strip())), None)
    begin = place = 0
    if kind is None and (first := _FIRST.match(text, len(text) - len(text.lstrip()))):
        kind, place = first.lastgroup, first.end()
    has_begun = kind is not None
    may_end = not has_begun and not prompt.endswith(_CLOSING)  # thoughts may have begun in an unknown prompt
    endless = set[str | None]()  # kinds without a closing delimiter after `place`
    while True:
        if kind == "end" and may_end:
            yield 0, place
            has_begun, may_end = True, False
        elif kind in _ENDS and kind not in endless:
            end = _ENDS[kind].search(text, place)
            if end or has_begun or _MARKS[kind][0].startswith("<|"):
                place = end.end() if end else len(text)
                yield begin, place
                has_begun, may_end = True, False
            else:
                endless.add(kind)
        if (mark := _MARK.search(text, place)) is None:
            return
        kind, begin, place = mark.lastgroup, mark.start(), mark.end()
