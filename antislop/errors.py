"""The errors for inputs that can't be used and for texts that bans end, and the warning of a conceded ban."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from pathlib import Path

DISTRIBUTION = "antislop-lm"
"""What pip installs. PyPI takes no package named antislop, since one named anti-slop exists."""


class InputError(ValueError):
    """Raised with one sentence: what was expected, what came, what to do. Commands print it and end with status 2."""


class BanError(InputError):
    """Raised for a ban, a list or a file of bans that can't be used."""


class BacktrackError(InputError):
    """Raised if a controller would remove tokens of the prompt, or more tokens than the controller declared."""


class CapabilityError(InputError):
    """Raised if a controller forks into more texts than allowed, or needs what the model's cache can't do."""


class SharingError(InputError):
    """Raised for a processor or criterion whose answers depend on other texts, or on withdrawn tokens."""


class Exhausted(RuntimeError):
    """Raised if every alternative to a ban is used up, with on_exhausted="raise"."""


class ConcededWarning(RuntimeWarning):
    """A banned phrase was conceded: every alternative was banned as well."""


@contextmanager
def needing_models(what: str) -> Iterator[None]:
    """Raise `InputError` with advice if torch or transformers is missing. what: the subject of the error's sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise InputError(f"{what} needs torch and transformers: pip install '{DISTRIBUTION}[hf]'") from error


def first_line(error: object) -> str:
    r"""Return the first line of an error's message, as part of a sentence.

    >>> first_line(ValueError("no such file.\nSee the documentation."))
    'no such file'
    """
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(" .:") if lines else type(error).__name__


def suggest(name: str, known: Iterable[str], *, advice: str, aliases: Mapping[str, str] | None = None) -> str:
    """Return what to do about an unknown name: a question with the nearest known name, or else `advice`.

    aliases: from names that people write instead to known names.
    """
    meant = {each: each for each in known}
    meant |= {alias: each for alias, each in (aliases or {}).items() if each in meant}
    near = get_close_matches(name[:60], meant, n=1, cutoff=0.7)  # the time grows with the product of lengths
    return f"did you mean {meant[near[0]]}?" if near else advice


def sentences_of(module: str) -> Callable[..., str]:
    """Return a function that fills in the longer sentences of refusals, from the file `refusals.yaml` beside a module.

    The function takes the name of a sentence and, by name, the values in it. The file is read at the first refusal.
    """

    @cache
    def read() -> dict[str, str]:
        import yaml  # slow to import

        sentences: dict[str, str] = yaml.safe_load(Path(module).with_name("refusals.yaml").read_text(encoding="utf-8"))
        return sentences

    def sentence(case: str, /, **words: object) -> str:
        return read()[case].format(**words)

    return sentence
