"""Lists of bans on the Hugging Face hub, in repositories of data sets, and their addresses.

An address is hf://owner/name/file or hf://owner/name@revision/file; without a file, it is `LIST`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import regex

from antislop.errors import BanError, first_line

LIST = "bans.txt"

_PREFIX = regex.compile(r"hf:[/\\]+")  # a `Path` has one slash, or on Windows a backslash
_REPO = regex.compile(r"[\w.-]+/[\w.-]+")
_ADDRESS = regex.compile(rf"(?:datasets/)?({_REPO.pattern})(?:@([^/]+))?(?:/(.+))?")


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
