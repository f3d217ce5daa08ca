"""What operators need: ids of requests that the log names, faults in OpenAI's shape, origins, the version."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from transformers import PreTrainedTokenizerBase

import antislop
from antislop.core.trace.events import Drawn, Event, Settled
from antislop.errors import InputError
from antislop.serve.application import make_app
from antislop.serve.backend import BackendError, GenerationRequest
from tests.support.backends import SlowBackend, play_tokens, run_server, send

BODY = {"prompt": "a", "max_tokens": 3}
ORIGIN = "https://chat.example"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return antislop.tiny_model()[1]


def fail_with(tokenizer: PreTrainedTokenizerBase, error: Exception) -> SlowBackend:
    """Return a backend whose texts fail after their first token."""

    def play(_: GenerationRequest) -> Iterable[Event | Exception]:
        return [Drawn(60), Settled((60,)), error]

    return SlowBackend(tokenizer, play, pause=0.05)


def expect_fault(error: dict[str, Any], number: str, caplog: pytest.LogCaptureFixture) -> None:
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], number in error["message"]) == ("server_error", True)
    assert "'x'" not in error["message"]
    assert f"request {number}" in caplog.text and "KeyError: 'x'" in caplog.text and "Traceback" in caplog.text


def test_a_fault_of_the_server_has_openais_shape_and_an_id_that_the_log_has(
    tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    answer = send(make_app(fail_with(tokenizer, KeyError("x"))), json=BODY)
    assert answer.status_code == 500
    expect_fault(answer.json()["error"], answer.headers["X-Request-Id"], caplog)


def test_a_fault_within_a_stream_is_an_event_of_the_same_shape(
    tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    answer = send(make_app(fail_with(tokenizer, KeyError("x"))), json={**BODY, "stream": True})
    assert answer.status_code == 200
    *_, fault, end = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert end == "[DONE]"
    expect_fault(json.loads(fault)["error"], answer.headers["X-Request-Id"], caplog)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/health", "/metrics"])
def test_a_fault_of_any_route_is_answered(
    tokenizer: PreTrainedTokenizerBase, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(SlowBackend(tokenizer, lambda request: []))

    class Faulty:
        def __getattr__(self, name: str) -> Any:
            raise KeyError("x")

    app.state.service = Faulty()
    answer = send(app, path=path, json=BODY) if path == "/v1/completions" else send(app, "GET", path)
    assert answer.status_code == 500
    expect_fault(answer.json()["error"], answer.headers["X-Request-Id"], caplog)


def test_a_failed_engine_is_logged_under_the_id_of_its_request(
    tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    error = BackendError("try again later")
    error.__cause__ = OSError("no route to 10.0.0.7")
    answer = send(make_app(fail_with(tokenizer, error)), json=BODY, headers={"X-Request-Id": "mine"})
    assert (answer.status_code, "10.0.0.7" in answer.text) == (503, False)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "request mine: no route to 10.0.0.7"
    ]


@pytest.mark.parametrize(
    ("sent", "is_kept"),
    [
        ("mine-1", True),
        ("Root=1-67891233-abcdef012345678912345678", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("two words", False),
        ("<script>", False),
        ("é".encode(), False),
        ("", False),
    ],
)
def test_an_id_is_the_clients_if_it_is_short_and_printable(
    tokenizer: PreTrainedTokenizerBase, sent: Any, is_kept: bool
) -> None:
    app = make_app(SlowBackend(tokenizer, lambda request: play_tokens([60] * request.max_new_tokens)))
    numbers = [send(app, json=BODY, headers={"X-Request-Id": sent}).headers["X-Request-Id"] for _ in range(2)]
    assert numbers == [sent] * 2 if is_kept else len({sent, *numbers}) == 3


def test_every_answer_has_its_id(tokenizer: PreTrainedTokenizerBase) -> None:
    backend = SlowBackend(tokenizer, lambda request: play_tokens([60] * request.max_new_tokens))
    with run_server(make_app(backend, api_key="secret", allow_origins=[ORIGIN])) as url, httpx.Client() as client:
        key = {"Authorization": "Bearer secret"}
        preflight = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
        answers = [
            client.post(f"{url}/v1/completions", json=BODY, headers=key),
            client.post(f"{url}/v1/completions", json={**BODY, "stream": True}, headers=key),
            client.post(f"{url}/v1/completions", json={"prompt": 5}, headers=key),
            client.post(f"{url}/v1/completions", json=BODY),
            client.get(f"{url}/nowhere", headers=key),
            client.put(f"{url}/v1/models", headers=key),
            client.options(f"{url}/v1/completions", headers=preflight),
            client.get(url),
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 401, 404, 405, 200, 200]
    assert len({answer.headers["X-Request-Id"] for answer in answers}) == len(answers)


def test_the_version_is_told(tokenizer: PreTrainedTokenizerBase) -> None:
    app = make_app(SlowBackend(tokenizer, lambda request: []))
    assert send(app, "GET", "/version").json() == {"version": antislop.__version__}


@pytest.mark.parametrize("allowed", [[ORIGIN, "http://localhost:3000"], ["*"]])
def test_pages_of_allowed_origins_read_answers_and_errors(
    tokenizer: PreTrainedTokenizerBase, allowed: list[str]
) -> None:
    app = make_app(fail_with(tokenizer, KeyError("x")), api_key="secret", allow_origins=allowed)
    preflight = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }
    answers = [
        send(app, "OPTIONS", headers=preflight),
        send(app, json=BODY, headers={"Origin": ORIGIN}),
        send(app, json=BODY, headers={"Origin": ORIGIN, "Authorization": "Bearer secret"}),
    ]
    assert [answer.status_code for answer in answers] == [200, 401, 500]
    assert {answer.headers["Access-Control-Allow-Origin"] for answer in answers} == {
        "*" if allowed == ["*"] else ORIGIN
    }
    assert "x-stainless-lang" in answers[0].headers["Access-Control-Allow-Headers"]
    readable = answers[2].headers["Access-Control-Expose-Headers"].split(", ")
    assert {"X-Request-Id", "X-Antislop-Ignored-Fields", "X-Antislop-Warning"} <= {*readable}


@pytest.mark.parametrize("allowed", [[], ["https://other.example"]])
def test_pages_of_other_origins_read_nothing(tokenizer: PreTrainedTokenizerBase, allowed: list[str]) -> None:
    app = make_app(SlowBackend(tokenizer, lambda request: play_tokens([60])), allow_origins=allowed)
    answer = send(app, "GET", "/v1/models", headers={"Origin": ORIGIN})
    assert "Access-Control-Allow-Origin" not in answer.headers
    preflight = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    assert send(app, "OPTIONS", headers=preflight).status_code in (400, 405)


HERE = (
    "localhost:8000",
    "LOCALHOST",
    "127.0.0.1",
    "[::1]:80",
    "a.localhost",
    "box",
    "host.docker.internal:1",
    "10.0.0.7",
)
ELSEWHERE = ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example")


def test_a_page_whose_own_name_leads_to_a_loopback_address_is_refused_by_a_server_without_a_key(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    open_, closed = (make_app(SlowBackend(tokenizer, lambda request: []), api_key=key) for key in (None, "secret"))

    def statuses(hosts: Sequence[str], *, app: FastAPI = open_, at: str, path: str = "/v1/models") -> set[int]:
        sent = {"Authorization": "Bearer secret"}
        answers = [send(app, "GET", path, base_url=f"http://{at}", headers={**sent, "Host": host}) for host in hosts]
        assert all("is not this machine: connect to" in answer.text for answer in answers if answer.status_code == 403)
        return {answer.status_code for answer in answers}

    for address in ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost"):
        assert (statuses(HERE, at=address), statuses(ELSEWHERE, at=address)) == ({200}, {403})
    assert statuses(ELSEWHERE, at="127.0.0.1", path="/") == {403}
    assert statuses(ELSEWHERE, at="127.0.0.1", app=closed) == statuses(ELSEWHERE, at="10.0.0.7") == {200}


@pytest.mark.parametrize("origin", ["chat.example", "https://chat.example/", "https://Chat.example", "null", ""])
def test_an_origin_that_no_browser_sends_is_refused(tokenizer: PreTrainedTokenizerBase, origin: str) -> None:
    with pytest.raises(InputError, match=r"is not an origin; write https://chat\.example or \*"):
        make_app(SlowBackend(tokenizer, lambda request: []), allow_origins=[origin])


def test_there_is_no_schema_and_no_page_that_loads_scripts_from_elsewhere(tokenizer: PreTrainedTokenizerBase) -> None:
    app = make_app(SlowBackend(tokenizer, lambda request: []))
    assert {send(app, "GET", path).status_code for path in ("/openapi.json", "/docs", "/redoc")} == {404}
