"""Lists of bans on the Hugging Face hub, in repositories of data sets, and their addresses.

An address is hf://owner/name/file or hf://owner/name@revision/file; without a file, it is `LIST`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import regex

from antislop.core.bans.bans import Ban
from antislop.display import make_visible
from antislop.errors import BanError, InputError, first_line

if TYPE_CHECKING:
    from huggingface_hub import CardData

LIST, CARD = "bans.txt", "README.md"

_PREFIX = regex.compile(r"hf:[/\\]+")  # a `Path` has one slash, or on Windows a backslash
_REPO = regex.compile(r"[\w.-]+/[\w.-]+")
_ADDRESS = regex.compile(rf"(?:datasets/)?({_REPO.pattern})(?:@([^/]+))?(?:/(.+))?")

_CARD = """\
# {title}

{bans:,} words, phrases and patterns that a language model should not write: {kinds}.

```python
import antislop

bans = antislop.BanList.load("hf://{repo}")
```

```console
antislop generate "The old house" --bans hf://{repo}
```

| ban | kind | weight |
|---|---|---|
{rows}

{more}A weight is the share of a ban's occurrences to keep; 0 forbids it. Source: {source}. The list is in
[{file}]({file}), in the text format of [antislop](https://github.com/antislop/antislop).
"""
_SHOWN = 20


class Address(NamedTuple):
    """The parts of an address. revision: a commit, branch or tag; None is the newest."""

    repo: str
    revision: str | None
    file: str


def is_address(source: str) -> bool:
    return _PREFIX.match(source) is not None


def parse_address(source: str) -> Address:
    """Return the parts of an address.

    >>> parse_address("hf://me/slop@v1/lists/mine.txt")
    Address(repo='me/slop', revision='v1', file='lists/mine.txt')
    """
    match = _ADDRESS.fullmatch(_PREFIX.sub("", source, count=1).replace("\\", "/"))
    if match is None:
        raise BanError(f"{source}: the address of a list on the hub was expected: write hf://owner/name/file")
    return Address(match[1], match[2], match[3] or LIST)


def download(source: str) -> Path:
    """Return the path of a list in the cache of huggingface_hub."""
    address = parse_address(source)
    try:
        from huggingface_hub import hf_hub_download

        path = hf_hub_download(address.repo, address.file, revision=address.revision, repo_type="dataset")
    except ModuleNotFoundError:
        raise BanError(f"{source}: lists of the hub need the package huggingface_hub: pip install it") from None
    except Exception as error:  # names, logins and networks fail with many types of errors
        raise BanError(
            f"{source}: can't be downloaded ({first_line(error)}): check the name, the network, and for a private "
            "repository hf auth login"
        ) from error
    return Path(path)


def upload(folder: Path, repo: str, *, private: bool | None = None, replacing: Sequence[str] = ()) -> None:
    """Upload a folder to a repository of data sets, which is made if needed. Raises `InputError` with the hub's error.

    replacing: patterns of the names to upload; files of the repository that match are deleted. By default, all files
        are uploaded and none is deleted.
    """
    from huggingface_hub import HfApi

    patterns = list(replacing) or None
    try:
        api = HfApi()
        repo_id = api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True).repo_id
        api.upload_folder(
            repo_id=repo_id, repo_type="dataset", folder_path=folder, allow_patterns=patterns, delete_patterns=patterns
        )
    except Exception as error:  # names, logins and networks fail with many types of errors
        raise InputError(
            f"{repo} can't be pushed to ({first_line(error)}): log in with hf auth login, check the name and the "
            "network, and run it again"
        ) from error


def join_card(data: CardData, text: str) -> str:
    """Return a card as Markdown: its metadata, and a text."""
    return f"---\n{data.to_yaml()}\n---\n\n{text}"


def show_value(value: Any) -> str:
    r"""Return a value as code in a cell of a Markdown table.

    >>> show_value("a|b\n"), show_value([1, None])
    ('`a\\|b␊`', '`[1, null]`')
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "`" + make_visible(text).replace("`", "'").replace("|", "\\|") + "`"


def list_settings(settings: Mapping[str, Any]) -> str:
    """Return a Markdown table of the settings that are not None."""
    rows = (f"| {name} | {show_value(value)} |" for name, value in settings.items() if value is not None)
    return "\n".join(("| setting | value |", "|---|---|", *rows))


def make_card(bans: Sequence[Ban], repo: str, *, source: str | None, license: str | None) -> str:
    """Return a card as Markdown."""
    from huggingface_hub import DatasetCardData

    owner, _, title = str(repo).partition("/")
    if not owner or not title or "/" in title:
        raise BanError(f"the repository is {repo!r}; owner/name was expected")
    data = DatasetCardData(
        pretty_name=title,
        license=(license or "unknown").lower(),
        tags=["antislop", "ban-list"],
        configs=[{"config_name": "default", "data_files": LIST}],
    )
    kinds = Counter(ban.pattern.kind for ban in bans)
    rows = [f"| {show_value(ban.text)} | {ban.pattern.kind} | {ban.weight:g} |" for ban in bans[:_SHOWN]]
    text = _CARD.format(
        title=title,
        repo=repo,
        bans=len(bans),
        kinds=", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common()),
        rows="\n".join(rows),
        more=f"The first {_SHOWN} are shown. " if len(bans) > _SHOWN else "",
        source=source or "not stated",
        file=LIST,
    )
    return join_card(data, text)
