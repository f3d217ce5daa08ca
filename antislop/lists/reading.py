"""Read the file of a list, in any format, into a `BanList`. The steps:

    read_text           reads a path, an open file, or a file on the Hugging Face hub
    recognize           names the format, by the file's name, or else by the text: its value in JSON, or its lines
    parse               yields for each entry its line, and its ban or why it is refused:
      parse_ban         takes a line of the text format apart: phrase, kind, options   (own.py)
      parse_values      finds the bans in JSON, and reads each value                   (values.py)
    make_ban            makes the pattern of the entry's kind, and the ban             (entries.py)

The address of a file on the hub is hf://owner/name/file or hf://owner/name@revision/file, in a repository of data sets;
without a file, the file is `LIST`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, get_args

import regex

from antislop.core.bans.ban_list import BanList, Refusal
from antislop.core.bans.bans import Ban
from antislop.core.bans.folding import Edges
from antislop.core.bans.patterns.incremental_regex import RegexTimeout
from antislop.errors import BanError, InputError, first_line
from antislop.files.disk import decode, find_scheme, open_bytes
from antislop.lists.entries import Line
from antislop.lists.limits import MAX_CHARACTERS, MAX_ENTRIES, MAX_REGEXES, MAX_TIMED_OUT, MAX_WRITTEN_OUT
from antislop.lists.lines import ListText, find_format, parse_csv, parse_marked, parse_regexes, parse_text
from antislop.lists.own import parse_heading
from antislop.lists.values import find_shape, parse_values

FORMATS = ("text", "regexes", "phrases", "factors", "counts", "ngrams", "statistics", "csv", "sillytavern")
LIST = "bans.txt"
_JSON_STRINGS = regex.compile(r'\s*\[\s*["\]{]')
_ADDRESS = regex.compile(r"hf:/+(?:datasets/)?([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.+))?")


def read_list(
    source: str | os.PathLike[str] | IO[str] | IO[bytes],
    *,
    format: str | None = None,  # noqa: A002
    edges: Edges | None = None,
    group: str | Sequence[str] = (),
    strict: bool = True,
) -> BanList:
    """Read a list; `BanList.load` calls this, and explains the arguments."""
    if format is not None and format not in FORMATS:
        raise BanError(f"the format {format!r} is unknown: it is one of {', '.join(FORMATS)}")
    if edges is not None and edges not in get_args(Edges):
        raise BanError(f"the edges are {edges!r}; they are 'word' or 'anywhere'")
    place, text = read_text(source)
    suffix = Path(place.lower().removesuffix(".gz")).suffix
    groups = (group,) if isinstance(group, str) else tuple(group)
    heading = parse_heading(text, place)
    listed = ListText(text, place, suffix, heading, groups, is_asked=format is not None)
    try:
        taken = format or recognize(listed)
        marks = listed.unmarked[1] if taken == "text" and heading.version is None else ()
        edges = edges or ("anywhere" if taken == "sillytavern" else "word")
        bans, numbers, refused = _collect_bans(parse(listed, taken, edges), place)
    except RecursionError as error:
        raise BanError(f"{place}:1: nested too deep to be read: give a flat list") from error
    is_empty = not bans and not refused and heading.version is None
    if is_empty or (refused and strict):
        first, *others = refused or [Refusal(f"{place}:1", "contains no ban: write one per line")]
        more = f" ({len(others)} more refused; strict=False leaves them out)" if others else ""
        raise BanError(f"{first.place}: {first.reason}{more}")
    if taken != "text" and bans and all(ban.weight == 1 for ban in bans):
        advice = 'write the phrases alone, as one list, or pass format="counts"'
        raise BanError(f"{place}:{numbers[0]}: each weight is 1, with which nothing is banned: {advice}")
    loaded = BanList(bans, source=heading.source or place, license=heading.license)
    loaded.format, loaded.lines, loaded.marks, loaded.refused = taken, tuple(numbers), marks, tuple(refused)
    loaded.left_out = () if groups else tuple(dict.fromkeys(listed.left_out))
    return loaded


def recognize(text: ListText) -> str:
    """Return the name of the format of a text."""
    if text.heading.version is not None:  # the first line names the format, whatever the file's name
        return "text"
    if text.suffix in (".yaml", ".yml"):
        advice = "write one phrase per line into a .txt file, or the groups as JSON into a .json file"
        raise BanError(f"{text.place}:1: a list in YAML can't be read: {advice}")
    if text.suffix in (".csv", ".tsv"):
        return "csv"
    return find_shape(text) if text.is_json or text.are_json_lines else find_format(text)


def parse(text: ListText, name: str, edges: Edges) -> Iterator[Line]:
    """Yield the bans of a text. name: of the format. Raises `BanError` for a text that is not in that format."""
    if name == "text":
        return parse_text(text, edges)
    if name == "csv":
        return parse_csv(text, edges)
    if name == "sillytavern" and not text.is_json:
        return parse_marked(text.text, edges)
    if name == "regexes" and text.suffix != ".json" and not _JSON_STRINGS.match(text.text):
        return parse_regexes(text)
    return parse_values(text, edges, name=name)


def _collect_bans(lines: Iterable[Line], place: str) -> tuple[list[Ban], list[int], list[Refusal]]:
    """Return the bans of a list, their lines, and the refused entries."""
    bans: list[Ban] = []
    numbers: list[int] = []
    refused: list[Refusal] = []
    regexes = timed_out = written_out = 0
    for number, ban in lines:
        if isinstance(ban, Ban):
            bans.append(ban)
            numbers.append(number)
            if size := ban.pattern.compiled_size:
                regexes, written_out = regexes + 1, written_out + size
        else:
            refused.append(Refusal(f"{place}:{number}", str(ban)))
            timed_out += isinstance(ban, RegexTimeout)
        for unit, count, limit in (
            ("entries", len(bans) + len(refused), MAX_ENTRIES),
            ("regexes", regexes, MAX_REGEXES),
            ("characters in regexes, with their repetitions written out", written_out, MAX_WRITTEN_OUT),
        ):
            if count > limit:
                raise BanError(f"{place}:{number}: more than {limit} {unit}: split the list")
        if timed_out > MAX_TIMED_OUT:
            raise BanError(f"{place}:{number}: {ban}; so do {MAX_TIMED_OUT} before it")
    return bans, numbers, refused


# -- files ------------------------------------------------------------------------------------------------------------


def read_text(source: str | os.PathLike[str] | IO[str] | IO[bytes]) -> tuple[str, str]:
    """Return the name and the text of a path, an open file, or an address on the hub. Line ends become line feeds."""
    is_open = callable(getattr(source, "read", None))
    if not (is_open or isinstance(source, (str, os.PathLike))):
        raise BanError(f"a path or an open text file was expected, not {source!r}: write BanList([…]) for phrases")
    name = getattr(source, "name", None) if is_open else os.fsdecode(source)  # type: ignore[arg-type]
    place = name if isinstance(name, str) else "<text>"
    try:
        path = download(place) if find_scheme(place) == "hf" and not is_open else place
        with nullcontext(source) if is_open else open_bytes(path) as file:
            content = _read_file(file, place)
        text = decode(content, place) if isinstance(content, bytes) else content.removeprefix("\ufeff")
    except InputError as error:
        raise BanError(str(error)) from error
    except UnicodeDecodeError as error:
        raise BanError(f"{place}:1: not {error.encoding} ({error.reason}): open it with its encoding") from error
    except (OSError, ValueError, EOFError, zlib.error) as error:  # ValueError: a closed file, a path with a null
        reason = getattr(error, "strerror", None) or error
        raise BanError(f"{place}: can't be read ({reason}): give the path of a text or JSON file") from error
    return place, text.replace("\r\n", "\n").replace("\r", "\n")


def _read_file(file: Any, place: str) -> str | bytes:
    pieces: list[Any] = []
    size = 0
    while piece := file.read(MAX_CHARACTERS + 1 - size):
        if not isinstance(piece, type(pieces[0]) if pieces else (str, bytes)):
            raise BanError(f"{place}: an open text file was expected, not {file!r}: give a path, or open(path)")
        pieces.append(piece)
        size += len(piece)
        if size > MAX_CHARACTERS:
            raise BanError(f"{place}: longer than {MAX_CHARACTERS} characters: split the list")
    return b"".join(pieces) if pieces and isinstance(pieces[0], bytes) else "".join(pieces)


# -- addresses on the hub ---------------------------------------------------------------------------------------------


def parse_address(source: str) -> tuple[str, str | None, str]:
    """Return (repository, revision, file) of an address; a revision is a commit, branch or tag, or None for the newest.

    >>> parse_address("hf://me/slop@v1/lists/mine.txt")
    ('me/slop', 'v1', 'lists/mine.txt')
    """
    match = _ADDRESS.fullmatch(source.replace("\\", "/"))
    if match is None:
        raise BanError(f"{source}: the address of a list on the hub was expected: write hf://owner/name/file")
    return match[1], match[2], match[3] or LIST


def download(source: str) -> Path:
    """Download the list at an address; return the path of the file in the cache of huggingface_hub."""
    repo, revision, name = parse_address(source)
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(repo, name, revision=revision, repo_type="dataset"))
    except ModuleNotFoundError:
        raise BanError(f"{source}: lists of the hub need the package huggingface_hub: pip install it") from None
    except Exception as error:  # names, logins and networks fail with many types of errors
        raise BanError(
            f"{source}: can't be downloaded ({first_line(error)}): check the name, the network, and for a private "
            "repository hf auth login"
        ) from error
