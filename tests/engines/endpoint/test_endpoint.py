"""Addresses of servers: what can't be used is refused, without the secrets in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from antislop.engines import Endpoint
from antislop.engines.endpoint import endpoint
from tests.support.refusals import find_words, list_words

SECRET = "hunter2"


URL = "http://127.0.0.1:9/v1"
INVALID, NO_URL, NO_KEY = (
    "whose host or port is invalid",
    "something like http",
    "the API key contains white space or a ",
)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"base_url": f"http://me:{SECRET}@127.0.0.1:8000/v1"}, "pass a key as api_key"),
        ({"base_url": f"me:{SECRET}@127.0.0.1:8000/v1"}, "all text up to '@'"),
        ({"base_url": f"http://127.0.0.1:8000/v1?key={SECRET}"}, "from '?' or '#'"),
        ({"base_url": f"http://127.0.0.1:8000/v1#{SECRET}"}, "from '?' or '#'"),
        ({"base_url": "http://127.0.0.1:eighty/v1"}, INVALID),
        ({"base_url": "http://127.0.0.1:99999/v1"}, INVALID),
        ({"base_url": "http://127.0.0.1:0/v1"}, NO_URL),
        ({"base_url": "http://[::1/v1"}, INVALID),
        ({"base_url": "http://a..b/v1"}, INVALID),
        ({"base_url": f"http://{'a' * 70}/v1"}, INVALID),
        ({"base_url": "http://127.0.0.1:8000/my v1"}, NO_URL),
        ({"base_url": "http://127.0.0.1:8000/\u00fcber"}, NO_URL),
        ({"base_url": "http://127.0.0.1:8000/v1\n"}, NO_URL),
        ({"base_url": "http:///v1"}, NO_URL),
        ({"base_url": "localhost:8000"}, NO_URL),
        ({"base_url": 8000}, "base_url is 8000; something like http"),
        ({"api_key": f"{SECRET}\n"}, NO_KEY),
        ({"api_key": f"{SECRET} "}, NO_KEY),
        ({"api_key": f"{SECRET}\u00e9"}, NO_KEY),
        ({"api_key": f"{SECRET}\x1b"}, NO_KEY),
        ({"extra": {"id_slot": 0}}, "extra names a slot"),
        ({"extra": "id_slot"}, "extra is 'id_slot'; the fields of requests are expected"),
        ({"timeout": 0}, "timeout "),
        ({"timeout": "9"}, "timeout "),
        ({"timeout": float("nan")}, "timeout "),
        ({"retries": -1}, "retries "),
        ({"retries": "4"}, "retries "),
        ({"backoff": -1.0}, "backoff "),
    ],
)
def test_what_can_not_be_used_is_refused_and_what_is_secret_in_it_not_shown(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        Endpoint(**{"base_url": URL, **options})
    assert "base_url" not in options or str(caught.value).startswith("base_url ")
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_is_not_shown_and_a_slot_that_is_none_may_be_named() -> None:
    assert SECRET not in repr(Endpoint(URL, api_key=SECRET, extra={"id_slot": None}))


def test_each_sentence_of_the_table_is_looked_up_with_its_words() -> None:
    """A slip in the name of a sentence would be found only when it is to be raised."""
    folder = Path(endpoint.__file__).parent
    sentences = yaml.safe_load((folder / "refusals.yaml").read_text(encoding="utf-8"))
    assert find_words(folder, endpoint.sentence) == list_words(sentences)
