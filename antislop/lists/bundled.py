"""The lists of bans that come with the package; `data/README.md` says how they were made."""

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

    A phrase that people write, too, has a weight that makes it as rare as in human texts.
    """
    return BanList.load(FOLDER / "slop.txt")


@cache
def held_out_bans() -> BanList:
    """Load a list for evaluation, made like the list of `default_bans` but from answers to other prompts.

    Its matches in texts written with the bans of `default_bans` tell whether other overused phrases became rarer, too.
    """
    return BanList.load(FOLDER / "slop_held_out.txt")


class Construction(NamedTuple):
    """A sentence construction that language models overuse.

    sources: URLs of descriptions; if empty, the counts in `data/README.md` are the only evidence.
    examples, counterexamples: sentences in which the ban must be found; in which it must not be found.
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
        for name in (name for name in names if name not in known):
            raise BanError(f"there is no construction {name!r}; there are {', '.join(known)}")
        return tuple(map(known.__getitem__, names))
    return tuple(
        Construction(
            entry["name"],
            entry["about"],
            tuple(entry["sources"]),
            Ban.regex("".join(entry["regex"]), max_span=entry["max_span"]),
            tuple(entry["examples"]),
            tuple(entry["counterexamples"]),
        )
        for entry in read_json(FOLDER / "constructions.json")
    )


def constructions(*names: str) -> BanList:
    """Load the bans of English sentence constructions, such as "It's not just X; it's Y". names: which; by default all.

    Raises `BanError` for an unknown name.

    >>> [match[1:] for match in constructions("not-x-but-y").find("It was not a door, but a mouth.")]
    [(7, 24)]
    """
    return BanList([each.ban for each in read_constructions(*names)], source="the bundled constructions")


_GAP = r"(?:\b|[^\s\w|>–-])[^\S\n]{1,3}"  # spaces, but not at the start of a line (list items) or of a table's cell
_NOT_BEFORE = r"(?![^\S\n]{0,2}(?:\||(?:\p{Sc}|\p{Lu}\p{L}{2,8} )?\d))"  # what follows: no number, no end of a cell
_DASHES = (
    rf"""(?#en dash){_GAP}[–‒]{_NOT_BEFORE}|\b[–‒](?=[\s.,;:?!"”’]|\Z){_NOT_BEFORE}""",
    rf"""(?#spaced hyphen or --){_GAP}(?:[-‐‑]|--|---)(?=\s|\Z){_NOT_BEFORE}|(?:\b|[.,;?…)”’]["'”’]?)---?(?![->|\d])""",
)


def dashes(*, language: str = "en") -> BanList:
    """Return bans of dashes between words: —, – and -- with or without spaces, and a hyphen with spaces.

    Not banned are hyphens within words, an en dash that joins two words, options such as --help, dashes in front of a
    number (ranges, dates, phone numbers, negative numbers), the lists, rules and tables of Markdown, and dashes in
    code. Em dashes are banned everywhere.

    language: an ISO 639-1 code. Where its dialogue begins with a dash, as in French, Spanish or Russian, each line that
        begins with one, or with a quote and one, keeps all its dashes: "—No sé —dijo ella—." A hyphen begins an item.
        Other lines keep none, not even the dash for "is" of Russian. Raises `BanError` for an unknown language.

    >>> [match[1:] for match in dashes().find("A well-known fact - from 1990–1995 - was lost — for good.")]
    [(17, 19), (34, 36), (46, 47)]
    """
    languages = read_json(FOLDER / "languages.json")
    if language not in languages:
        raise BanError(f"the language {language!r} is not known: pass one of {', '.join(languages)}")
    around = [Scope("outside", "dialogue")] * (languages[language].get("dialogue") == "dashes")
    scopes = [Scope("outside", "code"), *around]
    texts = [text.replace("|>", "|>«„") if around else text for text in _DASHES]  # « – begins a line of dialogue
    bans = [*(Ban(dash, scopes=around) for dash in "—―⸺⸻"), *(Ban.regex(t, max_span=40, scopes=scopes) for t in texts)]
    return BanList(bans, source="dashes")


def loops(**options: Unpack[LoopOptions]) -> BanList:
    """Return a list with the single ban `Ban.loop()`, to add to other lists.

    options: of `Ban.loop`; then="stop", for instance, ends a text that loops on after `tries` rewinds to one place.

    >>> [match[1:] for match in loops().find("He ran to the door. " * 3)]
    [(20, 60)]
    """
    return BanList([Ban.loop(**options)], source="loops")


def repeats() -> BanList:
    """Return a list with the single ban `Ban.repeat()`, to add to other lists.

    >>> text = "He ran to the old door of the house. She ran to the old door of the house, too."
    >>> [match[1:] for match in repeats().find(text)]
    [(41, 73)]
    """
    return BanList([Ban.repeat()], source="repeats")


_LISTS: dict[str, Callable[[], BanList]] = {"slop": default_bans, "held_out": held_out_bans}
_LISTS |= {"constructions": constructions, "loops": loops, "repeats": repeats}


def bundled_bans(name: str, *, language: str = "en") -> BanList:
    """Return a bundled list by its name: "slop" (`default_bans`), "held_out", or the name of another function above."""
    return dashes(language=language) if name == "dashes" else _LISTS[name]()
