"""The longer sentences with which bans, and what the loop does with them, are refused; from `refusals.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path


def sentence(case: str, /, **words: object) -> str:
    """Return the sentence of `refusals.yaml` about what is refused. words: values in the sentence."""
    return _read_sentences()[case].format(**words)


@cache
def _read_sentences() -> dict[str, str]:
    import yaml  # slow to import, and needed for an error only

    sentences: dict[str, str] = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text(encoding="utf-8"))
    return sentences
