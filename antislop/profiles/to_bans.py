"""Ban lists made from profiles, with weights that keep entries as rare as in human writing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import floor, log10
from typing import NamedTuple, get_args

from antislop.lists.ban_list import BanList
from antislop.lists.bundled import constructions
from antislop.lists.lint import lint
from antislop.lists.lint_words import find_zipf, load_frequencies
from antislop.matching.bans import Ban
from antislop.matching.errors import BanError
from antislop.metrics.segmentation import drop_stop_words
from antislop.profiles.ngrams import Kind, cut_words
from antislop.profiles.profiles import Entry, Profile
from antislop.profiles.ratios import find_parts

KINDS: tuple[Kind, ...] = ("word", "phrase")
TELLING = 4.5
"""The Zipf frequency under which a single content word makes a phrase telling: 32 in a million."""
COMMON = 5.3
"""The Zipf frequency from which on a word tells nothing, whatever stands beside it: 200 in a million."""
# What begins or ends in one of these is a piece of something else.
_LINKING = frozenset(("and", "but", "or", "that", "which", "who"))
_CUT = _LINKING | {"a", "an", "the"}
_REPEATED = ("duplicate", "contained")  # what another entry forbids already
_POSSESSIVE = frozenset(("my", "your", "his", "her", "its", "our", "their"))


@dataclass(frozen=True, slots=True)
class Choice:
    """What to make bans of.

    min_ratio: how many times as often as people, at least: the lower end of the interval must reach it.
    kinds: which entries. names: "all" of them, "none", single "words" only, or "only" names.
    max_zipf: single words only if they are rarer in English at large: log10 of occurrences in a billion words.
    min_prompts: the least prompts of an entry. top: the limit of bans, the largest excess over human
        usage first. forbid: a weight of 0 for all.
    """

    min_ratio: float = 10.0
    kinds: Collection[str] = KINDS
    names: str = "all"
    max_zipf: float | None = None
    min_prompts: int = 2
    top: int | None = None
    forbid: bool = False


class Chosen(NamedTuple):
    """A list, and the number of entries left out by reason."""

    bans: BanList
    left_out: Counter[str]


def choose_bans(profile: Profile, choice: Choice, *, source: str | None = None) -> Chosen:
    """Make a list of bans out of a profile.

    A ban's weight is 1 over its ratio, to two digits: it stays as rare as in human writing. An entry that the human
    texts don't contain at all has the weight 0. Left out are phrases of common words or cut off at an end (see
    `is_telling`), entries that contain another one and are not rarer in human writing, and those that `antislop.lint`
    reports.

    Raises `BanError` for a profile without ratios and where no entry is left.
    """
    if profile.baseline is None:
        raise BanError("the profile has no baseline, and so no ratios: make it with antislop profile --baseline HUMAN")
    if not profile.entries:
        raise BanError(
            "the profile has no entries: make it of more texts, or with a smaller --min-count, --min-prompts"
        )
    if unknown := set(choice.kinds) - set(get_args(Kind)):
        raise BanError(f"{min(unknown)!r} is no kind of entry: it is one of {', '.join(get_args(Kind))}")
    frequencies = load_frequencies()
    reasons = {(entry.kind, entry.text): _refuse(entry, choice, frequencies) for entry in profile.entries}
    left_out = Counter(reason for reason in reasons.values() if reason)
    wanted = [entry for entry in profile.entries if not reasons[entry.kind, entry.text]]
    wanted.sort(key=lambda entry: (-count_excess(entry), entry.text))
    bans = [make_ban(entry, forbid=choice.forbid) for entry in wanted]
    faulty = {each.index: each.kind for each in lint(bans, frequencies=frequencies) if each.kind not in _REPEATED}
    left_out.update(f"lint: {kind}" for kind in faulty.values())
    sound = [entry for index, entry in enumerate(wanted) if index not in faulty]
    spared = [make_ban(entry, forbid=choice.forbid) for entry in drop_containing(sound, forbid=choice.forbid)]
    left_out["contains another entry"] += len(sound) - len(spared)
    faulty = {each.index: each.kind for each in lint(spared, frequencies=frequencies)}
    left_out.update(f"lint: {kind}" for kind in faulty.values())
    kept = [ban for index, ban in enumerate(spared) if index not in faulty][: choice.top]
    left_out["beyond the top"] += len(spared) - len(faulty) - len(kept)
    if not kept:
        raise BanError(f"none of {len(profile.entries):,} entries is left ({_list(left_out)}): ask for less")
    return Chosen(BanList(kept, source=source), +left_out)


def _list(left_out: Counter[str]) -> str:
    return ", ".join(f"{number:,} {reason}" for reason, number in left_out.most_common() if number) or "there are none"


def _refuse(entry: Entry, choice: Choice, frequencies: Mapping[str, float]) -> str | None:
    """Return the reason to leave an entry out, or None."""
    if entry.kind not in choice.kinds:
        return "of other kinds"
    if (entry.low or 0.0) < choice.min_ratio:
        return "below the ratio"
    if entry.prompts < choice.min_prompts:
        return "from too few prompts"
    if _is_wrong_name(entry, choice.names):
        return "names" if entry.is_name else "no names"
    if entry.kind == "word" and entry.text.endswith("'s"):
        return "possessives"
    if entry.kind == "word" and choice.max_zipf is not None and find_zipf(entry.text, frequencies) >= choice.max_zipf:
        return "common words"
    if entry.kind in ("phrase", "content") and not is_telling(entry.text, frequencies=frequencies):
        return "fragments and phrases without a telling word"
    return None


def _is_wrong_name(entry: Entry, names: str) -> bool:
    if names == "only":
        return not entry.is_name
    return entry.is_name and (names == "none" or (names == "words" and entry.kind != "word"))


def is_telling(phrase: str, *, frequencies: Mapping[str, float]) -> bool:
    """Tell whether a phrase makes a ban that a reader would recognise, and not a piece of everyday English.

    It needs two content words, one of them not among the commonest (Zipf under `COMMON`), or three words one of which
    is rare (under `TELLING`). And it must not end in an article, a possessive or a conjunction, nor begin with a
    conjunction, since then it is a piece of something else.

    >>> from antislop.lists.lint_words import load_frequencies
    >>> [is_telling(text, frequencies=load_frequencies()) for text in ("a testament to", "we need to", "barely a")]
    [True, False, False]
    """
    words = cut_words(phrase)
    content = drop_stop_words(words)
    if words[0] in _LINKING or words[-1] in _CUT | _POSSESSIVE or not content:
        return False
    rarest = min(find_zipf(word, frequencies) for word in content)
    return rarest < COMMON if len(content) > 1 else len(words) > 2 and rarest < TELLING


def count_excess(entry: Entry) -> float:
    """Return the number of occurrences in excess of human writing."""
    return entry.count * (1 - 1 / max(1.0, entry.ratio or 1.0))


def weigh(entry: Entry, *, forbid: bool = False) -> float:
    """Return the weight of an entry's ban: 1 over the ratio, to two digits; 0 where people were not seen to write it.

    >>> weigh(Entry("word", "etched", 9, 9, 9, 45.0, 0.3, human_count=4, human_per_million=1.0, ratio=45.0, low=20.0))
    0.022
    """
    is_bounded = entry.human_count is None and entry.high is None  # all that is known of people is an upper bound
    if forbid or is_bounded or not entry.ratio:
        return 0.0
    weight = min(1.0, 1 / entry.ratio)
    return round(weight, 1 - floor(log10(weight)))


def make_ban(entry: Entry, *, forbid: bool = False) -> Ban:
    """Return the ban of an entry; a content n-gram's skips stop words."""
    weight = weigh(entry, forbid=forbid)
    if entry.kind == "construction":
        (ban,) = constructions(entry.text).with_options(weight=weight, count=entry.count)
        return ban
    if entry.kind == "content":
        return Ban.words(cut_words(entry.text), skip_stop_words=True, weight=weight, count=entry.count)
    return Ban(entry.text, weight=weight, count=entry.count)


def drop_containing(entries: Iterable[Entry], *, forbid: bool = False) -> Iterator[Entry]:
    """Yield the entries without those that contain another one, unless only they are forbidden altogether.

    A text's odds are multiplied by the weight of each ban in it, and two bans would make the longer rarer than with
    people.
    """
    held = list(entries)
    weights = {(entry.kind, entry.text): weigh(entry, forbid=forbid) for entry in held}
    for entry in held:
        weight = weights[entry.kind, entry.text]
        within = [weights[part] for part in find_parts(entry.kind, entry.text) if part in weights]
        if not within or (weight == 0 and min(within) > 0):
            yield entry
