"""What every refusal must be: one sentence, before a model runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from antislop.errors import InputError


def refused(sentence: str, call: Callable[..., object], /, *args: Any, **kwargs: Any) -> str:
    """Check that a call raises `InputError` with a single sentence before any of its models runs; return the sentence.

    sentence: a regular expression that occurs in it.
    """
    ran: list[object] = []
    named = [cell.cell_contents for cell in getattr(call, "__closure__", None) or ()]  # by a lambda
    given = [*args, *kwargs.values(), *named, getattr(call, "__self__", None)]
    models = [value for value in given if hasattr(value, "register_forward_pre_hook")]
    handles = [model.register_forward_pre_hook(lambda module, _: ran.append(module)) for model in models]
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    for handle in handles:
        handle.remove()
    said = str(caught.value)
    assert re.search(sentence, said), said
    assert "\n" not in said and not ran
    return said


def list_words(sentences: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the words in braces of each sentence of a table."""
    return {case: {word for _, word, _, _ in Formatter().parse(text) if word} for case, text in sentences.items()}


def find_words(folder: Path, function: Callable[..., object]) -> dict[str, set[str]]:
    """Return the sentences that the code of a folder looks up by a function, and the words that it fills in."""
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == function.__name__:
                words = {str(word.arg) for word in node.keywords} - {"error"}
                assert found.setdefault(ast.literal_eval(node.args[0]), words) == words
    return found
