"""What every refusal must be: one sentence, before a model runs."""

from __future__ import annotations

import re
from collections.abc import Callable
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
