"""The table of longer sentences has what the code looks up, and reading a list does not read it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from antislop.core.bans import refusals
from tests.support.refusals import find_words, list_words


def test_each_sentence_of_the_table_is_looked_up_with_its_words() -> None:
    """A slip in the name of a sentence would be found only when it is to be raised."""
    folder = Path(refusals.__file__).parent
    sentences = yaml.safe_load((folder / "refusals.yaml").read_text(encoding="utf-8"))
    found = find_words(folder, refusals.sentence) | find_words(folder.parent / "loop", refusals.sentence)
    assert found == list_words(sentences)


def test_a_list_is_searched_without_the_reader_of_the_table() -> None:
    code = "import sys, antislop; antislop.BanList(['a b']).find('a b'); assert 'yaml' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
