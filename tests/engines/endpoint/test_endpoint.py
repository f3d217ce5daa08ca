"""Addresses of servers: what can't be used is refused, without the secrets in it."""

from __future__ import annotations

from typing import Any

import pytest

from antislop.engines import Endpoint

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (f"http://me:{SECRET}@127.0.0.1:8000/v1", "pass a key as api_key"),
        (f"me:{SECRET}@127.0.0.1:8000/v1", "all text up to '@'"),
        (f"http://127.0.0.1:8000/v1?key={SECRET}", "from '?' or '#'"),
        (f"http://127.0.0.1:8000/v1#{SECRET}", "from '?' or '#'"),
        ("http://127.0.0.1:eighty/v1", "whose host or port is invalid"),
        ("http://127.0.0.1:99999/v1", "whose host or port is invalid"),
        ("http://127.0.0.1:0/v1", "something like http"),
        ("http://[::1/v1", "whose host or port is invalid"),
        ("http://a..b/v1", "whose host or port is invalid"),
        (f"http://{'a' * 70}/v1", "whose host or port is invalid"),
        ("http://127.0.0.1:8000/my v1", "something like http"),
        ("http://127.0.0.1:8000/\u00fcber", "something like http"),
        ("http://127.0.0.1:8000/v1\n", "something like http"),
        ("http:///v1", "something like http"),
        ("localhost:8000", "something like http"),
        (8000, "base_url is 8000; something like http"),
    ],
)
def test_a_url_that_can_not_be_used_is_refused_and_what_is_secret_in_it_not_shown(url: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^base_url ") as caught:
        Endpoint(url)
    assert sentence in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_slot_of_llama_cpp_is_refused() -> None:
    with pytest.raises(ValueError, match="extra names a slot"):
        Endpoint("http://127.0.0.1:9/v1", extra={"id_slot": 0})
    with pytest.raises(ValueError, match="extra is 'id_slot'; the fields of requests are expected"):
        Endpoint("http://127.0.0.1:9/v1", extra="id_slot")  # type: ignore[arg-type]
    Endpoint("http://127.0.0.1:9/v1", extra={"id_slot": None})


@pytest.mark.parametrize("key", [f"{SECRET}\n", f"{SECRET} ", f"{SECRET}\u00e9", f"{SECRET}\x1b"])
def test_a_key_that_can_not_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="the API key contains white space or a character that is not ASCII") as caught:
        Endpoint("http://127.0.0.1:8000/v1", api_key=key)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(Endpoint("http://127.0.0.1:8000/v1", api_key=SECRET))


@pytest.mark.parametrize(
    "option",
    [{"timeout": 0}, {"timeout": "9"}, {"timeout": float("nan")}, {"retries": -1}, {"retries": "4"}, {"backoff": -1.0}],
    ids=str,
)
def test_numbers_out_of_range_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} "):
        Endpoint("http://localhost:8000", **option)
