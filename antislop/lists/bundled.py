"""The lists that come with the package; `data/README.md` says how they were made."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban, LoopOptions
from antislop.core.bans.scopes import Scope
from antislop.data import FOLDER
from antislop.errors import BanError
from antislop.files.disk import read_json

if TYPE_CHECKING:
    from typing_extensions import Unpack


@cache
def default_bans() -> BanList:
    """Load the bundled list: phrases that language models overuse in English fiction, the largest excess first.

    Phrases that people write too have a weight that makes them as rare as in human texts.
    """
    return BanList.load(FOLDER / "slop.txt")


@cache
def held_out_bans() -> BanList:
    """Load a list for evaluation, made like the bundled one from answers to other prompts.

    Its matches in texts written under the bundled list show whether slop was avoided, or only the bundled phrases.
    """
    return BanList.load(FOLDER / "slop_held_out.txt")


class Construction(NamedTuple):
    """A sentence construction that language models overuse.

    sources: URLs of descriptions; without any, the counts in `data/README.md` are the only evidence.
    examples, counterexamples: sentences in which the ban must be found, or not.
    """

    name: str
    about: str
    sources: tuple[str, ...]
    ban: Ban
    examples: tuple[str, ...]
    counterexamples: tuple[str, ...]


@cache
def read_constructions(*names: str) -> tuple[Construction, ...]:
    """Return the constructions with these names, or all. Raises `BanError` for an unknown name."""
    if names:
        known = {each.name: each for each in read_constructions()}
        for name in names:
            if name not in known:
                raise BanError(f"there is no construction {name!r}; there are {', '.join(known)}")
        return tuple(map(known.__getitem__, names))
    entries = read_json(FOLDER / "constructions.json")
    return tuple(
        Construction(
            entry["name"],
            entry["about"],
            tuple(entry["sources"]),
            Ban.regex("".join(entry["regex"]), max_span=entry["max_span"]),
            tuple(entry["examples"]),
            tuple(entry["counterexamples"]),
        )
        for entry in entries
    )


def constructions(*names: str) -> BanList:
    """Load bans of English constructions, such as "It's not just X; it's Y": those named, or all.

    Raises `BanError` for an unknown name.

    >>> [match[1:] for match in constructions("not-x-but-y").find("It was not a door, but a mouth.")]
    [(7, 24)]
    """
    return BanList([each.ban for each in read_constructions(*names)], source="the bundled constructions")


_GAP = r"(?:\b|[^\s\w|>–-])[^\S\n]{1,3}"  # not at a line's start, where an item begins, nor in an empty cell
_NOT_BEFORE = r"(?![^\S\n]{0,2}(?:\||(?:\p{Sc}|\p{Lu}\p{L}{2,8} )?\d))"  # a number, or the end of a cell
_DASHES = (
    rf"""(?#en dash){_GAP}[–‒]{_NOT_BEFORE}|\b[–‒](?=[\s.,;:?!"”’]|\Z){_NOT_BEFORE}""",
    rf"""(?#spaced hyphen or --){_GAP}(?:[-‐‑]|--|---)(?=\s|\Z){_NOT_BEFORE}|(?:\b|[.,;?…)”’]["'”’]?)---?(?![->|\d])""",
)


def dashes() -> BanList:
    """Return bans of dashes between words: —, – and -- with or without spaces, and a hyphen with spaces.

    Left alone are hyphens within words, an en dash that joins two words, lists, rules and tables in Markdown, options
    such as --help, fenced code, and what is before a number: ranges, dates, phone numbers, negative numbers. Em dashes
    are found everywhere.

    >>> [match[1:] for match in dashes().find("A well-known fact - from 1990–1995 - was lost — for good.")]
    [(17, 19), (34, 36), (46, 47)]
    """
    bans = [*map(Ban, "—―⸺⸻"), *(Ban.regex(text, max_span=40, scopes=[Scope("outside", "code")]) for text in _DASHES)]
    return BanList(bans, source="dashes")


def loops(**options: Unpack[LoopOptions]) -> BanList:
    """Return `Ban.loop()` as a list to add to others.

    options: of `Ban.loop`; then="stop" for instance ends a text that goes on looping after `tries` rewinds to a place.

    >>> [match[1:] for match in loops().find("He ran to the door. " * 3)]
    [(20, 60)]
    """
    return BanList([Ban.loop(**options)], source="loops")


def repeats() -> BanList:
    """Return `Ban.repeat()` as a list to add to others.

    >>> text = "He ran to the old door of the house. She ran to the old door of the house, too."
    >>> [match[1:] for match in repeats().find(text)]
    [(41, 73)]
    """
    return BanList([Ban.repeat()], source="repeats")


_LISTS: dict[str, Callable[[], BanList]] = {
    "slop": default_bans,
    "held_out": held_out_bans,
    "constructions": constructions,
    "dashes": dashes,
    "loops": loops,
    "repeats": repeats,
}


def bundled_bans(name: str) -> BanList:
    """Return the list that one of the functions above returns: of "slop", "held_out", or else the function's name."""
    return _LISTS[name]()
